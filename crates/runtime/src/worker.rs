//! A thread that runs what coordinators ask for and neither a connection nor the flusher may wait for.

use parking_lot::Mutex;

use crate::supervised;
use crate::sync::{self, Sender, Thread};

/// A piece of work for the thread.
pub type Job = Box<dyn FnOnce() + Send>;

/// Runs jobs one after another. Its thread begins with the first one, and ends with [`Worker::stop`].
///
/// The callers bound the queue: a coordinator has at most one job for each of its transactional ids.
pub struct Worker {
    name: &'static str,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    running: Option<Running>,
    is_stopped: bool,
}

struct Running {
    jobs: Sender<Job>,
    thread: Thread,
}

impl Worker {
    /// A worker without a thread yet.
    pub fn new(name: &'static str) -> Self {
        Worker { name, state: Mutex::default() }
    }

    /// Runs a job behind those that were given before. After a stop it is dropped.
    pub fn run(&self, job: Job) {
        let mut state = self.state.lock();
        if state.is_stopped {
            return;
        }
        if state.running.is_none() {
            state.running = start(self.name);
        }
        if let Some(running) = &state.running {
            // The thread ends only when this sender does.
            let _ = running.jobs.send(job);
        }
    }

    /// Ends the thread behind the jobs that were given.
    pub fn stop(&self) {
        let running = {
            let mut state = self.state.lock();
            state.is_stopped = true;
            state.running.take()
        };
        if let Some(Running { jobs, thread }) = running {
            drop(jobs);
            let _ = thread.join();
        }
    }
}

fn start(name: &'static str) -> Option<Running> {
    let (jobs, waiting) = sync::channel::<Job>();
    let run = move || waiting.for_each(|job| job());
    // A start rebuilds the coordinator from its log.
    match supervised::spawn_vital(name, "what a coordinator waits for would never come", run) {
        Ok(thread) => Some(Running { jobs, thread }),
        Err(error) => {
            tracing::error!("the thread {name} cannot be started: {error}; it is tried again");
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jobs_run_in_their_order_and_before_a_stop() {
        let worker = Worker::new("test");
        let (done, order) = std::sync::mpsc::channel();
        for number in 0..100 {
            let done = done.clone();
            worker.run(Box::new(move || done.send(number).expect("the test listens")));
        }
        worker.stop();
        assert!(order.try_iter().eq(0..100));
        worker.run(Box::new(|| unreachable!("it is stopped")));
        assert!(worker.state.lock().running.is_none(), "no thread begins after a stop");
    }
}
