//! A consumer: long polls its partitions and checks every record for loss, duplication, order and content.

use std::net::SocketAddr;
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use hdrhistogram::Histogram;

use super::Plan;
use super::member::Member;
use super::phases::Phases;
use crate::batch;
use crate::clock;
use crate::connection::Connection;
use crate::latency::new_histogram;
use crate::payload::PayloadCodec;
use crate::protocol::TopicId;
use crate::protocol::data::FetchSession;

/// Timeout for the consumers to read the records that were acknowledged before the producers stopped.
const DRAIN_MAX: Duration = Duration::from_secs(60);

#[derive(Debug)]
pub(crate) struct Consumer {
    connection: Connection,
    session: FetchSession,
    checker: Checker,
    member: Option<Member>,
}

#[derive(Debug)]
pub(crate) struct ConsumerTotals {
    pub(crate) consumed: u64,
    pub(crate) end_to_end_ns: Histogram<u64>,
    /// The member that has still to leave the group, if there is one.
    departure: Option<Departure>,
}

/// A member that has consumed all, and its positions.
#[derive(Debug)]
struct Departure {
    member: Member,
    positions: Vec<(i32, i64)>,
}

/// Commits for every consumer, then lets all leave. No member may leave while another one still sends heartbeats: that one would see a
/// rebalance.
pub(crate) fn leave_group(consumers: &mut [ConsumerTotals]) -> Result<()> {
    let mut departures: Vec<_> =
        consumers.iter_mut().filter_map(|consumer| consumer.departure.take()).collect();
    for Departure { member, positions } in &mut departures {
        member.commit(positions)?;
    }
    departures.into_iter().try_for_each(|departure| departure.member.leave())
}

impl Consumer {
    pub(crate) fn new(
        plan: &Plan,
        topic: TopicId,
        codec: PayloadCodec,
        member: Option<Member>,
        partitions: &[i32],
    ) -> Result<Self> {
        Ok(Self {
            connection: Connection::open(plan.target.address)?,
            session: FetchSession::new(topic, partitions),
            checker: Checker::new(codec, plan.shape.producers, plan.shape.partitions),
            member,
        })
    }

    /// Makes a consumer of the partitions that one node of several leads; it is in no group.
    pub(crate) fn of_node(
        address: SocketAddr,
        topic: TopicId,
        codec: PayloadCodec,
        (producers, partitions): (u32, i32),
        led: &[i32],
    ) -> Result<Self> {
        Ok(Self {
            connection: Connection::open(address)?,
            session: FetchSession::new(topic, led),
            checker: Checker::new(codec, producers, partitions),
            member: None,
        })
    }

    /// Consumes until all is drained. Heartbeats go over the member's own connection.
    pub(crate) fn run(mut self, phases: &Phases) -> Result<ConsumerTotals> {
        let Some(member) = self.member.take() else {
            return self.consume(phases);
        };
        thread::scope(|scope| {
            let (finish, finished) = mpsc::channel();
            let heartbeats = scope.spawn(|| phases.guard(member.keep_alive(finished)));
            let totals = self.consume(phases);
            drop(finish);
            let member = heartbeats.join().expect("the heartbeat thread panicked")?;
            let positions = self.session.positions().to_vec();
            Ok(ConsumerTotals { departure: Some(Departure { member, positions }), ..totals? })
        })
    }

    fn consume(&mut self, phases: &Phases) -> Result<ConsumerTotals> {
        let mut totals = ConsumerTotals { consumed: 0, end_to_end_ns: new_histogram(), departure: None };
        let mut drain_deadline = None;
        while !phases.is_drained() && !phases.is_abandoned() {
            let consumed_before = totals.consumed;
            let Self { connection, session, checker, .. } = self;
            session.fetch(connection, |partition, position, bytes| {
                checker.take(partition, position, bytes, phases, &mut totals)
            })?;
            phases.add_consumed(totals.consumed - consumed_before);
            if phases.is_stopped() {
                let deadline = *drain_deadline.get_or_insert_with(|| Instant::now() + DRAIN_MAX);
                ensure!(
                    Instant::now() < deadline,
                    "acknowledged records are still missing after {DRAIN_MAX:?}"
                );
            }
        }
        Ok(totals)
    }
}

/// Knows what the next record of each producer in each partition must be.
#[derive(Debug)]
struct Checker {
    codec: PayloadCodec,
    /// Next sequence by producer, then by partition.
    next: Vec<Vec<u64>>,
}

impl Checker {
    fn new(codec: PayloadCodec, producers: u32, partitions: i32) -> Self {
        Self { codec, next: vec![vec![0; partitions as usize]; producers as usize] }
    }

    /// Checks and times the batches of one partition, from the given position on, and returns the next position.
    fn take(
        &mut self,
        partition: i32,
        mut position: i64,
        mut bytes: &[u8],
        phases: &Phases,
        totals: &mut ConsumerTotals,
    ) -> Result<i64> {
        let received_ns = clock::now_ns();
        while let Some(batch) = batch::split_first(&mut bytes)? {
            ensure!(batch.base_offset == position, "offset {} where {position} was next", batch.base_offset);
            position = batch.next_offset();
            batch.for_each(|value| {
                let sent_ns = self.check(partition, value)?;
                totals.consumed += 1;
                if phases.window_contains(sent_ns) {
                    totals.end_to_end_ns.record(received_ns.saturating_sub(sent_ns))?;
                }
                Ok(())
            })?;
        }
        Ok(position)
    }

    /// Returns when the record was sent.
    fn check(&mut self, partition: i32, value: &[u8]) -> Result<u64> {
        let payload = self.codec.check(value)?;
        ensure!(payload.partition as i32 == partition, "a record of partition {}", payload.partition);
        let by_partition = self.next.get_mut(payload.producer as usize).context("a record of no producer")?;
        let next = &mut by_partition[partition as usize];
        let sequence = payload.sequence;
        ensure!(sequence == *next, "record {sequence} of a producer where {next} was next");
        *next += 1;
        Ok(payload.sent_ns)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bytes::Writer;
    use crate::payload::Payload;

    fn value(codec: &PayloadCodec, producer: u32, partition: u32, sequence: u64) -> Vec<u8> {
        let mut writer = Writer::default();
        codec.write(&mut writer, Payload { sequence, sent_ns: 9, producer, partition });
        writer.as_bytes().to_vec()
    }

    #[test]
    fn loss_duplication_and_misplacement_are_errors() {
        let codec = PayloadCodec::new(40);
        let mut checker = Checker::new(codec.clone(), 2, 6);
        for (producer, partition, sequence) in [(0, 0, 0), (0, 1, 0), (1, 0, 0), (0, 0, 1), (0, 0, 2)] {
            checker.check(partition as i32, &value(&codec, producer, partition, sequence)).unwrap();
        }
        let duplicate = checker.check(0, &value(&codec, 0, 0, 2)).unwrap_err().to_string();
        assert_eq!(duplicate, "record 2 of a producer where 3 was next");
        let lost = checker.check(0, &value(&codec, 0, 0, 4)).unwrap_err().to_string();
        assert_eq!(lost, "record 4 of a producer where 3 was next");
        assert!(checker.check(3, &value(&codec, 0, 0, 3)).is_err());
        assert!(checker.check(0, &value(&codec, 2, 0, 0)).is_err());
    }
}
