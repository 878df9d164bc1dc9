use super::*;
use crate::group::ReplicaId;
use mainstem_log::sim::{Random, SimStorage};
use mainstem_log::storage::RealStorage;

const DIR: &str = "/data/log";

fn start(offset: i64) -> Start {
    Start { index: offset as u64, term: 3, offset }
}

fn offer(offset: i64, bytes: &[u8]) -> SnapshotOffer {
    let SnapshotContent { start, len, crc } = SnapshotContent::of(start(offset), bytes);
    SnapshotOffer { start, configuration: Configuration::of_voters(&[ReplicaId::new(1, 1)]), len, crc }
}

fn storage() -> Arc<SimStorage> {
    let storage = SimStorage::new();
    storage.create_dir(Path::new(DIR)).expect("a directory");
    ["/", "/data"].iter().for_each(|dir| storage.sync_dir(Path::new(dir)).expect("a sync"));
    Arc::new(storage)
}

#[test]
fn the_log_is_kept_back_to_the_last_snapshot_but_one_and_for_slow_voters_within_a_bound() {
    assert_eq!(log_kept_from(&[], None, 10, 100), None);
    assert_eq!(log_kept_from(&[50], Some(10), 10, 100), None);
    assert_eq!(log_kept_from(&[50, 90], None, 10, 100), Some(50));
    assert_eq!(log_kept_from(&[50, 90], Some(70), 10, 100), Some(50));
    assert_eq!(log_kept_from(&[50, 90], Some(20), 100, 100), Some(20));
    assert_eq!(log_kept_from(&[50, 90], Some(20), 101, 100), Some(50));
}

#[test]
fn whatever_change_is_the_last_before_a_power_cut_a_received_snapshot_is_whole_or_not_there() {
    let bytes: Vec<u8> = (0..600_000_u32).map(|at| (at % 251) as u8).collect();
    let (mut absent, mut present) = (0, 0);
    for changes in 0..16 {
        let storage = storage();
        storage.stop_after(Some(changes));
        let receive = || -> Result<(), ReceiveError> {
            let mut snapshots = Snapshots::open(storage.clone(), Path::new(DIR), 900)?;
            let mut receiving = snapshots.receive(offer(500, &bytes))?;
            while let Some((position, len)) = receiving.next_range() {
                let from = position as usize;
                receiving.take(position, &bytes[from..from + len as usize])?;
            }
            snapshots.finish(&receiving.check()?)?;
            Ok(())
        };
        let received = receive().is_ok();
        storage.power_cut(&mut Random::new(changes));
        storage.stop_after(None);
        let again = Snapshots::open(storage.clone(), Path::new(DIR), 900).expect("it opens");
        match again.files() {
            [] => absent += 1,
            [file] => {
                present += 1;
                let found = mainstem_log::storage::read_small_file(&*storage, &file.path, 1 << 20);
                assert!(found.expect("a file") == bytes, "stopped after {changes}");
            }
            more => panic!("{more:?}"),
        }
        assert!(!received || again.ends() == [500], "stopped after {changes}");
    }
    assert!(absent > 0 && present > 0, "{absent} {present}");
}

#[test]
fn what_is_not_what_was_offered_is_refused() {
    let storage = storage();
    let snapshots = Snapshots::open(storage, Path::new(DIR), 900).expect("it opens");
    let mut receiving = snapshots.receive(offer(500, b"abcd")).expect("a file");
    assert!(matches!(receiving.take(1, b"x"), Err(ReceiveError::Range { .. })));
    assert!(matches!(receiving.take(0, b"abcde"), Err(ReceiveError::Range { .. })));
    receiving.take(0, b"abcx").expect("it is as long as it should be");
    assert!(matches!(receiving.check(), Err(ReceiveError::Checksum { .. })));
    let huge = SnapshotOffer { len: SNAPSHOT_BYTES_MAX + 1, ..offer(500, b"abcd") };
    assert!(matches!(snapshots.receive(huge), Err(ReceiveError::Length(_))));
}

#[test]
fn the_newest_is_found_by_its_name() {
    let dir = tempfile::tempdir().expect("a directory");
    let storage = RealStorage;
    let [old, new] = [(9, 1), (1000, 1)].map(|(end, epoch)| SnapshotFile::new(dir.path(), end, epoch));
    for file in [&old, &new] {
        file.write(&storage, b"x").expect("it can be written");
    }
    assert!(new.path.ends_with("00000000000000001000-0000000001.checkpoint"));
    for other in
        ["x.checkpoint", "00000000000000002000-0000000001.checkpoint.tmp", "00000000000000000000.log"]
    {
        std::fs::write(dir.path().join(other), b"").expect("it can be written");
    }
    let listed = SnapshotFile::list(&storage, dir.path()).expect("it can be listed");
    assert_eq!(listed, [old, new.clone()]);
    new.remove_others(&storage).expect("they can be removed");
    assert_eq!(SnapshotFile::list(&storage, dir.path()).expect("it can be listed"), [new]);
    assert_eq!(std::fs::read_dir(dir.path()).expect("it can be listed").count(), 3, "others stay");
}
