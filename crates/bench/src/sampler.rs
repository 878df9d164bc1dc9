//! Samples of a broker in the course of a run: memory and progress over time, from a thread that mostly sleeps.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use crate::process;
use crate::results::Samples;

const INTERVAL: Duration = Duration::from_millis(250);
pub(crate) const MIB: f64 = 1024.0 * 1024.0;

/// The thread. It ends with [`Sampler::finish`], or when this is dropped.
#[derive(Debug)]
pub(crate) struct Sampler {
    finish: Sender<()>,
    thread: JoinHandle<Samples>,
}

impl Sampler {
    /// Begins to sample the process; `messages` is read for each sample.
    pub(crate) fn start(pid: u32, messages: Arc<AtomicU64>) -> Self {
        let (finish, finished) = mpsc::channel();
        let began = Instant::now();
        let thread = thread::spawn(move || {
            let mut samples = Samples::default();
            loop {
                // A process that has ended has no memory. The code that waits for it reports the reason.
                if let Ok(memory) = process::memory(pid) {
                    samples.at_s.push(began.elapsed().as_secs_f64());
                    samples.messages.push(messages.load(Ordering::Relaxed));
                    samples.rss_mib.push(memory.resident as f64 / MIB);
                }
                if finished.recv_timeout(INTERVAL) != Err(RecvTimeoutError::Timeout) {
                    return samples;
                }
            }
        });
        Self { finish, thread }
    }

    pub(crate) fn finish(self) -> Samples {
        drop(self.finish);
        self.thread.join().expect("the sampler does not panic")
    }
}
