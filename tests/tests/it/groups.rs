//! Classic groups over the raw protocol: what real clients seldom do, and what happens when they fall silent.

mod configs;
mod deletion;
mod joining;
mod member;
mod offsets;
mod restart;
mod statics;
mod timeouts;

use mainstem_tests::broker::{Broker, Setup};

const TOPIC: &str = "topic";
const GROUP: &str = "group";

/// A broker with [`TOPIC`] and a coordinator.
fn broker(setup: Setup) -> Broker {
    let broker = setup.start();
    let mut client = broker.connect();
    client.create_topic(TOPIC, 4, &[]).unwrap();
    client.find_coordinator(GROUP).unwrap();
    broker
}
