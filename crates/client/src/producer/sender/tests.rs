//! The times at which the sender looks, and the errors of batches that could not be sent.

use super::*;
use crate::cluster::Refused;
use crate::producer::{Producer, ProducerConfig, Record};
use crate::testing::ScriptedBroker;

fn because(reason: &str) -> Error {
    Error::Connect { broker: String::new(), reason: reason.to_owned() }
}

/// A trouble that is over, or is another partition's, is not the reason why a delivery takes too long.
#[tokio::test]
async fn each_partition_has_its_own_trouble() {
    let broker = ScriptedBroker::start(1, |_| None);
    let producer = Producer::new(ProducerConfig::new(broker.client())).unwrap();
    producer.topic("t").await.unwrap();
    let mut sender = Sender::new(producer.owner.shared.clone());
    let backoff = backoff(&sender.shared);
    let node =
        Node { state: Link::Connecting, in_flight: 0, failed: None, retry_at: Instant::now(), backoff };
    sender.nodes.insert(1, node);
    let connection = sender.shared.cluster.node(1).await.unwrap();
    let refused = || Refused { topic: "new".into(), error: because("no such topic") };
    let steps = [
        (
            Event::Refreshed(Err(because("no broker answers"))),
            Some("no broker answers"),
            Some("no broker answers"),
        ),
        (Event::Refreshed(Ok(vec![refused()])), None, Some("no such topic")),
        (Event::Connected(1, Err(because("it is down"))), Some("it is down"), Some("no such topic")),
        (Event::Refreshed(Ok(vec![])), Some("it is down"), None),
        (Event::Refreshed(Ok(vec![refused()])), Some("it is down"), Some("no such topic")),
        (Event::Connected(1, Ok(connection)), None, Some("no such topic")),
    ];
    for (event, known, new) in steps {
        sender.handle(event);
        let trouble = |topic| sender.trouble(&TopicPartition::new(topic, 0));
        assert_eq!((trouble("t"), trouble("new")), (known.map(because), new.map(because)));
    }
}

/// Also before batches can be numbered: then they may still become too late.
#[tokio::test]
async fn a_look_says_when_the_next_one_is_due() {
    let broker = ScriptedBroker::start(1, |_| None);
    for acks in [Acks::Leader, Acks::All] {
        let config = ProducerConfig::new(broker.client()).acks(acks).linger(Duration::from_secs(7));
        let producer = Producer::new(config).unwrap();
        let _waiting = producer.send(Record::new("t", "a")).await.unwrap();
        let shared = producer.owner.shared.clone();
        let mut sender = Sender::new(shared.clone());
        let mut next_look = Instant::now() + IDLE_LOOK;
        assert!(sender.orders(&mut shared.state.lock(), &mut next_look).is_empty());
        assert!(next_look <= Instant::now() + Duration::from_secs(7), "{acks:?}");
    }
}
