//! The replica of a partition on a node, from its files.

use std::fs;
use std::path::{Path, PathBuf};

use mainstem_records::{Batch, Scratch};

/// Decompressed bytes of one batch.
const BATCH_BYTES_MAX: usize = 64 << 20;

/// A batch as it is in a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReplicaBatch {
    /// Its first offset.
    pub base_offset: i64,
    /// Its last offset.
    pub last_offset: i64,
    /// The epoch of the leader that wrote it.
    pub leader_epoch: i32,
    /// True for a marker of a transaction.
    pub is_control: bool,
    /// Its bytes, header included.
    pub bytes: Vec<u8>,
}

impl ReplicaBatch {
    /// Offsets and values of its records; none for a marker.
    ///
    /// # Panics
    /// When they cannot be read although the checksum is right.
    pub fn records(&self) -> Vec<(i64, Vec<u8>)> {
        if self.is_control {
            return Vec::new();
        }
        let (batch, _) = Batch::split_first(&self.bytes).expect("it was read");
        let (mut buffer, mut scratch) = (Vec::new(), Scratch::new());
        let records = batch.records(&mut buffer, BATCH_BYTES_MAX, &mut scratch).expect("records");
        let records = records.map(|record| record.expect("a record"));
        records.map(|record| (record.offset, record.value.unwrap_or_default().to_vec())).collect()
    }
}

/// All batches of a partition's directory, in the order of its files; none where there is no directory yet.
///
/// # Panics
/// When a batch before the last one is damaged.
pub fn read(dir: &Path) -> Vec<ReplicaBatch> {
    let files = fs::read_dir(dir).into_iter().flatten().flatten().map(|entry| entry.path());
    let is_segment = |path: &PathBuf| path.extension().is_some_and(|extension| extension == "log");
    let mut files: Vec<PathBuf> = files.filter(is_segment).collect();
    files.sort();
    files.iter().flat_map(|file| read_file(file)).collect()
}

/// All batches of a file.
///
/// # Panics
/// When the file is missing, or a batch before the last one is damaged.
pub fn read_file(file: &Path) -> Vec<ReplicaBatch> {
    batches(&fs::read(file).expect("the file can be read"), file)
}

/// The batches in these bytes of a file.
///
/// # Panics
/// When a batch before the last one is damaged.
pub fn batches(bytes: &[u8], file: &Path) -> Vec<ReplicaBatch> {
    let (mut left, mut batches) = (bytes, Vec::new());
    // Bytes behind the last batch are being written, or are reserved space.
    while let Ok((batch, rest)) = Batch::split_first(left) {
        if !batch.verify_crc() {
            assert!(rest.is_empty(), "{}: a damaged batch at offset {}", file.display(), batch.base_offset());
            break;
        }
        batches.push(ReplicaBatch {
            base_offset: batch.base_offset(),
            last_offset: batch.last_offset(),
            leader_epoch: batch.partition_leader_epoch(),
            is_control: batch.attributes().is_control(),
            bytes: batch.bytes().to_vec(),
        });
        left = rest;
    }
    batches
}
