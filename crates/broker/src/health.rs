//! Health of this node for an orchestrator: its phase between start and stop, and threads that have died.

use std::sync::Arc;

use parking_lot::Mutex;
use serde_json::{Value, json};

use crate::security::Security;
use mainstem_links::awaited::Awaited;
use mainstem_node::cluster::Cluster;
use mainstem_runtime::clock::Clock;
use mainstem_runtime::supervised::Panics;
use mainstem_store::opening::OpeningProgress;
use mainstem_store::store::Store;

/// The phase of a node between its start and its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Phase {
    /// Directories are opened, the metadata is read.
    Starting,
    /// Logs are opened and checked, coordinators loaded.
    Recovering,
    /// Clients are served.
    Serving,
    /// Clients are disconnected, logs are synced.
    Stopping,
}

/// Health apart from that of the partitions.
pub(crate) struct Health {
    phase: Mutex<Phase>,
    panics: Arc<Panics>,
    opening: Arc<OpeningProgress>,
    awaited: Arc<Awaited>,
    clock: Clock,
}

impl Health {
    /// The health of a node that begins to start.
    pub(crate) fn new(
        panics: Arc<Panics>,
        opening: Arc<OpeningProgress>,
        awaited: Arc<Awaited>,
        clock: Clock,
    ) -> Self {
        Health { phase: Mutex::new(Phase::Starting), panics, opening, awaited, clock }
    }

    /// Enters a phase.
    pub(crate) fn enter(&self, phase: Phase) {
        *self.phase.lock() = phase;
    }

    /// Returns true if the start is to be interrupted.
    pub(crate) fn is_broken_off(&self) -> bool {
        self.opening.is_broken_off()
    }

    /// The cause for which the start waits.
    pub(crate) fn awaited(&self) -> &Arc<Awaited> {
        &self.awaited
    }

    /// The answer of `/health`, with true if the node is healthy.
    pub(crate) fn report(&self, serving: Option<&Serving<'_>>) -> (bool, Value) {
        let phase = *self.phase.lock();
        match (phase, serving) {
            (Phase::Serving, Some(serving)) => {
                match self.panics.threads().and_then(|()| serving.store.health()) {
                    Ok(()) => match serving.store.full_disk() {
                        None => (true, serving.report()),
                        Some(why) => (false, json!({ "status": "degraded", "reason": why })),
                    },
                    Err(why) => (false, json!({ "status": "failed", "reason": why })),
                }
            }
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
            "logs": self.opening.logs(),
            "logs_open": self.opening.logs_open(),
            "bytes_checked": self.opening.bytes_checked(),
        })
    }
}

/// The parts of a serving broker that its health depends on.
pub(crate) struct Serving<'a> {
    /// Log directories.
    pub(crate) store: &'a Store,
    /// The other nodes.
    pub(crate) cluster: Option<&'a Cluster>,
    /// Certificates and stores of the listeners.
    pub(crate) security: &'a Security,
}

impl Serving<'_> {
    /// The report. For a node in a cluster it also says whether the node may be stopped without harm. An expired
    /// certificate, or one that is about to expire, is no reason to restart a node or to send its clients away:
    /// existing connections are served.
    fn report(&self) -> Value {
        let mut report = match self.cluster.map(Cluster::may_stop) {
            None => json!({ "status": "ok" }),
            Some(Ok(())) => json!({ "status": "ok", "may_stop": true }),
            Some(Err(why)) => json!({ "status": "ok", "may_stop": false, "reason": why }),
        };
        let warnings = self.security.warnings();
        if !warnings.is_empty() {
            report["warnings"] = json!(warnings);
        }
        report
    }
}

#[cfg(test)]
mod tests {
    mod waiting;

    use std::io::{Read, Write};
    use std::net::{SocketAddr, TcpStream};

    use mainstem_runtime::supervised::{Role, spawn};

    use super::*;
    use crate::EmbeddedBroker;

    #[test]
    fn a_recovery_tells_how_far_it_is() {
        let opening = Arc::<OpeningProgress>::default();
        let health = Health::new(Arc::default(), opening.clone(), Arc::default(), Clock::start());
        assert_eq!(health.report(None), (false, json!({ "status": "starting" })));
        health.enter(Phase::Recovering);
        opening.logs_to_open(3);
        opening.log_opened();
        let expected = json!({ "status": "recovering", "logs": 3, "logs_open": 1, "bytes_checked": 0 });
        assert_eq!(health.report(None), (false, expected));
    }

    #[test]
    fn health_names_a_thread_that_only_tidied_up() {
        let broker = EmbeddedBroker::start(&[("mainstem.http.listener", "127.0.0.1:0")]);
        let http = broker.http().expect("it was configured");
        assert!(health(http).starts_with("HTTP/1.1 200"));
        let role = Role::Tidies("nothing is swept");
        let thread = spawn(&broker.broker().panics, "sweeper", role, || panic!("a mistake of the test"));
        thread.expect("a thread can be made").join().expect("its panic is caught");
        let answer = health(http);
        assert!(answer.starts_with("HTTP/1.1 503"), "{answer}");
        assert!(answer.contains("sweeper") && answer.contains("nothing is swept"), "{answer}");
    }

    /// The answer of `/health`, with its head.
    fn health(http: SocketAddr) -> String {
        let mut stream = TcpStream::connect(http).expect("it listens");
        let request = b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
        stream.write_all(request).expect("it reads");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("it answers, and closes");
        answer
    }
}
