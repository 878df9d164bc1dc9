package mainstem.interop;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.Future;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.AlterConfigOp;
import org.apache.kafka.clients.admin.ConfigEntry;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.RecordMetadata;
import org.apache.kafka.common.Metric;
import org.apache.kafka.common.MetricName;
import org.apache.kafka.common.config.ConfigResource;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;

/**
 * What the Java client shows its user when things go wrong. Each line of standard input is a step, each line of
 * standard output what came of it; both are described in tests/interop/README.md. An error is named by the simple name
 * of its exception's class.
 */
public final class Errors {
    private static final ObjectMapper JSON = new ObjectMapper();

    private final String bootstrap;
    private final Map<String, KafkaProducer<String, String>> producers = new HashMap<>();
    private final Map<String, KafkaConsumer<String, String>> consumers = new HashMap<>();

    private Errors(String bootstrap) {
        this.bootstrap = bootstrap;
    }

    public static void main(String[] args) throws Exception {
        Errors errors = new Errors(args[0].split("=", 2)[1]);
        BufferedReader steps = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = steps.readLine(); line != null; line = steps.readLine()) {
            System.out.println(JSON.writeValueAsString(errors.answer(JSON.readTree(line))));
            System.out.flush();
        }
        // Clients that wait for a broker which is gone would keep the process.
        Runtime.getRuntime().halt(0);
    }

    private ObjectNode answer(JsonNode step) {
        ObjectNode answer = JSON.createObjectNode();
        try {
            take(step, answer);
        } catch (Exception e) {
            answer.put("error", name(e)).put("message", String.valueOf(e.getMessage()));
        }
        return answer;
    }

    private static String name(Throwable error) {
        Throwable cause = error instanceof ExecutionException ? error.getCause() : error;
        return cause.getClass().getSimpleName();
    }

    private void take(JsonNode step, ObjectNode answer) throws Exception {
        switch (step.get("do").asText()) {
            case "create", "delete", "alter" -> administer(step);
            case "producer" -> producers.put(step.get("name").asText(),
                new KafkaProducer<>(properties(step), new StringSerializer(), new StringSerializer()));
            case "send" -> {
                send(step, answer.putArray("outcomes"));
                answer.put("throttled_ms", throttledMs(producers.get(step.get("name").asText()).metrics()));
            }
            case "consumer" -> openConsumer(step);
            case "poll" -> {
                poll(step, answer.putArray("read"));
                answer.put("throttled_ms", throttledMs(consumers.get(step.get("name").asText()).metrics()));
            }
            default -> throw new IllegalArgumentException("no step " + step);
        }
    }

    /** The longest time that a broker had it wait for a quota's sake, as its metrics tell the user. */
    private static long throttledMs(Map<MetricName, ? extends Metric> metrics) {
        return metrics.values().stream()
            .filter(metric -> metric.metricName().name().endsWith("-throttle-time-max"))
            .map(metric -> (Double) metric.metricValue())
            .filter(Double::isFinite)
            .mapToLong(Double::longValue).max().orElse(0);
    }

    private Properties properties(JsonNode step) {
        Properties properties = new Properties();
        properties.put("bootstrap.servers", bootstrap);
        properties.put("reconnect.backoff.max.ms", "200");
        step.path("config").fields().forEachRemaining(entry -> properties.put(entry.getKey(), entry.getValue().asText()));
        return properties;
    }

    private void administer(JsonNode step) throws Exception {
        String topic = step.get("topic").asText();
        Properties properties = new Properties();
        properties.put("bootstrap.servers", bootstrap);
        Map<String, String> config = new HashMap<>();
        step.path("config").fields().forEachRemaining(entry -> config.put(entry.getKey(), entry.getValue().asText()));
        try (Admin admin = Admin.create(properties)) {
            switch (step.get("do").asText()) {
                case "create" -> admin.createTopics(List.of(new NewTopic(topic, 1, (short) 1).configs(config))).all().get();
                case "delete" -> admin.deleteTopics(List.of(topic)).all().get();
                default -> {
                    List<AlterConfigOp> operations = new ArrayList<>();
                    config.forEach((key, value) ->
                        operations.add(new AlterConfigOp(new ConfigEntry(key, value), AlterConfigOp.OpType.SET)));
                    ConfigResource resource = new ConfigResource(ConfigResource.Type.TOPIC, topic);
                    admin.incrementalAlterConfigs(Map.of(resource, operations)).all().get();
                }
            }
        }
    }

    /** Sends a record of each size, all at once, and tells of each its offset or its error. */
    private void send(JsonNode step, ArrayNode outcomes) throws Exception {
        KafkaProducer<String, String> producer = producers.get(step.get("name").asText());
        List<Future<RecordMetadata>> futures = new ArrayList<>();
        for (JsonNode size : step.get("sizes")) {
            String value = "x".repeat(size.asInt());
            futures.add(producer.send(new ProducerRecord<>(step.get("topic").asText(), 0, null, value)));
        }
        for (Future<RecordMetadata> future : futures) {
            try {
                outcomes.add(Long.toString(future.get().offset()));
            } catch (ExecutionException e) {
                outcomes.add(name(e));
            }
        }
    }

    private void openConsumer(JsonNode step) {
        Properties properties = properties(step);
        properties.putIfAbsent("auto.offset.reset", "earliest");
        properties.putIfAbsent("group.id", step.get("name").asText());
        properties.put("enable.auto.commit", "false");
        KafkaConsumer<String, String> consumer =
            new KafkaConsumer<>(properties, new StringDeserializer(), new StringDeserializer());
        consumer.subscribe(List.of(step.get("topic").asText()));
        consumers.put(step.get("name").asText(), consumer);
    }

    /**
     * Polls until so many records are read, an error is thrown, or the time is over; tells their offsets. They are
     * committed, since a member that joins again continues from there.
     */
    private void poll(JsonNode step, ArrayNode read) {
        KafkaConsumer<String, String> consumer = consumers.get(step.get("name").asText());
        long deadline = System.currentTimeMillis() + step.get("ms").asLong();
        while (read.size() < step.get("count").asInt() && System.currentTimeMillis() < deadline) {
            for (ConsumerRecord<String, String> record : consumer.poll(Duration.ofMillis(100))) {
                read.add(record.offset());
            }
        }
        if (!read.isEmpty()) {
            consumer.commitSync();
        }
    }
}
