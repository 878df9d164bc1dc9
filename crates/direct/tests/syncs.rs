//! The syncs that are asked of the disk: appends at one time share syncs, after one that has failed there is no append any more, and one that
//! could not be made is made later.
//!
//! In this program [`fdatasync`] and [`fsync`] are slow, are counted or fail by the name of the directory, and so does [`open64`].
#![allow(unsafe_code, clippy::unwrap_used)]

#[path = "it/support/mod.rs"]
mod support;

use std::ffi::{CStr, OsStr, c_char, c_int, c_uint};
use std::os::fd::{BorrowedFd, IntoRawFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use mainstem_direct::proto::{self, manage_request::Action};
use mainstem_direct::{ConsumerConfig, DirectError, JournalOptions};
use rustix::fs::{Mode, OFlags};
use support::{Reader, address, admin, config, open, serve, until};

/// Syncs in a directory of this name are counted, and take so long at least.
const COUNTED: &str = "counted";
const SYNC_TAKES: Duration = Duration::from_millis(20);
static SYNCS: AtomicU64 = AtomicU64::new(0);
/// Syncs in a directory of this name fail while it is said.
const FAILING: &str = "failing";
static FAILS: AtomicBool = AtomicBool::new(false);
/// No log in a directory of this name can be opened for reading while it is said, as where a process has no descriptor left.
const SHORT: &str = "short";
static IS_SHORT: AtomicBool = AtomicBool::new(false);
/// The number of logs that could not be opened.
static REFUSED: AtomicU64 = AtomicU64::new(0);
const EIO: c_int = 5;
const EMFILE: c_int = 24;

unsafe extern "C" {
    fn __errno_location() -> *mut c_int;
}

/// In place of the C library's.
#[unsafe(no_mangle)]
extern "C" fn open64(path: *const c_char, flags: c_int, mode: c_uint) -> c_int {
    // SAFETY: the caller gives a string that ends with NUL.
    let path = unsafe { CStr::from_ptr(path) };
    let flags = OFlags::from_bits_retain(flags as c_uint);
    let is_read = flags & OFlags::RWMODE == OFlags::RDONLY;
    let is_log = Path::new(OsStr::from_bytes(path.to_bytes()));
    let is_log =
        is_log.iter().any(|part| part == SHORT) && is_log.extension().is_some_and(|one| one == "log");
    let opened = match is_read && is_log && IS_SHORT.load(Ordering::Relaxed) {
        true => {
            REFUSED.fetch_add(1, Ordering::Relaxed);
            Err(EMFILE)
        }
        false => {
            rustix::fs::open(path, flags, Mode::from_bits_retain(mode)).map_err(|error| error.raw_os_error())
        }
    };
    opened.map(IntoRawFd::into_raw_fd).unwrap_or_else(|error| {
        // SAFETY: the place is this thread's own.
        unsafe { *__errno_location() = error };
        -1
    })
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

#[tokio::test(flavor = "multi_thread")]
async fn an_append_waits_for_a_sync_that_cannot_be_made_for_want_of_descriptors() {
    let dir = tempfile::tempdir().unwrap();
    let directory = dir.path().join(SHORT);
    let journal = open(&directory);
    journal.append("key", "0").await.unwrap();
    IS_SHORT.store(true, Ordering::Relaxed);
    let waiting = (1..3).map(|_| {
        let journal = journal.clone();
        tokio::spawn(async move { journal.append("key", "waits").await })
    });
    let waiting: Vec<_> = waiting.collect();
    until("syncs were tried", || async { REFUSED.load(Ordering::Relaxed) >= 3 }).await;
    assert!(waiting.iter().all(|append| !append.is_finished()));
    assert_eq!(journal.end(), 1);
    IS_SHORT.store(false, Ordering::Relaxed);
    let mut offsets = Vec::new();
    for append in waiting {
        offsets.push(append.await.unwrap().unwrap());
    }
    offsets.sort_unstable();
    assert_eq!((offsets, journal.end()), (vec![1, 2], 3));
    assert_eq!(journal.append("key", "goes on").await.unwrap(), 3);
    // Nothing is kept of it.
    drop(journal);
    assert_eq!(open(&directory).end(), 4);
}
