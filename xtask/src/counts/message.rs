//! The whole broker: its instructions for a message, from the socket to the log and to the consumer.

use std::fs;
use std::net::{Ipv4Addr, SocketAddr};
use std::process::Command;
use std::time::Duration;

use anyhow::{Result, ensure};
use mainstem_testkit::port;

use super::callgrind::{Callgrind, total};
use crate::interop::protocol;
use crate::process::{Process, ended_by_request, wait_until};
use crate::workspace;

/// Its name among the counts.
pub(super) const NAME: &str = "broker/message_1024";
/// The program that loads it: an example of `mainstem-tests`. Its own instructions are not counted.
const LOAD: &str = "lockstep";
/// Messages of the two runs. The difference of their counts is the cost of the further messages, without start and stop.
const MESSAGES: [u64; 2] = [500, 2_500];
/// The broker is fifty times slower than otherwise.
const DEADLINE: Duration = Duration::from_secs(120);
/// One event loop, and no work that depends on time, such as looking for more; flushes as Kafka does by default.
const SETTINGS: [&str; 4] = [
    "num.network.threads=1",
    "mainstem.network.idle.poll.us=0",
    "write.caching.default=true",
    "offsets.topic.num.partitions=1",
];

/// Instructions for a message; the programs are built.
pub(super) fn count(callgrind: &Callgrind) -> Result<u64> {
    let [few, many] = MESSAGES.map(|messages| count_run(callgrind, messages));
    Ok((many?.saturating_sub(few?)) / (MESSAGES[1] - MESSAGES[0]))
}

/// Instructions of a broker from its start to its end, with so many messages between.
fn count_run(callgrind: &Callgrind, messages: u64) -> Result<u64> {
    let out = callgrind.out(&format!("{NAME}-{messages}"));
    let mut command = callgrind.command(&workspace::product(), None, &out)?;
    let data = callgrind.dir.join("data");
    let _ = fs::remove_dir_all(&data);
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port()));
    command.args(["start", "--listen", &address.to_string(), "--data-dir"]).arg(&data);
    for setting in SETTINGS {
        command.args(["--set", setting]);
    }
    let mut broker = Process::start("broker", &mut command, &callgrind.dir)?;
    let what = || format!("the broker answers on {address}");
    wait_until(what, DEADLINE, || broker.check_alive().map(|()| protocol::is_ready(address)))?;
    let mut load = Command::new(workspace::example(LOAD));
    load.args([address.to_string(), messages.to_string()]);
    Process::start(LOAD, &mut load, &callgrind.dir)?.wait(DEADLINE)?;
    broker.terminate()?;
    let status = broker.wait_for_status(DEADLINE)?;
    ensure!(ended_by_request(status), "the broker ended with {status}\n{}", broker.log_ends());
    let _ = fs::remove_dir_all(&data);
    total(&out)
}
