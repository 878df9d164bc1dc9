//! Transactions of version 2 (KIP-890): FindCoordinator (10) version 6, InitProducerId (22) version 5, Produce (0) version 13,
//! EndTxn (26) version 5. A client sends no AddPartitionsToTxn any more, and every transaction has an epoch of its own.

use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};

use super::{Api, END_TXN, FIND_COORDINATOR, INIT_PRODUCER_ID, PRODUCE, TopicId, check, error};
use crate::batch::{BatchBuilder, ProducerFields};
use crate::bytes::Writer;
use crate::connection::{Connection, SILENCE_MAX};
use crate::workload::Acks;

const TIMEOUT_MS: i32 = 60_000;
/// Pause before a request of the next transaction is repeated while the last one is ending. The Java client waits longer.
const RETRY_PAUSE: Duration = Duration::from_micros(200);

/// A producer with a transactional id, on a connection of its own.
#[derive(Debug)]
pub(crate) struct TransactionalProducer {
    connection: Connection,
    id: String,
    producer_id: i64,
    epoch: i16,
    topic: TopicId,
    /// The sequence number of the next record in each partition within the transaction.
    sequences: Vec<i32>,
}

impl TransactionalProducer {
    pub(crate) fn new(mut connection: Connection, id: &str, topic: TopicId, partitions: i32) -> Result<Self> {
        let (producer_id, epoch) = init(&mut connection, id)?;
        let sequences = vec![0; partitions as usize];
        Ok(Self { connection, id: id.to_owned(), producer_id, epoch, topic, sequences })
    }

    /// Writes a batch within the transaction, which begins with the first one.
    pub(crate) fn send(&mut self, partition: i32, batch: &mut BatchBuilder) -> Result<()> {
        let sequence = &mut self.sequences[partition as usize];
        let producer = ProducerFields { id: self.producer_id, epoch: self.epoch, base_sequence: *sequence };
        *sequence += batch.count();
        let bytes = batch.finish_transactional(producer);
        let (connection, id, topic) = (&mut self.connection, &self.id, &self.topic);
        until_served(PRODUCE, || {
            let mut reader = connection.call(PRODUCE, |writer| {
                writer.compact_string(id);
                writer.i16(Acks::All.code());
                writer.i32(TIMEOUT_MS);
                writer.compact_len(1);
                writer.raw(topic);
                writer.compact_len(1);
                writer.i32(partition);
                writer.compact_bytes(bytes);
                writer.no_tags();
                writer.no_tags();
                writer.no_tags();
            })?;
            ensure!(reader.compact_len()? == 1, "Produce was answered for other topics");
            reader.uuid()?;
            ensure!(reader.compact_len()? == 1, "Produce was answered for other partitions");
            reader.i32()?; // partition
            reader.i16()
        })
    }

    /// Commits or aborts; the producer continues with the epoch of its next transaction.
    pub(crate) fn end(&mut self, committed: bool) -> Result<()> {
        let (connection, id) = (&mut self.connection, &self.id);
        let (producer_id, epoch) = (self.producer_id, self.epoch);
        let mut next = (producer_id, epoch);
        until_served(END_TXN, || {
            let mut reader = connection.call(END_TXN, |writer| {
                writer.compact_string(id);
                writer.i64(producer_id);
                writer.i16(epoch);
                writer.bool(committed);
                writer.no_tags();
            })?;
            reader.i32()?; // throttle time
            let code = reader.i16()?;
            if code == error::NONE {
                next = (reader.i64()?, reader.i16()?);
            }
            Ok(code)
        })?;
        ensure!(
            next != (producer_id, epoch),
            "EndTxn has left the epoch as it was: transaction.version is below 2"
        );
        (self.producer_id, self.epoch) = next;
        self.sequences.fill(0);
        Ok(())
    }
}

/// Initialises a transactional id. Returns (producer id, epoch).
pub(crate) fn init(connection: &mut Connection, id: &str) -> Result<(i64, i16)> {
    let mut identity = (-1, -1);
    until_served(INIT_PRODUCER_ID, || {
        let mut reader = connection.call(INIT_PRODUCER_ID, |writer| write_init(writer, id))?;
        reader.i32()?; // throttle time
        let code = reader.i16()?;
        if code == error::NONE {
            identity = (reader.i64()?, reader.i16()?);
        }
        Ok(code)
    })?;
    Ok(identity)
}

fn write_init(writer: &mut Writer, id: &str) {
    writer.compact_string(id);
    writer.i32(TIMEOUT_MS);
    writer.i64(-1); // producer id: a new one
    writer.i16(-1);
    writer.no_tags();
}

/// Waits for the transaction coordinator, whose topic is created at the first request for it.
pub(crate) fn wait_for_coordinator(connection: &mut Connection, id: &str) -> Result<()> {
    until_served(FIND_COORDINATOR, || {
        let mut reader = connection.call(FIND_COORDINATOR, |writer| {
            writer.i8(1); // a transactional id
            writer.compact_len(1);
            writer.compact_string(id);
            writer.no_tags();
        })?;
        reader.i32()?; // throttle time
        ensure!(reader.compact_len()? == 1, "FindCoordinator was answered for other ids");
        reader.compact_string()?; // key
        reader.i32()?; // node id
        reader.compact_string()?; // host
        reader.i32()?; // port
        reader.i16()
    })
}

/// Repeats a call until its answer is no error, or an error that does not pass by itself.
fn until_served(api: Api, mut call: impl FnMut() -> Result<i16>) -> Result<()> {
    let begin = Instant::now();
    loop {
        let code = call()?;
        if !error::PASSING.contains(&code) || begin.elapsed() > SILENCE_MAX {
            return check(api, code);
        }
        thread::sleep(RETRY_PAUSE);
    }
}
