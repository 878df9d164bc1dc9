//! Threads of the event loops that may wait, and the shares in them.
//!
//! Each event loop has a few. Work that waits for a log that all of its kind wait for may take a part of them only
//! ([`Class`]). So may work that reads from one log directory ([`Classes::read`]): otherwise a directory that hangs
//! would keep clients from reading and writing in the others.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use mainstem_log::placement::DirectoryId;
use mainstem_net::event_loop::BACKGROUND_THREADS_MAX;
use mainstem_requests::context::RequestContext;
use mainstem_runtime::clock::machine_now;
use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// The most changes in progress on all event loops together. The metadata publisher carries them out one after the
/// other in any case.
pub(crate) const CHANGE_THREADS_MAX: usize = 3;

/// The most requests for producer ids in progress: these are allocated under one lock.
const PRODUCER_ID_THREADS_MAX: usize = 1;

/// The most questions in progress on all event loops together. A coordinator has one lock.
const QUESTION_THREADS_MAX: usize = 2;

/// The most long descriptions in progress on all event loops together: each takes a processor for long.
const DESCRIPTION_THREADS_MAX: usize = 1;

/// The most threads that read from one log directory, on all event loops together: as many as keep a disk busy.
pub(crate) const DIRECTORY_THREADS_MAX: usize = 4;

const _: () = assert!(
    CHANGE_THREADS_MAX
        + PRODUCER_ID_THREADS_MAX
        + QUESTION_THREADS_MAX
        + DESCRIPTION_THREADS_MAX
        + DIRECTORY_THREADS_MAX
        < BACKGROUND_THREADS_MAX,
    "each event loop has threads for data, whatever the others wait for, and however long one directory takes"
);

/// A class of background work, by what it may have to wait for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Class {
    /// The logs of its partitions, or a processor.
    Data,
    /// An administrator's change: of the metadata, which this node has to carry out, or of groups. Work of one node
    /// has no time limit, as a directory in which a log is opened may take its time.
    Changes,
    /// Producer ids: the metadata log or its leader.
    ProducerIds,
    /// The lock of a coordinator and the majority that confirms its leader, or the metadata leader.
    Questions,
    /// A processor: a long description of many configurations.
    Descriptions,
}

/// The shares of the classes in the threads.
pub(crate) struct Classes {
    changes: Arc<Semaphore>,
    producer_ids: Arc<Semaphore>,
    questions: Arc<Semaphore>,
    descriptions: Arc<Semaphore>,
    /// Shares by log directory. Work without a directory, as for attached queues, has a share, too.
    directories: Mutex<BTreeMap<Option<DirectoryId>, Arc<Semaphore>>>,
}

impl Classes {
    pub(crate) fn new() -> Classes {
        let share = |threads| Arc::new(Semaphore::new(threads));
        Classes {
            changes: share(CHANGE_THREADS_MAX),
            producer_ids: share(PRODUCER_ID_THREADS_MAX),
            questions: share(QUESTION_THREADS_MAX),
            descriptions: share(DESCRIPTION_THREADS_MAX),
            directories: Mutex::default(),
        }
    }

    /// Waits for a turn, in the order of arrival; a wait ends with its client. A turn ends when it is dropped. As
    /// that of [`OneAtATime`] it belongs to the thread that works.
    pub(crate) async fn turn(&self, class: Class) -> Option<OwnedSemaphorePermit> {
        let share = match class {
            Class::Data => return None,
            Class::Changes => &self.changes,
            Class::ProducerIds => &self.producer_ids,
            Class::Questions => &self.questions,
            Class::Descriptions => &self.descriptions,
        };
        Some(share.clone().acquire_owned().await.expect("it is never closed"))
    }

    /// Reads from one log directory in the background, when it is its turn. Reads from a directory that hangs wait,
    /// and take no threads but those of its share. So work that reads from several directories has one piece for
    /// each: it never holds a turn of one while it waits for another.
    pub(crate) async fn read<T: Send + 'static>(
        &self,
        context: &RequestContext,
        directory: Option<DirectoryId>,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> (T, Duration) {
        let turn = self.turn_of(directory).await;
        let in_turn = move || {
            let _turn = turn;
            work()
        };
        in_background(context, in_turn).await
    }

    /// Waits for a turn of a directory, as [`turn`](Self::turn) does for a class.
    pub(crate) async fn turn_of(&self, directory: Option<DirectoryId>) -> OwnedSemaphorePermit {
        let new = || Arc::new(Semaphore::new(DIRECTORY_THREADS_MAX));
        let share = self.directories.lock().entry(directory).or_insert_with(new).clone();
        share.acquire_owned().await.expect("it is never closed")
    }
}

/// Runs a function of a request on a thread that may wait. Resolves to its result and the time that it took, which
/// counts as time of the request's client, too.
pub(crate) async fn in_background<T: Send + 'static>(
    context: &RequestContext,
    work: impl FnOnce() -> T + Send + 'static,
) -> (T, Duration) {
    let time = context.time.clone();
    let timed = move || {
        let begun = machine_now();
        if let Some(time) = &time {
            time.resume();
        }
        let value = work();
        if let Some(time) = &time {
            time.pause();
        }
        (value, machine_now().duration_since(begun))
    };
    match tokio::task::spawn_blocking(timed).await {
        Ok(value) => value,
        Err(error) => std::panic::resume_unwind(error.into_panic()),
    }
}

/// Work of a kind that takes a processor for long. Of all connections one piece is done at a time, in the order of
/// arrival, so that it takes one thread and its memory has one bound.
pub(crate) struct OneAtATime(Arc<Semaphore>);

impl OneAtATime {
    pub(crate) fn new() -> OneAtATime {
        OneAtATime(Arc::new(Semaphore::new(1)))
    }

    /// Waits for a turn, which ends when it is dropped. It belongs to the thread that works: when a client leaves,
    /// the next one waits until that work is done.
    pub(crate) async fn turn(&self) -> OwnedSemaphorePermit {
        self.0.clone().acquire_owned().await.expect("it is never closed")
    }
}
