//! Compaction: threads that take the dirtiest log, one after another. Appends and fetches go on meanwhile.

mod throttle;

use std::ops::ControlFlow;
use std::path::Path;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};
use std::{io, iter};

use mainstem_config::CleanerConfig;
use mainstem_log::Log;
use mainstem_log::compaction::{
    Candidate, Choice, CleanError, Cleaned, Cleaner, CleanerOptions, LogAccess, Task, choose,
};
use mainstem_runtime::sync::{self, Condvar, Thread};
use parking_lot::{Mutex, MutexGuard};

use self::throttle::Throttle;
use crate::partition::Partition;
use crate::store::Store;
use mainstem_runtime::clock::{Clock, machine_now};
use mainstem_runtime::random;
use mainstem_runtime::supervised::{self, Role};

/// Time between two steps of a compaction in a simulation, at most.
const BETWEEN_STEPS_MAX: Duration = Duration::from_millis(100);
/// `log.cleaner.backoff.ms` counts between these: a cleaner neither spins nor sleeps for good.
const BACKOFF_MIN: Duration = Duration::from_millis(1);
const BACKOFF_MAX: Duration = Duration::from_secs(24 * 60 * 60);

/// Shared state of the cleaners, and their figures.
#[derive(Default)]
pub struct Cleaning {
    state: Mutex<State>,
    /// The broker stops.
    stopped: Condvar,
}

#[derive(Default)]
struct State {
    stopping: bool,
    /// Logs that a cleaner works on.
    busy: Vec<Weak<Partition>>,
    /// Logs that cannot be compacted until an operator has looked at them.
    uncleanable: Vec<Weak<Partition>>,
    throttle: Throttle,
    choice: Choice,
    last_run: Option<Instant>,
    last: Option<Last>,
    /// Number of compactions that have ended well.
    count: u64,
}

/// The compaction that has ended last.
#[derive(Clone, Copy)]
struct Last {
    cleaned: Cleaned,
    took: Duration,
}

/// The cleaners in numbers, under the names of Kafka's metrics.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct CleanerFigures {
    /// `max-dirty-percent`: the largest share of a compacted log that is dirty.
    pub max_dirty_percent: f64,
    /// `cleaner-recopy-percent`: of what the last compaction has read, how much it has written again.
    pub cleaner_recopy_percent: f64,
    /// `max-clean-time-secs`: how long the last compaction took.
    pub max_clean_time_secs: f64,
    /// `max-buffer-utilization-percent`: how full the map of keys was.
    pub max_buffer_utilization_percent: f64,
    /// `max-compaction-delay-secs`: for how long `max.compaction.lag.ms` is exceeded.
    pub max_compaction_delay_secs: f64,
    /// `time-since-last-run-ms`: since a cleaner has looked for work.
    pub time_since_last_run_ms: u64,
    /// `uncleanable-partitions-count` and `uncleanable-bytes`, by log directory.
    pub uncleanable: Vec<Uncleanable>,
}

/// Partitions of a log directory that cannot be compacted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Uncleanable {
    /// The path of the directory.
    pub log_directory: String,
    /// Partitions that are not compacted until an operator has looked at them.
    pub partitions: usize,
    /// Their dirty bytes.
    pub bytes: u64,
}

impl LogAccess for Partition {
    fn with_log<T>(&self, act: impl FnOnce(&mut Log) -> T) -> Option<T> {
        sync::pass_time(BETWEEN_STEPS_MAX);
        Partition::with_log(self, act).ok()
    }
}

/// The threads.
pub struct Cleaners {
    threads: Vec<Thread>,
}

impl Cleaners {
    /// Starts `log.cleaner.threads` of them, none without `log.cleaner.enable`.
    ///
    /// # Errors
    /// The system's, when no thread can be made.
    pub fn start(store: &Arc<Store>) -> io::Result<Self> {
        let config = store.config().cleaner.clone();
        let count = if config.enable { config.threads } else { 0 };
        let start = |number| {
            let own = store.clone();
            let role = Role::Tidies("compacted topics grow");
            supervised::spawn(&store.panics, &format!("cleaner-{number}"), role, move || run(&own, count))
        };
        Ok(Cleaners { threads: (0..count).map(start).collect::<io::Result<_>>()? })
    }

    /// Breaks off what they do and ends them.
    pub fn stop(self, store: &Store) {
        store.cleaning.state.lock().stopping = true;
        store.cleaning.stopped.notify_all();
        for thread in self.threads {
            let _ = thread.join();
        }
    }
}

/// A cleaner's life.
fn run(store: &Store, cleaners: usize) {
    let secret = random::bytes();
    let mut cleaner = None::<(CleanerOptions, Cleaner)>;
    while !store.cleaning.state.lock().stopping {
        let config = store.config().cleaner.clone();
        let options = options(&config, cleaners, secret);
        if cleaner.as_ref().is_none_or(|(known, _)| *known != options) {
            cleaner = Some((options, Cleaner::new(options)));
        }
        let (_, cleaner) = cleaner.as_mut().expect("it was just made");
        let did = store.cleaning.pick(store).is_some_and(|(partition, task)| {
            let ended = clean(store, cleaner, &partition, &task, config.io_max_bytes_per_second);
            store.cleaning.release(&partition);
            ended
        });
        if !did {
            store.cleaning.sleep(
                &store.clock,
                Duration::from_millis(config.backoff_ms).clamp(BACKOFF_MIN, BACKOFF_MAX),
            );
        }
    }
}

/// One cleaner's share of what is configured for all.
fn options(config: &CleanerConfig, cleaners: usize, secret: [u8; 16]) -> CleanerOptions {
    CleanerOptions {
        dedupe_bytes: config.dedupe_buffer_bytes / cleaners,
        load_factor: config.load_factor,
        io_bytes: config.io_buffer_bytes / cleaners / 2,
        secret,
    }
}

/// Compacts a log; `false`: it came to nothing, and so would another attempt at once.
fn clean(
    store: &Store,
    cleaner: &mut Cleaner,
    partition: &Arc<Partition>,
    task: &Task,
    bytes_per_second: f64,
) -> bool {
    let (topic, index, begin) = (&partition.topic, partition.index, machine_now());
    let pace = &mut |bytes| store.cleaning.spend(&store.clock, bytes, bytes_per_second);
    match cleaner.clean(&**partition, task, pace) {
        Ok(cleaned) => {
            let took = machine_now().duration_since(begin);
            tracing::info!(
                %topic,
                partition = index,
                end = cleaned.end,
                rounds = cleaned.rounds,
                bytes_before = cleaned.bytes_before,
                bytes_after = cleaned.bytes_after,
                ms = took.as_millis() as u64,
                "compacted"
            );
            let mut state = store.cleaning.state.lock();
            state.last = Some(Last { cleaned, took });
            state.count += 1;
            true
        }
        Err(error) => {
            store.cleaning.failed(partition, &error);
            false
        }
    }
}

impl Cleaning {
    /// The dirtiest log that is due, which is then this cleaner's.
    fn pick(&self, store: &Store) -> Option<(Arc<Partition>, Task)> {
        let now = store.clock.now();
        let candidates: Vec<_> = store
            .partitions()
            .into_iter()
            .filter(|partition| !self.is_taken(partition))
            .filter_map(|partition| self.candidate(partition, now.wall_ms))
            .collect();
        let (best, choice) = choose(candidates);
        let mut state = self.state.lock();
        (state.choice, state.last_run) = (choice, Some(store.clock.instant()));
        let Candidate { log, dirty, .. } = best?;
        if state.is_taken(&log) {
            // Another cleaner was faster; it is looked again after a while.
            return None;
        }
        state.busy.push(Arc::downgrade(&log));
        let (wall_ms, mono_ms) = (now.wall_ms, now.mono_ms);
        let (first_dirty, first_uncleanable) = (dirty.first_dirty, dirty.first_uncleanable);
        Some((log, Task { first_dirty, first_uncleanable, wall_ms, mono_ms }))
    }

    /// A log as a candidate for compaction; `None` if nothing of it may be compacted.
    fn candidate(&self, partition: Arc<Partition>, wall_ms: i64) -> Option<Candidate<Arc<Partition>>> {
        let bound = compaction_bound(&partition)?;
        let view = LogAccess::with_log(&*partition, |log| log.compaction_view(bound))??;
        match view.assess(wall_ms) {
            Ok(dirty) => {
                if dirty.reset {
                    LogAccess::with_log(&*partition, |log| log.reset_clean_end(dirty.first_dirty));
                }
                let ratio_min = view.ratio_min();
                let has_bytes = dirty.clean_bytes + dirty.cleanable_bytes > 0;
                has_bytes.then_some(Candidate { log: partition, dirty, ratio_min })
            }
            Err(error) => {
                self.failed(&partition, &CleanError::Log(error));
                None
            }
        }
    }

    fn is_taken(&self, partition: &Arc<Partition>) -> bool {
        self.state.lock().is_taken(partition)
    }

    fn release(&self, partition: &Arc<Partition>) {
        self.state.lock().busy.retain(|other| !is_of(other, partition));
    }

    fn failed(&self, partition: &Arc<Partition>, error: &CleanError) {
        let (topic, index) = (&partition.topic, partition.index);
        match error {
            CleanError::BrokenOff | CleanError::Changed => {
                tracing::debug!(%topic, partition = index, "not compacted: {error}");
            }
            error if error.is_lasting() => {
                tracing::error!(
                    %topic,
                    partition = index,
                    "the partition is not compacted any more: {error}; its segments have to be repaired or deleted, \
                     and the broker started again"
                );
                self.state.lock().uncleanable.push(Arc::downgrade(partition));
            }
            error => {
                tracing::warn!(%topic, partition = index, "not compacted, to be tried again: {error}");
            }
        }
    }

    /// Counts bytes that were read or written. Waits if they exceed the rate, and breaks off when the broker stops.
    fn spend(&self, clock: &Clock, bytes: u64, bytes_per_second: f64) -> ControlFlow<()> {
        let mut state = self.state.lock();
        let wait = state.throttle.spend(bytes, bytes_per_second, clock.instant());
        if !wait.is_zero() {
            self.wait(clock, &mut state, wait);
        }
        if state.stopping { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    }

    fn sleep(&self, clock: &Clock, time: Duration) {
        self.wait(clock, &mut self.state.lock(), time);
    }

    /// Waits for this time, or until the broker stops.
    fn wait(&self, clock: &Clock, state: &mut MutexGuard<'_, State>, time: Duration) {
        let deadline = clock.instant() + time;
        while !state.stopping && !clock.wait_until(&self.stopped, state, deadline) {}
    }

    /// Number of compactions that have ended well.
    pub fn count(&self) -> u64 {
        self.state.lock().count
    }

    /// The cleaners in numbers. May read from disk, where logs are uncleanable.
    pub fn figures(&self, store: &Store) -> CleanerFigures {
        let (choice, last_run, last, uncleanable) = {
            let state = self.state.lock();
            let uncleanable: Vec<_> = state.uncleanable.iter().filter_map(Weak::upgrade).collect();
            (state.choice, state.last_run, state.last, uncleanable)
        };
        let recopied = |cleaned: Cleaned| cleaned.bytes_after as f64 / cleaned.bytes_before.max(1) as f64;
        CleanerFigures {
            max_dirty_percent: 100.0 * choice.ratio_max,
            cleaner_recopy_percent: last.map_or(0.0, |last| 100.0 * recopied(last.cleaned)),
            max_clean_time_secs: last.map_or(0.0, |last| last.took.as_secs_f64()),
            max_buffer_utilization_percent: last.map_or(0.0, |last| 100.0 * last.cleaned.map_utilization),
            max_compaction_delay_secs: choice.delay_ms_max as f64 / 1000.0,
            time_since_last_run_ms: last_run.map_or(0, |at| store.clock.elapsed(at).as_millis() as u64),
            uncleanable: store
                .dirs
                .data()
                .iter()
                .map(|dir| uncleanable_in(dir.path(), &uncleanable, store.clock.now().wall_ms))
                .collect(),
        }
    }
}

/// The offset from which on nothing may be compacted; `None`: nothing at all may be.
pub(crate) fn compaction_bound(partition: &Partition) -> Option<i64> {
    match partition.is_replicated() {
        _ if partition.is_replayed() => None,
        true => partition.compaction_bound(),
        false => Some(i64::MAX),
    }
}

impl State {
    fn is_taken(&self, partition: &Arc<Partition>) -> bool {
        iter::chain(&self.busy, &self.uncleanable).any(|other| is_of(other, partition))
    }
}

fn is_of(weak: &Weak<Partition>, partition: &Arc<Partition>) -> bool {
    std::ptr::eq(weak.as_ptr(), Arc::as_ptr(partition))
}

fn uncleanable_in(dir: &Path, partitions: &[Arc<Partition>], wall_ms: i64) -> Uncleanable {
    let within = |partition: &&Arc<Partition>| {
        LogAccess::with_log(&***partition, |log| log.dir().path() == dir).unwrap_or(false)
    };
    let bytes = |partition: &Arc<Partition>| {
        let view = LogAccess::with_log(&**partition, |log| log.compaction_view(i64::MAX)).flatten()?;
        Some(view.assess(wall_ms).ok()?.cleanable_bytes)
    };
    let found: Vec<_> = partitions.iter().filter(within).collect();
    Uncleanable {
        log_directory: dir.display().to_string(),
        partitions: found.len(),
        bytes: found.into_iter().filter_map(bytes).sum(),
    }
}
