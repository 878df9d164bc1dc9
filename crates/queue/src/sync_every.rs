//! Syncing by the clock, on a thread of its own.

use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use crate::error::{QueueError, Result};
use crate::queue::Queue;

/// Syncs a queue at an interval, see [`Queue::sync_every`]. Dropping it syncs a last time.
#[derive(Debug)]
pub struct SyncEvery {
    /// Dropping it ends the thread.
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<Result<i64>>>,
}

impl Queue {
    /// Syncs at an interval on a thread of its own, until the result is dropped. A power cut then loses at most what any process
    /// appended in the last interval.
    ///
    /// # Errors
    /// If the queue was opened for reading, or no thread can be started.
    pub fn sync_every(&self, interval: Duration) -> Result<SyncEvery> {
        self.inner.check_writable()?;
        SyncEvery::start(self.clone(), interval)
    }
}

impl SyncEvery {
    pub(crate) fn start(queue: Queue, interval: Duration) -> Result<SyncEvery> {
        let (stop, stopped) = channel::<()>();
        let directory = queue.directory().to_owned();
        let run = move || {
            while let Err(RecvTimeoutError::Timeout) = stopped.recv_timeout(interval) {
                match queue.sync() {
                    // No sync was made: the next turn tries again.
                    Err(error) if error.is_shortage() => {}
                    done => drop(done?),
                }
            }
            queue.sync()
        };
        let thread = thread::Builder::new().name("queue-sync".to_owned()).spawn(run);
        let thread = thread.map_err(|error| QueueError::io("starting a thread for", &directory, error))?;
        Ok(SyncEvery { stop: Some(stop), thread: Some(thread) })
    }

    /// Returns false once a sync has failed; [`SyncEvery::finish`] says why.
    pub fn is_running(&self) -> bool {
        self.thread.as_ref().is_some_and(|thread| !thread.is_finished())
    }

    /// Syncs a last time and ends; returns the offset before which everything survives a power cut.
    ///
    /// # Errors
    /// The error of the first sync that failed, or of the last one that could not be made.
    pub fn finish(mut self) -> Result<i64> {
        self.end().unwrap_or(Ok(0))
    }

    fn end(&mut self) -> Option<Result<i64>> {
        self.stop = None;
        let outcome = self.thread.take()?.join();
        Some(outcome.unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
    }
}

impl Drop for SyncEvery {
    fn drop(&mut self) {
        if !thread::panicking() {
            let _ = self.end();
        }
    }
}
