import java.io.IOException;
import java.io.Reader;
import java.io.Writer;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Collection;
import java.util.Collections;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.TreeMap;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.AlterConfigOp;
import org.apache.kafka.clients.admin.ConfigEntry;
import org.apache.kafka.clients.admin.MemberDescription;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.admin.TopicDescription;
import org.apache.kafka.clients.admin.TransactionState;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.config.ConfigResource;
import org.apache.kafka.common.quota.ClientQuotaAlteration;
import org.apache.kafka.common.quota.ClientQuotaEntity;
import org.apache.kafka.common.quota.ClientQuotaFilter;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;

/**
 * What a cluster has that its next broker must find: written, and looked for, by Kafka's own clients.
 *
 * <pre>
 * write BOOTSTRAP FOLDER PHASE   phase 0 creates everything, each later one adds to it; a transaction stays open
 * check BOOTSTRAP FOLDER PHASES  all of so many phases is there; the open transaction is ended
 * feed BOOTSTRAP                 writes numbers by one idempotent producer until its input ends, whatever the broker does
 * </pre>
 *
 * <p>The folder keeps what only the broker knows: ids of topics. It compiles with the jars of 3.9 and of 4.3.
 */
public final class TakeoverData {
    private static final String[] CODECS = {"none", "gzip", "snappy", "lz4", "zstd"};
    /** A file of the folder: the last phase with a group of the consumer protocol. */
    private static final String CONSUMER_PROTOCOL = "consumer-protocol";
    private static final int RECORDS = 200;
    private static final int TRANSACTION = 50;
    private static final int KEYS = 10;
    private static final Duration POLL = Duration.ofMillis(200);
    private static final long DEADLINE_MS = 60_000;

    private final String bootstrap;

    private TakeoverData(String bootstrap) {
        this.bootstrap = bootstrap;
    }

    public static void main(String[] args) throws Exception {
        TakeoverData data = new TakeoverData(args[1]);
        switch (args[0]) {
            case "write" -> data.write(Path.of(args[2]), Integer.parseInt(args[3]));
            case "check" -> data.check(Path.of(args[2]), Integer.parseInt(args[3]));
            case "feed" -> data.feed();
            default -> throw new IllegalArgumentException(args[0]);
        }
        System.out.println("done");
        System.out.flush();
        // The member and the open transaction stay behind, as after a crash of their processes.
        Runtime.getRuntime().halt(0);
    }

    private Properties properties(String... more) {
        Properties properties = new Properties();
        properties.put("bootstrap.servers", bootstrap);
        for (int i = 0; i < more.length; i += 2) {
            properties.put(more[i], more[i + 1]);
        }
        return properties;
    }

    private KafkaProducer<String, String> producer(String... more) {
        return new KafkaProducer<>(properties(more), new StringSerializer(), new StringSerializer());
    }

    private KafkaConsumer<String, String> consumer(String... more) {
        return new KafkaConsumer<>(properties(more), new StringDeserializer(), new StringDeserializer());
    }

    private static void expect(Object found, Object expected, String what) {
        if (!found.equals(expected)) {
            throw new AssertionError(what + ": " + found + ", expected " + expected);
        }
    }

    // ------------------------------------------------------------------------------------------- write

    private void write(Path folder, int phase) throws Exception {
        try (Admin admin = Admin.create(properties())) {
            if (phase == 0) {
                create(admin, folder);
            } else {
                admin.createTopics(List.of(new NewTopic("of-phase-" + phase, 2, (short) 1))).all().get();
            }
        }
        for (String codec : CODECS) {
            try (KafkaProducer<String, String> producer = producer("compression.type", codec, "linger.ms", "5")) {
                for (int i = 0; i < RECORDS; i++) {
                    producer.send(new ProducerRecord<>("codec-" + codec, i % 2, null, phase + "-" + i));
                }
            }
        }
        try (KafkaProducer<String, String> producer = producer()) {
            for (int i = 0; i < KEYS * 20; i++) {
                producer.send(new ProducerRecord<>("compacted", 0, "key-" + i % KEYS, phase + "-" + i / KEYS)).get();
            }
        }
        transactions(phase);
        groups(phase);
        consumerProtocol(folder, phase);
    }

    private void create(Admin admin, Path folder) throws Exception {
        List<NewTopic> topics = new ArrayList<>();
        for (String codec : CODECS) {
            topics.add(new NewTopic("codec-" + codec, 2, (short) 1));
        }
        topics.add(new NewTopic("compacted", 1, (short) 1).configs(Map.of(
            "cleanup.policy", "compact", "segment.ms", "1000", "min.cleanable.dirty.ratio", "0.01")));
        topics.add(new NewTopic("transactions", 3, (short) 1).configs(Map.of("retention.ms", "864000000")));
        topics.add(new NewTopic("fed", 1, (short) 1));
        admin.createTopics(topics).all().get();
        ConfigResource cluster = new ConfigResource(ConfigResource.Type.BROKER, "");
        AlterConfigOp connections =
            new AlterConfigOp(new ConfigEntry("max.connections", "4321"), AlterConfigOp.OpType.SET);
        admin.incrementalAlterConfigs(Map.of(cluster, List.of(connections))).all().get();
        ClientQuotaEntity bob = new ClientQuotaEntity(Map.of(ClientQuotaEntity.USER, "bob"));
        ClientQuotaAlteration.Op rate = new ClientQuotaAlteration.Op("producer_byte_rate", 12345.0);
        admin.alterClientQuotas(List.of(new ClientQuotaAlteration(bob, List.of(rate)))).all().get();
        Properties ids = new Properties();
        ids.putAll(ids(admin));
        try (Writer writer = Files.newBufferedWriter(folder.resolve("ids.properties"))) {
            ids.store(writer, null);
        }
    }

    private static Map<String, String> ids(Admin admin) throws Exception {
        List<String> names = new ArrayList<>(List.of("compacted", "transactions", "fed"));
        for (String codec : CODECS) {
            names.add("codec-" + codec);
        }
        Map<String, String> ids = new TreeMap<>();
        for (TopicDescription topic : admin.describeTopics(names).allTopicNames().get().values()) {
            ids.put(topic.name(), topic.topicId().toString());
        }
        return ids;
    }

    /** One transaction that is committed, one that is aborted, one that is committed, and one that stays open. */
    private void transactions(int phase) throws Exception {
        try (KafkaProducer<String, String> producer = producer("transactional.id", "finished")) {
            producer.initTransactions();
            for (String kind : List.of("first", "aborted", "second")) {
                producer.beginTransaction();
                fill(producer, phase + "-" + kind);
                if (kind.equals("aborted")) {
                    producer.flush();
                    producer.abortTransaction();
                } else {
                    TopicPartition at = new TopicPartition("transactions", 0);
                    producer.sendOffsetsToTransaction(
                        Map.of(at, new OffsetAndMetadata(1000 + phase)),
                        new org.apache.kafka.clients.consumer.ConsumerGroupMetadata("of-transactions"));
                    producer.commitTransaction();
                }
            }
        }
        KafkaProducer<String, String> open =
            producer("transactional.id", "open", "transaction.timeout.ms", "600000");
        open.initTransactions();
        open.beginTransaction();
        fill(open, phase + "-open");
        open.flush();
    }

    private static void fill(KafkaProducer<String, String> producer, String what) {
        for (int i = 0; i < TRANSACTION; i++) {
            producer.send(new ProducerRecord<>("transactions", i % 3, null, what + "-" + i));
        }
    }

    /** A group without members, and one with a static member that does not leave. */
    private void groups(int phase) throws Exception {
        TopicPartition at = new TopicPartition("codec-none", 1);
        try (KafkaConsumer<String, String> consumer = consumer("group.id", "offsets")) {
            consumer.assign(List.of(at));
            consumer.commitSync(Map.of(at, new OffsetAndMetadata(10 + phase, "of phase " + phase)));
        }
        KafkaConsumer<String, String> member = consumer(
            "group.id", "members", "group.instance.id", "stays", "session.timeout.ms", "60000",
            "auto.offset.reset", "earliest");
        member.subscribe(List.of("codec-lz4"));
        long deadline = System.currentTimeMillis() + DEADLINE_MS;
        while (member.assignment().isEmpty()) {
            member.poll(POLL);
            if (System.currentTimeMillis() > deadline) {
                throw new AssertionError("the group does not form");
            }
        }
        member.commitSync();
    }

    /** A static member of the consumer protocol (KIP-848), where the broker serves that; it leaves for a while. */
    private void consumerProtocol(Path folder, int phase) throws Exception {
        try (Admin admin = Admin.create(properties())) {
            if (!admin.describeFeatures().featureMetadata().get().finalizedFeatures().containsKey("group.version")) {
                return;
            }
        }
        TopicPartition at = new TopicPartition("codec-zstd", 0);
        try (KafkaConsumer<String, String> member = consumer(
                 "group.id", "new-members", "group.instance.id", "returns", "group.protocol", "consumer",
                 "auto.offset.reset", "earliest", "enable.auto.commit", "false")) {
            member.subscribe(List.of(at.topic()));
            long deadline = System.currentTimeMillis() + DEADLINE_MS;
            while (member.assignment().isEmpty()) {
                member.poll(POLL);
                if (System.currentTimeMillis() > deadline) {
                    throw new AssertionError("the group of the consumer protocol does not form");
                }
            }
            member.commitSync(Map.of(at, new OffsetAndMetadata(20 + phase)));
        }
        Files.writeString(folder.resolve(CONSUMER_PROTOCOL), Integer.toString(phase));
    }

    // ------------------------------------------------------------------------------------------- check

    private void check(Path folder, int phases) throws Exception {
        try (Admin admin = Admin.create(properties())) {
            described(admin, folder, phases);
        }
        for (String codec : CODECS) {
            List<String> expected = new ArrayList<>();
            for (int phase = 0; phase < phases; phase++) {
                for (int i = 0; i < RECORDS; i++) {
                    expected.add(phase + "-" + i);
                }
            }
            expect(sorted(read("codec-" + codec, 2, "read_uncommitted")), sorted(expected), codec);
        }
        Map<String, String> latest = new TreeMap<>();
        for (ConsumerRecord<String, String> record : read("compacted", 1, "read_uncommitted")) {
            latest.put(record.key(), record.value());
        }
        Map<String, String> expected = new TreeMap<>();
        for (int key = 0; key < KEYS; key++) {
            expected.put("key-" + key, phases - 1 + "-19");
        }
        expect(latest, expected, "the last values of keys");
        transactionsChecked(phases);
    }

    private void described(Admin admin, Path folder, int phases) throws Exception {
        Properties ids = new Properties();
        try (Reader reader = Files.newBufferedReader(folder.resolve("ids.properties"), StandardCharsets.UTF_8)) {
            ids.load(reader);
        }
        expect(new HashMap<Object, Object>(ids(admin)), new HashMap<Object, Object>(ids), "ids of topics");
        for (int phase = 1; phase < phases; phase++) {
            admin.describeTopics(List.of("of-phase-" + phase)).allTopicNames().get();
        }
        ConfigResource topic = new ConfigResource(ConfigResource.Type.TOPIC, "transactions");
        expect(config(admin, topic, "retention.ms"), "864000000", "a topic's setting");
        expect(config(admin, topic, "cleanup.policy"), "delete", "another topic's setting");
        ConfigResource cluster = new ConfigResource(ConfigResource.Type.BROKER, "");
        expect(config(admin, cluster, "max.connections"), "4321", "the cluster's setting");
        Collection<Map<String, Double>> quotas =
            admin.describeClientQuotas(ClientQuotaFilter.all()).entities().get().values();
        expect(new ArrayList<>(quotas), List.of(Map.of("producer_byte_rate", 12345.0)), "quotas");
        OffsetAndMetadata committed = committed(admin, "offsets", new TopicPartition("codec-none", 1));
        expect(committed.offset(), 9L + phases, "a group's offset");
        expect(committed.metadata(), "of phase " + (phases - 1), "its metadata");
        OffsetAndMetadata ofTransaction = committed(admin, "of-transactions", new TopicPartition("transactions", 0));
        expect(ofTransaction.offset(), 999L + phases, "an offset of a transaction");
        expect(members(admin, "members"), List.of("stays 2"), "members of a group");
        Path ofConsumerProtocol = folder.resolve(CONSUMER_PROTOCOL);
        if (Files.exists(ofConsumerProtocol)) {
            long phase = Long.parseLong(Files.readString(ofConsumerProtocol));
            OffsetAndMetadata at = committed(admin, "new-members", new TopicPartition("codec-zstd", 0));
            expect(at.offset(), 20 + phase, "an offset of a group of the consumer protocol");
            expect(members(admin, "new-members"), List.of("returns 2"), "its members");
        }
        expect(state(admin, "open"), TransactionState.ONGOING, "the open transaction");
        expect(state(admin, "finished"), TransactionState.COMPLETE_COMMIT, "the finished one");
    }

    /** Each with how many partitions it has. */
    private static List<String> members(Admin admin, String group) throws Exception {
        List<String> members = new ArrayList<>();
        for (MemberDescription member :
            admin.describeConsumerGroups(List.of(group)).all().get().get(group).members()) {
            members.add(member.groupInstanceId().orElse("?") + " " + member.assignment().topicPartitions().size());
        }
        return members;
    }

    private static String config(Admin admin, ConfigResource resource, String name) throws Exception {
        return admin.describeConfigs(List.of(resource)).all().get().get(resource).get(name).value();
    }

    private static OffsetAndMetadata committed(Admin admin, String group, TopicPartition at) throws Exception {
        return admin.listConsumerGroupOffsets(group).partitionsToOffsetAndMetadata().get().get(at);
    }

    private static TransactionState state(Admin admin, String id) throws Exception {
        return admin.describeTransactions(List.of(id)).all().get().get(id).state();
    }

    /** A reader of committed records stops before the open transaction; when that is ended it gets all. */
    private void transactionsChecked(int phases) throws Exception {
        List<String> before = new ArrayList<>();
        for (int phase = 0; phase < phases; phase++) {
            for (int i = 0; i < TRANSACTION; i++) {
                before.add(phase + "-first-" + i);
                before.add(phase + "-second-" + i);
            }
        }
        expect(sorted(read("transactions", 3, "read_committed")), sorted(before), "committed records");
        expect(
            read("transactions", 3, "read_uncommitted").size(), phases * TRANSACTION * 4, "records of transactions");
        // Its next producer aborts it, and the last stable offset moves on.
        try (KafkaProducer<String, String> producer = producer("transactional.id", "open")) {
            producer.initTransactions();
        }
        try (KafkaConsumer<String, String> consumer = consumer("isolation.level", "read_committed");
             KafkaConsumer<String, String> uncommitted = consumer()) {
            List<TopicPartition> partitions = partitions("transactions", 3);
            expect(consumer.endOffsets(partitions), uncommitted.endOffsets(partitions), "last stable offsets");
        }
        expect(sorted(read("transactions", 3, "read_committed")), sorted(before), "committed records, later");
    }

    private static List<TopicPartition> partitions(String topic, int count) {
        List<TopicPartition> partitions = new ArrayList<>();
        for (int partition = 0; partition < count; partition++) {
            partitions.add(new TopicPartition(topic, partition));
        }
        return partitions;
    }

    /** All that a reader may see now. */
    private List<ConsumerRecord<String, String>> read(String topic, int count, String isolation) {
        List<ConsumerRecord<String, String>> all = new ArrayList<>();
        List<TopicPartition> partitions = partitions(topic, count);
        try (KafkaConsumer<String, String> consumer =
                 consumer("isolation.level", isolation, "auto.offset.reset", "earliest")) {
            consumer.assign(partitions);
            consumer.seekToBeginning(partitions);
            Map<TopicPartition, Long> ends = consumer.endOffsets(partitions);
            long deadline = System.currentTimeMillis() + DEADLINE_MS;
            while (!partitions.stream().allMatch(partition -> consumer.position(partition) >= ends.get(partition))) {
                consumer.poll(POLL).forEach(all::add);
                if (System.currentTimeMillis() > deadline) {
                    throw new AssertionError(topic + " is not read to its ends " + ends);
                }
            }
        }
        return all;
    }

    private static List<String> sorted(List<?> records) {
        List<String> values = new ArrayList<>();
        for (Object record : records) {
            values.add(record instanceof ConsumerRecord<?, ?> read ? (String) read.value() : (String) record);
        }
        Collections.sort(values);
        return values;
    }

    // -------------------------------------------------------------------------------------------- feed

    /** Each number once and in order, over every change of the broker: the producer's state goes on. */
    private void feed() throws IOException, InterruptedException {
        AtomicInteger failed = new AtomicInteger();
        int count = 0;
        try (KafkaProducer<String, String> producer = producer(
                 "delivery.timeout.ms", "600000", "max.block.ms", "600000", "reconnect.backoff.max.ms", "200",
                 "retry.backoff.max.ms", "200")) {
            while (System.in.available() == 0) {
                producer.send(new ProducerRecord<>("fed", Integer.toString(count)), (metadata, error) -> {
                    if (error != null && failed.getAndIncrement() == 0) {
                        error.printStackTrace();
                    }
                });
                count++;
                Thread.sleep(5);
            }
        }
        expect(failed.get(), 0, "records that were refused");
        List<ConsumerRecord<String, String>> read = read("fed", 1, "read_uncommitted");
        for (int i = 0; i < read.size(); i++) {
            expect(read.get(i).value(), Integer.toString(i), "the record at offset " + i);
        }
        expect(read.size(), count, "records");
    }
}
