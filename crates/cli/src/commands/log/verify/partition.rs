//! Checks all files of one partition.

use std::fs;
use std::str::FromStr;

use anyhow::{Context, Result};
use mainstem_records::Scratch;
use mainstem_wire::Uuid;

use super::findings::Findings;
use super::segment::{Cursor, SegmentCheck, read_text};
use crate::disk::{
    EpochEntry, LEADER_EPOCH_CHECKPOINT, PartitionDir, check_snapshot, is_compacted, read_epochs,
};

const PARTITION_METADATA: &str = "partition.metadata";

/// Checks a partition; `progress` gets the count of bytes checked.
///
/// # Errors
/// When a file cannot be read. Faults of the contents go to `findings`.
pub(crate) fn check(
    partition: &PartitionDir,
    findings: &mut Findings,
    progress: &mut dyn FnMut(u64),
) -> Result<()> {
    findings.partitions += 1;
    check_metadata(partition, findings)?;
    let epochs = check_epochs(partition, findings)?;
    let has_gaps = is_compacted(&partition.path);
    let first = partition.logs.first().map_or(0, |log| log.base_offset);
    let mut cursor = Cursor { next_offset: first, has_gaps, leader_epoch: i32::MIN, epochs };
    let mut scratch = Scratch::new();
    for (at, file) in partition.logs.iter().enumerate() {
        let is_last = at + 1 == partition.logs.len();
        let (cursor, scratch) = (&mut cursor, &mut scratch);
        SegmentCheck { file, is_last, cursor, findings, scratch }.run(progress)?;
    }
    for snapshot in &partition.snapshots {
        let bytes =
            fs::read(&snapshot.path).with_context(|| format!("cannot read {}", snapshot.path.display()))?;
        if let Err(what) = check_snapshot(&bytes) {
            findings.fault(&snapshot.path, None, what);
        }
    }
    Ok(())
}

/// `version: 0` and `topic_id: <22 characters>` (KIP-516).
fn check_metadata(partition: &PartitionDir, findings: &mut Findings) -> Result<()> {
    let path = partition.path.join(PARTITION_METADATA);
    let Some(text) = read_text(&path)? else { return Ok(()) };
    let value =
        |key: &str| text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(':')).map(str::trim);
    match (value("version"), value("topic_id").map(Uuid::from_str)) {
        (Some("0"), Some(Ok(id))) if !id.is_zero() => {}
        _ => findings.fault(&path, None, "it names no topic id"),
    }
    Ok(())
}

fn check_epochs(partition: &PartitionDir, findings: &mut Findings) -> Result<Vec<EpochEntry>> {
    let path = partition.path.join(LEADER_EPOCH_CHECKPOINT);
    let Some(text) = read_text(&path)? else { return Ok(Vec::new()) };
    Ok(read_epochs(&text).unwrap_or_else(|what| {
        findings.fault(&path, None, what);
        Vec::new()
    }))
}

#[cfg(test)]
mod tests {
    use std::path::{Path, PathBuf};

    use mainstem_records::{BatchBuilder, BatchOptions, Compression};
    use proptest::prelude::*;
    use tempfile::TempDir;

    use super::*;
    use crate::disk::find_partitions;

    const FIRST: &str = "00000000000000000000";
    const SECOND: &str = "00000000000000000006";

    /// A partition of two segments: offsets 0 to 5 under epoch 0, then 6 to 7 under epoch 2.
    struct Sample {
        dir: TempDir,
    }

    impl Sample {
        fn new() -> Sample {
            let sample = Sample { dir: tempfile::tempdir().unwrap() };
            let first = [batch(0, 3, 0, Compression::None), batch(3, 3, 0, Compression::Lz4)];
            sample.write(&format!("{FIRST}.log"), &first.concat());
            let mut index = 5i32.to_be_bytes().to_vec();
            index.extend_from_slice(&(first[0].len() as i32).to_be_bytes());
            sample.write(&format!("{FIRST}.index"), &index);
            let mut times = 1005i64.to_be_bytes().to_vec();
            times.extend_from_slice(&5i32.to_be_bytes());
            sample.write(&format!("{FIRST}.timeindex"), &times);
            sample.write(&format!("{SECOND}.log"), &batch(6, 2, 2, Compression::Zstd));
            sample.write(&format!("{SECOND}.index"), &[0; 80]);
            sample.write(&format!("{SECOND}.timeindex"), b"");
            sample.write(LEADER_EPOCH_CHECKPOINT, b"0\n2\n0 0\n2 6\n");
            sample.write(PARTITION_METADATA, b"version: 0\ntopic_id: AAAAAAAAAAAAAAAAAAAABw");
            sample.write(&format!("{SECOND}.snapshot"), &crate::disk::sample_snapshot(2));
            sample
        }

        fn path(&self, name: &str) -> PathBuf {
            self.dir.path().join(name)
        }

        fn write(&self, name: &str, bytes: &[u8]) {
            fs::write(self.path(name), bytes).unwrap();
        }

        fn change(&self, name: &str, change: impl FnOnce(&mut Vec<u8>)) {
            let mut bytes = fs::read(self.path(name)).unwrap();
            change(&mut bytes);
            self.write(name, &bytes);
        }

        /// Faults and notes, without the directory.
        fn verify(&self) -> (Vec<String>, Vec<String>, Findings) {
            let mut findings = Findings::default();
            let mut done = 0;
            for partition in find_partitions(self.dir.path()).unwrap() {
                check(&partition, &mut findings, &mut |bytes| done += bytes).unwrap();
            }
            assert_eq!(done, findings.bytes, "progress reaches the end");
            let name = |path: &Path| path.file_name().unwrap().to_string_lossy().into_owned();
            let texts = |list: &[super::super::findings::Finding]| {
                list.iter()
                    .map(|f| format!("{}@{:?}: {}", name(&f.file), f.position, f.what))
                    .collect::<Vec<_>>()
            };
            (texts(&findings.faults), texts(&findings.notes), findings)
        }
    }

    fn batch(base_offset: i64, records: i64, epoch: i32, compression: Compression) -> Vec<u8> {
        let options =
            BatchOptions { base_offset, partition_leader_epoch: epoch, compression, ..Default::default() };
        let mut builder = BatchBuilder::new(options);
        for at in 0..records {
            builder.append(1000 + base_offset + at, None, Some(b"a value that is long enough"), &[]).unwrap();
        }
        builder.build().unwrap()
    }

    /// Changes a sound partition and expects exactly one fault that contains `why`.
    fn one_fault(why: &str, change: impl FnOnce(&Sample)) {
        let sample = Sample::new();
        change(&sample);
        let (faults, _, _) = sample.verify();
        assert_eq!(faults.len(), 1, "{why}: {faults:?}");
        assert!(faults[0].contains(why), "{why}: {faults:?}");
    }

    #[test]
    fn a_sound_partition_has_no_fault() {
        let (faults, notes, findings) = Sample::new().verify();
        assert_eq!((faults, notes), (vec![], vec![]));
        assert_eq!((findings.segments, findings.batches, findings.records), (2, 3, 8));
    }

    #[test]
    fn batches() {
        one_fault("stored crc", |sample| sample.change(&format!("{FIRST}.log"), |bytes| bytes[80] ^= 1));
        one_fault("no batch", |sample| sample.change(&format!("{FIRST}.log"), |bytes| bytes.extend([1; 30])));
        one_fault("cuts them off", |sample| {
            sample.change(&format!("{SECOND}.log"), |bytes| bytes.extend([1; 99]))
        });
        one_fault("cuts them off", |sample| {
            sample.change(&format!("{SECOND}.log"), |bytes| bytes.truncate(bytes.len() - 1));
        });
        one_fault("offset 6 comes after offset 7", |sample| {
            sample.change(&format!("{SECOND}.log"), |bytes| bytes.extend(batch(6, 2, 2, Compression::None)));
        });
        one_fault("leader epoch 1", |sample| {
            sample.write(LEADER_EPOCH_CHECKPOINT, b"");
            sample.change(&format!("{SECOND}.log"), |bytes| bytes.extend(batch(8, 1, 1, Compression::None)));
        });
    }

    #[test]
    fn segments_do_not_overlap() {
        let sample = Sample::new();
        let log = batch(4, 1, 2, Compression::None);
        sample.write("00000000000000000004.log", &log);
        let (faults, notes, _) = sample.verify();
        assert!(
            faults.iter().any(|fault| fault.contains("the segment before it reaches to offset 5")),
            "{faults:?}"
        );
        assert!(notes.iter().any(|note| note.contains("00000000000000000004.index")), "{notes:?}");
    }

    #[test]
    fn offsets_that_no_segment_has_are_a_fault_unless_compaction_took_them() {
        let data = tempfile::tempdir().unwrap();
        let dir = data.path().join("orders-0");
        fs::create_dir(&dir).unwrap();
        for (base_offset, records) in [(3, 3), (9, 2)] {
            let batch = batch(base_offset, records, 0, Compression::None);
            fs::write(dir.join(format!("{base_offset:020}.log")), batch).unwrap();
        }
        let faults = || {
            let mut findings = Findings::default();
            check(&PartitionDir::read(&dir).unwrap().unwrap(), &mut findings, &mut |_| {}).unwrap();
            findings.faults.into_iter().map(|fault| fault.what).collect::<Vec<_>>()
        };
        assert_eq!(faults(), ["no segment before it has offsets 6 to 8"]);
        fs::write(data.path().join("cleaner-offset-checkpoint"), "0\n1\norders 0 9\n").unwrap();
        assert_eq!(faults(), Vec::<String>::new());
    }

    #[test]
    fn zeros_at_the_end_are_a_remark() {
        let sample = Sample::new();
        sample.change(&format!("{SECOND}.log"), |bytes| bytes.extend([0; 5000]));
        let (faults, notes, _) = sample.verify();
        assert_eq!(faults, Vec::<String>::new());
        assert!(notes[0].contains("the last 5000 bytes are zeros"), "{notes:?}");
    }

    #[test]
    fn files_beside_the_log() {
        one_fault("points to position", |sample| {
            sample.change(&format!("{FIRST}.index"), |bytes| bytes[7] ^= 1)
        });
        one_fault("make no entry", |sample| sample.change(&format!("{FIRST}.index"), |bytes| bytes.push(0)));
        one_fault("says timestamp", |sample| {
            sample.change(&format!("{FIRST}.timeindex"), |bytes| bytes[7] ^= 1)
        });
        one_fault("checksum", |sample| sample.change(&format!("{SECOND}.snapshot"), |bytes| bytes[30] ^= 1));
        one_fault("version", |sample| sample.write(LEADER_EPOCH_CHECKPOINT, b"7\n0\n"));
        one_fault("the checkpoint has 1 for offset 6", |sample| {
            sample.write(LEADER_EPOCH_CHECKPOINT, b"0\n2\n0 0\n1 6\n");
        });
        one_fault("names no topic id", |sample| sample.write(PARTITION_METADATA, b"version: 0\n"));
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(mainstem_testkit::cases(64)))]

        /// Any change of any file leads to findings, never to a panic or an error.
        #[test]
        fn no_bytes_panic(file in 0usize..9, at: usize, with: Vec<u8>, whole: bool) {
            let sample = Sample::new();
            let names = [
                format!("{FIRST}.log"),
                format!("{FIRST}.index"),
                format!("{FIRST}.timeindex"),
                format!("{SECOND}.log"),
                format!("{SECOND}.index"),
                format!("{SECOND}.timeindex"),
                format!("{SECOND}.snapshot"),
                LEADER_EPOCH_CHECKPOINT.to_owned(),
                PARTITION_METADATA.to_owned(),
            ];
            sample.change(&names[file], |bytes| match whole {
                true => *bytes = with.clone(),
                false => {
                    let at = at % (bytes.len() + 1);
                    let end = (at + with.len()).min(bytes.len());
                    bytes.splice(at..end, with.iter().copied());
                }
            });
            sample.verify();
        }
    }
}
