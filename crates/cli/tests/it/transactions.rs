//! `mainstem transaction`: list, describe, abort and find-hanging; and letters that were written in transactions.

use mainstem_client::{ClientConfig, Producer, ProducerConfig, Record};
use mainstem_flow::letter;
use serde_json::json;

use crate::support::broker::Broker;
use crate::support::transactions::{UNVERIFIED, begun, wait_for, write_hanging};

/// A broker whose topic `t` has a record of an open transaction of the transactional id `billing`, and its producer.
fn with_open() -> (Broker, Producer) {
    let broker = Broker::start();
    broker.run("topic create t -p 2").ok();
    broker.produce("t -p 0", "before\n");
    let producer = wait_for(begun(&broker.address, "billing", "t", &["open"]));
    (broker, producer)
}

#[test]
fn transactions_are_listed_and_described() {
    let (broker, _producer) = with_open();
    wait_for(async {
        begun(&broker.address, "done", "t", &["x"]).await.commit_transaction().await.unwrap();
    });
    let listed = broker.run("transaction list --json").json();
    assert_eq!(listed[0]["transactional_id"], json!("billing"));
    assert_eq!((&listed[0]["state"], &listed[0]["coordinator"]), (&json!("Ongoing"), &json!(1)));
    let producer_id = listed[0]["producer_id"].as_i64().unwrap();
    let names = |chosen: &str| -> Vec<String> {
        let listed = broker.run(&format!("transaction list {chosen} --json")).json();
        let names =
            listed.as_array().unwrap().iter().map(|one| one["transactional_id"].as_str().unwrap().to_owned());
        names.collect()
    };
    assert_eq!(names(""), ["billing", "done"]);
    assert_eq!(names("--state ongoing"), ["billing"]);
    assert_eq!(names(&format!("--producer-id {producer_id}")), ["billing"]);
    assert!(names("--duration-filter 86400000").is_empty());
    assert!(broker.run("transaction list").ok().contains("Ongoing"));
    assert_eq!(broker.run("transaction list --state Prepare").code, Some(2));
    let described = broker.run("transaction describe billing --json").json();
    assert_eq!(described["partitions"], json!([{"topic": "t", "partition": 0}]));
    assert_eq!((&described["state"], &described["producer_id"]), (&json!("Ongoing"), &json!(producer_id)));
    let text = broker.run("transaction describe billing").ok();
    assert!(text.starts_with("transactional id billing, state Ongoing, coordinator node 1"), "{text}");
    let message = broker.run("transaction describe missing").failed();
    assert!(message.contains("there is no transactional id missing"), "{message}");
}

#[test]
fn a_transaction_is_shown_before_it_is_aborted() {
    let (broker, producer) = with_open();
    let planned = broker.run("transaction abort --topic t --partition 0 --start-offset 1").ok();
    assert!(planned.contains("it does not hang: it is part of the transaction of billing"), "{planned}");
    assert!(planned.ends_with("nothing was changed: --execute does it\n"), "{planned}");
    let planned = broker.run("transaction abort --topic t --partition 0 --start-offset 1 --json").json();
    assert_eq!((&planned["executed"], &planned["transactional_id"]), (&json!(false), &json!("billing")));
    let id = planned["producer_id"].as_i64().unwrap();
    for (wrong, said) in [
        (
            "--partition 0 --start-offset 0".to_owned(),
            "those that are begin at offset 1; nothing was aborted",
        ),
        ("--partition 1 --start-offset 0".to_owned(), "no transaction is open in t-1; nothing was aborted"),
        ("--partition 2 --start-offset 0".to_owned(), "topic t has no partition 2"),
        (format!("--partition 0 --producer-id {id} --producer-epoch 99"), "not 99; nothing was aborted"),
    ] {
        let message = broker.run(&format!("transaction abort --topic t {wrong} --execute")).failed();
        assert!(message.contains(said), "{wrong}: {message}");
    }
    assert_eq!(broker.run("consume t").ok(), "before\n");
    let abort = format!("transaction abort --topic t --partition 0 --producer-id {id} --execute");
    let message = broker.run(&abort).failed();
    assert!(message.contains("it does not hang") && message.contains("nothing was aborted"), "{message}");
    let abort = format!("{abort} --force");
    assert_eq!(
        broker.run(&abort).ok(),
        format!("aborted the transaction of producer {id} in t-0 from offset 1 on\n")
    );
    broker.produce("t -p 0", "after\n");
    let after = broker.run("consume t");
    assert!(after.stderr.is_empty(), "{after:?}");
    assert_eq!(after.ok(), "before\nafter\n");
    assert!(broker.run(&abort).failed().contains("no transaction is open in t-0"));
    drop(producer);
}

#[test]
fn only_what_no_coordinator_has_hangs() {
    let broker = Broker::start_with(&[UNVERIFIED]);
    broker.run("topic create t -p 2").ok();
    let producer = wait_for(begun(&broker.address, "billing", "t", &["open"]));
    let find = "transaction find-hanging --max-transaction-timeout 0";
    assert_eq!(broker.run(find).ok(), "no transaction hangs\n");
    drop(producer);
    // A record of a transaction unknown to its coordinator, as a producer with a defect would write it.
    write_hanging(&broker.address, "t", 1, 4711);
    assert_eq!(
        broker.run("transaction find-hanging").ok(),
        "no transaction hangs\n",
        "it was written just now"
    );
    let found = broker.run(&format!("{find} --json")).json();
    assert_eq!(found.as_array().unwrap().len(), 1, "{found}");
    assert_eq!((&found[0]["partition"], &found[0]["start_offset"]), (&json!(1), &json!(0)));
    assert_eq!(found[0]["producer_id"], json!(4711));
    assert_eq!(broker.run(&format!("{find} --topic t --partition 0")).ok(), "no transaction hangs\n");
    assert_eq!(broker.run(&format!("{find} --broker-id 7")).ok(), "no transaction hangs\n");
    let abort = "transaction abort -t t -p 1 --start-offset 0";
    assert!(!broker.run(abort).ok().contains("it does not hang"));
    broker.run(&format!("{abort} --execute")).ok();
    assert_eq!(broker.run(find).ok(), "no transaction hangs\n");
}

#[test]
fn a_letter_is_replayed_once_though_a_transaction_is_open_behind_it() {
    let broker = Broker::start();
    let topic = "dlq.billing.orders";
    broker.run(&format!("topic create {topic} -p 1")).ok();
    broker.run("topic create again -p 1").ok();
    wait_for(async {
        let config = ClientConfig::new(&broker.address).unwrap();
        let producer = Producer::new(ProducerConfig::new(config)).unwrap();
        for offset in ["0", "1"] {
            let letter = Record::new(topic, format!("letter {offset}")).partition(0);
            let letter = letter.header(letter::TOPIC, "orders").header(letter::PARTITION, "0");
            producer.send(letter.header(letter::OFFSET, offset)).await.unwrap().await.unwrap();
        }
        let _open = begun(&broker.address, "a", topic, &["open"]).await;
        let replay = format!("dead-letters replay {topic} --to again --execute");
        // The first replay leaves a letter, so that it notes the one that it has written. The second finds the note behind the
        // transaction.
        broker.run(&format!("{replay} --partition 0 --offset 0")).ok();
        broker.run(&replay).ok();
        broker.run(&replay).ok();
    });
    let again = broker.run("consume again").ok();
    assert_eq!(again, "letter 0\nletter 1\n");
}

#[test]
fn what_was_not_committed_is_no_dead_letter() {
    let broker = Broker::start();
    let topic = "dlq.billing.orders";
    broker.run(&format!("topic create {topic} -p 1")).ok();
    wait_for(async {
        begun(&broker.address, "a", topic, &["aborted"]).await.abort_transaction().await.unwrap();
        let open = begun(&broker.address, "b", topic, &["open"]).await;
        let shown = broker.run(&format!("dead-letters show {topic}")).ok();
        assert_eq!(shown, format!("{topic} has no letters\n"));
        let replayed = broker.run(&format!("dead-letters replay {topic} --execute --json")).json();
        assert_eq!(replayed["failed"], json!(0), "{replayed}");
        // Records of open transactions count too, as they would be deleted.
        let message = broker.run(&format!("dead-letters purge {topic} --execute")).failed();
        assert!(message.contains("is not a topic of dead letters alone"), "{message}");
        open.commit_transaction().await.unwrap();
    });
    let shown = &broker.run(&format!("dead-letters show {topic} --json")).json()[0];
    assert_eq!((shown["value"].as_str(), shown["offset"].as_i64()), (Some("open"), Some(2)), "{shown}");
}
