//! An embedded queue that the broker serves as a topic: clients write and read it while local processes do, and each of the
//! three is killed in between. Kafka's tools see named tailers as groups, and read the closed segments.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use mainstem_testkit::port;
use serde::Deserialize;

use super::super::broker::{Broker, Kind};
use super::super::client::{Client, read_file};
use super::super::feeder::{Feeder, fed_value};
use super::super::report::{DUMP_LOG, Report};
use super::super::runner::Runner;
use super::super::text::{self, Text};
use super::super::world::World;
use super::dump;
use crate::process::{Process, wait_until};
use crate::workspace;

/// The clients that are run against it.
pub(crate) const CLIENTS: [Client; 3] = [Client::Java, Client::Python, Client::Kcat];

const GROUPS: &str = "kafka-consumer-groups";
/// Records that each client writes in all, and at each turn; the local writer gets as many.
const RECORDS: usize = 6_000;
const TURN_RECORDS: usize = 100;
const TURN: Duration = Duration::from_millis(20);
const DEADLINE: Duration = Duration::from_secs(120);
/// Small, so that there are closed segments.
const SEGMENT_BYTES: &str = "262144";

/// All clients at once, each with a queue of its own, against a broker of their own.
pub(crate) fn run(dir: &Path, world: &World, report: &Report, clients: &[Client], with_tools: bool) {
    let begin = Instant::now();
    match Attached::start(dir, world.text.clone(), clients) {
        Ok(mut attached) => attached.run(report, clients, with_tools),
        Err(error) => drop(report.outcome("attached queues", "broker", begin.elapsed(), Err(error))),
    }
}

struct Attached {
    world: World,
    broker: Broker,
    dir: PathBuf,
}

fn topic(client: Client) -> String {
    format!("attached-{}", client.key())
}

impl Attached {
    fn start(dir: &Path, text: Text, clients: &[Client]) -> Result<Attached> {
        let dir = dir.join("attached");
        let (run, logs) = (dir.join("files"), dir.join("logs"));
        fs::create_dir_all(&run)?;
        fs::create_dir_all(&logs)?;
        let queue = |client: &Client| {
            let queue = dir.join(topic(*client));
            let mut append = mainstem(&["queue", "append", "--segment-bytes", SEGMENT_BYTES], &queue);
            Process::start("make", &mut append, &logs)?.wait(DEADLINE)?;
            Ok(format!("{}={}", topic(*client), queue.display()))
        };
        let queues = clients.iter().map(queue).collect::<Result<Vec<_>>>()?;
        let port = port();
        let settings = vec![("mainstem.attach", queues.join(","))];
        let broker = Broker::start(Kind::Mainstem, &dir, port, settings)?;
        let runner = Mutex::new(Runner::new(&logs));
        Ok(Attached { world: World { run, logs, port, text, runner }, broker, dir })
    }

    fn queue(&self, client: Client) -> PathBuf {
        self.dir.join(topic(client))
    }

    fn run(&mut self, report: &Report, clients: &[Client], with_tools: bool) {
        let begin = Instant::now();
        let loads: Vec<_> = clients.iter().map(|client| (*client, Load::start(self, *client))).collect();
        let loads = self.drive(loads);
        for (client, load) in loads {
            let result = load.and_then(|load| self.finish(client, load)).map(Some);
            report.outcome(client.key(), "attached queue, all killed", begin.elapsed(), result);
        }
        if with_tools && let Some(client) = clients.first() {
            report.check(GROUPS, "a named tailer: describe, lag, reset", || self.tailer(*client));
            report.check(DUMP_LOG, "every closed segment of an attached queue", || self.dump(*client));
        }
    }

    /// Feeds all at a pace; kills the broker after a third, and the local writers and readers after two.
    fn drive(&mut self, mut loads: Vec<(Client, Result<Load>)>) -> Vec<(Client, Result<Load>)> {
        for turn in 0..RECORDS / TURN_RECORDS {
            let begin = Instant::now();
            for (client, load) in &mut loads {
                let fed = match load {
                    Ok(load) => load.feed(&self.world.text),
                    Err(_) => continue,
                };
                let fed = match turn == RECORDS / TURN_RECORDS * 2 / 3 {
                    true => fed.and_then(|()| load.as_mut().map_or(Ok(()), |load| load.kill(self, *client))),
                    false => fed,
                };
                if let Err(error) = fed {
                    *load = Err(error);
                }
            }
            if turn == RECORDS / TURN_RECORDS / 3 {
                self.broker.kill();
                thread::sleep(Duration::from_millis(300));
                if let Err(error) = self.broker.restart() {
                    return loads
                        .into_iter()
                        .map(|(client, _)| (client, Err(anyhow::anyhow!("{error:#}"))))
                        .collect();
                }
            }
            thread::sleep(TURN.saturating_sub(begin.elapsed()));
        }
        loads
    }

    /// Checks that all records of the client exist once and in order, those of the local writers in order, and that remote and local
    /// readers read the same.
    fn finish(&self, client: Client, mut load: Load) -> Result<String> {
        load.remote.finish(DEADLINE)?;
        load.local.finish(DEADLINE)?;
        let out = self.world.run.join("attached");
        client.consume(&self.world, &[topic(client)], &out)?;
        let remote = text::read_records(&read_file(&out, &topic(client)))?;
        let local = self.read_locally(client)?;
        ensure!(remote.len() == local.len(), "{} are read remotely, {} locally", remote.len(), local.len());
        for (record, message) in remote.iter().zip(&local) {
            let (key, value) = (record.key.as_deref(), record.value.as_deref());
            let same = (record.offset, key, value)
                == (message.offset, message.key.as_deref(), message.value.as_deref());
            ensure!(same, "{record:?} is read locally as {message:?}");
        }
        let (mut written, mut appended) = (0, None);
        for message in &local {
            let value = message.value.as_deref().unwrap_or_default();
            match &message.key {
                Some(_) => {
                    let expected = fed_value(&self.world.text, written);
                    ensure!(value == expected, "{value:?} comes in place of the client's record {written}");
                    written += 1;
                }
                None => {
                    let (_, value) = value.split_once('\t').context("a line of the local writer")?;
                    let number: usize =
                        value.split(' ').next().unwrap_or_default().parse().context("its number")?;
                    ensure!(appended < Some(number), "the local message {number} comes after {appended:?}");
                    appended = Some(number);
                }
            }
        }
        ensure!(written == RECORDS, "{written} of the client's {RECORDS} records are there");
        ensure!(appended == Some(RECORDS - 1), "the local messages end with {appended:?}");
        let tailed = fs::read_to_string(self.world.run.join(format!("{}.tail", topic(client))))?;
        ensure!(!tailed.is_empty(), "the local reader has read nothing");
        Ok(format!("{} messages", local.len()))
    }

    fn read_locally(&self, client: Client) -> Result<Vec<Message>> {
        let out = self.world.run.join(format!("{}.local", topic(client)));
        let mut tail = mainstem(&["queue", "tail", "--json"], &self.queue(client));
        Process::start_to_file("tail", &mut tail, &self.world.logs, &out)?.wait(DEADLINE)?;
        let text = fs::read_to_string(&out)?;
        text.lines().map(|line| serde_json::from_str(line).context("a line of the tail")).collect()
    }

    fn group(&self, options: &str) -> Result<String> {
        let bootstrap = self.world.bootstrap();
        let mut arguments = vec!["--bootstrap-server", &bootstrap];
        arguments.extend(options.split(' '));
        let finished = self.world.tool(GROUPS, &arguments, "")?;
        Ok(finished.out + &finished.err)
    }

    /// Reads three messages under a name, and returns them.
    fn tail_named(&self, client: Client, name: &str) -> Result<String> {
        let out = self.world.run.join(format!("{name}.out"));
        let mut tail =
            mainstem(&["queue", "tail", "--named", name, "--max", "3", "--json"], &self.queue(client));
        Process::start_to_file(name, &mut tail, &self.world.logs, &out)?.wait(DEADLINE)?;
        Ok(fs::read_to_string(&out)?)
    }

    fn tailer(&self, client: Client) -> Result<()> {
        let (topic, end) = (topic(client), self.read_locally(client)?.len());
        self.tail_named(client, "tailer")?;
        let shown = |position: usize, output: &str| {
            let wanted = [
                "tailer",
                &topic,
                "0",
                &position.to_string(),
                &end.to_string(),
                &(end - position).to_string(),
            ];
            let line = output.lines().find(|line| line.starts_with("tailer")).unwrap_or_default();
            let words: Vec<&str> = line.split_whitespace().take(wanted.len()).collect();
            ensure!(words == wanted, "not {wanted:?} but:\n{output}");
            Ok(())
        };
        shown(3, &self.group("--describe --group tailer")?)?;
        let state = self.group("--describe --group tailer --state")?;
        ensure!(state.contains("Empty"), "its state:\n{state}");
        let reset = format!("--reset-offsets --group tailer --topic {topic} --to-offset 100 --execute");
        let output = self.group(&reset)?;
        ensure!(output.contains("100"), "the reset said:\n{output}");
        shown(100, &self.group("--describe --group tailer")?)?;
        let read = self.tail_named(client, "tailer")?;
        ensure!(read.starts_with("{") && read.contains("\"offset\":100"), "it continues elsewhere:\n{read}");
        // A live one is Stable with one member, and is not moved.
        let mut live = mainstem(&["queue", "tail", "--named", "tailer", "--follow"], &self.queue(client));
        let mut live = Process::start("live", &mut live, &self.world.logs)?;
        wait_until(
            || "the tailer is shown as live".to_owned(),
            DEADLINE,
            || Ok(self.group("--describe --group tailer --state")?.contains("Stable")),
        )?;
        let members = self.group("--describe --group tailer --members")?;
        ensure!(members.contains("tailer-tailer"), "its members:\n{members}");
        let refused = self.group(&reset)?;
        ensure!(
            refused.contains("the current state is Stable"),
            "the reset of a live tailer said:\n{refused}"
        );
        live.kill();
        let deleted = self.group("--delete --group tailer")?;
        ensure!(deleted.contains("successful"), "the deletion said:\n{deleted}");
        let listed = self.group("--list")?;
        ensure!(!listed.contains("tailer"), "it is still there:\n{listed}");
        Ok(())
    }

    fn dump(&self, client: Client) -> Result<()> {
        let queue = self.queue(client);
        let names = fs::read_dir(&queue)?.map(|entry| Ok(entry?.path())).collect::<Result<Vec<_>>>()?;
        let with = |extension: &str| {
            let mut files: Vec<_> = names
                .iter()
                .filter(|path| path.extension().is_some_and(|found| found == extension))
                .cloned()
                .collect();
            files.sort();
            // The last one is open.
            files.pop();
            files
        };
        let logs = with("log");
        ensure!(logs.len() >= 2, "only {} segments are closed", logs.len());
        dump::dump(&self.world, &logs, &[], "isvalid: true")?;
        dump::dump(&self.world, &with("index"), &[], "offset: ")?;
        dump::dump(&self.world, &with("timeindex"), &[], "timestamp: ")
    }
}

/// A line of `mainstem queue tail --json`.
#[derive(Debug, Deserialize)]
struct Message {
    offset: i64,
    key: Option<String>,
    value: Option<String>,
}

/// A remote producer, a local one, and a local reader of one queue.
struct Load {
    remote: Feeder,
    local: Feeder,
    reader: Process,
}

impl Load {
    fn start(attached: &Attached, client: Client) -> Result<Load> {
        let remote = client.feed(&attached.world, &topic(client), 0)?;
        let (local, reader) = local(attached, client, 0)?;
        Ok(Load { remote, local, reader })
    }

    fn feed(&mut self, text: &Text) -> Result<()> {
        self.remote.feed(text, TURN_RECORDS)?;
        self.local.feed(text, TURN_RECORDS)
    }

    /// Kills the local processes without warning, and starts others.
    fn kill(&mut self, attached: &Attached, client: Client) -> Result<()> {
        self.local.kill();
        self.reader.kill();
        (self.local, self.reader) = local(attached, client, self.local.fed())?;
        Ok(())
    }
}

/// A local writer that is fed, and a reader that follows.
fn local(attached: &Attached, client: Client, fed: usize) -> Result<(Feeder, Process)> {
    let (queue, logs) = (attached.queue(client), &attached.world.logs);
    let name = format!("append-{}-{fed}", client.key());
    let writer = Process::start_with_input(&name, &mut mainstem(&["queue", "append"], &queue), logs)?;
    let out = attached.world.run.join(format!("{}.tail", topic(client)));
    let mut tail = mainstem(&["queue", "tail", "--follow", "--named", "follower"], &queue);
    let reader = Process::start_to_file(&format!("follow-{}", client.key()), &mut tail, logs, &out)?;
    Ok((Feeder::new(writer, fed), reader))
}

fn mainstem(arguments: &[&str], queue: &Path) -> Command {
    let mut command = Command::new(workspace::product());
    command.args(arguments).arg(queue);
    command
}
