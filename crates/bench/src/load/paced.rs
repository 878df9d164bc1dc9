//! The open loop and the pipelined one: several requests under way on one connection, as the Java producer has them.
//!
//! One thread makes records, sends, and reads acknowledgements as they come. With a schedule, a record's latency counts from the instant at
//! which it was due, however late it could be sent. So a stall of the broker is seen in full.

use std::collections::VecDeque;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use hdrhistogram::Histogram;

use super::accumulator::{Accumulator, PendingBatch};
use super::phases::Phases;
use super::producer::{Producer, ProducerTotals};
use crate::batch::ProducerFields;
use crate::bytes::Reader;
use crate::clock;
use crate::connection::SILENCE_MAX;
use crate::payload::Payload;
use crate::protocol::{PRODUCE, data};
use crate::workload::{Acks, LoadShape, Pace};

/// `max.in.flight.requests.per.connection` of the Java producer.
pub(super) const REQUESTS_MAX: usize = 5;
/// `buffer.memory` of the Java producer. A schedule continues in time; its records are made when the buffer has space.
pub(super) const BUFFER_BYTES_MAX: usize = 32 << 20;
/// Interval at which the end of a load is looked for when nothing else happens.
pub(super) const LOOK_UP: Duration = Duration::from_millis(50);

#[derive(Debug)]
pub(crate) struct Paced {
    producer: Producer,
    acks: Acks,
    source: Source,
    accumulator: Accumulator,
    /// The batches of each request that awaits its response, oldest first.
    under_way: VecDeque<Vec<PendingBatch>>,
    outstanding: u64,
    partition: usize,
    /// Records made and records sent, by partition.
    made: Vec<u64>,
    sent: Vec<u64>,
    next_offsets: Vec<i64>,
    /// The time of the last response.
    last_response_ns: u64,
    totals: ProducerTotals,
}

/// The pace at which records are made.
#[derive(Debug, Clone, Copy)]
pub(super) enum Source {
    Schedule(Schedule),
    /// While fewer records than this are outstanding.
    Outstanding(u64),
}

/// Instants at equal distances.
#[derive(Debug, Clone, Copy)]
pub(super) struct Schedule {
    pub(super) begin_ns: u64,
    pub(super) per_s: u64,
    /// The number of its instants that have been used.
    pub(super) used: u64,
}

impl Schedule {
    pub(super) fn next_ns(&self) -> u64 {
        self.begin_ns + (u128::from(self.used) * 1_000_000_000 / u128::from(self.per_s)) as u64
    }
}

impl Source {
    /// Counts records that were due in the window and never made, each as waiting at least until now.
    pub(super) fn count_unsent(self, phases: &Phases, ack_ns: &mut Histogram<u64>) -> Result<u64> {
        let Source::Schedule(mut schedule) = self else { return Ok(0) };
        let (now_ns, mut unsent) = (clock::now_ns(), 0);
        while !phases.is_abandoned() && schedule.next_ns() < now_ns {
            let due_ns = schedule.next_ns();
            if phases.window_contains(due_ns) {
                unsent += 1;
                ack_ns.record(now_ns - due_ns)?;
            }
            schedule.used += 1;
        }
        Ok(unsent)
    }
}

impl Paced {
    /// Makes a paced producer, whose pace is not the closed loop's.
    pub(crate) fn new(producer: Producer, shape: &LoadShape) -> Self {
        let partitions = shape.partitions as usize;
        let (source, linger) = match shape.pace {
            Pace::Pipelined { outstanding_max, linger } => (Source::Outstanding(outstanding_max), linger),
            Pace::Rate { per_s } => {
                let begin_ns = clock::now_ns();
                (Source::Schedule(Schedule { begin_ns, per_s: per_s.into(), used: 0 }), Duration::ZERO)
            }
            Pace::Closed => unreachable!("a closed loop has its own producer"),
        };
        Self {
            acks: shape.acks,
            source,
            accumulator: Accumulator::new(linger.as_nanos() as u64, shape.value_bytes),
            under_way: VecDeque::new(),
            outstanding: 0,
            partition: producer.number as usize * 3 % partitions,
            made: vec![0; partitions],
            sent: vec![0; partitions],
            next_offsets: vec![0; partitions],
            last_response_ns: 0,
            totals: ProducerTotals::new(),
            producer,
        }
    }

    pub(crate) fn run(mut self, phases: &Phases) -> Result<ProducerTotals> {
        clock::wake_precisely();
        self.last_response_ns = clock::now_ns();
        if let Source::Schedule(schedule) = &mut self.source {
            schedule.begin_ns = self.last_response_ns;
        }
        let mut is_ending = false;
        while !phases.is_abandoned() {
            // Once more after the end is seen: records that were due before it belong to the load.
            let is_stopped = phases.is_stopped();
            if !is_ending {
                self.make_records(phases)?;
            }
            is_ending = is_stopped;
            self.send_requests(is_ending)?;
            if is_ending && self.accumulator.is_empty() && self.under_way.is_empty() {
                break;
            }
            self.read_responses(phases)?;
        }
        self.totals.unsent_in_window += self.source.count_unsent(phases, &mut self.totals.ack_ns)?;
        Ok(self.totals)
    }

    /// Makes the records that are due.
    fn make_records(&mut self, phases: &Phases) -> Result<()> {
        match self.source {
            Source::Outstanding(max) => {
                while self.outstanding < max {
                    let now_ns = clock::now_ns();
                    // Sticky partitioning (KIP-480): the next partition when a batch is full.
                    if self.make_record(now_ns, now_ns) {
                        self.next_partition();
                    }
                }
            }
            Source::Schedule(mut schedule) => {
                let now_ns = clock::now_ns();
                while schedule.next_ns() <= now_ns && self.accumulator.bytes() < BUFFER_BYTES_MAX {
                    let due_ns = schedule.next_ns();
                    self.make_record(now_ns, due_ns);
                    self.next_partition();
                    if phases.window_contains(due_ns) {
                        self.totals.late_ns.record(now_ns - due_ns)?;
                    }
                    schedule.used += 1;
                }
                self.source = Source::Schedule(schedule);
            }
        }
        Ok(())
    }

    fn next_partition(&mut self) {
        self.partition = (self.partition + 1) % self.made.len();
    }

    /// Makes a record. Returns true if its batch is full.
    fn make_record(&mut self, now_ns: u64, sent_ns: u64) -> bool {
        let (partition, codec) = (self.partition, &self.producer.codec);
        let sequence = self.made[partition];
        self.made[partition] += 1;
        self.outstanding += 1;
        let producer = self.producer.number;
        let payload = Payload { sequence, sent_ns, producer, partition: partition as u32 };
        let timestamp_ms = clock::wall_ms();
        self.accumulator.add(partition, now_ns, sent_ns, |builder| {
            builder.append(timestamp_ms, codec.value_bytes(), |writer| codec.write(writer, payload));
        })
    }

    /// Sends the requests that may go out; with `flush` also batches that have not lingered.
    fn send_requests(&mut self, flush: bool) -> Result<()> {
        while self.under_way.len() < REQUESTS_MAX {
            let mut request = self.accumulator.take_request(clock::now_ns(), flush);
            if request.is_empty() {
                break;
            }
            let Producer { connection, topic, identity, .. } = &mut self.producer;
            let sent = &mut self.sent;
            let batches = request.iter_mut().map(|batch| {
                let fields = ProducerFields::of(*identity, sent[batch.partition]);
                sent[batch.partition] += batch.sent_ns.len() as u64;
                (batch.partition as i32, batch.builder.finish(fields))
            });
            connection.send(PRODUCE, |writer| data::write_produce(writer, self.acks, topic, batches))?;
            self.under_way.push_back(request);
        }
        Ok(())
    }

    /// Waits for the next thing to do, and takes the responses that have come meanwhile.
    fn read_responses(&mut self, phases: &Phases) -> Result<()> {
        if !self.producer.connection.read_within(self.time_to_wait())? {
            let silence = Duration::from_nanos(clock::now_ns().saturating_sub(self.last_response_ns));
            let is_owed = !self.under_way.is_empty();
            ensure!(!is_owed || silence < SILENCE_MAX, "no acknowledgement for {SILENCE_MAX:?}");
            if !is_owed {
                self.last_response_ns = clock::now_ns();
            }
            return Ok(());
        }
        let acked_ns = clock::now_ns();
        self.last_response_ns = acked_ns;
        while let Some(response) = self.producer.connection.take_response(PRODUCE)? {
            let request = self.under_way.pop_front().context("a response without a request")?;
            check_offsets(response, &self.producer.topic, &request, &mut self.next_offsets)?;
            for batch in request {
                let records = batch.sent_ns.len() as u64;
                self.totals.produced += records;
                self.outstanding -= records;
                phases.add_acked(records);
                self.totals.acked_in_window += records * u64::from(phases.window_contains(acked_ns));
                for &sent_ns in batch.sent_ns.iter().filter(|&&sent_ns| phases.window_contains(sent_ns)) {
                    self.totals.ack_ns.record(acked_ns.saturating_sub(sent_ns))?;
                }
                self.accumulator.recycle(batch);
            }
        }
        Ok(())
    }

    /// Returns the time until the next record is due or a batch has lingered, if it can be made or sent then.
    fn time_to_wait(&self) -> Duration {
        let now_ns = clock::now_ns();
        let record_ns = match self.source {
            Source::Schedule(schedule) if self.accumulator.bytes() < BUFFER_BYTES_MAX => {
                Some(schedule.next_ns())
            }
            _ => None,
        };
        let may_send = self.under_way.len() < REQUESTS_MAX;
        let batch_ns = self.accumulator.linger_ends_ns().filter(|_| may_send);
        let next_ns = record_ns.into_iter().chain(batch_ns).min();
        next_ns.map_or(LOOK_UP, |ns| Duration::from_nanos(ns.saturating_sub(now_ns)).min(LOOK_UP))
    }
}

/// Checks the offsets of a response: each batch must come right behind the last acknowledged one of this producer, or further on.
pub(super) fn check_offsets(
    response: Reader<'_>,
    topic: &[u8; 16],
    request: &[PendingBatch],
    next_offsets: &mut [i64],
) -> Result<()> {
    let mut answered = 0;
    data::read_produced(response, topic, |partition, base_offset| {
        let batch = request.iter().find(|batch| batch.partition as i32 == partition);
        let batch =
            batch.with_context(|| format!("Produce was answered for partition {partition}, not sent"))?;
        let next = &mut next_offsets[batch.partition];
        ensure!(base_offset >= *next, "offset {base_offset} was acknowledged where {next} was next");
        *next = base_offset + i64::from(batch.builder.count());
        answered += 1;
        Ok(())
    })?;
    ensure!(answered == request.len(), "{answered} of {} batches were answered", request.len());
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_schedule_does_not_drift() {
        let at = |per_s, used| Schedule { begin_ns: 7, per_s, used }.next_ns();
        assert_eq!((at(10_000, 0), at(10_000, 1), at(10_000, 10_000)), (7, 100_007, 1_000_000_007));
        // A rate that does not divide a second.
        assert_eq!((at(3, 1), at(3, 3_000_000)), (333_333_340, 1_000_000 * 1_000_000_000 + 7));
    }
}
