//! An unused transactional id expires, and one with an open transaction does not (KIP-98).

use std::time::Duration;

use mainstem_broker::ManualClock;
use mainstem_log::sim::Random;
use mainstem_tests::client::Client;
use mainstem_tests::machine::{Death, SimulatedBroker};
use mainstem_wire::messages::list_transactions_request::ListTransactionsRequest;

use crate::transactions::eventually;
use crate::transactions::producer::Producer;

const TOPIC: &str = "expiry";

/// Transactional ids that the coordinator knows, by name.
pub(crate) fn known_ids(client: &mut Client) -> Vec<String> {
    let response = client.call(&ListTransactionsRequest { duration_filter: -1, ..Default::default() }, 1);
    assert_eq!(response.error_code, 0);
    let mut ids: Vec<_> =
        response.transaction_states.iter().map(|state| state.transactional_id.to_string()).collect();
    ids.sort();
    ids
}

#[test]
fn an_unused_transactional_id_is_forgotten_for_good() {
    let clock = ManualClock::new();
    let settings = [
        ("transactional.id.expiration.ms", "5000"),
        ("transaction.remove.expired.transaction.cleanup.interval.ms", "100"),
        ("transaction.state.log.num.partitions", "4"),
    ];
    let mut broker = SimulatedBroker::start_at(&clock, &settings);
    let mut client = broker.connect();
    client.create_topic(TOPIC, 1, &[]).unwrap();
    let mut open = Producer::init(broker.connect(), "open", 600_000).unwrap();
    open.send(TOPIC, 0, &[b"of an open transaction"]).unwrap();
    for id in ["empty", "other"] {
        Producer::init(broker.connect(), id, 60_000).unwrap();
    }
    clock.advance(Duration::from_millis(4_800));
    assert_eq!(known_ids(&mut client), ["empty", "open", "other"]);
    eventually("unused ids are forgotten", || {
        clock.advance(Duration::from_millis(100));
        (known_ids(&mut client) == ["open"]).then_some(())
    });
    broker.die(Death::Kill, &mut Random::new(1));
    broker.start_again();
    let mut client = broker.connect();
    assert_eq!(
        eventually("it is loaded", || Some(known_ids(&mut client)).filter(|ids| !ids.is_empty())),
        ["open"]
    );
    let producer = Producer::init(broker.connect(), "empty", 60_000).unwrap();
    drop(producer);
    assert_eq!(known_ids(&mut client), ["empty", "open"], "an expired id begins again");
}
