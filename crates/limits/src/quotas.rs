//! Client quotas as a pure state machine: who has which limit, how fast they are, and for how long they are held back.
//!
//! [`ClientLimits`] finds the limit of a client (KIP-13, KIP-55), [`RateQuota`] measures what clients do in sampled
//! windows and says how long they have to wait, [`MutationQuota`] does it with a token bucket (KIP-599), and
//! [`ConnectionQuota`] judges new connections (KIP-612). Times to wait equal Kafka's to the millisecond.
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
