//! The file `<offset>.snapshot`: producer state just before that offset, in Kafka's format.
//!
//! ```text
//! +--------------+-------------+------------+---------------------+
//! | version: i16 | crc: u32 BE | count: i32 | count x entry, 46 B |
//! +--------------+-------------+------------+---------------------+
//! entry: producer_id i64, epoch i16, last_sequence i32, last_offset i64, offset_delta i32, timestamp i64,
//!        coordinator_epoch i32, transaction_first_offset i64 (-1: none)
//! ```
//! Version is 1; the CRC-32C covers what follows it. Kafka writes one entry per producer, its last batch, so that a
//! restart shrinks the window of known batches to one. Here a producer has an entry for each of its last five
//! batches, oldest first. Kafka's readers keep the last entry of a producer id, which is the one that it would have
//! written.

use crate::producer_state::{BatchMetadata, ProducerEntry, ProducerState};
use crc32c::crc32c;
use mainstem_records::{CoordinatorEpoch, ProducerEpoch, ProducerId};
use thiserror::Error;

const VERSION: i16 = 1;
const CRC_AT: usize = 2;
const COVERED_AT: usize = 6;
const ENTRIES_AT: usize = 10;
const ENTRY_BYTES: usize = 46;

/// The largest snapshot that is read: more than any bound of producers that makes sense.
pub(crate) const SNAPSHOT_BYTES_MAX: usize = 512 << 20;

/// The reason for which a snapshot cannot be used. The state is then taken from an older one and the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub(crate) enum SnapshotFault {
    /// Shorter or longer than it says.
    #[error("its length is not that of its entries")]
    Length,
    /// Written by something newer.
    #[error("unknown version {0}")]
    Version(i16),
    /// The checksum does not match.
    #[error("checksum does not match")]
    Crc,
}

/// The file's bytes. Producers are in the order of their ids, so that equal states have equal files.
pub(crate) fn encode(state: &ProducerState) -> Vec<u8> {
    let mut producers: Vec<_> = state.iter().collect();
    producers.sort_unstable_by_key(|(id, _)| *id);
    let count: usize = producers.iter().map(|(_, entry)| entry.batches().len().max(1)).sum();
    let mut bytes = Vec::with_capacity(ENTRIES_AT + count * ENTRY_BYTES);
    bytes.extend_from_slice(&VERSION.to_be_bytes());
    bytes.extend_from_slice(&[0; 4]);
    bytes.extend_from_slice(&(count as i32).to_be_bytes());
    for (id, entry) in producers {
        encode_producer(id, entry, &mut bytes);
    }
    let crc = crc32c(&bytes[COVERED_AT..]);
    bytes[CRC_AT..COVERED_AT].copy_from_slice(&crc.to_be_bytes());
    bytes
}

fn encode_producer(id: ProducerId, entry: &ProducerEntry, bytes: &mut Vec<u8>) {
    let none = [BatchMetadata {
        last_sequence: -1,
        last_offset: -1,
        offset_delta: 0,
        timestamp: entry.last_timestamp,
    }];
    let batches = if entry.batches().is_empty() { &none } else { entry.batches() };
    for batch in batches {
        bytes.extend_from_slice(&id.get().to_be_bytes());
        bytes.extend_from_slice(&entry.epoch.get().to_be_bytes());
        bytes.extend_from_slice(&batch.last_sequence.to_be_bytes());
        bytes.extend_from_slice(&batch.last_offset.to_be_bytes());
        bytes.extend_from_slice(&batch.offset_delta.to_be_bytes());
        bytes.extend_from_slice(&batch.timestamp.to_be_bytes());
        bytes.extend_from_slice(&entry.coordinator_epoch.get().to_be_bytes());
        bytes.extend_from_slice(&entry.transaction_first_offset.unwrap_or(-1).to_be_bytes());
    }
}

/// Reads a file's bytes.
pub(crate) fn decode(bytes: &[u8]) -> Result<ProducerState, SnapshotFault> {
    let (header, entries) = bytes.split_at_checked(ENTRIES_AT).ok_or(SnapshotFault::Length)?;
    let mut fields = Fields(header);
    let (version, crc, count) = (fields.i16(), fields.u32(), fields.i32());
    if version != VERSION {
        return Err(SnapshotFault::Version(version));
    }
    if crc32c(&bytes[COVERED_AT..]) != crc {
        return Err(SnapshotFault::Crc);
    }
    if usize::try_from(count).ok().and_then(|count| count.checked_mul(ENTRY_BYTES)) != Some(entries.len()) {
        return Err(SnapshotFault::Length);
    }
    let mut state = ProducerState::default();
    for entry in entries.chunks_exact(ENTRY_BYTES) {
        decode_entry(Fields(entry), &mut state);
    }
    Ok(state)
}

fn decode_entry(mut fields: Fields<'_>, state: &mut ProducerState) {
    let (id, epoch) = (ProducerId::new(fields.i64()), ProducerEpoch::new(fields.i16()));
    let last_sequence = fields.i32();
    let (last_offset, offset_delta, timestamp) = (fields.i64(), fields.i32(), fields.i64());
    let (coordinator_epoch, first_offset) = (CoordinatorEpoch::new(fields.i32()), fields.i64());
    let known = state.get(id).filter(|known| known.epoch == epoch);
    let mut entry = known.cloned().unwrap_or_else(|| ProducerEntry::new(epoch));
    entry.coordinator_epoch = coordinator_epoch;
    entry.transaction_first_offset = (first_offset >= 0).then_some(first_offset);
    entry.last_timestamp = timestamp;
    if last_offset >= 0 {
        entry.push(BatchMetadata { last_sequence, last_offset, offset_delta, timestamp });
    }
    state.insert(id, entry);
}

/// Big-endian fields of a slice whose length was checked.
struct Fields<'a>(&'a [u8]);

impl Fields<'_> {
    fn take<const N: usize>(&mut self) -> [u8; N] {
        let (field, rest) = self.0.split_first_chunk().expect("the length was checked");
        self.0 = rest;
        *field
    }

    fn i16(&mut self) -> i16 {
        i16::from_be_bytes(self.take())
    }

    fn i32(&mut self) -> i32 {
        i32::from_be_bytes(self.take())
    }

    fn u32(&mut self) -> u32 {
        u32::from_be_bytes(self.take())
    }

    fn i64(&mut self) -> i64 {
        i64::from_be_bytes(self.take())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn golden(name: &str) -> Vec<u8> {
        let path =
            std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus/producer_snapshot").join(name);
        std::fs::read(path).unwrap()
    }

    #[test]
    fn a_snapshot_reads_back_with_all_five_batches() {
        let state = decode(&golden("five-and-one")).unwrap();
        let five = state.get(ProducerId::new(5)).unwrap();
        let sequences: Vec<_> = five.batches().iter().map(|batch| batch.last_sequence).collect();
        assert_eq!((five.epoch.get(), sequences), (1, vec![0, 1, 2, 3, 4]));
        let open = state.get(ProducerId::new(6)).unwrap();
        assert_eq!(
            (open.batches().len(), open.transaction_first_offset, open.coordinator_epoch.get()),
            (0, Some(40), 2)
        );
        assert_eq!(encode(&state), golden("five-and-one"));
    }

    #[test]
    fn damage_is_noticed() {
        let bytes = golden("five-and-one");
        for len in 0..bytes.len() {
            assert!(decode(&bytes[..len]).is_err(), "{len}");
        }
        for at in 0..bytes.len() {
            let mut damaged = bytes.clone();
            damaged[at] ^= 0x10;
            assert!(decode(&damaged).is_err(), "{at}");
        }
        let mut newer = bytes;
        newer[1] = 2;
        assert_eq!(decode(&newer).unwrap_err(), SnapshotFault::Version(2));
    }
}
