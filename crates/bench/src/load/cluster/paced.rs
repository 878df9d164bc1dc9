//! The open loop and the pipelined one on several nodes: a lane for each leader, with several requests under way.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use super::{BATCH_BYTES_MAX, LINGER, Producer};
use crate::batch::ProducerFields;
use crate::clock;
use crate::connection::{Connection, SILENCE_MAX, read_any_within};
use crate::load::accumulator::{Accumulator, PendingBatch};
use crate::load::paced::{BUFFER_BYTES_MAX, LOOK_UP, REQUESTS_MAX, Schedule, Source, check_offsets};
use crate::load::phases::Phases;
use crate::load::producer::ProducerTotals;
use crate::payload::Payload;
use crate::protocol::{PRODUCE, data};
use crate::workload::{Acks, LoadShape, Pace};

#[derive(Debug)]
pub(super) struct Paced {
    producer: Producer,
    acks: Acks,
    source: Source,
    lanes: Vec<Lane>,
    /// The lane of each partition.
    lane_of: Vec<usize>,
    outstanding: u64,
    /// The index of the next one of the producer's partitions.
    turn: usize,
    /// Records made and records sent, by partition.
    made: Vec<u64>,
    sent: Vec<u64>,
    next_offsets: Vec<i64>,
    /// The time of the last response.
    last_response_ns: u64,
    totals: ProducerTotals,
}

/// The requests to one leader.
#[derive(Debug)]
struct Lane {
    connection: Connection,
    accumulator: Accumulator,
    /// The batches of each request that awaits its response, oldest first.
    under_way: VecDeque<Vec<PendingBatch>>,
}

impl Paced {
    /// Makes a paced producer, whose pace is not the closed loop's.
    pub(super) fn new(mut producer: Producer, shape: &LoadShape) -> Self {
        let partitions = shape.partitions as usize;
        let (source, linger) = match shape.pace {
            Pace::Pipelined { outstanding_max, linger } => (Source::Outstanding(outstanding_max), linger),
            Pace::Rate { per_s } => {
                let begin_ns = clock::now_ns();
                (Source::Schedule(Schedule { begin_ns, per_s: per_s.into(), used: 0 }), LINGER)
            }
            Pace::Closed => unreachable!("a closed loop has its own producer"),
        };
        let connections = std::mem::take(&mut producer.connections);
        let nodes: Vec<SocketAddr> = connections.keys().copied().collect();
        let lane = |connection| Lane {
            connection,
            accumulator: Accumulator::new(linger.as_nanos() as u64, shape.value_bytes)
                .with_batches_of(BATCH_BYTES_MAX),
            under_way: VecDeque::new(),
        };
        let lane_of = producer.topic.leaders.iter().map(|leader| {
            nodes.iter().position(|node| node == leader).expect("each leader has a connection")
        });
        Self {
            acks: shape.acks,
            source,
            lane_of: lane_of.collect(),
            lanes: connections.into_values().map(lane).collect(),
            outstanding: 0,
            turn: producer.number as usize * 5,
            made: vec![0; partitions],
            sent: vec![0; partitions],
            next_offsets: vec![0; partitions],
            last_response_ns: 0,
            totals: ProducerTotals::new(),
            producer,
        }
    }

    pub(super) fn run(mut self, phases: &Phases) -> Result<ProducerTotals> {
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
            for lane in 0..self.lanes.len() {
                self.send_requests(lane, is_ending)?;
            }
            let is_done = |lane: &Lane| lane.accumulator.is_empty() && lane.under_way.is_empty();
            if is_ending && self.lanes.iter().all(is_done) {
                break;
            }
            self.read_responses(phases)?;
        }
        self.totals.unsent_in_window += self.source.count_unsent(phases, &mut self.totals.ack_ns)?;
        Ok(self.totals)
    }

    fn has_buffer_space(&self) -> bool {
        self.lanes.iter().map(|lane| lane.accumulator.bytes()).sum::<usize>() < BUFFER_BYTES_MAX
    }

    /// Makes the records that are due.
    fn make_records(&mut self, phases: &Phases) -> Result<()> {
        match self.source {
            Source::Outstanding(max) => {
                while self.outstanding < max {
                    let now_ns = clock::now_ns();
                    self.make_record(now_ns, now_ns);
                }
            }
            Source::Schedule(mut schedule) => {
                let now_ns = clock::now_ns();
                while schedule.next_ns() <= now_ns && self.has_buffer_space() {
                    let due_ns = schedule.next_ns();
                    self.make_record(now_ns, due_ns);
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

    /// Makes a record for the next partition.
    fn make_record(&mut self, now_ns: u64, sent_ns: u64) {
        let partition = self.producer.partitions[self.turn % self.producer.partitions.len()] as usize;
        self.turn += 1;
        let codec = &self.producer.codec;
        let sequence = self.made[partition];
        self.made[partition] += 1;
        self.outstanding += 1;
        let producer = self.producer.number;
        let payload = Payload { sequence, sent_ns, producer, partition: partition as u32 };
        let timestamp_ms = clock::wall_ms();
        self.lanes[self.lane_of[partition]].accumulator.add(partition, now_ns, sent_ns, |builder| {
            builder.append(timestamp_ms, codec.value_bytes(), |writer| codec.write(writer, payload));
        });
    }

    /// Sends the requests that may go out; with `flush` also batches that have not lingered.
    fn send_requests(&mut self, lane: usize, flush: bool) -> Result<()> {
        let Lane { connection, accumulator, under_way } = &mut self.lanes[lane];
        while under_way.len() < REQUESTS_MAX {
            let mut request = accumulator.take_request(clock::now_ns(), flush);
            if request.is_empty() {
                break;
            }
            let (sent, identity) = (&mut self.sent, self.producer.identity);
            let batches = request.iter_mut().map(|batch| {
                let fields = ProducerFields::of(identity, sent[batch.partition]);
                sent[batch.partition] += batch.sent_ns.len() as u64;
                (batch.partition as i32, batch.builder.finish(fields))
            });
            let topic = &self.producer.topic.id;
            connection.send(PRODUCE, |writer| data::write_produce(writer, self.acks, topic, batches))?;
            under_way.push_back(request);
        }
        Ok(())
    }

    /// Waits for the next thing to do, and takes the responses that have come meanwhile.
    fn read_responses(&mut self, phases: &Phases) -> Result<()> {
        let wait = self.time_to_wait();
        if !read_any_within(self.lanes.iter_mut().map(|lane| &mut lane.connection).collect(), wait)? {
            let silence = Duration::from_nanos(clock::now_ns().saturating_sub(self.last_response_ns));
            let is_owed = self.lanes.iter().any(|lane| !lane.under_way.is_empty());
            ensure!(!is_owed || silence < SILENCE_MAX, "no acknowledgement for {SILENCE_MAX:?}");
            if !is_owed {
                self.last_response_ns = clock::now_ns();
            }
            return Ok(());
        }
        let acked_ns = clock::now_ns();
        self.last_response_ns = acked_ns;
        for Lane { connection, accumulator, under_way } in &mut self.lanes {
            while let Some(response) = connection.take_response(PRODUCE)? {
                let request = under_way.pop_front().context("a response without a request")?;
                check_offsets(response, &self.producer.topic.id, &request, &mut self.next_offsets)?;
                for batch in request {
                    let records = batch.sent_ns.len() as u64;
                    self.totals.produced += records;
                    self.outstanding -= records;
                    phases.add_acked(records);
                    self.totals.acked_in_window += records * u64::from(phases.window_contains(acked_ns));
                    for &sent_ns in batch.sent_ns.iter().filter(|&&sent_ns| phases.window_contains(sent_ns)) {
                        self.totals.ack_ns.record(acked_ns.saturating_sub(sent_ns))?;
                    }
                    accumulator.recycle(batch);
                }
            }
        }
        Ok(())
    }

    /// Returns the time until the next record is due or a batch has lingered, if it can be made or sent then.
    fn time_to_wait(&self) -> Duration {
        let now_ns = clock::now_ns();
        let record_ns = match self.source {
            Source::Schedule(schedule) if self.has_buffer_space() => Some(schedule.next_ns()),
            _ => None,
        };
        let may_send = |lane: &&Lane| lane.under_way.len() < REQUESTS_MAX;
        let batches = self.lanes.iter().filter(may_send).filter_map(|lane| lane.accumulator.linger_ends_ns());
        let next_ns = record_ns.into_iter().chain(batches).min();
        next_ns.map_or(LOOK_UP, |next_ns| Duration::from_nanos(next_ns.saturating_sub(now_ns)).min(LOOK_UP))
    }
}
