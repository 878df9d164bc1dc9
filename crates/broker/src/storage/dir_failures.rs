//! What becomes of the broker when a log directory fails: its partitions are offline, the others are served. Without the
//! metadata log, or without any directory, it has to stop. Directories that are cordoned are noted here, too.
//!
//! A directory notices that it fails wherever it is used, also under a partition's lock; what follows is done on a thread
//! of its own.

use std::io;
use std::sync::Arc;
use std::thread::JoinHandle;

use mainstem_log::dir::LogDir;
use parking_lot::{Condvar, Mutex};

use crate::broker::Broker;
use crate::coordinators;
use crate::storage::partition::{NoLog, Partition};
use crate::supervised::{self, Role};

/// Wakes the thread.
#[derive(Default)]
pub(crate) struct Alarm {
    state: Mutex<AlarmState>,
    changed: Condvar,
}

#[derive(Default)]
struct AlarmState {
    rung: bool,
    stopped: bool,
}

impl Alarm {
    /// Some directory has failed, or is cordoned or not any more, or something has panicked. Does not wait.
    pub(crate) fn ring(&self) {
        self.state.lock().rung = true;
        self.changed.notify_all();
    }

    fn stop(&self) {
        self.state.lock().stopped = true;
        self.changed.notify_all();
    }

    /// Waits for the next ring; `false`: there is nothing to wait for any more.
    fn wait(&self) -> bool {
        let mut state = self.state.lock();
        while !state.rung && !state.stopped {
            self.changed.wait(&mut state);
        }
        std::mem::take(&mut state.rung) && !state.stopped
    }
}

/// Called with why the broker cannot go on.
pub type OnFatal = Box<dyn FnOnce(String) + Send>;

/// Why the broker cannot go on, for the program that runs it.
#[derive(Default)]
pub(crate) struct Fatal(Mutex<FatalState>);

#[derive(Default)]
struct FatalState {
    reason: Option<String>,
    told: Option<OnFatal>,
}

impl Fatal {
    /// Notifies the receiver, at once if there is a reason already.
    pub(crate) fn on_fatal(&self, told: OnFatal) {
        let mut state = self.0.lock();
        match state.reason.clone() {
            None => state.told = Some(told),
            Some(reason) => {
                drop(state);
                told(reason);
            }
        }
    }

    fn tell(&self, reason: String) {
        tracing::error!("the broker cannot go on: {reason}");
        let mut state = self.0.lock();
        state.reason = Some(reason.clone());
        let told = state.told.take();
        drop(state);
        if let Some(told) = told {
            told(reason);
        }
    }
}

/// The thread, and the way to end it.
pub(crate) struct DirFailures {
    broker: Arc<Broker>,
    thread: JoinHandle<()>,
}

impl DirFailures {
    /// Starts the thread. What failed before is dealt with first.
    ///
    /// # Errors
    /// The system's, when no thread can be made.
    pub(crate) fn start(broker: Arc<Broker>) -> io::Result<Self> {
        let own = broker.clone();
        broker.dir_alarm.ring();
        let role = Role::Vital("what fails would be served on");
        let thread = supervised::spawn(&broker, "dir-failures", role, move || {
            while own.dir_alarm.wait() {
                take_poisoned_offline(&own);
                take_offline(&own);
                own.controller.note_cordoned_directories(&own);
            }
        })?;
        Ok(DirFailures { broker, thread })
    }

    /// Ends the thread after what it is doing.
    pub(crate) fn stop(self) {
        self.broker.dir_alarm.stop();
        let _ = self.thread.join();
    }
}

/// Deals with partitions whose log was in use when something panicked: it is not known any more what it holds.
fn take_poisoned_offline(broker: &Arc<Broker>) {
    for partition in broker.partitions().into_iter().filter(|partition| partition.take_poisoned()) {
        tracing::error!(
            topic = %partition.topic,
            partition = partition.index,
            "the partition is offline: there was a panic while its log was changed; start the broker again, which \
             checks it"
        );
        // Its log is gone; those who wait for it learn so.
        drop(partition.take_log(NoLog::Offline));
        coordinators::unload(broker, &partition.topic, std::slice::from_ref(&partition));
    }
}

/// Takes what is in failed directories out of service.
fn take_offline(broker: &Arc<Broker>) {
    let failed: Vec<_> = broker.dirs.all().filter(|dir| dir.failure().is_some()).collect();
    if failed.is_empty() {
        return;
    }
    for dir in &failed {
        take_partitions_offline(broker, dir);
    }
    match broker.dirs.fatal_failure() {
        Some(reason) => broker.fatal.tell(reason),
        None => broker.controller.note_online_directories(broker),
    }
}

fn take_partitions_offline(broker: &Arc<Broker>, dir: &Arc<LogDir>) {
    let partitions: Vec<Arc<Partition>> =
        broker.partitions().into_iter().filter(|partition| partition.is_in(dir)).collect();
    if partitions.is_empty() {
        return;
    }
    tracing::error!(dir = %dir.path().display(), partitions = partitions.len(), "partitions are offline");
    partitions.iter().for_each(|partition| drop(partition.take_log(NoLog::Offline)));
    coordinators::served(broker, |topic, _| {
        let of_topic = partitions.iter().filter(|partition| *partition.topic == *topic).cloned();
        coordinators::unload(broker, topic, &of_topic.collect::<Vec<_>>());
    });
}
