package mainstem.interop;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.BufferedReader;
import java.io.BufferedWriter;
import java.io.IOException;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Collection;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.Set;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.concurrent.atomic.AtomicLong;
import java.util.concurrent.atomic.AtomicReference;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.AlterConfigOp;
import org.apache.kafka.clients.admin.Config;
import org.apache.kafka.clients.admin.ConfigEntry;
import org.apache.kafka.clients.admin.NewPartitions;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.admin.RecordsToDelete;
import org.apache.kafka.clients.admin.TopicDescription;
import org.apache.kafka.clients.consumer.ConsumerConfig;
import org.apache.kafka.clients.consumer.ConsumerRebalanceListener;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.ConsumerRecords;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerConfig;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.KafkaFuture;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.config.ConfigResource;
import org.apache.kafka.common.errors.RebalanceInProgressException;
import org.apache.kafka.common.errors.TimeoutException;
import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;

/**
 * The Java client under test: {@code COMMAND key=value ...}. The commands, their arguments and the files that they
 * read and write are the same for every client and are described in tests/interop/README.md.
 */
public final class Client {
    private static final ObjectMapper JSON = new ObjectMapper();
    private static final Duration POLL = Duration.ofMillis(100);
    private static final long DEADLINE_MS = 90_000;

    private final Map<String, String> arguments = new HashMap<>();

    private Client(String[] args) {
        for (int i = 1; i < args.length; i++) {
            String[] pair = args[i].split("=", 2);
            arguments.put(pair[0], pair[1]);
        }
    }

    public static void main(String[] args) throws Exception {
        Client client = new Client(args);
        switch (args[0]) {
            case "create" -> client.create();
            case "produce" -> client.produce();
            case "consume" -> client.consume();
            case "feed" -> client.feed();
            case "append" -> client.append();
            case "member" -> client.member();
            case "admin" -> client.admin();
            case "transact" -> client.transact();
            case "loop" -> client.loop();
            default -> throw new IllegalArgumentException("no command " + args[0]);
        }
    }

    private String get(String name) {
        String value = arguments.get(name);
        if (value == null) {
            throw new IllegalArgumentException("argument " + name + "= is missing");
        }
        return value;
    }

    private Properties properties() {
        Properties properties = new Properties();
        properties.put("bootstrap.servers", get("bootstrap"));
        properties.put("reconnect.backoff.max.ms", "200");
        if (arguments.containsKey("request_timeout_ms")) {
            properties.put("request.timeout.ms", get("request_timeout_ms"));
        }
        return properties;
    }

    private static void check(boolean holds, String what) {
        if (!holds) {
            throw new AssertionError(what);
        }
    }

    // ------------------------------------------------------------------------------------------ create

    private void create() throws Exception {
        int partitions = Integer.parseInt(get("partitions"));
        List<NewTopic> topics = new ArrayList<>();
        for (String name : get("topics").split(",")) {
            topics.add(new NewTopic(name, partitions, (short) 1));
        }
        try (Admin admin = Admin.create(properties())) {
            admin.createTopics(topics).all().get();
        }
    }

    // ----------------------------------------------------------------------------------------- produce

    private KafkaProducer<String, String> producer(String codec) {
        Properties properties = properties();
        properties.put(ProducerConfig.COMPRESSION_TYPE_CONFIG, codec);
        properties.put(ProducerConfig.ACKS_CONFIG, "all");
        properties.put(ProducerConfig.ENABLE_IDEMPOTENCE_CONFIG, "true");
        properties.put(ProducerConfig.LINGER_MS_CONFIG, "5");
        giveUpInTime(properties);
        return new KafkaProducer<>(properties, new StringSerializer(), new StringSerializer());
    }

    /**
     * A batch whose answer was lost may have others behind it, at the next leader, by the time that it is sent again: more than a
     * broker remembers. It is refused until it is given up, by default for two minutes.
     */
    private void giveUpInTime(Properties properties) {
        if (arguments.containsKey("request_timeout_ms")) {
            int giveUpMs = 10 * Integer.parseInt(get("request_timeout_ms"));
            properties.put(ProducerConfig.DELIVERY_TIMEOUT_MS_CONFIG, String.valueOf(giveUpMs));
        }
    }

    private void produce() throws Exception {
        List<String> input = Files.readAllLines(Path.of(get("input")));
        for (String job : get("jobs").split(",")) {
            String[] codecAndTopic = job.split(":");
            AtomicReference<Exception> failure = new AtomicReference<>();
            try (KafkaProducer<String, String> producer = producer(codecAndTopic[0])) {
                for (String line : input) {
                    producer.send(record(codecAndTopic[1], JSON.readTree(line)), (metadata, error) -> {
                        if (error != null) {
                            failure.compareAndSet(null, error);
                        }
                    });
                }
            }
            if (failure.get() != null) {
                throw failure.get();
            }
        }
    }

    private static ProducerRecord<String, String> record(String topic, JsonNode json) {
        ProducerRecord<String, String> record =
            new ProducerRecord<>(topic, json.get("p").asInt(), text(json.get("k")), text(json.get("v")));
        for (JsonNode header : json.get("h")) {
            String value = text(header.get(1));
            byte[] bytes = value == null ? null : value.getBytes(StandardCharsets.UTF_8);
            record.headers().add(header.get(0).asText(), bytes);
        }
        return record;
    }

    private static String text(JsonNode json) {
        return json.isNull() ? null : json.asText();
    }

    // ----------------------------------------------------------------------------------------- consume

    private void consume() throws Exception {
        Properties properties = properties();
        properties.put(ConsumerConfig.ENABLE_AUTO_COMMIT_CONFIG, "false");
        properties.put(ConsumerConfig.MAX_POLL_RECORDS_CONFIG, "5000");
        properties.put(ConsumerConfig.ISOLATION_LEVEL_CONFIG, arguments.getOrDefault("isolation", "read_uncommitted"));
        try (KafkaConsumer<String, String> consumer =
                 new KafkaConsumer<>(properties, new StringDeserializer(), new StringDeserializer())) {
            for (String topic : get("topics").split(",")) {
                consumeTopic(consumer, topic);
            }
        }
    }

    private void consumeTopic(KafkaConsumer<String, String> consumer, String topic) throws IOException {
        List<TopicPartition> partitions = new ArrayList<>();
        consumer.partitionsFor(topic).forEach(p -> partitions.add(new TopicPartition(topic, p.partition())));
        consumer.assign(partitions);
        consumer.seekToBeginning(partitions);
        Map<TopicPartition, Long> ends = consumer.endOffsets(partitions);
        long deadline = System.currentTimeMillis() + DEADLINE_MS;
        try (BufferedWriter out = Files.newBufferedWriter(Path.of(get("out"), topic + ".jsonl"))) {
            while (!partitions.stream().allMatch(p -> consumer.position(p) >= ends.get(p))) {
                check(System.currentTimeMillis() < deadline, topic + ": not read to the ends " + ends);
                for (ConsumerRecord<String, String> record : consumer.poll(POLL)) {
                    out.write(JSON.writeValueAsString(json(record)));
                    out.newLine();
                }
            }
        }
    }

    private static ObjectNode json(ConsumerRecord<String, String> record) {
        ObjectNode json = JSON.createObjectNode();
        json.put("p", record.partition()).put("o", record.offset()).put("k", record.key()).put("v", record.value());
        ArrayNode headers = json.putArray("h");
        for (Header header : record.headers()) {
            String value = header.value() == null ? null : new String(header.value(), StandardCharsets.UTF_8);
            headers.addArray().add(header.key()).add(value);
        }
        return json;
    }

    // ---------------------------------------------------------------------------------------- transact

    private void transact() throws Exception {
        Properties writing = properties();
        writing.put(ProducerConfig.TRANSACTIONAL_ID_CONFIG, get("id"));
        Properties reading = properties();
        reading.put(ConsumerConfig.GROUP_ID_CONFIG, get("group"));
        reading.put(ConsumerConfig.ENABLE_AUTO_COMMIT_CONFIG, "false");
        reading.put(ConsumerConfig.ISOLATION_LEVEL_CONFIG, "read_committed");
        reading.put(ConsumerConfig.MAX_POLL_RECORDS_CONFIG, "200");
        try (KafkaProducer<String, String> producer =
                 new KafkaProducer<>(writing, new StringSerializer(), new StringSerializer());
             KafkaConsumer<String, String> consumer =
                 new KafkaConsumer<>(reading, new StringDeserializer(), new StringDeserializer())) {
            producer.initTransactions();
            String topic = get("input");
            List<TopicPartition> partitions = new ArrayList<>();
            consumer.partitionsFor(topic).forEach(p -> partitions.add(new TopicPartition(topic, p.partition())));
            consumer.assign(partitions);
            consumer.seekToBeginning(partitions);
            Map<TopicPartition, Long> ends = consumer.endOffsets(partitions);
            long deadline = System.currentTimeMillis() + DEADLINE_MS;
            for (int chunks = 1; !partitions.stream().allMatch(p -> consumer.position(p) >= ends.get(p)); ) {
                check(System.currentTimeMillis() < deadline, topic + ": not passed on to the ends " + ends);
                ConsumerRecords<String, String> records = consumer.poll(POLL);
                if (records.isEmpty()) {
                    continue;
                }
                if (chunks++ % 3 == 0) {
                    passOn(producer, consumer, records);
                    producer.flush();
                    producer.abortTransaction();
                }
                passOn(producer, consumer, records);
                producer.commitTransaction();
            }
        }
    }

    /** Writes a chunk and commits how far it goes, in a transaction that stays open. */
    private void passOn(
        KafkaProducer<String, String> producer,
        KafkaConsumer<String, String> consumer,
        ConsumerRecords<String, String> records) {
        producer.beginTransaction();
        for (ConsumerRecord<String, String> record : records) {
            producer.send(new ProducerRecord<>(get("output"), record.partition(), record.key(), record.value()));
        }
        Map<TopicPartition, OffsetAndMetadata> offsets = new HashMap<>();
        consumer.assignment().forEach(p -> offsets.put(p, new OffsetAndMetadata(consumer.position(p))));
        producer.sendOffsetsToTransaction(offsets, consumer.groupMetadata());
    }

    // -------------------------------------------------------------------------------------------- feed

    private void feed() throws Exception {
        AtomicReference<Exception> failure = new AtomicReference<>();
        AtomicLong acknowledged = new AtomicLong();
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        try (KafkaProducer<String, String> producer = producer("lz4")) {
            for (String line = in.readLine(); line != null; line = in.readLine()) {
                String[] pair = line.split("\t", 2);
                producer.send(new ProducerRecord<>(get("topic"), pair[0], pair[1]), (metadata, error) -> {
                    if (error == null) {
                        acknowledged.incrementAndGet();
                    } else {
                        failure.compareAndSet(null, error);
                    }
                });
            }
        }
        if (failure.get() != null) {
            throw failure.get();
        }
        System.out.println("acknowledged " + acknowledged.get());
    }

    // ------------------------------------------------------------------------------------------ append

    private void append() throws Exception {
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        try (BufferedWriter out = Files.newBufferedWriter(Path.of(get("out")));
             KafkaProducer<String, String> producer = producer("none")) {
            for (String line = in.readLine(); line != null; line = in.readLine()) {
                String[] pair = line.split(" ", 2);
                int partition = Integer.parseInt(pair[0]);
                producer.send(new ProducerRecord<>(get("topic"), partition, null, pair[1]), (metadata, error) -> {
                    if (error != null) {
                        System.err.println(error);
                    }
                    String place = error == null ? "ok " + partition + " " + metadata.offset() : "info " + partition + " -1";
                    try {
                        out.write(place + " " + pair[1]);
                        out.newLine();
                        out.flush();
                    } catch (IOException e) {
                        throw new java.io.UncheckedIOException(e);
                    }
                });
            }
            producer.flush();
        }
    }

    // ------------------------------------------------------------------------------------------ member

    private void member() throws Exception {
        Properties properties = properties();
        properties.put(ConsumerConfig.GROUP_ID_CONFIG, get("group"));
        properties.put(ConsumerConfig.ENABLE_AUTO_COMMIT_CONFIG, "false");
        properties.put(ConsumerConfig.AUTO_OFFSET_RESET_CONFIG, "earliest");
        properties.put(ConsumerConfig.MAX_POLL_RECORDS_CONFIG, "200");
        if (get("rebalance").equals("consumer")) {
            // Times and assignors are the broker's (KIP-848).
            properties.put(ConsumerConfig.GROUP_PROTOCOL_CONFIG, "consumer");
        } else {
            properties.put(ConsumerConfig.SESSION_TIMEOUT_MS_CONFIG, get("session_ms"));
            properties.put(ConsumerConfig.HEARTBEAT_INTERVAL_MS_CONFIG, "500");
            properties.put(ConsumerConfig.PARTITION_ASSIGNMENT_STRATEGY_CONFIG, switch (get("rebalance")) {
                case "eager" -> "org.apache.kafka.clients.consumer.RangeAssignor";
                case "cooperative" -> "org.apache.kafka.clients.consumer.CooperativeStickyAssignor";
                default -> throw new IllegalArgumentException("rebalance=" + get("rebalance"));
            });
        }
        if (arguments.containsKey("instance")) {
            properties.put(ConsumerConfig.GROUP_INSTANCE_ID_CONFIG, get("instance"));
        }
        AtomicBoolean stopping = stopAtEndOfInput();
        try (BufferedWriter out = Files.newBufferedWriter(Path.of(get("out")));
             KafkaConsumer<String, String> consumer =
                 new KafkaConsumer<>(properties, new StringDeserializer(), new StringDeserializer())) {
            new Member(consumer, out, Integer.parseInt(get("commit_every"))).run(get("topic"), stopping);
        }
    }

    private static AtomicBoolean stopAtEndOfInput() {
        AtomicBoolean stopping = new AtomicBoolean();
        Thread watcher = new Thread(() -> {
            try {
                System.in.transferTo(java.io.OutputStream.nullOutputStream());
            } catch (IOException e) {
                // No more input, whatever the reason.
            }
            stopping.set(true);
        });
        watcher.setDaemon(true);
        watcher.start();
        return stopping;
    }

    /** One member of a group: writes down what it read and what it committed, in that order. */
    private static final class Member implements ConsumerRebalanceListener {
        private final KafkaConsumer<String, String> consumer;
        private final BufferedWriter out;
        private final int commitEvery;
        private int uncommitted;

        Member(KafkaConsumer<String, String> consumer, BufferedWriter out, int commitEvery) {
            this.consumer = consumer;
            this.out = out;
            this.commitEvery = commitEvery;
        }

        void run(String topic, AtomicBoolean stopping) throws IOException {
            consumer.subscribe(List.of(topic), this);
            while (!stopping.get()) {
                read();
                if (uncommitted >= commitEvery) {
                    tryCommit();
                }
            }
            while (!tryCommit()) {
                consumer.pause(consumer.assignment());
                read();
            }
        }

        private void read() throws IOException {
            for (ConsumerRecord<String, String> record : consumer.poll(POLL)) {
                write("r " + record.partition() + " " + record.offset() + " " + record.value());
                uncommitted++;
            }
            out.flush();
        }

        /** Commits, unless a rebalance is under way: it is to be polled to its end first. */
        private boolean tryCommit() {
            try {
                commit(consumer.assignment());
                return true;
            } catch (RebalanceInProgressException e) {
                return false;
            }
        }

        private void commit(Collection<TopicPartition> partitions) {
            consumer.commitSync();
            uncommitted = 0;
            for (TopicPartition partition : partitions) {
                write("c " + partition.partition() + " " + consumer.position(partition));
            }
            flush();
        }

        @Override
        public void onPartitionsRevoked(Collection<TopicPartition> partitions) {
            commit(partitions);
            partitions.forEach(partition -> write("revoked " + partition.partition()));
            flush();
        }

        @Override
        public void onPartitionsAssigned(Collection<TopicPartition> partitions) {
            partitions.forEach(partition -> write("assigned " + partition.partition()));
            flush();
        }

        @Override
        public void onPartitionsLost(Collection<TopicPartition> partitions) {
            partitions.forEach(partition -> write("lost " + partition.partition()));
            flush();
        }

        private void write(String line) {
            try {
                out.write(line);
                out.newLine();
            } catch (IOException e) {
                throw new java.io.UncheckedIOException(e);
            }
        }

        private void flush() {
            try {
                out.flush();
            } catch (IOException e) {
                throw new java.io.UncheckedIOException(e);
            }
        }
    }

    // -------------------------------------------------------------------------------------------- loop

    private void loop() throws Exception {
        Properties writing = properties();
        writing.put(ProducerConfig.TRANSACTIONAL_ID_CONFIG, get("id"));
        // A call that has not come to its end by then is made again.
        writing.put(ProducerConfig.MAX_BLOCK_MS_CONFIG, "20000");
        giveUpInTime(writing);
        Properties reading = properties();
        reading.put(ConsumerConfig.GROUP_ID_CONFIG, get("group"));
        reading.put(ConsumerConfig.GROUP_PROTOCOL_CONFIG, "consumer");
        reading.put(ConsumerConfig.ENABLE_AUTO_COMMIT_CONFIG, "false");
        reading.put(ConsumerConfig.AUTO_OFFSET_RESET_CONFIG, "earliest");
        // Offsets of a transaction that has not ended are waited for.
        reading.put(ConsumerConfig.ISOLATION_LEVEL_CONFIG, "read_committed");
        reading.put(ConsumerConfig.MAX_POLL_RECORDS_CONFIG, "200");
        try (BufferedWriter out = Files.newBufferedWriter(Path.of(get("out")));
             KafkaProducer<String, String> producer =
                 new KafkaProducer<>(writing, new StringSerializer(), new StringSerializer());
             KafkaConsumer<String, String> consumer =
                 new KafkaConsumer<>(reading, new StringDeserializer(), new StringDeserializer())) {
            Loop loop = new Loop(producer, consumer, out, get("output"), Long.parseLong(get("values")));
            try {
                loop.run(get("topic"));
            } catch (Exception e) {
                // To close what has failed may take longer than to begin again.
                e.printStackTrace();
                out.flush();
                Runtime.getRuntime().halt(1);
            }
        }
    }

    /**
     * Reads, and writes a new record for each to the partition of the same number, in transactions with how far it has
     * read. Writes down each step before what others can see of it, and the outcome behind it.
     */
    private static final class Loop implements ConsumerRebalanceListener {
        /** One transaction of so many is aborted when all of it is sent. */
        private static final int ABORTED = 6;
        private static final String END = "";

        private final KafkaProducer<String, String> producer;
        private final KafkaConsumer<String, String> consumer;
        private final BufferedWriter out;
        private final String output;
        private final BlockingQueue<String> answers = new LinkedBlockingQueue<>();
        private final AtomicBoolean stopping = new AtomicBoolean();
        private long nextValue;
        private int transactions;

        Loop(KafkaProducer<String, String> producer, KafkaConsumer<String, String> consumer, BufferedWriter out,
             String output, long firstValue) {
            this.producer = producer;
            this.consumer = consumer;
            this.out = out;
            this.output = output;
            this.nextValue = firstValue;
        }

        void run(String topic) throws Exception {
            Thread listener = new Thread(this::listen);
            listener.setDaemon(true);
            listener.start();
            // What one before it has left open is aborted by that.
            again(producer::initTransactions);
            consumer.subscribe(List.of(topic), this);
            while (!stopping.get()) {
                ConsumerRecords<String, String> records = consumer.poll(POLL);
                if (!records.isEmpty()) {
                    passOn(records);
                }
                flush();
            }
        }

        private void listen() {
            BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
            try {
                for (String line = in.readLine(); line != null; line = in.readLine()) {
                    answers.add(line);
                }
            } catch (IOException e) {
                // No more input, whatever the reason.
            }
            stopping.set(true);
            answers.add(END);
        }

        /** One transaction, after which the loop is behind the records, or before them again. */
        private void passOn(ConsumerRecords<String, String> records) throws InterruptedException {
            transactions++;
            producer.beginTransaction();
            write("begin");
            Map<TopicPartition, Long> begins = new HashMap<>();
            Map<TopicPartition, OffsetAndMetadata> ends = new HashMap<>();
            for (ConsumerRecord<String, String> record : records) {
                write("r " + record.partition() + " " + record.offset() + " " + record.value());
                TopicPartition partition = new TopicPartition(record.topic(), record.partition());
                begins.putIfAbsent(partition, record.offset());
                ends.put(partition, new OffsetAndMetadata(record.offset() + 1));
            }
            try {
                sendAll(records);
                if (sendOffsets(ends) && transactions % ABORTED != 0) {
                    write("committing");
                    again(producer::commitTransaction);
                    write("committed");
                    return;
                }
            } catch (KafkaException e) {
                e.printStackTrace();
            }
            abort(begins);
        }

        private void sendAll(ConsumerRecords<String, String> records) {
            for (ConsumerRecord<String, String> record : records) {
                int partition = record.partition();
                String value = Long.toString(nextValue++);
                write("w " + partition + " " + value);
                producer.send(new ProducerRecord<>(output, partition, null, value), (metadata, error) -> {
                    String place = error == null ? "ok " + partition + " " + metadata.offset() : "info " + partition + " -1";
                    write(place + " " + value);
                });
            }
            producer.flush();
        }

        /**
         * Makes the offsets a part of the transaction, when the one who reads what is written here knows of them: others may
         * see them from then on. False: it is to stop.
         */
        private boolean sendOffsets(Map<TopicPartition, OffsetAndMetadata> ends) throws InterruptedException {
            ends.forEach((partition, end) -> write("offset " + partition.partition() + " " + end.offset()));
            write("ask");
            flush();
            if (answers.take().equals(END)) {
                return false;
            }
            again(() -> producer.sendOffsetsToTransaction(ends, consumer.groupMetadata()));
            write("sent");
            return true;
        }

        private void abort(Map<TopicPartition, Long> begins) throws InterruptedException {
            write("aborting");
            again(producer::abortTransaction);
            write("aborted");
            begins.forEach((partition, offset) -> {
                if (consumer.assignment().contains(partition)) {
                    write("seek " + partition.partition() + " " + offset);
                    consumer.seek(partition, offset);
                }
            });
        }

        /** Makes a call again that has not come to its end. */
        private static void again(Runnable call) throws InterruptedException {
            long deadline = System.currentTimeMillis() + DEADLINE_MS;
            while (true) {
                try {
                    call.run();
                    return;
                } catch (TimeoutException e) {
                    if (System.currentTimeMillis() > deadline) {
                        throw e;
                    }
                    System.err.println("again: " + e);
                    Thread.sleep(100);
                }
            }
        }

        @Override
        public void onPartitionsAssigned(Collection<TopicPartition> partitions) {
            partitions.forEach(partition -> write("assigned " + partition.partition()));
        }

        @Override
        public void onPartitionsRevoked(Collection<TopicPartition> partitions) {
            // No record of them is in flight: their next owner continues where the last transaction ended.
        }

        /** Outcomes come from the producer's own thread. */
        private synchronized void write(String line) {
            try {
                out.write(line);
                out.newLine();
            } catch (IOException e) {
                throw new java.io.UncheckedIOException(e);
            }
        }

        private synchronized void flush() {
            try {
                out.flush();
            } catch (IOException e) {
                throw new java.io.UncheckedIOException(e);
            }
        }
    }

    // ------------------------------------------------------------------------------------------- admin

    private void admin() throws Exception {
        String topic = get("topic");
        try (Admin admin = Admin.create(properties())) {
            NewTopic wanted = new NewTopic(topic, 2, (short) 1).configs(Map.of("retention.ms", "3600000"));
            admin.createTopics(List.of(wanted)).all().get();
            expectError(admin.createTopics(List.of(wanted)).all(), "TopicExistsException");
            await(() -> admin.listTopics().names().get().contains(topic), "listed after creation");
            check(describe(admin, topic).partitions().size() == 2, "two partitions");
            check(!describe(admin, topic).topicId().toString().equals("AAAAAAAAAAAAAAAAAAAAAA"), "a topic id");

            configs(admin, topic);
            admin.createPartitions(Map.of(topic, NewPartitions.increaseTo(4))).all().get();
            await(() -> describe(admin, topic).partitions().size() == 4, "four partitions");
            expectError(admin.createPartitions(Map.of(topic, NewPartitions.increaseTo(3))).all(),
                "InvalidPartitionsException");
            deleteRecords(admin, topic);

            check(!admin.describeCluster().nodes().get().isEmpty(), "a node");
            check(admin.describeCluster().clusterId().get() != null, "a cluster id");
            admin.deleteTopics(List.of(topic)).all().get();
            await(() -> !admin.listTopics().names().get().contains(topic), "gone after deletion");
            expectError(admin.describeTopics(List.of(topic)).allTopicNames(), "UnknownTopicOrPartitionException");
        }
    }

    private static void configs(Admin admin, String topic) throws Exception {
        ConfigResource resource = new ConfigResource(ConfigResource.Type.TOPIC, topic);
        ConfigEntry retention = config(admin, resource).get("retention.ms");
        check(retention.value().equals("3600000"), "retention.ms as created: " + retention);
        check(retention.source() == ConfigEntry.ConfigSource.DYNAMIC_TOPIC_CONFIG, "source: " + retention);
        ConfigEntry segment = config(admin, resource).get("segment.bytes");
        check(segment.isDefault() && segment.value().equals("1073741824"), "segment.bytes by default: " + segment);

        alter(admin, resource, "retention.ms", "7200000", AlterConfigOp.OpType.SET);
        await(() -> config(admin, resource).get("retention.ms").value().equals("7200000"), "retention.ms set");
        alter(admin, resource, "retention.ms", "", AlterConfigOp.OpType.DELETE);
        await(() -> config(admin, resource).get("retention.ms").isDefault(), "retention.ms back at its default");
        expectError(admin.incrementalAlterConfigs(Map.of(resource, List.of(new AlterConfigOp(
            new ConfigEntry("segment.bytes", "none"), AlterConfigOp.OpType.SET)))).all(), "InvalidConfigurationException");

        String node = Integer.toString(admin.describeCluster().nodes().get().iterator().next().id());
        Config broker = config(admin, new ConfigResource(ConfigResource.Type.BROKER, node));
        check(broker.get("num.partitions") != null, "the broker's num.partitions");
    }

    private static void alter(Admin admin, ConfigResource resource, String key, String value,
                              AlterConfigOp.OpType type) throws Exception {
        AlterConfigOp operation = new AlterConfigOp(new ConfigEntry(key, value), type);
        admin.incrementalAlterConfigs(Map.of(resource, List.of(operation))).all().get();
    }

    private static Config config(Admin admin, ConfigResource resource) throws Exception {
        return admin.describeConfigs(Set.of(resource)).all().get().get(resource);
    }

    private static TopicDescription describe(Admin admin, String topic) throws Exception {
        return admin.describeTopics(List.of(topic)).allTopicNames().get().get(topic);
    }

    private void deleteRecords(Admin admin, String topic) throws Exception {
        TopicPartition partition = new TopicPartition(topic, 0);
        try (KafkaProducer<String, String> producer = producer("none")) {
            for (int i = 0; i < 10; i++) {
                producer.send(new ProducerRecord<>(topic, 0, null, "record " + i)).get();
            }
        }
        long low = admin.deleteRecords(Map.of(partition, RecordsToDelete.beforeOffset(4)))
            .lowWatermarks().get(partition).get().lowWatermark();
        check(low == 4, "low watermark after deletion: " + low);
        Properties properties = properties();
        try (KafkaConsumer<String, String> consumer =
                 new KafkaConsumer<>(properties, new StringDeserializer(), new StringDeserializer())) {
            check(consumer.beginningOffsets(List.of(partition)).get(partition) == 4, "begins at 4");
            check(consumer.endOffsets(List.of(partition)).get(partition) == 10, "ends at 10");
        }
    }

    private static void expectError(KafkaFuture<?> future, String name) throws Exception {
        try {
            future.get();
        } catch (java.util.concurrent.ExecutionException e) {
            check(e.getCause().getClass().getSimpleName().equals(name), "not " + name + " but " + e.getCause());
            return;
        }
        throw new AssertionError("no " + name);
    }

    private interface Condition {
        boolean holds() throws Exception;
    }

    private static void await(Condition condition, String what) throws Exception {
        long deadline = System.currentTimeMillis() + 15_000;
        while (!condition.holds()) {
            check(System.currentTimeMillis() < deadline, "still not: " + what);
            Thread.sleep(20);
        }
    }
}
