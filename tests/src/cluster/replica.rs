//! The replica of a partition on a node, from its files.

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use mainstem_records::{Batch, Scratch};

use crate::wait::eventually;

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
    /// The batch.
    ///
    /// # Panics
    /// Never: it was read.
    pub fn batch(&self) -> Batch<'_> {
        Batch::split_first(&self.bytes).expect("it was read").0
    }

    /// Offsets and values of its records; none for a marker.
    ///
    /// # Panics
    /// When they cannot be read although the checksum is right.
    pub fn records(&self) -> Vec<(i64, Vec<u8>)> {
        let records = self.keyed_records().into_iter();
        records.map(|record| (record.offset, record.value.unwrap_or_default())).collect()
    }

    /// Its records with their keys; none for a marker.
    ///
    /// # Panics
    /// When they cannot be read although the checksum is right.
    pub fn keyed_records(&self) -> Vec<KeyedRecord> {
        if self.is_control {
            return Vec::new();
        }
        let (mut buffer, mut scratch) = (Vec::new(), Scratch::new());
        let records = self.batch().records(&mut buffer, BATCH_BYTES_MAX, &mut scratch).expect("records");
        let records = records.map(|record| record.expect("a record"));
        records
            .map(|record| KeyedRecord {
                offset: record.offset,
                key: record.key.map(<[u8]>::to_vec),
                value: record.value.map(<[u8]>::to_vec),
            })
            .collect()
    }
}

/// A record of a replica.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyedRecord {
    /// Its place in the partition.
    pub offset: i64,
    /// Its key.
    pub key: Option<Vec<u8>>,
    /// Its value; none deletes the key from a compacted topic.
    pub value: Option<Vec<u8>>,
}

/// The log of a replica at a moment.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ReplicaLog {
    /// All batches, in the order of their offsets.
    pub batches: Vec<ReplicaBatch>,
    /// First offset of the segment that is written to.
    pub active_base: i64,
}

impl ReplicaLog {
    /// The offset behind its last batch.
    pub fn end(&self) -> i64 {
        self.batches.last().map_or(self.active_base, |batch| batch.last_offset + 1)
    }
}

/// The log in a partition's directory; an empty one where there is no directory yet.
///
/// # Panics
/// When a batch before the last one of a segment is damaged.
pub fn read(dir: &Path) -> ReplicaLog {
    // A compaction that is at work renames files, and each of its steps shows in their names.
    let read = eventually("the files of a replica to stay while they are read", || {
        let before = segments(dir);
        let read: Option<Vec<_>> =
            before.iter().map(|(place, file)| Some((*place, contents(file)?))).collect();
        read.filter(|_| segments(dir) == before)
    });
    let mut log = ReplicaLog::default();
    for ((base_offset, is_output), batches) in read {
        if is_output {
            replace(&mut log.batches, base_offset, batches);
        } else {
            log.active_base = log.active_base.max(base_offset);
            log.batches.extend(batches);
        }
    }
    assert!(log.batches.is_sorted_by_key(|batch| batch.base_offset), "{}: in no order", dir.display());
    log
}

/// The files with batches, by their first offsets; the outputs of a compaction, which replace others, behind them.
fn segments(dir: &Path) -> Vec<((i64, bool), PathBuf)> {
    let place = |path: &Path| {
        let name = path.file_name()?.to_str()?;
        let live = name.strip_suffix(".swap").unwrap_or(name);
        Some((live.strip_suffix(".log")?.parse().ok()?, live != name))
    };
    let files = fs::read_dir(dir).into_iter().flatten().flatten().map(|entry| entry.path());
    let mut files: Vec<_> = files.filter_map(|path| Some((place(&path)?, path))).collect();
    files.sort_by_key(|((base_offset, is_output), _)| (*is_output, *base_offset));
    files
}

/// The batches of a file; `None` if a compaction has renamed it.
fn contents(file: &Path) -> Option<Vec<ReplicaBatch>> {
    match fs::read(file) {
        Ok(bytes) => Some(batches(&bytes, file)),
        Err(error) if error.kind() == ErrorKind::NotFound => None,
        Err(error) => panic!("{}: {error}", file.display()),
    }
}

/// Puts the output of a compaction in the place of its input, which ends where it does.
fn replace(batches: &mut Vec<ReplicaBatch>, base_offset: i64, output: Vec<ReplicaBatch>) {
    let Some(end) = output.last().map(|batch| batch.last_offset) else { return };
    batches.retain(|batch| batch.base_offset < base_offset || batch.base_offset > end);
    let at = batches.partition_point(|batch| batch.base_offset < base_offset);
    batches.splice(at..at, output);
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

#[cfg(test)]
mod tests {
    use mainstem_records::{BatchBuilder, BatchOptions};

    use super::*;

    /// Batches of one record at these offsets.
    fn file(offsets: &[i64]) -> Vec<u8> {
        let batch = |base_offset: &i64| {
            let mut builder =
                BatchBuilder::new(BatchOptions { base_offset: *base_offset, ..BatchOptions::default() });
            builder.append(0, Some(b"key"), Some(b"value"), &[]).unwrap();
            builder.build().unwrap()
        };
        offsets.iter().flat_map(batch).collect()
    }

    #[track_caller]
    fn check(files: &[(&str, &[i64])], offsets: &[i64], active_base: i64) {
        let dir = tempfile::tempdir().unwrap();
        for (name, offsets) in files {
            fs::write(dir.path().join(name), file(offsets)).unwrap();
        }
        let log = read(dir.path());
        assert_eq!(log.batches.iter().map(|batch| batch.base_offset).collect::<Vec<_>>(), offsets);
        assert_eq!(
            (log.active_base, log.end()),
            (active_base, offsets.last().map_or(active_base, |last| last + 1))
        );
    }

    #[test]
    fn segments_are_read_in_order() {
        check(
            &[("00000000000000000005.log", &[5, 6]), ("00000000000000000000.log", &[0, 4])],
            &[0, 4, 5, 6],
            5,
        );
        check(&[("00000000000000000000.log", &[]), ("00000000000000000000.index", &[9])], &[], 0);
    }

    #[test]
    fn the_output_of_a_compaction_replaces_its_input() {
        let swap: (&str, &[i64]) = ("00000000000000000000.log.swap", &[1, 5]);
        let active: (&str, &[i64]) = ("00000000000000000006.log", &[6]);
        let inputs: [(&str, &[i64]); 2] =
            [("00000000000000000000.log", &[0, 1, 2]), ("00000000000000000003.log", &[3, 5])];
        check(&[inputs[0], inputs[1], active, swap], &[1, 5, 6], 6);
        check(&[inputs[1], active, swap], &[1, 5, 6], 6);
        check(&[active, swap], &[1, 5, 6], 6);
        let unfinished: (&str, &[i64]) = ("00000000000000000000.log.cleaned", &[1]);
        check(&[inputs[0], inputs[1], active, unfinished], &[0, 1, 2, 3, 5, 6], 6);
    }
}
