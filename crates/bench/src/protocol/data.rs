//! Produce (0) version 13 and Fetch (1) version 18.

use std::collections::HashMap;

use anyhow::{Context, Result, ensure};

use super::{FETCH, PRODUCE, TopicId, check, error};
use crate::bytes::{Reader, Writer};
use crate::connection::Connection;
use crate::workload::Acks;

const TIMEOUT_MS: i32 = 30_000;
/// The defaults of Kafka's own consumer: `fetch.max.wait.ms`, `fetch.min.bytes`, `fetch.max.bytes`,
/// `max.partition.fetch.bytes`.
const MAX_WAIT_MS: i32 = 500;
const MIN_BYTES: i32 = 1;
const MAX_BYTES: i32 = 50 << 20;
const PARTITION_MAX_BYTES: i32 = 1 << 20;
/// Base offset and length of a batch.
const BATCH_PREFIX_BYTES: usize = 12;

/// Sends one batch, waits, and returns the offset of its first record.
pub(crate) fn produce(
    connection: &mut Connection,
    acks: Acks,
    topic: &TopicId,
    partition: i32,
    batch: &[u8],
) -> Result<i64> {
    let body = |writer: &mut Writer| write_produce(writer, acks, topic, [(partition, batch)].into_iter());
    let mut base_offset = None;
    read_produced(connection.call(PRODUCE, body)?, topic, |answered, offset| {
        ensure!(answered == partition, "Produce was answered for another partition");
        base_offset = Some(offset);
        Ok(())
    })?;
    base_offset.context("Produce was answered for no partition")
}

/// Writes the body of a request with one batch for each of some partitions.
pub(crate) fn write_produce<'a>(
    writer: &mut Writer,
    acks: Acks,
    topic: &TopicId,
    batches: impl ExactSizeIterator<Item = (i32, &'a [u8])>,
) {
    writer.compact_null(); // transactional id
    writer.i16(acks.code());
    writer.i32(TIMEOUT_MS);
    writer.compact_len(1);
    writer.raw(topic);
    writer.compact_len(batches.len());
    for (partition, batch) in batches {
        writer.i32(partition);
        writer.compact_bytes(batch);
        writer.no_tags();
    }
    writer.no_tags();
    writer.no_tags();
}

/// Hands the base offset of each partition of the answer to `take`; any error in it is an error here.
pub(crate) fn read_produced(
    mut reader: Reader<'_>,
    topic: &TopicId,
    mut take: impl FnMut(i32, i64) -> Result<()>,
) -> Result<()> {
    ensure!(reader.compact_len()? == 1, "Produce was answered for other topics");
    ensure!(reader.uuid()? == *topic, "Produce was answered for another topic");
    for _ in 0..reader.compact_len()? {
        let partition = reader.i32()?;
        check(PRODUCE, reader.i16()?)?;
        let base_offset = reader.i64()?;
        reader.raw(8 + 8)?; // log append time, log start offset
        for _ in 0..reader.compact_len()? {
            reader.i32()?; // a refused record
            reader.compact_string()?;
            reader.skip_tags()?;
        }
        reader.compact_string()?; // error message
        reader.skip_tags()?;
        take(partition, base_offset)?;
    }
    Ok(())
}

/// The error code of an answer for one partition.
pub(crate) fn read_produced_code(mut reader: Reader<'_>) -> Result<i16> {
    ensure!(reader.compact_len()? == 1, "Produce was answered for other topics");
    reader.uuid()?;
    ensure!(reader.compact_len()? == 1, "Produce was answered for other partitions");
    reader.i32()?;
    reader.i16()
}

/// Returns true if every partition of a topic can be read. A broker may name a leader that has not opened the log yet.
pub(crate) fn all_partitions_serve(
    connection: &mut Connection,
    topic: &TopicId,
    partitions: i32,
) -> Result<bool> {
    partitions_serve(connection, topic, &(0..partitions).collect::<Vec<_>>())
}

/// Returns true if some partitions of a topic can be read.
pub(crate) fn partitions_serve(
    connection: &mut Connection,
    topic: &TopicId,
    partitions: &[i32],
) -> Result<bool> {
    let request = FetchRequest { max_wait_ms: 0, min_bytes: 0, ..FetchRequest::outside_of_sessions(topic) };
    let positions = partitions.iter().map(|&partition| (partition, 0));
    let mut response =
        FetchResponse::read(connection.call(FETCH, |writer| request.write(writer, positions))?)?;
    let mut serving = 0;
    while let Some(partition) = response.next_partition(topic)? {
        match partition.error_code {
            error::UNKNOWN_TOPIC_OR_PARTITION | error::NOT_LEADER_OR_FOLLOWER | error::UNKNOWN_TOPIC_ID => {}
            code => check(FETCH, code).map(|()| serving += 1)?,
        }
    }
    Ok(serving == partitions.len())
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
    /// The index into `positions` of each partition.
    indexes: HashMap<i32, usize>,
    /// Indexes into `positions` that the next request names.
    changed: Vec<usize>,
}

impl FetchSession {
    /// A session that has not begun, reading every partition from offset 0.
    pub(crate) fn new(topic: TopicId, partitions: &[i32]) -> Self {
        let positions: Vec<_> = partitions.iter().map(|&partition| (partition, 0)).collect();
        let indexes = partitions.iter().enumerate().map(|(index, &partition)| (partition, index)).collect();
        Self { topic, id: 0, epoch: 0, changed: (0..positions.len()).collect(), positions, indexes }
    }

    /// A session that has not begun, reading one partition from an offset.
    pub(crate) fn at(topic: TopicId, partition: i32, position: i64) -> Self {
        let mut session = Self::new(topic, &[partition]);
        session.positions[0].1 = position;
        session
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
        let request = FetchRequest {
            max_wait_ms: MAX_WAIT_MS,
            min_bytes: MIN_BYTES,
            session_id: self.id,
            session_epoch: self.epoch,
            ..FetchRequest::outside_of_sessions(&self.topic)
        };
        let changed = self.changed.iter().map(|&index| self.positions[index]);
        let mut response =
            FetchResponse::read(connection.call(FETCH, |writer| request.write(writer, changed))?)?;
        ensure!(response.session_id != 0, "the broker opened no fetch session");
        self.id = response.session_id;
        self.epoch += 1;
        self.changed.clear();
        while let Some(fetched) = response.next_partition(&self.topic)? {
            check(FETCH, fetched.error_code)?;
            if fetched.records.is_empty() {
                continue;
            }
            let index = self.indexes.get(&fetched.partition).copied();
            let index = index.with_context(|| format!("partition {}, not asked for", fetched.partition))?;
            let position = &mut self.positions[index].1;
            *position = consume(fetched.partition, *position, fetched.records)?;
            self.changed.push(index);
        }
        Ok(())
    }
}

/// Writes a fetch of as much of one partition as an answer may hold, outside of any session.
pub(crate) fn write_large_fetch(writer: &mut Writer, topic: &TopicId, partition: i32, position: i64) {
    let request = FetchRequest { partition_bytes_max: MAX_BYTES, ..FetchRequest::outside_of_sessions(topic) };
    request.write(writer, [(partition, position)].into_iter());
}

/// Reads a partition to its end by fetches outside of sessions, with an isolation level; the bytes of its batches.
pub(crate) fn read_all(
    connection: &mut Connection,
    topic: &TopicId,
    partition: i32,
    isolation: i8,
) -> Result<u64> {
    let (mut position, mut bytes) = (0, 0);
    loop {
        let request = FetchRequest {
            max_wait_ms: 0,
            min_bytes: 0,
            isolation,
            ..FetchRequest::outside_of_sessions(topic)
        };
        let positions = [(partition, position)].into_iter();
        let mut response =
            FetchResponse::read(connection.call(FETCH, |writer| request.write(writer, positions))?)?;
        let fetched = response.next_partition(topic)?.context("Fetch was answered for no partition")?;
        check(FETCH, fetched.error_code)?;
        let Some(next) = next_offset(fetched.records)? else { return Ok(bytes) };
        bytes += fetched.records.len() as u64;
        position = next;
    }
}

/// Returns the offset behind the last whole batch; `None` if there is none.
fn next_offset(mut records: &[u8]) -> Result<Option<i64>> {
    let mut next = None;
    while records.len() >= BATCH_PREFIX_BYTES {
        let mut reader = Reader::new(records);
        let (base_offset, length) = (reader.i64()?, reader.u32()? as usize);
        let Some(batch) = records.get(BATCH_PREFIX_BYTES..BATCH_PREFIX_BYTES + length) else { break };
        // Leader epoch, magic, CRC and attributes come before the delta of the last offset.
        let last_offset_delta = Reader::new(batch.get(11..).context("a batch without a header")?).i32()?;
        next = Some(base_offset + i64::from(last_offset_delta) + 1);
        records = &records[BATCH_PREFIX_BYTES + length..];
    }
    Ok(next)
}

/// The session epoch of a fetch outside of any session.
const NO_SESSION: i32 = -1;

/// The fields of a fetch from one topic.
struct FetchRequest<'a> {
    max_wait_ms: i32,
    min_bytes: i32,
    session_id: i32,
    session_epoch: i32,
    /// The most bytes of each partition.
    partition_bytes_max: i32,
    /// 0: all records, 1: committed ones.
    isolation: i8,
    topic: &'a TopicId,
}

impl<'a> FetchRequest<'a> {
    /// Returns a request as Kafka's own consumer sends it, but without a session.
    fn outside_of_sessions(topic: &'a TopicId) -> Self {
        Self {
            max_wait_ms: MAX_WAIT_MS,
            min_bytes: MIN_BYTES,
            session_id: 0,
            session_epoch: NO_SESSION,
            partition_bytes_max: PARTITION_MAX_BYTES,
            isolation: 0,
            topic,
        }
    }

    /// With (partition, position) pairs, of which there may be none.
    fn write(&self, writer: &mut Writer, positions: impl ExactSizeIterator<Item = (i32, i64)>) {
        writer.i32(self.max_wait_ms);
        writer.i32(self.min_bytes);
        writer.i32(MAX_BYTES);
        writer.i8(self.isolation);
        writer.i32(self.session_id);
        writer.i32(self.session_epoch);
        if positions.len() == 0 {
            writer.compact_len(0);
        } else {
            writer.compact_len(1);
            writer.raw(self.topic);
            writer.compact_len(positions.len());
            for (partition, position) in positions {
                writer.i32(partition);
                writer.i32(-1); // current leader epoch: not checked
                writer.i64(position);
                writer.i32(-1); // last fetched epoch
                writer.i64(-1); // log start offset: for followers
                writer.i32(self.partition_bytes_max);
                writer.no_tags();
            }
            writer.no_tags();
        }
        writer.compact_len(0); // forgotten topics
        writer.compact_string(""); // rack
        writer.no_tags();
    }
}

/// Walks the answer to a fetch from at most one topic.
struct FetchResponse<'a> {
    reader: Reader<'a>,
    session_id: i32,
    topics_left: usize,
    /// The partitions left of the topic that was entered.
    partitions_left: usize,
}

struct FetchedPartition<'a> {
    partition: i32,
    error_code: i16,
    records: &'a [u8],
}

impl<'a> FetchResponse<'a> {
    fn read(mut reader: Reader<'a>) -> Result<Self> {
        reader.i32()?; // throttle time
        check(FETCH, reader.i16()?)?;
        let session_id = reader.i32()?;
        let topics_left = reader.compact_len()?;
        ensure!(topics_left <= 1, "Fetch was answered for {topics_left} topics");
        Ok(Self { reader, session_id, topics_left, partitions_left: 0 })
    }

    fn next_partition(&mut self, topic: &TopicId) -> Result<Option<FetchedPartition<'a>>> {
        if self.topics_left > 0 {
            self.topics_left -= 1;
            ensure!(self.reader.uuid()? == *topic, "Fetch was answered for another topic");
            self.partitions_left = self.reader.compact_len()?;
        }
        if self.partitions_left == 0 {
            return Ok(None);
        }
        self.partitions_left -= 1;
        read_fetched_partition(&mut self.reader).map(Some)
    }
}

fn read_fetched_partition<'a>(reader: &mut Reader<'a>) -> Result<FetchedPartition<'a>> {
    let partition = reader.i32()?;
    let error_code = reader.i16()?;
    reader.raw(8 + 8 + 8)?; // high watermark, last stable offset, log start offset
    for _ in 0..reader.compact_len()? {
        reader.raw(8 + 8)?; // an aborted transaction
        reader.skip_tags()?;
    }
    reader.i32()?; // preferred read replica
    let records = reader.compact_bytes()?;
    reader.skip_tags()?;
    Ok(FetchedPartition { partition, error_code, records })
}
