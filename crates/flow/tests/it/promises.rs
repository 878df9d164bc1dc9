//! Promises of handlers, with three processes that are killed and stopped while they work. Nothing is lost, and a key's messages run in
//! order. A kill repeats only what was not committed, and a message that its handler accepts is never a dead letter.
//!
//! `TEST_HANDLER_KILLS` is the number of kills, `TEST_HANDLER_OUTAGE_SECONDS` the time that a database is away.

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::{BufRead as _, Write as _};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use crate::support;
use crate::support::World;
use mainstem_client::{GroupProtocol, TopicPartition};
use mainstem_flow::{App, Fault, Msg, Retry, Route, Text, metadata};

const MEMBERS: usize = 3;
const PARTITIONS: i32 = 6;
const KEYS: u64 = 40;
/// Kills of a member of each protocol over our broker, which are 50 together; and over Apache Kafka.
const ROUNDS: u64 = 25;
const ROUNDS_ON_KAFKA: u64 = 20;
/// Messages between two rounds.
const MESSAGES: u64 = 200;
/// The session timeout of members.
const SESSION: Duration = Duration::from_millis(1_000);
/// A process that gets no CPU for so long notes it: its session may have ended without its knowledge.
const HELD_UP: Duration = Duration::from_millis(250);
/// The longest wait for members and the group.
const TIMEOUT: Duration = Duration::from_secs(300);
/// The key that fails while there is a file "failing".
const FAILING_KEY: &str = "0";

/// A process of the application: this test, run again. Does nothing by itself.
#[test]
fn member() {
    let Ok(directory) = std::env::var("FLOW_MEMBER") else { return };
    let address = std::env::var("FLOW_ADDRESS").unwrap();
    let protocol = match std::env::var("FLOW_PROTOCOL").unwrap().as_str() {
        "consumer" => GroupProtocol::Consumer { assignor: None },
        _ => GroupProtocol::Classic,
    };
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    runtime.block_on(async {
        tokio::spawn(watch(PathBuf::from(&directory)));
        let running = app(Path::new(&directory), &address, protocol).start().unwrap();
        let (sender, asked_to_stop) = tokio::sync::oneshot::channel();
        std::thread::spawn(move || {
            // A line asks for an orderly end; the end of the input says that the test is gone.
            let mut line = String::new();
            match std::io::stdin().lock().read_line(&mut line) {
                Ok(bytes) if bytes > 0 => drop(sender.send(())),
                _ => std::process::exit(1),
            }
        });
        asked_to_stop.await.unwrap();
        running.stop().await.unwrap();
    });
}

/// Milliseconds since 1970, which all processes count alike.
fn now_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_millis() as u64
}

/// Writes down when this process got no CPU, and for how many milliseconds.
async fn watch(directory: PathBuf) {
    const TURN: Duration = Duration::from_millis(50);
    let mut ledger = OpenOptions::new().append(true).open(directory.join("ledger")).unwrap();
    loop {
        let asked = Instant::now();
        tokio::time::sleep(TURN).await;
        let took = asked.elapsed();
        if took >= TURN + HELD_UP {
            let line = format!("late 0 0 0 {} {} {}\n", took.as_millis(), std::process::id(), now_ms());
            ledger.write_all(line.as_bytes()).unwrap();
        }
    }
}

/// Our broker, which is killed in some rounds. Does nothing by itself.
#[test]
fn broker_process() {
    support::process::run();
}

/// Writes down when a message starts and ends; fails while there is a file of the name "away", and of one key while there is
/// one of the name "failing".
fn app(directory: &Path, address: &str, protocol: GroupProtocol) -> App {
    let ledger = Arc::new(OpenOptions::new().append(true).open(directory.join("ledger")).unwrap());
    let (away, failing) = (directory.join("away"), directory.join("failing"));
    let route = Route::topic("counts", move |line: Msg<Text>| {
        let (ledger, away, failing) = (ledger.clone(), away.clone(), failing.clone());
        async move {
            let (topic_partition, offset) = (line.partition().partition, line.offset());
            let note = |what: &str| {
                // One write to a file that is open for appending is one line, whatever writes besides.
                let (process, at_ms) = (std::process::id(), now_ms());
                let line = format!("{what} {topic_partition} {offset} {} {process} {at_ms}\n", *line);
                (&*ledger).write_all(line.as_bytes())
            };
            note("start")?;
            if line.key() == Some(FAILING_KEY.as_bytes()) && failing.exists() {
                note("fail")?;
                return Err(Fault::transient("what this key needs is away"));
            }
            tokio::time::sleep(Duration::from_micros(offset.unsigned_abs() % 7 * 400)).await;
            if away.exists() {
                note("fail")?;
                return Err(Fault::failed("the database is away"));
            }
            note("end")?;
            Ok(())
        }
    });
    let app = App::new("counters", &format!("kafka://{address}")).unwrap().protocol(protocol);
    let app = app.session_timeout(SESSION).commit_every(Duration::from_millis(50));
    app.add(route.concurrency(8).retry(Retry::exponential(5, 100).attempts(3)))
}

struct Members {
    directory: PathBuf,
    address: String,
    protocol: &'static str,
    children: Vec<Child>,
}

impl Members {
    fn start(directory: &Path, address: &str, protocol: &'static str) -> Members {
        File::create(directory.join("ledger")).unwrap();
        let (directory, address) = (directory.to_owned(), address.to_owned());
        let mut members = Members { directory, address, protocol, children: Vec::new() };
        (0..MEMBERS).for_each(|_| members.children.push(members.one()));
        members
    }

    fn one(&self) -> Child {
        Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "promises::member", "--nocapture", "--test-threads=1"])
            .env("FLOW_MEMBER", &self.directory)
            .env("FLOW_ADDRESS", &self.address)
            .env("FLOW_PROTOCOL", self.protocol)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .spawn()
            .unwrap()
    }

    fn kill(&mut self, index: usize) {
        self.children[index].kill().unwrap();
        self.children[index].wait().unwrap();
    }

    fn signal(&self, index: usize, name: &str) {
        let id = self.children[index].id().to_string();
        assert!(Command::new("kill").args([name, &id]).status().unwrap().success());
    }

    fn restart(&mut self, index: usize) {
        self.children[index] = self.one();
    }

    /// Ends one in order, within [`TIMEOUT`].
    fn stop(&mut self, index: usize) {
        self.children[index].stdin.take().unwrap().write_all(b"stop\n").unwrap();
        let deadline = Instant::now() + TIMEOUT;
        let ended = loop {
            match self.children[index].try_wait().unwrap() {
                Some(ended) => break ended,
                None => assert!(Instant::now() < deadline, "a member does not stop"),
            }
            std::thread::sleep(Duration::from_millis(10));
        };
        assert!(ended.success(), "{ended}");
    }
}

impl Drop for Members {
    fn drop(&mut self) {
        for child in &mut self.children {
            // It may have ended by itself.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// A line of the ledger: of a message, or `late`, whose number is of milliseconds.
#[derive(Debug)]
struct Line {
    what: String,
    partition: i32,
    offset: i64,
    key: u64,
    number: u64,
    process: u32,
    at_ms: u64,
}

impl Line {
    /// Returns true if this line says that a process waited for CPU at that time, or at most a session before. It may not know yet that
    /// others have its partitions.
    fn holds_up(&self, process: u32, at_ms: u64) -> bool {
        let span = (self.at_ms - self.number - 100)..(self.at_ms + SESSION.as_millis() as u64);
        self.what == "late" && self.process == process && span.contains(&at_ms)
    }
}

fn ledger(directory: &Path) -> Vec<Line> {
    let text = std::fs::read_to_string(directory.join("ledger")).unwrap();
    let line = |line: &str| {
        let words: Vec<&str> = line.split(' ').collect();
        let [what, partition, offset, key, number, process, at_ms] = words[..] else { panic!("{line:?}") };
        let (partition, offset) = (partition.parse().unwrap(), offset.parse().unwrap());
        let (key, number) = (key.parse().unwrap(), number.parse().unwrap());
        let (process, at_ms) = (process.parse().unwrap(), at_ms.parse().unwrap());
        Line { what: what.to_owned(), partition, offset, key, number, process, at_ms }
    };
    text.lines().map(line).collect()
}

/// The committed offsets and ranges at a length of the ledger.
struct Snapshot {
    lines: usize,
    finished: BTreeMap<i32, Vec<Range<i64>>>,
}

impl Snapshot {
    async fn take(world: &World, directory: &Path) -> Snapshot {
        let committed = world.admin().group_offsets_with_metadata("counters").await.unwrap();
        let finished = committed.into_iter().map(|(TopicPartition { partition, .. }, committed)| {
            let mut ranges = metadata::decode(committed.offset, &committed.metadata).unwrap().ranges;
            ranges.push(0..committed.offset);
            (partition, ranges)
        });
        // A message that was started before the commit was read, and is covered by it, was not started by a later process.
        let finished = finished.collect();
        Snapshot { lines: ledger(directory).len(), finished }
    }

    /// Ranges behind the position of a partition that were finished.
    fn ranges(&self) -> usize {
        self.finished.values().map(|ranges| ranges.len() - 1).sum()
    }

    fn covers(&self, line: &Line) -> bool {
        self.finished
            .get(&line.partition)
            .is_some_and(|all| all.iter().any(|range| range.contains(&line.offset)))
    }
}

/// Writes the next numbers of all keys in turn.
async fn count(world: &World, written: &mut u64, messages: u64) {
    for _ in 0..messages {
        let (key, number) = (*written % KEYS, *written / KEYS);
        world.write_some("counts", &key.to_string(), &format!("{key} {number}")).await;
        *written += 1;
    }
    world.flush().await;
}

/// Waits until ranges are committed behind the key that fails. The next kills find such ranges only then: members that are killed faster
/// than the group rebalances commit nothing.
async fn until_ranges_are_committed(world: &World, directory: &Path) {
    let deadline = Instant::now() + TIMEOUT;
    while Snapshot::take(world, directory).await.ranges() == 0 {
        assert!(Instant::now() < deadline, "nothing was committed behind a key that fails");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// Waits until all that was written has ended.
async fn until_all_ended(directory: &Path, written: u64) {
    let deadline = Instant::now() + TIMEOUT;
    loop {
        let mut ended: Vec<(u64, u64)> = ledger(directory)
            .iter()
            .filter(|one| one.what == "end")
            .map(|one| (one.key, one.number))
            .collect();
        ended.sort_unstable();
        ended.dedup();
        if ended.len() as u64 == written {
            return;
        }
        assert!(Instant::now() < deadline, "{} of {written} have ended", ended.len());
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// Waits until all that was written is committed. Messages that a member ended after its partitions went to others are not, and are handled
/// again.
async fn until_all_committed(world: &World, written: u64) {
    let deadline = Instant::now() + TIMEOUT;
    loop {
        let committed: i64 = world.committed("counters").await.values().sum();
        if committed == written as i64 {
            return;
        }
        assert!(Instant::now() < deadline, "{committed} of {written} are committed");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// Checks that a message starts only when those before it of its key have ended.
fn check_order(lines: &[Line]) {
    let mut ended: BTreeMap<u64, u64> = BTreeMap::new();
    for line in lines.iter().filter(|line| line.what != "late") {
        let next = ended.entry(line.key).or_default();
        assert!(line.number <= *next, "{line:?} comes when {next} of its key is next");
        if line.what == "end" && line.number == *next {
            *next += 1;
        }
    }
}

/// Checks that no committed message starts again, except in a process that got no CPU while others took its partition.
fn check_repeats(lines: &[Line], snapshots: &[Snapshot]) {
    let is_held_up = |line: &Line| lines.iter().any(|one| one.holds_up(line.process, line.at_ms));
    for snapshot in snapshots {
        for line in lines[snapshot.lines..].iter().filter(|line| line.what == "start") {
            assert!(!snapshot.covers(line) || is_held_up(line), "{line:?} was committed before");
        }
    }
}

fn rounds(usual: u64) -> u64 {
    std::env::var("TEST_HANDLER_KILLS").map_or(usual, |rounds| rounds.parse().unwrap())
}

/// Our broker, which notices soon that a process is gone.
fn mainstem() -> World {
    World::process(&[
        ("group.consumer.min.session.timeout.ms", "500"),
        ("group.consumer.session.timeout.ms", "1000"),
    ])
}

/// Makes a file or removes it, as `is_there` says.
fn put(file: &Path, is_there: bool) {
    match is_there {
        true => drop(File::create(file).unwrap()),
        // It may not be there.
        false => drop(std::fs::remove_file(file)),
    }
}

/// Kills of members and of the broker, rebalances, outages, and a key that fails most of the time, in turn.
async fn kills(protocol: &'static str, mut world: World, rounds: u64) {
    world.create("counts", PARTITIONS).await;
    let directory = support::Directory::new("flow-kills");
    let mut members = Members::start(directory.path(), world.address(), protocol);
    let (mut written, mut snapshots) = (0, Vec::<Snapshot>::new());
    let have_ranges = |snapshots: &[Snapshot]| snapshots.iter().filter(|one| one.ranges() > 0).count();
    for round in 0..rounds {
        let index = (round % MEMBERS as u64) as usize;
        // It catches up in every fifth round: its partition must not be held because its window is full.
        let is_failing = round % 5 != 4;
        put(&directory.path().join("failing"), is_failing);
        count(&world, &mut written, MESSAGES).await;
        let are_few = have_ranges(&snapshots) * 2 <= snapshots.len();
        if is_failing && (round % 5 == 0 || are_few) {
            until_ranges_are_committed(&world, directory.path()).await;
        }
        if round % 3 == 1 {
            put(&directory.path().join("away"), true);
            tokio::time::sleep(Duration::from_millis(300)).await;
        }
        members.kill(index);
        snapshots.push(Snapshot::take(&world, directory.path()).await);
        put(&directory.path().join("away"), false);
        if round % 3 == 2 {
            world.restart();
        }
        count(&world, &mut written, MESSAGES / 4).await;
        members.restart(index);
        if round % 4 == 3 {
            members.stop((index + 1) % MEMBERS);
            snapshots.push(Snapshot::take(&world, directory.path()).await);
            members.restart((index + 1) % MEMBERS);
        }
        check_order(&ledger(directory.path()));
    }
    put(&directory.path().join("failing"), false);
    until_all_ended(directory.path(), written).await;
    (0..MEMBERS).for_each(|index| members.stop(index));
    let lines = ledger(directory.path());
    check_order(&lines);
    check_repeats(&lines, &snapshots);
    let behind = have_ranges(&snapshots);
    assert!(behind * 3 > snapshots.len(), "{behind} of {} commits had ranges", snapshots.len());
    assert!(!world.exists("dlq.counters.counts").await, "no message is one that its handler refuses");
    let committed: i64 = world.committed("counters").await.values().sum();
    assert_eq!(committed, written as i64);
}

#[tokio::test]
async fn a_kill_loses_nothing_and_repeats_only_what_was_not_committed() {
    kills("classic", mainstem(), rounds(ROUNDS)).await;
}

#[tokio::test]
async fn a_kill_loses_nothing_and_repeats_only_what_was_not_committed_with_the_consumer_protocol() {
    kills("consumer", mainstem(), rounds(ROUNDS)).await;
}

/// Stops processes by SIGSTOP for longer than their session. Such a member is removed from the group, and continues with its messages when
/// it wakes: others may have handled them by then.
async fn stops(protocol: &'static str, world: World, rounds: u64) {
    world.create("counts", PARTITIONS).await;
    let directory = support::Directory::new("flow-stops");
    let mut members = Members::start(directory.path(), world.address(), protocol);
    let mut written = 0;
    for round in 0..rounds.div_ceil(3) {
        let index = (round % MEMBERS as u64) as usize;
        count(&world, &mut written, MESSAGES).await;
        members.signal(index, "-STOP");
        count(&world, &mut written, MESSAGES / 2).await;
        tokio::time::sleep(Duration::from_millis(1_500)).await;
        members.signal(index, "-CONT");
    }
    until_all_ended(directory.path(), written).await;
    until_all_committed(&world, written).await;
    (0..MEMBERS).for_each(|index| members.stop(index));
    // A process that wakes repeats messages that others have handled, but those of each key in order.
    check_order(&ledger(directory.path()));
    assert!(!world.exists("dlq.counters.counts").await, "no message is one that its handler refuses");
    let committed: i64 = world.committed("counters").await.values().sum();
    assert_eq!(committed, written as i64);
}

#[tokio::test]
async fn a_process_that_is_stopped_and_wakes_loses_nothing() {
    stops("classic", mainstem(), rounds(ROUNDS)).await;
}

#[tokio::test]
async fn a_process_that_is_stopped_and_wakes_loses_nothing_with_the_consumer_protocol() {
    stops("consumer", mainstem(), rounds(ROUNDS)).await;
}

/// Makes what the handlers need go away for a time, then come and go for as long; `TEST_HANDLER_OUTAGE_SECONDS` each.
#[tokio::test]
async fn an_outage_makes_no_letters() {
    let seconds = std::env::var("TEST_HANDLER_OUTAGE_SECONDS").map_or(2, |text| text.parse().unwrap());
    let world = mainstem();
    world.create("counts", PARTITIONS).await;
    let directory = support::Directory::new("flow-outage");
    let mut members = Members::start(directory.path(), world.address(), "classic");
    let away = directory.path().join("away");
    let mut written = 0;
    let began = Instant::now();
    for round in 0.. {
        let elapsed = began.elapsed().as_secs();
        if elapsed >= 2 * seconds {
            break;
        }
        // Three tenths of the time, in pieces of different lengths.
        put(&away, elapsed < seconds || round % 10 < 2 || round % 13 == 7);
        count(&world, &mut written, 10).await;
        tokio::time::sleep(Duration::from_millis(25)).await;
    }
    put(&away, false);
    until_all_ended(directory.path(), written).await;
    (0..MEMBERS).for_each(|index| members.stop(index));
    let lines = ledger(directory.path());
    check_order(&lines);
    assert!(lines.iter().any(|line| line.what == "fail"), "it was not away");
    assert!(!world.exists("dlq.counters.counts").await, "no message is one that its handler refuses");
}

async fn kills_and_stops_on_kafka(protocol: &'static str) {
    let name = format!("kills_and_stops_on_kafka, {protocol}");
    let Some(world) = World::kafka(&name) else { return };
    kills(protocol, world, rounds(ROUNDS_ON_KAFKA)).await;
    let Some(world) = World::kafka(&name) else { return };
    stops(protocol, world, rounds(ROUNDS_ON_KAFKA)).await;
}

#[tokio::test]
async fn kills_and_stops_on_apache_kafka() {
    kills_and_stops_on_kafka("classic").await;
}

#[tokio::test]
async fn kills_and_stops_on_apache_kafka_with_the_consumer_protocol() {
    kills_and_stops_on_kafka("consumer").await;
}
