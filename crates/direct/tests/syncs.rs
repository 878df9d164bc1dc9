//! What is asked of the disk: appends at one time share syncs, and after one that has failed there is no append any more.
//!
//! In this program [`fdatasync`] and [`fsync`] are slow, are counted or fail by the name of the directory.
#![allow(unsafe_code, clippy::unwrap_used)]

#[path = "it/support/mod.rs"]
mod support;

use std::ffi::c_int;
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use mainstem_direct::proto::{self, manage_request::Action};
use mainstem_direct::{ConsumerConfig, DirectError, JournalOptions};
use support::{Reader, address, admin, config, open, serve, until};

/// Syncs in a directory of this name are counted, and take so long at least.
const COUNTED: &str = "counted";
const SYNC_TAKES: Duration = Duration::from_millis(20);
static SYNCS: AtomicU64 = AtomicU64::new(0);
/// Syncs in a directory of this name fail while it is said.
const FAILING: &str = "failing";
static FAILS: AtomicBool = AtomicBool::new(false);
const EIO: c_int = 5;

unsafe extern "C" {
    fn __errno_location() -> *mut c_int;
}

/// In place of the C library's.
#[unsafe(no_mangle)]
extern "C" fn fdatasync(fd: c_int) -> c_int {
    sync(fd)
}

/// In place of the C library's.
#[unsafe(no_mangle)]
extern "C" fn fsync(fd: c_int) -> c_int {
    sync(fd)
}

fn sync(fd: c_int) -> c_int {
    let path = std::fs::read_link(format!("/proc/self/fd/{fd}")).unwrap_or_default();
    let is_in = |name: &str| path.iter().any(|part| part == name);
    if is_in(FAILING) && FAILS.load(Ordering::Relaxed) {
        // SAFETY: the place is this thread's own.
        unsafe { *__errno_location() = EIO };
        return -1;
    }
    if is_in(COUNTED) && path.extension().is_some_and(|extension| extension == "log") {
        SYNCS.fetch_add(1, Ordering::Relaxed);
        std::thread::sleep(SYNC_TAKES);
    }
    // SAFETY: the caller has it open.
    let synced = rustix::fs::fsync(unsafe { BorrowedFd::borrow_raw(fd) });
    if synced.is_ok() { 0 } else { -1 }
}

#[tokio::test]
async fn appends_at_one_time_share_syncs() {
    const APPENDS: u64 = 1_000;
    let dir = tempfile::tempdir().unwrap();
    let journal = open(&dir.path().join(COUNTED));
    let before = SYNCS.load(Ordering::Relaxed);
    let appends = (0..APPENDS).map(|n| journal.append(format!("{n}"), "value"));
    let mut offsets = futures_util::future::try_join_all(appends).await.unwrap();
    offsets.sort_unstable();
    assert_eq!(offsets, (0..APPENDS as i64).collect::<Vec<_>>());
    let syncs = SYNCS.load(Ordering::Relaxed) - before;
    // Two, where all are made during the first one.
    assert!((1..=APPENDS / 10).contains(&syncs), "{syncs} syncs of {APPENDS} appends");
}

#[tokio::test(flavor = "multi_thread")]
async fn after_a_failed_sync_appends_fail_for_good_and_streams_go_on() {
    let dir = tempfile::tempdir().unwrap();
    let directory = dir.path().join(FAILING);
    let journal = open(&directory);
    let serving = serve(&journal).await;
    for n in 0..3 {
        journal.append("key", &format!("{n}")).await.unwrap();
    }
    let mut reader = Reader::new(config(serving.address(), FAILING));
    reader.read(3).await;
    FAILS.store(true, Ordering::Relaxed);
    let appends = (0..10).map(|_| journal.append("key", "lost"));
    let failed = futures_util::future::join_all(appends).await;
    FAILS.store(false, Ordering::Relaxed);
    for outcome in failed {
        let error = outcome.unwrap_err();
        assert!(matches!(error, DirectError::Io { .. }) && error.to_string().contains("syncing"), "{error}");
    }
    // The next sync would succeed, and say nothing of what the one before has lost.
    for _ in 0..3 {
        assert!(journal.append("key", "refused").await.is_err());
    }
    assert_eq!(journal.end(), 3);
    // Who reads is served on, and so is who comes, and what is done is kept.
    let mut other = Reader::new(ConsumerConfig::new(address(serving.address()), FAILING, "other"));
    assert_eq!(other.read(3).await, reader.events);
    let at = serving.address();
    let are_done = || async move {
        let stream = admin(at).await.describe(FAILING).await.unwrap().remove(0);
        stream.end == 3 && stream.consumers.len() == 2 && stream.consumers.iter().all(|one| one.offset == 3)
    };
    until("both are at the end", are_done).await;
    let pause = Action::Pause(proto::Pause {});
    assert!(admin(at).await.manage(FAILING, "analytics", pause).await.unwrap().unwrap().paused);
    assert_eq!((reader.others, other.others), (vec![], vec![]));
    // A start does not make it good: the machine's memory may have what the disk has not.
    serving.stop().await.unwrap();
    drop((reader.consumer, other.consumer, journal));
    let is_refused = || {
        let again = JournalOptions::new().open(&directory).unwrap_err().to_string();
        std::future::ready(again.contains("a sync has failed"))
    };
    until("it is not opened again", is_refused).await;
}
