//! Users of real clients on a broker with authentication: SASL_SSL with SCRAM, rules, and Kafka's own tools with the administrator's
//! properties. The broker is set up by `mainstem security init`; Apache Kafka gets the same certificates, users and rules.
//!
//! Each other client logs in in all ways, and is refused in some, in one process. A plan that all clients share lists the ways.
//! share says which.

mod kafka;
pub(crate) mod sessions;
mod tools;

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs::{self, OpenOptions};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use mainstem_testkit::port;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::super::Depth;
use super::super::broker::Kind;
use super::super::client::Client;
use super::super::install;
use super::super::report::Report;
use super::super::world::World;
use crate::process::{Process, wait_until};
use crate::workspace;

/// The check of each client.
pub(crate) const ALL_WAYS: &str = "SSL and SASL_SSL in every way";

/// Records that a client writes and reads in each way.
const WAY_RECORDS: u64 = 100;

const MECHANISMS: [&str; 2] = ["SCRAM-SHA-256", "SCRAM-SHA-512"];
const PASSWORD: &str = "a-secret";
const READY_DEADLINE: Duration = Duration::from_secs(90);
/// Timeout in seconds of a client that goes through all ways, and the additional time for each refusal.
const CLIENT_SECONDS: usize = 1_200;
const SECONDS_A_TIME: usize = 30;
/// A key and its certificate, which has expired.
const EXPIRED: &str = "expired.pem";
/// A certificate of the same kind, which replaces the broker's.
const ROTATED: &str = "rotated.pem";

/// A broker with an administrator and users.
struct Guarded {
    kind: Kind,
    dir: PathBuf,
    bootstrap: String,
    /// The listener without SASL.
    ssl: String,
    /// The listener whose certificate has expired.
    expired: String,
    /// The listeners whose sessions end after five seconds, one for each client, by their names.
    sessions: BTreeMap<String, String>,
    /// The address of /metrics.
    metrics: String,
    /// The folder of another authority.
    other_authority: PathBuf,
    _process: Process,
}

/// One way to log in. tests/interop/README.md describes the fields that clients read.
#[derive(Serialize)]
struct Way {
    name: &'static str,
    bootstrap: String,
    ca: PathBuf,
    cert: String,
    mechanism: &'static str,
    user: &'static str,
    password: String,
    /// True if the client is let in; otherwise it has to be refused.
    #[serde(rename = "use")]
    lets_in: bool,
    /// Number of attempts at each refused step, each by a new client.
    times: usize,
    /// Number of these clients at a time.
    #[serde(rename = "at_once")]
    concurrency: usize,
}

/// The outcome that a client reports of one step in one way.
#[derive(Deserialize)]
struct Outcome {
    way: String,
    step: String,
    outcome: String,
}

/// The variable with the number of refusals of each client in each way.
pub(crate) const REFUSALS: &str = "TEST_REFUSALS";
/// The variable with the number of renewals of each session.
pub(crate) const RENEWALS: &str = "TEST_RENEWALS";
/// Number of clients that wait for their refusals at a time, far fewer than the unauthenticated ones that an address may have.
const AT_ONCE: usize = 8;
/// Clients that go through all ways at a time.
const CLIENTS_AT_ONCE: usize = 3;

/// Options of the checks.
pub(crate) struct Asked<'a> {
    pub(crate) kind: Kind,
    pub(crate) clients: &'a [Client],
    /// Times that each client is refused in each way, and that each session is renewed.
    pub(crate) depth: Depth,
}

/// Runs the clients that are wanted, and the tools.
pub(crate) fn run(world: &World, report: &Report, asked: &Asked<'_>) {
    let mut guarded = None;
    report.check("security", "a broker is set up", || {
        guarded = Some(Guarded::start(asked.kind, &world.run.join("security"), &world.logs)?);
        Ok(())
    });
    let Some(guarded) = guarded else { return };
    let waiting = Mutex::new(asked.clients.iter());
    let next = || waiting.lock().unwrap_or_else(PoisonError::into_inner).next();
    let one_after_the_other = || {
        while let Some(client) = next() {
            let plan = world.run.join("security").join(format!("plan-{}.json", client.key()));
            let times = asked.depth.refusals as usize;
            report.check(client.key(), ALL_WAYS, || guarded.all_ways(*client, times, &plan));
        }
    };
    thread::scope(|scope| {
        for client in sessions::CLIENTS.into_iter().filter(|client| asked.clients.contains(client)) {
            let guarded = &guarded;
            scope.spawn(move || guarded.check_sessions(report, client, asked.depth.renewals));
        }
        // Kafka's broker lists what its tools have added a moment later.
        if asked.kind == Kind::Mainstem && install::kafka_bin().join("kafka-acls.sh").is_file() {
            let guarded = &guarded;
            scope.spawn(move || tools::run(world, report, guarded));
        }
        (0..CLIENTS_AT_ONCE).for_each(|_| drop(scope.spawn(one_after_the_other)));
    });
}

impl Guarded {
    fn start(kind: Kind, run: &Path, logs: &Path) -> Result<Guarded> {
        fs::create_dir_all(run)?;
        let dir = run.join("secure");
        let bootstrap = format!("localhost:{}", port());
        let binary = workspace::product();
        let init =
            [Path::new("security"), Path::new("init"), &dir, Path::new("--listen"), bootstrap.as_ref()];
        output(Command::new(&binary).args(init))?;
        let other_authority = run.join("other-authority");
        let init = [Path::new("security"), Path::new("init"), &other_authority];
        output(Command::new(&binary).args(init))?;
        for (authority, name) in [(&dir, "dave"), (&other_authority, "mallory")] {
            let cert =
                [Path::new("security"), Path::new("cert"), Path::new(name), Path::new("--dir"), authority];
            output(Command::new(&binary).args(cert))?;
        }
        let ssl = format!("localhost:{}", port());
        let expired = format!("localhost:{}", port());
        let metrics = format!("127.0.0.1:{}", port());
        let mut sessions = BTreeMap::new();
        let (mut listeners, mut protocols, mut more) = (String::new(), String::new(), String::new());
        if kind == Kind::Kafka {
            let address = format!("localhost:{}", port());
            write!(listeners, ",{}://{address}", kafka::CONTROLLERS)?;
            write!(protocols, ",{}:SSL", kafka::CONTROLLERS)?;
            more.push_str(&kafka::settings(&dir, &address));
        }
        for name in listeners_of_sessions() {
            let address = format!("localhost:{}", port());
            write!(listeners, ",{name}://{address}")?;
            write!(protocols, ",{name}:SASL_SSL")?;
            more.push_str(&sessions::settings_of(&name));
            sessions.insert(name, address);
        }
        issue(&dir, EXPIRED, "-1")?;
        issue(&dir, ROTATED, "20")?;
        let mut settings = OpenOptions::new().append(true).open(dir.join("server.properties"))?;
        write!(
            settings,
            "listeners=SASL_SSL://{bootstrap},SSL://{ssl},EXPIRED://{expired}{listeners}\n\
             listener.security.protocol.map=SASL_SSL:SASL_SSL,SSL:SSL,EXPIRED:SSL{protocols}\n\
             listener.name.expired.ssl.keystore.location={}\n\
             mainstem.require.authentication=false\n\
             listener.name.ssl.ssl.client.auth=requested\n\
             listener.name.ssl.ssl.principal.mapping.rules=RULE:^CN=([a-z]+)$/$1/,DEFAULT\n\
             sasl.enabled.mechanisms=PLAIN,SCRAM-SHA-256,SCRAM-SHA-512\n\
             listener.name.sasl_ssl.plain.sasl.jaas.config=\
             org.apache.kafka.common.security.plain.PlainLoginModule required user_carol=\"{PASSWORD}\";\n\
             mainstem.http.listener={metrics}\n\
             {more}\
             group.initial.rebalance.delay.ms=0\n",
            dir.join(EXPIRED).display()
        )?;
        let properties = dir.join("server.properties");
        let mut start = match kind {
            Kind::Mainstem => Command::new(&binary),
            Kind::Kafka => kafka::command(&dir, &properties, logs)?,
        };
        if kind == Kind::Mainstem {
            start.args(["start", "--config"]);
        }
        let mut process = Process::start("guarded-broker", start.arg(properties), logs)?;
        wait_until(
            || format!("the broker answers at {bootstrap}"),
            READY_DEADLINE,
            || {
                process.check_alive()?;
                Ok(Guarded::tool_of(&dir, &bootstrap, &["topic", "list"]).is_ok())
            },
        )?;
        let guarded = Guarded {
            kind,
            dir,
            bootstrap,
            ssl,
            expired,
            sessions,
            metrics,
            other_authority,
            _process: process,
        };
        for topic in ["orders", "secret"] {
            guarded.tool(&["topic", "create", topic, "--partitions", "2"])?;
        }
        for mechanism in MECHANISMS {
            let user = user_of(mechanism);
            let made = ["user", "create", user, "--mechanism", mechanism, "--generate", "--json"];
            let made: Value = serde_json::from_str(&guarded.tool(&made)?)?;
            let password = made["password"].as_str().context("a password was made")?;
            fs::write(guarded.dir.join(user), password)?;
        }
        // Users with a password in the properties, with a certificate, and without a login.
        for user in MECHANISMS.map(user_of).into_iter().chain(["carol", "dave", "ANONYMOUS"]) {
            let rule = ["acl", "add", "--allow", user];
            guarded.tool(&[&rule[..], &["--operation", "read,write", "--topic", "orders"]].concat())?;
            let groups = ["--operation", "read", "--group", "readers", "--prefix"];
            guarded.tool(&[&rule[..], &groups].concat())?;
        }
        Ok(guarded)
    }

    fn ways(&self, times: usize) -> Result<Vec<Way>> {
        let ca = self.dir.join("ca.pem");
        let dave = self.dir.join("dave.pem").display().to_string();
        let ssl = |name, cert: String| Way {
            name,
            bootstrap: self.ssl.clone(),
            ca: ca.clone(),
            cert,
            mechanism: "",
            user: "",
            password: String::new(),
            lets_in: true,
            times,
            concurrency: AT_ONCE,
        };
        let sasl = |name, mechanism, user, password: &str, lets_in| Way {
            bootstrap: self.bootstrap.clone(),
            mechanism,
            user,
            password: password.to_owned(),
            lets_in,
            ..ssl(name, String::new())
        };
        let mut ways = vec![ssl("SSL", String::new()), ssl("mutual SSL", dave)];
        ways.push(sasl("PLAIN", "PLAIN", "carol", PASSWORD, true));
        ways.push(sasl("PLAIN, wrong", "PLAIN", "carol", "wrong", false));
        for (mechanism, wrong) in MECHANISMS.into_iter().zip(["SCRAM-256, wrong", "SCRAM-512, wrong"]) {
            let user = user_of(mechanism);
            let password = fs::read_to_string(self.dir.join(user))?;
            ways.push(sasl(mechanism, mechanism, user, &password, true));
            ways.push(sasl(wrong, mechanism, user, "wrong", false));
        }
        let expired = ssl("expired certificate", String::new());
        ways.push(Way { bootstrap: self.expired.clone(), lets_in: false, ..expired });
        let untrusted = sasl("untrusted authority", "PLAIN", "carol", PASSWORD, false);
        ways.push(Way { ca: self.other_authority.join("ca.pem"), ..untrusted });
        Ok(ways)
    }

    /// Logs a client in in each way. It writes and reads what it may, and is refused what it may not.
    fn all_ways(&self, client: Client, times: usize, plan: &Path) -> Result<()> {
        let ways = self.ways(times)?;
        if client == Client::Kcat {
            // Its SCRAM is refused, see docs/security.md.
            return ways
                .iter()
                .filter(|way| !way.mechanism.starts_with("SCRAM"))
                .try_for_each(|way| kcat(way).with_context(|| way.name.to_owned()));
        }
        fs::write(plan, serde_json::to_string(&ways)?)?;
        let mut command = Command::new("timeout");
        command.arg((CLIENT_SECONDS + SECONDS_A_TIME * times).to_string());
        match client {
            Client::Python | Client::KafkaPython | Client::Aiokafka => command
                .arg(install::python())
                .arg(install::sources("python").join("secure.py"))
                .arg(client.key()),
            Client::Java => {
                let java = install::java(256);
                command.arg(java.get_program()).args(java.get_args()).arg("mainstem.interop.Secure")
            }
            Client::KafkaJs => command
                .env("NODE_PATH", install::node_modules())
                .arg("node")
                .arg(install::sources("node").join("client.js"))
                .arg("secure"),
            go => command.arg(install::go_client(go_name(go))).arg("secure"),
        };
        let text = output(command.arg(format!("plan={}", plan.display())))?;
        let lines = text.lines().filter(|line| line.starts_with('{'));
        let reported = lines.map(|line| serde_json::from_str(line).with_context(|| line.to_owned()));
        let reported: Vec<Outcome> = reported.collect::<Result<_>>()?;
        for way in &ways {
            let steps: &[&str] = match way.lets_in {
                true => &["write", "read", "denied topic", "denied group"],
                false => &["refused"],
            };
            for step in steps {
                let outcomes = reported.iter().filter(|one| one.way == way.name && one.step == *step);
                let outcomes: Vec<&String> = outcomes.map(|one| &one.outcome).collect();
                let times = if matches!(*step, "write" | "read") { 1 } else { way.times };
                ensure!(
                    outcomes.len() == times,
                    "{}: {step}: {} of {times} are reported",
                    way.name,
                    outcomes.len()
                );
                for outcome in outcomes {
                    ensure!(is_expected(client, way, step, outcome), "{}: {step}: {outcome}", way.name);
                }
            }
        }
        Ok(())
    }

    fn tool_of(dir: &Path, bootstrap: &str, arguments: &[&str]) -> Result<String> {
        let mut command = Command::new(workspace::product());
        command.args(arguments).args(["--bootstrap", bootstrap, "--command-config"]);
        output(command.arg(dir.join("admin.properties")))
    }

    /// Returns true if a listener with sessions shows the certificate of [`ROTATED`].
    fn is_rotated(&self, listener: &str) -> Result<bool> {
        let mut check = Command::new(workspace::product());
        check.args(["security", "check", &self.sessions[listener], "--command-config"]);
        Ok(output(check.arg(self.dir.join("admin.properties")))?.contains("(19 days)"))
    }

    /// Runs our tool as the administrator.
    fn tool(&self, arguments: &[&str]) -> Result<String> {
        Guarded::tool_of(&self.dir, &self.bootstrap, arguments)
    }
}

/// The listeners of clients, and one whose certificate Kafka's tool changes.
fn listeners_of_sessions() -> impl Iterator<Item = String> {
    sessions::CLIENTS.into_iter().map(sessions::listener_of).chain([tools::LISTENER.to_owned()])
}

/// A key and a certificate of the broker's authority for so many days, in one file.
fn issue(dir: &Path, file: &str, days: &str) -> Result<()> {
    let path = |name: &str| dir.join(name);
    let openssl = |arguments: &[&str], files: &[(&str, &str)]| {
        let mut command = Command::new("openssl");
        command.args(arguments);
        for (option, file) in files {
            command.arg(option).arg(path(file));
        }
        output(&mut command)
    };
    fs::write(path("names"), "subjectAltName=DNS:localhost,IP:127.0.0.1\n")?;
    let request = ["req", "-new", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"];
    openssl(
        &[&request[..], &["-subj", "/CN=localhost"]].concat(),
        &[("-keyout", "issued.key"), ("-out", "issued.csr")],
    )?;
    openssl(
        &["x509", "-req", "-days", days, "-CAcreateserial"],
        &[
            ("-in", "issued.csr"),
            ("-CA", "ca.pem"),
            ("-CAkey", "ca.key"),
            ("-extfile", "names"),
            ("-out", "issued.crt"),
        ],
    )?;
    let both = fs::read_to_string(path("issued.key"))? + &fs::read_to_string(path("issued.crt"))?;
    Ok(fs::write(path(file), both)?)
}

fn user_of(mechanism: &str) -> &'static str {
    if mechanism == "SCRAM-SHA-256" { "alice" } else { "bob" }
}

fn output(command: &mut Command) -> Result<String> {
    let done = command.output().with_context(|| format!("run {command:?}"))?;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    ensure!(done.status.success(), "{}\n{}{}", done.status, text(&done.stdout), text(&done.stderr));
    Ok(text(&done.stdout))
}

fn go_name(client: Client) -> &'static str {
    match client {
        Client::Go => "franz",
        Client::Sarama => "sarama",
        _ => "kafkago",
    }
}

/// Returns true if a client reports the right outcome; each has its own spelling of Kafka's names.
fn is_expected(client: Client, way: &Way, step: &str, outcome: &str) -> bool {
    let shown = outcome.to_lowercase().replace(['_', ' ', '-'], "");
    // A client that reports a refusal as a timeout has not understood it. kafka-python gives up at once with an error of that name, and has
    // the broker's answer in its log.
    let is_silence =
        client != Client::KafkaPython && ["timeout", "timedout"].iter().any(|word| shown.contains(word));
    match (step, client) {
        ("write" | "read", _) => outcome == WAY_RECORDS.to_string(),
        _ if is_silence => false,
        // Its writer takes a topic that it may not see for one that is missing.
        ("denied topic", Client::KafkaGo) => shown.contains("unknowntopicorpartition"),
        ("denied topic", _) => shown.contains("topicauthorization"),
        // It does not say why there is no coordinator.
        ("denied group", Client::KafkaJs) => shown.contains("groupcoordinatornotfound"),
        ("denied group", _) => shown.contains("groupauthorization"),
        _ if ["untrusted authority", "expired certificate"].contains(&way.name) => {
            ["ssl", "certificate"].iter().any(|word| shown.contains(word))
        }
        _ => shown.contains("authentication"),
    }
}

fn kcat(way: &Way) -> Result<()> {
    let run = |arguments: &[&str]| {
        let mut command = Command::new("timeout");
        let protocol = if way.mechanism.is_empty() { "SSL" } else { "SASL_SSL" };
        command.args(["30", "kcat", "-b", &way.bootstrap, "-X"]).arg(format!("security.protocol={protocol}"));
        command.arg("-X").arg(format!("ssl.ca.location={}", way.ca.display()));
        command.args(["-X", "message.timeout.ms=10000"]);
        if !way.cert.is_empty() {
            command.arg("-X").arg(format!("ssl.certificate.location={}", way.cert));
            command.arg("-X").arg(format!("ssl.key.location={}", way.cert));
        }
        if !way.mechanism.is_empty() {
            command.arg("-X").arg(format!("sasl.mechanisms={}", way.mechanism));
            command.arg("-X").arg(format!("sasl.username={}", way.user));
            command.arg("-X").arg(format!("sasl.password={}", way.password));
        }
        command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut process = command.spawn().context("start kcat")?;
        let mut input = process.stdin.take().expect("its input is a pipe");
        // The client may have been refused, and ended.
        let _ = input.write_all("a record\n".repeat(WAY_RECORDS as usize).as_bytes());
        drop(input);
        let done = process.wait_with_output()?;
        let said = String::from_utf8_lossy(&done.stderr).to_lowercase().replace([' ', '_', '-'], "");
        Ok::<_, anyhow::Error>((done.status.success(), done.stdout, said))
    };
    if !way.lets_in {
        return repeat(way, || {
            let (written, _, said) = run(&["-P", "-t", "orders"])?;
            let is_said = ["authentication", "certificate"].iter().any(|word| said.contains(word));
            ensure!(!written && is_said, "it is to be refused: {said}");
            Ok(())
        });
    }
    let (written, _, said) = run(&["-P", "-t", "orders"])?;
    ensure!(written, "write: {said}");
    let group = format!("readers-kcat-{}", way.name.replace(' ', "-"));
    let count = WAY_RECORDS.to_string();
    let (_, read, said) = run(&["-X", "auto.offset.reset=earliest", "-c", &count, "-G", &group, "orders"])?;
    let records = read.iter().filter(|byte| **byte == b'\n').count();
    ensure!(records as u64 == WAY_RECORDS, "read: {records}: {said}");
    repeat(way, || {
        let (_, _, said) = run(&["-P", "-t", "secret"])?;
        ensure!(said.contains("topicauthorizationfailed"), "denied topic: {said}");
        let (_, _, said) = run(&["-e", "-G", "others", "orders"])?;
        // It prints the error's name, or the words for it, by its version.
        let is_denied =
            ["groupauthorizationfailed", "notauthorizedforthegroup"].iter().any(|words| said.contains(words));
        ensure!(is_denied, "denied group: {said}");
        Ok(())
    })
}

/// Repeats steps as often as a way requires, some of them at the same time.
fn repeat(way: &Way, steps: impl Fn() -> Result<()> + Sync) -> Result<()> {
    thread::scope(|scope| {
        let steps = &steps;
        let one = |first| {
            scope.spawn(move || (first..way.times).step_by(way.concurrency).try_for_each(|_| steps()))
        };
        let clients: Vec<_> = (0..way.concurrency).map(one).collect();
        clients.into_iter().try_for_each(|client| client.join().expect("a client does not panic"))
    })
}
