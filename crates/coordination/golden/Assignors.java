import java.util.ArrayList;
import java.util.Collections;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Random;
import java.util.Set;
import java.util.TreeMap;
import java.util.TreeSet;
import java.util.stream.Collectors;
import org.apache.kafka.common.Uuid;
import org.apache.kafka.coordinator.group.api.assignor.ConsumerGroupPartitionAssignor;
import org.apache.kafka.coordinator.group.api.assignor.GroupAssignment;
import org.apache.kafka.coordinator.group.api.assignor.MemberAssignment;
import org.apache.kafka.coordinator.group.api.assignor.SubscribedTopicDescriber;
import org.apache.kafka.coordinator.group.api.assignor.SubscriptionType;
import org.apache.kafka.coordinator.group.assignor.RangeAssignor;
import org.apache.kafka.coordinator.group.assignor.UniformAssignor;
import org.apache.kafka.coordinator.group.modern.Assignment;
import org.apache.kafka.coordinator.group.modern.GroupSpecImpl;
import org.apache.kafka.coordinator.group.modern.MemberSubscriptionAndAssignmentImpl;

/**
 * Writes what Kafka's own assignors make of groups that change from line to line: assignors.txt is its output with
 * Kafka 4.3.0's jars on the class path. Members and topics are handed over in the order of their ids.
 *
 * A line: assignor, topics (ID:PARTITIONS), members (ID/INSTANCE/TOPICS/PARTITIONS THAT IT HAS), what each gets.
 */
public class Assignors {
    record Member(String id, String instance, TreeSet<Integer> topics, TreeMap<Integer, TreeSet<Integer>> has) { }

    private static final Random RANDOM = new Random(848);

    public static void main(String[] arguments) {
        for (int round = 0; round < 60; round++) {
            for (ConsumerGroupPartitionAssignor assignor : List.of(new UniformAssignor(), new RangeAssignor())) {
                play(assignor, round % 2 == 0);
            }
        }
    }

    /** A group of its own, and a few changes to it. */
    private static void play(ConsumerGroupPartitionAssignor assignor, boolean same) {
        TreeMap<Integer, Integer> topics = new TreeMap<>();
        for (int topic = 1; topic <= 1 + RANDOM.nextInt(4); topic++) topics.put(topic, RANDOM.nextInt(9));
        TreeMap<String, Member> members = new TreeMap<>();
        TreeSet<Integer> shared = some(topics.keySet());
        for (int step = 0; step < 5; step++) {
            int change = RANDOM.nextInt(4);
            if (step == 0 || change == 0) {
                for (int more = 1 + RANDOM.nextInt(3); more > 0; more--) join(members, same ? shared : some(topics.keySet()));
            } else if (change == 1 && members.size() > 1) {
                members.remove(new ArrayList<>(members.keySet()).get(RANDOM.nextInt(members.size())));
            } else if (change == 2) {
                topics.merge(1 + RANDOM.nextInt(topics.size()), RANDOM.nextInt(4), Integer::sum);
            } else if (!same) {
                Member one = new ArrayList<>(members.values()).get(RANDOM.nextInt(members.size()));
                one.topics().clear();
                one.topics().addAll(some(topics.keySet()));
            }
            assign(assignor, topics, members);
        }
    }

    private static void join(TreeMap<String, Member> members, Set<Integer> topics) {
        String id = "m" + RANDOM.nextInt(100);
        String instance = RANDOM.nextInt(4) == 0 ? "i" + id : "";
        members.putIfAbsent(id, new Member(id, instance, new TreeSet<>(topics), new TreeMap<>()));
    }

    private static TreeSet<Integer> some(Set<Integer> topics) {
        TreeSet<Integer> some = new TreeSet<>();
        topics.forEach(topic -> { if (RANDOM.nextInt(3) > 0) some.add(topic); });
        if (some.isEmpty()) some.add(topics.iterator().next());
        return some;
    }

    private static void assign(
        ConsumerGroupPartitionAssignor assignor, TreeMap<Integer, Integer> topics, TreeMap<String, Member> members
    ) {
        Map<String, MemberSubscriptionAndAssignmentImpl> specs = new TreeMap<>();
        Map<Uuid, Map<Integer, String>> owners = new HashMap<>();
        members.values().forEach(member -> {
            TreeMap<Uuid, Set<Integer>> has = new TreeMap<>();
            member.has().forEach((topic, partitions) -> {
                has.put(uuid(topic), Collections.unmodifiableSet(partitions));
                partitions.forEach(at -> owners.computeIfAbsent(uuid(topic), key -> new HashMap<>()).put(at, member.id()));
            });
            Set<Uuid> subscribed = member.topics().stream().map(Assignors::uuid).collect(Collectors.toCollection(TreeSet::new));
            Optional<String> instance = Optional.of(member.instance()).filter(id -> !id.isEmpty());
            specs.put(member.id(), new MemberSubscriptionAndAssignmentImpl(
                Optional.empty(), instance, subscribed, new Assignment(Collections.unmodifiableMap(has))));
        });
        boolean same = members.values().stream().map(Member::topics).distinct().count() == 1;
        GroupSpecImpl spec = new GroupSpecImpl(
            Collections.unmodifiableMap(specs), same ? SubscriptionType.HOMOGENEOUS : SubscriptionType.HETEROGENEOUS, owners);
        GroupAssignment result = assignor.assign(spec, new Describer(topics));
        StringBuilder line = new StringBuilder(assignor.name()).append('\t');
        line.append(topics.entrySet().stream().map(topic -> topic.getKey() + ":" + topic.getValue()).collect(Collectors.joining(" ")));
        line.append('\t').append(members.values().stream().map(Assignors::show).collect(Collectors.joining(" ")));
        for (Member member : members.values()) {
            MemberAssignment gets = result.members().get(member.id());
            member.has().clear();
            if (gets != null) gets.partitions().forEach((topic, partitions) -> {
                if (!partitions.isEmpty()) member.has().put((int) topic.getLeastSignificantBits(), new TreeSet<>(partitions));
            });
        }
        line.append('\t').append(members.values().stream().map(member -> partitions(member.has())).collect(Collectors.joining("|")));
        System.out.println(line);
    }

    private static String show(Member member) {
        String topics = member.topics().stream().map(String::valueOf).collect(Collectors.joining(","));
        return member.id() + "/" + member.instance() + "/" + topics + "/" + partitions(member.has());
    }

    private static String partitions(TreeMap<Integer, TreeSet<Integer>> partitions) {
        return partitions.entrySet().stream()
            .flatMap(topic -> topic.getValue().stream().map(at -> topic.getKey() + "." + at))
            .collect(Collectors.joining(","));
    }

    private static Uuid uuid(int topic) {
        return new Uuid(0, topic);
    }

    private record Describer(TreeMap<Integer, Integer> topics) implements SubscribedTopicDescriber {
        public int numPartitions(Uuid topic) {
            return topics.getOrDefault((int) topic.getLeastSignificantBits(), -1);
        }

        public Set<String> racksForPartition(Uuid topic, int partition) {
            return Set.of();
        }

        public Set<Integer> assignablePartitions(Uuid topic) {
            return Set.of();
        }
    }
}
