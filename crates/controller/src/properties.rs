//! The image is a function of the committed records alone, whatever was requested, delayed and rolled back.

use std::collections::BTreeSet;

use mainstem_wire::Uuid;
use proptest::prelude::*;

use super::session::*;
use super::*;
use mainstem_config::alter::Operation::{Append, Delete, Set};

/// Names that exist, collide, are internal or invalid.
const NAMES: [&str; 8] =
    ["a", "b.c", "b_c", "__consumer_offsets", "__cluster_metadata", "d", "bad name", "e-1"];

#[derive(Debug, Clone)]
enum Step {
    Create {
        names: Vec<usize>,
        partitions: i32,
        factor: i16,
        config: usize,
        validate_only: bool,
    },
    CreateMissing(usize),
    Delete {
        name: usize,
        by_id: bool,
    },
    Grow {
        name: usize,
        count: i32,
    },
    AlterTopic {
        name: usize,
        change: usize,
    },
    AlterBroker {
        node: bool,
        change: usize,
    },
    TakeProducerIds,
    Start {
        unclean: bool,
    },
    /// Commits this share of the uncommitted records, in 256ths.
    Commit(u8),
    Rollback,
    /// The memory is lost; the log is replayed.
    Restart,
}

fn step() -> impl Strategy<Value = Step> {
    let name = 0..NAMES.len();
    prop_oneof![
        4 => (proptest::collection::vec(name.clone(), 1..4), -2..6i32, -1..3i16, 0..4usize, any::<bool>()).prop_map(
            |(names, partitions, factor, config, validate_only)| Step::Create {
                names, partitions, factor, config, validate_only: validate_only && partitions == 3,
            }
        ),
        1 => name.clone().prop_map(Step::CreateMissing),
        2 => (name.clone(), any::<bool>()).prop_map(|(name, by_id)| Step::Delete { name, by_id }),
        2 => (name.clone(), 0..9i32).prop_map(|(name, count)| Step::Grow { name, count }),
        2 => (name, 0..5usize).prop_map(|(name, change)| Step::AlterTopic { name, change }),
        2 => (any::<bool>(), 0..4usize).prop_map(|(node, change)| Step::AlterBroker { node, change }),
        1 => Just(Step::TakeProducerIds),
        1 => any::<bool>().prop_map(|unclean| Step::Start { unclean }),
        4 => any::<u8>().prop_map(Step::Commit),
        1 => Just(Step::Rollback),
        1 => Just(Step::Restart),
    ]
}

/// The state that a driver knows from the changes alone.
#[derive(Debug, Default, PartialEq, Eq)]
struct Driver {
    partitions: BTreeSet<(Uuid, i32)>,
    producer_ids_end: i64,
}

impl Driver {
    fn follow(&mut self, changes: Vec<MetadataChange>) {
        for change in changes {
            match change {
                MetadataChange::PartitionCreated { topic_id, partition } => {
                    assert!(self.partitions.insert((topic_id, partition)));
                }
                MetadataChange::TopicDeleted { topic } => {
                    for partition in (0i32..).take(topic.partitions.len()) {
                        assert!(self.partitions.remove(&(topic.id, partition)));
                    }
                }
                MetadataChange::ProducerIdsTaken { next } => {
                    assert!(next > self.producer_ids_end, "producer ids are handed out twice");
                    self.producer_ids_end = next;
                }
                _ => {}
            }
        }
    }
}

struct Run {
    session: Session,
    driver: Driver,
}

impl Run {
    fn step(&mut self, step: &Step) {
        let session = &mut self.session;
        match step {
            Step::Create { names, partitions, factor, config, validate_only } => {
                let configs: &[(&str, Option<&str>)] = match config {
                    0 => &[],
                    1 => &[("retention.ms", Some("5")), ("cleanup.policy", Some("compact"))],
                    2 => &[("write.caching", Some("true"))],
                    _ => &[("retention.ms", Some("x"))],
                };
                let topics = names.iter().map(|name| {
                    let mut topic = with_configs(NAMES[*name], configs);
                    (topic.num_partitions, topic.replication_factor) = (*partitions, *factor);
                    topic
                });
                let topics = topics.collect();
                session.create_all(topics, *validate_only);
            }
            Step::CreateMissing(name) => drop(session.create_missing(&[NAMES[*name]])),
            Step::Delete { name, by_id } => {
                let id = session.machine.ahead().topic(NAMES[*name]).map(|topic| topic.id);
                match id.filter(|_| *by_id) {
                    Some(id) => session.delete(&[(None, id)]),
                    None => session.delete(&[(Some(NAMES[*name]), Uuid::ZERO)]),
                };
            }
            Step::Grow { name, count } => drop(session.grow(NAMES[*name], *count, None)),
            Step::AlterTopic { name, change } => {
                let changes = [
                    ("retention.ms", Set, Some("7")),
                    ("retention.ms", Delete, None),
                    ("cleanup.policy", Append, Some("compact")),
                    ("min.compaction.lag.ms", Set, Some("9")),
                    ("foo", Set, Some("1")),
                ];
                session.alter(2, NAMES[*name], &changes[*change..=*change], false);
            }
            Step::AlterBroker { node, change } => {
                let changes = [
                    ("max.connections", Set, Some("17")),
                    ("max.connections", Delete, None),
                    ("log.cleaner.max.compaction.lag.ms", Set, Some("3")),
                    ("log.retention.ms", Set, Some("0")),
                ];
                session.alter(4, if *node { "1" } else { "" }, &changes[*change..=*change], false);
            }
            Step::TakeProducerIds => {
                let decision = session.machine.allocate_producer_ids(1);
                session.append(decision).expect("the node is registered");
            }
            Step::Start { unclean } => {
                let unclean: &[Uuid] = if *unclean { &[DIR] } else { &[] };
                session.begin_start(&node_start(9, &[DIR], unclean));
            }
            Step::Commit(share) => {
                let committed = session.machine.image().next_offset();
                let upto = committed + (session.end() - committed) * i64::from(*share) / 255;
                self.driver.follow(session.machine.committed(upto));
            }
            Step::Rollback => {
                let end = session.machine.rollback();
                session.log.truncate(usize::try_from(end).expect("a short log"));
            }
            Step::Restart => {
                let committed = session.machine.image().next_offset();
                session.log.truncate(usize::try_from(committed).expect("a short log"));
                session.machine = rebuilt(&session.log);
            }
        }
    }

    fn check(&self) {
        let machine = &self.session.machine;
        machine.check();
        let committed = usize::try_from(machine.image().next_offset()).expect("a short log");
        let again = rebuilt(&self.session.log[..committed]);
        assert_eq!(again.image(), machine.image(), "from the committed records");
        let ahead = rebuilt(&self.session.log);
        assert_eq!(ahead.image(), machine.ahead(), "from all records");
        let mut loaded = MetadataStateMachine::default();
        for value in machine.image().snapshot() {
            loaded.load(machine.image().next_offset(), &value).expect("what the image adds up from");
        }
        assert_eq!(loaded.image(), machine.image(), "from a snapshot");
        let partitions = machine
            .image()
            .topics()
            .flat_map(|topic| (0i32..).take(topic.partitions.len()).map(|partition| (topic.id, partition)));
        assert_eq!(partitions.collect::<BTreeSet<_>>(), self.driver.partitions, "from the changes");
        assert_eq!(machine.image().next_producer_id(), self.driver.producer_ids_end);
        for topic in machine.image().topics() {
            assert_eq!(machine.image().colliding(&topic.name), None);
        }
    }
}

fn rebuilt(log: &[Vec<u8>]) -> MetadataStateMachine {
    let mut machine = MetadataStateMachine::default();
    for (offset, record) in (0..).zip(log) {
        machine.replay(offset, record).expect("the state machine's own records");
    }
    machine
}

proptest! {
    #![proptest_config(ProptestConfig { cases: mainstem_testkit::cases(128), ..ProptestConfig::default() })]
    #[test]
    fn the_image_follows_from_the_records_alone(steps in proptest::collection::vec(step(), 1..40)) {
        let mut run = Run { session: Session::new(""), driver: Driver::default() };
        for step in &steps {
            run.step(step);
            run.check();
        }
        run.step(&Step::Commit(255));
        run.check();
    }

    /// Damages records of a real session, from which the fuzz body is most likely to learn.
    #[test]
    fn damaged_records_are_refused(
        steps in proptest::collection::vec(step(), 1..12),
        damage in damage(),
    ) {
        let mut run = Run { session: Session::new(""), driver: Driver::default() };
        for step in &steps {
            run.step(step);
        }
        replay_damaged(&run.session.log, damage);
    }

    /// Damages the bytes of its snapshot.
    #[test]
    fn damaged_snapshots_are_refused(
        steps in proptest::collection::vec(step(), 1..12),
        damage in damage(),
    ) {
        let mut run = Run { session: Session::new(""), driver: Driver::default() };
        for step in &steps {
            run.step(step);
        }
        let values = run.session.machine.image().snapshot();
        let mut data = snapshot_format::encode(&snapshot_format::QuorumRecords::default(), values, 5, 7);
        fuzz::snapshot_decode(&data);
        for (at, byte) in damage {
            let at = at.index(data.len());
            data[at] = byte;
        }
        fuzz::snapshot_decode(&data);
    }

    #[test]
    fn random_bytes_are_refused(data in proptest::collection::vec(any::<u8>(), 0..200)) {
        fuzz::metadata_replay(&data);
        fuzz::snapshot_decode(&data);
    }
}

/// Bytes of an input that get another value.
pub(super) fn damage() -> impl Strategy<Value = Vec<(prop::sample::Index, u8)>> {
    proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..4)
}

/// Replays a log as it is, and damaged.
pub(super) fn replay_damaged(log: &[Vec<u8>], damage: Vec<(prop::sample::Index, u8)>) {
    let mut data = fuzz_input(log);
    fuzz::metadata_replay(&data);
    for (at, byte) in damage {
        let at = at.index(data.len());
        data[at] = byte;
    }
    fuzz::metadata_replay(&data);
}

fn fuzz_input(log: &[Vec<u8>]) -> Vec<u8> {
    let mut data = Vec::new();
    for record in log {
        let prefix = u16::try_from(record.len()).expect("records of the tests are short") << 1;
        data.extend(prefix.to_le_bytes());
        data.extend(record);
    }
    data
}

fn replay_corpus(name: &str, body: impl Fn(&[u8])) {
    let corpus = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus").join(name);
    let files: Vec<_> = std::fs::read_dir(corpus).expect("the corpus is checked in").collect();
    assert!(!files.is_empty());
    for file in files {
        let path = file.expect("a readable directory").path();
        body(&std::fs::read(path).expect("a readable file"));
    }
}

/// Includes every record that Kafka 4.3.0 wrote for a session of its own tools, and the snapshot of its `kafka-storage format`.
#[test]
fn the_corpus_is_replayed() {
    replay_corpus("metadata_replay", fuzz::metadata_replay);
    replay_corpus("snapshot_decode", fuzz::snapshot_decode);
}

/// Kafka's own records make the topics that its tools showed. The first of them are a transaction (KIP-868).
#[test]
fn kafkas_own_records_are_understood() {
    let data = include_bytes!("../corpus/metadata_replay/kafka-4.3.0");
    let mut machine = MetadataStateMachine::default();
    let (mut rest, mut offset) = (data.as_slice(), 0);
    while let [low, high, tail @ ..] = rest {
        let (record, tail) = tail.split_at(usize::from(u16::from_le_bytes([*low, *high]) >> 1));
        rest = tail;
        machine.replay(offset, record).expect("Kafka wrote it");
        offset += 1;
    }
    let image = machine.image();
    let topics: Vec<_> = image.topics().map(|topic| (topic.name.as_str(), topic.partitions.len())).collect();
    assert_eq!(topics, [("b.c", 1), ("dd", 1), ("m1", 2), ("pm1", 1)]);
    assert_eq!(image.feature("metadata.version"), Some(features::METADATA_VERSION.max));
    assert_eq!(image.feature("eligible.leader.replicas.version"), Some(1));
    assert_eq!(image.unsupported_feature(&view("")), None);
    assert!(
        image.served_features(&view("")).all(|(name, _)| name != "share.version"),
        "clients do not see it"
    );
    let broker = image.broker(1).expect("it registered");
    assert!(broker.fenced, "the session ended with a clean stop");
    assert_eq!(broker.endpoints, [("PLAINTEXT".to_string(), "127.0.0.1".to_string(), 29792, 0)]);
    let group = image.configs(&ConfigResource::new(ResourceKind::Group, "g"));
    assert_eq!(group.get("consumer.session.timeout.ms").map(String::as_str), Some("46000"));
}
