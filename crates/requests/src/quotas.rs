//! The driver of client quotas: it asks the state machines for throttle times.
//!
//! Without quotas a request costs one look at a flag per kind of quota. A client above a quota gets its answer at once, with the
//! throttle time in it, and its connection is not read until that time is over (KIP-219).

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use mainstem_config::QuotaConfig;
use mainstem_limits::quotas::{
    Admission, Charged, Client, ClientLimits, ConnectionQuota, ConnectionRates, IpLimits, MutationQuota,
    QuotaEntity, QuotaKey, RateQuota, Strictness, Taken, Usage,
};
use parking_lot::Mutex;

use crate::context::{ConnectionContext, RequestContext};
use crate::host_names::{Addresses, HostNames, addresses};
use mainstem_runtime::clock::{Clock, machine_now};

/// The longest time in which all host names of requests are looked up; later names count as unknown.
const RESOLVE_TIME_MAX: Duration = Duration::from_secs(10);

/// The longest time that a request with host names waits for another one's lookup.
const RESOLVE_TURN_MAX: Duration = Duration::from_secs(1);

/// A state machine behind a flag that says whether it has any limit.
struct Gate<Q> {
    active: AtomicBool,
    quota: Mutex<Q>,
}

impl<Q> Gate<Q> {
    fn new(quota: Q) -> Self {
        Gate { active: AtomicBool::new(false), quota: Mutex::new(quota) }
    }

    fn is_active(&self) -> bool {
        self.active.load(Ordering::Relaxed)
    }
}

/// All quotas of clients.
pub struct Quotas {
    clock: Clock,
    produce: Gate<RateQuota>,
    fetch: Gate<RateQuota>,
    request: Gate<RateQuota>,
    mutations: Gate<MutationQuota>,
    connections: Arc<Mutex<ConnectionQuota>>,
    /// Host names in quotas.
    hosts: Arc<HostNames>,
    /// Held while a request looks names up: others do not wait long for a resolver that hangs.
    resolving: Mutex<()>,
}

/// The time that threads spent on a request, event loops and those in the background; counted only while any client has
/// a quota on it.
pub struct ThreadTime {
    work: Mutex<Work>,
    charged: AtomicBool,
}

struct Work {
    /// The time since which a thread works on it; None while the request waits.
    since: Option<Instant>,
    spent: Duration,
}

impl ThreadTime {
    /// Begins to count: a thread has just taken the request up.
    fn begin() -> Self {
        let work = Work { since: Some(machine_now()), spent: Duration::ZERO };
        ThreadTime { work: Mutex::new(work), charged: AtomicBool::new(false) }
    }

    /// Stops counting: the request waits.
    pub fn pause(&self) {
        let mut work = self.work.lock();
        work.spent = work.spent();
        work.since = None;
    }

    /// Continues to count: a thread works on the request again.
    pub fn resume(&self) {
        self.work.lock().since = Some(machine_now());
    }

    fn percent(&self) -> f64 {
        self.work.lock().spent().as_secs_f64() * 100.0
    }
}

impl Work {
    fn spent(&self) -> Duration {
        self.spent + self.since.map_or(Duration::ZERO, |since| machine_now().duration_since(since))
    }
}

/// The usage of each kind of quota: the kind as in Kafka's metrics, and the clients with a quota.
pub type UsageByKind = [(&'static str, Vec<Usage>); 4];

impl Quotas {
    /// Quotas without limits.
    pub fn new(config: &QuotaConfig, clock: Clock) -> Self {
        let windows = config.windows;
        let rates = || Gate::new(RateQuota::new(windows));
        Quotas {
            clock,
            produce: rates(),
            fetch: rates(),
            request: Gate::new(RateQuota::new(windows).with_throttle_max_ms(windows.size_ms)),
            mutations: Gate::new(MutationQuota::new(config.controller_windows)),
            connections: Arc::new(Mutex::new(ConnectionQuota::new(windows))),
            hosts: HostNames::new(),
            resolving: Mutex::default(),
        }
    }

    /// Takes over the quotas of the metadata, without waiting. Quotas of host names apply once these are looked up.
    pub fn update(&self, quotas: &BTreeMap<QuotaEntity, BTreeMap<String, f64>>) {
        let rates = [
            (&self.produce, QuotaKey::ProducerByteRate),
            (&self.fetch, QuotaKey::ConsumerByteRate),
            (&self.request, QuotaKey::RequestPercentage),
        ];
        for (gate, key) in rates {
            let mut quota = gate.quota.lock();
            quota.set_limits(ClientLimits::new(quotas, key));
            gate.active.store(quota.is_active(), Ordering::Relaxed);
        }
        let mut mutations = self.mutations.quota.lock();
        mutations.set_limits(ClientLimits::new(quotas, QuotaKey::ControllerMutationRate));
        self.mutations.active.store(mutations.is_active(), Ordering::Relaxed);
        drop(mutations);
        let names = quotas.keys().filter_map(|entity| entity.ip.as_ref()?.as_deref().map(str::to_owned));
        let (connections, limits) = (self.connections.clone(), quotas.clone());
        let apply = move |known: &Addresses| {
            let resolve = |name: &str| known.get(name).cloned().unwrap_or_default();
            connections.lock().set_ip_limits(IpLimits::new(&limits, &resolve));
        };
        self.hosts.set(names, Arc::new(apply));
    }

    /// The names that are addresses or can be looked up. It may wait for the resolver. While another request looks names up, names
    /// that are no addresses count as unknown.
    pub fn resolvable<'a>(&self, names: impl Iterator<Item = &'a str>) -> Vec<String> {
        let turn = self.resolving.try_lock_for(RESOLVE_TURN_MAX);
        let until = self.clock.instant() + RESOLVE_TIME_MAX;
        let may_ask = || turn.is_some() && self.clock.instant() < until;
        let is_known =
            |name: &&str| name.parse::<IpAddr>().is_ok() || (may_ask() && !addresses(name).is_empty());
        names.filter(is_known).map(str::to_owned).collect()
    }

    /// Charges a client for produced bytes. Returns its throttle time.
    pub fn produced(&self, context: &RequestContext, bytes: usize) -> Option<Duration> {
        self.charge(&self.produce, context, bytes as f64)
    }

    /// Charges a client for fetched bytes. If it is throttled instead, its answer is empty, and the bytes are not charged.
    pub fn fetched(&self, context: &RequestContext, bytes: impl FnOnce() -> usize) -> Fetched {
        if !self.fetch.is_active() && context.time.is_none() {
            return Fetched::Sent(None);
        }
        let by_time = self.request_took(context);
        if !self.fetch.is_active() {
            return by_time.map_or(Fetched::Sent(None), Fetched::Held);
        }
        let (client, bytes, now_ms) = (client(context), bytes() as f64, self.clock.mono_ms());
        let mut quota = self.fetch.quota.lock();
        let by_bytes = match quota.charge_answer(client, bytes, now_ms) {
            Charged::Within => None,
            Charged::After(throttle_ms) if by_time.is_none() => {
                return Fetched::Sent(Some(duration(throttle_ms)));
            }
            Charged::Instead(throttle_ms) | Charged::After(throttle_ms) => Some(duration(throttle_ms)),
        };
        match by_time.max(by_bytes) {
            None => Fetched::Sent(None),
            Some(held) => {
                quota.refund(client, bytes, now_ms);
                Fetched::Held(held)
            }
        }
    }

    /// Bytes that a client can always fetch at once without being throttled.
    pub fn fetch_bytes_max(&self, context: &RequestContext) -> Option<usize> {
        if !self.fetch.is_active() {
            return None;
        }
        let most = self.fetch.quota.lock().most_at_once(client(context))?;
        // A float becomes an integer by saturation.
        Some(most as usize)
    }

    /// Begins to count a request's time, if it has a quota on it.
    pub fn begin_request(&self) -> Option<ThreadTime> {
        self.request.is_active().then(ThreadTime::begin)
    }

    /// Charges a client for the time of a request that is answered, once per request. Returns its throttle time.
    pub fn request_took(&self, context: &RequestContext) -> Option<Duration> {
        let time = context.time.as_ref()?;
        if time.charged.swap(true, Ordering::Relaxed) {
            return None;
        }
        self.charge(&self.request, context, time.percent())
    }

    /// The quota on partitions that a request may create or delete.
    pub fn mutations<'a>(&'a self, context: &'a RequestContext, strict_since: i16) -> Mutations<'a> {
        let strictness = match context.version >= strict_since {
            true => Strictness::Strict,
            false => Strictness::Permissive,
        };
        Mutations { quotas: self, context, strictness, throttle_ms: 0 }
    }

    /// Judges a new connection.
    pub fn admit(&self, listener: usize, address: IpAddr, rates: ConnectionRates) -> Admission {
        self.connections.lock().admit(listener, address, rates, self.clock.mono_ms())
    }

    /// The use that clients make of their quotas.
    pub fn usage(&self) -> UsageByKind {
        let now_ms = self.clock.mono_ms();
        let rates = |gate: &Gate<RateQuota>| gate.quota.lock().usage(now_ms).collect();
        [
            ("Produce", rates(&self.produce)),
            ("Fetch", rates(&self.fetch)),
            ("Request", rates(&self.request)),
            ("ControllerMutation", self.mutations.quota.lock().usage(now_ms).collect()),
        ]
    }

    fn charge(&self, gate: &Gate<RateQuota>, context: &RequestContext, value: f64) -> Option<Duration> {
        if !gate.is_active() {
            return None;
        }
        let throttle_ms = gate.quota.lock().charge(client(context), value, self.clock.mono_ms());
        (throttle_ms > 0).then(|| duration(throttle_ms))
    }
}

/// The verdict of the quotas on an answer with records.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fetched {
    /// It is sent, and its client is throttled for so long after it.
    Sent(Option<Duration>),
    /// It is left empty, and its client is throttled for so long.
    Held(Duration),
}

/// One request with the quota on partitions that are created and deleted (KIP-599).
pub struct Mutations<'a> {
    quotas: &'a Quotas,
    context: &'a RequestContext,
    strictness: Strictness,
    throttle_ms: u64,
}

impl Mutations<'_> {
    /// Returns true if so many partitions may be created or deleted.
    pub fn permit(&mut self, partitions: usize) -> bool {
        if !self.quotas.mutations.is_active() {
            return true;
        }
        let mut quota = self.quotas.mutations.quota.lock();
        let now_ms = self.quotas.clock.mono_ms();
        let (granted, throttle_ms) =
            match quota.take(client(self.context), partitions as f64, self.strictness, now_ms) {
                Taken::Granted(throttle_ms) => (true, throttle_ms),
                Taken::Refused(throttle_ms) => (false, throttle_ms),
            };
        self.throttle_ms = self.throttle_ms.max(throttle_ms);
        granted
    }

    /// The throttle time of the client.
    pub fn throttle(&self) -> Option<Duration> {
        (self.throttle_ms > 0).then(|| duration(self.throttle_ms))
    }
}

/// A duration of at most a year, which stands for ever: an instant has to be able to hold it.
fn duration(ms: u64) -> Duration {
    const YEAR_MS: u64 = 365 * 24 * 3_600_000;
    Duration::from_millis(ms.min(YEAR_MS))
}

fn client(context: &RequestContext) -> Client<'_> {
    Client { user: user(&context.connection), client_id: context.client_id.as_deref().unwrap_or_default() }
}

/// The principal's name without its type.
fn user(connection: &ConnectionContext) -> &str {
    connection.principal.split_once(':').map_or(&*connection.principal, |(_, name)| name)
}
