//! A flusher without threads: its owner begins and ends each round and runs its jobs, so that a seed decides how long a
//! sync takes, and what happens meanwhile.

use super::round::{Round, SyncContext};
use super::{Flusher, FlusherStop, abandon};
use crate::pool::Job;
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::io;

/// The work of a flusher's threads.
pub(super) struct ByHand {
    context: SyncContext,
    jobs: Mutex<Jobs>,
}

#[derive(Default)]
struct Jobs {
    waiting: VecDeque<Job>,
    is_stopped: bool,
    /// They run as soon as they are asked for.
    is_inline: bool,
}

/// A round that is synced, of which its targets do not know yet ([`Flusher::end_round`]).
pub struct SyncedRound {
    round: Round,
    results: Vec<io::Result<()>>,
}

impl SyncedRound {
    /// Returns true if a sync has failed.
    pub fn has_failed(&self) -> bool {
        self.results.iter().any(Result::is_err)
    }
}

impl ByHand {
    pub(super) fn new(context: SyncContext) -> ByHand {
        ByHand { context, jobs: Mutex::default() }
    }

    pub(super) fn run(&self, job: Job) -> Result<(), Job> {
        let mut jobs = self.jobs.lock();
        if jobs.is_stopped {
            return Err(job);
        }
        match jobs.is_inline {
            true => {
                drop(jobs);
                job();
            }
            false => jobs.waiting.push_back(job),
        }
        Ok(())
    }
}

impl Flusher {
    fn hand(&self) -> &ByHand {
        self.by_hand.as_ref().expect("it was started without threads")
    }

    /// Returns true if a target waits for a round.
    pub fn has_waiting(&self) -> bool {
        !self.shared.queue.lock().waiting.is_empty()
    }

    /// Takes all targets that wait, and syncs what they have. What is appended from here on is not covered.
    ///
    /// # Panics
    /// When it has threads.
    pub fn begin_round(&self) -> SyncedRound {
        let context = &self.hand().context;
        let mut targets = std::mem::take(&mut self.shared.queue.lock().waiting);
        let round = Round::begin(Vec::new(), &mut targets);
        let results = round.outcomes(context);
        SyncedRound { round, results }
    }

    /// Tells the targets of a round what has come of it.
    ///
    /// # Panics
    /// When it has threads.
    pub fn end_round(&self, SyncedRound { round, results }: SyncedRound) {
        round.report_all(results, &self.hand().context);
    }

    /// Runs the jobs that wait, and those that they ask for.
    ///
    /// # Panics
    /// When it has threads.
    pub fn run_jobs(&self) {
        let next = || self.hand().jobs.lock().waiting.pop_front();
        while let Some(job) = next() {
            job();
        }
    }

    /// Forgets the targets and the jobs that wait.
    ///
    /// # Panics
    /// When it has threads.
    pub fn forget_waiting(&self) {
        let targets = std::mem::take(&mut self.shared.queue.lock().waiting);
        let jobs = std::mem::take(&mut self.hand().jobs.lock().waiting);
        drop((targets, jobs));
    }

    /// Runs jobs as soon as they are requested, or lets them wait again. For a caller that waits for a job on the thread that
    /// would run it.
    ///
    /// # Panics
    /// When it has threads.
    pub fn set_jobs_inline(&self, is_inline: bool) {
        self.run_jobs();
        self.hand().jobs.lock().is_inline = is_inline;
    }

    pub(super) fn stop_by_hand(&self, how: FlusherStop) {
        if self.by_hand.is_none() {
            return;
        }
        while self.has_waiting() {
            match how {
                FlusherStop::Drain => self.end_round(self.begin_round()),
                FlusherStop::Abandon => {
                    let mut targets = std::mem::take(&mut self.shared.queue.lock().waiting);
                    abandon(Vec::new(), &mut targets);
                }
            }
        }
        self.run_jobs();
        self.hand().jobs.lock().is_stopped = true;
    }
}
