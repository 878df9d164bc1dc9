//! The archive of the classes of Kafka's jars, which each JVM of a run maps at its start (`mainstem_testkit::java`).
//!
//! It holds what a broker, a producer and a member of a group load. Nothing depends on it but time.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use mainstem_testkit::java::{self, KafkaJars};
use mainstem_testkit::port;

use super::conversation::Conversation;
use crate::workspace;

/// Others compile meanwhile.
const DEADLINE: Duration = Duration::from_secs(180);

/// Makes the archive beside the jars, unless it was made from the same jars and by the same JVM.
///
/// # Errors
/// If the JVM does not do what it is asked for; there is no archive then.
pub(crate) fn make(jars: &KafkaJars, made_from: &str) -> Result<()> {
    let wanted = format!("{}{made_from}", java_version()?);
    let stamp = jars.archive().with_extension("stamp");
    let is_current = fs::read_to_string(&stamp).is_ok_and(|found| found == wanted);
    if is_current && jars.archive().is_file() {
        return Ok(());
    }
    // One of another JVM would be read in vain at each start.
    let _ = fs::remove_file(jars.archive());
    let folder = workspace::interop_dir().join("archive");
    if folder.exists() {
        fs::remove_dir_all(&folder)?;
    }
    fs::create_dir_all(&folder)?;
    let fresh = folder.join("classes.jsa");
    run(jars, &folder, &fresh).context("run the broker and the clients whose classes are archived")?;
    ensure!(fresh.is_file(), "the JVM wrote no archive");
    fs::rename(&fresh, jars.archive())?;
    fs::write(stamp, wanted)?;
    fs::remove_dir_all(&folder)?;
    Ok(())
}

/// A broker, a record that is written to it, and a member of a group that reads it.
fn run(jars: &KafkaJars, folder: &Path, archive: &Path) -> Result<()> {
    // The program removes its folder.
    let own = folder.join("peer");
    fs::create_dir_all(&own)?;
    let (address, controller) = (format!("127.0.0.1:{}", port()), format!("127.0.0.1:{}", port()));
    let properties = own.join("server.properties");
    let settings = format!(
        "process.roles=broker,controller\nnode.id=1\ncontroller.listener.names=CONTROLLER\n\
         controller.quorum.bootstrap.servers={controller}\nlisteners=PLAINTEXT://{address},CONTROLLER://{controller}\n\
         listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT\nlog.dirs={}\n\
         offsets.topic.replication.factor=1\ngroup.initial.rebalance.delay.ms=0\n",
        own.join("data").display()
    );
    fs::write(&properties, settings)?;
    let program = workspace::root().join("tests/native-client/KafkaPeer.java");
    let mut jvm = jars.archiving_java(512, archive);
    let mut jvm = Conversation::start("archive", jvm.arg(program).arg(&own), folder)?;
    jvm.say(&format!("broker\t{}", properties.display()))?;
    jvm.say(&format!("write\twriter\t{address}\ttopic\tlz4\tkey"))?;
    jvm.wait_for("written\t", DEADLINE)?;
    jvm.say(&format!("member\treader\t{address}\tgroup\tconsumer\ttopic"))?;
    jvm.wait_for("read\t", DEADLINE)?;
    jvm.say("close\treader")?;
    jvm.wait_for("closed\t", DEADLINE)?;
    jvm.end(DEADLINE)
}

fn java_version() -> Result<String> {
    let output = Command::new(java::program("java")).arg("-version").output().context("start java")?;
    Ok(String::from_utf8_lossy(&output.stderr).into_owned())
}
