import java.lang.invoke.MethodHandles;
import java.lang.invoke.VarHandle;
import java.nio.ByteOrder;
import java.nio.charset.StandardCharsets;
import java.util.Arrays;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.atomic.AtomicReference;

import net.openhft.chronicle.bytes.Bytes;
import net.openhft.chronicle.queue.ChronicleQueue;
import net.openhft.chronicle.queue.ExcerptAppender;
import net.openhft.chronicle.queue.ExcerptTailer;
import net.openhft.chronicle.queue.impl.single.SingleChronicleQueueBuilder;
import net.openhft.chronicle.wire.DocumentContext;
import org.HdrHistogram.Histogram;
import org.HdrHistogram.HistogramIterationValue;

/**
 * Chronicle Queue under the loads of the embedded queue: the same as `src/embedded/side.rs` does, statement for statement.
 * Arguments: the load, a directory, and numbers by name. It prints one object of JSON.
 */
public final class ChronicleSide {
    private static final long GIVE_UP_NS = 60_000_000_000L;

    public static void main(String[] arguments) throws Exception {
        Options options = new Options(arguments);
        System.out.println(switch (arguments[0]) {
            case "hops" -> hops(options);
            case "write" -> write(options);
            case "contend" -> contend(options);
            default -> throw new IllegalArgumentException(arguments[0]);
        });
        System.exit(0);
    }

    /** Generator, queue one, service, queue two, recorder; the generator and the recorder share a thread. */
    private static String hops(Options options) throws Exception {
        long warmup = options.number("warmup");
        long count = warmup + options.number("count");
        long intervalNs = 1_000_000_000L / options.number("rate");
        boolean yields = options.text("wait").equals("yield");
        Codec codec = new Codec(options.text("event"));
        Histogram publish = histogram();
        Histogram toService = histogram();
        Histogram endToEnd = histogram();
        try (ChronicleQueue one = open(options.directory + "/one"); ChronicleQueue two = open(options.directory + "/two")) {
            CountDownLatch ready = new CountDownLatch(1);
            AtomicReference<Throwable> failed = new AtomicReference<>();
            Thread service = new Thread(() -> {
                try (ExcerptTailer tailer = one.createTailer(); ExcerptAppender appender = two.createAppender()) {
                    byte[] event = new byte[codec.size];
                    ready.countDown();
                    for (long sequence = 0; sequence < count; sequence++) {
                        while (!read(tailer, event)) {
                            pause(yields);
                        }
                        codec.setService(event, System.nanoTime());
                        write(appender, event);
                    }
                } catch (Throwable throwable) {
                    failed.set(throwable);
                }
            });
            service.setDaemon(true);
            service.start();
            ready.await();
            byte[] sent = new byte[codec.size];
            byte[] received = new byte[codec.size];
            try (ExcerptAppender appender = one.createAppender(); ExcerptTailer tailer = two.createTailer()) {
                long begin = System.nanoTime() + 10_000_000L;
                long next = 0;
                long recorded = 0;
                while (recorded < count) {
                    long now = System.nanoTime();
                    long due = begin + next * intervalNs;
                    if (next < count && now >= due) {
                        codec.encode(sent, next, due);
                        long before = System.nanoTime();
                        write(appender, sent);
                        long after = System.nanoTime();
                        if (next >= warmup) {
                            publish.recordValue(after - before);
                        }
                        next++;
                    }
                    if (read(tailer, received)) {
                        long arrived = System.nanoTime();
                        codec.check(received, recorded);
                        if (recorded >= warmup) {
                            long wasDue = codec.due(received);
                            toService.recordValue(codec.service(received) - wasDue);
                            endToEnd.recordValue(arrived - wasDue);
                        }
                        recorded++;
                    } else if (failed.get() != null || now - begin > count * intervalNs + GIVE_UP_NS) {
                        throw new IllegalStateException("only " + recorded + " of " + count + " came back", failed.get());
                    } else {
                        pause(yields);
                    }
                }
            }
            service.join();
        }
        return "{\"publish\":" + values(publish) + ",\"to_service\":" + values(toService) + ",\"end_to_end\":" + values(endToEnd) + "}";
    }

    /** One writer as fast as it can; then all of it is read back. */
    private static String write(Options options) {
        long warmup = options.number("warmup");
        long count = options.number("count");
        Codec codec = new Codec(options.text("event"));
        byte[] event = new byte[codec.size];
        double wrote;
        double read;
        try (ChronicleQueue queue = open(options.directory + "/one")) {
            try (ExcerptAppender appender = queue.createAppender()) {
                for (long sequence = 0; sequence < warmup; sequence++) {
                    codec.encode(event, sequence, sequence);
                    write(appender, event);
                }
                long begin = System.nanoTime();
                for (long sequence = warmup; sequence < warmup + count; sequence++) {
                    codec.encode(event, sequence, sequence);
                    write(appender, event);
                }
                wrote = (System.nanoTime() - begin) / 1e9;
            }
            try (ExcerptTailer tailer = queue.createTailer()) {
                for (long sequence = 0; sequence < warmup; sequence++) {
                    readNext(tailer, event, sequence, codec);
                }
                long begin = System.nanoTime();
                for (long sequence = warmup; sequence < warmup + count; sequence++) {
                    readNext(tailer, event, sequence, codec);
                }
                read = (System.nanoTime() - begin) / 1e9;
            }
        }
        return "{\"write_s\":" + wrote + ",\"read_s\":" + read + "}";
    }

    private static void readNext(ExcerptTailer tailer, byte[] event, long sequence, Codec codec) {
        if (!read(tailer, event)) {
            throw new IllegalStateException("there is no message " + sequence);
        }
        codec.check(event, sequence);
    }

    /** Writers that want the same queue, for a time; then all of it is read back. */
    private static String contend(Options options) throws Exception {
        int writers = (int) options.number("writers");
        long warmupNs = options.number("warmup_ms") * 1_000_000L;
        long windowNs = options.number("window_ms") * 1_000_000L;
        Codec codec = new Codec(options.text("event"));
        long[] counts = new long[writers];
        long[] all = new long[writers];
        AtomicReference<Throwable> failed = new AtomicReference<>();
        try (ChronicleQueue queue = open(options.directory + "/one")) {
            long begin = System.nanoTime() + 50_000_000L;
            Thread[] threads = new Thread[writers];
            for (int index = 0; index < writers; index++) {
                int writer = index;
                threads[writer] = new Thread(() -> {
                    try (ExcerptAppender appender = queue.createAppender()) {
                        byte[] event = new byte[codec.size];
                        long sequence = 0;
                        long before = -1;
                        while (true) {
                            long now = System.nanoTime() - begin;
                            if (before < 0 && now >= warmupNs) {
                                before = sequence;
                            }
                            if (now >= warmupNs + windowNs) {
                                break;
                            }
                            codec.encode(event, sequence, writer);
                            write(appender, event);
                            sequence++;
                        }
                        counts[writer] = sequence - before;
                        all[writer] = sequence;
                    } catch (Throwable throwable) {
                        failed.set(throwable);
                    }
                });
                threads[writer].start();
            }
            for (Thread thread : threads) {
                thread.join();
            }
            if (failed.get() != null) {
                throw new IllegalStateException(failed.get());
            }
            long[] next = new long[writers];
            byte[] event = new byte[codec.size];
            try (ExcerptTailer tailer = queue.createTailer()) {
                while (read(tailer, event)) {
                    int writer = (int) codec.due(event);
                    codec.check(event, next[writer]);
                    next[writer]++;
                }
            }
            if (!Arrays.equals(next, all)) {
                throw new IllegalStateException(Arrays.toString(next) + " are there of " + Arrays.toString(all));
            }
        }
        return "{\"counts\":" + Arrays.toString(counts) + ",\"seconds\":" + windowNs / 1e9 + "}";
    }

    private static ChronicleQueue open(String directory) {
        return SingleChronicleQueueBuilder.binary(directory).build();
    }

    private static void write(ExcerptAppender appender, byte[] event) {
        try (DocumentContext document = appender.writingDocument()) {
            document.wire().bytes().write(event);
        }
    }

    /** False if there is no message yet. */
    private static boolean read(ExcerptTailer tailer, byte[] event) {
        try (DocumentContext document = tailer.readingDocument()) {
            if (!document.isPresent()) {
                return false;
            }
            Bytes<?> bytes = document.wire().bytes();
            if (bytes.readRemaining() != event.length) {
                throw new IllegalStateException("a message of " + bytes.readRemaining() + " bytes");
            }
            bytes.read(event);
            return true;
        }
    }

    private static void pause(boolean yields) {
        if (yields) {
            Thread.yield();
        } else {
            Thread.onSpinWait();
        }
    }

    private static Histogram histogram() {
        return new Histogram(1, 600_000_000_000L, 3);
    }

    /** Recorded values and how often each was, in nanoseconds. */
    private static String values(Histogram histogram) {
        StringBuilder text = new StringBuilder("[");
        for (HistogramIterationValue value : histogram.recordedValues()) {
            text.append(text.length() > 1 ? "," : "").append('[').append(value.getValueIteratedTo()).append(',');
            text.append(value.getCountAtValueIteratedTo()).append(']');
        }
        return text.append(']').toString();
    }

    /** Numbers and words by name. */
    private static final class Options {
        final String directory;
        private final String[] arguments;

        Options(String[] arguments) {
            this.arguments = arguments;
            this.directory = arguments[1];
        }

        String text(String name) {
            for (String argument : arguments) {
                if (argument.startsWith(name + "=")) {
                    return argument.substring(name.length() + 1);
                }
            }
            throw new IllegalArgumentException(name);
        }

        long number(String name) {
            return Long.parseLong(text(name));
        }
    }

    /** An event: three numbers, and a pattern that its sequence number chooses. See `src/embedded/event.rs`. */
    private static final class Codec {
        private static final VarHandle LONG = MethodHandles.byteArrayViewVarHandle(long[].class, ByteOrder.LITTLE_ENDIAN);
        private static final int PATTERNS = 1024;
        private static final int DIGITS = 20;

        final int size;
        private final boolean isText;
        private final int[] places;
        private final int patternAt;
        private final int patternEnd;
        private final byte[] frame;
        private final byte[] pattern;

        Codec(String event) {
            isText = event.equals("json-512");
            byte[] head = "{\"sequence\":\"00000000000000000000\",\"due\":\"00000000000000000000\",\"service\":\"00000000000000000000\",\"text\":\""
                .getBytes(StandardCharsets.US_ASCII);
            size = Integer.parseInt(event.substring(event.indexOf('-') + 1));
            frame = new byte[size];
            if (isText) {
                System.arraycopy(head, 0, frame, 0, head.length);
                frame[size - 2] = '"';
                frame[size - 1] = '}';
                places = new int[] {13, 42, 75};
                patternAt = head.length;
                patternEnd = size - 2;
            } else {
                places = new int[] {0, 8, 16};
                patternAt = 24;
                patternEnd = size;
            }
            pattern = new byte[PATTERNS + size];
            int state = 1;
            for (int at = 0; at < pattern.length; at++) {
                state = state * 1_664_525 + 1_013_904_223;
                pattern[at] = (byte) (isText ? 'a' + (state >>> 24) % 26 : state >>> 24);
            }
        }

        void encode(byte[] event, long sequence, long due) {
            System.arraycopy(frame, 0, event, 0, patternAt);
            System.arraycopy(pattern, (int) (sequence % PATTERNS), event, patternAt, patternEnd - patternAt);
            System.arraycopy(frame, patternEnd, event, patternEnd, size - patternEnd);
            set(event, places[0], sequence);
            set(event, places[1], due);
        }

        void setService(byte[] event, long time) {
            set(event, places[2], time);
        }

        long due(byte[] event) {
            return get(event, places[1]);
        }

        long service(byte[] event) {
            return get(event, places[2]);
        }

        void check(byte[] event, long sequence) {
            int from = (int) (sequence % PATTERNS);
            boolean isRight = get(event, places[0]) == sequence
                && Arrays.equals(event, patternAt, patternEnd, pattern, from, from + patternEnd - patternAt);
            if (!isRight) {
                throw new IllegalStateException("message " + sequence + " is not what was written");
            }
        }

        private void set(byte[] event, int at, long value) {
            if (isText) {
                for (int digit = at + DIGITS - 1; digit >= at; digit--) {
                    event[digit] = (byte) ('0' + value % 10);
                    value /= 10;
                }
            } else {
                LONG.set(event, at, value);
            }
        }

        private long get(byte[] event, int at) {
            if (!isText) {
                return (long) LONG.get(event, at);
            }
            long value = 0;
            for (int digit = at; digit < at + DIGITS; digit++) {
                value = value * 10 + event[digit] - '0';
            }
            return value;
        }
    }
}
