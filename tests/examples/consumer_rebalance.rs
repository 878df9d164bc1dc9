//! The time that a consumer group of 100 members on 1,000 partitions takes to settle (KIP-848), against any broker.
//!
//! `cargo run --release -p mainstem-tests --example consumer_rebalance` starts a broker of its own, which has to be
//! built. `REBALANCE_BROKER=HOST:PORT` takes a running one. The driver uses the wire crate and blocking sockets, and
//! shares nothing else with the broker. Members whose assignment has changed send a heartbeat immediately, as Kafka's
//! consumers do. Others send their next one 5 ms after the last answer (`REBALANCE_PAUSE_MS`). So the result depends
//! on the coordinator and not on the interval of heartbeats. `REBALANCE_CACHING=true` answers from the page cache, as
//! Kafka does. `REBALANCE_TRACE=1` prints every heartbeat of a round: when it was sent and answered (microseconds),
//! the member, its epoch before and after, and the number of partitions in the answer.
#![allow(clippy::unwrap_used, reason = "a measurement that fails says so by a panic")]
#![allow(clippy::print_stdout, reason = "what it measures is for people")]

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Barrier, Mutex, OnceLock};
use std::thread;
use std::time::{Duration, Instant};

use mainstem_tests::broker::Setup;
use mainstem_tests::client::Client;
use mainstem_wire::messages::consumer_group_heartbeat_request::{
    ConsumerGroupHeartbeatRequest, TopicPartitions,
};
use mainstem_wire::messages::consumer_group_heartbeat_response::ConsumerGroupHeartbeatResponse;

const MEMBERS: usize = 100;
const PARTITIONS: i32 = 1_000;
const SHARE: usize = PARTITIONS as usize / MEMBERS;
const ROUNDS: usize = 5;
/// Milliseconds between two heartbeats of a member without changes: the processors are for the broker.
const PAUSE_MS: u64 = 5;
const LIMIT: Duration = Duration::from_secs(120);

/// State that all members share.
struct Board {
    start: Barrier,
    /// Members that have their share of partitions.
    settled: AtomicUsize,
    done: AtomicBool,
    pause: Duration,
    /// The time at which the second half of the members joins.
    begin: OnceLock<Instant>,
    trace: Option<Mutex<Vec<Beat>>>,
}

/// A heartbeat: microseconds from the begin to sending and to the answer, member, epochs, and partitions if the answer assigns any.
type Beat = (u128, u128, usize, i32, i32, Option<usize>);

impl Board {
    fn note(&self, sent: Instant, number: usize, epoch: i32, response: &ConsumerGroupHeartbeatResponse<'_>) {
        let (Some(trace), Some(begin)) = (&self.trace, self.begin.get()) else { return };
        let topics = response.assignment.as_ref().map(|assignment| &assignment.topic_partitions);
        let assigned = topics.map(|topics| topics.iter().map(|topic| topic.partitions.len()).sum());
        let times = (sent.saturating_duration_since(*begin).as_micros(), begin.elapsed().as_micros());
        trace.lock().unwrap().push((times.0, times.1, number, epoch, response.member_epoch, assigned));
    }

    fn print(&self, group: &str) {
        let Some(trace) = &self.trace else { return };
        let mut beats = trace.lock().unwrap();
        beats.sort_unstable();
        beats.iter().for_each(|beat| eprintln!("{group} {beat:?}"));
    }
}

fn member(address: &str, topic: &str, group: &str, number: usize, board: &Board, waits: bool) {
    let mut client = Client::connect(address).unwrap();
    let mut request = ConsumerGroupHeartbeatRequest {
        group_id: group.into(),
        member_id: format!("member-{number}").into(),
        rebalance_timeout_ms: 60_000,
        subscribed_topic_names: Some(vec![topic.into()]),
        topic_partitions: Some(Vec::new()),
        ..Default::default()
    };
    if waits {
        board.start.wait();
    }
    let mut has_share = false;
    while !board.done.load(Ordering::Acquire) {
        let sent = Instant::now();
        let response = client.call(&request, 1);
        board.note(sent, number, request.member_epoch, &response);
        assert_eq!(response.error_code, 0, "{number}: {:?}", response.error_message);
        let (epoch, assignment) = (response.member_epoch, response.assignment);
        let before = request.topic_partitions.clone();
        if let Some(assignment) = assignment {
            let topics = assignment.topic_partitions.into_iter();
            let topics = topics.map(|topic| TopicPartitions {
                topic_id: topic.topic_id,
                partitions: topic.partitions,
                ..Default::default()
            });
            request.topic_partitions = Some(topics.collect());
        }
        request.member_epoch = epoch;
        request.rebalance_timeout_ms = -1;
        request.subscribed_topic_names = None;
        let count: usize =
            request.topic_partitions.iter().flatten().map(|topic| topic.partitions.len()).sum();
        if (count == SHARE) != has_share {
            has_share = !has_share;
            if has_share {
                board.settled.fetch_add(1, Ordering::AcqRel);
            } else {
                board.settled.fetch_sub(1, Ordering::AcqRel);
            }
        }
        if request.topic_partitions == before {
            thread::sleep(board.pause);
        }
    }
}

/// Half of the members share all partitions; then the other half joins. Returns the time until all have 10.
fn settle(address: &str, topic: &str, group: &str) -> Duration {
    let half = MEMBERS / 2;
    let pause = std::env::var("REBALANCE_PAUSE_MS").ok().map(|text| text.parse().unwrap());
    let board = Arc::new(Board {
        start: Barrier::new(half + 1),
        settled: AtomicUsize::new(0),
        done: AtomicBool::new(false),
        pause: Duration::from_millis(pause.unwrap_or(PAUSE_MS)),
        begin: OnceLock::new(),
        trace: std::env::var("REBALANCE_TRACE").is_ok().then(Mutex::default),
    });
    let spawn = |number: usize, waits: bool| {
        let (board, address) = (board.clone(), address.to_owned());
        let (topic, group) = (topic.to_owned(), group.to_owned());
        thread::spawn(move || member(&address, &topic, &group, number, &board, waits))
    };
    let mut threads: Vec<_> = (0..half).map(|number| spawn(number, false)).collect();
    threads.extend((half..MEMBERS).map(|number| spawn(number, true)));
    // The first half has settled when nothing has moved for longer than a target takes to compute.
    thread::sleep(Duration::from_secs(4));
    let begin = *board.begin.get_or_init(Instant::now);
    board.start.wait();
    while board.settled.load(Ordering::Acquire) < MEMBERS {
        assert!(begin.elapsed() < LIMIT, "{} have their share", board.settled.load(Ordering::Acquire));
        thread::sleep(Duration::from_millis(1));
    }
    let took = begin.elapsed();
    board.done.store(true, Ordering::Release);
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    board.print(group);
    took
}

fn main() {
    let own = std::env::var("REBALANCE_BROKER").is_err().then(|| {
        let interval = std::env::var("REBALANCE_INTERVAL").unwrap_or_else(|_| "0".to_owned());
        let caching = std::env::var("REBALANCE_CACHING").unwrap_or_else(|_| "false".to_owned());
        let setup = Setup::new("rebalance").set("group.consumer.assignment.interval.ms", interval);
        setup.set("write.caching.default", caching).start()
    });
    let address =
        own.as_ref().map_or_else(|| std::env::var("REBALANCE_BROKER").unwrap(), |broker| broker.address());
    let mut client = Client::connect(&address).unwrap();
    let stamp = mainstem_tests::kafka::wall_ms();
    let topic = format!("rebalance-{stamp}");
    client.create_topic(&topic, PARTITIONS, &[]).unwrap();
    mainstem_tests::wait::eventually("a coordinator", || client.find_coordinator("g").ok());
    thread::sleep(Duration::from_secs(3));
    let mut took: Vec<u128> = (0..ROUNDS)
        .map(|round| settle(&address, &topic, &format!("group-{stamp}-{round}")).as_millis())
        .collect();
    println!("settled after (ms): {took:?}");
    took.sort_unstable();
    println!("median: {} ms", took[ROUNDS / 2]);
}
