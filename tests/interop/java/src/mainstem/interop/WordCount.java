package mainstem.interop;

import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.Properties;
import java.util.TreeMap;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.LongDeserializer;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.StreamsConfig;
import org.apache.kafka.streams.kstream.Grouped;
import org.apache.kafka.streams.kstream.KStream;
import org.apache.kafka.streams.kstream.Produced;

/**
 * A word count of Kafka Streams with {@code exactly_once_v2}, whose result is compared with a plain count.
 *
 * <pre>
 * fill BOOTSTRAP FILE SECONDS   writes the lines of a text, spread over so much time, whatever the broker does
 * run BOOTSTRAP FOLDER          counts, until it is killed; the folder keeps its state
 * check BOOTSTRAP FILE          waits until all words are counted: for each word 1, 2, 3 ... and nothing else
 * </pre>
 */
public final class WordCount {
    private static final String LINES = "lines";
    private static final String COUNTS = "counts";
    private static final int PARTITIONS = 2;
    private static final Duration POLL = Duration.ofMillis(200);
    private static final long DEADLINE_MS = 180_000;

    private WordCount() {}

    public static void main(String[] args) throws Exception {
        switch (args[0]) {
            case "fill" -> fill(args[1], Path.of(args[2]), Integer.parseInt(args[3]));
            case "run" -> run(args[1], args[2]);
            case "check" -> check(args[1], Path.of(args[2]));
            default -> throw new IllegalArgumentException(args[0]);
        }
    }

    private static Properties properties(String bootstrap) {
        Properties properties = new Properties();
        properties.put("bootstrap.servers", bootstrap);
        properties.put("reconnect.backoff.max.ms", "200");
        return properties;
    }

    private static List<String> words(String line) {
        List<String> words = new ArrayList<>(Arrays.asList(line.toLowerCase(Locale.ROOT).split("\\W+")));
        words.removeIf(String::isEmpty);
        return words;
    }

    private static void fill(String bootstrap, Path file, int seconds) throws Exception {
        Properties properties = properties(bootstrap);
        try (Admin admin = Admin.create(properties)) {
            admin.createTopics(List.of(
                new NewTopic(LINES, PARTITIONS, (short) 1), new NewTopic(COUNTS, PARTITIONS, (short) 1))).all().get();
        }
        System.out.println("created");
        System.out.flush();
        properties.put("delivery.timeout.ms", "600000");
        properties.put("max.block.ms", "600000");
        properties.put("retry.backoff.max.ms", "200");
        List<String> lines = Files.readAllLines(file, StandardCharsets.UTF_8);
        AtomicInteger failed = new AtomicInteger();
        long start = System.nanoTime();
        try (KafkaProducer<String, String> producer =
                 new KafkaProducer<>(properties, new StringSerializer(), new StringSerializer())) {
            for (int i = 0; i < lines.size(); i++) {
                long due = start + Duration.ofSeconds(seconds).toNanos() / lines.size() * i;
                Thread.sleep(Math.max(0, due - System.nanoTime()) / 1_000_000);
                producer.send(new ProducerRecord<>(LINES, i % PARTITIONS, null, lines.get(i)), (metadata, error) -> {
                    if (error != null) {
                        failed.incrementAndGet();
                    }
                });
            }
        }
        if (failed.get() > 0) {
            throw new AssertionError(failed + " lines were not written");
        }
    }

    private static void run(String bootstrap, String folder) throws InterruptedException {
        Properties properties = properties(bootstrap);
        properties.put(StreamsConfig.APPLICATION_ID_CONFIG, "word-count");
        properties.put(StreamsConfig.PROCESSING_GUARANTEE_CONFIG, StreamsConfig.EXACTLY_ONCE_V2);
        properties.put(StreamsConfig.STATE_DIR_CONFIG, folder);
        properties.put(StreamsConfig.REPLICATION_FACTOR_CONFIG, "1");
        properties.put(StreamsConfig.COMMIT_INTERVAL_MS_CONFIG, "100");
        // Each count is written, so that one that comes twice would be seen.
        properties.put(StreamsConfig.STATESTORE_CACHE_MAX_BYTES_CONFIG, "0");
        properties.put("group.instance.id", "counter");
        properties.put("auto.offset.reset", "earliest");
        StreamsBuilder builder = new StreamsBuilder();
        KStream<String, String> lines = builder.stream(LINES);
        lines.flatMapValues(WordCount::words)
            .groupBy((key, word) -> word, Grouped.with(Serdes.String(), Serdes.String()))
            .count()
            .toStream()
            .to(COUNTS, Produced.with(Serdes.String(), Serdes.Long()));
        properties.put(StreamsConfig.DEFAULT_KEY_SERDE_CLASS_CONFIG, Serdes.StringSerde.class);
        properties.put(StreamsConfig.DEFAULT_VALUE_SERDE_CLASS_CONFIG, Serdes.StringSerde.class);
        KafkaStreams streams = new KafkaStreams(builder.build(), properties);
        streams.setUncaughtExceptionHandler(error -> {
            error.printStackTrace();
            return org.apache.kafka.streams.errors.StreamsUncaughtExceptionHandler.StreamThreadExceptionResponse
                .REPLACE_THREAD;
        });
        streams.start();
        Thread.currentThread().join();
    }

    private static void check(String bootstrap, Path file) throws IOException {
        Map<String, Long> plain = new TreeMap<>();
        for (String line : Files.readAllLines(file, StandardCharsets.UTF_8)) {
            words(line).forEach(word -> plain.merge(word, 1L, Long::sum));
        }
        Map<String, Long> counted = new TreeMap<>();
        Properties properties = properties(bootstrap);
        properties.put("isolation.level", "read_committed");
        List<TopicPartition> partitions = new ArrayList<>();
        for (int partition = 0; partition < PARTITIONS; partition++) {
            partitions.add(new TopicPartition(COUNTS, partition));
        }
        try (KafkaConsumer<String, Long> consumer =
                 new KafkaConsumer<>(properties, new StringDeserializer(), new LongDeserializer())) {
            consumer.assign(partitions);
            consumer.seekToBeginning(partitions);
            long deadline = System.currentTimeMillis() + DEADLINE_MS;
            while (!counted.equals(plain)) {
                for (ConsumerRecord<String, Long> record : consumer.poll(POLL)) {
                    long expected = counted.getOrDefault(record.key(), 0L) + 1;
                    if (record.value() != expected) {
                        throw new AssertionError(record.key() + ": " + record.value() + " after " + (expected - 1));
                    }
                    counted.put(record.key(), expected);
                }
                if (System.currentTimeMillis() > deadline) {
                    throw new AssertionError(difference(plain, counted));
                }
            }
        }
        System.out.println(plain.size() + " words");
    }

    private static String difference(Map<String, Long> plain, Map<String, Long> counted) {
        long missing = plain.values().stream().mapToLong(Long::longValue).sum()
            - counted.values().stream().mapToLong(Long::longValue).sum();
        return missing + " words are not counted";
    }
}
