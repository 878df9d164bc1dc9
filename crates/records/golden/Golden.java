import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;

import org.apache.kafka.common.compress.Compression;
import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.header.internals.RecordHeader;
import org.apache.kafka.common.record.TimestampType;
import org.apache.kafka.common.record.internal.ControlRecordType;
import org.apache.kafka.common.record.internal.EndTransactionMarker;
import org.apache.kafka.common.record.internal.MemoryRecords;
import org.apache.kafka.common.record.internal.MemoryRecordsBuilder;
import org.apache.kafka.common.record.internal.Record;
import org.apache.kafka.common.record.internal.SimpleRecord;

/**
 * Writes record batches with Kafka's own classes, and reads batches that others wrote.
 *
 * <p>java -cp 'kafka jars' Golden.java write DIR: writes the golden files.
 * <p>java -cp 'kafka jars' Golden.java read DIR: checks that every small-* and large-* file of DIR holds the same
 * records as the ones that would be written.
 */
public final class Golden {
    private static final long NOW = 1_700_000_000_000L;
    private static final String[] CODECS = {"none", "gzip", "snappy", "lz4", "zstd"};

    public static void main(String[] args) throws Exception {
        Path dir = Path.of(args[1]);
        if (args[0].equals("write"))
            write(dir);
        else
            read(dir);
    }

    private static void write(Path dir) throws Exception {
        for (String codec : CODECS) {
            save(dir, "small-" + codec, batch(Compression.of(codec).build(), small()));
            if (!codec.equals("none"))
                save(dir, "large-" + codec, batch(Compression.of(codec).build(), large()));
        }
        save(dir, "large-zstd-level-22", batch(Compression.zstd().level(22).build(), large()));
        save(dir, "large-lz4-level-12", batch(Compression.lz4().level(12).build(), large()));
        for (ControlRecordType type : List.of(ControlRecordType.ABORT, ControlRecordType.COMMIT))
            save(dir, "marker-" + type.name().toLowerCase(), MemoryRecords.withEndTransactionMarker(
                0L, NOW, 11, 4242L, (short) 7, new EndTransactionMarker(type, 99)));
        for (byte magic = 0; magic < 2; magic++)
            save(dir, "magic-" + magic, MemoryRecords.withRecords(magic, Compression.NONE, small()[1]));
    }

    private static void read(Path dir) throws Exception {
        try (var files = Files.list(dir)) {
            for (Path file : files.sorted().toList()) {
                String name = file.getFileName().toString();
                if (!name.startsWith("small-") && !name.startsWith("large-"))
                    continue;
                check(name, MemoryRecords.readableRecords(ByteBuffer.wrap(Files.readAllBytes(file))));
            }
        }
    }

    private static void check(String name, MemoryRecords records) {
        SimpleRecord[] expected = name.startsWith("small-") ? small() : large();
        records.batches().forEach(batch -> batch.ensureValid());
        List<SimpleRecord> found = new ArrayList<>();
        for (Record record : records.records())
            found.add(new SimpleRecord(record));
        if (!Arrays.asList(expected).equals(found))
            throw new AssertionError(name + " differs: " + found.size() + " records");
        System.out.println("ok " + name + " " + found.size() + " records");
    }

    private static MemoryRecords batch(Compression compression, SimpleRecord[] records) {
        MemoryRecordsBuilder builder = MemoryRecords.builder(ByteBuffer.allocate(1 << 20), (byte) 2, compression,
            TimestampType.CREATE_TIME, 0L, -1L, 4242L, (short) 7, 100);
        for (SimpleRecord record : records)
            builder.append(record);
        return builder.build();
    }

    private static SimpleRecord[] small() {
        Header[] headers = {
            new RecordHeader("h", bytes("1")),
            new RecordHeader("h", null),
            new RecordHeader("", new byte[0]),
            new RecordHeader("ключ", new byte[] {0, -1}),
        };
        return new SimpleRecord[] {
            new SimpleRecord(NOW, bytes("key"), bytes("value"), headers),
            new SimpleRecord(NOW - 5, (byte[]) null, null),
            new SimpleRecord(NOW + 100_000, new byte[0], new byte[0]),
        };
    }

    private static SimpleRecord[] large() {
        SimpleRecord[] records = new SimpleRecord[1000];
        for (int i = 0; i < records.length; i++)
            records[i] = new SimpleRecord(NOW + i, bytes("key-" + i), bytes(("value " + i + ", ").repeat(i % 50)));
        return records;
    }

    private static byte[] bytes(String text) {
        return text.getBytes(StandardCharsets.UTF_8);
    }

    private static void save(Path dir, String name, MemoryRecords records) throws Exception {
        ByteBuffer buffer = records.buffer().duplicate();
        byte[] bytes = new byte[buffer.remaining()];
        buffer.get(bytes);
        Files.write(dir.resolve(name + ".batch"), bytes);
    }
}
