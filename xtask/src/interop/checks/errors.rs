//! Errors as Kafka's Java client and librdkafka show them to their users.
//!
//! Each client has a broker to itself, behind a proxy that can inject faults (`proxy.rs`). Its process takes steps and reports their
//! outcomes (tests/interop/java, class Errors, and tests/interop/python/errors.py).

use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use mainstem_testkit::port;
use serde::Deserialize;
use serde_json::{Value, json};

use super::super::broker::{Broker, Kind};
use super::super::client::Client;
use super::super::conversation::Conversation;
use super::super::install;
use super::super::protocol::record_count;
use super::super::proxy::{FETCH, Fault, METADATA, PRODUCE, Proxy};
use super::super::report::Report;
use super::super::world::World;
use crate::process::wait_until;

/// The clients whose errors are looked at.
pub(crate) const CLIENTS: [Client; 2] = [Client::Java, Client::Python];

const STEP_DEADLINE: Duration = Duration::from_secs(90);
/// Number of reads in which a reader has to report an error that it reports once.
const ATTEMPTS: usize = 5;
/// Timeout of a reader that first has to join a group, or to find a topic again.
const READ_MS: u32 = 40_000;
/// Timeout for a change of metadata to become visible.
const PROPAGATION: Duration = Duration::from_secs(90);

const NOT_LEADER_OR_FOLLOWER: i16 = 6;
const UNSUPPORTED_COMPRESSION_TYPE: i16 = 76;

/// The result of a check: the error that the user was shown, if any.
type Shown = Option<String>;

/// A check, and the text of its row in docs/interop.md.
pub(crate) struct Check {
    pub(crate) name: &'static str,
    pub(crate) title: &'static str,
    run: fn(&mut Lab) -> Result<Shown>,
}

/// In the order of their running; the last one leaves no broker behind.
pub(crate) const CHECKS: &[Check] = &[
    Check {
        name: "error: not leader, write",
        title: "NOT_LEADER_OR_FOLLOWER twice in answer to a write: metadata is asked for, every record is there once",
        run: Lab::not_leader_write,
    },
    Check {
        name: "error: not leader, no retries",
        title: "NOT_LEADER_OR_FOLLOWER in answer to a write of a producer without retries (librdkafka repeats it all the same)",
        run: Lab::not_leader_without_retries,
    },
    Check {
        name: "error: not leader, read",
        title: "NOT_LEADER_OR_FOLLOWER twice in answer to a read: metadata is asked for, every record is read once",
        run: Lab::not_leader_read,
    },
    Check {
        name: "error: new topic id, write",
        title: "Topic deleted and created again under a producer, which continues",
        run: Lab::new_topic_id_write,
    },
    Check {
        name: "error: new topic id, read",
        title: "Topic deleted and created again under a consumer, which reads the new one from its beginning",
        run: Lab::new_topic_id_read,
    },
    Check {
        name: "error: record too large",
        title: "A record larger than `max.message.bytes`",
        run: Lab::record_too_large,
    },
    Check {
        name: "error: batch too large",
        title: "A batch larger than `max.message.bytes` of records that are not (the Java client splits it)",
        run: Lab::batch_too_large,
    },
    Check {
        name: "error: limit lowered",
        title: "`max.message.bytes` lowered under a producer, and raised again",
        run: Lab::limit_lowered,
    },
    Check {
        name: "error: compression refused",
        title: "UNSUPPORTED_COMPRESSION_TYPE in answer to a write",
        run: Lab::compression_refused,
    },
    Check {
        name: "error: zstd for an old reader",
        title: "A reader that is limited to Fetch v9 reads zstd, as Kafka 4 lets it",
        run: Lab::zstd_for_an_old_reader,
    },
    Check {
        name: "error: unknown topic, write",
        title: "A write to a topic that is not there, `auto.create.topics.enable=false`",
        run: Lab::unknown_topic_write,
    },
    Check {
        name: "error: unknown topic, read",
        title: "A read of a topic that is not there, until it is",
        run: Lab::unknown_topic_read,
    },
    Check {
        name: "error: connection lost, write",
        title: "Connection lost before the answer to a write: it is repeated, every record is there once",
        run: Lab::connection_lost_write,
    },
    Check {
        name: "error: connection lost, no retries",
        title: "Connection lost before the answer to a write of a producer without retries",
        run: Lab::connection_lost_without_retries,
    },
    Check {
        name: "error: connection lost, read",
        title: "Connection lost before the answer to a read: every record is read once",
        run: Lab::connection_lost_read,
    },
    Check {
        name: "error: throttled, write",
        title: "A producer beyond its `producer_byte_rate` waits, is answered so, and loses nothing",
        run: Lab::throttled_write,
    },
    Check {
        name: "error: throttled, read",
        title: "A consumer beyond its `consumer_byte_rate` waits, is answered so, and misses nothing",
        run: Lab::throttled_read,
    },
    Check {
        name: "error: broker gone",
        title: "Broker killed under a producer, and not started before `delivery.timeout.ms` is over",
        run: Lab::broker_gone,
    },
];

/// Runs all checks with one client.
pub(crate) fn run(world: &World, report: &Report, kind: Kind, client: Client) {
    let mut lab = Lab::start(world, kind, client);
    for check in CHECKS {
        let begin = Instant::now();
        let result = match &mut lab {
            Ok(lab) => (check.run)(lab),
            Err(error) => Err(anyhow::anyhow!("{error:#}")),
        };
        if let Ok(lab) = &lab {
            lab.proxy.clear();
        }
        report.outcome(client.key(), check.name, begin.elapsed(), result);
    }
}

/// A client, its broker, and the proxy between them.
struct Lab {
    client: Client,
    broker: Broker,
    proxy: Proxy,
    conversation: Conversation,
}

/// The outcome of a step.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Answer {
    /// The offset or the error of each record that was sent.
    outcomes: Vec<String>,
    /// Offsets of the records that were read.
    read: Vec<i64>,
    error: Option<String>,
    message: String,
    /// The longest wait for a quota that the client has reported to its user so far.
    throttled_ms: u64,
}

impl Lab {
    fn start(world: &World, kind: Kind, client: Client) -> Result<Lab> {
        let dir = world.run.join(format!("errors-{}", client.key()));
        let port = port();
        let proxy = Proxy::start(([127, 0, 0, 1], port).into())?;
        let settings = vec![
            ("advertised.listeners", format!("PLAINTEXT://{}", proxy.address())),
            ("auto.create.topics.enable", "false".to_string()),
        ];
        let broker = Broker::start(kind, &dir, port, settings)?;
        let mut command = match client {
            Client::Java => {
                let mut java = install::java(128);
                java.arg("mainstem.interop.Errors");
                java
            }
            _ => {
                let mut python = Command::new(install::python());
                python.arg(install::sources("python").join("errors.py"));
                python
            }
        };
        set_quota(world, &proxy)?;
        command.arg(format!("bootstrap={}", proxy.address()));
        let conversation =
            Conversation::start(&format!("errors-{}", client.key()), &mut command, &world.logs)?;
        Ok(Lab { client, broker, proxy, conversation })
    }

    // --------------------------------------------------------------------------------------------- steps

    fn ask(&mut self, step: &Value) -> Result<Answer> {
        let answer = self.conversation.ask(&step.to_string(), STEP_DEADLINE)?;
        serde_json::from_str(&answer).with_context(|| format!("answer {answer}"))
    }

    /// Takes a step that has to go well.
    fn step(&mut self, step: &Value) -> Result<()> {
        let answer = self.ask(step)?;
        ensure!(answer.error.is_none(), "{step}: {answer:?}");
        Ok(())
    }

    fn create(&mut self, topic: &str, config: &Value) -> Result<()> {
        self.step(&json!({ "do": "create", "topic": topic, "config": config }))?;
        let address = self.broker.address();
        let is_served = || Ok(record_count(address, topic, 1).is_ok());
        wait_until(|| format!("{topic} is served"), PROPAGATION, is_served)
    }

    fn delete(&mut self, topic: &str) -> Result<()> {
        self.step(&json!({ "do": "delete", "topic": topic }))?;
        let address = self.broker.address();
        let is_gone = || Ok(record_count(address, topic, 1).is_err());
        wait_until(|| format!("{topic} is gone"), PROPAGATION, is_gone)
    }

    fn producer(&mut self, name: &str, config: &Value) -> Result<()> {
        self.step(&json!({ "do": "producer", "name": name, "config": config }))
    }

    fn consumer(&mut self, name: &str, topic: &str) -> Result<()> {
        self.step(&json!({ "do": "consumer", "name": name, "topic": topic, "config": {} }))
    }

    /// Sends records of these sizes, all at once. Returns the outcome of each.
    fn send(&mut self, producer: &str, topic: &str, sizes: &[usize]) -> Result<Vec<String>> {
        let answer = self.ask(&json!({ "do": "send", "name": producer, "topic": topic, "sizes": sizes }))?;
        ensure!(answer.error.is_none(), "send: {answer:?}");
        Ok(answer.outcomes)
    }

    /// Sends as many small records, which have to get the offsets from `first` on.
    fn send_well(&mut self, producer: &str, topic: &str, first: i64, count: i64) -> Result<()> {
        let sizes = vec![100; usize::try_from(count)?];
        let outcomes = self.send(producer, topic, &sizes)?;
        let wanted: Vec<String> = (first..first + count).map(|offset| offset.to_string()).collect();
        ensure!(outcomes == wanted, "sent: {outcomes:?}");
        Ok(())
    }

    /// Sends one record, which has to fail. Returns the error.
    fn send_badly(&mut self, producer: &str, topic: &str, size: usize, wanted: [&str; 2]) -> Result<Shown> {
        let outcomes = self.send(producer, topic, &[size])?;
        self.shown(&outcomes[0], wanted)
    }

    /// Checks that the shown error is the wanted one: the Java client's, or librdkafka's.
    fn shown(&self, error: &str, wanted: [&str; 2]) -> Result<Shown> {
        let wanted = if self.client == Client::Java { wanted[0] } else { wanted[1] };
        ensure!(error == wanted, "{error:?} is shown, not {wanted}");
        Ok(Some(wanted.to_string()))
    }

    fn poll(&mut self, consumer: &str, count: usize, ms: u32) -> Result<Answer> {
        self.ask(&json!({ "do": "poll", "name": consumer, "count": count, "ms": ms }))
    }

    /// Reads as many records, which have the offsets from `first` on, and sees no error.
    fn read_well(&mut self, consumer: &str, first: i64, count: i64) -> Result<()> {
        let answer = self.poll(consumer, usize::try_from(count)?, READ_MS)?;
        let wanted: Vec<i64> = (first..first + count).collect();
        ensure!(answer.error.is_none() && answer.read == wanted, "{answer:?}, not {wanted:?}");
        Ok(())
    }

    /// Makes a topic with ten records, written by an idempotent producer of the same name (librdkafka's is not by default).
    fn ten_records(&mut self, topic: &str) -> Result<()> {
        self.create(topic, &json!({}))?;
        self.producer(topic, &json!({ "enable.idempotence": "true" }))?;
        self.send_well(topic, topic, 0, 10)
    }

    /// Checks that the fault came as often as it was to come, and that the topic has so many records.
    fn check_struck(&self, topic: &str, count: i64) -> Result<()> {
        ensure!(self.proxy.clear(), "the fault did not come as often as it was to come");
        let found = record_count(self.broker.address(), topic, 1)?;
        ensure!(found == count, "{topic} has {found} records, not {count}");
        Ok(())
    }

    /// Waits until the client has asked for metadata more often than `before`.
    fn await_metadata_request(&self, before: usize) -> Result<()> {
        let what = || "the metadata is asked for again".to_string();
        wait_until(what, PROPAGATION, || Ok(self.proxy.requests(METADATA) > before))
    }

    // -------------------------------------------------------------------------------------------- checks

    fn not_leader_write(&mut self) -> Result<Shown> {
        self.ten_records("not-leader-write")?;
        let asked = self.proxy.requests(METADATA);
        self.proxy.set(Fault::Error { api: PRODUCE, code: NOT_LEADER_OR_FOLLOWER, times: 2 });
        self.send_well("not-leader-write", "not-leader-write", 10, 10)?;
        self.await_metadata_request(asked)?;
        self.check_struck("not-leader-write", 20)?;
        Ok(None)
    }

    fn not_leader_without_retries(&mut self) -> Result<Shown> {
        let topic = "not-leader-once";
        self.create(topic, &json!({}))?;
        self.producer(topic, &without_retries())?;
        self.send_well(topic, topic, 0, 1)?;
        self.proxy.set(Fault::Error { api: PRODUCE, code: NOT_LEADER_OR_FOLLOWER, times: 1 });
        if self.client == Client::Java {
            let shown = self.send_badly(topic, topic, 100, ["NotLeaderOrFollowerException", ""])?;
            self.check_struck(topic, 2)?;
            return Ok(shown);
        }
        // librdkafka takes this error to mean that nothing was written, and that no retry was spent.
        self.send_well(topic, topic, 2, 1)?;
        self.check_struck(topic, 3)?;
        Ok(None)
    }

    fn not_leader_read(&mut self) -> Result<Shown> {
        let topic = "not-leader-read";
        self.ten_records(topic)?;
        self.consumer(topic, topic)?;
        self.read_well(topic, 0, 10)?;
        let asked = self.proxy.requests(METADATA);
        self.proxy.set(Fault::Error { api: FETCH, code: NOT_LEADER_OR_FOLLOWER, times: 2 });
        self.send_well(topic, topic, 10, 10)?;
        self.read_well(topic, 10, 10)?;
        self.await_metadata_request(asked)?;
        self.check_struck(topic, 20)?;
        Ok(None)
    }

    fn new_topic_id_write(&mut self) -> Result<Shown> {
        let topic = "new-id-write";
        self.ten_records(topic)?;
        self.delete(topic)?;
        self.create(topic, &json!({}))?;
        self.send_well(topic, topic, 0, 5)?;
        self.check_struck(topic, 5)?;
        Ok(None)
    }

    fn new_topic_id_read(&mut self) -> Result<Shown> {
        let topic = "new-id-read";
        self.ten_records(topic)?;
        self.consumer(topic, topic)?;
        self.read_well(topic, 0, 10)?;
        self.delete(topic)?;
        self.create(topic, &json!({}))?;
        self.producer(topic, &json!({}))?;
        self.send_well(topic, topic, 0, 5)?;
        self.read_well(topic, 0, 5)?;
        Ok(None)
    }

    fn record_too_large(&mut self) -> Result<Shown> {
        let topic = "record-too-large";
        self.create(topic, &json!({ "max.message.bytes": "10000" }))?;
        self.producer(topic, &json!({}))?;
        let shown = self.send_badly(topic, topic, 20_000, TOO_LARGE)?;
        self.send_well(topic, topic, 0, 1)?;
        self.check_struck(topic, 1)?;
        Ok(shown)
    }

    /// KAFKA-3995: the Java client splits the batch. librdkafka fails all of its records.
    fn batch_too_large(&mut self) -> Result<Shown> {
        let topic = "batch-too-large";
        self.create(topic, &json!({ "max.message.bytes": "10000" }))?;
        self.producer(topic, &json!({ "batch.size": "200000", "linger.ms": "500" }))?;
        let outcomes = self.send(topic, topic, &[1_000; 50])?;
        if self.client == Client::Java {
            let offsets: Vec<String> = (0..50).map(|offset| offset.to_string()).collect();
            ensure!(outcomes == offsets, "{outcomes:?}");
            self.check_struck(topic, 50)?;
            return Ok(None);
        }
        ensure!(outcomes.iter().all(|outcome| outcome == TOO_LARGE[1]), "{outcomes:?}");
        self.check_struck(topic, 0)?;
        self.shown(&outcomes[0], TOO_LARGE)
    }

    fn limit_lowered(&mut self) -> Result<Shown> {
        let topic = "limit-lowered";
        self.create(topic, &json!({ "max.message.bytes": "10000" }))?;
        self.producer(topic, &json!({}))?;
        let is_taken = |outcome: &str| outcome.parse::<i64>().is_ok();
        let mut shown = String::new();
        for (limit, taken) in [("10000", true), ("1000", false), ("10000", true)] {
            self.step(&json!({ "do": "alter", "topic": topic, "config": { "max.message.bytes": limit } }))?;
            wait_until(
                || format!("with a limit of {limit}, a record is taken: {taken}"),
                PROPAGATION,
                || {
                    let outcome = self.send(topic, topic, &[5_000])?.remove(0);
                    let holds = is_taken(&outcome) == taken;
                    if !is_taken(&outcome) {
                        shown = outcome;
                    }
                    Ok(holds)
                },
            )?;
        }
        self.shown(&shown, TOO_LARGE)
    }

    fn compression_refused(&mut self) -> Result<Shown> {
        let topic = "compression-refused";
        self.create(topic, &json!({}))?;
        self.producer(topic, &json!({ "compression.type": "zstd" }))?;
        self.proxy.set(Fault::Error { api: PRODUCE, code: UNSUPPORTED_COMPRESSION_TYPE, times: 1 });
        let wanted = ["UnsupportedCompressionTypeException", "UNSUPPORTED_COMPRESSION_TYPE"];
        self.send_badly(topic, topic, 1_000, wanted)
    }

    /// KIP-110 made brokers refuse such a reader if records had to be converted for it. Kafka 4 converts none, and refuses none.
    fn zstd_for_an_old_reader(&mut self) -> Result<Shown> {
        let topic = "zstd-old-reader";
        self.create(topic, &json!({ "compression.type": "zstd" }))?;
        self.producer(topic, &json!({ "compression.type": "zstd" }))?;
        self.send_well(topic, topic, 0, 5)?;
        self.proxy.set(Fault::Old { api: FETCH, version: 9 });
        self.consumer(topic, topic)?;
        self.read_well(topic, 0, 5)?;
        Ok(None)
    }

    fn unknown_topic_write(&mut self) -> Result<Shown> {
        let timeouts = if self.client == Client::Java {
            json!({ "max.block.ms": "1500" })
        } else {
            json!({ "topic.metadata.propagation.max.ms": "1000", "message.timeout.ms": "5000" })
        };
        self.producer("unknown", &timeouts)?;
        self.send_badly("unknown", "unknown-write", 100, ["TimeoutException", "UNKNOWN_TOPIC_OR_PART"])
    }

    /// The Java client waits for the topic. librdkafka reports its absence once, and waits.
    fn unknown_topic_read(&mut self) -> Result<Shown> {
        let topic = "unknown-read";
        self.consumer(topic, topic)?;
        let mut error = String::new();
        let is_said = self.client != Client::Java;
        // On a busy machine the first reads may end before it is reported.
        for _ in 0..ATTEMPTS {
            error = self.poll(topic, 1, 3_000)?.error.unwrap_or_default();
            if !is_said || !error.is_empty() {
                break;
            }
        }
        let shown = self.shown(&error, ["", "UNKNOWN_TOPIC_OR_PART"])?;
        Ok(shown.filter(|shown| !shown.is_empty()))
    }

    fn connection_lost_write(&mut self) -> Result<Shown> {
        let topic = "lost-write";
        self.ten_records(topic)?;
        self.proxy.set(Fault::HangUp { api: PRODUCE, times: 1 });
        self.send_well(topic, topic, 10, 10)?;
        self.check_struck(topic, 20)?;
        Ok(None)
    }

    fn connection_lost_without_retries(&mut self) -> Result<Shown> {
        let topic = "lost-once";
        self.create(topic, &json!({}))?;
        self.producer(topic, &without_retries())?;
        self.send_well(topic, topic, 0, 1)?;
        self.proxy.set(Fault::HangUp { api: PRODUCE, times: 1 });
        let shown = self.send_badly(topic, topic, 100, ["NetworkException", "_TRANSPORT"])?;
        self.check_struck(topic, 2)?;
        Ok(shown)
    }

    fn connection_lost_read(&mut self) -> Result<Shown> {
        let topic = "lost-read";
        self.ten_records(topic)?;
        self.consumer(topic, topic)?;
        self.read_well(topic, 0, 10)?;
        self.proxy.set(Fault::HangUp { api: FETCH, times: 1 });
        self.send_well(topic, topic, 10, 10)?;
        self.read_well(topic, 10, 10)?;
        self.check_struck(topic, 20)?;
        Ok(None)
    }

    /// KIP-219: the answer that goes beyond the quota comes at once, and the client's next request waits.
    fn throttled_write(&mut self) -> Result<Shown> {
        let topic = "throttled-write";
        self.create(topic, &json!({}))?;
        self.producer(topic, &json!({ "client.id": THROTTLED }))?;
        let begin = Instant::now();
        let outcomes = self.send(topic, topic, &[BEYOND_QUOTA_BYTES])?;
        ensure!(outcomes == ["0"], "sent: {outcomes:?}");
        let answer = self.ask(&json!({ "do": "send", "name": topic, "topic": topic, "sizes": [10] }))?;
        ensure!(answer.outcomes == ["1"], "{answer:?}");
        self.check_struck(topic, 2)?;
        check_throttled(&answer, begin.elapsed())
    }

    /// The answer that would go beyond the quota comes without records. Batches are small, since one that is larger than
    /// the quota of ten seconds would never come.
    fn throttled_read(&mut self) -> Result<Shown> {
        let topic = "throttled-read";
        self.create(topic, &json!({}))?;
        self.producer(topic, &json!({ "batch.size": "2000" }))?;
        self.send(topic, topic, &[1_000; BEYOND_QUOTA_BYTES / 1_000])?;
        let config = json!({ "client.id": THROTTLED });
        self.step(&json!({ "do": "consumer", "name": topic, "topic": topic, "config": config }))?;
        let begin = Instant::now();
        let count = BEYOND_QUOTA_BYTES / 1_000;
        let answer = self.poll(topic, count, READ_MS)?;
        let is_complete = answer.read.iter().copied().eq(0..i64::try_from(count)?);
        ensure!(answer.error.is_none() && is_complete, "{answer:?}");
        check_throttled(&answer, begin.elapsed())
    }

    fn broker_gone(&mut self) -> Result<Shown> {
        let topic = "broker-gone";
        self.create(topic, &json!({}))?;
        let timeouts =
            json!({ "delivery.timeout.ms": "3000", "request.timeout.ms": "1000", "linger.ms": "0" });
        self.producer(topic, &timeouts)?;
        // It has to be connected first. On a busy machine one attempt may be too short for that.
        let is_connected =
            || Ok(self.send(topic, topic, &[100])?.iter().all(|sent| sent.parse::<i64>().is_ok()));
        wait_until(|| "a record is written".to_owned(), CONNECTED, is_connected)?;
        self.broker.kill();
        self.send_badly(topic, topic, 100, ["TimeoutException", "_MSG_TIMED_OUT"])
    }
}

/// Timeout for a producer to write its first record.
const CONNECTED: Duration = Duration::from_secs(60);

/// Too large for the topic, for the broker, or for a request: the clients show the same error for all.
const TOO_LARGE: [&str; 2] = ["RecordTooLargeException", "MSG_SIZE_TOO_LARGE"];

/// The client id that has a quota.
const THROTTLED: &str = "throttled";
/// Bytes per second, produced and consumed. Kafka takes the mean over ten seconds at least: 60,000 bytes at once are 6,000 a second. That
/// is a fifth too much, which a wait of two seconds makes up for.
const QUOTA: u64 = 5_000;
const BEYOND_QUOTA_BYTES: usize = 60_000;
/// Less than those two seconds: some time may have passed before.
const THROTTLED_MIN: Duration = Duration::from_millis(500);

fn set_quota(world: &World, proxy: &Proxy) -> Result<()> {
    let bootstrap = proxy.address().to_string();
    let quota = format!("producer_byte_rate={QUOTA},consumer_byte_rate={QUOTA}");
    let entity: &[&str] = &["--entity-type", "clients", "--entity-name", THROTTLED];
    let alter: &[&str] = &["--bootstrap-server", &bootstrap, "--alter", "--add-config", &quota];
    world.tool("kafka-configs", &[alter, entity].concat(), "")?.success().map(drop)
}

fn check_throttled(answer: &Answer, took: Duration) -> Result<Shown> {
    ensure!(took >= THROTTLED_MIN, "it took only {took:?}");
    let reported = Duration::from_millis(answer.throttled_ms);
    ensure!(reported >= THROTTLED_MIN, "the client reports a wait of {reported:?}");
    Ok(None)
}

fn without_retries() -> Value {
    json!({ "retries": "0", "enable.idempotence": "false", "acks": "all" })
}
