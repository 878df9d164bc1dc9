use super::*;
use crate::boot::BOOT_RECORD;
use crate::checkpoint::LOG_START_CHECKPOINT;
use crate::flusher::{FlushOptions, FlushTarget, FlushTicket};
use crate::marker::CLEAN_SHUTDOWN;
use crate::meta_properties::{
    FIRST_FORMAT_VERSION, GROUPS_FORMAT_VERSION, LEVEL_2_FORMAT_VERSION, META_PROPERTIES,
};
use crate::storage::RealStorage;
use std::fs;
use std::sync::mpsc;

mod medium;
mod order;
mod power_cut;
mod traced;

const BOOT: &str = "boot-1";
const OTHER_BOOT: &str = "boot-2";

fn identity() -> NodeIdentity {
    NodeIdentity { cluster_id: None, node_id: 1 }
}

fn open_under(path: &Path, boot: &str) -> Result<Arc<LogDir>, OpenDirError> {
    LogDir::open(Arc::new(RealStorage), path, &identity(), boot)
}

fn open(path: &Path) -> Arc<LogDir> {
    open_under(path, BOOT).unwrap()
}

fn t(partition: i32) -> TopicPartition {
    TopicPartition::new("t", partition)
}

#[test]
fn a_directory_is_created_with_its_parents() {
    let temporary = tempfile::tempdir().unwrap();
    let path = temporary.path().join("a/b/data");
    let dir = open(&path);
    assert_eq!(dir.last_stop(), LastStop::New);
    assert_eq!(dir.partitions().unwrap(), []);
    let text = fs::read_to_string(path.join(META_PROPERTIES)).unwrap();
    let expected = format!(
        "#\nversion=1\ncluster.id={}\nnode.id=1\ndirectory.id={}\nmainstem.format=1\n",
        dir.cluster_id(),
        uuid::to_base64url(&dir.directory_id())
    );
    assert_eq!(text, expected);
}

#[test]
fn the_format_rises_and_never_falls() {
    let temporary = tempfile::tempdir().unwrap();
    let dir = open(temporary.path());
    let text = || fs::read_to_string(temporary.path().join(META_PROPERTIES)).unwrap();
    let first = text();
    let with_groups = first.replace("mainstem.format=1", "mainstem.format=2");
    let release = format!("mainstem.format=3\nmainstem.release={}", env!("CARGO_PKG_VERSION"));
    let risen = first.replace("mainstem.format=1", &release);
    for (version, expected) in [(GROUPS_FORMAT_VERSION, with_groups), (LEVEL_2_FORMAT_VERSION, risen.clone())]
    {
        for _ in 0..2 {
            dir.raise_format(version).unwrap();
            assert_eq!(text(), expected);
        }
    }
    dir.raise_format(FIRST_FORMAT_VERSION).unwrap();
    drop(dir);
    drop(open(temporary.path()));
    assert_eq!(text(), risen);
}

#[test]
fn a_directory_of_kafkas_gets_a_format_with_its_first_group() {
    let temporary = tempfile::tempdir().unwrap();
    let kafkas = "version=1\ncluster.id=c\nnode.id=1\ndirectory.id=AAAAAAAAAAAAAAAAAAAAZQ\n";
    fs::write(temporary.path().join(META_PROPERTIES), kafkas).unwrap();
    let dir = open(temporary.path());
    dir.raise_format(GROUPS_FORMAT_VERSION).unwrap();
    let text = fs::read_to_string(temporary.path().join(META_PROPERTIES)).unwrap();
    assert_eq!(text, format!("#\n{kafkas}mainstem.format=2\n"));
}

#[test]
fn the_identity_is_kept() {
    let temporary = tempfile::tempdir().unwrap();
    let first = open(temporary.path());
    let ids = (first.cluster_id().to_owned(), first.directory_id());
    drop(first);
    let second = open(temporary.path());
    assert_eq!((second.cluster_id().to_owned(), second.directory_id()), ids);
}

#[test]
fn kafkas_directory_keeps_its_file_and_gets_an_id() {
    let temporary = tempfile::tempdir().unwrap();
    let file = temporary.path().join(META_PROPERTIES);
    let kafka = "#\n#Sat Nov 21 21:00:00 UTC 2026\ncluster.id=c\nnode.id=1\nversion=1\n";
    fs::write(&file, format!("{kafka}directory.id=AAAAAAAAAAAAAAAAAAAAZQ\n")).unwrap();
    let dir = open(temporary.path());
    assert_eq!((dir.cluster_id(), dir.directory_id()), ("c", 101_u128.to_be_bytes()));
    drop(dir);
    assert!(fs::read_to_string(&file).unwrap().starts_with(kafka), "it was complete");

    fs::write(&file, kafka).unwrap();
    let id = open(temporary.path()).directory_id();
    assert_eq!(open(temporary.path()).directory_id(), id);
}

#[test]
fn a_second_process_is_reported_who_has_the_directory() {
    let temporary = tempfile::tempdir().unwrap();
    let path = temporary.path();
    let dir = open(path);
    let error = open_under(path, BOOT).unwrap_err();
    assert!(matches!(error, OpenDirError::Locked { .. }));
    let message = format!(
        "log directory {0} is in use by another process, which holds the lock on {0}/.lock; stop that process, or \
         choose another directory (log.dirs)",
        path.display()
    );
    assert_eq!(error.to_string(), message);
    drop(dir);
    open(path);
}

#[test]
fn what_is_not_ours_is_refused_and_left_as_it_was() {
    let ours = NodeIdentity { cluster_id: Some("c".to_owned()), node_id: 1 };
    let check = |text: &str, expected: &str| {
        let temporary = tempfile::tempdir().unwrap();
        let path = temporary.path();
        fs::write(path.join(META_PROPERTIES), text).unwrap();
        fs::write(path.join(CLEAN_SHUTDOWN), "{\"version\":0,\"brokerEpoch\":1}").unwrap();
        let error = LogDir::open(Arc::new(RealStorage), path, &ours, BOOT).unwrap_err().to_string();
        let error = error.strip_prefix(&format!("log directory {} ", path.display())).unwrap();
        assert_eq!(error, expected);
        assert_eq!(fs::read_to_string(path.join(META_PROPERTIES)).unwrap(), text);
        assert!(path.join(CLEAN_SHUTDOWN).exists());
    };
    check(
        "version=2\n",
        "cannot be used, because of its meta.properties: version=2 is newer than 1, the newest that this release \
         knows; start the release that wrote it, or choose another directory (log.dirs)",
    );
    check(
        "version=1\ncluster.id=c\nnode.id=1\nmainstem.format=4\nmainstem.release=0.3.0\n",
        "cannot be used, because of its meta.properties: mainstem.format=4 is newer than 3, the newest that this \
         release knows; Mainstem 0.3.0 has written it; start the release that wrote it, or choose another directory (log.dirs)",
    );
    check(
        "version=1\ncluster.id=d\nnode.id=1\n",
        "belongs to cluster.id=d, and this node has cluster.id=c; correct the configuration, or choose another \
         directory (log.dirs)",
    );
    check(
        "version=1\ncluster.id=c\nnode.id=2\n",
        "belongs to node.id=2, and this node has node.id=1; correct the configuration, or choose another directory \
         (log.dirs)",
    );
}

/// An event in the life of a directory between two starts.
#[derive(Clone, Copy)]
enum Life {
    /// Opened and killed before all logs were recovered.
    KilledEarly(&'static str),
    /// Opened, recovered, killed.
    Killed(&'static str),
    /// Opened, recovered, one sync failed, killed.
    SyncFailed(&'static str),
    /// Opened, recovered, one sync failed, stopped in order.
    SyncFailedAndStopped(&'static str),
    /// Opened, recovered, taken offline, stopped in order.
    OfflineAndStopped(&'static str),
    /// Opened, recovered, stopped in order.
    Stopped(&'static str),
}

fn live(path: &Path, life: Life) {
    use Life::*;
    let (Stopped(boot)
    | KilledEarly(boot)
    | Killed(boot)
    | SyncFailed(boot)
    | SyncFailedAndStopped(boot)
    | OfflineAndStopped(boot)) = life;
    let dir = open_under(path, boot).unwrap();
    assert!(!path.join(CLEAN_SHUTDOWN).exists(), "gone while the directory is in use");
    if matches!(life, KilledEarly(_)) {
        return;
    }
    dir.recovered().unwrap();
    match life {
        SyncFailed(_) | SyncFailedAndStopped(_) => dir.health.note_failed_sync(&io::ErrorKind::Other.into()),
        OfflineAndStopped(_) => dir.fail(&io::ErrorKind::Other.into()),
        _ => {}
    }
    match life {
        Stopped(_) => assert!(dir.stop_clean().unwrap()),
        SyncFailedAndStopped(_) | OfflineAndStopped(_) => assert!(!dir.stop_clean().unwrap()),
        _ => {}
    }
}

#[test]
fn the_last_stop_is_known() {
    use Life::*;
    let check = |lives: &[Life], boot: &str, expected: LastStop| {
        let temporary = tempfile::tempdir().unwrap();
        lives.iter().for_each(|life| live(temporary.path(), *life));
        assert_eq!(open_under(temporary.path(), boot).unwrap().last_stop(), expected);
    };
    check(&[], BOOT, LastStop::New);
    check(&[Stopped(BOOT)], BOOT, LastStop::Clean);
    check(&[Stopped(BOOT)], OTHER_BOOT, LastStop::Clean);
    check(&[Killed(BOOT)], BOOT, LastStop::UncleanSameBoot);
    check(&[Killed(BOOT)], OTHER_BOOT, LastStop::UncleanOtherBoot);
    check(&[KilledEarly(BOOT)], BOOT, LastStop::UncleanSameBoot);
    // The marker counts once.
    check(&[Stopped(BOOT), Killed(BOOT)], BOOT, LastStop::UncleanSameBoot);
    check(&[Stopped(BOOT), Killed(BOOT)], OTHER_BOOT, LastStop::UncleanOtherBoot);
    check(&[Stopped(BOOT), KilledEarly(OTHER_BOOT)], OTHER_BOOT, LastStop::UncleanSameBoot);
    // A recovery that was not finished has to be done again.
    check(&[Killed(BOOT), KilledEarly(OTHER_BOOT)], OTHER_BOOT, LastStop::UncleanOtherBoot);
    check(&[Killed(BOOT), Killed(OTHER_BOOT)], OTHER_BOOT, LastStop::UncleanSameBoot);
    // After a failed sync the page cache proves nothing.
    check(&[SyncFailed(BOOT)], BOOT, LastStop::UncleanOtherBoot);
    check(&[SyncFailedAndStopped(BOOT)], BOOT, LastStop::UncleanOtherBoot);
    check(&[OfflineAndStopped(BOOT)], BOOT, LastStop::UncleanOtherBoot);
    check(&[SyncFailed(BOOT), Killed(BOOT)], BOOT, LastStop::UncleanSameBoot);
}

#[test]
fn a_torn_marker_or_boot_record_is_none() {
    let temporary = tempfile::tempdir().unwrap();
    live(temporary.path(), Life::Stopped(BOOT));
    fs::write(temporary.path().join(CLEAN_SHUTDOWN), "").unwrap();
    assert_eq!(open(temporary.path()).last_stop(), LastStop::UncleanSameBoot);
    assert!(!temporary.path().join(CLEAN_SHUTDOWN).exists());
    fs::write(temporary.path().join(BOOT_RECORD), "0\nboot").unwrap();
    assert_eq!(open(temporary.path()).last_stop(), LastStop::UncleanOtherBoot);
}

#[test]
fn a_directory_that_lost_its_identity_is_checked() {
    let temporary = tempfile::tempdir().unwrap();
    fs::create_dir(temporary.path().join("t-0")).unwrap();
    assert_eq!(open(temporary.path()).last_stop(), LastStop::UncleanOtherBoot);
}

#[test]
fn only_the_first_failure_is_kept() {
    let temporary = tempfile::tempdir().unwrap();
    let dir = open(temporary.path());
    assert_eq!(dir.failure(), None);
    dir.fail(&io::Error::other("the disk is gone"));
    dir.fail(&io::Error::other("another"));
    let message = format!("log directory {} is offline: the disk is gone", temporary.path().display());
    assert_eq!(dir.failure().unwrap().to_string(), message);
}

#[test]
fn partitions_are_found_by_their_names() {
    let temporary = tempfile::tempdir().unwrap();
    let dir = open(temporary.path());
    for name in
        ["t-10", "t-2", "a-b-0", "t-01", "lost+found", "t-0.0123-delete", "t-0.0123-stray", "t-0.0123-future"]
    {
        fs::create_dir(temporary.path().join(name)).unwrap();
    }
    fs::write(temporary.path().join("t-3"), "a file").unwrap();
    let found: Vec<_> = dir.partitions().unwrap().iter().map(|found| found.partition.to_string()).collect();
    assert_eq!(found, ["a-b-0", "t-2", "t-10"]);
}

#[test]
fn a_new_partition_has_its_topic_id_and_knows_what_to_sync() {
    let temporary = tempfile::tempdir().unwrap();
    let dir = open(temporary.path());
    let (path, work) = dir.create_partition(&t(0), &[7; 16]).unwrap();
    assert_eq!(path, temporary.path().join("t-0"));
    let topic_id = crate::partition_metadata::read_topic_id(&RealStorage, &path).unwrap();
    assert_eq!(topic_id, Some([7; 16]));
    assert_eq!(work.files.len(), 1);
    assert_eq!(work.directories, [Arc::from(path.as_path()), Arc::from(temporary.path())]);
}

#[test]
fn a_deleted_partition_is_forgotten_and_removed_later() {
    let temporary = tempfile::tempdir().unwrap();
    let dir = open(temporary.path());
    for partition in [t(0), t(1)] {
        dir.create_partition(&partition, &[7; 16]).unwrap();
        dir.checkpoints().log_start.set(&partition, 5);
    }
    dir.checkpoints().log_start.write().unwrap();
    dir.set_aside(&[t(0), t(9)], SetAside::Delete, 1_000).unwrap();
    let text = fs::read_to_string(temporary.path().join(LOG_START_CHECKPOINT)).unwrap();
    assert_eq!(text, "0\n1\nt 1 5\n");
    assert_eq!(dir.checkpoints().log_start.get(&t(0)), None);
    assert_eq!(dir.partitions().unwrap().len(), 1);

    assert_eq!(dir.remove_doomed(999), 0);
    assert_eq!(count_deleted(temporary.path()), 1);
    assert_eq!(dir.remove_doomed(1_000), 1);
    assert_eq!(dir.remove_doomed(1_001), 0);
    dir.flusher().stop(FlusherStop::Drain);
    assert_eq!(count_deleted(temporary.path()), 0);
}

fn count_deleted(path: &Path) -> usize {
    RealStorage.list(path).unwrap().iter().filter(|entry| entry.name.ends_with("-delete")).count()
}

#[test]
fn a_deletion_resumes_after_a_restart() {
    let temporary = tempfile::tempdir().unwrap();
    let dir = open(temporary.path());
    for partition in [t(0), t(1)] {
        dir.create_partition(&partition, &[7; 16]).unwrap();
    }
    dir.set_aside(&[t(0)], SetAside::Delete, u64::MAX).unwrap();
    dir.set_aside(&[t(1)], SetAside::Stray, 0).unwrap();
    drop(dir);
    let options = LogDirOptions { doomed_due_mono_ms: 50, ..LogDirOptions::default() };
    let dir = options.open(Arc::new(RealStorage), temporary.path(), &identity(), BOOT).unwrap();
    assert_eq!((dir.remove_doomed(49), dir.remove_doomed(50)), (0, 1));
    drop(dir);
    let names: Vec<_> =
        RealStorage.list(temporary.path()).unwrap().into_iter().filter(|entry| entry.is_dir).collect();
    assert_eq!(names.len(), 1, "the stray one stays: {names:?}");
}

#[test]
fn strays_are_counted_until_an_operator_has_deleted_them() {
    let temporary = tempfile::tempdir().unwrap();
    let dir = open(temporary.path());
    for partition in [t(0), t(1)] {
        let (path, _) = dir.create_partition(&partition, &[7; 16]).unwrap();
        fs::write(path.join("00000000000000000000.log"), [0; 1_000]).unwrap();
    }
    assert_eq!(dir.strays(), (0, 0));
    dir.set_aside(&[t(0)], SetAside::Stray, 0).unwrap();
    dir.set_aside(&[t(1), t(9)], SetAside::Stray, 0).unwrap();
    let (directories, bytes) = dir.strays();
    assert!(directories == 2 && (2_000..4_000).contains(&bytes), "{directories} with {bytes}");
    drop(dir);
    let dir = open(temporary.path());
    assert_eq!(dir.strays(), (directories, bytes));
    let strays = crate::strays::find(&RealStorage, temporary.path()).unwrap();
    crate::strays::remove(&RealStorage, &strays[0]).unwrap();
    assert_eq!(dir.strays(), (directories, bytes));
    dir.recount_strays();
    assert_eq!(dir.strays(), (1, bytes / 2));
}

#[test]
fn offsets_of_a_partition_that_is_gone_are_not_inherited() {
    let temporary = tempfile::tempdir().unwrap();
    let dir = open(temporary.path());
    dir.checkpoints().log_start.set(&t(0), 500);
    dir.checkpoints().log_start.write().unwrap();
    drop(dir);
    let dir = open(temporary.path());
    assert_eq!(dir.checkpoints().log_start.get(&t(0)), None);
    dir.create_partition(&t(0), &[7; 16]).unwrap();
    drop(dir);
    assert_eq!(open(temporary.path()).checkpoints().log_start.get(&t(0)), None);
}

#[test]
fn a_commit_is_reported_when_it_is_durable() {
    let temporary = tempfile::tempdir().unwrap();
    let dir = open(temporary.path());
    dir.create_partition(&t(0), &[7; 16]).unwrap();
    for stopped in [false, true] {
        let (sender, receiver) = mpsc::channel();
        dir.checkpoints().log_start.set(&t(0), 1 + i64::from(stopped));
        let (path, on_durable) = (temporary.path().join(LOG_START_CHECKPOINT), sender);
        dir.commit(
            &dir.checkpoints().log_start,
            Box::new(move |result| {
                on_durable.send(result.map(|()| fs::read_to_string(path).unwrap())).unwrap()
            }),
        );
        let text = receiver.recv().unwrap().unwrap();
        assert_eq!(text, format!("0\n1\nt 0 {}\n", 1 + i64::from(stopped)));
        dir.stop_clean().unwrap();
    }
}

/// A target with one piece of work, which it hands out after `begun` has run. It sends the result to `ended`.
struct Target {
    ticket: FlushTicket,
    directory: Arc<Path>,
    begun: Box<dyn Fn() + Send + Sync>,
    ended: mpsc::Sender<io::Result<()>>,
}

impl FlushTarget for Target {
    fn ticket(&self) -> &FlushTicket {
        &self.ticket
    }

    fn begin_flush(&self) -> FlushWork {
        (self.begun)();
        FlushWork { directories: vec![self.directory.clone()], ..FlushWork::default() }
    }

    fn end_flush(&self, _upto: i64, result: io::Result<()>) {
        self.ended.send(result).unwrap();
    }
}

/// Returns the flusher's result for a directory. `meanwhile` runs after the directory was handed out to be synced.
fn flush_of(
    dir: &Arc<LogDir>,
    directory: &Path,
    meanwhile: impl Fn() + Send + Sync + 'static,
) -> io::Result<()> {
    let (ended, outcome) = mpsc::channel();
    let (ticket, begun) = (FlushTicket::default(), Box::new(meanwhile));
    let target: Arc<dyn FlushTarget> = Arc::new(Target { ticket, directory: directory.into(), begun, ended });
    assert!(dir.flusher().request(&target));
    outcome.recv_timeout(Duration::from_secs(60)).expect("the target is notified")
}

#[test]
fn a_partition_that_is_deleted_while_it_is_synced_does_not_take_its_directory_offline() {
    let temporary = tempfile::tempdir().unwrap();
    let dir = open(temporary.path());
    let (path, _) = dir.create_partition(&t(0), &[7; 16]).unwrap();
    let deleting = dir.clone();
    let delete = move || deleting.set_aside(&[t(0)], SetAside::Delete, u64::MAX).unwrap();
    assert_eq!(flush_of(&dir, &path, delete).unwrap_err().kind(), io::ErrorKind::NotFound);
    assert_eq!((dir.failure(), dir.has_failed_sync()), (None, false));
    assert!(dir.stop_clean().unwrap());
}

#[test]
fn a_directory_that_is_gone_is_offline_with_the_first_sync() {
    let temporary = tempfile::tempdir().unwrap();
    let root = temporary.path().join("data");
    let dir = open(&root);
    let (path, _) = dir.create_partition(&t(0), &[7; 16]).unwrap();
    let unmount = move || fs::rename(&root, root.with_extension("elsewhere")).unwrap();
    assert_eq!(flush_of(&dir, &path, unmount).unwrap_err().kind(), io::ErrorKind::NotFound);
    assert!(dir.failure().is_some() && dir.has_failed_sync());
}

#[test]
fn the_cost_of_a_sync_is_measured_and_nothing_left_behind() {
    let temporary = tempfile::tempdir().unwrap();
    // A thread that has to wait for its CPU has no time left.
    let none = measure_appends(&RealStorage, &temporary.path().join("probe"), Duration::ZERO);
    assert!(none.unwrap() > Duration::ZERO);
    fs::remove_file(temporary.path().join("probe")).unwrap();
    assert!(measure_fdatasync(&RealStorage, temporary.path()).unwrap() > Duration::ZERO);
    assert_eq!(RealStorage.list(temporary.path()).unwrap(), []);
    let missing = temporary.path().join("missing");
    assert_eq!(measure_fdatasync(&RealStorage, &missing).unwrap_err().kind(), io::ErrorKind::NotFound);
}

#[test]
fn options_are_those_that_were_measured() {
    let FlushOptions { helpers, sync_fs_files_min, sync_fs_dirty_max, .. } = FlushOptions::default();
    assert_eq!((helpers, sync_fs_files_min, sync_fs_dirty_max), (3, 4, 64 << 10), "as docs/format.md says");
}
