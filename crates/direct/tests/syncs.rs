//! The syncs of a journal: concurrent appends share them; after one that has failed no append succeeds; one that could not be made is made
//! later.
//!
//! This program's file calls are those of `testkit/interposed/calls.rs`.
#![allow(clippy::unwrap_used, reason = "a test that fails says so by a panic")]

#[path = "../../testkit/interposed/calls.rs"]
mod calls;
#[path = "it/support/mod.rs"]
mod support;

use std::path::PathBuf;
use std::time::Duration;

use calls::{Call, Class, Fault, Place, Watched};
use mainstem_direct::proto::{self, manage_request::Action};
use mainstem_direct::{ConsumerConfig, DirectError, JournalOptions};
use support::{Reader, address, admin, config, open, serve, until};

/// The name of a stream.
const STREAM: &str = "cart";
const SYNCS: Place = Place { call: Call::Sync, class: Class::Segment };

/// A directory whose calls are counted and fail, and the place of a journal in it.
fn watched() -> (tempfile::TempDir, Watched, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().canonicalize().unwrap();
    (dir, Watched::new(&root), root.join(STREAM))
}

/// Makes all calls of a place fail.
fn fail(watched: &Watched, place: Place, errno: i32) {
    watched.begin(Some(Fault { place, nth: 1, lasts: true, errno }));
}

#[tokio::test]
async fn appends_at_one_time_share_syncs() {
    const APPENDS: u64 = 1_000;
    let (_dir, watched, directory) = watched();
    let journal = open(&directory);
    watched.slow_syncs(Duration::from_millis(20));
    watched.begin(None);
    let appends = (0..APPENDS).map(|n| journal.append(format!("{n}"), "value"));
    let mut offsets = futures_util::future::try_join_all(appends).await.unwrap();
    offsets.sort_unstable();
    assert_eq!(offsets, (0..APPENDS as i64).collect::<Vec<_>>());
    let syncs = watched.counts()[&SYNCS];
    // Two syncs, if all appends come during the first one.
    assert!((1..=APPENDS / 10).contains(&syncs), "{syncs} syncs of {APPENDS} appends");
}

#[tokio::test(flavor = "multi_thread")]
async fn after_a_failed_sync_appends_fail_for_good_and_streams_go_on() {
    let (_dir, watched, directory) = watched();
    let journal = open(&directory);
    let serving = serve(&journal).await;
    for n in 0..3 {
        journal.append("key", &format!("{n}")).await.unwrap();
    }
    let mut reader = Reader::new(config(serving.address(), STREAM));
    reader.read(3).await;
    fail(&watched, SYNCS, libc::EIO);
    let appends = (0..10).map(|_| journal.append("key", "lost"));
    let failed = futures_util::future::join_all(appends).await;
    assert_eq!(watched.end().refused, 1, "none is tried again");
    for outcome in failed {
        let error = outcome.unwrap_err();
        assert!(matches!(error, DirectError::Io { .. }) && error.to_string().contains("syncing"), "{error}");
    }
    // The next sync would succeed, and report nothing of what the one before has lost.
    for _ in 0..3 {
        assert!(journal.append("key", "refused").await.is_err());
    }
    assert_eq!(journal.end(), 3);
    // Readers are still served, new ones too, and positions are stored.
    let mut other = Reader::new(ConsumerConfig::new(address(serving.address()), STREAM, "other"));
    assert_eq!(other.read(3).await, reader.events);
    let at = serving.address();
    let are_done = || async move {
        let stream = admin(at).await.describe(STREAM).await.unwrap().remove(0);
        stream.end == 3 && stream.consumers.len() == 2 && stream.consumers.iter().all(|one| one.offset == 3)
    };
    until("both are at the end", are_done).await;
    let pause = Action::Pause(proto::Pause {});
    assert!(admin(at).await.manage(STREAM, "analytics", pause).await.unwrap().unwrap().paused);
    assert_eq!((reader.others, other.others), (vec![], vec![]));
    // A restart does not repair it: the page cache may have what the disk has not.
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
    let (_dir, watched, directory) = watched();
    let journal = open(&directory);
    journal.append("key", "0").await.unwrap();
    // As in a process without a free descriptor.
    fail(&watched, Place { call: Call::Open, class: Class::Segment }, libc::EMFILE);
    let waiting = (1..3).map(|_| {
        let journal = journal.clone();
        tokio::spawn(async move { journal.append("key", "waits").await })
    });
    let waiting: Vec<_> = waiting.collect();
    until("syncs were tried", || async { watched.seen().refused >= 3 }).await;
    assert!(waiting.iter().all(|append| !append.is_finished()));
    assert_eq!(journal.end(), 1);
    watched.end();
    let mut offsets = Vec::new();
    for append in waiting {
        offsets.push(append.await.unwrap().unwrap());
    }
    offsets.sort_unstable();
    assert_eq!((offsets, journal.end()), (vec![1, 2], 3));
    assert_eq!(journal.append("key", "continues").await.unwrap(), 3);
    // Nothing is kept of it.
    drop(journal);
    assert_eq!(open(&directory).end(), 4);
}
