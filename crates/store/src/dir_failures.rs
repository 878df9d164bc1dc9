//! Handling of failed log directories. Their partitions are offline, and the others are served. Without the metadata log, or without
//! any directory, the broker has to stop. This also notes cordoned directories.
//!
//! A directory may fail wherever it is used, even under a partition's lock. Its own thread does the rest.

use mainstem_runtime::sync::Thread;
use std::io;
use std::sync::Arc;

use mainstem_log::dir::LogDir;
use parking_lot::Mutex;

use crate::partition::{NoLog, Partition};
use crate::store::Store;
use mainstem_runtime::supervised::{self, Role};

/// Callback with the reason why the broker has to stop.
pub type OnFatal = Box<dyn FnOnce(String) + Send>;

/// Reason why the broker has to stop, for the program that runs it.
#[derive(Default)]
pub struct Fatal(Mutex<FatalState>);

#[derive(Default)]
struct FatalState {
    reason: Option<String>,
    callback: Option<OnFatal>,
}

impl Fatal {
    /// Sets the callback. Calls it now if there is a reason already.
    pub fn on_fatal(&self, callback: OnFatal) {
        let mut state = self.0.lock();
        match state.reason.clone() {
            None => state.callback = Some(callback),
            Some(reason) => {
                drop(state);
                callback(reason);
            }
        }
    }

    fn tell(&self, reason: String) {
        tracing::error!("the broker cannot go on: {reason}");
        let mut state = self.0.lock();
        state.reason = Some(reason.clone());
        let callback = state.callback.take();
        drop(state);
        if let Some(callback) = callback {
            callback(reason);
        }
    }
}

/// The thread, and the way to end it.
pub struct DirFailures {
    store: Arc<Store>,
    thread: Thread,
}

impl DirFailures {
    /// Starts the thread. What failed before is dealt with first.
    ///
    /// # Errors
    /// The system's, when no thread can be made.
    pub fn start(store: Arc<Store>) -> io::Result<Self> {
        let own = store.clone();
        store.dir_alarm.ring();
        let role = Role::Vital("what fails would be served on");
        let thread = supervised::spawn(&store.panics, "dir-failures", role, move || {
            while own.dir_alarm.wait() {
                take_poisoned_offline(&own);
                take_offline(&own);
                own.notify(|events| events.cordoned_directories_changed());
            }
        })?;
        Ok(DirFailures { store, thread })
    }

    /// Ends the thread after what it is doing.
    pub fn stop(self) {
        self.store.dir_alarm.stop();
        let _ = self.thread.join();
    }
}

/// Deals with partitions whose log was in use when something panicked: it is not known any more what it holds.
fn take_poisoned_offline(store: &Store) {
    for partition in store.partitions().into_iter().filter(|partition| partition.take_poisoned()) {
        tracing::error!(
            topic = %partition.topic,
            partition = partition.index,
            "the partition is offline: there was a panic while its log was changed; start the broker again, which \
             checks it"
        );
        // Its log is gone; those who wait for it learn so.
        drop(partition.take_log(NoLog::Offline));
        store.notify(|events| events.went_offline(std::slice::from_ref(&partition)));
    }
}

/// Takes what is in failed directories out of service.
fn take_offline(store: &Store) {
    let failed: Vec<_> = store.dirs.all().filter(|dir| dir.failure().is_some()).collect();
    if failed.is_empty() {
        return;
    }
    for dir in &failed {
        take_partitions_offline(store, dir);
    }
    match store.dirs.fatal_failure() {
        Some(reason) => store.fatal.tell(reason),
        None => store.notify(|events| events.online_directories_changed()),
    }
}

fn take_partitions_offline(store: &Store, dir: &Arc<LogDir>) {
    let partitions: Vec<Arc<Partition>> =
        store.partitions().into_iter().filter(|partition| partition.is_in(dir)).collect();
    if partitions.is_empty() {
        return;
    }
    tracing::error!(dir = %dir.path().display(), partitions = partitions.len(), "partitions are offline");
    partitions.iter().for_each(|partition| drop(partition.take_log(NoLog::Offline)));
    store.notify(|events| events.went_offline(&partitions));
}
