//! A load by schedule beside 64 slow consumers of data that is not in memory. Their responses may not make the broker large, and reading
//! from the disk may not delay the others.

use anyhow::{Context, Result};

use super::load::{LoadOrder, measure};
use super::{Case, FILL_RECORDS, Measured, fill_bytes};
use crate::broker::Running;
use crate::connection::Connection;
use crate::load::slow::{OldData, SlowConsumers};
use crate::load::{Keeps, create_serving_topic};
use crate::process;
use crate::protocol::admin;
use crate::sampler::MIB;
use crate::workload::LoadShape;

const TOPIC: &str = "cold";

pub(super) fn run(case: &Case<'_>, shape: LoadShape) -> Result<Measured> {
    let broker = Running::start_ready(case.environment, case.launch())?;
    let data = fill(&broker, shape.partitions, case.extent.cold_mib << 20)?;
    let read_before = process::bytes_from_disk(broker.pid())?;
    let consumers = SlowConsumers::start(broker.address, data)?;
    let order = LoadOrder { shape, window: case.extent.window, keeps: Keeps::All };
    let mut measured = measure(case, &broker, order)?;
    let taken_per_s =
        consumers.finish().with_context(|| format!("the broker's last lines:\n{}", broker.log_tail()))?;
    let read = process::bytes_from_disk(broker.pid())? - read_before;
    broker.stop()?;
    measured.add([("slow_mib_per_s", taken_per_s / MIB), ("from_disk_mib", read as f64 / MIB)]);
    Ok(measured)
}

/// A topic with that many bytes, which are on the disk and not in memory.
fn fill(broker: &Running, partitions: i32, bytes: u64) -> Result<OldData> {
    let mut connection = Connection::open(broker.address)?;
    let topic = create_serving_topic(&mut connection, TOPIC, partitions, &[])?;
    fill_bytes(&mut connection, &topic, partitions, bytes)?;
    let records = admin::count_records(&mut connection, TOPIC, partitions)?;
    broker.make_cold(TOPIC)?;
    // Partitions are filled in turn: a last turn that is not complete is left out.
    let turns = records / (partitions as u64 * FILL_RECORDS as u64);
    Ok(OldData {
        topic,
        partitions,
        records: (turns * FILL_RECORDS as u64) as i64,
        records_of_a_batch: FILL_RECORDS as i64,
    })
}
