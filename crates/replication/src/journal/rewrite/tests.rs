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
            let found = entries(&open(&disk));
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
