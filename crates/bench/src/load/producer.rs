//! The settings and the totals that all producers have.

use std::thread;
use std::time::Instant;

use anyhow::{Result, bail, ensure};
use hdrhistogram::Histogram;

use super::{Plan, SETUP_INTERVAL, SETUP_MAX};
use crate::connection::Connection;
use crate::latency::new_histogram;
use crate::payload::PayloadCodec;
use crate::protocol::{TopicId, admin, error};

/// A producer: its connection, its identity, and the partitions that it writes to.
#[derive(Debug)]
pub(crate) struct Producer {
    pub(crate) connection: Connection,
    pub(crate) topic: TopicId,
    pub(crate) codec: PayloadCodec,
    /// Counts the producers of a load.
    pub(crate) number: u32,
    /// (producer id, epoch) if it is idempotent.
    pub(crate) identity: Option<(i64, i16)>,
}

/// Counts and latencies of a producer; latencies in nanoseconds, of records sent (by schedule: due) within the window.
#[derive(Debug)]
pub(crate) struct ProducerTotals {
    pub(crate) produced: u64,
    pub(crate) acked_in_window: u64,
    pub(crate) ack_ns: Histogram<u64>,
    /// The time from the instant of a scheduled record until it was made: the delay of the driver itself.
    pub(crate) late_ns: Histogram<u64>,
    /// Records that were due within the window and not made until the end of the load, as the buffer had no space.
    pub(crate) unsent_in_window: u64,
}

impl ProducerTotals {
    pub(crate) fn new() -> Self {
        Self {
            produced: 0,
            acked_in_window: 0,
            ack_ns: new_histogram(),
            late_ns: new_histogram(),
            unsent_in_window: 0,
        }
    }
}

impl Producer {
    pub(crate) fn new(plan: &Plan, topic: TopicId, number: u32) -> Result<Self> {
        let mut connection = Connection::open(plan.target.address)?;
        let identity = match (plan.shape.idempotent, plan.target.has_topics_and_groups) {
            (false, _) => None,
            // The probe does not look at producer ids.
            (true, false) => Some((0, 0)),
            (true, true) => Some(identify(&mut connection)?),
        };
        let codec = PayloadCodec::new(plan.shape.value_bytes);
        Ok(Self { connection, topic, codec, number, identity })
    }
}

/// Asks for a producer id until the broker has one.
pub(super) fn identify(connection: &mut Connection) -> Result<(i64, i16)> {
    let deadline = Instant::now() + SETUP_MAX;
    loop {
        match admin::init_producer_id(connection)? {
            Ok(identity) => return Ok(identity),
            Err(
                error::COORDINATOR_LOAD_IN_PROGRESS
                | error::COORDINATOR_NOT_AVAILABLE
                | error::NOT_COORDINATOR,
            ) => thread::sleep(SETUP_INTERVAL),
            Err(code) => bail!("InitProducerId was answered with Kafka's error code {code}"),
        }
        ensure!(Instant::now() < deadline, "the broker gives no producer id within {SETUP_MAX:?}");
    }
}
