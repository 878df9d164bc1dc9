//! Process start to the first acknowledged record: on nothing, after a stop in order, after a kill.

use std::time::Duration;

use anyhow::Result;

use super::{Case, Measured, batch_of, fill_bytes, fill_partitions};
use crate::broker::Running;
use crate::connection::Connection;
use crate::payload::PayloadCodec;
use crate::process;
use crate::protocol::{admin, data};
use crate::sampler::MIB;
use crate::workload::{Acks, Left, MANY_PARTITIONS};

/// The topic of the first record; the broker makes it when its metadata is asked for.
const TOPIC: &str = "first";

pub(super) fn run(case: &Case<'_>, left: Left) -> Result<Measured> {
    let mut broker = match left {
        Left::Nothing => Running::start(case.environment, case.launch())?,
        Left::Clean | Left::Killed => start_on_what_was_left(case, left)?,
    };
    let took = until_first_ack(&mut broker)?;
    let memory = process::memory(broker.pid())?;
    // How it would stop is not measured, and after a kill there is much to sync.
    drop(broker);
    Ok(Measured::of([
        ("first_ack_ms", took.as_secs_f64() * 1_000.0),
        ("vm_hwm_mib", memory.peak as f64 / MIB),
    ]))
}

/// Fills a broker, ends it, and starts it again.
fn start_on_what_was_left(case: &Case<'_>, left: Left) -> Result<Running> {
    let mut broker = Running::start_ready(case.environment, case.launch())?;
    until_first_ack(&mut broker)?;
    let mut connection = Connection::open(broker.address)?;
    let topic = fill_partitions(&mut connection)?;
    let kept = match left {
        Left::Nothing | Left::Clean => broker.stop_and_keep()?,
        Left::Killed => {
            fill_bytes(&mut connection, &topic, MANY_PARTITIONS, case.extent.killed_mib << 20)?;
            broker.kill_and_keep()
        }
    };
    drop(connection);
    Running::start_again(case.environment, case.launch(), kept)
}

/// A native client that tries everything anew each millisecond, from the connection on, until a record is
/// acknowledged. Returns the time since the process was started.
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

/// Whether a record was acknowledged; false while the topic is not there yet.
fn try_first_record(connection: &mut Connection, codec: &PayloadCodec) -> Result<bool> {
    let Some(topic) = admin::topic_state(connection, TOPIC)? else { return Ok(false) };
    if topic.led_partitions == 0 {
        return Ok(false);
    }
    let batch = batch_of(codec, 1, 0);
    data::produce(connection, Acks::Leader, &topic.id, 0, &batch).map(|_offset| true)
}
