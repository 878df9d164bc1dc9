//! Promises of handlers, a file of `scenarios/` each. Its first line is a sentence, the rest is played in memory and in virtual time, and
//! against a broker if nothing in it needs the test kit. docs/handlers.md lists the sentences.
//!
//! | line | what happens |
//! |---|---|
//! | `send KEY VALUE[=ACTION[*N]]` | a message; its first N attempts (all without a number) `fail`, `panic`, are `poison`, or find something `away` |
//! | `settle`, `advance MS` | everything happens that needs no time; time passes |
//! | `restart`, `crash`, `rebalance` | |
//! | `handled KEY: VALUES`, `sent: VALUES`, `letters: VALUES`, `position: OFFSET` | what has to be so |

use std::collections::HashMap;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::support;
use crate::support::World;
use mainstem_client::Record;
use mainstem_flow::{App, Cx, Fault, Msg, Retry, Route, Running, TestApp, Text};
use parking_lot::Mutex;

/// An attempt at a message.
#[derive(Clone)]
struct Attempt {
    key: String,
    value: String,
    succeeds: bool,
    began: Instant,
}

/// Attempts so far.
type Handled = Arc<Mutex<Vec<Attempt>>>;

/// Waits between attempts in milliseconds, the first and the longest: in virtual time, and at a broker.
const WAITS_MS: (u64, u64) = (100, 400);
const WAITS_AT_BROKER_MS: (u64, u64) = (500, 2_000);
/// The longest wait for a broker and this program.
const TIMEOUT: Duration = Duration::from_secs(60);

fn route(handled: &Handled, (first_ms, longest_ms): (u64, u64)) -> Route {
    let (handled, attempts) = (handled.clone(), Arc::new(Mutex::new(HashMap::<String, u32>::new())));
    let route = Route::topic("lines", move |line: Msg<Text>, cx: Cx| {
        let key = String::from_utf8_lossy(line.key().unwrap_or_default()).into_owned();
        let (value, action) = line.split_once('=').unwrap_or((&line, "ok*0"));
        let (action, times) = action.split_once('*').unwrap_or((action, "1000000"));
        let attempt = {
            let mut attempts = attempts.lock();
            let attempt = attempts.entry(value.to_owned()).or_default();
            *attempt += 1;
            *attempt
        };
        let action = if attempt <= times.parse().unwrap() { action.to_owned() } else { "ok".to_owned() };
        let (value, succeeds) = (value.to_owned(), action == "ok");
        handled.lock().push(Attempt { key, value: value.clone(), succeeds, began: Instant::now() });
        let sent = cx.send("copies", None, &Text(value));
        async move {
            sent?;
            match action.as_str() {
                "ok" => Ok(()),
                "fail" => Err(Fault::failed("it fails")),
                "away" => Err(Fault::transient("away")),
                "poison" => Err(Fault::poison("it is poison")),
                _ => panic!("on purpose"),
            }
        }
    });
    route.retry(Retry::exponential(first_ms, longest_ms))
}

/// The stage of a scenario.
enum Stage {
    Memory(Box<TestApp>),
    Broker(Box<(World, Option<Running>)>),
}

struct Play {
    name: String,
    stage: Stage,
    handled: Handled,
}

fn values(records: &[Record]) -> Vec<String> {
    let value = |value: &[u8]| String::from_utf8_lossy(value).split('=').next().unwrap().to_owned();
    records.iter().map(|record| value(record.value.as_deref().unwrap())).collect()
}

impl Play {
    fn app(&self, world: &World) -> Running {
        let app = world.app("scenario").commit_every(Duration::from_millis(50));
        app.stop_within(Duration::from_secs(10))
            .add(route(&self.handled, WAITS_AT_BROKER_MS))
            .start()
            .unwrap()
    }

    async fn play(&mut self, script: &str) {
        for line in script.lines().filter(|line| !line.starts_with('#') && !line.is_empty()) {
            let (verb, rest) = line.split_once(' ').unwrap_or((line, ""));
            match verb.trim_end_matches(':') {
                "send" => self.send(rest).await,
                "settle" => self.advance(0).await,
                "advance" => self.advance(rest.parse().unwrap()).await,
                "restart" | "crash" | "rebalance" => self.disturb(verb).await,
                "handled" => {
                    let (key, expected) = rest.split_once(':').unwrap();
                    self.expect_handled(line, key, expected).await;
                }
                "sent" => self.expect_records(line, "copies", rest).await,
                "letters" => self.expect_records(line, "dlq.scenario.lines", rest).await,
                "position" => self.expect_position(line, rest.parse().unwrap()).await,
                other => panic!("{}: there is no {other:?}", self.name),
            }
        }
    }

    async fn send(&self, rest: &str) {
        let (key, value) = rest.split_once(' ').unwrap();
        match &self.stage {
            Stage::Memory(test) => test.send("lines", Some(key), &Text(value.to_owned())),
            Stage::Broker(broker) => broker.0.write("lines", Some(key), value).await,
        }
    }

    async fn advance(&mut self, ms: u64) {
        match &mut self.stage {
            Stage::Memory(test) if ms == 0 => test.settle().await,
            Stage::Memory(test) => test.advance(Duration::from_millis(ms)).await,
            // Time passes by itself, and the next line waits for what it expects.
            Stage::Broker(_) => self.wait_for_quiet().await,
        }
    }

    /// Waits until something was handled, and then nothing for a while.
    async fn wait_for_quiet(&self) {
        const QUIET: Duration = Duration::from_millis(60);
        let (mut before, deadline) = (usize::MAX, Instant::now() + TIMEOUT);
        while before != self.handled.lock().len() || before == 0 {
            assert!(Instant::now() < deadline, "{}: {before} attempts, and no quiet", self.name);
            before = self.handled.lock().len();
            tokio::time::sleep(QUIET).await;
        }
    }

    /// Expects the values of a key in the order of its attempts. At a broker it waits for them, and then for surplus ones.
    async fn expect_handled(&self, line: &str, key: &str, expected: &str) {
        if matches!(self.stage, Stage::Broker(_)) {
            let (count, deadline) = (expected.split_whitespace().count(), Instant::now() + TIMEOUT);
            while self.found(key, count).len() < count && Instant::now() < deadline {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            self.wait_for_quiet().await;
        }
        self.expect(line, &self.found(key, expected.split_whitespace().count()), expected);
    }

    /// Returns the values of a key in the order of its attempts. Behind the first `count`, attempts are left out that a slow machine may
    /// cause. These are of a message that had not succeeded, at a time when a wait between attempts could have been over.
    fn found(&self, key: &str, count: usize) -> Vec<String> {
        let all = self.handled.lock();
        let failed = all.iter().find(|attempt| !attempt.succeeds).map(|attempt| attempt.began);
        // Waits are up to a fifth shorter or longer.
        let first_wait = Duration::from_millis(WAITS_AT_BROKER_MS.0) * 4 / 5;
        let is_late = |at: usize| {
            let one = &all[at];
            let is_due = failed.is_some_and(|failed| one.began >= failed + first_wait);
            is_due && !all[..at].iter().any(|before| before.value == one.value && before.succeeds)
        };
        let of_key = (0..all.len()).filter(|at| all[*at].key == key).enumerate();
        let may_be_late = |nth: usize| matches!(self.stage, Stage::Broker(_)) && nth >= count;
        let counted = of_key.filter(|(nth, at)| !(may_be_late(*nth) && is_late(*at)));
        counted.map(|(_, at)| all[at].value.clone()).collect()
    }

    async fn disturb(&mut self, verb: &str) {
        if let Stage::Memory(test) = &mut self.stage {
            return match verb {
                "crash" => test.crash().await,
                "rebalance" => test.rebalance().await,
                // In order: what is finished is committed first.
                _ => {
                    test.advance(Duration::from_secs(1)).await;
                    test.crash().await;
                }
            };
        }
        let Stage::Broker(broker) = &mut self.stage else { return };
        let before = broker.1.take().unwrap();
        if verb == "restart" {
            before.stop().await.unwrap();
            return self.launch();
        }
        // Another member joins, which gets the partition when the first one leaves.
        self.launch();
        let Stage::Broker(broker) = &self.stage else { return };
        let another = broker.1.as_ref().unwrap();
        let admin = broker.0.admin();
        let deadline = Instant::now() + TIMEOUT;
        while admin.describe_group("scenario").await.unwrap().is_none_or(|group| group.members.len() < 2) {
            assert!(Instant::now() < deadline, "{}: another member does not join", self.name);
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        before.stop().await.unwrap();
        support::eventually("it has the partition", || another.status().metrics().contains("partition="))
            .await;
    }

    /// Starts a member at the broker.
    fn launch(&mut self) {
        let Stage::Broker(broker) = &self.stage else { return };
        let running = self.app(&broker.0);
        if let Stage::Broker(broker) = &mut self.stage {
            broker.1 = Some(running);
        }
    }

    fn expect<T: AsRef<str>>(&self, line: &str, found: &[T], expected: &str) {
        let found: Vec<&str> = found.iter().map(AsRef::as_ref).collect();
        let expected: Vec<&str> = expected.split_whitespace().collect();
        assert_eq!(found, expected, "{}: {line}", self.name);
    }

    async fn expect_records(&self, line: &str, topic: &str, expected: &str) {
        let found = match &self.stage {
            Stage::Memory(test) => values(&test.sent(topic)),
            Stage::Broker(broker) => {
                let count = expected.split_whitespace().count();
                match broker.0.exists(topic).await || count > 0 {
                    true => values(&broker.0.read_records(topic, count).await),
                    false => Vec::new(),
                }
            }
        };
        self.expect(line, &found, expected);
    }

    async fn expect_position(&mut self, line: &str, expected: i64) {
        match &mut self.stage {
            Stage::Memory(test) => {
                test.advance(Duration::from_secs(1)).await;
                assert_eq!(test.position("lines"), expected, "{}: {line}", self.name);
            }
            Stage::Broker(broker) => {
                broker.1.take().unwrap().stop().await.unwrap();
                let committed = broker.0.committed("scenario").await;
                assert_eq!(committed[&broker.0.t("lines", 0)], expected, "{}: {line}", self.name);
            }
        }
    }
}

/// Name, text and sentence of each scenario, by name.
fn scenarios() -> Vec<(String, String, String)> {
    let directory = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/scenarios");
    let mut all: Vec<_> = std::fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path()).collect();
    all.sort();
    let scenario = |path: PathBuf| {
        let (name, text) =
            (path.file_stem().unwrap().to_str().unwrap(), std::fs::read_to_string(&path).unwrap());
        let sentence = text.lines().next().unwrap().strip_prefix("# ").unwrap().to_owned();
        (name.to_owned(), text, sentence)
    };
    all.into_iter().map(scenario).collect()
}

#[tokio::test(start_paused = true)]
async fn scenarios_in_memory() {
    for (name, text, _) in scenarios() {
        let handled = Handled::default();
        let own = handled.clone();
        let make = move || Ok(App::new("scenario", "mem:")?.add(route(&own, WAITS_MS)));
        let stage = Stage::Memory(Box::new(TestApp::made_by(make).unwrap()));
        Play { name, stage, handled }.play(&text).await;
    }
}

#[tokio::test]
async fn scenarios_against_a_broker() {
    let mut played = 0;
    for (name, text, _) in scenarios() {
        if text.lines().any(|line| line == "crash") {
            continue;
        }
        let world = World::start();
        world.create("lines", 1).await;
        world.create("copies", 1).await;
        let handled = Handled::default();
        let mut play = Play { name, stage: Stage::Broker(Box::new((world, None))), handled };
        play.launch();
        play.play(&text).await;
        played += 1;
    }
    assert!(played >= 6, "{played}");
}

#[test]
fn the_page_lists_every_scenario() {
    let mut table = String::from("| guarantee | scenario |\n|---|---|\n");
    for (name, _, sentence) in scenarios() {
        writeln!(table, "| {sentence} | [{name}](../crates/flow/tests/scenarios/{name}.txt) |").unwrap();
    }
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/handlers.md");
    mainstem_testkit::document_part(&page, "scenarios", &table);
}
