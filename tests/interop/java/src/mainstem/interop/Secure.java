package mainstem.interop;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.File;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.Properties;
import java.util.concurrent.Callable;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.RecordMetadata;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;

/** The ways of a plan in which to log in; the plan and what is printed are described in tests/interop/README.md. */
public final class Secure {
    private static final ObjectMapper JSON = new ObjectMapper();
    private static final int RECORDS = 100;
    private static final Duration TIMEOUT = Duration.ofSeconds(30);

    private final JsonNode way;

    private Secure(JsonNode way) {
        this.way = way;
    }

    public static void main(String[] args) throws Exception {
        for (JsonNode way : JSON.readTree(new File(args[0].split("=", 2)[1]))) {
            new Secure(way).take();
        }
        Runtime.getRuntime().halt(0);
    }

    private void take() throws Exception {
        if (!way.get("use").asBoolean()) {
            repeat("refused", () -> write("orders", 1));
            return;
        }
        tell("write", outcome(() -> write("orders", RECORDS)));
        tell("read", outcome(() -> read("readers-java-" + text("name"))));
        repeat("denied topic", () -> write("secret", 1));
        repeat("denied group", () -> read("others"));
    }

    /** Takes a step as often as the plan says, each time by a new client, some of them at once. */
    private void repeat(String step, Step run) throws Exception {
        ExecutorService clients = Executors.newFixedThreadPool(way.get("at_once").asInt());
        List<Callable<String>> all = Collections.nCopies(way.get("times").asInt(), () -> outcome(run));
        for (Future<String> one : clients.invokeAll(all)) {
            tell(step, one.get());
        }
        clients.shutdown();
    }

    private interface Step {
        String run() throws Exception;
    }

    private static String outcome(Step step) {
        try {
            return step.run();
        } catch (Exception e) {
            Throwable cause = e instanceof ExecutionException ? e.getCause() : e;
            return cause.getClass().getSimpleName() + ": " + cause.getMessage();
        }
    }

    private void tell(String step, String outcome) throws Exception {
        System.out.println(JSON.writeValueAsString(
            JSON.createObjectNode().put("way", text("name")).put("step", step).put("outcome", outcome)));
        System.out.flush();
    }

    private String text(String name) {
        return way.get(name).asText();
    }

    /** The settings of a client that logs in this way. */
    static Properties properties(JsonNode way) {
        Properties properties = new Properties();
        String mechanism = way.get("mechanism").asText();
        properties.put("bootstrap.servers", way.get("bootstrap").asText());
        properties.put("security.protocol", mechanism.isEmpty() ? "SSL" : "SASL_SSL");
        properties.put("ssl.truststore.type", "PEM");
        properties.put("ssl.truststore.location", way.get("ca").asText());
        if (!way.get("cert").asText().isEmpty()) {
            properties.put("ssl.keystore.type", "PEM");
            properties.put("ssl.keystore.location", way.get("cert").asText());
        }
        if (!mechanism.isEmpty()) {
            String module = mechanism.equals("PLAIN") ? "plain.Plain" : "scram.Scram";
            properties.put("sasl.mechanism", mechanism);
            properties.put("sasl.jaas.config", "org.apache.kafka.common.security." + module
                + "LoginModule required username=\"" + way.get("user").asText() + "\" password=\"" + way.get("password").asText() + "\";");
        }
        return properties;
    }

    private String write(String topic, int count) throws Exception {
        Properties properties = properties(way);
        properties.put("max.block.ms", "20000");
        try (KafkaProducer<String, String> producer =
                new KafkaProducer<>(properties, new StringSerializer(), new StringSerializer())) {
            List<Future<RecordMetadata>> sent = new ArrayList<>();
            for (int i = 0; i < count; i++) {
                sent.add(producer.send(new ProducerRecord<>(topic, "record " + i)));
            }
            for (Future<RecordMetadata> one : sent) {
                one.get();
            }
            return String.valueOf(sent.size());
        }
    }

    private String read(String group) {
        Properties properties = properties(way);
        properties.put("group.id", group);
        properties.put("auto.offset.reset", "earliest");
        try (KafkaConsumer<String, String> consumer =
                new KafkaConsumer<>(properties, new StringDeserializer(), new StringDeserializer())) {
            consumer.subscribe(List.of("orders"));
            int count = 0;
            long end = System.nanoTime() + TIMEOUT.toNanos();
            while (count < RECORDS && System.nanoTime() < end) {
                count += consumer.poll(Duration.ofMillis(500)).count();
            }
            consumer.commitSync();
            return String.valueOf(Math.min(count, RECORDS));
        }
    }
}
