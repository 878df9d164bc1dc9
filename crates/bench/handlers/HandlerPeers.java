import io.confluent.parallelconsumer.ParallelConsumerOptions;
import io.confluent.parallelconsumer.ParallelStreamProcessor;
import java.lang.management.ManagementFactory;
import java.nio.ByteBuffer;
import java.util.Arrays;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.StreamsBuilder;
import org.springframework.kafka.core.DefaultKafkaConsumerFactory;
import org.springframework.kafka.listener.BatchMessageListener;
import org.springframework.kafka.listener.ContainerProperties;
import org.springframework.kafka.listener.KafkaMessageListenerContainer;
import org.springframework.kafka.listener.MessageListener;

/**
 * Peers of the handlers, each with its defaults: MODE BOOTSTRAP TOPIC,TOPIC RECORDS CONCURRENCY WAIT_US. It prints a line of
 * JSON from the first record to the last that is wanted; each record carries its number, whose sum is printed.
 */
public final class HandlerPeers {
    private static final AtomicLong RECORDS = new AtomicLong();
    private static final AtomicLong SUM = new AtomicLong();
    private static final CountDownLatch DONE = new CountDownLatch(1);
    private static long wanted;
    private static long waitNanos;
    private static volatile long beganNanos;
    private static volatile long beganCpuNanos;
    private static volatile long endedNanos;
    private static volatile long endedCpuNanos;

    private static long cpuNanos() {
        var system = (com.sun.management.OperatingSystemMXBean) ManagementFactory.getOperatingSystemMXBean();
        return system.getProcessCpuTime();
    }

    private static void handle(byte[] value) {
        if (waitNanos > 0) {
            try {
                Thread.sleep(waitNanos / 1_000_000, (int) (waitNanos % 1_000_000));
            } catch (InterruptedException interrupted) {
                Thread.currentThread().interrupt();
                return;
            }
        }
        SUM.addAndGet(ByteBuffer.wrap(value).getLong());
        long before = RECORDS.getAndIncrement();
        if (before == 0) {
            beganCpuNanos = cpuNanos();
            beganNanos = System.nanoTime();
        }
        if (before + 1 == wanted) {
            endedNanos = System.nanoTime();
            endedCpuNanos = cpuNanos();
            DONE.countDown();
        }
    }

    private static Map<String, Object> consumer(String bootstrap, String group) {
        Map<String, Object> settings = new HashMap<>();
        settings.put("bootstrap.servers", bootstrap);
        settings.put("group.id", group);
        settings.put("auto.offset.reset", "earliest");
        settings.put("key.deserializer", ByteArrayDeserializer.class);
        settings.put("value.deserializer", ByteArrayDeserializer.class);
        return settings;
    }

    private static Runnable spring(String bootstrap, List<String> topics, String group, boolean batches) {
        ContainerProperties properties = new ContainerProperties(topics.toArray(String[]::new));
        if (batches) {
            properties.setMessageListener((BatchMessageListener<byte[], byte[]>) (List<ConsumerRecord<byte[], byte[]>> all) ->
                all.forEach(one -> handle(one.value())));
        } else {
            properties.setMessageListener((MessageListener<byte[], byte[]>) one -> handle(one.value()));
        }
        var factory = new DefaultKafkaConsumerFactory<byte[], byte[]>(consumer(bootstrap, group));
        var container = new KafkaMessageListenerContainer<>(factory, properties);
        container.start();
        return container::stop;
    }

    private static Runnable streams(String bootstrap, List<String> topics, String group) {
        StreamsBuilder builder = new StreamsBuilder();
        builder.<byte[], byte[]>stream(topics).foreach((key, value) -> handle(value));
        Properties settings = new Properties();
        settings.put("bootstrap.servers", bootstrap);
        settings.put("application.id", group);
        settings.put("auto.offset.reset", "earliest");
        settings.put("default.key.serde", Serdes.ByteArraySerde.class);
        settings.put("default.value.serde", Serdes.ByteArraySerde.class);
        settings.put("state.dir", System.getProperty("java.io.tmpdir"));
        KafkaStreams streams = new KafkaStreams(builder.build(), settings);
        streams.start();
        return streams::close;
    }

    private static Runnable parallel(String bootstrap, List<String> topics, String group, int concurrency) {
        Map<String, Object> settings = consumer(bootstrap, group);
        settings.put("enable.auto.commit", "false");
        var options = ParallelConsumerOptions.<byte[], byte[]>builder()
            .ordering(ParallelConsumerOptions.ProcessingOrder.KEY)
            .consumer(new KafkaConsumer<byte[], byte[]>(settings))
            .maxConcurrency(concurrency)
            .build();
        var processor = ParallelStreamProcessor.createEosStreamProcessor(options);
        processor.subscribe(topics);
        processor.poll(context -> handle(context.value()));
        return processor::closeDontDrainFirst;
    }

    public static void main(String[] words) throws Exception {
        String mode = words[0];
        String bootstrap = words[1];
        List<String> topics = Arrays.asList(words[2].split(","));
        wanted = Long.parseLong(words[3]);
        int concurrency = Integer.parseInt(words[4]);
        waitNanos = Long.parseLong(words[5]) * 1_000;
        String group = mode + "-" + ProcessHandle.current().pid();
        Runnable stop = switch (mode) {
            case "spring-record" -> spring(bootstrap, topics, group, false);
            case "spring-batch" -> spring(bootstrap, topics, group, true);
            case "streams" -> streams(bootstrap, topics, group);
            case "parallel" -> parallel(bootstrap, topics, group, concurrency);
            default -> throw new IllegalArgumentException("there is no peer " + mode);
        };
        DONE.await();
        System.out.printf(
            "{\"records\":%d,\"sum\":%d,\"seconds\":%s,\"cpu_s\":%s}%n",
            RECORDS.get(), SUM.get(), (endedNanos - beganNanos) / 1e9, (endedCpuNanos - beganCpuNanos) / 1e9);
        System.out.flush();
        Runtime.getRuntime().halt(0);
    }
}
