//! `kill -9` at random points under load: acknowledged records are there after the restart, once and in order.
//!
//! Each round runs all actors until the broker dies, and starts it again. Then every actor compares its answers with
//! the data. `TEST_KILLS` is the number of rounds, `TEST_SEED` repeats a run's choices (not its timing).

mod actors;
mod moves;
mod producer;
mod topics;

use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use mainstem_tests::broker::{Broker, Setup};
use mainstem_tests::client::Client;
use mainstem_tests::kafka::{EARLIEST, Failure, ReadRecord};
use mainstem_tests::wait::TIMEOUT;
use mainstem_wire::sample::Rng;

use actors::{Commits, Consumer, Deletions, ProducerIds};
use moves::Moves;
use producer::Producer;
use topics::Topics;

/// The topic of the load, and its partitions.
const TOPIC: &str = "load";
const PARTITIONS: i32 = 2;

/// The default of `TEST_KILLS`.
const KILLS: u64 = 30;

/// The same in the page cache, as in comparisons with Kafka.
const KILLS_IN_THE_PAGE_CACHE: u64 = 10;

/// The same with a sync for every record, as in comparisons, which is slow: in long runs one for so many of the others.
const KILLS_WITH_EVERY_RECORD_SYNCED: u64 = 5;
const OTHERS_FOR_ONE: u64 = 5;

/// The same with partitions that move.
const KILLS_WITH_MOVES: u64 = 20;

/// Rounds with the same logs. Each round reads all of them, and a thousand rounds would write tens of GiB.
const ROUNDS_OF_A_LOG: u64 = 50;

/// The most acknowledgements of a round before the broker dies.
const ACKNOWLEDGEMENTS_MAX: u64 = 20_000;

/// The time without an acknowledgement after which the broker is stuck, on any machine.
const STUCK: Duration = Duration::from_secs(30);

/// State that all actors of a round share.
struct Load {
    address: String,
    /// The broker was asked to stop: refusals are no fault from now on.
    stopping: AtomicBool,
    acknowledged: AtomicU64,
}

impl Load {
    fn connect(&self) -> Option<Client> {
        Client::connect(&self.address).ok()
    }

    fn acknowledge(&self) {
        self.acknowledged.fetch_add(1, Ordering::Relaxed);
    }

    /// The result of a call, or `None` when the round is over for its actor.
    fn outcome<T>(&self, what: &str, result: Result<T, Failure>) -> Option<T> {
        match result {
            Ok(value) => {
                self.acknowledge();
                Some(value)
            }
            Err(Failure::Connection(_)) => None,
            Err(Failure::Refused(_)) if self.stopping.load(Ordering::Acquire) => None,
            Err(Failure::Refused(error)) => panic!("{what} was refused: {}", error.name()),
        }
    }
}

/// All actors that load the broker, with the answers they got so far.
struct Actors {
    producers: Vec<Producer>,
    consumer: Consumer,
    topics: Topics,
    commits: Commits,
    deletions: Deletions,
    ids: ProducerIds,
    moves: Moves,
}

impl Actors {
    fn new(broker: &Broker, rng: &mut Rng) -> Actors {
        let mut client = broker.connect();
        client.create_topic(TOPIC, PARTITIONS, &[("segment.bytes", "1048576")]).expect("a topic");
        client.find_coordinator("any").expect("a coordinator");
        let mut ids = ProducerIds::default();
        let mut idempotent = || Some(ids.take(&mut client));
        let producers = vec![
            Producer::new(b'A', 0, -1, idempotent(), rng),
            Producer::new(b'B', 0, 1, None, rng),
            Producer::new(b'C', 1, 1, idempotent(), rng),
            Producer::new(b'D', 1, -1, None, rng),
        ];
        Actors {
            producers,
            consumer: Consumer::default(),
            topics: Topics::new(rng),
            commits: Commits::default(),
            deletions: Deletions::new(rng),
            ids,
            moves: Moves::new(broker, rng),
        }
    }

    /// Loads the broker until it is gone; `end` ends it.
    fn run(&mut self, load: &Load, end: impl FnOnce()) {
        std::thread::scope(|scope| {
            for producer in &mut self.producers {
                scope.spawn(|| producer.run(load));
            }
            scope.spawn(|| self.consumer.run(load));
            scope.spawn(|| self.topics.run(load));
            scope.spawn(|| self.commits.run(load));
            scope.spawn(|| self.deletions.run(load));
            scope.spawn(|| self.ids.run(load));
            scope.spawn(|| self.moves.run(load));
            end();
        });
    }

    /// Compares the acknowledged work with the data of the broker.
    fn check(&mut self, broker: &Broker) {
        let mut client = broker.connect();
        self.topics.check(&mut client);
        self.commits.check(&mut client);
        self.moves.check(&mut client);
        for partition in 0..PARTITIONS {
            let log_start = client.offset_at(TOPIC, partition, EARLIEST).expect("the log start");
            self.deletions.check(partition, log_start);
            let records = client.read_all(TOPIC, partition, log_start).expect("the records");
            check_order(partition, log_start, &records);
            self.consumer.check(partition, log_start, &records);
            let end = records.last().map_or(log_start, |record| record.offset + 1);
            self.deletions.may_reach(partition, end);
            for producer in self.producers.iter_mut().filter(|producer| producer.partition == partition) {
                producer.check(log_start, &records);
            }
        }
    }
}

/// Asserts that offsets have no gap, and leader epochs never fall.
fn check_order(partition: i32, log_start: i64, records: &[ReadRecord]) {
    for (rank, record) in records.iter().enumerate() {
        assert_eq!(record.offset, log_start + rank as i64, "partition {partition} has a hole");
    }
    for pair in records.windows(2) {
        let (before, after) = (pair[0].leader_epoch, pair[1].leader_epoch);
        assert!(before <= after, "partition {partition}: epoch {after} at {} after {before}", pair[1].offset);
    }
}

/// The end of a round.
#[derive(Debug, Clone, Copy)]
enum End {
    Kill,
    /// Killed, and killed again during the recovery.
    KillTwice,
    Stop,
}

impl End {
    fn choose(rng: &mut Rng) -> End {
        match rng.below(8) {
            0 => End::Stop,
            1 => End::KillTwice,
            _ => End::Kill,
        }
    }

    fn carry_out(self, broker: &mut Broker, load: &Load, rng: &mut Rng) {
        match self {
            End::Kill => broker.kill(),
            End::KillTwice => {
                broker.kill();
                broker.start_and_kill(Duration::from_micros(rng.below(30_000)));
            }
            End::Stop => {
                load.stopping.store(true, Ordering::Release);
                broker.stop();
            }
        }
    }
}

/// Waits for so many acknowledgements, or for a time if the disk is slow, and then for a random instant. So any point
/// of the work may be hit.
fn wait_for_load(load: &Load, acknowledgements: u64, rng: &mut Rng) {
    let begin = Instant::now();
    let (mut acknowledged, mut since) = (0, begin);
    while acknowledged < acknowledgements && begin.elapsed() < TIMEOUT {
        let now = load.acknowledged.load(Ordering::Relaxed);
        if now > acknowledged {
            (acknowledged, since) = (now, Instant::now());
        }
        assert!(since.elapsed() < STUCK, "the broker acknowledges nothing any more");
        std::thread::sleep(Duration::from_micros(200));
    }
    std::thread::sleep(Duration::from_micros(rng.below(2_000)));
}

fn number_from(variable: &str) -> Option<u64> {
    let text = std::env::var(variable).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{variable} is a number, not {text}")))
}

fn leader_epochs(broker: &Broker) -> Vec<i32> {
    let mut client = broker.connect();
    (0..PARTITIONS).map(|index| client.leader_epoch(TOPIC, index).expect("the epoch")).collect()
}

/// Seed and number of rounds.
fn choices(kills: u64) -> (u64, u64) {
    let seed = mainstem_testkit::seed();
    (seed, number_from("TEST_KILLS").unwrap_or(kills))
}

#[test]
fn what_was_acknowledged_survives_kills_under_load() {
    let (seed, kills) = choices(KILLS);
    println!("TEST_SEED={seed} TEST_KILLS={kills}");
    let done = run(|| Setup::new("crash"), seed, kills);
    println!("{} acknowledgements", done.acknowledged);
}

#[test]
fn what_was_acknowledged_survives_kills_in_the_page_cache() {
    let (seed, kills) = choices(KILLS_IN_THE_PAGE_CACHE);
    println!("TEST_SEED={seed} TEST_KILLS={kills}");
    let done = run(|| Setup::new("crash-cached").set("write.caching.default", true), seed, kills);
    println!("{} acknowledgements", done.acknowledged);
}

#[test]
fn what_was_acknowledged_survives_kills_where_every_record_is_synced() {
    let (seed, kills) = choices(KILLS_WITH_EVERY_RECORD_SYNCED * OTHERS_FOR_ONE);
    let kills = kills.div_ceil(OTHERS_FOR_ONE);
    println!("TEST_SEED={seed}, {kills} kills");
    let done = run(|| Setup::new("crash-synced").set("log.flush.interval.messages", 1), seed, kills);
    println!("{} acknowledgements", done.acknowledged);
}

#[test]
fn what_was_acknowledged_survives_kills_while_partitions_move() {
    let (seed, kills) = choices(KILLS_WITH_MOVES);
    println!("TEST_SEED={seed} TEST_KILLS={kills}");
    // Moved files are removed without a delay, so that kills also hit removals.
    let setup = || Setup::new("crash-moves").log_dirs(3).set("log.segment.delete.delay.ms", 0);
    let Done { acknowledged, moves } = run(setup, seed, kills);
    println!("{acknowledged} acknowledgements, {moves} moves");
    assert!(moves >= kills / 2, "{moves} moves in {kills} rounds");
}

/// Counts of all rounds.
#[derive(Default)]
struct Done {
    acknowledged: u64,
    /// Completed moves.
    moves: u64,
}

/// Runs so many rounds, with new logs every [`ROUNDS_OF_A_LOG`] rounds.
fn run(setup: impl Fn() -> Setup, seed: u64, kills: u64) -> Done {
    let mut rng = Rng(seed);
    let mut done = Done::default();
    for begun in (0..kills).step_by(ROUNDS_OF_A_LOG as usize) {
        let rounds = begun..kills.min(begun + ROUNDS_OF_A_LOG);
        let of_these = run_rounds(setup().start(), &mut rng, rounds);
        done.acknowledged += of_these.acknowledged;
        done.moves += of_these.moves;
    }
    done
}

fn run_rounds(mut broker: Broker, rng: &mut Rng, rounds: Range<u64>) -> Done {
    let mut actors = Actors::new(&broker, rng);
    let mut acknowledged = 0;
    for round in rounds {
        let epochs = leader_epochs(&broker);
        let load = Load {
            address: broker.address(),
            stopping: AtomicBool::new(false),
            acknowledged: AtomicU64::new(0),
        };
        let end = End::choose(rng);
        let acknowledgements = rng.below(ACKNOWLEDGEMENTS_MAX);
        actors.run(&load, || {
            wait_for_load(&load, acknowledgements, rng);
            end.carry_out(&mut broker, &load, rng);
        });
        acknowledged += load.acknowledged.into_inner();
        broker.start_again();
        if !matches!(end, End::Stop) {
            let raised = leader_epochs(&broker);
            let all_rose = epochs.iter().zip(&raised).all(|(before, after)| before < after);
            assert!(all_rose, "round {round}: leader epochs {epochs:?} became {raised:?} by {end:?}");
        }
        actors.check(&broker);
    }
    broker.assert_healthy();
    Done { acknowledged, moves: actors.moves.done() }
}
