use super::*;
use crate::group::{Configuration, ReplicaId};
use mainstem_log::ImportId;
use mainstem_log::sim::{Call, Hooked, Random, SimStorage};
use proptest::prelude::*;

pub(super) const DIR: &str = "/data";

pub(super) fn group(partition: i32) -> GroupId {
    GroupId { topic_id: [7; 16], partition }
}

pub(super) fn entry(index: u64, term: u64, offset: i64) -> Frame {
    Frame::Entry(InternalEntry { index, term, offset, kind: EntryKind::NoOp, data: Vec::new() })
}

pub(super) fn vote(term: u64) -> Frame {
    Frame::Vote(Vote { term, candidate: Some(ReplicaId::new(1, 1)) })
}

pub(super) fn disk() -> SimStorage {
    let storage = SimStorage::new();
    storage.create_dir(Path::new(DIR)).unwrap();
    storage.sync_dir(Path::new("/")).unwrap();
    storage
}

pub(super) fn open(storage: &SimStorage) -> Journal {
    Journal::open(Arc::new(storage.clone()), Path::new(DIR)).unwrap().0
}

fn frames() -> Vec<Frame> {
    let configuration = Configuration {
        voters: vec![ReplicaId::new(1, 1), ReplicaId::new(2, 1)],
        learners: vec![ReplicaId::new(3, 2)],
        auto_leave: true,
        ..Configuration::default()
    };
    let data = InternalEntry {
        index: 8,
        term: 2,
        offset: 40,
        kind: EntryKind::ConfigurationChangeV2,
        data: vec![1, 2, 3],
    };
    vec![
        vote(2),
        Frame::Start(Start { index: 3, term: 1, offset: 20 }),
        Frame::Configuration { own: ReplicaId::new(1, 1), index: 3, configuration },
        entry(4, 2, 20),
        Frame::Mark(Mark { index: 6, offset: 30 }),
        Frame::Entry(data),
        Frame::Commit { committed: 7, applied: 6 },
        Frame::Tail(Tail { is_cached: true, holds_votes: true }),
    ]
}

/// The end of what takes the place of a log, and who is in the group from there on.
fn place() -> (Start, ReplicaId, Configuration) {
    let own = ReplicaId::new(1, 1);
    (Start { index: 90, term: 7, offset: 500 }, own, Configuration::of_voters(&[own, ReplicaId::new(2, 1)]))
}

/// Writes a frame by which something else is to take the place of a log: that is known whole or not at all, until it has.
fn check_until_it_has(frame: Frame, is_to_come: impl Fn(&GroupState) -> bool) {
    let (start, own, configuration) = place();
    let storage = disk();
    let mut journal = open(&storage);
    journal.want_format(JournalFormat::V2);
    journal.rewrite().unwrap();
    journal.append(group(0), &frames()).unwrap();
    journal.append(group(0), &[frame]).unwrap();
    journal.sync().unwrap();
    for is_rewritten in [false, true] {
        if is_rewritten {
            journal.rewrite().unwrap();
        }
        journal.check();
        journal = open(&storage);
        let state = journal.group(group(0)).unwrap();
        assert_eq!((state.start, state.own), (start, Some(own)));
        assert!(is_to_come(state), "{state:?}");
        assert_eq!((state.configuration_index, &state.configuration), (90, &configuration));
        assert!(state.entries.is_empty() && state.marks.is_empty() && state.vote.term == 2, "{state:?}");
    }
    journal.append(group(0), &[Frame::Start(start), entry(91, 8, 500)]).unwrap();
    journal.sync().unwrap();
    journal = open(&storage);
    let state = journal.group(group(0)).unwrap();
    assert_eq!((state.start, state.entries.len()), (start, 1));
    assert!(!state.restoring && state.replacing.is_none(), "{state:?}");
}

#[test]
fn a_snapshot_is_to_take_the_place_of_a_log_until_it_has() {
    let (start, own, configuration) = place();
    let restore = Frame::Restore { start, own, configuration };
    check_until_it_has(restore, |state| state.restoring && state.replacing.is_none());
}

#[test]
fn a_copy_is_to_take_the_place_of_a_log_until_it_has() {
    let ((start, own, configuration), copy) = (place(), ImportId([9; 16]));
    let replace = Frame::Replace { copy, start, own, configuration };
    check_until_it_has(replace, |state| !state.restoring && state.replacing == Some(copy));
}

#[test]
fn the_frame_of_a_copy_has_the_bytes_that_the_format_says() {
    let start = Start { index: 90, term: 7, offset: 500 };
    let (copy, own) = (ImportId([9; 16]), ReplicaId::new(1, 1));
    let configuration = Configuration::of_voters(&[own]);
    let mut bytes = Vec::new();
    Frame::Replace { copy, start, own, configuration }.encode(group(1), 8, &mut bytes);
    let mut expected = vec![0, 104, 11, 3];
    expected.extend_from_slice(&8u64.to_be_bytes());
    expected.extend_from_slice(&[7; 16]);
    expected.extend_from_slice(&1i32.to_be_bytes());
    expected.extend_from_slice(&[9; 16]);
    for number in [7, 500, own.0, 90] {
        expected.extend_from_slice(&u64::to_be_bytes(number));
    }
    expected.extend_from_slice(&[0, 1, 0, 0, 0, 0, 0, 0, 0]);
    expected.extend_from_slice(&own.0.to_be_bytes());
    expected.extend_from_slice(&[0; 3]);
    assert_eq!(bytes[4..], expected);
}

/// A group is founded in the order in which its replicas are assigned, which need not ascend; only what comes over a link has
/// to ([`Configuration::is_sound`]).
#[test]
fn a_founding_configuration_may_be_in_any_order() {
    let voters = [3, 1, 2].map(|node| ReplicaId::new(node, 1));
    let configuration = Configuration::of_voters(&voters);
    assert!(!configuration.is_sound());
    let storage = disk();
    let mut journal = open(&storage);
    journal.append(group(0), &[Frame::Configuration { own: voters[1], index: 0, configuration }]).unwrap();
    journal.sync().unwrap();
    assert_eq!(open(&storage).group(group(0)).unwrap().configuration.voters, voters);
}

#[test]
fn a_write_without_space_is_taken_back() {
    let storage = disk();
    let mut journal = open(&storage);
    journal.append(group(0), &[vote(2)]).unwrap();
    let size = journal.size();
    storage.set_free_space(Some(20));
    let refused = journal.append(group(0), &[vote(3), entry(1, 3, 0)]);
    assert!(
        matches!(&refused, Err(JournalError::Io { source, .. }) if StorageFault::of(source) == StorageFault::NoSpace),
        "{refused:?}"
    );
    assert_eq!((journal.size(), journal.has_failed()), (size, false));
    assert_eq!(journal.group(group(0)).unwrap().vote.term, 2);
    storage.set_free_space(None);
    journal.append(group(0), &[vote(4)]).unwrap();
    journal.sync().unwrap();
    journal.check();
    storage.kill();
    let (journal, cut) = Journal::open(Arc::new(storage.clone()), Path::new(DIR)).unwrap();
    assert_eq!((journal.group(group(0)).unwrap().vote.term, cut), (4, 0));
}

#[test]
fn a_journal_without_space_for_a_rewrite_continues() {
    let storage = disk();
    let mut journal = open(&storage);
    let mut term = 1;
    while !journal.rewrite_due() {
        term += 1;
        journal.append(group(0), &[vote(term)]).unwrap();
    }
    storage.set_free_space(Some(20));
    assert!(journal.rewrite().is_err() && !journal.has_failed() && !journal.rewrite_due());
    storage.set_free_space(None);
    journal.append(group(0), &[vote(term + 1)]).unwrap();
    journal.rewrite().unwrap();
    storage.kill();
    assert_eq!(open(&storage).group(group(0)).unwrap().vote.term, term + 1);
}

/// After a failed sync the page cache has what the disk has not, and says that it is written.
#[test]
fn what_a_failed_sync_has_left_in_the_page_cache_is_not_believed() {
    let storage = disk();
    let mut journal = open(&storage);
    journal.append(group(0), &[vote(2)]).unwrap();
    journal.sync().unwrap();
    journal.append(group(0), &[vote(3)]).unwrap();
    storage.fail_syncs(1);
    assert!(journal.sync().is_err() && journal.has_failed());
    assert!(journal.append(group(0), &[vote(4)]).is_err());
    storage.kill();
    let mut journal = open(&storage);
    assert_eq!(journal.group(group(0)).unwrap().vote.term, 2);
    journal.append(group(0), &[vote(5)]).unwrap();
    journal.sync().unwrap();
    storage.power_cut(&mut Random::new(1));
    assert_eq!(open(&storage).group(group(0)).unwrap().vote.term, 5);
}

#[test]
fn what_is_written_is_read_after_a_kill() {
    let storage = disk();
    let mut journal = open(&storage);
    for frame in frames() {
        journal.append(group(0), &[frame]).unwrap();
    }
    journal.append(group(1), &[vote(9)]).unwrap();
    journal.append(group(2), &[vote(1), Frame::Removed]).unwrap();
    journal.check();
    let (before, other) = (journal.group(group(0)).cloned().unwrap(), journal.group(group(1)).cloned());
    drop(journal);
    storage.kill();
    let journal = open(&storage);
    assert_eq!(journal.group(group(0)), Some(&before));
    assert_eq!(journal.group(group(1)).cloned(), other);
    assert_eq!(journal.group(group(2)), None);
    assert_eq!((before.start.index, before.entries.len(), before.marks.len()), (3, 2, 1));
    assert_eq!((before.vote.term, before.committed, before.own), (2, 7, Some(ReplicaId::new(1, 1))));
    assert!(before.tail.is_cached && before.tail.holds_votes);
}

#[test]
fn a_frame_has_the_bytes_that_the_format_says() {
    let mut bytes = Vec::new();
    vote(5).encode(group(1), 8, &mut bytes);
    let mut expected = vec![0, 56, 1, 4];
    expected.extend_from_slice(&8u64.to_be_bytes());
    expected.extend_from_slice(&[7; 16]);
    expected.extend_from_slice(&1i32.to_be_bytes());
    expected.extend_from_slice(&5u64.to_be_bytes());
    expected.extend_from_slice(&0x1_0000_0001u64.to_be_bytes());
    expected.extend_from_slice(&[0; 4]);
    assert_eq!(bytes[4..], expected);
    assert_eq!(bytes[..4], crc32c::crc32c(&expected).to_be_bytes());
}

#[test]
fn every_frame_is_read_as_it_was_written() {
    for frame in frames() {
        let mut bytes = Vec::new();
        frame.encode(group(3), 16, &mut bytes);
        assert_eq!(bytes.len(), frame.encoded_len());
        let decoded = frame::decode(&bytes).unwrap();
        assert_eq!((decoded.group, decoded.synced, decoded.frame), (group(3), 16, frame));
        for len in 0..bytes.len() {
            assert_eq!(frame::decode(&bytes[..len]), None);
        }
        for byte in 0..bytes.len() {
            bytes[byte] ^= 1;
            assert_eq!(frame::decode(&bytes), None, "byte {byte}");
            bytes[byte] ^= 1;
        }
    }
}

/// After a power cut the journal has a prefix of what was written, and all that was synced.
#[test]
fn a_power_cut_leaves_what_was_synced_and_a_prefix_of_the_rest() {
    for seed in 0..300 {
        let (storage, mut random) = (disk(), Random::new(seed));
        let mut journal = open(&storage);
        let (mut written, mut synced) = (0, 0);
        for _ in 0..3 {
            for _ in 0..random.below(30) {
                let number = random.below(3) + 1;
                let frames: Vec<_> = (1..=number).map(|n| entry(written + n, 1, 5)).collect();
                journal.append(group(0), &frames).unwrap();
                written += number;
            }
            if random.chance(60) {
                journal.sync().unwrap();
                synced = written;
            }
            if random.chance(20) {
                journal.rewrite().unwrap();
                synced = written;
            }
        }
        drop(journal);
        storage.power_cut(&mut random);
        let journal = open(&storage);
        let entries = journal.group(group(0)).map_or(&[][..], |state| &state.entries);
        let indexes: Vec<_> = entries.iter().map(|entry| entry.index).collect();
        assert_eq!(indexes, (1..=indexes.len() as u64).collect::<Vec<_>>(), "seed {seed}");
        assert!((synced..=written).contains(&(indexes.len() as u64)), "seed {seed}: {synced} {indexes:?}");
    }
}

/// A torn tail goes; damage to what was synced is refused, since votes may be lost with it.
#[test]
fn damage_to_synced_frames_is_no_torn_write() {
    let check = |damage_at: u64, sync: bool, expected: Option<usize>| {
        let storage = disk();
        let mut journal = open(&storage);
        journal.append(group(0), &[entry(1, 1, 0), entry(2, 1, 0)]).unwrap();
        if sync {
            journal.sync().unwrap();
        }
        journal.append(group(0), &[entry(3, 1, 0)]).unwrap();
        write_all_at(&*journal.file, &[0xFF], damage_at).unwrap();
        match (Journal::open(Arc::new(storage), Path::new(DIR)), expected) {
            (Ok((journal, _)), Some(count)) => {
                assert_eq!(journal.group(group(0)).map_or(0, |state| state.entries.len()), count);
            }
            (Err(JournalError::Damaged { position, .. }), None) => assert!(position <= damage_at),
            (other, _) => panic!("{other:?} at {damage_at}"),
        }
    };
    // The magic has 8 bytes, each of the three frames 64.
    check(8 + 64 + 20, true, None);
    check(8 + 20, true, None);
    check(8 + 128 + 20, true, Some(2));
    check(8 + 64 + 20, false, Some(1));
    check(8 + 20, false, Some(0));
}

/// The journal stays as it was, and is rewritten when the shortage is over.
#[test]
fn a_rewrite_without_descriptors_or_memory_leaves_the_journal_in_use() {
    const SHORTAGES: [i32; 3] = [24, 23, 12];
    for (step, code) in [Call::Create, Call::Rename, Call::SyncDir]
        .into_iter()
        .flat_map(|step| SHORTAGES.map(|code| (step, code)))
    {
        for seed in 0..10 {
            let disk = disk();
            let hooked = Hooked::new(Arc::new(disk.clone()));
            let (mut journal, _) = Journal::open(Arc::new(hooked.clone()), Path::new(DIR)).unwrap();
            journal.append(group(0), &[vote(2)]).unwrap();
            hooked.set_hook(move |call, _| match call == step {
                true => Err(io::Error::from_raw_os_error(code)),
                false => Ok(()),
            });
            let error = journal.rewrite().unwrap_err();
            assert!(!journal.has_failed(), "{step:?}: {error}");
            assert!(!journal.rewrite_due(), "it asks again when it has grown");
            journal.append(group(0), &[vote(3)]).unwrap();
            journal.sync().unwrap();
            journal.check();
            if seed > 4 {
                hooked.clear_hook();
                journal.rewrite().unwrap();
                journal.append(group(0), &[vote(4)]).unwrap();
                journal.sync().unwrap();
                journal.check();
            }
            disk.power_cut(&mut Random::new(seed));
            let term = open(&disk).group(group(0)).unwrap().vote.term;
            assert_eq!(term, if seed > 4 { 4 } else { 3 }, "{step:?} {code} {seed}");
        }
    }
}

#[test]
fn a_file_of_another_kind_is_refused() {
    let storage = disk();
    drop(open(&storage));
    let path = Path::new(DIR).join(JOURNAL);
    let file = storage.open(&path, OpenMode::ReadWrite).unwrap();
    write_all_at(&*file, b"msgroup9", 0).unwrap();
    let opened = Journal::open(Arc::new(storage), Path::new(DIR));
    assert!(matches!(opened, Err(JournalError::OtherFormat { .. })), "{opened:?}");
}

#[test]
fn a_journal_that_has_grown_is_rewritten_with_the_same_content() {
    let storage = disk();
    let mut journal = open(&storage);
    let mut rewritten = 0;
    for term in 1..10_000 {
        journal.append(group(0), &[vote(term)]).unwrap();
        if journal.rewrite_due() {
            journal.rewrite().unwrap();
            rewritten += 1;
        }
        assert!(journal.size() < REWRITE_BYTES_MIN + FRAME_BYTES_MAX as u64);
    }
    assert!((4..20).contains(&rewritten), "{rewritten}");
    assert_eq!(journal.sync_work().is_some(), journal.durable() < journal.appended());
    journal.check();
    drop(journal);
    storage.kill();
    assert_eq!(open(&storage).group(group(0)).unwrap().vote.term, 9_999);
}

/// Entries in the place of committed ones that are gone are not committed for that.
#[test]
fn a_cut_before_the_commit_takes_that_along() {
    let storage = disk();
    let mut journal = open(&storage);
    journal.append(group(0), &frames()).unwrap();
    let noted = |journal: &Journal| journal.group(group(0)).map(|state| (state.committed, state.applied));
    assert_eq!(noted(&journal), Some((7, 6)));
    journal.append(group(0), &[Frame::Cut { index: 8 }, entry(8, 3, 40)]).unwrap();
    assert_eq!(noted(&journal), Some((7, 6)));
    journal.append(group(0), &[Frame::Cut { index: 6 }]).unwrap();
    assert_eq!(noted(&journal), Some((5, 5)));
    journal.append(group(0), &[entry(6, 3, 30), entry(7, 3, 30), entry(8, 3, 30)]).unwrap();
    journal.rewrite().unwrap();
    drop(journal);
    storage.kill();
    assert_eq!(noted(&open(&storage)), Some((5, 5)));
}

/// Each of the two is for itself, and outlives a journal that is rewritten.
#[test]
fn what_a_power_cut_may_take_is_remembered_until_it_is_taken_back() {
    let storage = disk();
    let mut journal = open(&storage);
    for bits in [1, 3, 2, 0, 1] {
        let tail = Tail { is_cached: bits & 1 != 0, holds_votes: bits & 2 != 0 };
        journal.append(group(0), &[vote(bits), Frame::Tail(tail)]).unwrap();
        journal.rewrite().unwrap();
        journal = open(&storage);
        assert_eq!(journal.group(group(0)).unwrap().tail, tail);
    }
    journal.append(group(0), &[Frame::Removed, vote(5)]).unwrap();
    assert_eq!(journal.group(group(0)).unwrap().tail, Tail::default());
}

/// A sync of the file that was replaced meanwhile makes nothing durable that is not.
#[test]
fn a_sync_of_the_file_before_a_rewrite_says_nothing_of_the_next() {
    let storage = disk();
    let mut journal = open(&storage);
    journal.append(group(0), &[vote(1)]).unwrap();
    let work = journal.sync_work().unwrap();
    journal.rewrite().unwrap();
    let position = journal.append(group(0), &[vote(2)]).unwrap();
    journal.synced(work.upto);
    journal.check();
    assert!(journal.durable() < position);
    journal.sync().unwrap();
    assert_eq!(journal.durable(), position);
}

#[test]
fn a_failed_sync_ends_it() {
    let storage = disk();
    let mut journal = open(&storage);
    journal.append(group(0), &[vote(1)]).unwrap();
    storage.fail_syncs(1);
    assert!(matches!(journal.sync(), Err(JournalError::Io { .. })));
    assert!(matches!(journal.append(group(0), &[vote(2)]), Err(JournalError::Failed { .. })));
    assert!(journal.sync_work().is_none() && journal.sync().is_err());
}

proptest! {
    #[test]
    fn any_bytes_are_read(data in prop::collection::vec(any::<u8>(), 0..300)) {
        crate::fuzz::journal(&data);
    }

    #[test]
    fn whole_frames_with_any_bytes_behind_are_read(
        picks in prop::collection::vec(0usize..8, 0..12),
        rest in prop::collection::vec(any::<u8>(), 0..100),
    ) {
        let mut data = Vec::new();
        for pick in picks {
            frames()[pick].encode(group(pick as i32 % 2), 0, &mut data);
        }
        data.extend(rest);
        crate::fuzz::journal(&data);
    }
}
