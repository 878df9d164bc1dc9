//! Kafka's semantics over the wire against the real binary: faults that others have had, each a test by its name.
#![allow(clippy::unwrap_used, reason = "all of it is tests, helpers too")]

#[path = "semantics/administration.rs"]
mod administration;
#[path = "semantics/answers.rs"]
mod answers;
#[path = "semantics/configs.rs"]
mod configs;
#[path = "semantics/deletion.rs"]
mod deletion;
#[path = "semantics/dynamic.rs"]
mod dynamic;
#[path = "semantics/epochs.rs"]
mod epochs;
#[path = "semantics/fetching.rs"]
mod fetching;
#[path = "semantics/long_poll.rs"]
mod long_poll;
#[path = "semantics/metrics.rs"]
mod metrics;
#[path = "semantics/offline.rs"]
mod offline;
#[path = "semantics/ordering.rs"]
mod ordering;
#[path = "semantics/producing.rs"]
mod producing;
#[path = "semantics/quotas.rs"]
mod quotas;
#[path = "semantics/refusals.rs"]
mod refusals;
#[path = "semantics/retention.rs"]
mod retention;
#[path = "semantics/sessions.rs"]
mod sessions;
#[path = "semantics/telemetry.rs"]
mod telemetry;
#[path = "semantics/topics.rs"]
mod topics;

use mainstem_tests::broker::{Broker, Setup};
use mainstem_tests::client::Client;

/// The topic of most tests.
const TOPIC: &str = "topic";

/// A broker with [`TOPIC`] and a connection to it.
fn broker_with_topic(name: &str, partitions: i32, configs: &[(&str, &str)]) -> (Broker, Client) {
    let broker = Setup::new(name).start();
    let mut client = broker.connect();
    client.create_topic(TOPIC, partitions, configs).expect("the topic is new");
    (broker, client)
}
