//! Client instances: the subscription of each, and the order of its requests.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use mainstem_wire::{ErrorCode, Uuid};

use super::subscription::{ClientFacts, INTERVAL_MS_DEFAULT, Subscription};

/// The most client instances that are known at a time, as in Kafka; a further one replaces the one that was silent longest.
pub const INSTANCES_MAX: usize = 16_384;

/// An instance is forgotten after three intervals, at least after this time.
const EXPIRY_MS_MIN: u64 = 60_000;

/// The interval at which expired instances are forgotten.
const SWEEP_INTERVAL_MS: u64 = 10_000;

/// All metrics.
const ALL: &str = "*";

/// Codes of compression that are accepted: none, gzip, snappy, lz4, zstd.
const COMPRESSION_TYPES: std::ops::RangeInclusive<i8> = 0..=4;

/// The subscriptions, and the clients that have asked for theirs.
#[derive(Debug)]
pub struct Telemetry {
    bytes_max: usize,
    subscriptions: BTreeMap<String, Subscription>,
    /// Rises with each change of a subscription.
    version: u64,
    instances: HashMap<Uuid, Instance>,
    swept_ms: u64,
}

#[derive(Debug)]
struct Instance {
    subscribed: Subscribed,
    version: u64,
    got_ms: Option<u64>,
    pushed_ms: Option<u64>,
    terminating: bool,
    last_error: ErrorCode,
    used_ms: u64,
}

/// The subscription of a client instance.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Subscribed {
    /// Changes with metrics and interval.
    pub subscription_id: i32,
    /// Prefixes of metrics' names; `*` is for all metrics, an empty list for none.
    pub metrics: Vec<String>,
    /// Milliseconds between pushes.
    pub interval_ms: u32,
}

/// A push, without its payload.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Push {
    /// The client instance.
    pub id: Uuid,
    /// The subscription that it knows.
    pub subscription_id: i32,
    /// True if the client is about to end: the interval does not count.
    pub terminating: bool,
    /// Code of the payload's compression.
    pub compression_type: i8,
    /// Size of the payload as it was sent.
    pub bytes: usize,
}

impl Telemetry {
    /// Telemetry without a subscription. `bytes_max` is `telemetry.max.bytes`.
    pub fn new(bytes_max: usize) -> Telemetry {
        Telemetry {
            bytes_max,
            subscriptions: BTreeMap::new(),
            version: 0,
            instances: HashMap::new(),
            swept_ms: 0,
        }
    }

    /// Sets a subscription by its configuration; without any value it is removed.
    pub fn set_subscription(&mut self, name: &str, values: &BTreeMap<String, String>) {
        match values.is_empty() {
            true => drop(self.subscriptions.remove(name)),
            false => drop(self.subscriptions.insert(name.to_owned(), Subscription::new(values))),
        }
        self.version += 1;
    }

    /// Client instances that are known.
    pub fn len(&self) -> usize {
        self.instances.len()
    }

    /// Returns true if no client instance is known.
    pub fn is_empty(&self) -> bool {
        self.instances.is_empty()
    }

    /// GetTelemetrySubscriptions of a client instance.
    ///
    /// # Errors
    /// `THROTTLING_QUOTA_EXCEEDED` before its interval is over.
    pub fn get(&mut self, id: Uuid, client: &ClientFacts<'_>, now_ms: u64) -> Result<Subscribed, ErrorCode> {
        let instance = self.instance(id, client, now_ms);
        let last = instance.got_ms.max(instance.pushed_ms);
        let is_due = instance.is_due(last, now_ms);
        if is_due {
            instance.got_ms = Some(now_ms);
        }
        // After these errors a client asks again at once.
        let was_sent = [ErrorCode::UNKNOWN_SUBSCRIPTION_ID, ErrorCode::UNSUPPORTED_COMPRESSION_TYPE];
        if !is_due && !was_sent.contains(&instance.last_error) {
            return Err(ErrorCode::THROTTLING_QUOTA_EXCEEDED);
        }
        instance.last_error = ErrorCode::NONE;
        Ok(instance.subscribed.clone())
    }

    /// Judges a PushTelemetry of a client instance: without an error its payload is read.
    ///
    /// # Errors
    /// `INVALID_REQUEST` after its last push, `THROTTLING_QUOTA_EXCEEDED` before its interval is over,
    /// `UNKNOWN_SUBSCRIPTION_ID` when other metrics are subscribed by now, `UNSUPPORTED_COMPRESSION_TYPE`,
    /// `TELEMETRY_TOO_LARGE`.
    pub fn push(&mut self, push: &Push, client: &ClientFacts<'_>, now_ms: u64) -> Result<(), ErrorCode> {
        let bytes_max = self.bytes_max;
        let instance = self.instance(push.id, client, now_ms);
        let judged = instance.judge(push, bytes_max, now_ms);
        instance.terminating = push.terminating;
        instance.last_error = judged.err().unwrap_or(ErrorCode::NONE);
        judged
    }

    /// Notes that the payload of an accepted push could not be used.
    pub fn payload_refused(&mut self, id: Uuid, error: ErrorCode) {
        if let Some(instance) = self.instances.get_mut(&id) {
            instance.last_error = error;
        }
    }

    /// Milliseconds without a push after which the values of an instance are forgotten.
    pub fn expiry_ms(&self, id: Uuid) -> u64 {
        self.instances.get(&id).map_or(EXPIRY_MS_MIN, Instance::expiry_ms)
    }

    /// The instance, made if it is new, with its subscription as it is now.
    fn instance(&mut self, id: Uuid, client: &ClientFacts<'_>, now_ms: u64) -> &mut Instance {
        self.sweep(now_ms);
        if !self.instances.contains_key(&id) && self.instances.len() >= INSTANCES_MAX {
            let oldest = self.instances.iter().min_by_key(|(_, instance)| instance.used_ms);
            if let Some(oldest) = oldest.map(|(id, _)| *id) {
                self.instances.remove(&oldest);
            }
        }
        let stale = self.instances.get(&id).is_none_or(|instance| instance.version < self.version);
        if stale {
            let subscribed = self.subscribed(id, client);
            self.instances.insert(id, Instance::new(subscribed, self.version));
        }
        let instance = self.instances.get_mut(&id).expect("it was just made, if it was not there");
        instance.used_ms = now_ms;
        instance
    }

    fn subscribed(&self, id: Uuid, client: &ClientFacts<'_>) -> Subscribed {
        let matching = self.subscriptions.values().filter(|subscription| subscription.matches(id, client));
        let (mut metrics, mut interval_ms) = (BTreeSet::new(), INTERVAL_MS_DEFAULT);
        for subscription in matching {
            metrics.extend(subscription.metrics.iter().cloned());
            interval_ms = interval_ms.min(subscription.interval_ms);
        }
        let metrics = match metrics.contains(ALL) {
            true => vec![ALL.to_owned()],
            false => metrics.into_iter().collect(),
        };
        Subscribed { subscription_id: subscription_id(id, &metrics, interval_ms), metrics, interval_ms }
    }

    fn sweep(&mut self, now_ms: u64) {
        if now_ms.saturating_sub(self.swept_ms) >= SWEEP_INTERVAL_MS {
            self.swept_ms = now_ms;
            self.instances
                .retain(|_, instance| now_ms.saturating_sub(instance.used_ms) < instance.expiry_ms());
        }
    }
}

impl Instance {
    fn new(subscribed: Subscribed, version: u64) -> Instance {
        Instance {
            subscribed,
            version,
            got_ms: None,
            pushed_ms: None,
            terminating: false,
            last_error: ErrorCode::NONE,
            used_ms: 0,
        }
    }

    fn expiry_ms(&self) -> u64 {
        (u64::from(self.subscribed.interval_ms) * 3).max(EXPIRY_MS_MIN)
    }

    fn is_due(&self, last_ms: Option<u64>, now_ms: u64) -> bool {
        let interval_ms = u64::from(self.subscribed.interval_ms);
        last_ms.is_none_or(|last_ms| now_ms.saturating_sub(last_ms) >= interval_ms)
    }

    fn judge(&mut self, push: &Push, bytes_max: usize, now_ms: u64) -> Result<(), ErrorCode> {
        if self.terminating {
            return Err(ErrorCode::INVALID_REQUEST);
        }
        // The first push after a get comes early: clients spread it over half an interval to one and a half.
        let is_due = self.got_ms > self.pushed_ms || self.is_due(self.pushed_ms, now_ms);
        if is_due {
            self.pushed_ms = Some(now_ms);
        }
        if !is_due && !push.terminating {
            return Err(ErrorCode::THROTTLING_QUOTA_EXCEEDED);
        }
        if push.subscription_id != self.subscribed.subscription_id {
            return Err(ErrorCode::UNKNOWN_SUBSCRIPTION_ID);
        }
        if !COMPRESSION_TYPES.contains(&push.compression_type) {
            return Err(ErrorCode::UNSUPPORTED_COMPRESSION_TYPE);
        }
        if push.bytes > bytes_max {
            return Err(ErrorCode::TELEMETRY_TOO_LARGE);
        }
        Ok(())
    }
}

/// The id is the same for the same subscription of the same instance, on every node and after every start (FNV-1a).
fn subscription_id(id: Uuid, metrics: &[String], interval_ms: u32) -> i32 {
    let metrics = metrics.iter().flat_map(|metric| metric.bytes().chain([0]));
    let bytes = id.0.into_iter().chain(metrics).chain(interval_ms.to_be_bytes());
    let hash = bytes.fold(0x811c_9dc5_u32, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193));
    hash as i32
}
