//! Limits on the rate of new connections: of the broker, of a listener, of an address (KIP-612).

use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;

use super::entities::Entities;
use super::entity::{EntityName, QuotaEntity, QuotaKey};
use super::limits::Tags;
use super::rate::Rate;
use mainstem_config::Windows;
use mainstem_peers::Peer;

/// Connections per second, by address; the default is that of all other addresses.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct IpLimits {
    by_address: HashMap<IpAddr, f64>,
    default: Option<f64>,
}

impl IpLimits {
    /// The limits among all quotas. `resolve` finds the addresses of a host name.
    pub fn new<'a>(
        quotas: impl IntoIterator<Item = (&'a QuotaEntity, &'a BTreeMap<String, f64>)>,
        resolve: &dyn Fn(&str) -> Vec<IpAddr>,
    ) -> IpLimits {
        let mut limits = IpLimits::default();
        for (entity, values) in quotas {
            let Some(limit) = values.get(QuotaKey::ConnectionCreationRate.name()) else { continue };
            match &entity.ip {
                Some(EntityName::Default) => limits.default = Some(*limit),
                Some(EntityName::Named(name)) => {
                    limits.by_address.extend(resolve(name).into_iter().map(|address| (address, *limit)));
                }
                None => {}
            }
        }
        limits
    }

    /// The limit of an address, and the name that it is counted under: itself if it was named, otherwise that of its peer.
    fn find(&self, address: IpAddr) -> Option<(f64, String)> {
        let own = self.by_address.get(&address).map(|limit| (*limit, address.to_string()));
        own.or_else(|| self.default.map(|limit| (limit, Peer::of(address).to_string())))
    }
}

/// Limits of the configuration in connections per second.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ConnectionRates {
    /// `max.connection.creation.rate`.
    pub broker: u32,
    /// The same under the listener's prefix.
    pub listener: u32,
}

/// The verdict on a new connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Admission {
    /// It is served; the listener accepts the next one after so many milliseconds.
    Admitted {
        /// 0 within the limits.
        pause_ms: u64,
    },
    /// Its address connects too fast: it is closed after so many milliseconds, without having been served.
    Delayed {
        /// Above 0.
        close_after_ms: u64,
    },
}

/// The rates of new connections.
#[derive(Debug)]
pub struct ConnectionQuota {
    windows: Windows,
    ips: IpLimits,
    broker: Rate,
    listeners: HashMap<usize, Rate>,
    addresses: Entities<Rate>,
}

impl ConnectionQuota {
    /// A quota without limits of addresses.
    pub fn new(windows: Windows) -> ConnectionQuota {
        ConnectionQuota {
            windows,
            ips: IpLimits::default(),
            broker: Rate::default(),
            listeners: HashMap::new(),
            addresses: Entities::new(),
        }
    }

    /// Sets the limits of addresses.
    pub fn set_ip_limits(&mut self, limits: IpLimits) {
        self.ips = limits;
    }

    /// Judges a connection that a listener (its index in the configuration) has accepted from an address.
    pub fn admit(
        &mut self,
        listener: usize,
        address: IpAddr,
        rates: ConnectionRates,
        now_ms: u64,
    ) -> Admission {
        let own = self.listeners.entry(listener).or_default();
        let meters = [(&mut self.broker, rates.broker), (own, rates.listener)];
        let mut pause_ms = 0;
        for (meter, limit) in meters {
            meter.record(self.windows, 1.0, now_ms);
            // Kafka holds a listener back for at most one window.
            let throttle_ms = meter.throttle_ms(self.windows, f64::from(limit), now_ms);
            pause_ms = pause_ms.max(throttle_ms.min(self.windows.size_ms));
        }
        match self.address_throttle_ms(address, now_ms) {
            0 => Admission::Admitted { pause_ms },
            close_after_ms => {
                self.broker.record(self.windows, -1.0, now_ms);
                self.listeners.entry(listener).or_default().record(self.windows, -1.0, now_ms);
                Admission::Delayed { close_after_ms }
            }
        }
    }

    fn address_throttle_ms(&mut self, address: IpAddr, now_ms: u64) -> u64 {
        let Some((limit, text)) = self.ips.find(address) else { return 0 };
        let tags = Tags { user: "", client_id: &text };
        let entry = self.addresses.get(tags, now_ms, self.windows.span_ms(), Rate::default);
        entry.meter.record(self.windows, 1.0, now_ms);
        let throttle_ms = entry.meter.throttle_ms(self.windows, limit, now_ms).min(self.windows.size_ms);
        if throttle_ms > 0 {
            // It is not served, so it does not count; else an address that keeps trying would never get in.
            entry.meter.record(self.windows, -1.0, now_ms);
        }
        throttle_ms
    }
}
