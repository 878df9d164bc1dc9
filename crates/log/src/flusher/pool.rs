//! Helper threads of a flusher: they sync in parallel, and run the blocking jobs of the directory.

use parking_lot::{Condvar, Mutex};
use std::collections::VecDeque;
use std::sync::Arc;
use std::thread::{self, JoinHandle};

/// Something to be run once on a helper thread.
pub(crate) type Job = Box<dyn FnOnce() + Send>;

/// At most `threads_max` threads, each started when a job finds no idle one.
pub(super) struct Pool {
    name: String,
    threads_max: usize,
    shared: Arc<PoolShared>,
}

struct PoolShared {
    state: Mutex<PoolState>,
    wake: Condvar,
}

#[derive(Default)]
struct PoolState {
    jobs: VecDeque<Job>,
    idle: usize,
    stopping: bool,
    threads: Vec<JoinHandle<()>>,
}

impl Pool {
    pub(super) fn new(name: String, threads_max: usize) -> Pool {
        assert!(threads_max > 0, "a pool without threads runs nothing");
        let shared = PoolShared { state: Mutex::default(), wake: Condvar::new() };
        Pool { name, threads_max, shared: Arc::new(shared) }
    }

    /// Queues a job; it comes back when the pool is stopped or no thread could be started for it.
    pub(super) fn run(&self, job: Job) -> Result<(), Job> {
        let mut state = self.shared.state.lock();
        if state.stopping {
            return Err(job);
        }
        if state.idle <= state.jobs.len() && state.threads.len() < self.threads_max {
            self.start_thread(&mut state);
        }
        if state.threads.is_empty() {
            return Err(job);
        }
        state.jobs.push_back(job);
        drop(state);
        self.shared.wake.notify_one();
        Ok(())
    }

    fn start_thread(&self, state: &mut PoolState) {
        let shared = self.shared.clone();
        let name = format!("{}-{}", self.name, state.threads.len());
        match thread::Builder::new().name(name).spawn(move || work(&shared)) {
            Ok(thread) => state.threads.push(thread),
            Err(error) => tracing::warn!(%error, "a helper thread of the flusher could not be started"),
        }
    }

    /// Runs what is queued, then ends and joins the threads.
    pub(super) fn stop(&self) {
        let threads = {
            let mut state = self.shared.state.lock();
            state.stopping = true;
            std::mem::take(&mut state.threads)
        };
        self.shared.wake.notify_all();
        threads.into_iter().for_each(super::join);
    }
}

fn work(shared: &PoolShared) {
    let _guard = super::AbortOnPanic;
    let mut state = shared.state.lock();
    loop {
        if let Some(job) = state.jobs.pop_front() {
            drop(state);
            job();
            state = shared.state.lock();
        } else if state.stopping {
            return;
        } else {
            state.idle += 1;
            shared.wake.wait(&mut state);
            state.idle -= 1;
        }
    }
}
