//! Process start to the first acknowledged record: on nothing, after a stop in order, after a kill.

use std::net::SocketAddr;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Result;

use super::cpu::CpuTimes;
use super::{Case, Measured, batch_of, fill_bytes, fill_partitions};
use crate::broker::{DataDir, Running};
use crate::connection::Connection;
use crate::payload::PayloadCodec;
use crate::process;
use crate::protocol::{admin, data};
use crate::sampler::MIB;
use crate::workload::{Acks, Left, MANY_PARTITIONS};

/// The topic of the first record; the broker makes it when its metadata is asked for.
const TOPIC: &str = "first";
/// CPU time comes in steps of 10 ms, which is coarse for a start that takes no longer. So the CPU time of others is watched from the same
/// instant for this long at least.
const WATCHED_MIN: Duration = Duration::from_millis(500);

pub(super) fn run(case: &Case<'_>, left: Left) -> Result<Measured> {
    let kept = match left {
        Left::Nothing => Running::prepare(case.environment, case.launch())?,
        Left::Clean | Left::Killed => leave_something(case, left)?,
    };
    let (begin, before) = (Instant::now(), CpuTimes::before_broker()?);
    let mut broker = Running::start_on(case.environment, case.launch(), kept)?;
    let took = until_first_ack(&mut broker)?;
    let memory = process::memory(broker.pid())?;
    thread::sleep(WATCHED_MIN.saturating_sub(begin.elapsed()));
    let cpu = CpuTimes::sample(broker.pid())?.since(&before);
    let seconds = begin.elapsed().as_secs_f64();
    // The stop is not measured, and after a kill it has much to sync.
    drop(broker);
    let mut measured = Measured::of([
        ("first_ack_ms", took.as_secs_f64() * 1_000.0),
        ("vm_hwm_mib", memory.peak as f64 / MIB),
    ]);
    cpu.add_circumstances(&mut measured, seconds);
    Ok(measured)
}

/// Fills a broker and ends it.
fn leave_something(case: &Case<'_>, left: Left) -> Result<(DataDir, SocketAddr)> {
    let mut broker = Running::start_ready(case.environment, case.launch())?;
    until_first_ack(&mut broker)?;
    let mut connection = Connection::open(broker.address)?;
    let topic = fill_partitions(&mut connection)?;
    match left {
        Left::Nothing | Left::Clean => broker.stop_and_keep(),
        Left::Killed => {
            fill_bytes(&mut connection, &topic, MANY_PARTITIONS, case.extent.killed_mib << 20)?;
            Ok(broker.kill_and_keep())
        }
    }
}

/// Starts a native client that repeats everything from the connection on every millisecond, until a record is acknowledged. Returns the
/// time since the process was started.
fn until_first_ack(broker: &mut Running) -> Result<Duration> {
    let codec = PayloadCodec::new(100);
    let mut connection = None;
    broker.wait_until(|broker| {
        let attempt =
            connection.take().map_or_else(|| Connection::open(broker.address), Ok).and_then(|mut open| {
                let acked = try_first_record(&mut open, &codec);
                // A refusal leaves the connection usable, a failure of the connection shows at the next attempt.
                if acked.is_ok() {
                    connection = Some(open);
                }
                acked
            });
        attempt.unwrap_or(false).then_some(())
    })?;
    Ok(broker.started_at.elapsed())
}

/// Returns true if a record was acknowledged; false while the topic does not exist yet.
fn try_first_record(connection: &mut Connection, codec: &PayloadCodec) -> Result<bool> {
    let Some(topic) = admin::topic_state(connection, TOPIC)? else { return Ok(false) };
    if topic.led_partitions == 0 {
        return Ok(false);
    }
    let batch = batch_of(codec, 1, 0);
    data::produce(connection, Acks::Leader, &topic.id, 0, &batch).map(|_offset| true)
}
