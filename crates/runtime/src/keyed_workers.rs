//! A few threads that run jobs: those of one key one after another and in their order, those of several keys beside each other.

mod queue;

use std::sync::Arc;

use parking_lot::Mutex;

use crate::supervised;
use crate::sync::Thread;
use crate::worker::Job;
use queue::KeyedQueue;

/// Runs jobs on at most so many threads. A thread begins with a job that has none, and ends when there is nothing to do.
pub struct KeyedWorkers<K> {
    name: &'static str,
    threads_max: usize,
    state: Arc<Mutex<State<K>>>,
}

struct State<K> {
    queue: KeyedQueue<K, Job>,
    /// Threads that look for jobs, or run one.
    running: usize,
    threads: Vec<Thread>,
    is_stopped: bool,
}

impl<K: Ord + Clone + Send + 'static> KeyedWorkers<K> {
    /// Workers without a thread yet.
    pub fn new(name: &'static str, threads_max: usize) -> Self {
        let state =
            State { queue: KeyedQueue::default(), running: 0, threads: Vec::new(), is_stopped: false };
        KeyedWorkers { name, threads_max, state: Arc::new(Mutex::new(state)) }
    }

    /// Runs a job behind those that were given before, of all keys: on this thread, with all that waits, where the system has no other
    /// one. After a stop it is dropped.
    pub fn run(&self, key: K, job: Job) {
        self.give(|queue| queue.push(key, job));
    }

    /// Runs a job before those of other keys that wait, behind those of its own.
    pub fn run_soon(&self, key: K, job: Job) {
        self.give(|queue| {
            queue.push(key.clone(), job);
            queue.prefer(&key);
        });
    }

    /// Has the jobs of a key come before those of other keys that wait.
    pub fn prefer(&self, key: &K) {
        self.state.lock().queue.prefer(key);
    }

    fn give(&self, push: impl FnOnce(&mut KeyedQueue<K, Job>)) {
        let mut state = self.state.lock();
        if state.is_stopped {
            return;
        }
        push(&mut state.queue);
        if state.running == self.threads_max {
            return;
        }
        let own = self.state.clone();
        // A start rebuilds what the jobs are for.
        match supervised::spawn_vital(self.name, "what waits for its jobs would wait for ever", move || {
            work(&own)
        }) {
            Ok(thread) => {
                state.running += 1;
                state.threads.retain(|thread| !thread.is_finished());
                state.threads.push(thread);
            }
            Err(error) if state.running == 0 => {
                tracing::error!(
                    "no thread {} can be started: {error}; its work is done on another thread, which has less time for its own",
                    self.name
                );
                state.running += 1;
                drop(state);
                work(&self.state);
            }
            // The others do it.
            Err(_) => {}
        }
    }

    /// Drops the jobs that wait, and waits for those that run. Later ones are dropped.
    pub fn stop(&self) {
        let (threads, jobs) = {
            let mut state = self.state.lock();
            state.is_stopped = true;
            (std::mem::take(&mut state.threads), std::mem::take(&mut state.queue))
        };
        // Without the lock: they may hold what gives another job when it is dropped.
        drop(jobs);
        for thread in threads {
            let _ = thread.join();
        }
    }
}

/// Runs jobs while there are some.
fn work<K: Ord + Clone>(state: &Mutex<State<K>>) {
    loop {
        let next = {
            let mut state = state.lock();
            let next = state.queue.next();
            state.running -= usize::from(next.is_none());
            next
        };
        let Some((key, job)) = next else { return };
        job();
        state.lock().queue.done(&key);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    #[test]
    fn jobs_of_a_key_run_in_their_order_and_those_of_others_beside_them() {
        let workers = KeyedWorkers::new("test", 2);
        let (done, order) = mpsc::channel();
        let (release, gate) = mpsc::channel::<()>();
        let said = |what: &'static str| {
            let done = done.clone();
            Box::new(move || done.send(what).expect("the test listens"))
        };
        workers.run(1, Box::new(move || gate.recv().expect("it is released")));
        workers.run(1, said("behind it"));
        workers.run(2, said("another key"));
        workers.run(3, said("a third key"));
        assert_eq!([order.recv(), order.recv()], [Ok("another key"), Ok("a third key")]);
        release.send(()).expect("it waits");
        assert_eq!(order.recv(), Ok("behind it"));
        workers.stop();
        workers.run(1, Box::new(|| unreachable!("it is stopped")));
        assert!(workers.state.lock().threads.is_empty(), "no thread begins after a stop");
    }

    #[test]
    fn a_stop_drops_what_waits() {
        let workers = KeyedWorkers::new("test", 1);
        let (begun, is_begun) = mpsc::channel();
        let (release, gate) = mpsc::channel::<()>();
        workers.run(
            1,
            Box::new(move || {
                begun.send(()).expect("the test listens");
                gate.recv().expect("it is released");
            }),
        );
        is_begun.recv().expect("it runs");
        let held = Arc::new(());
        let waits = held.clone();
        workers.run(2, Box::new(move || unreachable!("{waits:?} is dropped")));
        std::thread::scope(|scope| {
            let stopping = scope.spawn(|| workers.stop());
            while Arc::strong_count(&held) > 1 {
                std::thread::yield_now();
            }
            release.send(()).expect("it waits");
            stopping.join().expect("nothing panics");
        });
    }
}
