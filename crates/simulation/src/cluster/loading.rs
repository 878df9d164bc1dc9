//! A node's thread that reads the partitions of coordinators and unloads them: one for both coordinators.

use mainstem_coordinators::driver::{Coordinator, Driver};
use mainstem_log::sim::Random;
use mainstem_runtime::worker;
use mainstem_store::partition::Partition;
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::sync::Arc;

/// Delay between the begin of a load and the read of the partition, at most, in ms.
const READ_MAX_MS: u64 = 20;
/// Percent of the turns in which the thread does its next job.
const WORKS_ON: u64 = 60;

/// A job of the thread. Returns what it does after a while, before the next job.
type Job = Box<dyn FnOnce() -> Option<worker::Job> + Send>;

/// The thread, with its jobs.
#[derive(Default)]
pub(crate) struct Loading {
    jobs: Arc<Mutex<VecDeque<Job>>>,
    /// The second half of the current job, and the time in ms when it runs.
    rest: Option<(u64, worker::Job)>,
    loaded: Arc<Mutex<usize>>,
}

impl Loading {
    /// Has a coordinator unload a partition.
    pub(crate) fn unload<C: Coordinator>(&self, driver: &Arc<Driver<C>>, partition: &Arc<Partition>) {
        let (driver, partition) = (driver.clone(), partition.clone());
        self.jobs.lock().push_back(Box::new(move || {
            driver.unload(&[partition]);
            None
        }));
    }

    /// Has a coordinator take a partition over. If the records that it reads are not committed yet, a later job begins to serve it.
    pub(crate) fn take_over<C: Coordinator>(&self, driver: &Arc<Driver<C>>, partition: &Arc<Partition>) {
        let (driver, partition) = (driver.clone(), partition.clone());
        // A weak pointer, since a job in the queue must not keep the queue alive.
        let (jobs, loaded) = (Arc::downgrade(&self.jobs), self.loaded.clone());
        self.jobs.lock().push_back(Box::new(move || {
            *loaded.lock() += 1;
            let load = driver.begin_load_by_hand(&partition);
            Some(Box::new(move || {
                let run_serving = move |serve: worker::Job| {
                    let job: Job = Box::new(move || {
                        serve();
                        None
                    });
                    if let Some(jobs) = jobs.upgrade() {
                        jobs.lock().push_back(job);
                    }
                };
                driver.read_by_hand(load, Box::new(run_serving));
            }))
        }));
    }

    /// Does jobs, one after another.
    pub(crate) fn pass_time(&mut self, now_ms: u64, random: &mut Random) {
        if let Some((_, rest)) = self.rest.take_if(|(at_ms, _)| *at_ms <= now_ms) {
            rest();
        }
        while self.rest.is_none() && random.chance(WORKS_ON) {
            let Some(job) = self.jobs.lock().pop_front() else { return };
            self.rest = job().map(|rest| (now_ms + random.below(READ_MAX_MS), rest));
        }
    }

    /// The number of partitions that were taken over since the last question.
    pub(crate) fn take_loaded(&self) -> usize {
        std::mem::take(&mut *self.loaded.lock())
    }
}
