//! Producers interleave, their timeouts pass, members of a group come and go, the broker is killed and its power is
//! cut, in an order that the seed chooses. A reader of committed records sees each transaction whole or not at all,
//! in the order of the log, and always gets to the end. No partition has two members that read it. The broker's state
//! of both coordinators and of the metadata is consistent after every step.
//!
//! The whole broker runs in this process, on a simulated disk. One thread does everything, so that the seed decides
//! the requests and their order. It does not decide which work the broker is doing when it dies.
//!
//! `PROPTEST_CASES` is 32 times the number of runs, `TEST_SEED` is the seed of the first one.

use std::fs;
use std::time::{Duration, Instant};

use mainstem_log::sim::Random;
use mainstem_tests::kafka::Failure;
use mainstem_tests::kafka_node::assert_kafka_finds_no_fault;
use mainstem_tests::machine::{Death, SimulatedBroker};
use mainstem_wire::ErrorCode;

use crate::transactions::eventually;
use crate::transactions::members::Members;
use crate::transactions::model::{Fate, Model, Retention};
use crate::transactions::producer::{Keyed, Producer};
use crate::transactions::reader::{ends, read_on};

const TOPIC: &str = "shared";
const PARTITIONS: usize = 3;
const PRODUCERS: usize = 4;
const KEYS: u64 = 5;
const DEATHS_OF_A_RUN: u64 = 5;
const STEPS_OF_A_LIFE: u64 = 200;
/// The cases of `PROPTEST_CASES` for one run.
const CASES_OF_A_RUN: u64 = 32;
const CASES: u64 = 256;
/// A timeout longer than a run.
const NO_TIME_OUT_MS: u64 = 60_000;

/// Settings with which logs are compacted, and those of coordinators closed, as often as possible.
const SETTINGS: [(&str, &str); 15] = [
    ("transaction.state.log.num.partitions", "2"),
    ("log.roll.ms", "50"),
    ("transaction.abort.timed.out.transaction.cleanup.interval.ms", "15"),
    ("offsets.topic.num.partitions", "2"),
    ("group.initial.rebalance.delay.ms", "0"),
    ("group.consumer.max.session.timeout.ms", "600000"),
    ("group.consumer.session.timeout.ms", "600000"),
    ("group.consumer.assignment.interval.ms", "0"),
    ("log.cleaner.backoff.ms", "10"),
    ("log.cleaner.min.cleanable.ratio", "0.01"),
    ("log.cleaner.delete.retention.ms", "50"),
    ("log.retention.check.interval.ms", "30"),
    ("log.segment.delete.delay.ms", "30"),
    ("log.cleaner.dedupe.buffer.size", "2097152"),
    ("num.network.threads", "2"),
];

struct Actor {
    /// None until it is initialised, and again after it was fenced.
    producer: Option<Producer>,
    timeout: Duration,
    /// The open transaction, and the latest time at which it began.
    open: Option<(usize, Instant)>,
    /// The number of transactions so far.
    count: i64,
}

/// A request without an answer when the broker died.
enum Left {
    Records { actor: usize, partition: usize, records: Vec<(u64, String)> },
    Commit { actor: usize, transaction: usize },
}

struct World {
    random: Random,
    broker: SimulatedBroker,
    actors: Vec<Actor>,
    members: Members,
    model: Model,
    /// The values that a following reader of each partition has seen, and its next offset.
    readers: Vec<(Vec<String>, i64)>,
    /// Committed records that were gone when all were read for the last time.
    compacted_away: usize,
}

impl World {
    fn new(seed: u64) -> World {
        let mut random = Random::new(seed);
        let broker = SimulatedBroker::start(&SETTINGS);
        let mut client = broker.connect();
        let retention = if random.chance(50) { Retention::Everything } else { Retention::LastOfKey };
        let compacted = [("cleanup.policy", "compact"), ("segment.ms", "20"), ("delete.retention.ms", "50")];
        let configs = if retention == Retention::LastOfKey { &compacted[..] } else { &[] };
        client.create_topic(TOPIC, PARTITIONS as i32, configs).expect("a topic");
        client.find_coordinator("any").expect("a coordinator of groups");
        let actor = |_| Actor { producer: None, timeout: Duration::ZERO, open: None, count: 0 };
        World {
            random,
            broker,
            actors: (0..PRODUCERS).map(actor).collect(),
            members: Members::new(TOPIC),
            model: Model::new(retention, PARTITIONS),
            readers: vec![(Vec::new(), 0); PARTITIONS],
            compacted_away: 0,
        }
    }

    fn run(&mut self) {
        for _ in 0..DEATHS_OF_A_RUN {
            for _ in 0..self.random.below(STEPS_OF_A_LIFE) {
                self.step();
                self.broker.check();
            }
            if self.random.chance(30) {
                self.settle();
            }
            self.die_and_start_again();
        }
        self.settle();
    }

    fn step(&mut self) {
        if self.random.chance(10) {
            return self.members.step(&mut self.broker.connect(), &mut self.random);
        }
        let actor = self.random.below(PRODUCERS as u64) as usize;
        if self.actors[actor].producer.is_none() {
            return self.init(actor);
        }
        match self.random.below(100) {
            0..50 => self.send(actor),
            50..60 => self.send_offset(actor),
            60..80 => self.end(actor, true),
            80..88 => self.end(actor, false),
            88..90 => self.init(actor),
            90..93 => std::thread::sleep(Duration::from_millis(self.random.below(60))),
            _ => {
                let partition = self.random.below(PARTITIONS as u64) as usize;
                self.read(partition);
            }
        }
    }

    /// A successor fences the producer of its name and aborts its open transaction.
    fn init(&mut self, actor: usize) {
        let timeout_ms = if self.random.chance(30) { 30 + self.random.below(80) } else { NO_TIME_OUT_MS };
        let producer = Producer::init(self.broker.connect(), &id_of(actor), timeout_ms as i32);
        let actor = &mut self.actors[actor];
        (actor.producer, actor.timeout) =
            (Some(producer.expect("a successor")), Duration::from_millis(timeout_ms));
        if let Some((transaction, _)) = actor.open.take() {
            self.model.ended(transaction, Fate::Aborted);
        }
    }

    fn records(&mut self, actor: usize) -> Vec<(u64, String)> {
        let number = self.actors[actor].count;
        let count = 1 + self.random.below(3);
        let record = |_| {
            let (key, padding) = (self.random.below(KEYS), self.random.below(300) as usize);
            (key, format!("{actor} {number} {:x} {:.<padding$}", self.random.next_u64(), ""))
        };
        (0..count).map(record).collect()
    }

    fn open(&mut self, actor: usize) -> usize {
        let (group, actor) = (actor, &mut self.actors[actor]);
        if let Some((transaction, _)) = actor.open {
            return transaction;
        }
        let transaction = self.model.begin(group);
        actor.open = Some((transaction, Instant::now()));
        actor.count += 1;
        transaction
    }

    fn send(&mut self, actor: usize) {
        let transaction = self.open(actor);
        let (partition, records) = (self.random.below(PARTITIONS as u64) as usize, self.records(actor));
        let producer = self.actors[actor].producer.as_mut().expect("it is there");
        match with_keys(&records, |keyed| producer.send_records(TOPIC, partition as i32, keyed)) {
            Ok(()) => self.model.appended(transaction, partition, records),
            Err(failure) => self.refused(actor, &failure),
        }
    }

    fn send_offset(&mut self, actor: usize) {
        let transaction = self.open(actor);
        let (group, offset) = (group_of(actor), self.actors[actor].count);
        let producer = self.actors[actor].producer.as_mut().expect("it is there");
        match producer.send_offset(&group, TOPIC, offset) {
            Ok(()) => self.model.offset(transaction, offset),
            Err(failure) => self.refused(actor, &failure),
        }
    }

    fn end(&mut self, actor: usize, committed: bool) {
        let Some((transaction, _)) = self.actors[actor].open else { return };
        let producer = self.actors[actor].producer.as_mut().expect("it is there");
        match producer.end(committed) {
            Ok(()) => {
                self.actors[actor].open = None;
                self.model.ended(transaction, if committed { Fate::Committed } else { Fate::Aborted });
            }
            Err(failure) => self.refused(actor, &failure),
        }
    }

    /// Only a producer whose timeout has passed is refused; its transaction is aborted.
    fn refused(&mut self, actor: usize, failure: &Failure) {
        let own = &mut self.actors[actor];
        let (transaction, began) = own.open.take().expect("it has a transaction");
        let is_fenced = matches!(
            failure,
            Failure::Refused(
                ErrorCode::PRODUCER_FENCED
                    | ErrorCode::INVALID_PRODUCER_EPOCH
                    | ErrorCode::INVALID_TXN_STATE
                    | ErrorCode::TRANSACTION_ABORTABLE
            )
        );
        let (taken, timeout) = (began.elapsed(), own.timeout);
        assert!(
            is_fenced && taken >= timeout,
            "producer {actor} after {taken:?} of {timeout:?}: {failure:?}"
        );
        own.producer = None;
        self.model.ended(transaction, Fate::Aborted);
    }

    /// The reader continues at its next offset.
    fn read(&mut self, partition: usize) {
        let (seen, next) = &mut self.readers[partition];
        read_on(&mut self.broker.connect(), TOPIC, partition as i32, next, seen);
        self.model.check_seen(partition, seen);
    }

    /// Some producers have sent a request when the broker dies. Of those some repeat it, and others are replaced. A
    /// producer without a request continues as if nothing had happened.
    fn die_and_start_again(&mut self) {
        let mut left = Vec::new();
        let mut partitions: Vec<usize> = (0..PARTITIONS).collect();
        for actor in 0..PRODUCERS {
            if self.actors[actor].producer.is_some() && self.random.chance(60) {
                left.extend(self.leave(actor, &mut partitions));
            }
        }
        std::thread::sleep(Duration::from_micros(self.random.below(2_500)));
        let death = if self.random.chance(50) { Death::Kill } else { Death::PowerCut };
        let mut random = Random::new(self.random.next_u64());
        self.broker.die(death, &mut random);
        // Any number of times: the state after a recovery is the start of the next one.
        while self.random.chance(20) {
            self.broker.start_again();
            self.broker.die(Death::PowerCut, &mut random);
        }
        self.broker.start_again();
        self.broker.check();
        if death == Death::PowerCut {
            // A marker that was read may be lost, and be written again at another offset.
            for (partition, (seen, next)) in self.readers.iter_mut().enumerate() {
                let before = std::mem::take(seen);
                *next = 0;
                self.model.check_seen(partition, &before);
            }
        }
        for actor in &mut self.actors {
            if let Some(producer) = &mut actor.producer {
                producer.client = self.broker.connect();
            }
        }
        left.into_iter().for_each(|left| self.ask_again(left));
    }

    /// Sends a request without waiting. Each partition has at most one, so that their order is known.
    fn leave(&mut self, actor: usize, partitions: &mut Vec<usize>) -> Option<Left> {
        if self.random.chance(50) {
            let (transaction, _) = self.actors[actor].open?;
            let producer = self.actors[actor].producer.as_mut().expect("it is there");
            producer.leave_end(true).expect("it is sent");
            self.actors[actor].open = None;
            self.model.ended(transaction, Fate::Unknown);
            return Some(Left::Commit { actor, transaction });
        }
        let partition = partitions.pop()?;
        self.open(actor);
        let records = self.records(actor);
        let producer = self.actors[actor].producer.as_mut().expect("it is there");
        with_keys(&records, |keyed| producer.leave_records(TOPIC, partition as i32, keyed))
            .expect("it is sent");
        Some(Left::Records { actor, partition, records })
    }

    fn ask_again(&mut self, left: Left) {
        let is_replaced = self.random.chance(40);
        match left {
            Left::Records { actor, .. } | Left::Commit { actor, .. } if is_replaced => self.init(actor),
            Left::Records { actor, partition, records } => {
                let (transaction, _) = self.actors[actor].open.expect("it was open when it was sent");
                let producer = self.actors[actor].producer.as_mut().expect("it is there");
                match with_keys(&records, |keyed| producer.send_records(TOPIC, partition as i32, keyed)) {
                    Ok(()) => self.model.appended(transaction, partition, records),
                    Err(failure) => self.refused(actor, &failure),
                }
            }
            Left::Commit { actor, transaction } => {
                let own = &mut self.actors[actor];
                match own.producer.as_mut().expect("it is there").end(true) {
                    Ok(()) => self.model.ended(transaction, Fate::Committed),
                    // Its timeout passed before the first request, or before this one.
                    Err(Failure::Refused(_)) if own.timeout < Duration::from_millis(NO_TIME_OUT_MS) => {
                        own.producer = None;
                    }
                    Err(failure) => panic!("producer {actor} asks for the end again: {failure:?}"),
                }
            }
        }
    }

    /// Ends everything, or lets timeouts pass. Then the last stable offset is the end, and all committed records are
    /// there.
    fn settle(&mut self) {
        for actor in 0..PRODUCERS {
            let (waits, is_replaced, commits) =
                (self.random.chance(50), self.random.chance(30), self.random.chance(70));
            let has_time = self.actors[actor].timeout.as_millis() >= u128::from(NO_TIME_OUT_MS);
            match self.actors[actor].open {
                None => self.init(actor),
                Some((transaction, _)) if !has_time && waits => {
                    self.model.ended(transaction, Fate::Aborted);
                    (self.actors[actor].open, self.actors[actor].producer) = (None, None);
                }
                Some(_) if is_replaced => self.init(actor),
                Some(_) => self.end(actor, commits),
            }
        }
        self.broker.check();
        let mut client = self.broker.connect();
        eventually("members read all partitions", || {
            self.members.have_all(&mut client, PARTITIONS).then_some(())
        });
        self.broker.check();
        for partition in 0..PARTITIONS as i32 {
            eventually("the last stable offset is the end", || {
                let (stable, end) = ends(&mut client, TOPIC, partition);
                (stable == end).then_some(())
            });
        }
        let mut all = vec![Vec::new(); PARTITIONS];
        for (partition, seen) in all.iter_mut().enumerate() {
            read_on(&mut client, TOPIC, partition as i32, &mut 0, seen);
        }
        // The markers of offsets may be on their way when those of the topic are written: a successor waits for them.
        for actor in 0..PRODUCERS {
            self.init(actor);
        }
        let offset = |actor| client.committed(&group_of(actor), TOPIC, 0).expect("an offset");
        let offsets: Vec<i64> = (0..PRODUCERS).map(offset).collect();
        self.model.check_all(&all, &offsets);
        self.compacted_away =
            (0..PARTITIONS).map(|partition| self.model.compacted_away(partition, &all[partition])).sum();
        for partition in 0..PARTITIONS {
            self.read(partition);
            self.model.check_followed(partition, &self.readers[partition].0);
        }
    }
}

fn id_of(actor: usize) -> String {
    format!("producer-{actor}")
}

fn group_of(actor: usize) -> String {
    format!("group-{actor}")
}

fn with_keys<T>(records: &[(u64, String)], send: impl FnOnce(&[Keyed<'_>]) -> T) -> T {
    let keys: Vec<String> = records.iter().map(|(key, _)| key.to_string()).collect();
    let keyed = records.iter().zip(&keys);
    let keyed: Vec<_> =
        keyed.map(|((_, value), key)| Keyed { key: Some(key.as_bytes()), value: value.as_bytes() }).collect();
    send(&keyed)
}

fn number_from(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|number| number.parse().expect("a number"))
}

#[test]
fn transactions_are_whole_or_not_at_all_whatever_happens() {
    let first = mainstem_testkit::seed();
    let runs = (number_from("PROPTEST_CASES").unwrap_or(CASES) / CASES_OF_A_RUN).max(1);
    let home = tempfile::tempdir().expect("a directory");
    let (mut dirs, mut committed, mut compacted_away, mut coordinators) = (Vec::new(), 0, 0, 0);
    for seed in first..first + runs {
        println!("TEST_SEED={seed} PROPTEST_CASES={CASES_OF_A_RUN}");
        let mut world = World::new(seed);
        world.run();
        committed += world.model.committed_count();
        compacted_away += world.compacted_away;
        world.broker.stop();
        let dir = home.path().join(seed.to_string());
        world.broker.copy_to(&dir);
        let noted = fs::read_to_string(dir.join("cleaner-offset-checkpoint")).unwrap_or_default();
        coordinators += noted.lines().filter(|line| line.starts_with("__transaction_state")).count();
        dirs.push(dir);
    }
    println!(
        "{committed} transactions were committed in {runs} runs, {compacted_away} records compacted away"
    );
    assert!(committed as u64 > runs, "hardly anything was committed");
    let is_compacted = compacted_away > 0 && coordinators > 0;
    assert!(is_compacted || runs < CASES / CASES_OF_A_RUN, "nothing was compacted");
    assert_kafka_finds_no_fault(&dirs);
}
