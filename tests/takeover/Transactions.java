import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Properties;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.errors.TopicExistsException;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;

/**
 * One producer that goes on whatever the broker does, step by step: <code>run BOOTSTRAP</code>. A line of its input is a
 * step, which "done" follows.
 *
 * <pre>
 * begin    a transaction, with records in both partitions that the broker has acknowledged
 * commit   ends it, and so does
 * abort
 * check    a reader of committed records finds those of the transactions that this process has committed, in order
 * </pre>
 */
public final class Transactions {
    private static final String TOPIC = "over-changes";
    private static final int PARTITIONS = 2;
    private static final int RECORDS = 40;
    private static final long DEADLINE_MS = 60_000;

    private final List<List<String>> committed = List.of(new ArrayList<>(), new ArrayList<>());
    private int number;

    public static void main(String[] args) throws Exception {
        new Transactions().run(args[1]);
    }

    private void run(String bootstrap) throws Exception {
        Properties properties = new Properties();
        properties.put("bootstrap.servers", bootstrap);
        create(properties);
        Properties ofProducer = new Properties();
        ofProducer.putAll(properties);
        ofProducer.put("transactional.id", TOPIC);
        ofProducer.put("transaction.timeout.ms", "600000");
        ofProducer.put("delivery.timeout.ms", "600000");
        ofProducer.put("max.block.ms", "600000");
        ofProducer.put("reconnect.backoff.max.ms", "200");
        BufferedReader steps = new BufferedReader(new InputStreamReader(System.in));
        try (KafkaProducer<String, String> producer =
                 new KafkaProducer<>(ofProducer, new StringSerializer(), new StringSerializer())) {
            producer.initTransactions();
            for (String step = steps.readLine(); step != null && !step.isEmpty(); step = steps.readLine()) {
                switch (step) {
                    case "begin" -> begin(producer);
                    case "commit" -> commit(producer);
                    case "abort" -> producer.abortTransaction();
                    case "check" -> check(properties);
                    default -> throw new IllegalArgumentException(step);
                }
                System.out.println("done");
                System.out.flush();
            }
        }
    }

    private static void create(Properties properties) throws Exception {
        try (Admin admin = Admin.create(properties)) {
            admin.createTopics(List.of(new NewTopic(TOPIC, PARTITIONS, (short) 1))).all().get();
        } catch (java.util.concurrent.ExecutionException e) {
            if (!(e.getCause() instanceof TopicExistsException)) {
                throw e;
            }
        }
    }

    private void begin(KafkaProducer<String, String> producer) {
        number++;
        producer.beginTransaction();
        for (int i = 0; i < RECORDS; i++) {
            producer.send(new ProducerRecord<>(TOPIC, i % PARTITIONS, null, number + "-" + i));
        }
        producer.flush();
    }

    private void commit(KafkaProducer<String, String> producer) {
        producer.commitTransaction();
        for (int i = 0; i < RECORDS; i++) {
            committed.get(i % PARTITIONS).add(number + "-" + i);
        }
    }

    private void check(Properties properties) {
        Properties ofReader = new Properties();
        ofReader.putAll(properties);
        ofReader.put("isolation.level", "read_committed");
        for (int partition = 0; partition < PARTITIONS; partition++) {
            List<String> found = new ArrayList<>();
            List<TopicPartition> one = List.of(new TopicPartition(TOPIC, partition));
            try (KafkaConsumer<String, String> consumer =
                     new KafkaConsumer<>(ofReader, new StringDeserializer(), new StringDeserializer())) {
                consumer.assign(one);
                consumer.seekToBeginning(one);
                long end = consumer.endOffsets(one).get(one.get(0));
                long deadline = System.currentTimeMillis() + DEADLINE_MS;
                while (consumer.position(one.get(0)) < end) {
                    for (ConsumerRecord<String, String> record : consumer.poll(Duration.ofMillis(200))) {
                        found.add(record.value());
                    }
                    if (System.currentTimeMillis() > deadline) {
                        throw new AssertionError("partition " + partition + " is not read to its end");
                    }
                }
            }
            if (!found.equals(committed.get(partition))) {
                throw new AssertionError("partition " + partition + ": " + found + ", not " + committed.get(partition));
            }
        }
    }
}
