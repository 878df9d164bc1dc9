//! Counts of a listener's TLS handshakes, by protocol and cipher suite, and of its open sessions.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use mainstem_security::tls::TlsSession;
use parking_lot::Mutex;

/// Counts of one listener.
#[derive(Default)]
pub struct Handshakes {
    /// By protocol and cipher suite, of which there are about a dozen.
    by_suite: Mutex<BTreeMap<(&'static str, String), Arc<SuiteCounts>>>,
    failed: AtomicU64,
}

#[derive(Default)]
struct SuiteCounts {
    done: AtomicU64,
    open: AtomicU64,
}

/// A session that counts as open until this is dropped.
pub struct OpenSession(Arc<SuiteCounts>);

impl Drop for OpenSession {
    fn drop(&mut self) {
        self.0.open.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Counts of one protocol with one cipher suite.
pub struct SuiteReport {
    /// As in `TLSv1.3`.
    pub protocol: &'static str,
    /// As in `TLS_AES_256_GCM_SHA384`.
    pub cipher: String,
    /// Handshakes that succeeded.
    pub done: u64,
    /// Sessions that are open.
    pub open: u64,
}

impl Handshakes {
    /// Counts a handshake that succeeded. The session counts as open until the result is dropped.
    pub fn done(&self, session: &TlsSession) -> OpenSession {
        let suite = (session.protocol().unwrap_or_default(), session.cipher_suite().unwrap_or_default());
        let counts = self.by_suite.lock().entry(suite).or_default().clone();
        counts.done.fetch_add(1, Ordering::Relaxed);
        counts.open.fetch_add(1, Ordering::Relaxed);
        OpenSession(counts)
    }

    /// Counts a handshake that failed.
    pub fn failed(&self) {
        self.failed.fetch_add(1, Ordering::Relaxed);
    }

    /// The number of failed handshakes so far.
    pub fn failures(&self) -> u64 {
        self.failed.load(Ordering::Relaxed)
    }

    /// Returns the counts so far, by protocol and cipher suite.
    pub fn report(&self) -> Vec<SuiteReport> {
        let by_suite = self.by_suite.lock();
        let report = by_suite.iter().map(|((protocol, cipher), counts)| SuiteReport {
            protocol,
            cipher: cipher.clone(),
            done: counts.done.load(Ordering::Relaxed),
            open: counts.open.load(Ordering::Relaxed),
        });
        report.collect()
    }
}
