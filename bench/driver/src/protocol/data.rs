//! Produce (0) version 13 and Fetch (1) version 18.

use anyhow::{Result, ensure};

use super::{FETCH, PRODUCE, TopicId, check};
use crate::batch::{batch_bytes, write_batch};
use crate::bytes::{Reader, Writer};
use crate::clock;
use crate::connection::Connection;
use crate::payload::{Payload, PayloadCodec};

const TIMEOUT_MS: i32 = 30_000;
/// The defaults of Kafka's own consumer: `fetch.max.wait.ms`, `fetch.min.bytes`, `fetch.max.bytes`,
/// `max.partition.fetch.bytes`.
const MAX_WAIT_MS: i32 = 500;
const MIN_BYTES: i32 = 1;
const MAX_BYTES: i32 = 50 << 20;
const PARTITION_MAX_BYTES: i32 = 1 << 20;

/// Sends one record with acks=1 and returns its offset.
pub(crate) fn produce(
    connection: &mut Connection,
    topic: &TopicId,
    codec: &PayloadCodec,
    payload: Payload,
) -> Result<i64> {
    let partition = payload.partition as i32;
    let body = |writer: &mut Writer| {
        writer.compact_null(); // transactional id
        writer.i16(1); // acks
        writer.i32(TIMEOUT_MS);
        writer.compact_len(1);
        writer.raw(topic);
        writer.compact_len(1);
        writer.i32(partition);
        writer.compact_len(batch_bytes(codec.value_bytes()));
        write_batch(writer, clock::wall_ms(), codec.value_bytes(), |writer| codec.write(writer, payload));
        writer.no_tags();
        writer.no_tags();
        writer.no_tags();
    };
    read_produce_response(connection.call(PRODUCE, body)?, topic, partition)
}

fn read_produce_response(mut reader: Reader<'_>, topic: &TopicId, partition: i32) -> Result<i64> {
    ensure!(reader.compact_len()? == 1, "Produce was answered for other topics");
    ensure!(reader.uuid()? == *topic, "Produce was answered for another topic");
    ensure!(reader.compact_len()? == 1, "Produce was answered for other partitions");
    ensure!(reader.i32()? == partition, "Produce was answered for another partition");
    check(PRODUCE, reader.i16()?)?;
    reader.i64()
}

/// A fetch session of one consumer (KIP-227), kept as the Java consumer does: the first request names every
/// partition, later ones those whose position moved.
#[derive(Debug)]
pub(crate) struct FetchSession {
    topic: TopicId,
    id: i32,
    epoch: i32,
    /// (partition, position) of every assigned partition.
    positions: Vec<(i32, i64)>,
    /// Indexes into `positions` that the next request names.
    changed: Vec<usize>,
}

impl FetchSession {
    /// A session that has not begun, reading every partition from offset 0.
    pub(crate) fn new(topic: TopicId, partitions: &[i32]) -> Self {
        let positions: Vec<_> = partitions.iter().map(|&partition| (partition, 0)).collect();
        Self { topic, id: 0, epoch: 0, changed: (0..positions.len()).collect(), positions }
    }

    /// (partition, position) of every assigned partition.
    pub(crate) fn positions(&self) -> &[(i32, i64)] {
        &self.positions
    }

    /// Waits for records and hands the bytes of each partition to `consume`, with the position expected first; it
    /// returns the next one.
    pub(crate) fn fetch(
        &mut self,
        connection: &mut Connection,
        mut consume: impl FnMut(i32, i64, &[u8]) -> Result<i64>,
    ) -> Result<()> {
        let mut reader = connection.call(FETCH, |writer| self.write_request(writer))?;
        reader.i32()?; // throttle time
        check(FETCH, reader.i16()?)?;
        self.id = reader.i32()?;
        ensure!(self.id != 0, "the broker opened no fetch session");
        self.epoch += 1;
        self.changed.clear();
        for _ in 0..reader.compact_len()? {
            ensure!(reader.uuid()? == self.topic, "Fetch was answered for another topic");
            for _ in 0..reader.compact_len()? {
                self.read_partition(&mut reader, &mut consume)?;
            }
            reader.skip_tags()?;
        }
        Ok(())
    }

    fn write_request(&self, writer: &mut Writer) {
        writer.i32(MAX_WAIT_MS);
        writer.i32(MIN_BYTES);
        writer.i32(MAX_BYTES);
        writer.i8(0); // read uncommitted
        writer.i32(self.id);
        writer.i32(self.epoch);
        writer.compact_len(usize::from(!self.changed.is_empty()));
        if !self.changed.is_empty() {
            writer.raw(&self.topic);
            writer.compact_len(self.changed.len());
            for &index in &self.changed {
                write_fetch_partition(writer, self.positions[index]);
            }
            writer.no_tags();
        }
        writer.compact_len(0); // forgotten topics
        writer.compact_string(""); // rack
        writer.no_tags();
    }

    fn read_partition(
        &mut self,
        reader: &mut Reader<'_>,
        consume: &mut impl FnMut(i32, i64, &[u8]) -> Result<i64>,
    ) -> Result<()> {
        let partition = reader.i32()?;
        check(FETCH, reader.i16()?)?;
        reader.raw(8 + 8 + 8)?; // high watermark, last stable offset, log start offset
        for _ in 0..reader.compact_len()? {
            reader.raw(8 + 8)?; // an aborted transaction
            reader.skip_tags()?;
        }
        reader.i32()?; // preferred read replica
        let records = reader.compact_bytes()?;
        reader.skip_tags()?;
        if !records.is_empty() {
            let index = self.positions.iter().position(|&(assigned, _)| assigned == partition);
            let index =
                index.ok_or_else(|| anyhow::anyhow!("records of partition {partition}, not asked for"))?;
            let position = &mut self.positions[index].1;
            *position = consume(partition, *position, records)?;
            self.changed.push(index);
        }
        Ok(())
    }
}

fn write_fetch_partition(writer: &mut Writer, (partition, position): (i32, i64)) {
    writer.i32(partition);
    writer.i32(-1); // current leader epoch: not checked
    writer.i64(position);
    writer.i32(-1); // last fetched epoch
    writer.i64(-1); // log start offset: for followers
    writer.i32(PARTITION_MAX_BYTES);
    writer.no_tags();
}
