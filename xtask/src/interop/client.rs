//! The clients under test, each behind the same few commands (tests/interop/README.md).

use std::collections::{BTreeSet, HashMap};
use std::fs::File;
use std::io::{BufWriter, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::process::{ChildStdin, Command};
use std::sync::mpsc::{Sender, channel};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use super::broker::PARTITIONS;
use super::install::{self, Toolchain};
use super::kcat;
use super::protocol::record_count;
use super::text::Text;
use super::world::World;
use crate::process::{Process, ended_by_request, wait_until};

/// A command that takes longer hangs.
pub(crate) const COMMAND_DEADLINE: Duration = Duration::from_secs(150);
const CREATE_DEADLINE: Duration = Duration::from_secs(20);
const LEAVE_DEADLINE: Duration = Duration::from_secs(30);

/// How members give up partitions when a group rebalances.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Rebalance {
    /// All at once, before they join again.
    Eager,
    /// Only those that move to another member (KIP-429).
    Cooperative,
}

impl Rebalance {
    pub(crate) const ALL: [Rebalance; 2] = [Rebalance::Eager, Rebalance::Cooperative];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Rebalance::Eager => "eager",
            Rebalance::Cooperative => "cooperative",
        }
    }
}

/// A group of consumers of one topic.
#[derive(Debug, Clone)]
pub(crate) struct Group {
    pub(crate) id: String,
    pub(crate) topic: String,
    pub(crate) rebalance: Rebalance,
}

/// A client library.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Client {
    Java,
    Python,
    Go,
    Kcat,
}

impl Client {
    pub(crate) const ALL: [Client; 4] = [Client::Java, Client::Python, Client::Go, Client::Kcat];

    /// Its name in topics, options and files.
    pub(crate) fn key(self) -> &'static str {
        match self {
            Client::Java => "java",
            Client::Python => "python",
            Client::Go => "go",
            Client::Kcat => "kcat",
        }
    }

    /// Its name for people.
    pub(crate) fn title(self) -> &'static str {
        match self {
            Client::Java => "Kafka's Java client 4.3.0",
            Client::Python => "confluent-kafka 2.16.1 (Python)",
            Client::Go => "franz-go 1.22.2 (Go)",
            Client::Kcat => "kcat 1.7 (librdkafka)",
        }
    }

    pub(crate) fn toolchain(self) -> Toolchain {
        match self {
            Client::Java => Toolchain::Java,
            Client::Python => Toolchain::Python,
            Client::Go => Toolchain::Go,
            Client::Kcat => Toolchain::Kcat,
        }
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
        // Kafka tells of a topic a moment before it serves all of it.
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

    /// Creates, describes, alters and deletes, checking each answer. kcat has no such commands.
    pub(crate) fn admin(self, world: &World, topic: &str) -> Result<()> {
        self.command(world, "admin", &[("topic", topic)])
    }

    /// Whether it keeps some of its input to itself until more comes: kcat reads blocks.
    pub(crate) fn holds_input_back(self) -> bool {
        self == Client::Kcat
    }

    /// Starts an idempotent producer that writes what it is fed, beginning with record `fed`.
    pub(crate) fn feed(self, world: &World, topic: &str, fed: usize) -> Result<Feeder> {
        let mut command = match self {
            Client::Kcat => kcat::feed(world, topic),
            _ => self.program(world, "feed", &[("topic", topic)]),
        };
        let process = Process::start_with_input(&format!("feed-{topic}"), &mut command, &world.logs)?;
        Ok(Feeder::new(process, fed))
    }

    /// Starts a member of a group, which reads and commits until it is told to leave.
    pub(crate) fn member(self, world: &World, name: &str, group: &Group) -> Result<Member> {
        let out = world.run.join(format!("{name}.out"));
        let process = if self == Client::Kcat {
            Process::start_to_file(name, &mut kcat::member(world, group), &world.logs, &out)?
        } else {
            let out = out.display().to_string();
            let (topic, id, rebalance) = (&*group.topic, &*group.id, group.rebalance.name());
            let arguments = [
                ("topic", topic),
                ("group", id),
                ("rebalance", rebalance),
                ("out", &out),
                ("commit_every", "500"),
            ];
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
            Client::Python => {
                let mut python = Command::new(install::python());
                python.arg(install::sources("python").join("client.py"));
                python
            }
            Client::Go => Command::new(install::go_client()),
            Client::Kcat => Command::new("kcat"),
        };
        program.args(all_arguments(world, command, arguments));
        program
    }
}

fn all_arguments(world: &World, command: &str, arguments: &[(&str, &str)]) -> Vec<String> {
    let mut all = vec![command.to_string(), format!("bootstrap={}", world.bootstrap())];
    all.extend(arguments.iter().map(|(name, value)| format!("{name}={value}")));
    all
}

/// Where [`Client::consume`] leaves what it read of a topic.
pub(crate) fn read_file(out: &Path, topic: &str) -> PathBuf {
    out.join(format!("{topic}.jsonl"))
}

/// A producer process and the thread that writes to its input, so that nobody waits for a slow one.
pub(crate) struct Feeder {
    process: Process,
    lines: Option<Sender<String>>,
    writer: Option<JoinHandle<()>>,
    fed: usize,
}

impl Feeder {
    fn new(mut process: Process, fed: usize) -> Feeder {
        let (sender, receiver) = channel::<String>();
        let mut input = BufWriter::new(process.take_stdin());
        let writer = thread::spawn(move || {
            for lines in receiver {
                // It fails when the process has ended, which the waiting side sees and reports.
                if write_now(&mut input, &lines).is_err() {
                    return;
                }
            }
        });
        Feeder { process, lines: Some(sender), writer: Some(writer), fed }
    }

    /// Feeds the next `count` records: record `n` has one of 50 keys and the value "n LINE".
    pub(crate) fn feed(&mut self, text: &Text, count: usize) -> Result<()> {
        self.process.check_alive()?;
        let mut lines = String::new();
        for n in self.fed..self.fed + count {
            lines += &format!("key {}\t{}\n", n % 50, fed_value(text, n));
        }
        self.fed += count;
        let sender = self.lines.as_ref().expect("fed before it is finished");
        sender.send(lines).ok().context("the feeder's input is closed")
    }

    /// How many records were fed.
    pub(crate) fn fed(&self) -> usize {
        self.fed
    }

    /// Whether its input was ended.
    pub(crate) fn is_finished(&self) -> bool {
        self.lines.is_none()
    }

    /// Ends the input and waits until every record was acknowledged.
    pub(crate) fn finish(&mut self, limit: Duration) -> Result<()> {
        self.lines = None;
        self.process.wait(limit).context("the producer")?;
        if let Some(writer) = self.writer.take() {
            writer.join().ok().context("the feeder's thread panicked")?;
        }
        Ok(())
    }
}

fn write_now(input: &mut BufWriter<ChildStdin>, lines: &str) -> std::io::Result<()> {
    input.write_all(lines.as_bytes())?;
    input.flush()
}

/// The value of record `n` of a feeder.
pub(crate) fn fed_value(text: &Text, n: usize) -> String {
    format!("{n} {}", text.line(n))
}

/// One record that a member read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Reading {
    pub(crate) partition: i32,
    pub(crate) offset: i64,
    pub(crate) value: String,
}

/// A process that is a member of a group, and what it wrote down so far.
pub(crate) struct Member {
    pub(crate) name: String,
    client: Client,
    process: Process,
    input: Option<ChildStdin>,
    out: PathBuf,
    consumed_bytes: u64,
    /// What it read, in its order.
    pub(crate) readings: Vec<Reading>,
    /// The last offset that it committed for each partition.
    pub(crate) committed: HashMap<i32, i64>,
    /// The partitions that it has now; not known of kcat.
    pub(crate) assigned: BTreeSet<i32>,
}

impl Member {
    fn new(client: Client, name: &str, mut process: Process, out: PathBuf) -> Member {
        let input = (client != Client::Kcat).then(|| process.take_stdin());
        let (readings, committed, assigned) = Default::default();
        Member {
            name: name.to_string(),
            client,
            process,
            input,
            out,
            consumed_bytes: 0,
            readings,
            committed,
            assigned,
        }
    }

    /// Takes in what it wrote down since the last look; it must be alive.
    pub(crate) fn look(&mut self) -> Result<()> {
        self.process.check_alive()?;
        self.take_in()
    }

    /// Takes in the complete lines that were added to its file.
    fn take_in(&mut self) -> Result<()> {
        // Until it has started there is no file.
        let Ok(mut file) = File::open(&self.out) else { return Ok(()) };
        file.seek(SeekFrom::Start(self.consumed_bytes))?;
        let mut added = Vec::new();
        file.read_to_end(&mut added)?;
        let complete = added.iter().rposition(|byte| *byte == b'\n').map_or(0, |end| end + 1);
        self.consumed_bytes += complete as u64;
        let lines =
            std::str::from_utf8(&added[..complete]).with_context(|| format!("{}: not text", self.name))?;
        lines.lines().try_for_each(|line| self.note(line))
    }

    fn note(&mut self, line: &str) -> Result<()> {
        self.note_parts(line).with_context(|| format!("{} wrote down {line:?}", self.name))
    }

    fn note_parts(&mut self, line: &str) -> Result<()> {
        let mut parts = line.splitn(4, ' ');
        let what = parts.next().context("a word")?;
        let partition = parts.next().context("a partition")?.parse()?;
        match what {
            "r" => {
                let offset = parts.next().context("an offset")?.parse()?;
                let value = parts.next().context("a value")?.to_string();
                self.readings.push(Reading { partition, offset, value });
            }
            "c" => drop(self.committed.insert(partition, parts.next().context("an offset")?.parse()?)),
            "assigned" => drop(self.assigned.insert(partition)),
            "revoked" | "lost" => drop(self.assigned.remove(&partition)),
            _ => anyhow::bail!("an unknown word"),
        }
        Ok(())
    }

    /// Tells it to leave the group, which commits what it read, and waits until it has.
    pub(crate) fn leave(&mut self) -> Result<()> {
        if self.client == Client::Kcat {
            self.process.terminate()?;
            let status = self.process.wait_for_status(LEAVE_DEADLINE)?;
            ensure!(
                ended_by_request(status),
                "{} ended with {status}\n{}",
                self.name,
                self.process.log_tail()
            );
        } else {
            self.input = None;
            self.process.wait(LEAVE_DEADLINE)?;
        }
        self.take_in()
    }

    /// Kills it (SIGKILL).
    pub(crate) fn kill(&mut self) -> Result<()> {
        self.process.kill();
        self.take_in()
    }
}
