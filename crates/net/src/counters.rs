//! Counters of connections and requests.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use mainstem_wire::ApiKey;
use parking_lot::RwLock;

use crate::latency::{API_KEYS, Latencies};

/// Counts since the start.
pub struct Counters {
    /// Sizes and times of requests.
    pub latencies: Latencies,
    /// Authentications by listener.
    pub authentications: Authentications,
    request_bytes: [AtomicU64; API_KEYS],
    closed: AtomicU64,
}

impl Default for Counters {
    fn default() -> Self {
        Counters {
            latencies: Latencies::default(),
            authentications: Authentications::default(),
            request_bytes: std::array::from_fn(|_| Default::default()),
            closed: AtomicU64::new(0),
        }
    }
}

impl Counters {
    /// Counts a request of this many bytes.
    pub fn received(&self, api: ApiKey, bytes: usize) {
        self.latencies.received(api, bytes);
        self.request_bytes[api as usize].fetch_add(bytes as u64, Ordering::Relaxed);
    }

    /// Bytes of requests of an API.
    pub fn request_bytes(&self, api: ApiKey) -> u64 {
        self.request_bytes[api as usize].load(Ordering::Relaxed)
    }

    /// A connection was closed for a reason worth a log line.
    pub fn closed(&self) {
        self.closed.fetch_add(1, Ordering::Relaxed);
    }

    /// The number of connections that were closed for such a reason.
    pub fn closed_total(&self) -> u64 {
        self.closed.load(Ordering::Relaxed)
    }
}

/// Counts of all listeners, by their names.
#[derive(Default)]
pub struct Authentications(RwLock<BTreeMap<String, Arc<ListenerAuthentications>>>);

/// Counts of one listener.
#[derive(Default)]
pub struct ListenerAuthentications {
    /// First authentications, and renewals of a session.
    succeeded: [AtomicU64; 2],
    failed: [AtomicU64; 2],
    expired: AtomicU64,
}

impl ListenerAuthentications {
    /// A connection was authenticated, or `again`.
    pub fn succeeded(&self, again: bool) {
        self.succeeded[usize::from(again)].fetch_add(1, Ordering::Relaxed);
    }

    /// Credentials were refused, or a renewal was.
    pub fn failed(&self, again: bool) {
        self.failed[usize::from(again)].fetch_add(1, Ordering::Relaxed);
    }

    /// Connections that were authenticated, or `again`.
    pub fn succeeded_total(&self, again: bool) -> u64 {
        self.succeeded[usize::from(again)].load(Ordering::Relaxed)
    }

    /// Credentials that were refused, or in renewals.
    pub fn failed_total(&self, again: bool) -> u64 {
        self.failed[usize::from(again)].load(Ordering::Relaxed)
    }

    /// Connections that were closed since their session was over.
    pub fn expired_total(&self) -> u64 {
        self.expired.load(Ordering::Relaxed)
    }

    /// A connection was closed since its session was over.
    pub fn expired(&self) {
        self.expired.fetch_add(1, Ordering::Relaxed);
    }
}

impl Authentications {
    /// The counts of a listener. There are as many as the configuration has listeners.
    pub fn of(&self, listener: &str) -> Arc<ListenerAuthentications> {
        if let Some(counts) = self.0.read().get(listener) {
            return counts.clone();
        }
        self.0.write().entry(listener.to_owned()).or_default().clone()
    }

    /// The counts of all listeners, by their names.
    pub fn all(&self) -> Vec<(String, Arc<ListenerAuthentications>)> {
        self.0.read().iter().map(|(listener, counts)| (listener.clone(), counts.clone())).collect()
    }
}
