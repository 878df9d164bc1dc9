//! Users of real clients on a broker that asks who they are: SASL_SSL with SCRAM, rules, and Kafka's own tools with the
//! administrator's properties. The broker is set up by `mainstem security init`.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde::Deserialize;
use serde_json::Value;

use super::super::broker::free_port;
use super::super::client::Client;
use super::super::install;
use super::super::report::Report;
use super::super::world::World;
use crate::process::{Process, wait_until};
use crate::workspace;

/// The clients whose users log in.
pub(crate) const CLIENTS: [Client; 3] = [Client::Python, Client::KafkaPython, Client::Aiokafka];

const MECHANISMS: [&str; 2] = ["SCRAM-SHA-256", "SCRAM-SHA-512"];
const PASSWORD: &str = "a-secret";
const READY_DEADLINE: Duration = Duration::from_secs(20);
/// Seconds after which a client or a tool hangs.
const PROGRAM_SECONDS: &str = "150";
/// Records that a client writes and reads.
const RECORDS: u64 = 500;

/// A broker with an administrator and users.
struct Guarded {
    dir: PathBuf,
    bootstrap: String,
    _process: Process,
}

/// What a client tells of one step.
#[derive(Deserialize)]
struct Told {
    step: String,
    outcome: Value,
}

/// Runs the clients that are wanted, and the tools.
pub(crate) fn run(world: &World, report: &Report, clients: &[Client], with_tools: bool) {
    let mut guarded = None;
    report.check("security", "a broker is set up", || {
        guarded = Some(Guarded::start(&world.run.join("security"), &world.logs)?);
        Ok(())
    });
    let Some(guarded) = guarded else { return };
    if with_tools {
        report.check("tools", "users and rules", || guarded.use_tools());
    }
    for client in clients {
        for mechanism in MECHANISMS {
            let check = format!("SASL_SSL, {mechanism}");
            report.check(client.key(), &check, || guarded.use_client(*client, mechanism));
        }
    }
}

impl Guarded {
    fn start(run: &Path, logs: &Path) -> Result<Guarded> {
        fs::create_dir_all(run)?;
        let dir = run.join("secure");
        let bootstrap = format!("localhost:{}", free_port()?);
        let binary = workspace::release_binary("mainstem");
        let init =
            [Path::new("security"), Path::new("init"), &dir, Path::new("--listen"), bootstrap.as_ref()];
        output(Command::new(&binary).args(init))?;
        let mut start = Command::new(&binary);
        start.args(["start", "--config"]).arg(dir.join("server.properties"));
        let mut process = Process::start("guarded-broker", &mut start, logs)?;
        wait_until(
            || format!("the broker answers at {bootstrap}"),
            READY_DEADLINE,
            || {
                process.check_alive()?;
                Ok(Guarded::tool_of(&dir, &bootstrap, &["topic", "list"]).is_ok())
            },
        )?;
        let guarded = Guarded { dir, bootstrap, _process: process };
        for topic in ["orders", "secret"] {
            guarded.tool(&["topic", "create", topic, "--partitions", "2"])?;
        }
        for mechanism in MECHANISMS {
            let user = user_of(mechanism);
            let made = ["user", "create", user, "--mechanism", mechanism, "--generate", "--json"];
            let made: Value = serde_json::from_str(&guarded.tool(&made)?)?;
            let password = made["password"].as_str().context("a password was made")?;
            fs::write(guarded.dir.join(user), password)?;
            let rule = ["acl", "add", "--allow", user];
            guarded.tool(&[&rule[..], &["--operation", "read,write", "--topic", "orders"]].concat())?;
            let groups = ["--operation", "read", "--group", "readers", "--prefix"];
            guarded.tool(&[&rule[..], &groups].concat())?;
        }
        Ok(guarded)
    }

    fn tool_of(dir: &Path, bootstrap: &str, arguments: &[&str]) -> Result<String> {
        let mut command = Command::new(workspace::release_binary("mainstem"));
        command.args(arguments).args(["--bootstrap", bootstrap, "--command-config"]);
        output(command.arg(dir.join("admin.properties")))
    }

    /// Our tool, as the administrator.
    fn tool(&self, arguments: &[&str]) -> Result<String> {
        Guarded::tool_of(&self.dir, &self.bootstrap, arguments)
    }

    /// Kafka's tool, as the administrator.
    fn kafka_tool(&self, name: &str, arguments: &[&str]) -> Result<String> {
        let mut command = Command::new("timeout");
        command.arg(PROGRAM_SECONDS).arg(install::kafka_bin().join(format!("{name}.sh")));
        command.args(["--bootstrap-server", &self.bootstrap, "--command-config"]);
        output(command.arg(self.dir.join("admin.properties")).args(arguments))
    }

    fn use_tools(&self) -> Result<()> {
        let scram = format!("SCRAM-SHA-512=[iterations=4096,password={PASSWORD}]");
        let user = ["--entity-type", "users", "--entity-name", "tool"];
        self.kafka_tool("kafka-configs", &[&["--alter", "--add-config", &scram], &user[..]].concat())?;
        let shown = self.kafka_tool("kafka-configs", &[&["--describe"], &user[..]].concat())?;
        ensure!(shown.contains("SCRAM-SHA-512=iterations=4096"), "{shown}");
        ensure!(self.tool(&["user", "list"])?.contains("tool"), "our tool sees the user");
        let rule = ["--allow-principal", "User:tool", "--operation", "Write", "--topic", "by-"];
        let prefixed = ["--resource-pattern-type", "prefixed"];
        self.kafka_tool("kafka-acls", &[&["--add"], &rule[..], &prefixed].concat())?;
        let shown = self.kafka_tool("kafka-acls", &["--list", "--principal", "User:tool"])?;
        ensure!(shown.contains("resourceType=TOPIC, name=by-, patternType=PREFIXED"), "{shown}");
        let checked = self.tool(&["acl", "check", "tool", "write", "--topic", "by-name"])?;
        ensure!(checked.starts_with("allowed"), "{checked}");
        self.kafka_tool("kafka-acls", &[&["--remove", "--force"], &rule[..], &prefixed].concat())?;
        let checked = self.tool(&["acl", "check", "tool", "write", "--topic", "by-name"])?;
        ensure!(checked.starts_with("denied"), "{checked}");
        let removal = ["--alter", "--delete-config", "SCRAM-SHA-512"];
        self.kafka_tool("kafka-configs", &[&removal[..], &user].concat())?;
        ensure!(!self.tool(&["user", "list"])?.contains("tool"), "the user is gone");
        Ok(())
    }

    fn use_client(&self, client: Client, mechanism: &str) -> Result<()> {
        let user = user_of(mechanism);
        let password = fs::read_to_string(self.dir.join(user))?;
        let mut command = Command::new("timeout");
        command.arg(PROGRAM_SECONDS).arg(install::python());
        command.arg(install::sources("python").join("security.py")).args([client.key(), &self.bootstrap]);
        let text = output(command.arg(self.dir.join("ca.pem")).args([user, &password, mechanism]))?;
        let told = text.lines().map(|line| serde_json::from_str::<Told>(line).context(line.to_owned()));
        let told: BTreeMap<String, Value> =
            told.map(|one| one.map(|one| (one.step, one.outcome))).collect::<Result<_>>()?;
        let is = |step: &str, wanted: &str| {
            let outcome = told.get(step).with_context(|| format!("the client has not reported: {step}"))?;
            // Each client has its own spelling of Kafka's names.
            let shown = outcome.to_string().to_lowercase().replace(['_', '"'], "");
            ensure!(shown.contains(wanted), "{step}: {outcome}");
            Ok(())
        };
        is("write", &RECORDS.to_string())?;
        is("read", &RECORDS.to_string())?;
        is("denied topic", "topicauthorizationfailed")?;
        is("denied group", "groupauthorizationfailed")?;
        if client == Client::Python {
            is("wrong password", "authentication")?;
        }
        Ok(())
    }
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
