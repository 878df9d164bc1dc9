//! The clock of replicas: one thread that lets the time pass for all groups of this node.

use std::io;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use mainstem_replication::TICK_MS;
use parking_lot::{Condvar, Mutex, MutexGuard};

use crate::links::Links;
use crate::supervised;

/// Between two repeats of the heartbeats that stand: as between two heartbeats of a replica.
const REPEAT_TICKS: u64 = 3;

/// The thread, and the way to end it.
pub(crate) struct Ticker {
    stop: Arc<(Mutex<bool>, Condvar)>,
    thread: JoinHandle<()>,
}

impl Ticker {
    /// Starts the thread.
    ///
    /// # Errors
    /// The system's, when no thread can be made.
    pub(crate) fn start(links: Arc<Links>) -> io::Result<Ticker> {
        let stop = Arc::new((Mutex::new(false), Condvar::new()));
        let own = stop.clone();
        let why = "no group would notice that its leader is gone";
        let thread = supervised::spawn_vital("ticker", why, move || run(&links, &own))?;
        Ok(Ticker { stop, thread })
    }

    /// Ends the thread.
    pub(crate) fn stop(self) {
        let (stopped, changed) = &*self.stop;
        *stopped.lock() = true;
        changed.notify_all();
        // A panic has ended the process already.
        let _ = self.thread.join();
    }
}

fn run(links: &Links, (stopped, changed): &(Mutex<bool>, Condvar)) {
    let tick = Duration::from_millis(TICK_MS);
    let mut due = Instant::now() + tick;
    let mut stopped = stopped.lock();
    let mut passes = 0;
    while !*stopped {
        if !changed.wait_until(&mut stopped, due).timed_out() {
            continue;
        }
        MutexGuard::unlocked(&mut stopped, || {
            let now_ms = links.now_ms();
            let partitions = links.partitions();
            let due = partitions.iter().filter(|one| one.pulse.is_due(now_ms));
            due.filter_map(|one| one.partition.upgrade()).for_each(|partition| partition.tick(now_ms));
            passes += 1;
            if passes % REPEAT_TICKS == 0 {
                links.repeat(now_ms);
            }
        });
        // Ticks that were missed are not made up for: replicas see by the clock how late it is.
        due = (due + tick).max(Instant::now());
    }
}
