use std::io;
use std::path::Path;
use std::sync::Arc;

use mainstem_log::sim::{Call, Hooked, Random, SimStorage};
use parking_lot::Mutex;

use super::super::tests::{DIR, disk, entry, group, open, vote};
use super::*;

/// The steps of a rewrite that wait for the disk.
const STEPS: [Call; 5] = [Call::Create, Call::Sync, Call::Sync, Call::Rename, Call::SyncDir];

/// Asks before each step of a rewrite.
fn ask(disk: &Hooked, mut before: impl FnMut(Call) -> io::Result<()> + Send + 'static) {
    disk.set_outer_hook(move |call, _| if STEPS.contains(&call) { before(call) } else { Ok(()) });
}

fn hooked() -> (SimStorage, Hooked, Arc<Mutex<Journal>>) {
    let disk = disk();
    let hooked = Hooked::new(Arc::new(disk.clone()));
    let (mut journal, _) = Journal::open(Arc::new(hooked.clone()), Path::new(DIR)).unwrap();
    journal.append(group(0), &[vote(2), entry(1, 2, 0)]).unwrap();
    journal.sync().unwrap();
    (disk, hooked, Arc::new(Mutex::new(journal)))
}

fn entries(journal: &Journal) -> Vec<u64> {
    journal.group(group(0)).unwrap().entries.iter().map(|entry| entry.index).collect()
}

/// Appends, syncs and questions do not wait while a step of a rewrite waits for the disk; what is synced then outlives a power cut at
/// any step, and all of it a kill.
#[test]
fn nobody_waits_for_the_disk_of_a_rewrite_and_nothing_durable_is_lost() {
    for seed in 0..60 {
        for (last, is_cut) in (1..=STEPS.len()).flat_map(|last| [(last, false), (last, true)]) {
            let (disk, hooked, journal) = hooked();
            if seed % 2 == 0 {
                journal.lock().want_format(JournalFormat::V2);
            }
            let (users, own_disk) = (journal.clone(), disk.clone());
            let seen = Arc::new(Mutex::new((Vec::new(), 1, 1)));
            let noted = seen.clone();
            ask(&hooked, move |step| {
                let mut seen = noted.lock();
                let (steps, written, synced) = &mut *seen;
                steps.push(step);
                *written += 1;
                users.try_lock().expect("nobody waits").append(group(0), &[entry(*written, 2, 0)]).unwrap();
                if (seed + steps.len()) % 3 > 0 {
                    Journal::sync_beside_others(&users).unwrap();
                    *synced = *written;
                }
                users.try_lock().expect("nobody waits").check();
                if steps.len() == last {
                    match is_cut {
                        true => own_disk.power_cut(&mut Random::new(seed as u64)),
                        false => own_disk.kill(),
                    }
                    return Err(io::Error::other("the process is dead"));
                }
                Ok(())
            });
            assert!(Journal::rewrite_beside_others(&journal).is_err());
            let (steps, written, synced) = seen.lock().clone();
            assert_eq!(steps, STEPS[..last]);
            let again = open(&disk);
            // A power cut may take the new name until the directory is synced.
            let has_name = steps.len() == STEPS.len() && !is_cut && seed % 2 == 0;
            let has_none = steps.len() < STEPS.len() || seed % 2 == 1;
            assert!(
                if again.format() == JournalFormat::V2 { !has_none } else { !has_name },
                "{seed} {steps:?}"
            );
            let found = entries(&again);
            assert_eq!(found, (1..=found.len() as u64).collect::<Vec<_>>(), "{seed} {steps:?}");
            let least = if is_cut { synced } else { written };
            assert!(found.len() as u64 >= least, "{seed} {steps:?}: {found:?} of {least}");
        }
    }
}

#[test]
fn frames_that_come_during_a_rewrite_are_in_the_new_file() {
    let (disk, hooked, journal) = hooked();
    let (users, mut written) = (journal.clone(), 1);
    ask(&hooked, move |_| {
        written += 1;
        users.lock().append(group(0), &[vote(written), entry(written, 2, 0)]).map(drop).unwrap();
        // Another thread is at it.
        assert!(!users.lock().rewrite_due());
        Journal::rewrite_beside_others(&users).map_err(io::Error::other)
    });
    let before = journal.lock().size();
    Journal::rewrite_beside_others(&journal).unwrap();
    hooked.clear_hook();
    {
        let mut journal = journal.lock();
        journal.check();
        assert!(journal.size() > before && journal.durable() < journal.appended());
        journal.sync().unwrap();
        assert_eq!(journal.durable(), journal.appended());
    }
    disk.power_cut(&mut Random::new(1));
    let again = open(&disk);
    assert_eq!((again.group(group(0)).unwrap().vote.term, entries(&again)), (6, vec![1, 2, 3, 4, 5, 6]));
    assert!(!disk.exists(&Path::new(DIR).join("mainstem.groups.tmp")).unwrap());
}

/// A new format comes with a rewrite, which is due at once, and stays.
#[test]
fn a_journal_gets_the_format_that_is_wanted() {
    let (disk, hooked, journal) = hooked();
    let has = |format| {
        let mut journal = journal.lock();
        journal.check();
        assert_eq!((journal.format(), journal.rewrite_due()), (format, false));
    };
    has(JournalFormat::V1);
    // It is wanted while a rewrite in the old format is on its way: another one follows.
    let users = journal.clone();
    ask(&hooked, move |_| {
        users.lock().want_format(JournalFormat::V2);
        Ok(())
    });
    Journal::rewrite_beside_others(&journal).unwrap();
    hooked.clear_hook();
    assert_eq!(journal.lock().format(), JournalFormat::V1);
    assert!(journal.lock().rewrite_due());
    Journal::rewrite_beside_others(&journal).unwrap();
    has(JournalFormat::V2);
    journal.lock().want_format(JournalFormat::V1);
    has(JournalFormat::V2);
    disk.kill();
    let mut again = open(&disk);
    assert_eq!((again.format(), entries(&again)), (JournalFormat::V2, vec![1]));
    again.rewrite().unwrap();
    disk.power_cut(&mut Random::new(1));
    assert_eq!(open(&disk).format(), JournalFormat::V2);
}

/// Without space the file keeps its format, until it is asked for again.
#[test]
fn a_new_format_without_space_is_tried_again() {
    let (disk, _, journal) = hooked();
    journal.lock().want_format(JournalFormat::V2);
    disk.set_free_space(Some(0));
    assert!(Journal::rewrite_beside_others(&journal).is_err());
    disk.set_free_space(None);
    assert!(!journal.lock().rewrite_due());
    journal.lock().want_format(JournalFormat::V2);
    assert!(journal.lock().rewrite_due());
    Journal::rewrite_beside_others(&journal).unwrap();
    assert_eq!(journal.lock().format(), JournalFormat::V2);
    disk.kill();
    assert_eq!(entries(&open(&disk)), [1]);
}

/// A vote finds space in the blocks that the old file has.
#[test]
fn a_new_file_without_space_for_a_frame_is_removed() {
    let (disk, hooked, journal) = hooked();
    let (users, own_disk, mut step) = (journal.clone(), disk.clone(), 0);
    ask(&hooked, move |_| {
        step += 1;
        if step == 3 {
            // For one of the two files.
            own_disk.set_free_space(Some(56));
            users.lock().append(group(0), &[vote(9)]).unwrap();
        }
        Ok(())
    });
    assert!(Journal::rewrite_beside_others(&journal).is_err());
    hooked.clear_hook();
    disk.set_free_space(None);
    assert!(!journal.lock().has_failed());
    journal.lock().sync().unwrap();
    Journal::rewrite_beside_others(&journal).unwrap();
    disk.power_cut(&mut Random::new(1));
    assert_eq!(open(&disk).group(group(0)).unwrap().vote.term, 9);
}
