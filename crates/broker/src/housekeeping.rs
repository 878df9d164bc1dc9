//! Periodic work: that of the store, snapshots of the metadata, key stores, memory. It has one thread, since most of
//! it may wait for the disk.

use std::io;
use std::sync::Arc;

use std::time::Duration;

use mainstem_runtime::sync::Condvar;
use parking_lot::Mutex;

use crate::broker::Broker;
use mainstem_net::latency::{Part, Since};
use mainstem_runtime::heap::Trimming;
use mainstem_runtime::supervised::{self, Role};
use mainstem_store::upkeep::{Every, Upkeep};
use mainstem_wire::ApiKey;

/// The interval of checks for due work. `flush.ms` and `file.delete.delay.ms` are as exact as this.
const TICK: Duration = Duration::from_millis(500);

/// The interval of checks whether the key stores of listeners have changed, and of log lines about certificates and
/// denials.
const SECURITY_INTERVAL_MS: u64 = 10_000;

/// The interval of checks whether much memory was freed.
const TRIM_INTERVAL_MS: u64 = 2_000;

/// The interval of looks at how fast producers get their acknowledgements.
const ACKNOWLEDGEMENTS_INTERVAL_MS: u64 = 1_000;

/// The thread, with a way to end it.
pub(crate) struct Housekeeping {
    stop: Arc<(Mutex<bool>, Condvar)>,
    thread: mainstem_runtime::sync::Thread,
}

impl Housekeeping {
    /// Starts the thread.
    ///
    /// # Errors
    /// The system's, when no thread can be made.
    pub(crate) fn start(broker: Arc<Broker>) -> io::Result<Self> {
        let stop = Arc::new((Mutex::new(false), Condvar::new()));
        let own = stop.clone();
        let role = Role::Tidies("retention, due syncs and checkpoints are not done any more");
        let panics = broker.panics.clone();
        let thread = supervised::spawn(&panics, "housekeeping", role, move || {
            let mut rounds = Rounds::new(&broker);
            loop {
                let (stopped, changed) = &*own;
                let mut stopped = stopped.lock();
                let due = broker.clock.instant() + TICK;
                while !*stopped && !broker.clock.wait_until(changed, &mut stopped, due) {}
                if *stopped {
                    return;
                }
                drop(stopped);
                rounds.run(&broker);
            }
        })?;
        Ok(Housekeeping { stop, thread })
    }

    /// Ends the thread after its current work.
    pub(crate) fn stop(self) {
        let (stopped, changed) = &*self.stop;
        *stopped.lock() = true;
        changed.notify_all();
        let _ = self.thread.join();
    }
}

/// Work with its interval.
struct Rounds {
    upkeep: Upkeep,
    security: Every,
    trim: Every,
    trimming: Trimming,
    acknowledgements: Every,
    acknowledged: Since,
}

impl Rounds {
    fn new(broker: &Broker) -> Self {
        let clock = &broker.clock;
        Rounds {
            upkeep: Upkeep::new(&broker.store),
            security: Every::new(clock, SECURITY_INTERVAL_MS),
            trim: Every::new(clock, TRIM_INTERVAL_MS),
            trimming: Trimming::default(),
            acknowledgements: Every::new(clock, ACKNOWLEDGEMENTS_INTERVAL_MS),
            acknowledged: Since::default(),
        }
    }

    fn run(&mut self, broker: &Broker) {
        let now = broker.clock.instant();
        broker.controller.snapshot_if_due(&broker.clock, &broker.config().metadata_log);
        if self.security.is_due(now) {
            broker.security.look_after();
        }
        if self.trim.is_due(now) {
            self.trimming.look();
        }
        if self.acknowledgements.is_due(now) {
            self.look_at_acknowledgements(broker);
        }
        // This is the longest part, which waits for disks.
        self.upkeep.run(&broker.store, broker.controller.log());
    }

    /// Copies of partitions are as fast as producers hardly notice.
    fn look_at_acknowledgements(&mut self, broker: &Broker) {
        let latencies = &broker.net.counters.latencies;
        let p99_ms = latencies.quantile_since(&mut self.acknowledged, ApiKey::Produce, Part::Total, 0.99);
        let p99_us = p99_ms.map(|ms| (ms * 1_000.0) as u64);
        broker.store.copies.note_acknowledgements(p99_us, broker.clock.mono_ms());
    }
}
