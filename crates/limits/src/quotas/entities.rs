//! Meters by client, with a bound: clients choose their client ids, and so the number of meters.

use std::collections::HashMap;

use super::limits::Tags;

/// The most meters that are kept, about 500 bytes each with the default windows. Further clients share one meter.
pub const ENTITIES_MAX: usize = 10_000;

/// A meter that was not used for this long is dropped, as in Kafka.
const IDLE_MS: u64 = 3_600_000;

/// The interval at which idle meters are dropped.
const SWEEP_INTERVAL_MS: u64 = 60_000;

/// The interval at which meters that equal new ones are dropped, while the most meters are kept.
const CROWDED_SWEEP_INTERVAL_MS: u64 = 1_000;

/// Meters by user and client id.
#[derive(Debug)]
pub(super) struct Entities<M> {
    meters: HashMap<String, MeterEntry<M>>,
    /// Shared by clients for which no further meter may be kept.
    others: Option<MeterEntry<M>>,
    /// The key of the last look-up; kept so that a look-up allocates nothing.
    key: String,
    swept_ms: u64,
}

/// A meter, its last use, and the last throttling that is reported.
#[derive(Debug)]
pub(super) struct MeterEntry<M> {
    pub(super) meter: M,
    pub(super) used_ms: u64,
    /// The last throttle time of a client of it, and when that was, both in milliseconds.
    pub(super) throttled: Option<(u64, u64)>,
}

/// Separates user and client id in a key: Kafka cannot even log a name that contains it.
const BETWEEN: char = '\0';

impl<M> Entities<M> {
    pub(super) fn new() -> Self {
        Entities { meters: HashMap::new(), others: None, key: String::new(), swept_ms: 0 }
    }

    /// The meter of these names, made if there is none. `fresh_ms`: a meter that was not used for so long equals a new one.
    pub(super) fn get(
        &mut self,
        tags: Tags<'_>,
        now_ms: u64,
        fresh_ms: u64,
        make: impl FnOnce() -> M,
    ) -> &mut MeterEntry<M> {
        self.sweep(now_ms, SWEEP_INTERVAL_MS, IDLE_MS);
        self.key.clear();
        self.key.push_str(tags.user);
        self.key.push(BETWEEN);
        self.key.push_str(tags.client_id);
        let is_known = self.meters.contains_key(&self.key);
        if !is_known && self.meters.len() >= ENTITIES_MAX {
            self.sweep(now_ms, CROWDED_SWEEP_INTERVAL_MS, fresh_ms);
        }
        let new = || MeterEntry { meter: make(), used_ms: now_ms, throttled: None };
        let entry = if is_known {
            self.meters.get_mut(&self.key).expect("it was there right now")
        } else if self.meters.len() >= ENTITIES_MAX {
            self.others.get_or_insert_with(new)
        } else {
            self.meters.entry(self.key.clone()).or_insert_with(new)
        };
        entry.used_ms = entry.used_ms.max(now_ms);
        entry
    }

    fn sweep(&mut self, now_ms: u64, interval_ms: u64, idle_ms: u64) {
        if now_ms.saturating_sub(self.swept_ms) >= interval_ms {
            self.swept_ms = now_ms;
            self.meters.retain(|_, entry| now_ms.saturating_sub(entry.used_ms) < idle_ms);
        }
    }

    /// Forgets all meters.
    pub(super) fn clear(&mut self) {
        self.meters = HashMap::new();
        self.others = None;
    }

    pub(super) fn len(&self) -> usize {
        self.meters.len()
    }

    /// All meters with their user and client id.
    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = (&str, &str, &mut MeterEntry<M>)> {
        self.meters.iter_mut().map(|(key, entry)| {
            let (user, client_id) = key.split_once(BETWEEN).expect("every key has it");
            (user, client_id, entry)
        })
    }
}
