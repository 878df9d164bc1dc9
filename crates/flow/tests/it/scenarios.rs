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
use std::path::PathBuf;
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

const BEHIND_THE_LIST: &str = r#"
## How much a kill repeats

A commit of what is finished begins every second (`App::commit_every`; 100 ms for streams of publishers), unless the last one is still under
way. A process that is killed, or loses its power, repeats what it finished since the last commit that the brokers took began, and what was
running: about a second of work. While the brokers do not answer it is all since then. What is finished behind an unfinished message is
committed with its position, in up to 3 KiB of the commit's metadata (some 1,000 ranges of offsets; the longest are kept), and is not
repeated. Where the log was cut behind the position by an election, the messages that were written there afterwards are told from those that
were finished by their leader epoch, and handled. A stop, and a partition that is given up, repeat nothing: their last commit is waited for.

## Keys, slices and what waits

The keys of a partition fall into 1,024 slices, by a hash of their bytes (`mainstem_flow::slice_of`). One message of a slice runs at
a time, by offset. So while a message waits for its next attempt, those behind it wait that have its key, **and those of
all other keys of its slice**: about one key in 1,024. With 10,000 keys in a partition a failing key holds up some ten others;
all that are in other slices go on. A message without a key is in the slice of its offset modulo 1,024, and has no order.

How long a slice can wait: a message that fails by its own fault becomes a dead letter after its attempts (5 unless the route says
otherwise), and the slice goes on. What fails for other reasons (`Fault::transient`, an outage of what handlers need) is tried until it
succeeds, so that its slice waits all that time. The rest of the partition then goes on until 1,024 messages or 8 MiB are
unfinished, or the first of them is 262,144 offsets behind: from there on the partition waits, as what is finished ahead of a
position has to be kept with it. What waits so is copied, so that it keeps nothing else in memory; a message that is being handled keeps
the broker's answer that it came in ([memory.md](memory.md)).

## What becomes of a failure

| class | from | what happens |
|---|---|---|
| failed | any error that says nothing else, `Fault::failed`, a panic, a time limit | tried again after a growing wait. After its attempts (5) it becomes a dead letter if it failed alone: others of its route succeeded beside it. If too few others were tried to tell, after 15 minutes. If others fail too it is an outage, and waits |
| transient | `Fault::transient`; an error of the client that may pass; an `io::Error` of a lost or refused connection; either of them as a cause of another error | tried again for as long as it takes, never a dead letter |
| poison | what cannot be decoded, `Fault::poison`, a filter that panics over it | a dead letter at once |
| stop | `Fault::stop`; an error of the client after which it cannot go on (closed, fenced, not authenticated); either as a cause | the application ends with an error; the message stays unfinished |

A batch that fails runs again message by message, without those that were marked. All messages of a partition are one slice of a route of
batches: one that fails holds up its whole partition until it becomes a dead letter, and none is tried beside it that would show that
it fails alone, but in other partitions of the route. Where there are no others that takes 15 minutes (`Retry::give_up_after_ms`
says otherwise); a handler that returns `Fault::poison` for what can never succeed sets it aside at once. Being given up, or stopped, is no failure. A
panic in what is no handler's, decoder's or filter's call (the destructor of a handler that is dropped at its time limit, a fault of
this crate) ends the application: its partition would stand still without a word.

## Before the handler

In this order: `expire_after` leaves out messages that are too old, `minimum_age` waits until they are old enough (and holds up those
behind them), `filter` leaves out what it says; each in the order in which the route names them. Then `throttle` waits. What is left out
is counted as `filtered`.

## Dead letters

A letter goes to `dlq.APPLICATION.TOPIC` (or `Route::dead_letters`), into the partition of the source's number modulo its count. The topic
is created as wide as the source if it is not there, and takes messages that are as large with 16 KiB beside them
(`max.message.bytes`). Key, value and headers are those of the message, its time is that of setting
aside, and behind its own headers it has these, as text. The first six are those of Kafka's share groups (KIP-1191).

| header | |
|---|---|
| `__dlq.errors.topic`, `.partition`, `.offset` | where the message is |
| `__dlq.errors.group` | the application |
| `__dlq.errors.delivery.count` | how often it was given to the handler |
| `__dlq.errors.message` | the first line of the cause |
| `__mainstem.errors.stage` | `filter`, `decode`, `handle` or `send` |
| `__mainstem.errors.class` | `failed` or `poison` |
| `__mainstem.errors.cause` | the error and its causes, a line each, 4 KiB at most |
| `__mainstem.errors.first.ms` | when its first attempt failed, in ms since 1970 |
| `__mainstem.errors.timestamp` | when the message was first written, in ms since 1970 |
| `__mainstem.errors.rounds` | how often it was replayed before |
| `__mainstem.errors.left.out` | what a letter lacks that is too large for its topic: `value`, `headers`, `key`, with commas; else it is not there |

Letters are deleted as any other records: after the brokers' usual retention (7 days with Kafka's), unless the topic is created with
another one before the first letter (`retention.ms`).

A message is finished when its letter is acknowledged. A letter that its topic does not take for its size is written with the first 256
bytes of the cause; if that is too large, without the value; if that is, with the reason alone and a key of at most 256 bytes. What it
lacks is in `__mainstem.errors.left.out`, and the message stays at its topic, partition and offset for as long as the topic keeps it.
The log says so, with the setting that is in the way (`max.message.bytes` of the letters' topic, or `request_bytes_max` of the producer,
`App::producer`; 32 MiB), and `mainstem_flow_dead_letters_cut_total` counts them. A letter that cannot be written at all, as
the topic takes not even the reason (some 600 bytes) or is away, holds the position and is tried again until it can be. After an error
of the client after which it cannot go on the application ends.

What a handler sends goes with the `traceparent` of its message, and without it where only that makes it too large for its topic.
A letter whose message just fits its topic is replayed without the headers of the replay; one that lacks a part of its message is not replayed.

`mainstem dead-letters list|show|replay|purge` looks after them. `replay` and `purge` show what they would do, and do it by `--execute`
alone. `purge` reads all that it would delete. If one of the records is no letter it deletes nothing: the first three headers make a
letter, and not the name of the topic. What is replayed has the time of the replay, so that neither
`expire_after` nor the topic's retention takes it for old, and says in `__mainstem.errors.timestamp` when it was first written. With
`--keep-time` it has that time: a route that lets messages expire then leaves it out, and retention may delete it at once.

`replay` writes with the rights of whoever calls it, and a letter says itself where it comes from. So it goes only to a topic that its
group reads: one that the group has committed positions of, or that its members have. The group is the one that both the letter and the
name of its topic (`dlq.GROUP.`) say; `--group` names it where the topic has another name, and `--to TOPIC` writes anywhere. Topics and
partitions that letters go to are listed first. A letter that does not go, or cannot be written, is named with the reason and stays, the
others are written, and the exit code is 1. `--class`, `--cause`, `--key`, `--since` and `--until` (when it was set aside) choose letters, for
`show` as for `replay`.

A letter that was replayed is deleted if all others of its topic, or of `--partition`, were. Otherwise it stays, and `replay` writes a
note behind it: a record without key and value whose header `__mainstem.errors.replayed` has the offsets of such letters of the
partition. The next replay leaves them out, unless `--offset` names one. A replay that is ended before its notes writes them again.

## Giving up partitions, stopping

When a partition is given up, or the application stops, nothing more of it starts. Handlers see `Cx::revoked`, and have `revoke_grace`
(10 s) or `stop_within` (30 s); then they are dropped, at an await. What the producer has by then is waited for when a partition is given
up, at most as long as its delivery may take (3 minutes), so that nothing comes behind what the next owner writes; a stop closes the
producer instead, which gives up what is not written within a second. What is finished is committed, and only then the group goes
on. The last commit of a stop has what handlers have left of `stop_within`, or 5 s. Other partitions go on meanwhile. A process that is killed, or that the group has not heard of for too long, cannot promise that: what
its producer had sent by then may come late.

A topic that is deleted and created anew while the application reads it is read from its beginning, by its id (Kafka 2.8 and later) or because
it is shorter. While no process runs only the second is noticed: reset the group's offsets after such a change. Positions are committed
with the id of their topic (OffsetCommit 10), so that those in the old topic are never taken for positions in the new one. Brokers
without that version take names: the id is looked at right before each commit, and a topic that is created anew within these
milliseconds loses what it has before the old position. Positions in a deleted topic are left out, with a warning, and hold up no others.

`Cx::seek` goes on elsewhere in the partition when its attempt has succeeded. In a stream of a publisher that is a reset of the consumer
([brokerless.md](brokerless.md)).

## Logs

What there is to say (a topic that is missing, brokers that are away, letters that cannot be written, SIGUSR1) goes to `tracing`: without
a subscriber nothing is seen. `tracing_subscriber::fmt().init()` at the beginning of `main` prints it.

## Records of transactions

Handlers get records as they were written, those of aborted transactions too. An application that is to get what was committed alone says
so by `App::consumer(|config| ConsumerConfig { isolation: Isolation::ReadCommitted, ..config })`; fetch sizes and what is read ahead
are set there as well.

## Signals

| signal | |
|---|---|
| SIGTERM, SIGINT | stops: what runs has its time, is committed, and the group is left; again: ends at once with 2 |
| SIGTSTP, SIGCONT | starts nothing more, and keeps its partitions; goes on |
| SIGUSR1 | logs where each partition is, and how much is unfinished and runs |

`App::start` instead of `App::run` leaves signals alone.

## Addresses

`App::http("127.0.0.1:8080")` serves `/live`, `/ready` and `/metrics`. The first two answer 200, or 503 with the reason as text.

- `/live` fails when the first unfinished message of a partition has been running, or ready to run, for longer than `stuck_after`
  (5 min): a restart may help. What waits for its next attempt, for the end of a pause, or for a letter or an output to be written, is
  not stuck, and during an outage nothing is: `mainstem_flow_frontier_age_seconds` tells of those. A handler that blocks its thread is named in
  the log within two seconds, while it does and when it comes back.
- `/ready` fails until the process is in its group, when it stops, and when no broker has answered for longer than `unready_after` (15 s):
  they are asked every second. `/live` does not, as a restart would not help. The log names the address after 5 s without an answer, again
  every minute, and says when one answers again. A member of a group that has more of them than partitions is ready.

| metric | labels | |
|---|---|---|
| `mainstem_flow_messages_total` | `route`, `outcome`: `handled`, `failed`, `filtered` | messages that were handled or left out, and attempts that failed |
| `mainstem_flow_retries_total` | `route` | attempts after the first one |
| `mainstem_flow_dead_letters_total` | `route` | messages that were set aside |
| `mainstem_flow_dead_letters_cut_total` | `route` | dead letters that have less than their message, as they are too large for their topic |
| `mainstem_flow_brokers_away_seconds` | | for how long no broker has answered; 0 while they do |
| `mainstem_flow_handler_seconds` | `route` | histogram of how long attempts take |
| `mainstem_flow_unfinished` | `topic`, `partition` | messages that have arrived and are not finished |
| `mainstem_flow_frontier_age_seconds` | `topic`, `partition` | for how long the first of them has been the first |
| `mainstem_flow_lag` | `topic`, `partition` | offsets from that one to the log's end; of a stream, as its publisher said within the last 5 s |
| `mainstem_flow_rebalances_total` | | changes of the partitions of this process |
| `mainstem_flow_state` | `state`: `starting`, `running`, `quiet`, `stopping`, `stopped` | 1 for the present one |

## Commands of a service

`mainstem_flow::main` (feature `command`) gives a service its commands: `run`, `topics plan`, `topics apply [--add-partitions]`,
`routes`, `lag`, each with `--url` and `--json`. A script sees by the exit code what has happened
([command.rs](../crates/flow/tests/it/command.rs)):

| exit code | |
|---|---|
| 0 | All went well; for `topics plan`: the brokers have what is declared. |
| 1 | It failed, and standard error says why; also for words that are no command. |
| 2 | `topics plan`: the brokers differ from what is declared. `topics apply`: they still do, such as by partitions that it does not add unasked. `run`: a second SIGTERM has ended it at once. |
"#;

#[test]
fn the_page_lists_every_scenario() {
    let mut page = String::from(
        "# Handlers\n\nWhat `mainstem-flow` promises, and the scenario that shows it: each is played in memory and in virtual \
         time, and\nagainst a broker where it needs no crash. Written by `UPDATE_EXPECT=1 cargo test -p mainstem-flow --test \
         it scenarios`.\n\nBesides, three processes are killed, stopped and replaced while they count \
         ([promises.rs](../crates/flow/tests/it/promises.rs)),\nwith our broker and with Apache Kafka 4.3.0 under them: nothing is \
         lost, a key's messages run in order, and a kill repeats\nonly what was not committed.\n\n",
    );
    for (name, _, sentence) in scenarios() {
        writeln!(page, "- {sentence} ([{name}](../crates/flow/tests/scenarios/{name}.txt))").unwrap();
    }
    page.push_str(BEHIND_THE_LIST);
    expect_test::expect_file!["../../../../docs/handlers.md"].assert_eq(&page);
}
