//! Clients that come, go, stall and die, beside a load. Brokers meet such clients all day, and have to survive them unharmed.
//!
//! A visitor makes visits of all kinds in turn. A record that was acknowledged to it must exist: it reads its own record back, and in the
//! end no partition may be shorter than its acknowledged records.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use super::member::{self, Shares};
use super::{create_serving_topic, topic_configs};
use crate::batch::{self, BatchBuilder, ProducerFields};
use crate::clock;
use crate::connection::Connection;
use crate::payload::{Payload, PayloadCodec};
use crate::protocol::data::{self, FetchSession};
use crate::protocol::{FETCH, PRODUCE, TopicId, admin};
use crate::workload::{Acks, Durability};

const TOPIC: &str = "visited";
const PARTITIONS: i32 = 6;
const VISITORS: u32 = 16;
/// Records of a visit in order.
const RECORDS: u64 = 20;
/// Between two visits of a visitor.
const PAUSE: Duration = Duration::from_millis(200);
/// The time for which a visitor that stalls leaves a response unread.
const STALL: Duration = Duration::from_secs(3);
/// Interval at which the end is looked for.
const LOOK_UP: Duration = Duration::from_millis(50);
/// Groups of a visitor, used in turn. When one is used again, the group has long removed the member that died in it.
const GROUPS: u64 = 16;

/// A kind of visit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Visit {
    /// Writes, reads it back, and closes its connection.
    InOrder,
    /// Sends half a request and is gone.
    DiesSending,
    /// Sends a whole request and is gone before its answer.
    DiesWaiting,
    /// Asks for much, takes nothing of it for a while, and is gone.
    Stalls,
    /// Joins a group, commits, and leaves.
    JoinsAndLeaves,
    /// Joins a group, and is gone without a word.
    JoinsAndDies,
}

/// The visits of a visitor, in turn.
const VISITS: [Visit; 8] = [
    Visit::InOrder,
    Visit::DiesSending,
    Visit::DiesWaiting,
    Visit::InOrder,
    Visit::Stalls,
    Visit::DiesSending,
    Visit::JoinsAndLeaves,
    Visit::JoinsAndDies,
];

/// All visitors; they end when this is dropped.
#[derive(Debug)]
pub(crate) struct Visitors {
    address: SocketAddr,
    is_over: Arc<AtomicBool>,
    threads: Vec<JoinHandle<Result<Totals>>>,
}

/// Counts of what visitors have done.
#[derive(Debug, Default)]
struct Totals {
    visits: u64,
    acked: u64,
    /// Records that were sent in whole, and are not known to be acknowledged.
    unknown: u64,
}

impl Visitors {
    /// Makes their topic and starts them.
    pub(crate) fn start(address: SocketAddr, durability: Durability) -> Result<Self> {
        let mut connection = Connection::open(address)?;
        let configs = topic_configs(durability);
        let topic = create_serving_topic(&mut connection, TOPIC, PARTITIONS, configs)?;
        let is_over = Arc::new(AtomicBool::new(false));
        let threads = (0..VISITORS).map(|number| {
            let codec = PayloadCodec::new(1_024);
            let visitor = Visitor { address, topic, codec, number, is_over: is_over.clone(), sent: 0 };
            thread::spawn(move || visitor.run())
        });
        Ok(Self { address, threads: threads.collect(), is_over })
    }

    /// Ends them; the number of visits. An error if one of them was not served, or something acknowledged is lost.
    pub(crate) fn finish(mut self) -> Result<u64> {
        self.is_over.store(true, Ordering::Relaxed);
        let mut all = Totals::default();
        for thread in std::mem::take(&mut self.threads) {
            let totals = thread.join().expect("a visitor panicked").context("a visitor was not served")?;
            all.visits += totals.visits;
            all.acked += totals.acked;
            all.unknown += totals.unknown;
        }
        let held = admin::count_records(&mut Connection::open(self.address)?, TOPIC, PARTITIONS)?;
        let Totals { visits, acked, unknown } = all;
        ensure!(
            (acked..=acked + unknown).contains(&held),
            "visitors had {acked} records acknowledged and {unknown} perhaps; the topic has {held}"
        );
        Ok(visits)
    }
}

impl Drop for Visitors {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
    }
}

#[derive(Debug)]
struct Visitor {
    address: SocketAddr,
    topic: TopicId,
    codec: PayloadCodec,
    number: u32,
    is_over: Arc<AtomicBool>,
    /// Records made so far, of all partitions.
    sent: u64,
}

impl Visitor {
    fn run(mut self) -> Result<Totals> {
        let mut totals = Totals::default();
        // Each begins with another kind, so that all kinds are there at any time.
        let mut next = u64::from(self.number);
        while !self.is_over.load(Ordering::Relaxed) {
            let visit = VISITS[(next % VISITS.len() as u64) as usize];
            self.visit(visit, next, &mut totals).with_context(|| format!("visit {visit:?}"))?;
            totals.visits += 1;
            next += 1;
            self.pause(PAUSE);
        }
        Ok(totals)
    }

    fn visit(&mut self, visit: Visit, number: u64, totals: &mut Totals) -> Result<()> {
        match visit {
            Visit::InOrder => self.write_and_read(totals),
            Visit::DiesSending => self.send_half(),
            Visit::DiesWaiting => self.send_and_die(totals),
            Visit::Stalls => self.stall(),
            Visit::JoinsAndLeaves => self.join(number, true),
            Visit::JoinsAndDies => self.join(number, false),
        }
    }

    fn partition(&self) -> i32 {
        (self.sent % PARTITIONS as u64) as i32
    }

    /// The next record as a batch, and what is in it.
    fn next_batch(&mut self) -> (i32, Payload, Vec<u8>) {
        self.sent += 1;
        let partition = self.partition();
        let payload = Payload {
            sequence: self.sent,
            sent_ns: clock::now_ns(),
            producer: self.number,
            partition: partition as u32,
        };
        let mut batch = BatchBuilder::default();
        batch.append(clock::wall_ms(), self.codec.value_bytes(), |writer| self.codec.write(writer, payload));
        (partition, payload, batch.finish(ProducerFields::NONE).to_vec())
    }

    fn write_and_read(&mut self, totals: &mut Totals) -> Result<()> {
        let mut connection = Connection::open(self.address)?;
        admin::api_versions(&mut connection)?;
        for record in 1..=RECORDS {
            let (partition, payload, batch) = self.next_batch();
            let offset = data::produce(&mut connection, Acks::All, &self.topic, partition, &batch)?;
            totals.acked += 1;
            if record == RECORDS {
                self.read_back(&mut connection, partition, offset, payload)?;
            }
        }
        Ok(())
    }

    fn read_back(
        &self,
        connection: &mut Connection,
        partition: i32,
        offset: i64,
        payload: Payload,
    ) -> Result<()> {
        let mut session = FetchSession::at(self.topic, partition, offset);
        let mut found = None;
        session.fetch(connection, |_, _, mut bytes| {
            let batch = batch::split_first(&mut bytes)?.context("no batch where one was acknowledged")?;
            ensure!(batch.base_offset == offset, "offset {} where {offset} was asked", batch.base_offset);
            let next = batch.next_offset();
            batch.for_each(|value| {
                found = Some(self.codec.check(value)?);
                Ok(())
            })?;
            Ok(next)
        })?;
        ensure!(found == Some(payload), "offset {offset} holds {found:?} instead of {payload:?}");
        Ok(())
    }

    fn send_half(&mut self) -> Result<()> {
        let mut connection = Connection::open(self.address)?;
        let (partition, _, batch) = self.next_batch();
        connection.send_half(PRODUCE, |writer| {
            data::write_produce(writer, Acks::All, &self.topic, [(partition, &*batch)].into_iter());
        })
    }

    fn send_and_die(&mut self, totals: &mut Totals) -> Result<()> {
        let mut connection = Connection::open(self.address)?;
        let (partition, _, batch) = self.next_batch();
        totals.unknown += 1;
        connection.send(PRODUCE, |writer| {
            data::write_produce(writer, Acks::All, &self.topic, [(partition, &*batch)].into_iter());
        })
    }

    fn stall(&mut self) -> Result<()> {
        let mut connection = Connection::open(self.address)?;
        let partition = self.partition();
        connection.send(FETCH, |writer| data::write_large_fetch(writer, &self.topic, partition, 0))?;
        self.pause(STALL);
        Ok(())
    }

    fn join(&self, number: u64, leaves: bool) -> Result<()> {
        let group = format!("visitors-{}-{}", self.number, number % GROUPS);
        let shares = Shares { members: 1, partitions: PARTITIONS };
        let (mut member, _) = member::join(self.address, &group, TOPIC, shares)?;
        member.commit(&[(0, 1)])?;
        if leaves { member.leave() } else { Ok(()) }
    }

    /// Sleeps, unless it is over.
    fn pause(&self, time: Duration) {
        let end = Instant::now() + time;
        while Instant::now() < end && !self.is_over.load(Ordering::Relaxed) {
            thread::sleep(LOOK_UP);
        }
    }
}
