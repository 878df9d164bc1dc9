//! `transaction.version`, as Kafka's tool changes it and Java's producer sees it. From 2 on each transaction has an
//! epoch of its own (KIP-890).

use mainstem_tests::client::Client;
use mainstem_tests::kafka_node::{Home, NEWEST, kafka_says};
use mainstem_wire::messages::describe_transactions_request::DescribeTransactionsRequest;

use crate::transactions::eventually;

const TOOL: &str = "org.apache.kafka.tools.FeatureCommand";
/// The transactional id of `tests/takeover/Transactions.java`.
const TRANSACTIONAL_ID: &str = "over-changes";

#[test]
fn the_level_of_transactions_is_seen_and_changed() {
    let Some(home) = Home::new("transaction-version", &NEWEST) else { return };
    let broker = home.start_mainstem(&[]);
    let change = |command: &str| kafka_says(TOOL, &home.bootstrap(), command).expect("Kafka is there");
    let said = change("downgrade --feature transaction.version=0");
    assert!(said.contains("transaction.version was downgraded to 0."), "{said}");
    assert_eq!(epochs_of_two(&home), [0, 0], "an epoch for each producer");
    let said = change("upgrade --feature transaction.version=2");
    assert!(said.contains("transaction.version was upgraded to 2."), "{said}");
    assert_eq!(epochs_of_two(&home), [2, 3], "the producer has 1, and each of its transactions another one");
    broker.stop();
}

/// The epoch after each of two transactions of a new Java producer.
fn epochs_of_two(home: &Home) -> [i16; 2] {
    let mut producer = home.transactions();
    let epochs = [(), ()].map(|()| {
        producer.ask("begin");
        producer.ask("commit");
        let mut client = Client::connect(&home.bootstrap()).expect("it accepts");
        let ids = vec![TRANSACTIONAL_ID.into()];
        let request = DescribeTransactionsRequest { transactional_ids: ids, ..Default::default() };
        eventually("it is complete", || {
            let described = client.call(&request, 0).transaction_states.remove(0);
            (described.transaction_state == "CompleteCommit").then_some(described.producer_epoch)
        })
    });
    producer.end();
    epochs
}
