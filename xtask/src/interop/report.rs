//! Outcomes of checks: printed as they come, counted, kept as JSON, and shown as the tables of docs/interop.md.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

use super::broker::Kind;
use super::checks::errors;
use super::checks::security::{self, sessions};
use super::client::Client;
use super::install::KAFKA_VERSION;
use crate::{faults, workspace};

/// The outcome of a check.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Outcome {
    Passed,
    Failed,
    Skipped,
}

/// One check of one client or tool.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Entry {
    /// The client's key or the tool's name.
    pub(crate) subject: String,
    pub(crate) check: String,
    pub(crate) outcome: Outcome,
    pub(crate) seconds: f64,
    /// A note of a passed check.
    #[serde(default)]
    pub(crate) note: Option<String>,
}

/// Entries of the latest run against each kind of broker, by the kind's name.
type Results = BTreeMap<String, Vec<Entry>>;

/// The number of checks by outcome.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub(crate) struct Counts {
    pub(crate) passed: usize,
    pub(crate) failed: usize,
    pub(crate) skipped: usize,
}

impl std::ops::AddAssign for Counts {
    fn add_assign(&mut self, other: Counts) {
        self.passed += other.passed;
        self.failed += other.failed;
        self.skipped += other.skipped;
    }
}

impl std::fmt::Display for Counts {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} passed, {} failed, {} skipped", self.passed, self.failed, self.skipped)
    }
}

/// Takes outcomes from all threads.
#[derive(Default)]
pub(crate) struct Report {
    entries: Mutex<Vec<Entry>>,
}

impl Report {
    /// Runs a check, prints and keeps its outcome, and returns true if it passed.
    pub(crate) fn check(&self, subject: &str, check: &str, body: impl FnOnce() -> Result<()>) -> bool {
        let begin = Instant::now();
        let result = body();
        self.outcome(subject, check, begin.elapsed(), result.map(|()| None))
    }

    /// Prints and keeps the outcome of a check that was run elsewhere, with its note.
    pub(crate) fn outcome(
        &self,
        subject: &str,
        check: &str,
        took: Duration,
        result: Result<Option<String>>,
    ) -> bool {
        let seconds = took.as_secs_f64();
        let (outcome, note) = match result {
            Ok(note) => {
                let shown = note.as_ref().map(|note| format!(" ({note})")).unwrap_or_default();
                println!("ok      {seconds:6.1} s  {subject}: {check}{shown}");
                (Outcome::Passed, note)
            }
            Err(error) => {
                println!("FAILED  {seconds:6.1} s  {subject}: {check}\n  {error:#}");
                faults::keep(&format!("{subject}: {check}"), &format!("{error:#}"));
                (Outcome::Failed, None)
            }
        };
        let is_passed = outcome == Outcome::Passed;
        self.keep(Entry { subject: subject.into(), check: check.into(), outcome, seconds, note });
        is_passed
    }

    /// Notes that all checks of a client or of the tools are left out.
    pub(crate) fn skip(&self, subject: &str, why: &str) {
        println!("skipped           {subject}: {why}");
        let outcome = Outcome::Skipped;
        self.keep(Entry { subject: subject.into(), check: "all".into(), outcome, seconds: 0.0, note: None });
    }

    fn keep(&self, entry: Entry) {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner).push(entry);
    }

    pub(crate) fn counts(&self) -> Counts {
        let entries = self.entries.lock().unwrap_or_else(PoisonError::into_inner);
        let count = |outcome| entries.iter().filter(|entry| entry.outcome == outcome).count();
        Counts {
            passed: count(Outcome::Passed),
            failed: count(Outcome::Failed),
            skipped: count(Outcome::Skipped),
        }
    }

    /// Replaces the entries of the last run against the same kind of broker by those of this run.
    pub(crate) fn save(&self, kind: Kind) -> Result<()> {
        let mut results = load().unwrap_or_default();
        let entries = self.entries.lock().unwrap_or_else(PoisonError::into_inner).clone();
        results.insert(kind.name().to_string(), entries);
        fs::write(results_path(), serde_json::to_string_pretty(&results)? + "\n")?;
        Ok(())
    }
}

fn results_path() -> PathBuf {
    workspace::interop_dir().join("results.json")
}

fn load() -> Result<Results> {
    let path = results_path();
    let text = fs::read_to_string(&path).with_context(|| format!("read {}", path.display()))?;
    serde_json::from_str(&text).with_context(|| format!("parse {}", path.display()))
}

/// Checks of clients in the order of the table's columns: the name, and what it says there.
pub(crate) const CLIENT_CHECKS: &[(&str, &str)] = &[
    ("none", "Writes and reads uncompressed records"),
    ("gzip", "gzip"),
    ("snappy", "snappy"),
    ("lz4", "lz4"),
    ("zstd", "zstd"),
    ("read by Java", "The Java client reads all that it wrote"),
    ("read by kcat", "kcat reads all that it wrote"),
    ("real text", "20,000 lines of real text, 100,000 in long runs"),
    ("rebalance, eager", "Group of three, eager: members join and leave while it consumes"),
    ("member killed, eager", "Group of three, eager: a member is killed"),
    ("stop and resume, eager", "Group, eager: all stop, one resumes"),
    ("rebalance, cooperative", "Group of three, cooperative: members join and leave while it consumes"),
    ("member killed, cooperative", "Group of three, cooperative: a member is killed"),
    ("stop and resume, cooperative", "Group, cooperative: all stop, one resumes"),
    ("rebalance, consumer", "Group of three, consumer protocol: members join and leave while it consumes"),
    ("member killed, consumer", "Group of three, consumer protocol: a member is killed"),
    ("stop and resume, consumer", "Group, consumer protocol: all stop, one resumes"),
    ("roll to consumer", "Classic members are replaced by members of the consumer protocol, one by one"),
    ("roll back", "The same, back to the classic protocol"),
    (
        "static, consumer",
        "Consumer protocol: a static member comes back to its partitions, no other member notices",
    ),
    (
        "broker killed",
        "Idempotent producer through two `kill -9` of the broker; without idempotence, what is there twice is counted",
    ),
    ("transactions", "A read-process-write loop in transactions, some of them aborted: each record once"),
    ("admin", "Topics, partitions, configs, records, groups administered"),
    (
        security::ALL_WAYS,
        "SSL, mutual SSL, PLAIN, SCRAM: writes and reads; wrong passwords, an expired certificate, an unknown authority, a \
         denied topic and a denied group are reported 100 times of 100 each, and no time-out (kcat without SCRAM; kafka-go says of a \
         denied topic that it is unknown, and of a denied group when it is asked for the coordinator; kafkajs says of a denied \
         group that its coordinator is not found; kafka-python tries until bootstrap_timeout_ms is over and raises KafkaTimeoutError, \
         aiokafka raises that it cannot begin, both with the reason in their log; of Apache Kafka kafka-python sees some connections end \
         before it has read the answer)",
    ),
    (
        sessions::CHECK,
        "SASL_SSL sessions of 5 s, renewed 20 times each under load (kafka-python, aiokafka and kafka-go log in again \
         instead; of 40 at most 10 may come too late and begin again), while the certificate changes: each record once \
         (kafka-go reads some again, as it joins the group again and gets its start offsets before it commits what it has at hand; the \
         broker has it begin where the last acknowledged commit was); then the rule goes (aiokafka and kafka-go may say nothing, and read nothing more)",
    ),
];

/// The name under which checks of the broker's files are kept.
pub(crate) const DUMP_LOG: &str = "kafka-dump-log";

/// Writes docs/interop.md from the results of the latest runs.
pub(crate) fn update_docs() -> Result<()> {
    let results = load()?;
    let mut text = String::from(
        "# Real clients\n\n\
         Generated by `cargo xtask interop --update-docs` from a run; do not edit.\n\n\
         Each mark is the outcome of a check in the latest run: ✓ passed, ✗ failed, – skipped or not offered by the client.\n\
         The first mark is Mainstem's. The second, in brackets, is Apache Kafka's own in the same harness. An empty place was\n\
         not run. tests/interop/README.md says what each check does.\n\n",
    );
    text += &client_table(&results);
    text += &error_table(&results);
    text += &tool_table(&results);
    let path = workspace::root().join("docs").join("interop.md");
    fs::create_dir_all(path.parent().expect("a file in docs"))?;
    fs::write(&path, text)?;
    println!("wrote docs/interop.md");
    Ok(())
}

fn client_table(results: &Results) -> String {
    let mut text = String::from("## Clients\n\n| check |");
    Client::ALL.iter().for_each(|client| text += &format!(" {} |", client.facts().title));
    text += "\n|---|";
    text += &":-:|".repeat(Client::ALL.len());
    for (check, title) in CLIENT_CHECKS {
        text += &format!("\n| {title} |");
        Client::ALL.iter().for_each(|client| text += &format!(" {} |", marks(results, client.key(), check)));
    }
    text + "\n\n"
}

fn error_table(results: &Results) -> String {
    let mut text = String::from(
        "## Errors\n\nWhat the user of a client is shown when things go wrong: nothing, or the error \
         behind the mark.\n\n| what happens |",
    );
    errors::CLIENTS.iter().for_each(|client| text += &format!(" {} |", client.facts().title));
    text += "\n|---|";
    text += &":-:|".repeat(errors::CLIENTS.len());
    for check in errors::CHECKS {
        text += &format!("\n| {} |", check.title);
        let cell = |client: &Client| format!(" {} |", marks(results, client.key(), check.name));
        errors::CLIENTS.iter().for_each(|client| text += &cell(client));
    }
    text + "\n\n"
}

fn tool_table(results: &Results) -> String {
    let mut tools: Vec<(&str, &str)> = Vec::new();
    for entry in results.values().flatten() {
        let tool = (entry.subject.as_str(), entry.check.as_str());
        let is_client = Client::ALL.iter().any(|client| client.key() == tool.0);
        if tool.0.starts_with("kafka-") && !is_client && !tools.contains(&tool) {
            tools.push(tool);
        }
    }
    tools.sort_unstable();
    let mut text =
        format!("## Kafka {KAFKA_VERSION}'s own tools\n\n| tool | check | outcome |\n|---|---|:-:|\n");
    for (tool, check) in tools {
        text += &format!("| {tool} | {check} | {} |\n", marks(results, tool, check));
    }
    text
}

/// Mainstem's mark and Kafka's.
fn marks(results: &Results, subject: &str, check: &str) -> String {
    let mark =
        |kind: Kind| results.get(kind.name()).map_or(String::new(), |entries| mark(entries, subject, check));
    match (mark(Kind::Mainstem), mark(Kind::Kafka)) {
        (ours, kafkas) if kafkas.is_empty() => ours,
        (ours, kafkas) => format!("{ours} ({kafkas})").trim_start().to_string(),
    }
}

fn mark(entries: &[Entry], subject: &str, check: &str) -> String {
    match entries.iter().find(|entry| entry.subject == subject && entry.check == check) {
        Some(Entry { outcome: Outcome::Passed, note: Some(note), .. }) => format!("✓ {note}"),
        Some(Entry { outcome: Outcome::Passed, .. }) => "✓".into(),
        Some(Entry { outcome: Outcome::Failed, .. }) => "✗".into(),
        Some(Entry { outcome: Outcome::Skipped, .. }) | None => "–".into(),
    }
}
