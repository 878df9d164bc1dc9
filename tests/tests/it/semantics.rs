//! Kafka's semantics over the wire against the real binary: known faults of other brokers, each with a test of its name.

mod administration;
mod answers;
mod configs;
mod deletion;
mod dynamic;
mod epochs;
mod fetching;
mod long_poll;
mod metrics;
mod offline;
mod ordering;
mod producing;
mod quotas;
mod refusals;
mod retention;
mod sessions;
mod telemetry;
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
