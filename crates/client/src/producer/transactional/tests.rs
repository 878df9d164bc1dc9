//! Transactions against Kafka's brokers and ours.

use std::collections::BTreeSet;
use std::time::Duration;

use tokio::time::Instant;

use super::*;
use crate::testing::{BrokenNetwork, WAIT_TIMEOUT, World, eventually, on_both_brokers};
use crate::{
    ClientConfig, Consumer, ConsumerConfig, ErrorClass, ErrorCode, GroupConfig, GroupConsumer, Isolation,
    Position, ProducerConfig, Record,
};

on_both_brokers!(
    what_is_committed_is_seen_together_and_what_is_aborted_never,
    the_same_with_version_1_of_the_protocol,
    lag_ends_where_a_transaction_is_open,
    offsets_are_committed_with_the_transaction,
    offsets_are_committed_with_version_1_of_the_protocol,
    an_older_producer_of_the_same_name_is_fenced,
    after_a_failure_the_transaction_can_only_be_aborted,
    after_a_failure_with_version_1_the_epoch_advances,
    what_is_not_sent_when_a_transaction_is_aborted_fails,
    transactions_survive_connections_that_break,
    a_transaction_that_is_open_is_aborted_by_closing,
    what_could_not_be_added_with_version_1_is_aborted,
);

fn config(client: ClientConfig, world: &World) -> ProducerConfig {
    ProducerConfig::new(client).transactional_id(world.name("id"))
}

/// A producer that may begin a transaction.
async fn producer(world: &World) -> Producer {
    let producer = Producer::new(config(world.client(), world)).unwrap();
    producer.init_transactions().await.unwrap();
    producer
}

/// The same, as with a cluster that has only version 1 of the protocol; every broker still serves it.
async fn producer_v1(world: &World) -> Producer {
    let producer = producer(world).await;
    downgrade(&producer);
    producer
}

fn downgrade(producer: &Producer) {
    let downgrade = |one: &mut Transactions| {
        one.initialized(one.name().unwrap(), false);
        Ok(())
    };
    producer.owner.shared.transactions(downgrade).unwrap();
}

/// Sends numbers to the partitions of the topic in turn.
async fn send(producer: &Producer, world: &World, numbers: std::ops::Range<i32>) {
    for number in numbers {
        let record = Record::new(world.topic.clone(), number.to_string()).partition(number % 2);
        let _ = producer.send(record).await.unwrap();
    }
}

/// All numbers that a partition has for readers of this isolation.
async fn read(world: &World, partition: i32, isolation: Isolation) -> Vec<i32> {
    let key = world.t(partition);
    let ends = world.admin().offsets([(key.clone(), Position::End)], isolation).await.unwrap();
    let mut consumer =
        Consumer::new(ConsumerConfig { isolation, ..ConsumerConfig::new(world.client()) }).unwrap();
    consumer.assign([(key.clone(), Position::Offset(0))]);
    let (mut numbers, deadline) = (Vec::new(), Instant::now() + WAIT_TIMEOUT);
    while consumer.position(&key).unwrap() < ends[&key] {
        assert!(Instant::now() < deadline, "only {numbers:?} of {key} came");
        let next = tokio::time::timeout(Duration::from_millis(50), consumer.next());
        let Ok(batch) = next.await else { continue };
        for record in batch.unwrap().records() {
            numbers.push(std::str::from_utf8(record.unwrap().value.unwrap()).unwrap().parse().unwrap());
        }
    }
    numbers
}

async fn committed(world: &World) -> Vec<i32> {
    let mut numbers = read(world, 0, Isolation::ReadCommitted).await;
    numbers.extend(read(world, 1, Isolation::ReadCommitted).await);
    numbers.sort_unstable();
    numbers
}

/// A coordinator answers before all partitions know.
async fn becomes_committed(world: &World, expected: &[i32]) {
    eventually("what was committed is seen", async || committed(world).await == expected).await;
}

async fn what_is_committed_is_seen_together_and_what_is_aborted_never(world: World) {
    let producer = producer(&world).await;
    commit_and_abort(&world, &producer).await;
}

async fn the_same_with_version_1_of_the_protocol(world: World) {
    let producer = producer_v1(&world).await;
    commit_and_abort(&world, &producer).await;
}

async fn commit_and_abort(world: &World, producer: &Producer) {
    world.create(2, &[]).await;
    producer.begin_transaction().unwrap();
    send(producer, world, 0..10).await;
    producer.flush().await;
    assert!(committed(world).await.is_empty(), "it is not committed yet");
    producer.commit_transaction().await.unwrap();
    becomes_committed(world, &(0..10).collect::<Vec<_>>()).await;
    producer.begin_transaction().unwrap();
    send(producer, world, 10..20).await;
    producer.flush().await;
    producer.abort_transaction().await.unwrap();
    for range in [20..30, 30..40] {
        producer.begin_transaction().unwrap();
        send(producer, world, range).await;
        producer.commit_transaction().await.unwrap();
    }
    let all: Vec<i32> = (0..10).chain(20..40).collect();
    becomes_committed(world, &all).await;
    let of_one = read(world, 0, Isolation::ReadUncommitted).await;
    assert_eq!(of_one, (0..40).step_by(2).collect::<Vec<_>>(), "in order, with what was aborted");
    producer.begin_transaction().unwrap();
    producer.commit_transaction().await.unwrap();
    producer.begin_transaction().unwrap();
    producer.abort_transaction().await.unwrap();
}

async fn lag_ends_where_a_transaction_is_open(world: World) {
    world.create(2, &[]).await;
    let producer = producer(&world).await;
    producer.begin_transaction().unwrap();
    send(&producer, &world, 0..20).await;
    producer.commit_transaction().await.unwrap();
    becomes_committed(&world, &(0..20).collect::<Vec<_>>()).await;
    producer.begin_transaction().unwrap();
    send(&producer, &world, 20..40).await;
    producer.flush().await;
    // Ten records of the first transaction with its end, and ten of the one that is open.
    for (isolation, expected) in [(Isolation::ReadCommitted, 11), (Isolation::ReadUncommitted, 21)] {
        let config = ConsumerConfig { isolation, ..ConsumerConfig::new(world.client()) };
        let mut consumer = Consumer::new(config).unwrap();
        consumer.assign([(world.t(0), Position::Offset(0))]);
        eventually("there is an answer", async || consumer.lag(&world.t(0)).unwrap().is_some()).await;
        assert_eq!(consumer.lag(&world.t(0)), Ok(Some(expected)), "{isolation:?}");
    }
    producer.abort_transaction().await.unwrap();
}

async fn offsets_are_committed_with_the_transaction(world: World) {
    let producer = producer(&world).await;
    pass_on(&world, &producer).await;
}

async fn offsets_are_committed_with_version_1_of_the_protocol(world: World) {
    let producer = producer_v1(&world).await;
    pass_on(&world, &producer).await;
}

/// Reads ten records, and commits the position with a record of another topic.
async fn pass_on(world: &World, producer: &Producer) {
    world.create(1, &[]).await;
    let output = world.name("output");
    world.admin().create_topic(&world.new_topic(output.as_str(), 1)).await.unwrap();
    let input = Producer::new(ProducerConfig::new(world.client())).unwrap();
    for number in 0..10 {
        let _ = input.send(Record::new(world.topic.clone(), number.to_string())).await.unwrap();
    }
    input.close().await;
    let consumer =
        ConsumerConfig { isolation: Isolation::ReadCommitted, ..ConsumerConfig::new(world.client()) };
    let own = GroupConfig {
        start: Position::Beginning,
        auto_commit: None,
        ..GroupConfig::new(world.group.clone(), [world.topic.clone()], consumer)
    };
    let mut member = GroupConsumer::new(own).unwrap();
    let offsets = member.offsets().clone();
    let key = BTreeSet::from([world.t(0)]);
    let behind = BTreeMap::from([(world.t(0), 10)]);
    while member.position(&world.t(0)).ok().flatten() != Some(10) {
        let _ = member.next().await.unwrap();
    }
    for commit in [false, true] {
        producer.begin_transaction().unwrap();
        let _ = producer.send(Record::new(output.as_str(), "ten")).await.unwrap();
        producer.send_offsets(&behind, &offsets).await.unwrap();
        if commit {
            producer.commit_transaction().await.unwrap();
        } else {
            producer.abort_transaction().await.unwrap();
            assert_eq!(offsets.committed(&key).await.unwrap(), BTreeMap::new());
        }
    }
    assert_eq!(offsets.committed(&key).await.unwrap(), behind);
    member.close().await.unwrap();
    producer.begin_transaction().unwrap();
    let refused = producer.send_offsets(&behind, &offsets).await.unwrap_err();
    assert!(
        matches!(refused.code(), Some(ErrorCode::UNKNOWN_MEMBER_ID | ErrorCode::ILLEGAL_GENERATION)),
        "{refused}"
    );
    assert_eq!(producer.commit_transaction().await.unwrap_err().class(), ErrorClass::Abortable);
    producer.abort_transaction().await.unwrap();
}

async fn an_older_producer_of_the_same_name_is_fenced(world: World) {
    world.create(2, &[]).await;
    let older = producer(&world).await;
    older.begin_transaction().unwrap();
    send(&older, &world, 0..4).await;
    older.flush().await;
    let newer = producer(&world).await;
    let fenced = older.commit_transaction().await.unwrap_err();
    assert_eq!(fenced.class(), ErrorClass::Fatal, "{fenced}");
    assert_eq!(older.begin_transaction().unwrap_err().class(), ErrorClass::Fatal);
    newer.begin_transaction().unwrap();
    send(&newer, &world, 4..8).await;
    newer.commit_transaction().await.unwrap();
    becomes_committed(&world, &[4, 5, 6, 7]).await;
}

async fn after_a_failure_the_transaction_can_only_be_aborted(world: World) {
    let producer = producer(&world).await;
    fail_and_go_on(&world, &producer).await;
}

async fn after_a_failure_with_version_1_the_epoch_advances(world: World) {
    let producer = producer_v1(&world).await;
    fail_and_go_on(&world, &producer).await;
}

async fn fail_and_go_on(world: &World, producer: &Producer) {
    world.create(2, &[("max.message.bytes", "2000")]).await;
    producer.begin_transaction().unwrap();
    send(producer, world, 0..4).await;
    let large = Record::new(world.topic.clone(), vec![b'x'; 5_000]).partition(0);
    let refused = producer.send(large).await.unwrap();
    producer.flush().await;
    assert_eq!(refused.await.unwrap_err().code(), Some(ErrorCode::MESSAGE_TOO_LARGE));
    let late = producer.send(Record::new(world.topic.clone(), "late")).await.unwrap_err();
    assert!(late.to_string().starts_with("the transaction has to be aborted: cannot write to "), "{late}");
    assert_eq!(producer.commit_transaction().await.unwrap_err().class(), ErrorClass::Abortable);
    producer.abort_transaction().await.unwrap();
    producer.begin_transaction().unwrap();
    send(producer, world, 4..8).await;
    producer.commit_transaction().await.unwrap();
    becomes_committed(world, &[4, 5, 6, 7]).await;
}

async fn what_is_not_sent_when_a_transaction_is_aborted_fails(world: World) {
    world.create(2, &[]).await;
    let config = config(world.client(), &world).linger(Duration::from_secs(60));
    let producer = Producer::new(config).unwrap();
    producer.init_transactions().await.unwrap();
    producer.begin_transaction().unwrap();
    let delivery = producer.send(Record::new(world.topic.clone(), "a")).await.unwrap();
    producer.abort_transaction().await.unwrap();
    assert_eq!(delivery.await.unwrap_err(), Error::Aborted);
    producer.begin_transaction().unwrap();
    send(&producer, &world, 0..2).await;
    producer.commit_transaction().await.unwrap();
    becomes_committed(&world, &[0, 1]).await;
}

/// The transaction is aborted long before its coordinator would do so.
async fn a_transaction_that_is_open_is_aborted_by_closing(world: World) {
    world.create(2, &[]).await;
    let producer = producer(&world).await;
    producer.begin_transaction().unwrap();
    send(&producer, &world, 0..4).await;
    producer.flush().await;
    producer.close().await;
    let end = async |isolation| {
        let ends = world.admin().offsets([(world.t(0), Position::End)], isolation).await.unwrap();
        ends[&world.t(0)].unwrap()
    };
    eventually("readers go on", async || {
        let all = end(Isolation::ReadUncommitted).await;
        assert!(all >= 2, "the records are there");
        end(Isolation::ReadCommitted).await == all
    })
    .await;
    assert!(committed(&world).await.is_empty());
}

async fn transactions_survive_connections_that_break(world: World) {
    // Our broker is started again for it, with the address of the network.
    let broken = BrokenNetwork::start(world, 2_000, 20);
    let world = &broken.world;
    world.create(2, &[]).await;
    let config = ProducerConfig { batch_bytes: 100, ..config(broken.client(), world) };
    let producer = Producer::new(config).unwrap();
    producer.init_transactions().await.unwrap();
    let mut expected = Vec::new();
    for number in 0..30 {
        producer.begin_transaction().unwrap();
        send(&producer, world, number * 20..(number + 1) * 20).await;
        if number % 3 == 0 {
            producer.abort_transaction().await.unwrap();
        } else {
            producer.commit_transaction().await.unwrap();
            expected.extend(number * 20..(number + 1) * 20);
        }
    }
    becomes_committed(world, &expected).await;
}

/// The coordinator is asked to add a partition of a topic that is gone: to it no transaction has begun.
async fn what_could_not_be_added_with_version_1_is_aborted(world: World) {
    world.create(2, &[]).await;
    let gone = world.name("gone");
    world.admin().create_topic(&world.new_topic(gone.as_str(), 1)).await.unwrap();
    // Each call of the transaction has this time, and one of them uses it up.
    let config = ProducerConfig { max_block: Duration::from_secs(5), ..config(world.client(), &world) };
    let producer = Producer::new(config).unwrap();
    producer.init_transactions().await.unwrap();
    downgrade(&producer);
    producer.topic(&gone).await.unwrap();
    let admin = world.admin();
    admin.delete_topic(&gone).await.unwrap();
    eventually("the coordinator knows", async || matches!(admin.find_topic(&gone).await, Ok(None))).await;
    producer.begin_transaction().unwrap();
    let delivery = producer.send(Record::new(gone.as_str(), "a")).await.unwrap();
    assert_eq!(delivery.await.unwrap_err().class(), ErrorClass::Abortable);
    producer.abort_transaction().await.unwrap();
    producer.begin_transaction().unwrap();
    send(&producer, &world, 0..4).await;
    producer.commit_transaction().await.unwrap();
    becomes_committed(&world, &[0, 1, 2, 3]).await;
}

#[tokio::test]
async fn what_comes_before_a_transaction_says_what_to_do() {
    let world = World::mainstem();
    let producer = Producer::new(config(world.client(), &world)).unwrap();
    let early = producer.send(Record::new(world.topic.clone(), "a")).await.unwrap_err();
    assert_eq!(early.to_string(), "begin a transaction before writing");
    let plain = Producer::new(ProducerConfig::new(world.client())).unwrap();
    let needs = plain.init_transactions().await.unwrap_err();
    assert_eq!(needs.to_string(), "the producer has no transactional_id, which transactions need");
}
