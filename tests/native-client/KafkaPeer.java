import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.io.Reader;
import java.io.UncheckedIOException;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.Collection;
import java.util.Comparator;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.stream.Stream;
import org.apache.kafka.clients.consumer.ConsumerRebalanceListener;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.errors.WakeupException;
import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;

/**
 * Apache Kafka beside the tests of the native client, in one JVM: its broker, members of groups by its consumer, and
 * its producer.
 *
 * <p>Each line of standard input is a command whose words are separated by tabs; what happens is reported by such lines on
 * standard output. The process ends with its input, however the test ends, and removes the folder that it is given.
 *
 * <pre>
 * broker PROPERTIES                                   starts a broker, with the controller that it needs
 * member NAME BOOTSTRAP GROUP PROTOCOL TOPIC          joins; "assigned NAME COUNT", "read NAME VALUE KEY HEADER=VALUE..."
 * close NAME                                          commits and leaves; "closed NAME"
 * write NAME BOOTSTRAP TOPIC CODEC KEY...             writes a record of each key, where the key has it; "written NAME"
 * </pre>
 *
 * <p>It compiles with the jars of every release from 3.9 on.
 */
public final class KafkaPeer {
    private static final Duration POLL = Duration.ofMillis(50);
    private static final String CLUSTER_ID = "bWFpbnN0ZW0tY2xpZW50cw";

    private KafkaPeer() {}

    public static void main(String[] args) throws Exception {
        BufferedReader commands = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        Map<String, Member> members = new HashMap<>();
        for (String line = commands.readLine(); line != null; line = commands.readLine()) {
            String[] words = line.split("\t");
            switch (words[0]) {
                case "broker" -> startBroker(words[1]);
                case "member" -> {
                    Member member = new Member(words);
                    members.put(words[1], member);
                    member.start();
                }
                case "close" -> members.remove(words[1]).consumer.wakeup();
                case "write" -> write(words);
                default -> throw new IllegalArgumentException(line);
            }
        }
        remove(Path.of(args[0]));
        Runtime.getRuntime().halt(0);
    }

    private static void remove(Path folder) {
        try (Stream<Path> paths = Files.walk(folder)) {
            paths.sorted(Comparator.reverseOrder()).forEach(path -> path.toFile().delete());
        } catch (IOException | UncheckedIOException e) {
            // The broker still writes; the system cleans its folder for temporary files.
        }
    }

    private static void startBroker(String file) throws Exception {
        Properties properties = new Properties();
        try (Reader reader = Files.newBufferedReader(Path.of(file))) {
            properties.load(reader);
        }
        // A broker that was killed continues with what it has left.
        if (!Files.exists(Path.of(properties.getProperty("log.dirs"), "meta.properties"))) {
            format(file);
        }
        run("broker", Class.forName("kafka.Kafka"), file);
    }

    private static void format(String file) throws ReflectiveOperationException {
        String[] arguments = {"format", "--standalone", "--cluster-id", CLUSTER_ID, "--config", file};
        Object exit = Class.forName("kafka.tools.StorageTool")
            .getMethod("execute", String[].class, PrintStream.class)
            .invoke(null, arguments, System.err);
        if (!exit.equals(0)) {
            throw new IllegalStateException("the directories of " + file + " cannot be formatted");
        }
    }

    /** Runs a main class beside the rest. */
    private static void run(String name, Class<?> main, String... arguments) {
        Thread thread = new Thread(() -> {
            try {
                main.getMethod("main", String[].class).invoke(null, (Object) arguments);
            } catch (ReflectiveOperationException e) {
                throw new IllegalStateException(name + " does not run", e);
            }
        }, name);
        thread.setDaemon(true);
        thread.start();
    }

    private static void write(String[] words) {
        Properties properties = new Properties();
        properties.put("bootstrap.servers", words[2]);
        properties.put("compression.type", words[4]);
        try (KafkaProducer<String, String> producer =
                new KafkaProducer<>(properties, new StringSerializer(), new StringSerializer())) {
            for (String key : List.of(words).subList(5, words.length)) {
                ProducerRecord<String, String> record = new ProducerRecord<>(words[3], key, "value of " + key);
                record.headers().add("codec", words[4].getBytes(StandardCharsets.UTF_8));
                producer.send(record);
            }
        }
        tell("written\t" + words[1]);
    }

    private static synchronized void tell(String line) {
        System.out.println(line);
        System.out.flush();
    }

    /** A member that commits what it has read before it gives a partition away, and when it is closed. */
    private static final class Member extends Thread implements ConsumerRebalanceListener {
        private final String name;
        private final String topic;
        private final KafkaConsumer<String, String> consumer;

        Member(String[] words) {
            super(words[1]);
            name = words[1];
            topic = words[5];
            Properties properties = new Properties();
            properties.put("bootstrap.servers", words[2]);
            properties.put("group.id", words[3]);
            properties.put("group.protocol", words[4]);
            properties.put("auto.offset.reset", "earliest");
            properties.put("enable.auto.commit", "false");
            if (words[4].equals("classic")) {
                properties.put("heartbeat.interval.ms", "100");
                properties.put("partition.assignment.strategy",
                    "org.apache.kafka.clients.consumer.CooperativeStickyAssignor");
            }
            consumer = new KafkaConsumer<>(properties, new StringDeserializer(), new StringDeserializer());
            setDaemon(true);
        }

        @Override
        public void run() {
            try (consumer) {
                consumer.subscribe(List.of(topic), this);
                while (true) {
                    for (ConsumerRecord<String, String> record : consumer.poll(POLL)) {
                        read(record);
                    }
                }
            } catch (WakeupException end) {
                // It is to be closed, which gives all partitions up.
            }
            tell("closed\t" + name);
        }

        private void read(ConsumerRecord<String, String> record) {
            StringBuilder line = new StringBuilder("read\t" + name + "\t" + record.value() + "\t" + record.key());
            for (Header header : record.headers()) {
                line.append("\t").append(header.key()).append("=");
                line.append(new String(header.value(), StandardCharsets.UTF_8));
            }
            tell(line.toString());
        }

        @Override
        public void onPartitionsRevoked(Collection<TopicPartition> partitions) {
            consumer.commitSync();
        }

        @Override
        public void onPartitionsAssigned(Collection<TopicPartition> partitions) {
            tell("assigned\t" + name + "\t" + consumer.assignment().size());
        }
    }
}
