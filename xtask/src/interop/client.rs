//! The clients under test, each behind the same few commands (tests/interop/README.md).

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::Result;

use super::broker::PARTITIONS;
use super::feeder::Feeder;
use super::install::{self, Toolchain};
use super::kcat;
use super::member::Member;
use super::protocol::record_count;
use super::text::Limits;
use super::world::World;
use crate::process::{Process, wait_until};

/// A command that takes longer hangs.
pub(crate) const COMMAND_DEADLINE: Duration = Duration::from_secs(150);
const CREATE_DEADLINE: Duration = Duration::from_secs(90);

/// The way in which members give up partitions when a group rebalances.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Rebalance {
    /// All at once, before they join again.
    Eager,
    /// Only those that move to another member (KIP-429).
    Cooperative,
    /// The same, but the coordinator assigns: the consumer protocol (KIP-848).
    Consumer,
}

impl Rebalance {
    pub(crate) const ALL: [Rebalance; 3] = [Rebalance::Eager, Rebalance::Cooperative, Rebalance::Consumer];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Rebalance::Eager => "eager",
            Rebalance::Cooperative => "cooperative",
            Rebalance::Consumer => "consumer",
        }
    }
}

/// A group of consumers of one topic.
#[derive(Debug, Clone)]
pub(crate) struct Group {
    pub(crate) id: String,
    pub(crate) topic: String,
    pub(crate) rebalance: Rebalance,
    /// The instance id of the next member, which is static then (KIP-345).
    pub(crate) instance: Option<String>,
    /// The session timeout of the next member in milliseconds; those of the consumer protocol have the broker's.
    pub(crate) session_ms: u32,
}

/// The session timeout of members in milliseconds: longer than a busy machine delays a process.
pub(crate) const SESSION_MS: u32 = 30_000;

/// A client library.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Client {
    Java,
    Python,
    Go,
    Kcat,
    KafkaPython,
    Aiokafka,
    Sarama,
    KafkaGo,
    KafkaJs,
}

/// The features of a client.
pub(crate) struct Facts {
    /// Its name in topics, options and files.
    pub(crate) key: &'static str,
    /// Its name for people.
    pub(crate) title: &'static str,
    pub(crate) toolchain: Toolchain,
    /// The ways of giving up partitions that it has.
    pub(crate) rebalances: &'static [Rebalance],
    /// The parts of a record that it cannot express.
    pub(crate) limits: Limits,
    /// True if its producer numbers its records, so that the broker detects repetitions (KIP-98).
    pub(crate) is_idempotent: bool,
    /// True if its producer has transactions.
    pub(crate) has_transactions: bool,
}

/// A client that has everything.
const WHOLE: Facts = Facts {
    key: "",
    title: "",
    toolchain: Toolchain::Java,
    rebalances: &Rebalance::ALL,
    limits: Limits::NONE,
    is_idempotent: true,
    has_transactions: true,
};

const EAGER: &[Rebalance] = &[Rebalance::Eager];
/// The ways before KIP-848.
const CLASSIC: &[Rebalance] = &[Rebalance::Eager, Rebalance::Cooperative];

/// kafka-python and aiokafka have the same limits.
const PYTHON_LIMITS: Limits = Limits { no_null_header: true, no_void: true, ..Limits::NONE };

impl Client {
    pub(crate) const ALL: [Client; 9] = [
        Client::Java,
        Client::Python,
        Client::Go,
        Client::Kcat,
        Client::KafkaPython,
        Client::Aiokafka,
        Client::Sarama,
        Client::KafkaGo,
        Client::KafkaJs,
    ];

    pub(crate) const fn facts(self) -> Facts {
        match self {
            Client::Java => Facts { key: "java", title: "Kafka's Java client 4.3.0", ..WHOLE },
            Client::Python => Facts {
                key: "python",
                title: "confluent-kafka 2.16.1 (Python)",
                toolchain: Toolchain::Python,
                ..WHOLE
            },
            Client::Go => {
                Facts { key: "go", title: "franz-go 1.22.2 (Go)", toolchain: Toolchain::Go, ..WHOLE }
            }
            Client::Kcat => Facts {
                key: "kcat",
                title: "kcat 1.7 (librdkafka)",
                toolchain: Toolchain::Kcat,
                rebalances: CLASSIC,
                limits: Limits { no_empty: true, same_headers: true, ..Limits::NONE },
                has_transactions: false,
                ..WHOLE
            },
            Client::KafkaPython => Facts {
                key: "kafka-python",
                title: "kafka-python 3.0.12",
                toolchain: Toolchain::Python,
                rebalances: CLASSIC,
                limits: PYTHON_LIMITS,
                ..WHOLE
            },
            Client::Aiokafka => Facts {
                key: "aiokafka",
                title: "aiokafka 0.14.0 (Python)",
                toolchain: Toolchain::Python,
                rebalances: EAGER,
                limits: PYTHON_LIMITS,
                ..WHOLE
            },
            Client::Sarama => Facts {
                key: "sarama",
                title: "sarama 1.61.1 (Go)",
                toolchain: Toolchain::Go,
                rebalances: EAGER,
                ..WHOLE
            },
            Client::KafkaGo => Facts {
                key: "kafka-go",
                title: "kafka-go 0.4.51 (segmentio)",
                toolchain: Toolchain::Go,
                rebalances: EAGER,
                limits: Limits { no_empty: true, ..Limits::NONE },
                is_idempotent: false,
                has_transactions: false,
            },
            Client::KafkaJs => Facts {
                key: "kafkajs",
                title: "kafkajs 2.2.4 (Node.js)",
                toolchain: Toolchain::Node,
                rebalances: EAGER,
                limits: Limits { no_null_header: true, ..Limits::NONE },
                ..WHOLE
            },
        }
    }

    /// Its name in topics, options and files.
    pub(crate) fn key(self) -> &'static str {
        self.facts().key
    }

    /// Creates topics with as many partitions as every topic has here. kcat has no such command; it asks for the
    /// topics' metadata as a producer does, which creates them.
    pub(crate) fn create(self, world: &World, topics: &[String]) -> Result<()> {
        if self == Client::Kcat {
            topics.iter().try_for_each(|topic| kcat::create(world, topic))?;
        } else {
            let partitions = PARTITIONS.to_string();
            self.command(world, "create", &[("topics", &topics.join(",")), ("partitions", &partitions)])?;
        }
        // Kafka lists a topic a moment before it serves all of it.
        let is_served = |topic: &String| record_count(world.address(), topic, PARTITIONS).is_ok();
        wait_until(|| format!("{topics:?} are served"), CREATE_DEADLINE, || Ok(topics.iter().all(is_served)))
    }

    /// Writes the records of `input` to each job's topic with the job's codec.
    pub(crate) fn produce(self, world: &World, input: &Path, jobs: &[(&str, String)]) -> Result<()> {
        if self == Client::Kcat {
            return jobs.iter().try_for_each(|(codec, topic)| kcat::produce(world, input, codec, topic));
        }
        let jobs: Vec<String> = jobs.iter().map(|(codec, topic)| format!("{codec}:{topic}")).collect();
        self.command(world, "produce", &[("input", &input.display().to_string()), ("jobs", &jobs.join(","))])
    }

    /// Reads each topic from its beginning to its end into the file that [`read_file`] names.
    pub(crate) fn consume(self, world: &World, topics: &[String], out: &Path) -> Result<()> {
        std::fs::create_dir_all(out)?;
        if self == Client::Kcat {
            return topics.iter().try_for_each(|topic| kcat::consume(world, topic, &read_file(out, topic)));
        }
        self.command(world, "consume", &[("topics", &topics.join(",")), ("out", &out.display().to_string())])
    }

    /// Reads what the Java client gets of a topic with `read_committed`.
    pub(crate) fn consume_committed(self, world: &World, topic: &str, out: &Path) -> Result<()> {
        std::fs::create_dir_all(out)?;
        let out = out.display().to_string();
        self.command(world, "consume", &[("topics", topic), ("out", &out), ("isolation", "read_committed")])
    }

    /// Passes all records on to another topic in transactions, some of which are aborted and made again.
    pub(crate) fn transact(
        self,
        world: &World,
        input: &str,
        output: &str,
        group: &str,
        id: &str,
    ) -> Result<()> {
        let partitions = PARTITIONS.to_string();
        let arguments =
            [("input", input), ("output", output), ("group", group), ("id", id), ("partitions", &partitions)];
        self.command(world, "transact", &arguments)
    }

    /// Creates, describes, alters and deletes, checking each answer. kcat has no such commands.
    pub(crate) fn admin(self, world: &World, topic: &str) -> Result<()> {
        self.command(world, "admin", &[("topic", topic)])
    }

    /// Returns true if it keeps some of its input to itself until more comes: kcat reads blocks.
    pub(crate) fn holds_input_back(self) -> bool {
        self == Client::Kcat
    }

    /// Starts a producer, idempotent if it can be, that writes what it is fed, beginning with record `fed`.
    pub(crate) fn feed(self, world: &World, topic: &str, fed: usize) -> Result<Feeder> {
        let mut command = match self {
            Client::Kcat => kcat::feed(world, topic),
            _ => self.program(world, "feed", &[("topic", topic)]),
        };
        let process = Process::start_with_input(&format!("feed-{topic}"), &mut command, &world.logs)?;
        Ok(Feeder::new(process, fed))
    }

    /// Starts a member of a group, which reads and commits until it is asked to leave.
    pub(crate) fn member(self, world: &World, name: &str, group: &Group) -> Result<Member> {
        let out = world.run.join(format!("{name}.out"));
        let process = if self == Client::Kcat {
            Process::start_to_file(name, &mut kcat::member(world, group), &world.logs, &out)?
        } else {
            let out = out.display().to_string();
            let (topic, id, rebalance) = (&*group.topic, &*group.id, group.rebalance.name());
            let session_ms = group.session_ms.to_string();
            let mut arguments = vec![
                ("topic", topic),
                ("group", id),
                ("rebalance", rebalance),
                ("session_ms", &session_ms),
                ("out", &out),
                ("commit_every", "500"),
            ];
            arguments.extend(group.instance.as_deref().map(|instance| ("instance", instance)));
            Process::start_with_input(name, &mut self.program(world, "member", &arguments), &world.logs)?
        };
        Ok(Member::new(self, name, process, out))
    }

    /// Runs a command to its end.
    fn command(self, world: &World, command: &str, arguments: &[(&str, &str)]) -> Result<()> {
        if self == Client::Java {
            let arguments = all_arguments(world, command, arguments);
            return world.java("mainstem.interop.Client", &arguments, "")?.success().map(drop);
        }
        let name = format!("{}-{command}", self.key());
        Process::start(&name, &mut self.program(world, command, arguments), &world.logs)?
            .wait(COMMAND_DEADLINE)
    }

    /// The program of this client as its own process.
    fn program(self, world: &World, command: &str, arguments: &[(&str, &str)]) -> Command {
        let mut program = match self {
            Client::Java => {
                let mut java = install::java(160);
                java.arg("mainstem.interop.Client");
                java
            }
            Client::Python => python("client.py"),
            Client::KafkaPython => python("kafka_python.py"),
            Client::Aiokafka => python("aiokafka_client.py"),
            Client::Go => Command::new(install::go_client("franz")),
            Client::Sarama => Command::new(install::go_client("sarama")),
            Client::KafkaGo => Command::new(install::go_client("kafkago")),
            Client::KafkaJs => {
                let mut node = Command::new("node");
                node.env("NODE_PATH", install::node_modules());
                node.arg(install::sources("node").join("client.js"));
                node
            }
            Client::Kcat => Command::new("kcat"),
        };
        program.args(all_arguments(world, command, arguments));
        program
    }
}

fn python(program: &str) -> Command {
    let mut python = Command::new(install::python());
    python.arg(install::sources("python").join(program));
    python
}

fn all_arguments(world: &World, command: &str, arguments: &[(&str, &str)]) -> Vec<String> {
    let mut all = vec![command.to_string(), format!("bootstrap={}", world.bootstrap())];
    all.extend(arguments.iter().map(|(name, value)| format!("{name}={value}")));
    all
}

/// Returns the file in which [`Client::consume`] leaves the records of a topic.
pub(crate) fn read_file(out: &Path, topic: &str) -> PathBuf {
    out.join(format!("{topic}.jsonl"))
}
