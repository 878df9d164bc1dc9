//! Publisher and consumer as processes of their own, killed and stopped at any instruction, again and again.
//!
//! `TEST_DIRECT_KILLS` sets the number of kills, 50 by default. At the end the events that the consumer has handled are
//! compared with the journal:
//!
//! - each event at least once, and nothing that the journal does not have: with [`Visibility::Synced`](mainstem_direct::Visibility)
//!   no consumer ever sees what the publisher could lose;
//! - the events of a key without a gap, in their order;
//! - an append that has returned is there;
//! - under one assignment nothing comes twice, however often the publisher was killed meanwhile.
#![allow(clippy::print_stderr, reason = "a role reports to the test that started it")]

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::support;
use crate::support::{open, records};
use mainstem_direct::{Address, Admin, Consumer, ConsumerConfig, ConsumerEvent, Done, Publisher};
use mainstem_queue::Start;

const ROLE: &str = "TEST_DIRECT_ROLE";
const ADDRESS: &str = "TEST_DIRECT_ADDRESS";
const KILLS: u64 = 50;
/// An event's key is its offset modulo this.
const KEYS: i64 = 10;
const DEADLINE: Duration = Duration::from_secs(60);

/// The body of the processes that the next test starts; nothing in the test itself.
#[test]
fn role() {
    let Some((role, address, runtime)) = support::role(ROLE, ADDRESS) else { return };
    match role.as_str() {
        "publisher" => runtime.block_on(publish(&address)),
        _ => runtime.block_on(consume(&address)),
    }
}

async fn publish(address: &str) {
    let journal = open(Path::new("cart"));
    let _serving = Publisher::new().stream(&journal).start(address).await.unwrap();
    let mut acked = File::options().create(true).append(true).open("acked").unwrap();
    let mut next = journal.end();
    loop {
        let offset = journal.append(format!("key {}", next % KEYS), &format!("event {next}")).await.unwrap();
        acked.write_all(format!("{offset} event {next}\n").as_bytes()).unwrap();
        next = offset + 1;
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

async fn consume(address: &str) {
    let config = ConsumerConfig::new(Address::new(address).unwrap(), "cart", "analytics");
    let mut consumer = Consumer::new(config);
    let mut handled = File::options().create(true).append(true).open("handled").unwrap();
    let run = std::process::id();
    let (mut assignment, mut number, mut done) = (0, 0u64, Done::default());
    loop {
        match consumer.next().await.unwrap() {
            ConsumerEvent::Assigned { assignment: new, offset, .. } => {
                (assignment, done) = (new, Done { assignment: new, offset, finished: Vec::new() });
                number += 1;
            }
            ConsumerEvent::Records { next, batches, ranges, .. } => {
                let lines: String = ranges
                    .into_iter()
                    .flat_map(|range| records(&batches[range]))
                    .map(|(offset, value)| format!("{run}/{number} {offset} {value}\n"))
                    .collect();
                // One write: a kill leaves all of it or nothing.
                handled.write_all(lines.as_bytes()).unwrap();
                done = Done { assignment, offset: next, finished: Vec::new() };
                consumer.positions().done(done.clone());
            }
            // If a new instance comes before the old one is known to be dead, they share for a moment.
            ConsumerEvent::Revoking { .. } => consumer.release(done.clone()),
            _ => {}
        }
    }
}

struct Processes {
    directory: PathBuf,
    address: String,
    publisher: Child,
    consumer: Child,
}

impl Processes {
    fn start(directory: &Path, address: &str, role: &str) -> Child {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "kills::role", "--nocapture"]).env(ROLE, role).env(ADDRESS, address);
        let log =
            File::options().create(true).append(true).open(directory.join(format!("{role}.log"))).unwrap();
        command.current_dir(directory).stdout(Stdio::null()).stderr(log).spawn().unwrap()
    }

    fn kill(&mut self, role: &str) {
        let child = if role == "publisher" { &mut self.publisher } else { &mut self.consumer };
        assert_eq!(
            child.try_wait().unwrap(),
            None,
            "the {role} has ended by itself: {}",
            log(&self.directory, role)
        );
        child.kill().unwrap();
        child.wait().unwrap();
    }

    fn restart(&mut self, role: &str) {
        let child = Processes::start(&self.directory, &self.address, role);
        *(if role == "publisher" { &mut self.publisher } else { &mut self.consumer }) = child;
    }

    fn signal(&self, role: &str, signal: &str) {
        let child = if role == "publisher" { &self.publisher } else { &self.consumer };
        let sent = Command::new("kill").args([signal, &child.id().to_string()]).status().unwrap();
        assert!(sent.success());
    }
}

impl Drop for Processes {
    fn drop(&mut self) {
        for child in [&mut self.publisher, &mut self.consumer] {
            // It may have ended.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

fn log(directory: &Path, role: &str) -> String {
    fs::read_to_string(directory.join(format!("{role}.log"))).unwrap_or_default()
}

/// A small generator: the test's choices follow from its seed.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % bound
    }
}

#[test]
fn no_kill_loses_or_invents_an_event() {
    let kills: u64 = std::env::var("TEST_DIRECT_KILLS").map_or(KILLS, |kills| kills.parse().unwrap());
    let seed = std::env::var("TEST_DIRECT_SEED").map_or(0x2545_f491_4f6c_dd1d, |seed| seed.parse().unwrap());
    eprintln!("seed {seed}, {kills} kills");
    let mut random = Random(seed);
    run_and_check(|processes| {
        for _ in 0..kills {
            std::thread::sleep(Duration::from_millis(20 + random.below(250)));
            kill_some(processes, &mut random);
        }
    });
}

/// Longer than the time after which a silent end is taken for lost.
const STOPPED_FOR: Duration = Duration::from_secs(16);

#[test]
fn an_end_that_stands_still_for_longer_than_it_is_waited_for_goes_on() {
    for role in ["consumer", "publisher"] {
        run_and_check(|processes| {
            // It has begun by then.
            catch_up(&processes.address.clone(), processes);
            processes.signal(role, "-STOP");
            std::thread::sleep(STOPPED_FOR);
            processes.signal(role, "-CONT");
        });
    }
}

/// Runs both processes while something is done to them; then compares the handled events with the journal.
fn run_and_check(disturb: impl FnOnce(&mut Processes)) {
    let dir = tempfile::tempdir().unwrap();
    let address = format!("127.0.0.1:{}", mainstem_testkit::port());
    let mut processes = Processes {
        publisher: Processes::start(dir.path(), &address, "publisher"),
        consumer: Processes::start(dir.path(), &address, "consumer"),
        directory: dir.path().to_owned(),
        address: address.clone(),
    };
    disturb(&mut processes);
    let wanted = catch_up(&address, &mut processes);
    processes.kill("consumer");
    processes.kill("publisher");
    check(dir.path(), wanted);
}

fn kill_some(processes: &mut Processes, random: &mut Random) {
    let roles: &[&str] = match random.below(3) {
        0 => &["publisher"],
        1 => &["consumer"],
        _ => &["consumer", "publisher"],
    };
    if random.below(5) == 0 {
        let stopped = if random.below(2) == 0 { "publisher" } else { "consumer" };
        processes.signal(stopped, "-STOP");
        std::thread::sleep(Duration::from_millis(random.below(100)));
        if !roles.contains(&stopped) {
            processes.signal(stopped, "-CONT");
        }
    }
    for role in roles {
        processes.kill(role);
    }
    for role in roles {
        processes.restart(role);
    }
}

/// Waits until the consumer has handled all events of the time when the disturbance ended; returns their number.
fn catch_up(address: &str, processes: &mut Processes) -> i64 {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let deadline = Instant::now() + DEADLINE;
    let mut wanted = None;
    loop {
        let described = runtime.block_on(async {
            let mut admin = Admin::connect(Address::new(address).unwrap()).await.ok()?;
            admin.describe("cart").await.ok()?.pop()
        });
        if let Some(stream) = described {
            let wanted = *wanted.get_or_insert(stream.end.max(KEYS));
            if stream.consumers.iter().any(|one| one.offset >= wanted) {
                return wanted;
            }
        }
        let logs =
            || [log(&processes.directory, "publisher"), log(&processes.directory, "consumer")].join("\n");
        assert!(Instant::now() < deadline, "the consumer does not come to offset {wanted:?}: {}", logs());
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Compares the handled events with the journal; all before `wanted` have to be handled.
fn check(directory: &Path, wanted: i64) {
    let journal = open(&directory.join("cart"));
    let mut events = BTreeMap::new();
    let mut reader = journal.queue().reader(Start::Earliest).unwrap();
    while let Some(event) = reader.read().unwrap() {
        events.insert(event.offset, String::from_utf8(event.value.unwrap().to_vec()).unwrap());
    }
    let acked = fs::read_to_string(directory.join("acked")).unwrap();
    for line in acked.lines() {
        let (offset, value) = line.split_once(' ').unwrap();
        assert_eq!(
            events.get(&offset.parse().unwrap()).map(String::as_str),
            Some(value),
            "it was acknowledged"
        );
    }
    let handled = fs::read_to_string(directory.join("handled")).unwrap();
    // The offset of the next event by key, and the offset of its last event by assignment and key.
    let mut due: BTreeMap<i64, i64> = (0..KEYS).map(|key| (key, key)).collect();
    let mut last: BTreeMap<(&str, i64), i64> = BTreeMap::new();
    let mut repeated = 0;
    for line in handled.lines() {
        let mut words = line.splitn(3, ' ');
        let (run, offset, value) = (words.next().unwrap(), words.next().unwrap(), words.next().unwrap());
        let offset: i64 = offset.parse().unwrap();
        assert_eq!(
            events.get(&offset).map(String::as_str),
            Some(value),
            "what was handled is in the journal"
        );
        let key = offset % KEYS;
        let before = last.insert((run, key), offset);
        assert!(before.is_none_or(|before| before < offset), "{offset} comes after {before:?} in run {run}");
        let due = due.get_mut(&key).unwrap();
        assert!(offset <= *due, "{offset} of key {key} is handled in run {run}, and {due} is due");
        repeated += i64::from(offset < *due);
        *due = (*due).max(offset + KEYS);
    }
    let frontier = due.values().copied().min().unwrap();
    assert!(frontier >= wanted, "{frontier} is due, and all before {wanted} was said to be handled");
    eprintln!("{} events, {} handled, {repeated} of them again", events.len(), handled.lines().count());
}
