//! Meters of clients against their limits.

use super::entities::Entities;
use super::limits::{Client, ClientLimits};
use super::rate::Rate;
use super::token_bucket::TokenBucket;
use mainstem_config::Windows;

/// A throttle time is reported for this long after it was set.
const THROTTLE_SHOWN_MS: u64 = 60_000;

/// A quota on a rate: bytes produced, bytes fetched, time of threads.
#[derive(Debug)]
pub struct RateQuota {
    windows: Windows,
    /// The longest throttle time of one answer.
    throttle_max_ms: u64,
    limits: ClientLimits,
    clients: Entities<Measured>,
}

/// The rate of a client, and the end of its debt.
#[derive(Debug, Default)]
struct Measured {
    rate: Rate,
    /// The client has had more than all windows hold, and gets nothing before this time.
    until_ms: u64,
}

/// The verdict on an answer to a client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Charged {
    /// It is sent.
    Within,
    /// An empty one is sent: the client is throttled for so many milliseconds, and asks again.
    Instead(u64),
    /// It is sent, and the client is throttled for so many milliseconds after it.
    After(u64),
}

/// The use that a client makes of its limit.
#[derive(Debug, Clone, PartialEq)]
pub struct Usage {
    /// Its user, or empty if clients of all users share the limit.
    pub user: String,
    /// Its client id, or empty if all client ids share the limit.
    pub client_id: String,
    /// Its rate per second; for a token bucket the tokens that are left.
    pub value: f64,
    /// Its last throttle time in the last minute.
    pub throttle_ms: u64,
}

impl RateQuota {
    /// A quota without limits.
    pub fn new(windows: Windows) -> RateQuota {
        let (limits, clients) = (ClientLimits::default(), Entities::new());
        RateQuota { windows, throttle_max_ms: u64::MAX, limits, clients }
    }

    /// The same with a longest throttle time: for time of threads, one window.
    pub fn with_throttle_max_ms(self, throttle_max_ms: u64) -> RateQuota {
        RateQuota { throttle_max_ms, ..self }
    }

    /// Sets other limits; measured rates stay.
    pub fn set_limits(&mut self, limits: ClientLimits) {
        if limits.is_empty() {
            self.clients.clear();
        }
        self.limits = limits;
    }

    /// Returns true if any client has a limit.
    pub fn is_active(&self) -> bool {
        !self.limits.is_empty()
    }

    /// Charges a client. Returns its throttle time in milliseconds.
    pub fn charge(&mut self, client: Client<'_>, value: f64, now_ms: u64) -> u64 {
        let Some((tags, limit)) = self.limits.find(client) else { return 0 };
        let entry = self.clients.get(tags, now_ms, self.windows.span_ms(), Measured::default);
        entry.meter.rate.record(self.windows, value, now_ms);
        let throttle_ms = entry.meter.rate.throttle_ms(self.windows, limit, now_ms).min(self.throttle_max_ms);
        if throttle_ms > 0 {
            entry.throttled = Some((throttle_ms, now_ms));
        }
        throttle_ms
    }

    /// Charges a client for an answer.
    ///
    /// An answer that is larger than all windows, such as a large batch, would never fit them. A client without recent answers gets
    /// it, and nothing more for the time that it takes at the rate of the quota, on any connection. Kafka never delivers it.
    pub fn charge_answer(&mut self, client: Client<'_>, value: f64, now_ms: u64) -> Charged {
        let Some((tags, limit)) = self.limits.find(client) else { return Charged::Within };
        let entry = self.clients.get(tags, now_ms, self.windows.span_ms(), Measured::default);
        let owed_ms = entry.meter.until_ms.saturating_sub(now_ms);
        let is_idle = owed_ms == 0 && entry.meter.rate.per_second(self.windows, now_ms) <= 0.0;
        let is_beyond = value > limit * self.windows.span_ms() as f64 / 1000.0;
        if is_idle && is_beyond {
            entry.meter.rate.record(self.windows, value, now_ms);
            // A float becomes an integer by saturation.
            let throttle_ms = (value / limit * 1000.0) as u64;
            entry.meter.until_ms = now_ms.saturating_add(throttle_ms);
            entry.throttled = Some((throttle_ms, now_ms));
            return Charged::After(throttle_ms);
        }
        match self.charge(client, value, now_ms).max(owed_ms) {
            0 => Charged::Within,
            throttle_ms => Charged::Instead(throttle_ms),
        }
    }

    /// Takes back a charge: the answer was left empty instead.
    pub fn refund(&mut self, client: Client<'_>, value: f64, now_ms: u64) {
        if let Some((tags, _)) = self.limits.find(client) {
            let entry = self.clients.get(tags, now_ms, self.windows.span_ms(), Measured::default);
            entry.meter.rate.record(self.windows, -value, now_ms);
        }
    }

    /// The most that a client can do at once without being held back for it in any case.
    pub fn most_at_once(&self, client: Client<'_>) -> Option<f64> {
        self.limits.find(client).map(|(_, limit)| limit * self.windows.full_seconds())
    }

    /// Clients that are measured, at most [`super::ENTITIES_MAX`].
    pub fn len(&self) -> usize {
        self.clients.len()
    }

    /// Returns true if no client is measured.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The use of clients with limits.
    pub fn usage(&mut self, now_ms: u64) -> impl Iterator<Item = Usage> {
        let windows = self.windows;
        self.clients.iter_mut().map(move |(user, client_id, entry)| Usage {
            user: user.to_owned(),
            client_id: client_id.to_owned(),
            value: entry.meter.rate.per_second(windows, now_ms),
            throttle_ms: recent_throttle_ms(entry.throttled, now_ms),
        })
    }
}

fn recent_throttle_ms(throttled: Option<(u64, u64)>, now_ms: u64) -> u64 {
    throttled.filter(|(_, at)| now_ms.saturating_sub(*at) < THROTTLE_SHOWN_MS).map_or(0, |(time, _)| time)
}

/// The treatment of changes above a quota (KIP-599).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Strictness {
    /// They are refused, with THROTTLING_QUOTA_EXCEEDED.
    Strict,
    /// They are made, and the client is throttled after them: for versions of requests that do not know the error.
    Permissive,
}

/// The verdict on a change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Taken {
    /// It may be made; the client is held back for so many milliseconds, 0 within its quota.
    Granted(u64),
    /// It may not be made before so many milliseconds have passed.
    Refused(u64),
}

/// A quota on partitions that are created and deleted, as a token bucket.
#[derive(Debug)]
pub struct MutationQuota {
    windows: Windows,
    limits: ClientLimits,
    clients: Entities<TokenBucket>,
}

impl MutationQuota {
    /// A quota without limits.
    pub fn new(windows: Windows) -> MutationQuota {
        MutationQuota { windows, limits: ClientLimits::default(), clients: Entities::new() }
    }

    /// Sets other limits; taken tokens stay taken.
    pub fn set_limits(&mut self, limits: ClientLimits) {
        if limits.is_empty() {
            self.clients.clear();
        }
        self.limits = limits;
    }

    /// Returns true if any client has a limit.
    pub fn is_active(&self) -> bool {
        !self.limits.is_empty()
    }

    /// Takes tokens for a change of so many partitions. A bucket that is not empty grants any number.
    pub fn take(&mut self, client: Client<'_>, permits: f64, strictness: Strictness, now_ms: u64) -> Taken {
        let Some((tags, limit)) = self.limits.find(client) else { return Taken::Granted(0) };
        let windows = self.windows;
        let full = || TokenBucket::full(windows, limit, now_ms);
        // A bucket that was overdrawn by a large change takes longer than the windows to fill.
        let entry = self.clients.get(tags, now_ms, windows.span_ms().saturating_mul(10), full);
        let overdrawn_ms = entry.meter.throttle_ms(windows, limit, now_ms);
        let taken = if strictness == Strictness::Strict && overdrawn_ms > 0 {
            Taken::Refused(overdrawn_ms)
        } else {
            entry.meter.take(windows, limit, permits, now_ms);
            let after_ms = entry.meter.throttle_ms(windows, limit, now_ms);
            Taken::Granted(if strictness == Strictness::Strict { 0 } else { after_ms })
        };
        if let Taken::Refused(throttle_ms @ 1..) | Taken::Granted(throttle_ms @ 1..) = taken {
            entry.throttled = Some((throttle_ms, now_ms));
        }
        taken
    }

    /// The tokens that clients with limits have left.
    pub fn usage(&mut self, now_ms: u64) -> impl Iterator<Item = Usage> {
        let (windows, limits) = (self.windows, &self.limits);
        self.clients.iter_mut().map(move |(user, client_id, entry)| {
            let limit = limits.find(Client { user, client_id }).map_or(0.0, |(_, limit)| limit);
            Usage {
                user: user.to_owned(),
                client_id: client_id.to_owned(),
                value: entry.meter.tokens(windows, limit, now_ms),
                throttle_ms: recent_throttle_ms(entry.throttled, now_ms),
            }
        })
    }
}
