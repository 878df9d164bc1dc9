//! The simulation keeps what it promises.

use super::{Random, SimStorage};
use crate::storage::{OpenMode, Storage, StorageFile, read_small_file, write_all_at};
use std::path::Path;

const DIR: &str = "/dir";

fn storage() -> SimStorage {
    let storage = SimStorage::new();
    storage.create_dir(Path::new(DIR)).unwrap();
    storage.sync_dir(Path::new("/")).unwrap();
    storage
}

fn write(storage: &SimStorage, name: &str, text: &str) -> std::sync::Arc<dyn StorageFile> {
    let file = storage.open(&Path::new(DIR).join(name), OpenMode::Create).unwrap();
    write_all_at(&*file, text.as_bytes(), 0).unwrap();
    file
}

fn read(storage: &SimStorage, name: &str) -> Option<String> {
    let bytes = read_small_file(storage, &Path::new(DIR).join(name), 1 << 20).ok()?;
    Some(String::from_utf8_lossy(&bytes).into_owned())
}

#[test]
fn synced_files_survive_and_others_may_not() {
    let mut lost = 0;
    for seed in 0..100 {
        let storage = storage();
        write(&storage, "synced", "text").sync_data().unwrap();
        storage.sync_dir(Path::new(DIR)).unwrap();
        write(&storage, "unsynced", "text");
        storage.power_cut(&mut Random::new(seed));
        assert_eq!(read(&storage, "synced").as_deref(), Some("text"));
        lost += usize::from(read(&storage, "unsynced").as_deref() != Some("text"));
    }
    assert!(lost > 20 && lost < 100, "{lost}");
}

#[test]
fn a_kill_loses_nothing_but_handles_and_locks() {
    let storage = storage();
    let file = write(&storage, "file", "text");
    let lock = storage.lock_exclusive(Path::new("/dir/lock")).unwrap();
    assert!(storage.lock_exclusive(Path::new("/dir/lock")).is_err());
    storage.kill();
    assert!(file.len().is_err());
    assert_eq!(read(&storage, "file").as_deref(), Some("text"));
    let second = storage.lock_exclusive(Path::new("/dir/lock")).unwrap();
    drop(lock);
    assert!(storage.lock_exclusive(Path::new("/dir/lock")).is_err());
    drop(second);
    assert!(storage.lock_exclusive(Path::new("/dir/lock")).is_ok());
}

#[test]
fn a_dead_process_changes_nothing_any_more() {
    let all = storage();
    let (own, path) = (all.of_this_process(), Path::new("/dir/file"));
    write(&own, "file", "text").sync_data().unwrap();
    all.kill();
    assert!(own.open(path, OpenMode::ReadWrite).is_err());
    assert!(own.rename(path, Path::new("/dir/other")).is_err());
    assert!(own.remove_file(path).is_err());
    assert!(own.exists(path).is_err());
    assert_eq!(read(&all.of_this_process(), "file").as_deref(), Some("text"));
}

#[test]
fn a_held_sync_waits_for_its_release_or_the_end_of_its_process() {
    for is_killed in [false, true] {
        let storage = storage();
        let (file, other) = (write(&storage, "held", "text"), write(&storage, "other", "text"));
        storage.hold_syncs(Some("held"));
        let waiting = std::thread::spawn(move || file.sync_data());
        while storage.syncs_held() == 0 {
            std::thread::yield_now();
        }
        other.sync_data().unwrap();
        if is_killed {
            storage.kill()
        } else {
            storage.hold_syncs(None)
        }
        assert_eq!(waiting.join().unwrap().is_err(), is_killed);
        assert_eq!(storage.syncs_held(), 0);
    }
}

#[test]
fn a_full_disk_takes_what_fits() {
    let storage = storage();
    let file = write(&storage, "file", "1234");
    storage.set_free_space(Some(3));
    assert!(write_all_at(&*file, b"56789", 4).is_err());
    assert_eq!(read(&storage, "file").as_deref(), Some("1234567"));
    file.set_len(4).unwrap();
    assert_eq!(storage.free_space(Path::new(DIR)).unwrap(), 3);
}

#[test]
fn what_a_failed_sync_dropped_stays_lost() {
    let storage = storage();
    let file = write(&storage, "file", "text");
    storage.sync_dir(Path::new(DIR)).unwrap();
    storage.fail_syncs(1);
    assert!(file.sync_data().is_err());
    assert!(file.sync_data().is_ok());
    storage.power_cut(&mut Random::new(1));
    assert_eq!(read(&storage, "file").as_deref(), Some(""));
}
