use super::*;
use crate::group::ReplicaId;
use proptest::prelude::*;

fn epoch(epoch: i32, start_offset: i64) -> EpochEntry {
    EpochEntry { epoch: LeaderEpoch::new(epoch), start_offset }
}

fn log(base_offset: i64, len: u64) -> CopyFile {
    CopyFile { base_offset, kind: CopyFileKind::Log, len }
}

fn snapshot(base_offset: i64, len: u64) -> CopyFile {
    CopyFile { base_offset, kind: CopyFileKind::Snapshot, len }
}

fn small() -> Manifest {
    Manifest {
        group: GroupId { topic_id: [7; 16], partition: 3 },
        start: Start { index: 9, term: 4, offset: 300 },
        log_start: 120,
        compacted_to: Some(200),
        configuration: Configuration::of_voters(&[ReplicaId::new(1, 1), ReplicaId::new(2, 3)]),
        epochs: vec![epoch(0, 0), epoch(4, 250)],
        files: vec![log(100, 4096), log(200, 1000), snapshot(300, 10)],
    }
}

/// Nothing was kept of its log.
fn without_logs() -> Manifest {
    Manifest { log_start: 300, compacted_to: None, files: vec![snapshot(300, 10)], ..small() }
}

const SMALL: &str = "6d7370736e617031\
    07070707070707070707070707070707_00000003\
    0000000000000009_0000000000000004_000000000000012c\
    0000000000000078_00000000000000c8\
    0002_0000_0000_0000_00_0000000100000001_0000000200000003\
    00000002_00000000_0000000000000000_00000004_00000000000000fa\
    00000003_0000000000000064_00_0000000000001000\
    00000000000000c8_00_00000000000003e8\
    000000000000012c_04_000000000000000a\
    63bb93bb";

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// A manifest's bytes without its magic and its checksum.
fn fields_of(manifest: &Manifest) -> Vec<u8> {
    let bytes = manifest.encode();
    bytes[MAGIC.len()..bytes.len() - CHECKSUM_BYTES].to_vec()
}

#[test]
fn a_manifest_has_these_bytes() {
    let bytes = small().encode();
    assert_eq!(hex(&bytes), SMALL.replace('_', ""));
    assert_eq!(Manifest::decode(&bytes), Ok(small()));
    assert_eq!(small().len(), 5106);
    let (start, len, crc) = (small().start, bytes.len() as u64, crc32c::crc32c(&bytes));
    assert_eq!(small().content(), SnapshotContent { start, len, crc });
}

#[test]
fn a_log_may_start_where_the_copy_ends() {
    assert_eq!(Manifest::decode(&without_logs().encode()), Ok(without_logs()));
    let start = Start { index: 1, term: 1, offset: 0 };
    let empty =
        Manifest { start, log_start: 0, epochs: vec![], files: vec![snapshot(0, 1)], ..without_logs() };
    assert_eq!(Manifest::decode(&empty.encode()), Ok(empty));
}

#[test]
fn every_byte_that_differs_is_noticed() {
    let whole = small().encode();
    for at in 0..whole.len() {
        for flip in [1, 0x80, 0xff] {
            let mut bytes = whole.clone();
            bytes[at] ^= flip;
            let error = if at < MAGIC.len() { ManifestError::NotAManifest } else { ManifestError::Checksum };
            assert_eq!(Manifest::decode(&bytes), Err(error), "byte {at}");
        }
        assert!(Manifest::decode(&whole[..at]).is_err(), "{at} bytes of it");
    }
}

/// Changes a sound manifest, and the refusal that the change leads to.
type Refusal = (fn(&mut Manifest), &'static str);

#[track_caller]
fn refuses(table: &[Refusal]) {
    for (at, (change, what)) in table.iter().enumerate() {
        let mut manifest = small();
        change(&mut manifest);
        let decoded = Manifest::decode(&manifest.encode());
        assert_eq!(decoded, Err(ManifestError::Malformed(what)), "line {at} of the table");
    }
}

#[test]
fn a_head_that_makes_no_sense_is_refused() {
    refuses(&[
        (|m| m.start.index = 0, "a start without an entry"),
        (|m| m.start.term = 0, "a start in a term that is no leader epoch"),
        (|m| m.start.term = 1 << 31, "a start in a term that is no leader epoch"),
        (|m| m.start.offset = -1, "no start"),
        (|m| m.log_start = -1, "no log start"),
        (|m| m.log_start = 301, "a log start behind the start"),
        (|m| m.compacted_to = Some(-2), "no offset of compaction"),
        (|m| m.compacted_to = Some(301), "compacted behind the start"),
        (|m| m.configuration.voters.clear(), "members that no group has"),
        (|m| m.configuration.voters.reverse(), "members that no group has"),
        (|m| m.configuration.voters[0] = ReplicaId(0), "members that no group has"),
        (|m| m.configuration.learners = vec![ReplicaId::new(1, 1)], "members that no group has"),
        (|m| m.configuration.voters = (1..=129).map(ReplicaId).collect(), "no members"),
    ]);
}

#[test]
fn epochs_that_make_no_sense_are_refused() {
    refuses(&[
        (|m| m.epochs[0].epoch = LeaderEpoch::NONE, "no epochs"),
        (|m| m.epochs[0].start_offset = -1, "no epochs"),
        (|m| m.epochs[0].epoch = LeaderEpoch::new(4), "epochs that do not ascend"),
        (|m| m.epochs[0].start_offset = 250, "epochs that do not ascend"),
        (|m| m.epochs.reverse(), "epochs that do not ascend"),
        (|m| m.epochs[1].epoch = LeaderEpoch::new(5), "an epoch after the start's term"),
        (|m| m.epochs[1].start_offset = 300, "an epoch behind the start"),
    ]);
}

#[test]
fn files_that_make_no_sense_are_refused() {
    refuses(&[
        (|m| m.files.clear(), "no files"),
        (|m| m.files[0].base_offset = -1, "no list of files"),
        (|m| m.files.truncate(2), "no snapshot of the start as the last file"),
        (|m| m.files[2].base_offset = 299, "no snapshot of the start as the last file"),
        (|m| m.files[2].len = 0, "a snapshot of a length that none has"),
        (|m| m.files[2].len = (512 << 20) + 1, "a snapshot of a length that none has"),
        (|m| m.files.push(snapshot(300, 10)), "a snapshot before the last file"),
        (|m| m.files[1].kind = CopyFileKind::Snapshot, "a snapshot before the last file"),
        (|m| m.files[1].len = 0, "a segment of a length that none has"),
        (|m| m.files[1].len = 1 << 31, "a segment of a length that none has"),
        (|m| m.files[1].len = u64::MAX, "a segment of a length that none has"),
        (|m| m.files[1].base_offset = 100, "segments that do not ascend"),
        (|m| m.files[1].base_offset = 300, "a segment behind the start"),
        (|m| m.log_start = 300, "segments of a log that starts at the start"),
        (|m| drop(m.files.drain(..2)), "no segments of a log that starts before the start"),
        (|m| m.log_start = 99, "a first segment behind the log start"),
    ]);
}

#[test]
fn the_longest_files_are_taken() {
    let mut manifest = small();
    manifest.files[1].len = i32::MAX as u64;
    manifest.files[2].len = 512 << 20;
    assert_eq!(Manifest::decode(&manifest.encode()), Ok(manifest));
}

#[test]
fn bytes_that_are_no_manifest_are_refused() {
    let fields = fields_of(&small());
    let decoded = |fields: &[u8]| Manifest::decode(&sealed_for_fuzz(fields));
    assert_eq!(decoded(&fields), Ok(small()));
    let malformed = |what| Err(ManifestError::Malformed(what));
    assert_eq!(decoded(&[&fields[..], &[0]].concat()), malformed("bytes behind its end"));
    assert_eq!(decoded(&vec![0; MANIFEST_BYTES_MAX]), malformed("longer than any manifest"));
    // The kinds of the last two files: indexes are not copied, and there are few others.
    for at in [fields.len() - 9, fields.len() - FILE_BYTES - 9] {
        for kind in [1, 2, 3, 5, 255] {
            let mut other = fields.clone();
            other[at] = kind;
            assert_eq!(decoded(&other), malformed("no list of files"));
        }
    }
    for len in 0..fields.len() {
        assert!(matches!(decoded(&fields[..len]), Err(ManifestError::Malformed(_))), "{len} bytes of it");
    }
    for bytes in [&b""[..], b"mspsnap1", b"mspsnap2aaaa", b"msp"] {
        assert_eq!(Manifest::decode(bytes), Err(ManifestError::NotAManifest));
    }
}

#[test]
fn counts_above_what_follows_are_refused() {
    let fields = fields_of(&small());
    let files_at = fields.len() - 3 * FILE_BYTES - 4;
    let epochs_at = files_at - 2 * EPOCH_BYTES - 4;
    for (at, what) in [(files_at, "no list of files"), (epochs_at, "no epochs")] {
        for count in [1000, u32::MAX] {
            let mut other = fields.clone();
            other[at..at + 4].copy_from_slice(&count.to_be_bytes());
            assert_eq!(Manifest::decode(&sealed_for_fuzz(&other)), Err(ManifestError::Malformed(what)));
        }
    }
}

/// The running sum of steps above 0, from `first` on.
fn ascending(first: i64, steps: &[i64]) -> Vec<i64> {
    let sums = steps.iter().scan(first, |sum, step| {
        *sum += step;
        Some(*sum)
    });
    std::iter::once(first).chain(sums).collect()
}

fn configurations() -> impl Strategy<Value = Configuration> {
    let ids = || prop::collection::btree_set(1..u64::MAX, 0..5);
    (ids(), 1..u64::MAX, ids(), ids(), any::<bool>()).prop_map(
        |(mut voters, one, mut learners, outgoing, auto_leave)| {
            voters.insert(one);
            learners.retain(|learner| !voters.contains(learner));
            let list = |ids: std::collections::BTreeSet<u64>| ids.into_iter().map(ReplicaId).collect();
            Configuration {
                voters: list(voters),
                learners: list(learners),
                voters_outgoing: list(outgoing),
                learners_next: vec![],
                auto_leave,
            }
        },
    )
}

/// Segments with any gaps between their base offsets, and a log start in the first of them or behind.
fn manifests() -> impl Strategy<Value = Manifest> {
    let steps = || prop::collection::vec(1..1_000_000i64, 0..12);
    let head = (any::<[u8; 16]>(), any::<i32>(), 1..u64::MAX, 0..1_000_000i64, configurations());
    let tail = (0..=1_000_000i64, prop::option::of(0..=1_000_000i64), 1..=LOG_BYTES_MAX);
    (head, steps(), steps(), tail).prop_map(|(head, bases, epochs, (log_start, compacted_to, len))| {
        let (topic_id, partition, index, first, configuration) = head;
        let mut bases = ascending(first, &bases);
        let offset = bases.pop().expect("at least the first");
        // A millionth each: from the first segment to the start.
        let within = |from: i64, millionth: i64| from + (offset - from) * millionth / 1_000_000;
        let epochs = ascending(0, &epochs).into_iter().enumerate();
        let epochs: Vec<_> =
            epochs.filter(|(_, at)| *at < offset).map(|(number, at)| epoch(number as i32 * 3, at)).collect();
        let term = epochs.last().map_or(0, |last| term_of(last.epoch)) + 1;
        let log_start = within(first, log_start);
        if log_start == offset {
            bases.clear();
        }
        let mut files: Vec<_> = bases.into_iter().map(|base| log(base, len)).collect();
        files.push(snapshot(offset, len.min(PRODUCERS_BYTES_MAX)));
        Manifest {
            group: GroupId { topic_id, partition },
            start: Start { index, term, offset },
            log_start,
            compacted_to: compacted_to.map(|millionth| within(0, millionth)),
            configuration,
            epochs,
            files,
        }
    })
}

proptest! {
    #[test]
    fn manifests_are_read_as_they_were_written(manifest in manifests()) {
        prop_assert_eq!(Manifest::decode(&manifest.encode()), Ok(manifest));
    }

    #[test]
    fn any_bytes_are_read(data in prop::collection::vec(any::<u8>(), 0..300)) {
        crate::fuzz::copies(&data);
    }

    #[test]
    fn damaged_manifests_are_read(manifest in manifests(), at: prop::sample::Index, value: u8) {
        let mut bytes = fields_of(&manifest);
        let at = at.index(bytes.len());
        bytes[at] = value;
        crate::fuzz::copies(&bytes);
    }
}
