//! The view of a client on a leader that goes away. A thread for each of its partitions writes a record, waits for the acknowledgement, and
//! tries again at whichever node leads by then, with the same sequence number.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

use super::{ClusterTopic, SETUP_MAX, open_any, retry};
use crate::batch::{self, BatchBuilder, ProducerFields};
use crate::clock;
use crate::connection::Connection;
use crate::load::producer::identify;
use crate::payload::{Payload, PayloadCodec};
use crate::protocol::data::FetchSession;
use crate::protocol::{PRODUCE, TopicId, admin, data, error};
use crate::workload::Acks;

/// Between two records of a partition.
const PACE: Duration = Duration::from_millis(5);
/// Interval between questions to the other nodes about leaders.
const ASK_EVERY: Duration = Duration::from_millis(25);
/// Interval at which a writer that waits looks for another leader.
const LOOK_UP: Duration = Duration::from_millis(10);
/// The longest time until all partitions acknowledge again.
const RESUME_MAX: Duration = Duration::from_secs(60);
const VALUE_BYTES: usize = 1_024;

/// The leaders as the other nodes report them.
#[derive(Debug)]
struct Table {
    /// Address and epoch of each partition's leader.
    leaders: Mutex<BTreeMap<i32, (SocketAddr, i32)>>,
    stopped: AtomicBool,
}

impl Table {
    fn leader(&self, partition: i32) -> Option<(SocketAddr, i32)> {
        self.leaders.lock().unwrap_or_else(PoisonError::into_inner).get(&partition).copied()
    }

    fn is_stopped(&self) -> bool {
        self.stopped.load(Ordering::SeqCst)
    }

    /// Asks the nodes that stay alive until it is stopped.
    fn keep_up(&self, name: &str, asked: &[SocketAddr]) {
        let mut connection = None;
        while !self.is_stopped() {
            let open = connection.take().map_or_else(|| open_any(asked), Ok);
            let state = open.and_then(|mut open| {
                let state = admin::cluster_state(&mut open, name)?;
                connection = Some(open);
                Ok(state)
            });
            if let Ok(admin::ClusterState { ports, topic: Some(topic) }) = state {
                for (partition, leader) in (0..).zip(topic.leaders) {
                    let known = leader.and_then(|(node, epoch)| Some((*ports.get(&node)?, epoch)));
                    if let Some((port, epoch)) = known {
                        self.learn(partition, SocketAddr::from((Ipv4Addr::LOCALHOST, port)), epoch);
                    }
                }
            }
            thread::sleep(ASK_EVERY);
        }
    }

    fn learn(&self, partition: i32, address: SocketAddr, epoch: i32) {
        let mut leaders = self.leaders.lock().unwrap_or_else(PoisonError::into_inner);
        let known = leaders.entry(partition).or_insert((address, epoch));
        // A node with older metadata names the previous leader.
        if epoch >= known.1 {
            *known = (address, epoch);
        }
    }
}

/// Pauses and records of the writers.
#[derive(Debug)]
pub(crate) struct Pauses {
    /// The longest time without an acknowledgement, of the partition with the shortest and with the longest one.
    pub(crate) shortest: Duration,
    pub(crate) longest: Duration,
    /// Records that were acknowledged, all of which were found.
    pub(crate) records: u64,
}

/// Writes to the partitions that a node leads while `harm` is done to it, until all of them acknowledge again; then reads
/// them and compares.
pub(crate) fn run(
    name: &str,
    topic: &ClusterTopic,
    victim: SocketAddr,
    warmup: Duration,
    harm: impl FnOnce() -> Result<()>,
) -> Result<Pauses> {
    let partitions = topic.led_by(victim);
    ensure!(!partitions.is_empty(), "the node leads no partition");
    let asked: Vec<_> = topic.nodes().into_iter().filter(|node| *node != victim).collect();
    let leaders = (0..).zip(&topic.leaders).map(|(partition, leader)| (partition, (*leader, -1)));
    let table = Table { leaders: Mutex::new(leaders.collect()), stopped: AtomicBool::new(false) };
    thread::scope(|scope| {
        scope.spawn(|| table.keep_up(name, &asked));
        let writers: Vec<_> = partitions
            .iter()
            .map(|partition| {
                let (table, id) = (&table, topic.id);
                scope.spawn(move || Writer::new(table, id, *partition)?.run())
            })
            .collect();
        thread::sleep(warmup);
        let harmed_ns = clock::now_ns();
        let harmed = harm();
        // A writer returns its counts only at its end: it writes well beyond the slowest failover.
        thread::sleep(if harmed.is_ok() { Duration::from_secs(1) } else { Duration::ZERO });
        let deadline = Instant::now() + RESUME_MAX;
        while harmed.is_ok()
            && Instant::now() < deadline
            && !partitions.iter().all(|one| table.leader(*one).is_some_and(|(leader, _)| leader != victim))
        {
            thread::sleep(LOOK_UP);
        }
        thread::sleep(Duration::from_secs(2));
        table.stopped.store(true, Ordering::SeqCst);
        let written: Vec<_> =
            writers.into_iter().map(|writer| writer.join().expect("a writer panicked")).collect();
        harmed?;
        let mut pauses = Pauses { shortest: RESUME_MAX, longest: Duration::ZERO, records: 0 };
        for (partition, acked_ns) in partitions.iter().zip(written) {
            let acked_ns = acked_ns?;
            let longest = longest_pause(&acked_ns, harmed_ns)?;
            pauses.shortest = longest.min(pauses.shortest);
            pauses.longest = longest.max(pauses.longest);
            pauses.records += acked_ns.len() as u64;
            check_content(&table, topic.id, *partition, acked_ns.len() as u64)?;
        }
        Ok(pauses)
    })
}

/// The longest time between two acknowledgements of which the second one came after the harm.
fn longest_pause(acked_ns: &[u64], harmed_ns: u64) -> Result<Duration> {
    let after = acked_ns.windows(2).filter(|pair| pair[1] > harmed_ns);
    let longest = after.map(|pair| pair[1] - pair[0]).max().context("nothing was acknowledged any more")?;
    Ok(Duration::from_nanos(longest))
}

/// Writes to one partition.
struct Writer<'a> {
    table: &'a Table,
    topic: TopicId,
    partition: i32,
    identity: (i64, i16),
    codec: PayloadCodec,
    /// A connection to the node that led when it was opened.
    connection: Option<(SocketAddr, Connection)>,
}

/// The result of an attempt.
enum Attempt {
    Acknowledged,
    /// The node did not answer, or not as its leader: the record is sent again.
    Failed,
}

impl<'a> Writer<'a> {
    fn new(table: &'a Table, topic: TopicId, partition: i32) -> Result<Self> {
        let (leader, _) = table.leader(partition).context("a partition has a leader")?;
        let mut connection = Connection::open(leader)?;
        let identity = identify(&mut connection)?;
        let codec = PayloadCodec::half_random(VALUE_BYTES);
        Ok(Self { table, topic, partition, identity, codec, connection: Some((leader, connection)) })
    }

    /// Returns the time of each record's acknowledgement.
    fn run(mut self) -> Result<Vec<u64>> {
        let mut acked_ns = Vec::new();
        let mut batch = BatchBuilder::default();
        while !self.table.is_stopped() {
            let sequence = acked_ns.len() as u64;
            let sent_ns = clock::now_ns();
            let payload = Payload { sequence, sent_ns, producer: 0, partition: self.partition as u32 };
            batch.clear();
            batch.append(clock::wall_ms(), VALUE_BYTES, |writer| self.codec.write(writer, payload));
            let bytes = batch.finish(ProducerFields::of(Some(self.identity), sequence)).to_vec();
            let deadline = Instant::now() + RESUME_MAX;
            while matches!(self.attempt(&bytes)?, Attempt::Failed) {
                ensure!(
                    Instant::now() < deadline,
                    "partition {} acknowledges nothing any more",
                    self.partition
                );
                self.connection = None;
                thread::sleep(LOOK_UP);
            }
            acked_ns.push(clock::now_ns());
            thread::sleep(PACE);
        }
        Ok(acked_ns)
    }

    fn attempt(&mut self, batch: &[u8]) -> Result<Attempt> {
        let Some((leader, _)) = self.table.leader(self.partition) else { return Ok(Attempt::Failed) };
        let open = self.connection.take().filter(|(address, _)| *address == leader);
        let Some((_, mut connection)) = open.or_else(|| Some((leader, Connection::open(leader).ok()?)))
        else {
            return Ok(Attempt::Failed);
        };
        let Some(code) = self.send(leader, &mut connection, batch) else { return Ok(Attempt::Failed) };
        match code {
            // The first attempt was written.
            error::NONE | error::DUPLICATE_SEQUENCE_NUMBER => {
                self.connection = Some((leader, connection));
                Ok(Attempt::Acknowledged)
            }
            error::NOT_LEADER_OR_FOLLOWER
            | error::UNKNOWN_TOPIC_OR_PARTITION
            | error::UNKNOWN_TOPIC_ID
            | error::LEADER_NOT_AVAILABLE
            | error::REQUEST_TIMED_OUT
            | error::NOT_ENOUGH_REPLICAS
            | error::NOT_ENOUGH_REPLICAS_AFTER_APPEND => Ok(Attempt::Failed),
            code => bail!("partition {} was answered with Kafka's error code {code}", self.partition),
        }
    }

    /// Returns the error code of the answer; none if there is another leader before the node answers.
    fn send(&self, leader: SocketAddr, connection: &mut Connection, batch: &[u8]) -> Option<i16> {
        let batches = [(self.partition, batch)];
        let body = |writer: &mut crate::bytes::Writer| {
            data::write_produce(writer, Acks::All, &self.topic, batches.into_iter());
        };
        connection.send(PRODUCE, body).ok()?;
        loop {
            let has_read = connection.read_within(LOOK_UP).ok()?;
            if let Some(response) = connection.take_response(PRODUCE).ok()? {
                return data::read_produced_code(response).ok();
            }
            let is_deposed = self.table.leader(self.partition).is_some_and(|(now, _)| now != leader);
            if !has_read && is_deposed {
                return None;
            }
        }
    }
}

/// Reads a partition from whichever node leads: each record once, in order.
fn check_content(table: &Table, topic: TopicId, partition: i32, records: u64) -> Result<()> {
    let codec = PayloadCodec::half_random(VALUE_BYTES);
    let until = Instant::now() + SETUP_MAX;
    retry(until, || {
        let (leader, _) = table.leader(partition).context("a partition has a leader")?;
        let mut connection = Connection::open(leader)?;
        let mut session = FetchSession::new(topic, &[partition]);
        let (mut next, deadline) = (0, Instant::now() + SETUP_MAX);
        while next < records {
            ensure!(Instant::now() < deadline, "record {next} of partition {partition} is missing");
            session.fetch(&mut connection, |_, mut position, mut bytes| {
                while let Some(batch) = batch::split_first(&mut bytes)? {
                    position = batch.next_offset();
                    batch.for_each(|value| {
                        let sequence = codec.check(value)?.sequence;
                        ensure!(
                            sequence == next,
                            "record {sequence} of partition {partition} where {next} was next"
                        );
                        next += 1;
                        Ok(())
                    })?;
                }
                Ok(position)
            })?;
        }
        Ok(())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pause_is_between_acknowledgements_and_ends_after_the_harm() {
        let pause = |acked: &[u64]| longest_pause(acked, 50).map(|pause| pause.as_nanos()).ok();
        assert_eq!(pause(&[0, 30, 40, 70, 75]), Some(30));
        assert_eq!(pause(&[0, 40, 45, 55, 60]), Some(10));
        assert_eq!(pause(&[0, 40]), None);
    }
}
