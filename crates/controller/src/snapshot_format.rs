//! The bytes of a snapshot of the metadata log, in Kafka's format (KIP-630). It contains the records of an image
//! ([`MetadataImage::snapshot`](super::MetadataImage::snapshot)); the caller reads and writes the file.
//!
//! A snapshot has a header, the records of the image, and a footer; each batch numbers its records from those before it in the file. A
//! snapshot replaces everything in the log below its end offset.

use mainstem_records::{
    Batch, BatchBuilder, BatchError, BatchOptions, ControlRecordType, InvalidBatch, Scratch,
};
use mainstem_wire::messages::snapshot_footer_record::SnapshotFooterRecord;
use mainstem_wire::messages::snapshot_header_record::SnapshotHeaderRecord;
use mainstem_wire::{Encoder, Message};

/// Bytes of records after which a batch ends. Kafka reads batches of up to 8 MiB.
const BATCH_BYTES: usize = 256 << 10;

/// The most bytes of a decompressed batch: ours are not compressed.
const DECOMPRESSED_BYTES_MAX: usize = 64 << 20;

/// The reason why bytes are no snapshot.
#[derive(Debug, thiserror::Error)]
pub enum SnapshotFormatError {
    /// There is no batch.
    #[error("has a damaged batch: {0}")]
    Batch(#[from] BatchError),
    /// There is a batch of something else.
    #[error("has a damaged record: {0}")]
    Records(#[from] InvalidBatch),
    /// The checksum of a batch is wrong.
    #[error("has a batch with a wrong checksum")]
    Checksum,
    /// It does not begin with a header, or not end with a footer.
    #[error("is not whole")]
    Torn,
}

/// The log's own quorum (KIP-853), as values of control records. Nothing here obeys them while one node writes the log; without them Kafka
/// would not know its voters when it takes the directory back.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct QuorumRecords {
    /// The last KRaftVersionRecord.
    version: Option<Vec<u8>>,
    /// The last VotersRecord.
    voters: Option<Vec<u8>>,
}

impl QuorumRecords {
    /// Keeps a control record, if it is of the quorum.
    pub fn note(&mut self, kind: ControlRecordType, value: &[u8]) {
        match kind {
            ControlRecordType::KraftVersion => self.version = Some(value.to_vec()),
            ControlRecordType::KraftVoters => self.voters = Some(value.to_vec()),
            _ => {}
        }
    }

    fn records(&self) -> impl Iterator<Item = (ControlRecordType, &[u8])> {
        let version = self.version.iter().map(|value| (ControlRecordType::KraftVersion, &value[..]));
        version.chain(self.voters.iter().map(|value| (ControlRecordType::KraftVoters, &value[..])))
    }
}

/// A record of a snapshot.
pub enum SnapshotRecord<'r> {
    /// The value of a metadata record.
    Metadata(&'r [u8]),
    /// A control record.
    Control(ControlRecordType, &'r [u8]),
}

/// The bytes of a snapshot of these records, made at `wall_ms`. `last_timestamp` is that of the last record of the log
/// that it holds, in milliseconds.
pub fn encode(
    quorum: &QuorumRecords,
    values: impl Iterator<Item = Vec<u8>>,
    last_timestamp: i64,
    wall_ms: i64,
) -> Vec<u8> {
    let mut out = Output { bytes: Vec::new(), next: 0, wall_ms };
    let header = SnapshotHeaderRecord {
        last_contained_log_timestamp: last_timestamp,
        ..SnapshotHeaderRecord::default()
    };
    let header = encoded(&header);
    let begin = std::iter::once((ControlRecordType::SnapshotHeader, &header[..]));
    out.control(begin.chain(quorum.records()));
    let mut values = values.peekable();
    while values.peek().is_some() {
        let mut batch = out.batch(false);
        let (mut count, mut size) = (0, 0);
        while size < BATCH_BYTES
            && let Some(value) = values.next()
        {
            batch.append(wall_ms, None, Some(&value), &[]).expect("a record of metadata is small");
            size += value.len();
            count += 1;
        }
        out.finish(batch, count);
    }
    let footer = encoded(&SnapshotFooterRecord::default());
    out.control(std::iter::once((ControlRecordType::SnapshotFooter, &footer[..])));
    out.bytes
}

fn encoded<'a>(message: &impl Message<'a>) -> Vec<u8> {
    let mut value = Vec::new();
    message.encode(&mut Encoder::new(&mut value), 0).expect("version 0 has all fields");
    value
}

/// A snapshot that is being written.
struct Output {
    bytes: Vec<u8>,
    /// Records so far: their offsets count within the file.
    next: i64,
    wall_ms: i64,
}

impl Output {
    fn batch(&self, is_control: bool) -> BatchBuilder {
        BatchBuilder::new(BatchOptions {
            base_offset: self.next,
            partition_leader_epoch: 0,
            is_control,
            ..BatchOptions::default()
        })
    }

    fn finish(&mut self, mut batch: BatchBuilder, count: i64) {
        batch.finish(&mut self.bytes).expect("the batch has records, and not too many");
        self.next += count;
    }

    fn control<'v>(&mut self, records: impl Iterator<Item = (ControlRecordType, &'v [u8])>) {
        let mut batch = self.batch(true);
        let mut count = 0;
        for (kind, value) in records {
            batch.append(self.wall_ms, Some(&kind.key()), Some(value), &[]).expect("it is small");
            count += 1;
        }
        self.finish(batch, count);
    }
}

/// Calls `each` with the records of the bytes of a snapshot, in order.
///
/// # Errors
/// When they are damaged; `each` may have been called by then.
pub fn decode(mut bytes: &[u8], mut each: impl FnMut(SnapshotRecord<'_>)) -> Result<(), SnapshotFormatError> {
    let (mut scratch, mut decompressed) = (Scratch::new(), Vec::new());
    let (mut first, mut last) = (None, None);
    while !bytes.is_empty() {
        let (batch, rest) = Batch::split_first(bytes)?;
        bytes = rest;
        if !batch.verify_crc() {
            return Err(SnapshotFormatError::Checksum);
        }
        let is_control = batch.attributes().is_control();
        for record in batch.records(&mut decompressed, DECOMPRESSED_BYTES_MAX, &mut scratch)? {
            let record = record?;
            let kind = is_control.then(|| ControlRecordType::parse(record.key).ok()).flatten();
            first = first.or(Some(kind));
            last = kind;
            match (kind, record.value) {
                (Some(kind), Some(value)) => each(SnapshotRecord::Control(kind, value)),
                (None, Some(value)) if !is_control => each(SnapshotRecord::Metadata(value)),
                _ => {}
            }
        }
    }
    let is_whole = first.flatten() == Some(ControlRecordType::SnapshotHeader)
        && last == Some(ControlRecordType::SnapshotFooter);
    if is_whole { Ok(()) } else { Err(SnapshotFormatError::Torn) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::MetadataStateMachine;
    use crate::session::{Session, topic, with_configs};

    fn values(count: usize) -> Vec<Vec<u8>> {
        (0..count).map(|number| number.to_be_bytes().repeat(number % 40 + 1)).collect()
    }

    fn decoded(bytes: &[u8]) -> Result<Vec<Vec<u8>>, SnapshotFormatError> {
        decoded_with_quorum(bytes).map(|(values, _)| values)
    }

    fn decoded_with_quorum(bytes: &[u8]) -> Result<(Vec<Vec<u8>>, QuorumRecords), SnapshotFormatError> {
        let (mut found, mut quorum) = (Vec::new(), QuorumRecords::default());
        decode(bytes, |record| match record {
            SnapshotRecord::Metadata(value) => found.push(value.to_vec()),
            SnapshotRecord::Control(kind, value) => quorum.note(kind, value),
        })?;
        Ok((found, quorum))
    }

    fn encoded_alone(values: Vec<Vec<u8>>) -> Vec<u8> {
        encode(&QuorumRecords::default(), values.into_iter(), 5, 7)
    }

    #[test]
    fn what_is_written_is_read() {
        for count in [0, 1, 10_000] {
            let values = values(count);
            let bytes = encoded_alone(values.clone());
            assert_eq!(decoded(&bytes).expect("it is whole"), values);
        }
        let many = encoded_alone(values(10_000));
        let (header, rest) = Batch::split_first(&many).expect("a batch");
        let (first, rest) = Batch::split_first(rest).expect("a batch");
        let (second, _) = Batch::split_first(rest).expect("more than one batch");
        assert_eq!((header.base_offset(), header.attributes().is_control()), (0, true));
        assert_eq!((first.base_offset(), second.base_offset()), (1, first.next_offset()));
    }

    /// Written by Kafka 4.3.0's `kafka-storage format --standalone`.
    #[test]
    fn kafkas_own_snapshot_is_read() {
        let bytes = include_bytes!("../corpus/snapshot_decode/kafka-4.3.0");
        assert_eq!(decoded(bytes).expect("it is whole"), Vec::<Vec<u8>>::new());
    }

    /// The voters of Kafka's snapshot are in ours, in the same order and in the batch of the header, as Kafka writes them.
    #[test]
    fn the_quorums_records_are_kept() {
        let kafkas = include_bytes!("../corpus/snapshot_decode/kafka-4.3.0");
        let (_, quorum) = decoded_with_quorum(kafkas).expect("it is whole");
        assert!(quorum.version.is_some() && quorum.voters.is_some(), "{quorum:?}");
        let ours = encode(&quorum, values(3).into_iter(), 5, 7);
        assert_eq!(decoded_with_quorum(&ours).expect("it is whole"), (values(3), quorum));
        let heads = [&kafkas[..], &ours[..]].map(|bytes| Batch::split_first(bytes).expect("a batch").0);
        assert_eq!(heads[0].next_offset(), heads[1].next_offset());
    }

    /// The whole round: the records of an image, their bytes, and the image again.
    #[test]
    fn an_image_comes_back_from_its_bytes() {
        let mut session = Session::new("");
        let topics = vec![with_configs("a", &[("retention.ms", Some("5"))]), topic("b", 900, 1)];
        session.create_all(topics, false);
        session.commit_all();
        let end = session.end();
        let bytes = encode(&QuorumRecords::default(), session.machine.image().snapshot(), 5, 7);
        let mut loaded = MetadataStateMachine::default();
        for value in decoded(&bytes).expect("it is whole") {
            loaded.load(end, &value).expect("what the image adds up from");
        }
        loaded.skip_to(end);
        assert_eq!(loaded, session.machine);
    }

    #[test]
    fn a_snapshot_that_is_not_whole_is_refused() {
        let whole = encoded_alone(values(100));
        for len in 0..whole.len() {
            assert!(decoded(&whole[..len]).is_err(), "cut at {len}");
        }
        for at in (0..whole.len()).step_by(7) {
            let mut damaged = whole.clone();
            damaged[at] ^= 1;
            // Offset and leader epoch of a batch are outside of its checksum and not looked at.
            if let Ok(found) = decoded(&damaged) {
                assert_eq!(found, values(100), "changed at {at}");
            }
        }
    }
}
