//! Classic groups over the raw protocol: what real clients seldom do, and what happens when they fall silent.
#![allow(clippy::unwrap_used, reason = "all of it is tests, helpers too")]

#[path = "groups/configs.rs"]
mod configs;
#[path = "groups/deletion.rs"]
mod deletion;
#[path = "groups/joining.rs"]
mod joining;
#[path = "groups/member.rs"]
mod member;
#[path = "groups/offsets.rs"]
mod offsets;
#[path = "groups/restart.rs"]
mod restart;
#[path = "groups/statics.rs"]
mod statics;
#[path = "groups/timeouts.rs"]
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
