use super::*;
use crate::log::testing::{Bench, TOPIC_ID, TestBatch, flush, small_segments};
use crate::sim::{Random, SimStorage};
use crate::{Export, ExportError};

const DESCRIPTION: &[u8] = b"the description of a copy";

fn partition() -> TopicPartition {
    TopicPartition::new("t", 0)
}

fn simulated() -> (SimStorage, Bench) {
    let storage = SimStorage::new();
    let mut bench = Bench::with_storage(Arc::new(storage.clone()), small_segments());
    bench.is_replica = true;
    (storage, bench)
}

/// A leader's log: 60 records of two producers under three epochs, the last segment of which is closed.
fn original(bench: &Bench) -> Log {
    let (mut log, _) = bench.open("a");
    for number in 0..60 {
        let value = format!("value {number:060}");
        let batch = TestBatch::of(&[&value]).by(number % 2, 0, (number / 2) as i32);
        bench.append_under(&mut log, &batch, number as i32 / 20).expect("an append");
    }
    log.close_segment(bench.mono_ms).expect("a roll");
    flush(&mut log);
    log
}

pub(crate) fn ends_of(export: &Export, end: i64) -> ImportEnds {
    ImportEnds { log_start: export.log_start(), end, compacted_to: export.compacted_to() }
}

/// Copies files in ranges of a few bytes, from a position of all of them on.
pub(crate) fn receive(export: &Export, import: &mut Import, from: u64) {
    let mut received = 0;
    for (number, file) in export.files().iter().enumerate() {
        for position in (0..file.len).step_by(700) {
            let len = (file.len - position).min(700);
            if received >= from {
                let bytes = export.read(number, position, len as usize).expect("a range");
                import.write(file, position, &bytes).expect("a write");
            }
            received += len;
        }
    }
    import.sync(received).expect("a sync");
}

/// A whole copy in the directory of a target.
pub(crate) fn copied(export: &Export, end: i64, target: &Bench, dir: &Arc<LogDir>) -> ImportedLog {
    let ends = ends_of(export, end);
    let mut import = Import::create(dir, &partition(), &TOPIC_ID, ends, DESCRIPTION).expect("a directory");
    receive(export, &mut import, 0);
    let config = Arc::new(target.config.clone());
    import
        .finish(export.files(), export.epochs(), (config, target.mono_ms), &Arc::default())
        .expect("a sound copy")
}

/// Compares two logs before an offset.
fn assert_same(one: &Log, other: &Log, end: i64, bench: &Bench) {
    let before = |log: &Log| {
        let records = bench.read_all(log).into_iter();
        records.filter(|(offset, _)| *offset < end).collect::<Vec<_>>()
    };
    assert_eq!(before(one), before(other));
    let epochs = |log: &Log| {
        let entries = log.leader_epochs().entries().iter();
        entries.filter(|entry| entry.start_offset < end).copied().collect::<Vec<_>>()
    };
    assert_eq!(epochs(one), epochs(other));
}

#[test]
fn a_copy_has_the_records_the_epochs_and_the_producers_of_the_original() {
    let (_, source) = simulated();
    let mut leader = original(&source);
    leader.delete_records_before(7).expect("a deletion");
    let export = leader.export(60).expect("a listing").expect("an export");
    assert!(export.files().len() > 3 && export.log_start() == 7);
    let (_, target) = simulated();
    let (mut follower, _) = target.open("a");
    target.append_numbers(&mut follower, 0..5);
    let dir = follower.dir().clone();
    let copy = copied(&export, 60, &target, &dir);
    drop(dir);
    copy.take_place(&mut follower, 0).expect("its place");
    follower.check();
    assert_eq!((follower.ends().log_start, follower.ends().log_end), (7, 60));
    assert_eq!(follower.ends().durable_end, 60);
    assert_same(&leader, &follower, 60, &target);
    // A batch that is sent twice is stored once, also by the copy.
    let again = TestBatch::of(&["again"]).by(1, 0, 29);
    let appended = target.append_under(&mut follower, &again, 2).expect("an append");
    assert!(appended.duplicate);
    let next = TestBatch::of(&["next"]).by(1, 0, 30);
    assert_eq!(target.append_under(&mut follower, &next, 2).expect("an append").base_offset, 60);
    target.stop_clean(follower);
    let (follower, recovery) = target.open("a");
    assert_eq!((recovery.segments_walked, follower.ends().log_start), (0, 7));
    assert_eq!(target.read_all(&follower).len(), 54);
}

#[test]
fn a_copy_of_a_log_that_starts_at_its_end_has_the_producers_alone() {
    let (_, source) = simulated();
    let mut leader = original(&source);
    leader.delete_records_before(60).expect("a deletion");
    let export = leader.export(60).expect("a listing").expect("an export");
    assert_eq!(export.files().len(), 1);
    let (_, target) = simulated();
    let (mut follower, _) = target.open("a");
    let dir = follower.dir().clone();
    copied(&export, 60, &target, &dir).take_place(&mut follower, 0).expect("its place");
    assert_eq!((follower.ends().log_start, follower.ends().log_end), (60, 60));
    let again = TestBatch::of(&["again"]).by(0, 0, 29);
    assert!(target.append_under(&mut follower, &again, 2).expect("an append").duplicate);
}

#[test]
fn an_export_holds_its_files_until_it_is_dropped() {
    let mut source = Bench::real(small_segments());
    (source.config.retention_bytes, source.config.file_delete_delay_ms) = (Some(2500), 0);
    let mut leader = original(&source);
    let segments = leader.segment_count();
    let export = leader.export(60).expect("a listing").expect("an export");
    assert!(leader.export(60).expect("a listing").is_none(), "one at a time");
    leader.maintain(crate::log::testing::WALL_MS, 2000).expect("maintenance");
    assert_eq!(leader.segment_count(), segments, "held");
    assert!(leader.ends().log_start > 0, "readers see the new start");
    assert!(export.read(0, 0, 10).is_ok());
    assert!(matches!(export.read(0, export.files()[0].len - 5, 10), Err(ExportError::NoSuchRange)));
    assert!(matches!(export.read(99, 0, 1), Err(ExportError::NoSuchRange)));
    drop(export);
    leader.maintain(crate::log::testing::WALL_MS, 3000).expect("maintenance");
    assert!(leader.segment_count() < segments);
}

/// The files that a replica gets must not be compacted meanwhile: they would be of two moments.
#[test]
fn a_log_is_not_compacted_while_it_is_exported() {
    let (_, source) = simulated();
    let mut leader = original(&source);
    leader.set_config(Arc::new(LogConfig { compact: true, ..source.config.clone() }));
    assert!(leader.compaction_view(60).is_some());
    let export = leader.export(60).expect("a listing").expect("an export");
    assert!(leader.compaction_view(60).is_none());
    drop(export);
    assert!(leader.compaction_view(60).is_some());
}

#[test]
fn an_export_ends_with_a_truncation_before_its_end_and_with_its_log() {
    let (_, source) = simulated();
    let mut leader = original(&source);
    let export = leader.export(60).expect("a listing").expect("an export");
    source.append_under(&mut leader, &TestBatch::of(&["behind"]), 3).expect("an append");
    leader.truncate_suffix(60, 0).expect("a truncation");
    assert!(export.read(0, 0, 10).is_ok(), "what it has is as it was");
    leader.truncate_suffix(59, 0).expect("a truncation");
    assert!(matches!(export.read(0, 0, 10), Err(ExportError::Ended)));
    drop(export);
    let bases: Vec<_> = leader.segment_bases().collect();
    let export = leader.export(bases[1]).expect("a listing").expect("an export");
    drop(leader);
    assert!(matches!(export.read(0, 0, 10), Err(ExportError::Ended)));
}

#[test]
fn a_damaged_copy_is_refused() {
    let (_, source) = simulated();
    let mut leader = original(&source);
    let export = leader.export(60).expect("a listing").expect("an export");
    let (_, target) = simulated();
    let dir = target.dir("a");
    for file in export.files() {
        for position in (0..file.len).step_by(if file.is_snapshot { 7 } else { 311 }) {
            let ends = ends_of(&export, 60);
            let import = Import::create(&dir, &partition(), &TOPIC_ID, ends, DESCRIPTION);
            let mut import = import.expect("a directory");
            receive(&export, &mut import, 0);
            let crc = import.crc_of(file, position, 1).expect("a read").expect("it is here");
            let flipped = (0..=255_u8).find(|byte| crc32c::crc32c(&[*byte]) == crc).expect("a byte") ^ 0x10;
            import.write(file, position, &[flipped]).expect("a write");
            let path = import.path().to_owned();
            let config = Arc::new(target.config.clone());
            let finished = import.finish(export.files(), export.epochs(), (config, 0), &Arc::default());
            // The leader epoch, which a leader stamps, is in no checksum.
            let is_epoch = |position: u64| (12..16).contains(&position);
            let is_allowed =
                !file.is_snapshot && finished.is_ok() && in_batch(&leader, file, position, is_epoch);
            assert!(
                is_allowed || matches!(finished, Err(ImportError::Damaged { .. })),
                "{file:?} at {position}"
            );
            drop(finished);
            dir.remove_future(&path).expect("a removal");
        }
    }
}

/// Asks about a position within its batch.
fn in_batch(log: &Log, file: &ExportedFile, position: u64, is: impl Fn(u64) -> bool) -> bool {
    let path = log.files.path(file.base_offset, file.kind());
    let opened = log.files.storage.open(&path, OpenMode::Read).expect("a file");
    let mut batches = BatchScan::new(&*opened, ReadMode::Blocking, 0..file.len, file.base_offset, 4096);
    while let Scanned::Batch(batch) = blocking(batches.next(false)).expect("a read") {
        if (batch.position..batch.position + batch.size).contains(&position) {
            return is(position - batch.position);
        }
    }
    false
}

#[test]
fn a_copy_goes_on_where_it_was_synced_after_any_end() {
    let (_, source) = simulated();
    let mut leader = original(&source);
    let export = leader.export(60).expect("a listing").expect("an export");
    for seed in 0..40 {
        let (storage, target) = simulated();
        let mut random = Random::new(seed);
        let dir = target.dir("a");
        let ends = ends_of(&export, 60);
        let mut import = Import::create(&dir, &partition(), &TOPIC_ID, ends, DESCRIPTION).expect("a copy");
        let file = export.files()[0];
        let bytes = export.read(0, 0, 1400).expect("a range");
        import.write(&file, 0, &bytes[..700]).expect("a write");
        import.sync(700).expect("a sync");
        import.write(&file, 700, &bytes[700..]).expect("a write");
        drop((import, dir));
        let boot = if random.chance(50) { "a" } else { "b" };
        match boot {
            "a" => storage.kill(),
            _ => storage.power_cut(&mut random),
        }
        let dir = target.dir(boot);
        let found = Import::find(&dir, &partition(), &TOPIC_ID).expect("a look").expect("it was synced");
        let FoundImport { mut import, description, synced } = found;
        assert_eq!((&description[..], synced), (DESCRIPTION, 700));
        receive(&export, &mut import, synced);
        let config = Arc::new(target.config.clone());
        let copy = import
            .finish(export.files(), export.epochs(), (config, 0), &Arc::default())
            .expect("a sound copy");
        copy.remove().expect("a removal");
        assert!(dir.futures().expect("a list").is_empty());
    }
}

#[test]
fn files_of_an_earlier_copy_stay_as_far_as_they_are_wanted() {
    let (_, source) = simulated();
    let mut leader = original(&source);
    let bases: Vec<_> = leader.segment_bases().collect();
    let earlier = leader.export(bases[2]).expect("a listing").expect("an export");
    let (_, target) = simulated();
    let dir = target.dir("a");
    let ends = ends_of(&earlier, bases[2]);
    let mut import = Import::create(&dir, &partition(), &TOPIC_ID, ends, DESCRIPTION).expect("a copy");
    receive(&earlier, &mut import, 0);
    drop(earlier);
    let later = leader.export(60).expect("a listing").expect("an export");
    let found = import.begin_again(ends_of(&later, 60), b"another", later.files()).expect("a change");
    let is_here = |file: &ExportedFile| !file.is_snapshot && file.base_offset < bases[2];
    let expected: Vec<_> =
        later.files().iter().map(|file| if is_here(file) { file.len } else { 0 }).collect();
    assert_eq!(found, expected);
    let theirs = crc32c::crc32c(&later.read(1, 0, 500).expect("a range"));
    assert_eq!(import.crc_of(&later.files()[1], 0, 500).expect("a read"), Some(theirs));
    assert_eq!(import.crc_of(later.files().last().expect("a file"), 0, 5).expect("a read"), None);
    drop(import);
    let found = Import::find(&dir, &partition(), &TOPIC_ID).expect("a look").expect("a copy");
    assert_eq!((&found.description[..], found.synced), (&b"another"[..], 0));
    drop(found);
    // One of another topic of that name is not taken, and not removed: the placing of the next start does that.
    assert!(Import::find(&dir, &partition(), &[9; 16]).expect("a look").is_none());
}

/// Runs the last steps up to a call that changes the disk, and what a start does after a power cut or a kill there.
#[test]
fn each_step_of_taking_the_place_may_be_the_last() {
    let (_, source) = simulated();
    let mut leader = original(&source);
    leader.delete_records_before(7).expect("a deletion");
    let export = leader.export(60).expect("a listing").expect("an export");
    let mut steps = 0;
    for last in 0.. {
        let mut is_whole = false;
        for seed in 0..6 {
            let (storage, target) = simulated();
            let mut random = Random::new(seed * 1000 + last);
            let (mut follower, _) = target.open("a");
            target.append_numbers(&mut follower, 0..5);
            flush(&mut follower);
            let dir = follower.dir().clone();
            let copy = copied(&export, 60, &target, &dir);
            let id = copy.id();
            storage.stop_after(Some(last));
            is_whole = copy.take_place(&mut follower, 0).is_ok();
            drop((follower, dir));
            let boot = if seed % 2 == 0 { "a" } else { "b" };
            match boot {
                "a" => storage.kill(),
                _ => storage.power_cut(&mut random),
            }
            // The owner's note of the id is durable, and so a start finishes.
            for again in 0..2 {
                storage.stop_after(Some(random.below(8)).filter(|_| again == 0));
                let identity = crate::dir::NodeIdentity { cluster_id: Some("cluster".into()), node_id: 1 };
                let opened = LogDir::open(target.storage.clone(), &target.path, &identity, boot);
                let finished = opened.ok().map(|dir| dir.finish_import(&partition(), (id, 60), 0));
                match (again, finished) {
                    (0, _) => storage.kill(),
                    (_, finished) => {
                        assert!(finished.expect("a directory").expect("a disk"), "{last} {seed}")
                    }
                }
                storage.stop_after(None);
            }
            storage.kill();
            let (follower, _) = target.open(boot);
            follower.check();
            let ends = follower.ends();
            assert_eq!((ends.log_start, ends.log_end), (7, 60), "{last} {seed}");
            assert_same(&leader, &follower, 60, &target);
            follower.dir().forget_import(&partition()).expect("a removal");
            drop(follower);
            storage.power_cut(&mut random);
            let (follower, _) = target.open("z");
            assert_eq!((follower.ends().log_start, follower.ends().log_end), (7, 60), "{last} {seed}");
            assert_same(&leader, &follower, 60, &target);
        }
        steps = last;
        if is_whole {
            break;
        }
    }
    assert!(steps > 10, "{steps} steps");
}

#[test]
fn a_mark_that_makes_no_sense_is_none() {
    let storage = SimStorage::new();
    let bench = Bench::with_storage(Arc::new(storage), small_segments());
    let dir = bench.dir("a");
    let ends = ImportEnds { log_start: 3, end: 9, compacted_to: None };
    let import = Import::create(&dir, &partition(), &TOPIC_ID, ends, DESCRIPTION).expect("a copy");
    let bytes = read_small_file(&*bench.storage, &import.path().join(INCOMING), 1000).expect("a mark");
    let mark = decode_mark(&bytes).expect("our own");
    assert_eq!((mark.synced, mark.ends, &mark.description[..]), (0, ends, DESCRIPTION));
    for at in 0..bytes.len() {
        let mut damaged = bytes.clone();
        damaged[at] ^= 1;
        let synced = decode_mark(&damaged).map(|mark| mark.synced);
        // The number alone may be torn.
        assert_eq!(synced, (SYNCED_AT as usize..ENDS_AT).contains(&at).then_some(0), "{at}");
    }
    for len in 0..DESCRIPTION_AT {
        assert!(decode_mark(&bytes[..len]).is_none());
    }
}
