//! Client telemetry as a pure state machine (KIP-714): the metrics and intervals of each client's subscription, the order of its
//! pushes, and the sums of the pushed metrics.
//!
//! [`Telemetry`] judges GetTelemetrySubscriptions and PushTelemetry against the subscriptions, which are configurations of the
//! resource type CLIENT_METRICS. [`ClientSeries`] keeps the pushed values of clients until these are gone.
//!
//! Architecture invariant: the time comes in as milliseconds of a monotonic clock, client instance ids from the driver;
//! the payload is decoded elsewhere.

mod instances;
mod series;
mod subscription;
#[cfg(test)]
mod tests;

pub use instances::{INSTANCES_MAX, Push, Subscribed, Telemetry};
pub use series::{
    ClientSeries, POINTS_PER_CLIENT_MAX, Point, Pusher, SERIES_BYTES_MAX, SERIES_MAX, Sample, Temporality,
};
pub use subscription::{ClientFacts, Subscription};
