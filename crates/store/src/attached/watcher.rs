//! The thread that waits on all attached queues for what local processes append: it has the fetches wake that wait.

use mainstem_runtime::sync::Thread;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use mainstem_queue::{Serving, WAIT_ANY_MAX, wait_any};

use super::Attached;
use mainstem_runtime::supervised;

/// A local process may die between its append and the wake-up that it owes: after so long the thread looks by itself.
const LOOK_AGAIN: Duration = Duration::from_millis(100);

/// The threads: one, unless there are more queues than the kernel waits on at once.
pub struct Watcher {
    queues: Vec<Arc<Attached>>,
    stopped: Arc<AtomicBool>,
    threads: Vec<Thread>,
}

impl Watcher {
    /// Starts to wait.
    ///
    /// # Errors
    /// When a thread cannot be started.
    pub fn start(queues: &[Arc<Attached>]) -> io::Result<Watcher> {
        let stopped: Arc<AtomicBool> = Arc::default();
        let threads = queues.chunks(WAIT_ANY_MAX).map(|queues| spawn(queues.to_vec(), stopped.clone()));
        Ok(Watcher { threads: threads.collect::<io::Result<_>>()?, queues: queues.to_vec(), stopped })
    }

    /// Stops, and waits for that.
    pub fn stop(self) {
        self.stopped.store(true, Ordering::Release);
        self.queues.iter().for_each(|queue| queue.serving().notify());
        self.threads.into_iter().for_each(|thread| drop(thread.join()));
    }
}

fn spawn(queues: Vec<Arc<Attached>>, stopped: Arc<AtomicBool>) -> io::Result<Thread> {
    let why = "readers of attached queues would wait for ever";
    supervised::spawn_vital("attached", why, move || watch(&queues, &stopped))
}

fn watch(queues: &[Arc<Attached>], stopped: &Arc<AtomicBool>) {
    let mut seen: Vec<(&Serving, u32)> =
        queues.iter().map(|queue| (queue.serving(), queue.serving().sequence())).collect();
    queues.iter().for_each(|queue| queue.look());
    while !stopped.load(Ordering::Acquire) {
        match wait_any(&seen, Some(LOOK_AGAIN)) {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::Unsupported => {
                return watch_each(queues, stopped);
            }
            Err(error) => {
                tracing::error!("attached queues cannot be waited on: {error}; readers of them wake late");
                std::thread::sleep(LOOK_AGAIN);
            }
        }
        let mut is_woken = false;
        for (queue, (serving, sequence)) in queues.iter().zip(&mut seen) {
            let now = serving.sequence();
            if std::mem::replace(sequence, now) != now {
                is_woken = true;
                queue.look();
            }
        }
        if !is_woken {
            queues.iter().for_each(|queue| queue.look());
        }
    }
}

/// On a kernel that waits on one word only (Linux before 5.16).
fn watch_each(queues: &[Arc<Attached>], stopped: &Arc<AtomicBool>) {
    let threads: Vec<_> = queues.iter().map(|queue| spawn(vec![queue.clone()], stopped.clone())).collect();
    for thread in threads {
        match thread {
            Ok(thread) => drop(thread.join()),
            Err(error) => tracing::error!("an attached queue is not waited on: {error}"),
        }
    }
}
