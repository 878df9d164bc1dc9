//! A consumer: long polls its partitions and checks every record for loss, duplication, order and content.

use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use hdrhistogram::Histogram;

use super::member::Member;
use super::phases::Phases;
use super::producer::partition_of;
use super::{PARTITIONS, Plan, new_histogram};
use crate::batch;
use crate::clock;
use crate::connection::Connection;
use crate::payload::PayloadCodec;
use crate::protocol::TopicId;
use crate::protocol::data::FetchSession;

/// How long the consumers may take to read what was acknowledged before the producers stopped.
const DRAIN_MAX: Duration = Duration::from_secs(20);

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
            checker: Checker::new(codec, plan.workload.producers),
            member,
        })
    }

    /// Consumes until all is drained, with heartbeats on the member's own connection; then commits and leaves.
    pub(crate) fn run(mut self, phases: &Phases) -> Result<ConsumerTotals> {
        let Some(member) = self.member.take() else {
            return self.consume(phases);
        };
        thread::scope(|scope| {
            let (finish, finished) = mpsc::channel();
            let heartbeats = scope.spawn(|| phases.guard(member.keep_alive(finished)));
            let totals = self.consume(phases);
            drop(finish);
            let mut member = heartbeats.join().expect("the heartbeat thread panicked")?;
            let totals = totals?;
            member.commit(self.session.positions())?;
            member.leave()?;
            Ok(totals)
        })
    }

    fn consume(&mut self, phases: &Phases) -> Result<ConsumerTotals> {
        let mut totals = ConsumerTotals { consumed: 0, end_to_end_ns: new_histogram() };
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
    next: Vec<[u64; PARTITIONS as usize]>,
}

impl Checker {
    fn new(codec: PayloadCodec, producers: u32) -> Self {
        let next = (0..producers).map(|producer| {
            let mut firsts = [0; PARTITIONS as usize];
            for sequence in 0..PARTITIONS as u64 {
                firsts[partition_of(producer, sequence) as usize] = sequence;
            }
            firsts
        });
        Self { codec, next: next.collect() }
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
        while let Some(record) = batch::split_first(&mut bytes)? {
            ensure!(record.offset == position, "offset {} where {position} was next", record.offset);
            position += 1;
            let sent_ns = self.check(partition, record.value)?;
            totals.consumed += 1;
            if phases.window_contains(sent_ns) {
                totals.end_to_end_ns.record(received_ns - sent_ns)?;
            }
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
        *next += PARTITIONS as u64;
        Ok(payload.sent_ns)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bytes::Writer;
    use crate::payload::Payload;

    fn value(codec: &PayloadCodec, sequence: u64, producer: u32) -> Vec<u8> {
        let partition = partition_of(producer, sequence);
        let mut writer = Writer::default();
        codec.write(&mut writer, Payload { sequence, sent_ns: 9, producer, partition });
        writer.as_bytes().to_vec()
    }

    #[test]
    fn loss_duplication_and_misplacement_are_errors() {
        let codec = PayloadCodec::new(40);
        let mut checker = Checker::new(codec.clone(), 2);
        for (producer, sequence) in [(0, 0), (0, 1), (1, 0), (1, 3), (0, 6), (1, 9)] {
            let partition = partition_of(producer, sequence) as i32;
            checker.check(partition, &value(&codec, sequence, producer)).unwrap();
        }
        let duplicate = checker.check(0, &value(&codec, 6, 0)).unwrap_err().to_string();
        assert_eq!(duplicate, "record 6 of a producer where 12 was next");
        let lost = checker.check(0, &value(&codec, 18, 0)).unwrap_err().to_string();
        assert_eq!(lost, "record 18 of a producer where 12 was next");
        assert!(checker.check(3, &value(&codec, 12, 0)).is_err());
        assert!(checker.check(0, &value(&codec, 6, 2)).is_err());
    }
}
