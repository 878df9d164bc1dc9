//! `kill -9` under several transactional producers with open transactions on the same partitions. A reader of
//! committed records sees each transaction whole or not at all, in order, and gets to the end. Every second log is
//! compacted meanwhile, as are the coordinators': the last committed value of each key stays.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use mainstem_tests::broker::{Broker, Setup};
use mainstem_tests::client::Client;
use mainstem_tests::kafka::Failure;
use mainstem_tests::kafka_node::assert_kafka_finds_no_fault;
use mainstem_wire::sample::Rng;

use crate::transactions::eventually;
use crate::transactions::expiry::known_ids;
use crate::transactions::producer::{Keyed, Producer};
use crate::transactions::reader::{ends, read_committed};

const TOPIC: &str = "shared";
const PARTITIONS: i32 = 3;
const PRODUCERS: usize = 4;
/// The default of `TEST_KILLS`.
const KILLS: u64 = 30;
/// Rounds with the same logs.
const ROUNDS_OF_A_LOG: u64 = 15;

/// Keys of one producer in a partition.
const KEYS: u64 = 4;

/// Settings with which logs of coordinators, and of [`COMPACTED`] topics, are closed and compacted as often as possible.
const EAGER: [(&str, &str); 6] = [
    ("log.roll.ms", "100"),
    ("log.cleaner.backoff.ms", "20"),
    ("log.cleaner.min.cleanable.ratio", "0.01"),
    ("log.cleaner.delete.retention.ms", "100"),
    ("log.retention.check.interval.ms", "50"),
    ("log.segment.delete.delay.ms", "50"),
];
const COMPACTED: [(&str, &str); 4] = [
    ("cleanup.policy", "compact"),
    ("min.cleanable.dirty.ratio", "0.01"),
    ("segment.ms", "50"),
    ("delete.retention.ms", "100"),
];

/// Partition and key of each record of a transaction.
type Records = Vec<(i32, u64)>;

/// The known outcomes of one producer's transactions, by their numbers.
#[derive(Default)]
struct Known {
    name: usize,
    next: i64,
    is_compacted: bool,
    /// Records of each committed transaction.
    committed: BTreeMap<i64, Records>,
    /// Records of each transaction whose commit got no answer.
    unknown: BTreeMap<i64, Records>,
}

impl Known {
    fn id(&self) -> String {
        format!("producer-{}", self.name)
    }

    fn group(&self) -> String {
        format!("group-{}", self.name)
    }

    /// Makes transactions until the broker is gone.
    fn run(&mut self, address: &str, rng: &mut Rng, ended: &AtomicU64) {
        let Ok(client) = Client::connect(address) else { return };
        let outcome = Producer::init(client, &self.id(), 60_000).and_then(|mut producer| {
            loop {
                self.transaction(&mut producer, rng)?;
                ended.fetch_add(1, Ordering::Relaxed);
            }
        });
        match outcome {
            Ok(()) | Err(Failure::Connection(_)) => {}
            Err(Failure::Refused(error)) => panic!("{} was refused: {}", self.id(), error.name()),
        }
    }

    fn transaction(&mut self, producer: &mut Producer, rng: &mut Rng) -> Result<(), Failure> {
        let number = self.next;
        self.next += 1;
        let count = 1 + rng.below(6);
        let record = |_| (rng.below(PARTITIONS as u64) as i32, rng.below(KEYS));
        let records: Records = (0..count).map(record).collect();
        for (index, (partition, key)) in records.iter().enumerate() {
            let (key, value) = (format!("{} {key}", self.name), format!("{} {number} {index}", self.name));
            let record = Keyed { key: Some(key.as_bytes()), value: value.as_bytes() };
            producer.send_records(TOPIC, *partition, &[record])?;
        }
        producer.send_offset(&self.group(), TOPIC, number)?;
        if rng.once_in(4) {
            return producer.end(false);
        }
        self.unknown.insert(number, records);
        producer.end(true)?;
        self.committed.extend(self.unknown.remove_entry(&number));
        Ok(())
    }

    /// Compares the outcomes with the records. A transaction without an answer is whole or missing, and stays so.
    fn check(&mut self, records: &BTreeMap<(usize, i64), BTreeSet<usize>>, offset: i64) {
        for (number, of_transaction) in std::mem::take(&mut self.unknown) {
            if records.contains_key(&(self.name, number)) {
                self.committed.insert(number, of_transaction);
            }
        }
        let found = records.range((self.name, 0)..(self.name + 1, 0));
        let found: BTreeSet<(i64, usize)> =
            found.flat_map(|((_, number), indexes)| indexes.iter().map(|index| (*number, *index))).collect();
        let all = self.committed.iter().flat_map(|(number, records)| {
            let of_transaction = records.iter().enumerate();
            of_transaction.map(|(index, place)| (*place, (*number, index)))
        });
        let expected: BTreeSet<_> = all.clone().map(|(_, record)| record).collect();
        if self.is_compacted {
            let last: BTreeMap<_, _> = all.collect();
            assert!(found.is_subset(&expected), "{}: {:?}", self.id(), found.difference(&expected));
            let missing = last.into_iter().find(|(_, record)| !found.contains(record));
            assert_eq!(missing, None, "the last value of a key of {}", self.id());
        } else {
            assert_eq!(found, expected, "{}", self.id());
        }
        let last = self.committed.keys().last().copied().unwrap_or(-1);
        assert_eq!(offset, last, "the offset is committed with the last transaction of {}", self.id());
    }
}

/// Every committed record once, by producer and transaction. Those of a producer are in order in each partition.
fn committed(client: &mut Client) -> BTreeMap<(usize, i64), BTreeSet<usize>> {
    let mut records: BTreeMap<_, BTreeSet<usize>> = BTreeMap::new();
    for partition in 0..PARTITIONS {
        let mut last: BTreeMap<usize, (i64, usize)> = BTreeMap::new();
        for value in read_committed(client, TOPIC, partition) {
            let numbers: Vec<i64> =
                value.split(' ').map(|number| number.parse().expect("a number")).collect();
            let (name, number, index) = (numbers[0] as usize, numbers[1], numbers[2] as usize);
            let before = last.insert(name, (number, index));
            assert!(before < Some((number, index)), "{value} comes behind {before:?} in {partition}");
            assert!(records.entry((name, number)).or_default().insert(index), "{value} is there twice");
        }
    }
    records
}

fn check(broker: &Broker, known: &mut [Known]) {
    // Open transactions of dead producers are aborted by their successors.
    for one in known.iter() {
        Producer::init(broker.connect(), &one.id(), 60_000).expect("a successor");
    }
    let mut client = broker.connect();
    for partition in 0..PARTITIONS {
        eventually("the last stable offset is the end", || {
            let (stable, end) = ends(&mut client, TOPIC, partition);
            (stable == end).then_some(())
        });
    }
    let records = committed(&mut client);
    for one in known {
        // The marker in the offsets topic may be on its way when those of the topic are written.
        let last = |one: &Known| {
            let numbers = one.unknown.keys().filter(|number| records.contains_key(&(one.name, **number)));
            numbers.chain(one.committed.keys()).max().copied().unwrap_or(-1)
        };
        let expected = last(one);
        let offset = eventually("the offset of the last transaction", || {
            let offset = client.committed(&one.group(), TOPIC, 0).ok()?;
            (offset == expected).then_some(offset)
        });
        one.check(&records, offset);
    }
}

fn number_from(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|number| number.parse().expect("a number"))
}

#[test]
fn transactions_are_whole_or_not_at_all_whenever_the_broker_is_killed() {
    let seed = mainstem_testkit::seed();
    let kills = number_from("TEST_KILLS").unwrap_or(KILLS);
    println!("TEST_SEED={seed} TEST_KILLS={kills}");
    let (mut rng, mut left, mut committed) = (Rng(seed), kills, 0);
    for number in 0.. {
        let rounds = left.min(ROUNDS_OF_A_LOG);
        if rounds == 0 {
            break;
        }
        committed += rounds_of_a_log(&mut rng, rounds, number % 2 == 1);
        left -= rounds;
    }
    println!("{committed} transactions were committed");
    assert!(committed > kills, "{committed} transactions in {kills} rounds");
}

fn rounds_of_a_log(rng: &mut Rng, rounds: u64, is_compacted: bool) -> u64 {
    let setup = Setup::new("transactions")
        .set("transaction.state.log.num.partitions", 3)
        .set("transaction.abort.timed.out.transaction.cleanup.interval.ms", 100)
        .set("transaction.remove.expired.transaction.cleanup.interval.ms", 50);
    let eager = if is_compacted { &EAGER[..] } else { &[] };
    let mut broker = eager.iter().fold(setup, |setup, (key, value)| setup.set(key, value)).start();
    let mut client = broker.connect();
    let configs = if is_compacted { &COMPACTED[..] } else { &[("segment.bytes", "1048576")] };
    client.create_topic(TOPIC, PARTITIONS, configs).expect("a topic");
    client.find_coordinator("any").expect("a coordinator of groups");
    let new = |name| Known { name, is_compacted, ..Known::default() };
    let mut known: Vec<Known> = (0..PRODUCERS).map(new).collect();
    for _ in 0..rounds {
        let (address, ended) = (broker.address(), AtomicU64::new(0));
        let (until, instant) = (rng.below(60), Duration::from_micros(rng.below(3_000)));
        std::thread::scope(|scope| {
            for one in &mut known {
                let (mut own, address, ended) = (Rng(rng.next_u64()), &address, &ended);
                scope.spawn(move || one.run(address, &mut own, ended));
            }
            let deadline = Instant::now() + Duration::from_secs(120);
            while ended.load(Ordering::Relaxed) < until {
                assert!(Instant::now() < deadline, "only {ended:?} of {until} transactions end");
                std::thread::sleep(Duration::from_micros(200));
            }
            std::thread::sleep(instant);
            broker.kill();
        });
        if rng.once_in(5) {
            broker.start_and_kill(Duration::from_micros(rng.below(30_000)));
        }
        broker.start_again();
        check(&broker, &mut known);
    }
    if is_compacted {
        check_compacted(&mut broker);
    }
    known.iter().map(|one| one.committed.len() as u64).sum()
}

/// The logs of coordinators were compacted too, unused transactional ids expire, also over a restart, and Kafka can
/// read the files.
fn check_compacted(broker: &mut Broker) {
    let dir = broker.data_dir();
    for topic in [TOPIC, "__transaction_state", "__consumer_offsets"] {
        eventually("its logs are compacted", || {
            let noted = fs::read_to_string(dir.join("cleaner-offset-checkpoint")).ok()?;
            noted
                .lines()
                .any(|line| line.starts_with(&format!("{topic} ")) && !line.ends_with(" 0"))
                .then_some(())
        });
    }
    broker.stop();
    broker.set("transactional.id.expiration.ms", 200);
    broker.start_again();
    let mut client = broker.connect();
    eventually("all transactional ids expire", || known_ids(&mut client).is_empty().then_some(()));
    broker.stop();
    assert_kafka_finds_no_fault(&[dir]);
    broker.start_again();
    assert_eq!(known_ids(&mut broker.connect()), [""; 0], "what has expired does not come back");
}
