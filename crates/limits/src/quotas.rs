//! Client quotas as a pure state machine: the limits of clients, their rates, and the time for which they are throttled.
//!
//! [`ClientLimits`] finds the limit of a client (KIP-13, KIP-55). [`RateQuota`] measures clients in sampled windows and returns
//! their throttle times; [`MutationQuota`] does it with a token bucket (KIP-599). [`ConnectionQuota`] judges new connections
//! (KIP-612). Throttle times equal Kafka's to the millisecond.
//!
//! Architecture invariant: the time comes in as milliseconds of a monotonic clock; nothing here waits for it.

mod connections;
mod entities;
mod entity;
mod limits;
#[cfg(test)]
mod properties;
mod rate;
#[cfg(test)]
mod tests;
mod token_bucket;
mod trackers;

pub use connections::{Admission, ConnectionQuota, ConnectionRates, IpLimits};
pub use entities::ENTITIES_MAX;
pub use entity::{EntityName, QuotaEntity, QuotaKey};
pub use limits::{Client, ClientLimits};
pub use mainstem_config::Windows;
pub use rate::Rate;
pub use token_bucket::TokenBucket;
pub use trackers::{Charged, MutationQuota, RateQuota, Strictness, Taken, Usage};
