//! Classic groups over the raw protocol: rare requests of real clients, and members that fall silent.

mod configs;
mod deletion;
mod joining;
mod member;
mod offsets;
mod restart;
mod statics;
mod timeouts;

use mainstem_broker::ManualClock;
use mainstem_tests::broker::{Broker, Setup};
use mainstem_tests::machine::SimulatedBroker;

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

/// The same in this process, with a clock that the test advances.
fn broker_at(clock: &ManualClock) -> SimulatedBroker {
    let settings = [
        ("group.initial.rebalance.delay.ms", "0"),
        ("offsets.topic.num.partitions", "4"),
        ("offsets.retention.check.interval.ms", "50"),
    ];
    let broker = SimulatedBroker::start_at(clock, &settings);
    let mut client = broker.connect();
    client.create_topic(TOPIC, 4, &[]).unwrap();
    client.find_coordinator(GROUP).unwrap();
    broker
}
