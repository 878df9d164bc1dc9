//! Helper threads for what blocks: syncs and other jobs of a directory, reads from the disk.

use parking_lot::{Condvar, Mutex};
use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;
use std::thread::{self, JoinHandle};

/// Something to be run once on a helper thread.
pub type Job = Box<dyn FnOnce() + Send>;

/// Threads that run jobs, each started when a job finds no idle one. A job that panics ends the process: a caller that waits for
/// what it was to do would wait for ever.
pub struct Pool {
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
    /// Creates a pool of at most `threads_max` threads, which have its name. None is started yet.
    ///
    /// # Panics
    /// If there may be none.
    pub fn new(name: String, threads_max: usize) -> Pool {
        assert!(threads_max > 0, "a pool without threads runs nothing");
        let shared = PoolShared { state: Mutex::default(), wake: Condvar::new() };
        Pool { name, threads_max, shared: Arc::new(shared) }
    }

    /// Queues a job.
    ///
    /// # Errors
    /// The job comes back when the pool is stopped or no thread could be started for it.
    pub fn run(&self, job: Job) -> Result<(), Job> {
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
            Err(error) => tracing::warn!(%error, "a helper thread could not be started"),
        }
    }

    /// Threads that were started and not stopped.
    pub fn threads(&self) -> usize {
        self.shared.state.lock().threads.len()
    }

    /// Runs what is queued, then ends and joins the threads.
    pub fn stop(&self) {
        let threads = {
            let mut state = self.shared.state.lock();
            state.stopping = true;
            std::mem::take(&mut state.threads)
        };
        self.shared.wake.notify_all();
        threads.into_iter().for_each(join);
    }
}

impl fmt::Debug for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pool")
            .field("name", &self.name)
            .field("threads", &self.threads())
            .finish_non_exhaustive()
    }
}

/// Ends the process if the thread that has it panics, and says why nothing less will do.
pub(crate) struct AbortOnPanic(pub(crate) &'static str);

impl Drop for AbortOnPanic {
    fn drop(&mut self) {
        if thread::panicking() {
            tracing::error!("a thread has panicked; the process ends, because {}", self.0);
            std::process::abort();
        }
    }
}

/// Joins a thread, except when it is this one: what owns it may be dropped there, and it then ends by itself.
pub(crate) fn join(thread: JoinHandle<()>) {
    if thread.thread().id() != thread::current().id() && thread.join().is_err() {
        tracing::error!("a thread ended by a panic");
    }
}

fn work(shared: &PoolShared) {
    let _guard = AbortOnPanic("who waits for what a helper thread was to do would wait for ever");
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
