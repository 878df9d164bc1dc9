//! Producers and members of groups that are real clients: Java's, confluent-kafka's, franz-go's. They are the
//! programs of `tests/interop`. They write notes of their operations to a file, which is read at the same time.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use mainstem_replication::history::{Operation, Outcome};
use mainstem_testkit::java::KafkaJars;
use mainstem_wire::sample::Rng;

use crate::cluster_kills::run::{IN, PARTITIONS, Phase, RESUME_MAX, Run, group_name};

/// The request timeout of clients: a node that is stopped closes no connection.
const REQUEST_TIMEOUT_MS: u64 = 3_000;
/// The session timeout of members of the classic protocol.
pub(crate) const SESSION: &str = "session_ms=6000";
/// The interval at which their notes are read.
const LOOK_AGAIN: Duration = Duration::from_millis(10);

/// A client of another project.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RealClient {
    Java,
    Confluent,
    Franz,
}

impl RealClient {
    pub(crate) const ALL: [RealClient; 3] = [RealClient::Java, RealClient::Confluent, RealClient::Franz];
    /// Clients that run with all kinds of faults, and have a transactional loop: Java's, and librdkafka.
    pub(crate) const OF_ALL_FAULTS: [RealClient; 2] = [RealClient::Java, RealClient::Confluent];

    /// The group of its member.
    pub(crate) fn group(self) -> u64 {
        11 + self as u64
    }

    /// The group of its transactional loop.
    pub(crate) fn group_of_loop(self) -> u64 {
        21 + self as u64
    }

    /// The name of its producer.
    pub(crate) fn producer(self) -> String {
        format!("{self:?}-producer")
    }

    /// The name of its member of a group. Each start of it appends a number.
    pub(crate) fn member(self) -> String {
        format!("{self:?}-member")
    }

    /// The name of its transactional loop. Each start of it appends a number.
    pub(crate) fn transactional_loop(self) -> String {
        format!("{self:?}-loop")
    }

    /// Returns true if it is installed, as by `cargo xtask test`.
    pub(crate) fn is_installed(self) -> bool {
        let found = self.program().exists();
        let is_required = std::env::var("CI").as_deref() == Ok("true");
        assert!(found || !is_required, "{self:?} has to be installed at {}", self.program().display());
        if !found {
            eprintln!("skipped: {self:?} is not installed at {}", self.program().display());
        }
        found
    }

    fn program(self) -> PathBuf {
        let interop = Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/interop");
        match self {
            RealClient::Java => interop.join("java/mainstem/interop/Client.class"),
            RealClient::Confluent => interop.join("venv/bin/python3"),
            RealClient::Franz => interop.join("go/franz"),
        }
    }

    fn command(self) -> Command {
        let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("interop");
        match self {
            RealClient::Java => {
                let interop = Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/interop");
                let jars = KafkaJars::at(interop.join("kafka-4.3.0/lib"));
                let mut command = jars.java_with(128, &[&interop.join("java")]);
                command.arg("mainstem.interop.Client");
                command
            }
            RealClient::Confluent => {
                let mut command = Command::new(self.program());
                command.arg(sources.join("python/client.py"));
                command
            }
            RealClient::Franz => Command::new(self.program()),
        }
    }
}

/// A running program, and its notes so far.
pub(crate) struct Program {
    client: RealClient,
    process: Child,
    notes: PathBuf,
    read: Option<File>,
    rest: String,
}

impl Program {
    pub(crate) fn start(
        client: RealClient,
        bootstrap: &str,
        folder: &Path,
        name: &str,
        arguments: &[String],
    ) -> Program {
        let notes = folder.join(name);
        // A file of an earlier program with the same name is removed.
        let _ = std::fs::remove_file(&notes);
        let log = File::options().create(true).append(true).open(folder.join(format!("{name}.log")));
        let mut command = client.command();
        command.args(arguments).arg(format!("bootstrap={bootstrap}")).arg(format!("topic={IN}"));
        command.arg(format!("out={}", notes.display()));
        command.arg(format!("request_timeout_ms={REQUEST_TIMEOUT_MS}"));
        let log = log.expect("a file can be written");
        command.stdin(Stdio::piped()).stdout(log.try_clone().expect("a file")).stderr(log);
        let process = command.spawn().expect("the client can be started");
        Program { client, process, notes, read: None, rest: String::new() }
    }

    /// The new lines of its notes.
    fn lines(&mut self) -> Vec<String> {
        if self.read.is_none() {
            self.read = File::open(&self.notes).ok();
        }
        if let Some(file) = &mut self.read {
            file.read_to_string(&mut self.rest).expect("notes are text");
        }
        let end = self.rest.rfind('\n').map_or(0, |end| end + 1);
        let whole: String = self.rest.drain(..end).collect();
        whole.lines().map(str::to_owned).collect()
    }

    fn has_ended(&mut self) -> bool {
        self.process.try_wait().expect("a child can be asked").is_some()
    }

    /// Answers so many of its questions. A program that has ended gets no answer.
    fn answer(&mut self, questions: usize) {
        let input = self.process.stdin.as_mut().expect("its input is open");
        let _ = input.write_all("go\n".repeat(questions).as_bytes()).and_then(|()| input.flush());
    }

    /// Ends its input, and takes its lines until it ends.
    async fn end(&mut self, mut take: impl FnMut(Vec<String>)) -> bool {
        drop(self.process.stdin.take());
        let deadline = Instant::now() + RESUME_MAX;
        while !self.has_ended() {
            assert!(Instant::now() < deadline, "{:?} does not end", self.client);
            take(self.lines());
            tokio::time::sleep(LOOK_AGAIN).await;
        }
        take(self.lines());
        self.process.wait().expect("a child can be asked").success()
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        // The program may have ended already.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Runs a real client that produces while there is a load.
pub(crate) async fn produce(
    run: Arc<Run>,
    client: RealClient,
    bootstrap: String,
    folder: PathBuf,
    mut rng: Rng,
) {
    let process = run.process();
    let name = client.producer();
    let mut program = Program::start(client, &bootstrap, &folder, &name, &["append".to_owned()]);
    let mut sent_ms = std::collections::BTreeMap::new();
    while run.is_in(Phase::Load) {
        tokio::time::sleep(Duration::from_micros(3_000 + rng.below(10_000))).await;
        let (value, partition) = (run.value(), rng.below(PARTITIONS as u64) as i32);
        run.record(process, Operation::Append, Outcome::Invoke, (partition, -1), value);
        sent_ms.insert(value, run.now_ms());
        let input = program.process.stdin.as_mut().expect("its input is open");
        let written = writeln!(input, "{partition} {value}").and_then(|()| input.flush());
        assert!(
            written.is_ok() && !program.has_ended(),
            "{name} has ended: see its log in {}",
            folder.display()
        );
        take_appends(&run, (&name, process), &mut sent_ms, program.lines());
    }
    let is_good = program.end(|lines| take_appends(&run, (&name, process), &mut sent_ms, lines)).await;
    assert!(is_good, "{name} failed: see its log in {}", folder.display());
}

fn take_appends(
    run: &Run,
    (program, process): (&str, i32),
    sent_ms: &mut std::collections::BTreeMap<u64, u64>,
    lines: Vec<String>,
) {
    for line in lines {
        let fields: Vec<_> = line.split_whitespace().collect();
        let [outcome, partition, offset, value] = fields[..] else {
            panic!("a note of an append is {line:?}")
        };
        let number =
            |text: &str| text.parse::<i64>().unwrap_or_else(|_| panic!("a note of an append is {line:?}"));
        let (partition, offset, value) = (number(partition) as i32, number(offset), number(value) as u64);
        let is_ok = outcome == "ok";
        let place = (partition, if is_ok { offset } else { -1 });
        run.record(process, Operation::Append, if is_ok { Outcome::Ok } else { Outcome::Info }, place, value);
        if let (true, Some(sent_ms)) = (is_ok, sent_ms.remove(&value)) {
            run.acknowledge(partition, sent_ms);
            run.acknowledged(program, partition, value);
        }
        if !is_ok {
            run.report(format!("{program}: {value} is not acknowledged"));
        }
    }
}

/// Notes of a program, which become events.
pub(crate) trait Notes {
    /// Takes new lines. Returns the number of questions among them, which are answered when all lines are taken.
    fn take(&mut self, lines: Vec<String>) -> usize;
}

/// Runs a program of a client until the run stops. A program that ends by itself, as a request was refused, is
/// started again with new notes.
pub(crate) async fn keep_running<N: Notes>(
    run: &Run,
    program_name: &str,
    start: impl Fn(&str) -> Program,
    notes: impl Fn() -> N,
) {
    let mut starts = 0;
    while !run.is_in(Phase::Stop) {
        starts += 1;
        let name = format!("{program_name}-{starts}");
        let (mut program, mut notes) = (start(&name), notes());
        while !run.is_in(Phase::Stop) && !program.has_ended() {
            let questions = notes.take(program.lines());
            run.looked_at(program_name);
            program.answer(questions);
            tokio::time::sleep(LOOK_AGAIN).await;
        }
        let is_early = !run.is_in(Phase::Stop);
        let take = |lines| {
            notes.take(lines);
            run.looked_at(program_name);
        };
        let is_good = program.end(take).await;
        if is_early || !is_good {
            run.report(format!("{name} has ended by itself"));
        }
    }
}

/// Runs a member of a group that is a real client: it reads and commits until the run stops.
pub(crate) async fn member(run: Arc<Run>, client: RealClient, bootstrap: String, folder: PathBuf) {
    // The newer protocol is a preview in franz-go.
    let rebalance = if client == RealClient::Java { "consumer" } else { "cooperative" };
    let arguments =
        ["member", &format!("group={}", group_name(client.group())), &format!("rebalance={rebalance}")];
    // The last records are committed too, though no later poll would commit them. Java's and franz-go's clients
    // commit the records of a poll; confluent-kafka polls record by record, and would be too slow.
    let commits = match client {
        RealClient::Confluent => [SESSION, "commit_every=100", "commit_when_idle=1"].as_slice(),
        RealClient::Java | RealClient::Franz => &[SESSION, "commit_every=1"],
    };
    let commits = commits.iter().map(|argument| (*argument).to_owned());
    let arguments: Vec<_> = arguments.iter().map(ToString::to_string).chain(commits).collect();
    let start = |name: &str| Program::start(client, &bootstrap, &folder, name, &arguments);
    let notes = || MemberNotes { run: run.clone(), process: run.process(), client, begun: BTreeSet::new() };
    keep_running(&run, &client.member(), start, notes).await;
}

/// The notes of a member.
struct MemberNotes {
    run: Arc<Run>,
    process: i32,
    client: RealClient,
    /// Partitions with a record read since they were assigned.
    begun: BTreeSet<i32>,
}

impl Notes for MemberNotes {
    fn take(&mut self, lines: Vec<String>) -> usize {
        for line in lines {
            let fields: Vec<_> = line.split_whitespace().collect();
            let number = |at: usize| {
                let field = fields.get(at).and_then(|text| text.parse::<i64>().ok());
                field.unwrap_or_else(|| panic!("a note of a member is {line:?}"))
            };
            let partition = number(1) as i32;
            match fields[0] {
                "r" => self.read((partition, number(2)), number(3) as u64),
                "c" => self.committed((partition, number(2))),
                _ => drop(self.begun.remove(&partition)),
            }
        }
        0
    }
}

impl MemberNotes {
    /// Java's consumer also commits its first position, before it has read a record there.
    fn committed(&mut self, place: (i32, i64)) {
        let is_beginning = !self.begun.contains(&place.0);
        self.run.committed(&self.client.member());
        let outcomes = [Outcome::Invoke, Outcome::Ok];
        for outcome in &outcomes[usize::from(!is_beginning)..] {
            self.run.record(self.process, Operation::Commit, *outcome, place, self.client.group());
        }
    }

    fn read(&mut self, (partition, offset): (i32, i64), value: u64) {
        // The first position of a member is the group's offset.
        if self.begun.insert(partition) {
            let group = self.client.group();
            self.run.record(self.process, Operation::Assign, Outcome::Ok, (partition, offset), group);
        }
        self.run.record(self.process, Operation::Read, Outcome::Ok, (partition, offset), value);
        // It may commit the offset from now on; its note comes only after the commit.
        self.run.record(
            self.process,
            Operation::Commit,
            Outcome::Invoke,
            (partition, offset + 1),
            self.client.group(),
        );
    }
}
