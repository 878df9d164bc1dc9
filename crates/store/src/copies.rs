//! Copies of partitions, from leaders to followers that need entries which their leader does not have any more (KIP-630 for the log
//! itself: a manifest takes the place of the snapshot, and segments that of its records).
//!
//! A leader finds that a replica is too far behind, exports the beginning of its log and offers a manifest of it. The follower fetches
//! the manifest and the files, range by range, into a directory beside its log, and puts that in the place of the log. Both sides are
//! paced, so that producers hardly notice.
//!
//! Up to [`FETCHING_MAX`] threads fetch and one offers, started by the first of that.

mod pace;
mod pull;
mod received;
mod sources;
mod unused;

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use mainstem_links::CallKind;
use mainstem_log::RecoveryWatch;
use mainstem_replication::GroupId;
use mainstem_replication::snapshots::SnapshotOffer;
use mainstem_runtime::supervised::{self, Role};
use mainstem_runtime::sync::{Condvar, Thread};
use parking_lot::Mutex;

use self::pace::Pace;
use self::sources::Sources;
use self::unused::Unused;
use crate::partition::Partition;
use crate::store::Store;

/// A question for a range of a copy, from node to node.
pub const COPY: CallKind = CallKind(6);

/// Threads that fetch copies. Each has two ranges in memory, of 1 MiB.
const FETCHING_MAX: usize = 4;
/// Threads that offer copies, which does not take long.
const OFFERING_MAX: usize = 1;

/// The level of `mainstem.version` from which there are copies: journals have a frame for them.
const LEVEL_OF_COPIES: i16 = 2;

/// The part of a disk that copies leave free: one of so many.
const FREE_PART: u64 = 20;

/// All copies from and to this node.
pub struct Copies {
    state: Mutex<State>,
    changed: Condvar,
    sources: Sources,
    pace: Pace,
    counters: Counters,
    unused: Mutex<Unused>,
    /// Watches copies that are whole and are checked.
    checking: Arc<RecoveryWatch>,
    threads: Mutex<Vec<(JobKind, Thread)>>,
    /// It was said that copies need a higher level.
    has_said_level: AtomicBool,
}

#[derive(Default)]
struct State {
    jobs: VecDeque<Job>,
    /// Groups that a thread works for.
    busy: Vec<GroupId>,
    /// The last offer that each follower has got, until its copy is in its place or has failed.
    offers: HashMap<GroupId, SnapshotOffer>,
    /// The time at which each group's last fetch has ended, in monotonic ms.
    attempts: HashMap<GroupId, u64>,
    /// Threads that wait for a job, by its kind.
    idle: [usize; 2],
    stopped: bool,
}

/// Work for one partition.
#[derive(Clone)]
struct Job {
    group: GroupId,
    partition: Arc<Partition>,
    kind: JobKind,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum JobKind {
    Offer,
    Fetch,
}

impl JobKind {
    /// The most threads that do it.
    fn threads_max(self) -> usize {
        match self {
            JobKind::Offer => OFFERING_MAX,
            JobKind::Fetch => FETCHING_MAX,
        }
    }
}

#[derive(Default)]
struct Counters {
    sent_bytes: AtomicU64,
    received_bytes: AtomicU64,
    fetching: AtomicUsize,
    resumed: AtomicU64,
    installed: AtomicU64,
}

/// Figures of copies, since the start where they count.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CopyCounts {
    /// Bytes of files that other nodes have got.
    pub sent_bytes: u64,
    /// Bytes of files that have come from other nodes.
    pub received_bytes: u64,
    /// Partitions of which a copy is offered now.
    pub offered: usize,
    /// Partitions of which a copy is fetched now.
    pub fetching: usize,
    /// Copies that went on where an earlier attempt had ended.
    pub resumed: u64,
    /// Copies that have taken the place of a log.
    pub installed: u64,
}

impl Copies {
    /// No copies.
    pub(crate) fn new(now: Instant) -> Copies {
        Copies {
            state: Mutex::default(),
            changed: Condvar::new(),
            sources: Sources::default(),
            pace: Pace::new(now),
            counters: Counters::default(),
            unused: Mutex::default(),
            checking: Arc::default(),
            threads: Mutex::default(),
            has_said_level: AtomicBool::new(false),
        }
    }

    /// A partition that this node leads has a replica that needs what is not there any more: it is offered a copy.
    pub fn offer(&self, store: &Arc<Store>, partition: &Arc<Partition>) {
        let level = store.peers.as_ref().map_or(0, |peers| peers.journals.level());
        if level < LEVEL_OF_COPIES {
            if !self.has_said_level.swap(true, Ordering::Relaxed) {
                let (topic, index) = (&partition.topic, partition.index);
                tracing::error!(
                    %topic,
                    partition = index,
                    "a replica needs records that retention or compaction has removed here, and copies of partitions need level \
                     {LEVEL_OF_COPIES} of mainstem.version: upgrade all nodes, then run `mainstem cluster finalize --execute`"
                );
            }
            return;
        }
        self.add(store, partition, JobKind::Offer);
    }

    /// The leader of a partition offers a copy.
    pub fn offered(&self, store: &Arc<Store>, partition: &Arc<Partition>, offer: SnapshotOffer) {
        let Some(group) = partition.group_id() else { return };
        self.state.lock().offers.insert(group, offer);
        self.add(store, partition, JobKind::Fetch);
    }

    /// Notes the p99 of what was acknowledged in the last second, in microseconds; none: nothing was.
    pub fn note_acknowledgements(&self, p99_us: Option<u64>, now_ms: u64) {
        let is_copying =
            self.counters.fetching.load(Ordering::Relaxed) > 0 || self.sources.are_in_use(now_ms);
        self.pace.look(p99_us, is_copying, now_ms);
    }

    /// An operator has changed Kafka's throttles.
    pub fn note_rates(&self, now: Instant) {
        self.pace.reset_throttled(now);
    }

    /// The figures.
    pub fn counts(&self) -> CopyCounts {
        let Counters { sent_bytes, received_bytes, fetching, resumed, installed } = &self.counters;
        CopyCounts {
            sent_bytes: sent_bytes.load(Ordering::Relaxed),
            received_bytes: received_bytes.load(Ordering::Relaxed),
            offered: self.sources.count(),
            fetching: fetching.load(Ordering::Relaxed),
            resumed: resumed.load(Ordering::Relaxed),
            installed: installed.load(Ordering::Relaxed),
        }
    }

    /// Lets go of copies that no node asks for any more, and removes those that are not fetched any more. Called now and then.
    pub(crate) fn tidy(&self, store: &Store, now_ms: u64) {
        self.sources.release_idle(now_ms);
        self.remove_unused(store, now_ms);
    }

    /// Breaks off what the threads do, and ends them. What was fetched stays for the next start.
    pub fn stop(&self) {
        self.state.lock().stopped = true;
        self.changed.notify_all();
        // Copies that are read as a whole are broken off, too.
        self.checking.break_off();
        for (_, thread) in std::mem::take(&mut *self.threads.lock()) {
            let _ = thread.join();
        }
        self.sources.release_all();
    }

    fn add(&self, store: &Arc<Store>, partition: &Arc<Partition>, kind: JobKind) {
        let Some(group) = partition.group_id() else { return };
        let mut state = self.state.lock();
        if state.stopped || state.jobs.iter().any(|job| job.group == group && job.kind == kind) {
            return;
        }
        let job = Job { group, partition: partition.clone(), kind };
        // Coordinators keep their state in internal topics, and many wait for those.
        match partition.topic.starts_with("__") {
            true => state.jobs.push_front(job),
            false => state.jobs.push_back(job),
        }
        let needs_thread = state.idle[kind as usize] == 0;
        drop(state);
        self.changed.notify_all();
        if needs_thread {
            self.add_thread(store, kind);
        }
    }

    fn add_thread(&self, store: &Arc<Store>, kind: JobKind) {
        let mut threads = self.threads.lock();
        if threads.iter().filter(|(of, _)| *of == kind).count() >= kind.threads_max() {
            return;
        }
        let own = store.clone();
        let role = Role::Tidies("replicas that are too far behind stay so");
        let name = format!("copies-{}", threads.len());
        match supervised::spawn(&store.panics, &name, role, move || own.copies.run(&own, kind)) {
            Ok(thread) => threads.push((kind, thread)),
            Err(error) => tracing::error!("no thread can be made that copies partitions: {error}"),
        }
    }

    fn run(&self, store: &Arc<Store>, kind: JobKind) {
        while let Some(job) = self.next(kind) {
            match job.kind {
                JobKind::Offer => self.carry_out_offer(store, &job.partition),
                JobKind::Fetch => self.carry_out_fetch(store, job.group, &job.partition),
            }
            self.state.lock().busy.retain(|group| *group != job.group);
            self.changed.notify_all();
        }
    }

    /// The next job of a kind, of a group for which no other thread works; `None` at the end.
    fn next(&self, kind: JobKind) -> Option<Job> {
        let mut state = self.state.lock();
        loop {
            if state.stopped {
                return None;
            }
            let is_free = |job: &Job| job.kind == kind && !state.busy.contains(&job.group);
            let free = state.jobs.iter().position(is_free);
            if let Some(job) = free.and_then(|at| state.jobs.remove(at)) {
                state.busy.push(job.group);
                return Some(job);
            }
            state.idle[kind as usize] += 1;
            self.changed.wait(&mut state);
            state.idle[kind as usize] -= 1;
        }
    }

    /// Waits for this time, or until the node stops. Returns false then.
    fn pause(&self, store: &Store, time: Duration) -> bool {
        let mut state = self.state.lock();
        let until = store.clock.instant() + time;
        while !state.stopped && !store.clock.wait_until(&self.changed, &mut state, until) {}
        !state.stopped
    }

    fn is_stopped(&self) -> bool {
        self.state.lock().stopped
    }

    /// Returns true if a thread fetches a copy for a group, or is about to.
    fn is_fetching(&self, group: GroupId) -> bool {
        let state = self.state.lock();
        state.busy.contains(&group) || state.jobs.iter().any(|job| job.group == group)
    }

    /// Returns true if a fetch for a group has ended within this time, whatever has come of it.
    fn was_tried(&self, group: GroupId, within_ms: u64, now_ms: u64) -> bool {
        let mut state = self.state.lock();
        state.attempts.retain(|_, at_ms| now_ms.saturating_sub(*at_ms) < within_ms);
        state.attempts.contains_key(&group)
    }
}
