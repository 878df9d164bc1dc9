//! Sessions of five seconds (KIP-368) under load, for each client. While it writes and reads, its sessions are renewed at least as often as
//! the depth asks for, and the broker's certificate changes. Each written record is read once. Then the rule is deleted by which it was
//! read.
//!
//! Each client has a listener to itself, so that the broker's counts are the client's. A session in use is renewed before it ends, or is
//! killed. If none was killed during the load, each session in use has been renewed that often. A client that a busy machine delays may be
//! late, and then logs in again: in a quarter of the renewals, and in more if this process was delayed too.

use std::fs::{self, File};
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde::Deserialize;
use serde_json::Value;

use super::super::super::broker::Kind;
use super::super::super::client::Client;
use super::super::super::install;
use super::super::super::report::Report as Outcomes;
use super::{Guarded, MECHANISMS, ROTATED, Way, go_name, user_of};
use crate::process::wait_until;

/// The clients whose sessions end under load.
pub(crate) const CLIENTS: [Client; 8] = [
    Client::Java,
    Client::Python,
    Client::Go,
    Client::KafkaPython,
    Client::Aiokafka,
    Client::Sarama,
    Client::KafkaGo,
    Client::KafkaJs,
];

/// Those among them that close the connection instead, and log in again.
const WITHOUT_RENEWAL: [Client; 3] = [Client::KafkaPython, Client::Aiokafka, Client::KafkaGo];

/// Milliseconds after which sessions end.
pub(super) const SESSION_MS: u64 = 5_000;
/// Sessions of each client: one writes, and one reads.
const SESSIONS: u64 = 2;
/// Time after the load for renewals that are still missing: a late one begins another session.
const MISSING: Duration = Duration::from_millis(12 * SESSION_MS);
/// Timeout of a client, in seconds.
const CLIENT_SECONDS: &str = "600";
/// Interval between two turns of this process under load, and the delay from which a turn counts as held up by the machine. The delay is
/// half of the time that a client has for its renewal.
const TURN: Duration = Duration::from_millis(50);
const HELD_UP: Duration = Duration::from_millis(SESSION_MS / 20);
/// The name of the check.
pub(crate) const CHECK: &str = "sessions of 5 s, renewed under load";

/// The result of one step, as a client reports it.
#[derive(Deserialize)]
struct Report {
    step: String,
    outcome: Value,
}

/// Counts of the broker at a listener.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Counts {
    logins: u64,
    renewals: u64,
    refused: u64,
    killed: u64,
}

/// A client at work. It is ended when it is dropped.
struct Running {
    client: Client,
    process: Child,
    lines: std::io::Lines<BufReader<ChildStdout>>,
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

impl Running {
    /// The outcome of its next step, which has to be this one.
    fn next(&mut self, step: &str) -> Result<Value> {
        let line =
            self.lines.next().with_context(|| format!("{} ends before {step}", self.client.key()))??;
        let report: Report = serde_json::from_str(&line).with_context(|| line.clone())?;
        ensure!(report.step == step, "{}: {line}", self.client.key());
        Ok(report.outcome)
    }
}

/// Time for which clients write and read. A session in use has to be renewed within [`SESSION_MS`].
fn load(renewals: u64) -> Duration {
    Duration::from_millis(renewals * SESSION_MS)
}

/// Sessions that may be killed because their clients came too late to renew them: a quarter. A client begins its renewal half a second
/// before the end, a tenth of the time, and eight of them share the machine.
fn late_max(renewals: u64) -> u64 {
    (SESSIONS * renewals).div_ceil(4)
}

/// Sleeps, and counts how often this process was held up in that time.
fn sleep_and_count(time: Duration) -> u64 {
    let (begin, mut held_up) = (Instant::now(), 0);
    while begin.elapsed() < time {
        let asked = Instant::now();
        thread::sleep(TURN);
        held_up += u64::from(asked.elapsed() >= TURN + HELD_UP);
    }
    held_up
}

fn topic_of(client: Client) -> String {
    format!("sessions-{}", client.key())
}

/// The name of a client's own listener.
pub(super) fn listener_of(client: Client) -> String {
    format!("SESSIONS_{}", client.key().to_uppercase().replace('-', "_"))
}

impl Guarded {
    pub(super) fn check_sessions(&self, report: &Outcomes, client: Client, renewals: u64) {
        let begin = Instant::now();
        let outcome = self.sessions(client, renewals);
        report.outcome(client.key(), CHECK, begin.elapsed(), outcome);
    }

    /// Runs the check of a client's sessions. Returns a note for the report.
    fn sessions(&self, client: Client, renewals: u64) -> Result<Option<String>> {
        let (user, topic) = (user_of(MECHANISMS[1]), topic_of(client));
        self.tool(&["topic", "create", &topic, "--partitions", "2"])?;
        self.tool(&["acl", "add", "--allow", user, "--operation", "read,write", "--topic", &topic])?;
        let running = self.begin(client)?;
        let log = self.dir.join(format!("{topic}.log"));
        self.use_sessions(client, running, renewals).with_context(|| format!("its log is {}", log.display()))
    }

    fn use_sessions(&self, client: Client, mut running: Running, renewals: u64) -> Result<Option<String>> {
        let (user, topic) = (user_of(MECHANISMS[1]), topic_of(client));
        running.next("begun")?;
        let mut held_up = sleep_and_count(load(renewals) / 2);
        self.rotate(client)?;
        held_up += sleep_and_count(load(renewals) / 2);
        // Kafka counts the same, but shows it by JMX alone.
        if self.kind == Kind::Mainstem {
            // Each time may be the one in which a session had to be renewed.
            self.check_renewals(client, renewals, late_max(renewals) + SESSIONS * held_up)?;
        }
        // The end of its input stops it.
        drop(running.process.stdin.take());
        let outcome = running.next("records")?;
        let is_complete = outcome["written"].as_u64() > Some(0) && outcome["written"] == outcome["read"];
        ensure!(is_complete, "{outcome}");
        let repeated = check_repeated(client, &outcome)?;
        ensure!(outcome["failed"].as_u64().unwrap_or(0) == 0, "{outcome}");
        self.tool(&["acl", "remove", "--user", user, "--topic", &topic])?;
        check_denied(client, &running.next("rule removed")?)?;
        ensure!(running.process.wait()?.success(), "the client failed");
        ensure!(self.is_rotated(&listener_of(client))?, "{}: the new certificate is shown", client.key());
        Ok(repeated)
    }

    /// Starts a client, on its topic and its listener.
    fn begin(&self, client: Client) -> Result<Running> {
        let user = user_of(MECHANISMS[1]);
        let password = fs::read_to_string(self.dir.join(user))?;
        let topic = topic_of(client);
        let bootstrap = self.sessions[&listener_of(client)].clone();
        let mut command = Command::new("timeout");
        command.arg(CLIENT_SECONDS);
        if matches!(client, Client::Python | Client::KafkaPython | Client::Aiokafka) {
            command.arg(install::python()).arg(install::sources("python").join("sessions.py"));
            command.args([client.key(), &bootstrap]).arg(self.dir.join("ca.pem"));
            command.args([user, &password, MECHANISMS[1], &topic]);
        } else {
            let way = Way {
                name: "sessions",
                bootstrap,
                ca: self.dir.join("ca.pem"),
                cert: String::new(),
                mechanism: MECHANISMS[1],
                user,
                password,
                lets_in: true,
                times: 0,
                concurrency: 1,
            };
            let plan = self.dir.join(format!("{topic}.json"));
            fs::write(&plan, serde_json::to_string(&[way])?)?;
            program(&mut command, client);
            command.arg(format!("plan={}", plan.display())).arg(format!("topic={topic}"));
        }
        let log = File::create(self.dir.join(format!("{topic}.log")))?;
        let mut process = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(log).spawn()?;
        let lines = BufReader::new(process.stdout.take().expect("its output is a pipe")).lines();
        Ok(Running { client, process, lines })
    }

    /// Another certificate takes the place of that of a client's listener.
    fn rotate(&self, client: Client) -> Result<()> {
        let listener = listener_of(client).to_lowercase();
        let rotated = self.dir.join(ROTATED);
        let setting = format!("listener.name.{listener}.ssl.keystore.location={}", rotated.display());
        self.tool(&["config", "set", "broker/1", &setting]).map(drop)
    }

    /// Checks that a client has renewed its sessions often enough, that not too many were killed, and that none was refused. A client that
    /// does not renew has logged in again as often.
    fn check_renewals(&self, client: Client, renewals: u64, late_max: u64) -> Result<()> {
        let wanted = SESSIONS * renewals;
        let is_renewed = |counts: Counts| match WITHOUT_RENEWAL.contains(&client) {
            true => counts.logins + counts.renewals >= wanted,
            false => counts.renewals >= wanted && counts.killed <= late_max,
        };
        // The last renewal may be under way.
        let mut counts = self.counts(client)?;
        wait_until(
            || format!("{}: {SESSIONS} sessions are renewed {renewals} times", client.key()),
            MISSING,
            || {
                counts = self.counts(client)?;
                Ok(is_renewed(counts))
            },
        )
        .with_context(|| format!("{counts:?}, of which {late_max} may be killed"))?;
        ensure!(counts.refused == 0, "{}: {counts:?}", client.key());
        Ok(())
    }

    fn counts(&self, client: Client) -> Result<Counts> {
        let mut socket = TcpStream::connect(&self.metrics).context("connect to /metrics")?;
        let host = &self.metrics;
        write!(socket, "GET /metrics HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n")?;
        let mut shown = String::new();
        socket.read_to_string(&mut shown)?;
        let listener = listener_of(client);
        let count = |name: &str| {
            let start = format!("kafka_server_socket_server_metrics_{name}{{listener=\"{listener}\"}} ");
            let line = shown.lines().find_map(|line| line.strip_prefix(&start));
            let count = line.with_context(|| format!("{start}is not shown"))?.trim().parse::<f64>()?;
            Ok::<_, anyhow::Error>(count as u64)
        };
        Ok(Counts {
            logins: count("successful_authentication_total")?,
            renewals: count("successful_reauthentication_total")?,
            refused: count("failed_authentication_total")? + count("failed_reauthentication_total")?,
            killed: count("expired_connections_killed_count")?,
        })
    }
}

/// Adds the program of a client's command `sessions`.
fn program(command: &mut Command, client: Client) {
    match client {
        Client::Java => {
            let java = install::java(192);
            command.arg(java.get_program()).args(java.get_args()).arg("mainstem.interop.Sessions")
        }
        Client::KafkaJs => command
            .env("NODE_PATH", install::node_modules())
            .arg("node")
            .arg(install::sources("node").join("client.js"))
            .arg("sessions"),
        go => command.arg(install::go_client(go_name(go))).arg("sessions"),
    };
}

/// Checks that no record is read twice, but by kafka-go. Its reader joins the group again with each connection that ends. It may still have
/// an earlier record in hand, which it commits after the new generation has got its start offsets. Each generation has to begin at the last
/// commit that the broker has acknowledged. Returns a note about the records that were read twice.
fn check_repeated(client: Client, outcome: &Value) -> Result<Option<String>> {
    if client != Client::KafkaGo {
        ensure!(outcome["repeated"] == 0, "{outcome}");
        return Ok(None);
    }
    let begun = outcome["begun"].as_u64().context("how often it has begun at committed offsets")?;
    ensure!(begun > 0 && outcome["behind"] == 0, "it begins behind what is committed: {outcome}");
    Ok(Some(format!("{} of {} twice", outcome["repeated"], outcome["written"])))
}

/// Checks that a client reports in its own words that it may not read any more.
fn check_denied(client: Client, outcome: &Value) -> Result<()> {
    let shown = outcome.to_string().to_lowercase().replace(['_', ' '], "");
    // Those two may raise no error and return no more records.
    let is_silent = matches!(client, Client::Aiokafka | Client::KafkaGo) && outcome.is_null();
    ensure!(is_silent || shown.contains("topicauthorization"), "{}: {outcome}", client.key());
    Ok(())
}

/// The settings of a listener whose sessions end, but for its address.
pub(super) fn settings_of(listener: &str) -> String {
    let listener = listener.to_lowercase();
    format!(
        "listener.name.{listener}.sasl.enabled.mechanisms={}\n\
         listener.name.{listener}.{}.connections.max.reauth.ms={SESSION_MS}\n\
         listener.name.{listener}.ssl.allow.san.changes=true\n\
         listener.name.{listener}.ssl.allow.dn.changes=true\n",
        MECHANISMS[1],
        MECHANISMS[1].to_lowercase()
    )
}
