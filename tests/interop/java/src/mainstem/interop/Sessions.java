package mainstem.interop;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.File;
import java.time.Duration;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.Set;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;

/** A user whose sessions end and are renewed under load; what is printed is described in tests/interop/README.md. */
public final class Sessions {
    private static final ObjectMapper JSON = new ObjectMapper();
    private static final Duration PACE = Duration.ofMillis(20);
    private static final Duration TIMEOUT = Duration.ofSeconds(30);

    private final String topic;
    private final KafkaProducer<String, String> producer;
    private final KafkaConsumer<String, String> consumer;
    private final Set<String> once = new HashSet<>();
    private long read;

    private Sessions(JsonNode way, String topic) {
        this.topic = topic;
        producer = new KafkaProducer<>(Secure.properties(way), new StringSerializer(), new StringSerializer());
        Properties properties = Secure.properties(way);
        properties.put("group.id", "readers-sessions-java");
        properties.put("auto.offset.reset", "earliest");
        consumer = new KafkaConsumer<>(properties, new StringDeserializer(), new StringDeserializer());
        consumer.subscribe(List.of(topic));
    }

    public static void main(String[] args) throws Exception {
        Map<String, String> arguments = new HashMap<>();
        for (String argument : args) {
            String[] parts = argument.split("=", 2);
            arguments.put(parts[0], parts[1]);
        }
        new Sessions(JSON.readTree(new File(arguments.get("plan"))).get(0), arguments.get("topic")).run();
        Runtime.getRuntime().halt(0);
    }

    private void run() throws Exception {
        AtomicBoolean stopping = new AtomicBoolean();
        Thread watch = new Thread(() -> {
            try {
                System.in.readAllBytes();
            } catch (java.io.IOException e) {
                throw new java.io.UncheckedIOException(e);
            } finally {
                stopping.set(true);
            }
        });
        watch.setDaemon(true);
        watch.start();
        AtomicInteger failed = new AtomicInteger();
        long written = 0;
        while (!stopping.get()) {
            producer.send(new ProducerRecord<>(topic, String.valueOf(written++)), (metadata, error) -> {
                if (error != null) {
                    failed.incrementAndGet();
                }
            });
            boolean begins = read == 0;
            poll(PACE);
            if (begins && read > 0) {
                tell("begun", null);
            }
        }
        producer.flush();
        long end = System.nanoTime() + TIMEOUT.toNanos();
        while (once.size() < written && System.nanoTime() < end) {
            poll(Duration.ofMillis(200));
        }
        tell("records", JSON.createObjectNode().put("written", written).put("read", once.size())
            .put("repeated", read - once.size()).put("failed", failed.get()));
        end = System.nanoTime() + TIMEOUT.toNanos();
        while (System.nanoTime() < end) {
            try {
                poll(Duration.ofMillis(200));
            } catch (KafkaException e) {
                tell("rule removed", JSON.getNodeFactory().textNode(e.getClass().getSimpleName()));
                return;
            }
        }
        tell("rule removed", null);
    }

    private void poll(Duration wait) {
        for (ConsumerRecord<String, String> record : consumer.poll(wait)) {
            once.add(record.value());
            read++;
        }
    }

    private static void tell(String step, JsonNode outcome) throws Exception {
        System.out.println(JSON.writeValueAsString(JSON.createObjectNode().put("step", step).set("outcome", outcome)));
        System.out.flush();
    }
}
