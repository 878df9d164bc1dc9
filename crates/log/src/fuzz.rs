//! Fuzz bodies of this crate: any bytes are read without a panic, and what is read holds what it promises.

pub use crate::fuzz_texts::{checkpoint, clean_shutdown, meta_properties, partition_dir, partition_metadata};

use crate::leader_epochs::LeaderEpochs;
use crate::producer_snapshot;
use crate::read_mode::ReadMode;
use crate::scan::{BatchScan, LOOKUP_CHUNK_BYTES, Scanned};
use crate::segment::blocking;
use crate::storage::{Advice, StorageFile};
use crate::transaction_index::{self, Search};
use std::io::{self, IoSlice};
use std::os::fd::BorrowedFd;

/// `leader-epoch-checkpoint`.
pub fn leader_epochs(data: &[u8]) {
    let Ok(epochs) = LeaderEpochs::decode(data) else { return };
    assert_eq!(LeaderEpochs::decode(epochs.encode().as_bytes()).as_ref(), Ok(&epochs));
    for pair in epochs.entries().windows(2) {
        assert!(pair[0].epoch < pair[1].epoch && pair[0].start_offset < pair[1].start_offset);
    }
}

/// `<offset>.snapshot`; the checksum is made right, so that what is behind it is reached.
pub fn producer_snapshot(data: &[u8]) {
    let mut data = data.to_vec();
    if let Some((head, covered)) = data.split_at_mut_checked(6) {
        head[2..].copy_from_slice(&crc32c::crc32c(covered).to_be_bytes());
    }
    let Ok(state) = producer_snapshot::decode(&data) else { return };
    let written = producer_snapshot::encode(&state);
    let again = producer_snapshot::decode(&written).expect("our own snapshot");
    assert_eq!(producer_snapshot::encode(&again), written);
}

/// `<offset>.txnindex`: what decodes is written as it was, a search gives only what it was asked for, and in order;
/// whatever the bytes are, entries are counted within the file.
pub fn transaction_index(data: &[u8]) {
    let file = Bytes(data.to_vec());
    let count = transaction_index::entries_in(data.len() as u64);
    let _ =
        transaction_index::makes_sense(&file, data.len() as u64, 0, i64::MAX).expect("memory does not fail");
    let sound = transaction_index::count_sound_before(&file, count, 0, i64::MAX);
    assert!(sound.expect("memory does not fail") <= count);
    let Some(entries) = transaction_index::decode(data) else { return };
    let mut written = Vec::new();
    entries.iter().for_each(|entry| entry.encode(&mut written));
    assert_eq!(written, data);
    for entry in &entries {
        let mut search = Search::new(entry.last_offset, entry.first_offset.saturating_add(1));
        blocking(search.run(&file, count, ReadMode::Blocking)).expect("every entry decodes");
        for found in search.found() {
            assert!(found.last_offset >= entry.last_offset && found.first_offset <= entry.first_offset);
        }
    }
}

/// `<offset>.log`: a walk ends, forward all the way, at the same place whatever is read at once, and checksums only
/// ever end it earlier.
pub fn segment(data: &[u8]) {
    let ends: Vec<_> = [(false, 1), (false, LOOKUP_CHUNK_BYTES), (true, 100)]
        .into_iter()
        .map(|(check_crc, chunk_bytes)| walk(data, check_crc, chunk_bytes))
        .collect();
    assert_eq!(ends[0], ends[1]);
    assert!(ends[2] <= ends[0]);
}

/// Returns the position at which a walk over the bytes of a segment ends.
fn walk(data: &[u8], check_crc: bool, chunk_bytes: usize) -> u64 {
    let file = Bytes(data.to_vec());
    let range = 0..data.len() as u64;
    let mut batches = BatchScan::new(&file, ReadMode::Blocking, range, 0, chunk_bytes);
    let (mut position, mut next_offset) = (0, 0);
    while let Scanned::Batch(batch) = blocking(batches.next(check_crc)).expect("memory does not fail") {
        assert!(batch.position == position && batch.size > 0 && batch.base_offset >= next_offset);
        assert!(batch.last_offset >= batch.base_offset);
        (position, next_offset) = (batch.position + batch.size, batch.last_offset + 1);
    }
    assert_eq!(position, batches.position());
    assert!(position <= data.len() as u64);
    position
}

/// A file of these bytes.
#[derive(Debug)]
struct Bytes(Vec<u8>);

impl StorageFile for Bytes {
    fn write_at(&self, _: &[IoSlice<'_>], _: u64) -> io::Result<usize> {
        Err(io::ErrorKind::Unsupported.into())
    }

    fn read_at(&self, buf: &mut [u8], position: u64) -> io::Result<usize> {
        let start = (position as usize).min(self.0.len());
        let count = buf.len().min(self.0.len() - start);
        buf[..count].copy_from_slice(&self.0[start..start + count]);
        Ok(count)
    }

    fn read_at_nowait(&self, buf: &mut [u8], position: u64) -> io::Result<Option<usize>> {
        self.read_at(buf, position).map(Some)
    }

    fn len(&self) -> io::Result<u64> {
        Ok(self.0.len() as u64)
    }

    fn set_len(&self, _: u64) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }

    fn allocate(&self, _: u64, _: u64) -> io::Result<()> {
        Ok(())
    }

    fn sync_data(&self) -> io::Result<()> {
        Ok(())
    }

    fn sync_fs(&self) -> io::Result<()> {
        Ok(())
    }

    fn advise(&self, _: Advice, _: u64, _: u64) {}

    fn resident(&self, _: u64, _: u64) -> Option<bool> {
        None
    }

    fn as_fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }
}
