//! What an orchestrator may ask of this node: where it is between start and stop, and which of its threads have died.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use mainstem_log::RecoveryWatch;
use parking_lot::Mutex;
use serde_json::{Value, json};

use crate::awaited::Awaited;
use crate::broker::Broker;
use crate::clock::Clock;

/// Where a node is between its start and its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Phase {
    /// Directories are opened, the metadata is read.
    Starting,
    /// Logs are opened and checked, coordinators loaded.
    Recovering,
    /// Clients are served.
    Serving,
    /// Clients are let go, logs are synced.
    Stopping,
}

/// What is known apart from the partitions.
pub(crate) struct Health {
    phase: Mutex<Phase>,
    dead_threads: Mutex<Vec<String>>,
    logs: AtomicUsize,
    logs_open: AtomicUsize,
    recovery: Arc<RecoveryWatch>,
    awaited: Arc<Awaited>,
    clock: Clock,
}

impl Health {
    /// That of a node which begins to start.
    pub(crate) fn new(recovery: Arc<RecoveryWatch>, awaited: Arc<Awaited>, clock: Clock) -> Self {
        Health {
            phase: Mutex::new(Phase::Starting),
            dead_threads: Mutex::default(),
            logs: AtomicUsize::new(0),
            logs_open: AtomicUsize::new(0),
            recovery,
            awaited,
            clock,
        }
    }

    /// The node is there now.
    pub(crate) fn enter(&self, phase: Phase) {
        *self.phase.lock() = phase;
    }

    /// Whether the start is to be broken off.
    pub(crate) fn is_broken_off(&self) -> bool {
        self.recovery.is_broken_off()
    }

    /// The place of the cause for which the start waits.
    pub(crate) fn awaited(&self) -> &Arc<Awaited> {
        &self.awaited
    }

    /// So many more logs are to be opened.
    pub(crate) fn logs_to_open(&self, count: usize) {
        self.logs.fetch_add(count, Ordering::Relaxed);
    }

    /// One of them is open, or never will be.
    pub(crate) fn log_opened(&self) {
        self.logs_open.fetch_add(1, Ordering::Relaxed);
    }

    /// A thread has panicked; `stopped` is what is not done any more.
    pub(crate) fn thread_died(&self, name: &str, stopped: &str) {
        self.dead_threads.lock().push(format!("the thread {name} has panicked: {stopped}"));
    }

    /// Looks whether the node serves with all its threads.
    ///
    /// # Errors
    /// Which have died.
    pub(crate) fn threads(&self) -> Result<(), String> {
        let dead = self.dead_threads.lock();
        if dead.is_empty() { Ok(()) } else { Err(dead.join("; ")) }
    }

    /// What `/health` answers, and whether that is good news.
    pub(crate) fn report(&self, broker: Option<&Broker>) -> (bool, Value) {
        let phase = *self.phase.lock();
        match (phase, broker) {
            (Phase::Serving, Some(broker)) => match self.threads().and_then(|()| broker.health()) {
                Ok(()) => match broker.full_disk() {
                    None => (true, serving_report(broker)),
                    Some(why) => (false, json!({ "status": "degraded", "reason": why })),
                },
                Err(why) => (false, json!({ "status": "failed", "reason": why })),
            },
            (Phase::Starting | Phase::Serving, _) => (false, self.waiting(json!({ "status": "starting" }))),
            (Phase::Recovering, _) => (false, self.waiting(self.recovery_report())),
            (Phase::Stopping, _) => (false, json!({ "status": "stopping" })),
        }
    }

    fn waiting(&self, mut report: Value) -> Value {
        self.awaited.add_to(&mut report, self.clock.mono_ms());
        report
    }

    fn recovery_report(&self) -> Value {
        json!({
            "status": "recovering",
            "logs": self.logs.load(Ordering::Relaxed),
            "logs_open": self.logs_open.load(Ordering::Relaxed),
            "bytes_checked": self.recovery.bytes(),
        })
    }
}

/// Of a node in a cluster also whether it may be stopped without harm. A certificate that expires, or has, is no reason to
/// start a node again or to send its clients away: those that are connected are served.
fn serving_report(broker: &Broker) -> Value {
    let mut report = match broker.cluster.as_ref().map(|cluster| cluster.may_stop(broker)) {
        None => json!({ "status": "ok" }),
        Some(Ok(())) => json!({ "status": "ok", "may_stop": true }),
        Some(Err(why)) => json!({ "status": "ok", "may_stop": false, "reason": why }),
    };
    let warnings = broker.security.warnings();
    if !warnings.is_empty() {
        report["warnings"] = json!(warnings);
    }
    report
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dead_thread_is_named() {
        let health = Health::new(Arc::default(), Arc::default(), Clock::start());
        assert_eq!(health.threads(), Ok(()));
        health.thread_died("cleaner-0", "nothing is compacted");
        assert!(health.threads().is_err_and(|why| why.contains("cleaner-0") && why.contains("compacted")));
    }

    #[test]
    fn a_recovery_tells_how_far_it_is() {
        let health = Health::new(Arc::default(), Arc::default(), Clock::start());
        assert_eq!(health.report(None), (false, json!({ "status": "starting" })));
        health.enter(Phase::Recovering);
        health.logs_to_open(3);
        health.log_opened();
        let expected = json!({ "status": "recovering", "logs": 3, "logs_open": 1, "bytes_checked": 0 });
        assert_eq!(health.report(None), (false, expected));
    }
}
