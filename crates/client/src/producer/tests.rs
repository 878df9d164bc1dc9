//! The producer against brokers.

mod bounds;

use std::time::Duration;

use mainstem_records::{Batch, Scratch};
use mainstem_wire::messages::fetch_request::{FetchPartition, FetchRequest, FetchTopic};
use mainstem_wire::{ErrorCode, Records};

use super::*;
use crate::config::ClientConfig;
use crate::producer::partitioner::partition_of_key;
use crate::testing::{BrokenNetwork, WAIT_TIMEOUT, World, eventually, on_both_brokers};
use crate::{Compression, ErrorClass};

on_both_brokers!(
    records_arrive_once_and_in_order_with_every_codec,
    acknowledgements_say_what_they_can,
    equal_keys_meet_and_records_without_a_key_spread,
    a_flush_does_not_wait_for_company,
    a_closed_producer_takes_nothing_and_a_dropped_one_says_so,
    a_full_buffer_holds_senders_back,
    a_refusal_names_the_partition_and_leaves_the_rest,
    a_batch_that_the_topic_does_not_take_goes_in_pieces,
    connections_that_break_neither_lose_nor_double_nor_swap_records,
    one_request_at_a_time_keeps_the_order_without_idempotence,
    tasks_on_many_threads_share_a_producer[flavor = "multi_thread", worker_threads = 4],
    a_partition_that_does_not_exist_is_reported_with_how_many_there_are,
    a_topic_that_cannot_be_is_refused,
);

fn config(world: &World) -> ProducerConfig {
    ProducerConfig::new(world.client())
}

/// All values of a partition, with their batches' codecs.
async fn read(world: &World, topic: &str, partition: i32) -> Vec<(String, Compression)> {
    let cluster = Cluster::new(world.client());
    let found = cluster.topic(topic, false).await.unwrap();
    let partitions = vec![FetchPartition { partition, partition_max_bytes: 64 << 20, ..Default::default() }];
    let topics =
        vec![FetchTopic { topic: topic.into(), topic_id: found.id, partitions, ..Default::default() }];
    let request = FetchRequest { max_bytes: 64 << 20, topics, ..Default::default() };
    let reply = cluster.call_any(&request).await.unwrap();
    let response = reply.read().unwrap();
    let Some(Records::Bytes(bytes)) = &response.responses[0].partitions[0].records else { return vec![] };
    let (mut rest, mut values) = (&**bytes, Vec::new());
    while !rest.is_empty() {
        let (batch, behind) = Batch::split_first(rest).unwrap();
        let mut buffer = Vec::new();
        for record in batch.records(&mut buffer, 64 << 20, &mut Scratch::new()).unwrap() {
            let value = String::from_utf8(record.unwrap().value.unwrap().to_vec()).unwrap();
            values.push((value, batch.attributes().compression().unwrap()));
        }
        rest = behind;
    }
    values
}

async fn values(world: &World, topic: &str, partition: i32) -> Vec<String> {
    read(world, topic, partition).await.into_iter().map(|(value, _)| value).collect()
}

fn numbers(range: std::ops::Range<usize>) -> Vec<String> {
    range.map(|number| number.to_string()).collect()
}

async fn records_arrive_once_and_in_order_with_every_codec(world: World) {
    for codec in Compression::ALL {
        let producer = Producer::new(config(&world).compression(codec)).unwrap();
        let topic = world.name(codec.name());
        let mut deliveries = Vec::new();
        for value in numbers(0..5_000) {
            deliveries.push(producer.send(Record::new(topic.as_str(), value)).await.unwrap());
        }
        for (at, delivery) in deliveries.into_iter().enumerate() {
            assert_eq!(delivery.await.unwrap().offset, Some(at as i64));
        }
        let read = read(&world, &topic, 0).await;
        assert!(read.iter().all(|(_, used)| *used == codec), "{topic}");
        assert_eq!(read.into_iter().map(|(value, _)| value).collect::<Vec<_>>(), numbers(0..5_000));
        producer.close().await;
    }
}

async fn acknowledgements_say_what_they_can(world: World) {
    for (acks, offset) in [(Acks::None, None), (Acks::Leader, Some(0)), (Acks::All, Some(0))] {
        let producer = Producer::new(config(&world).acks(acks)).unwrap();
        let topic = world.name(&format!("acks-{acks:?}"));
        let delivery = producer.send(Record::new(topic.as_str(), "a")).await.unwrap();
        assert_eq!(delivery.await.unwrap().offset, offset, "{acks:?}");
        // It is sent after the first on the same connection, so that the first is written when it is answered.
        producer.close().await;
        let deadline = Instant::now() + WAIT_TIMEOUT;
        while values(&world, &topic, 0).await != ["a"] {
            assert!(Instant::now() < deadline, "{acks:?}: the record does not arrive");
        }
    }
}

async fn equal_keys_meet_and_records_without_a_key_spread(world: World) {
    world.create(4, &[]).await;
    let producer = Producer::new(config(&world)).unwrap();
    for number in 0..100 {
        let key = format!("key-{number}");
        let record = Record::new(world.topic.clone(), number.to_string()).key(key.clone());
        let delivered = producer.send(record).await.unwrap();
        producer.flush().await;
        let expected = partition_of_key(key.as_bytes(), 4) as i32;
        assert_eq!(delivered.poll_outcome().unwrap().unwrap().partition, expected);
    }
    let mut used = [0; 4];
    for _ in 0..1_000 {
        let delivery = producer.send(Record::new(world.topic.clone(), vec![b'x'; 1_000])).await.unwrap();
        used[delivery.await.unwrap().partition as usize] += 1;
        if used.iter().all(|count| *count > 0) {
            return;
        }
    }
    panic!("not all partitions are used: {used:?}");
}

async fn a_flush_does_not_wait_for_company(world: World) {
    let producer = Producer::new(config(&world).linger(Duration::from_secs(60))).unwrap();
    let delivery = producer.send(Record::new(world.topic.clone(), "a")).await.unwrap();
    assert!(delivery.poll_outcome().is_none());
    producer.flush().await;
    assert_eq!(delivery.poll_outcome().unwrap().unwrap().offset, Some(0));
}

async fn a_closed_producer_takes_nothing_and_a_dropped_one_says_so(world: World) {
    let producer = Producer::new(config(&world).linger(Duration::from_secs(60))).unwrap();
    let clone = producer.clone();
    let delivery = producer.send(Record::new(world.topic.clone(), "a")).await.unwrap();
    producer.close().await;
    assert_eq!(delivery.poll_outcome().unwrap().unwrap().offset, Some(0));
    assert_eq!(clone.send(Record::new(world.topic.clone(), "b")).await.unwrap_err(), Error::Closed);
    let dropped = Producer::new(config(&world).linger(Duration::from_secs(60))).unwrap();
    let delivery = dropped.send(Record::new(world.topic.clone(), "c")).await.unwrap();
    drop(dropped);
    assert_eq!(delivery.await.unwrap_err(), Error::Closed);
    assert_eq!(values(&world, &world.topic, 0).await, ["a"]);
}

async fn a_full_buffer_holds_senders_back(world: World) {
    let config = ProducerConfig {
        request_bytes_max: 4_000,
        buffer_bytes: 4_000,
        linger: Duration::from_secs(60),
        ..config(&world)
    };
    let producer = Producer::new(config).unwrap();
    let record = || Record::new(world.topic.clone(), vec![b'x'; 1_500]);
    let first = producer.send(record()).await.unwrap();
    let second = producer.send(record()).await.unwrap();
    assert!(first.poll_outcome().is_none(), "it waits for company");
    // While a caller waits for memory, no batch waits for more records.
    let third = producer.send(record()).await.unwrap();
    assert!(first.poll_outcome().unwrap().is_ok() && second.poll_outcome().unwrap().is_ok());
    assert!(third.poll_outcome().is_none(), "memory is free again");
    producer.flush().await;
    assert!(third.await.is_ok());
    let large = producer.send(Record::new(world.topic.clone(), vec![b'x'; 4_001])).await.unwrap_err();
    assert!(matches!(large, Error::Invalid(_)), "{large}");
}

async fn a_refusal_names_the_partition_and_leaves_the_rest(world: World) {
    world.create(1, &[("max.message.bytes", "2000")]).await;
    let producer = Producer::new(config(&world)).unwrap();
    let small = producer.send(Record::new(world.topic.clone(), "a")).await.unwrap();
    let large = producer.send(Record::new(world.topic.clone(), vec![b'x'; 5_000])).await.unwrap();
    let after = producer.send(Record::new(world.topic.clone(), "b")).await.unwrap();
    assert!(small.await.is_ok());
    let refused = large.await.unwrap_err();
    assert_eq!(refused.code(), Some(ErrorCode::MESSAGE_TOO_LARGE));
    assert_eq!(refused.class(), ErrorClass::Permanent);
    assert!(refused.to_string().starts_with(&format!("cannot write to {}: ", world.t(0))), "{refused}");
    assert!(after.await.is_ok());
    assert_eq!(values(&world, &world.topic, 0).await, ["a", "b"]);
}

async fn a_batch_that_the_topic_does_not_take_goes_in_pieces(world: World) {
    world.create(1, &[("max.message.bytes", "2000")]).await;
    let producer = Producer::new(config(&world)).unwrap();
    let mut deliveries = Vec::new();
    for value in numbers(0..2_000) {
        deliveries.push(producer.send(Record::new(world.topic.clone(), value)).await.unwrap());
    }
    for (at, delivery) in deliveries.into_iter().enumerate() {
        assert_eq!(delivery.await.unwrap().offset, Some(at as i64));
    }
    assert_eq!(values(&world, &world.topic, 0).await, numbers(0..2_000));
}

async fn connections_that_break_neither_lose_nor_double_nor_swap_records(world: World) {
    let broken = BrokenNetwork::start(world, 1_500, 20);
    let world = &broken.world;
    let producer =
        Producer::new(ProducerConfig { batch_bytes: 300, ..ProducerConfig::new(broken.client()) }).unwrap();
    let mut deliveries = Vec::new();
    for value in numbers(0..20_000) {
        deliveries.push(producer.send(Record::new(world.topic.clone(), value)).await.unwrap());
    }
    for (at, delivery) in deliveries.into_iter().enumerate() {
        // None where the broker only says that it has the record already.
        let delivered = delivery.await.unwrap();
        assert!(delivered.offset.is_none_or(|offset| offset == at as i64), "{at} is at {delivered:?}");
    }
    assert_eq!(values(world, &world.topic, 0).await, numbers(0..20_000));
}

async fn one_request_at_a_time_keeps_the_order_without_idempotence(world: World) {
    let broken = BrokenNetwork::start(world, 1_500, 20);
    let config =
        ProducerConfig { in_flight_max: 1, batch_bytes: 100, ..ProducerConfig::new(broken.client()) };
    let producer = Producer::new(config.acks(Acks::Leader)).unwrap();
    for number in numbers(0..200) {
        let _ = producer.send(Record::new(broken.world.topic.clone(), number).partition(0)).await.unwrap();
    }
    producer.flush().await;
    assert!(producer.written_bytes() > 200);
    let mut seen = Vec::new();
    for value in values(&broken.world, &broken.world.topic, 0).await {
        if !seen.contains(&value) {
            seen.push(value);
        }
    }
    assert_eq!(seen, numbers(0..200), "what is sent again comes twice, but nothing overtakes");
}

async fn tasks_on_many_threads_share_a_producer(world: World) {
    world.create(4, &[]).await;
    let producer = Producer::new(config(&world)).unwrap();
    let tasks: Vec<_> = (0..4)
        .map(|partition| {
            let (producer, topic) = (producer.clone(), world.topic.clone());
            tokio::spawn(async move {
                for value in numbers(0..5_000) {
                    let _ =
                        producer.send(Record::new(topic.clone(), value).partition(partition)).await.unwrap();
                }
            })
        })
        .collect();
    for task in tasks {
        task.await.unwrap();
    }
    producer.close().await;
    for partition in 0..4 {
        assert_eq!(values(&world, &world.topic, partition).await, numbers(0..5_000), "{partition}");
    }
}

async fn a_partition_that_does_not_exist_is_reported_with_how_many_there_are(world: World) {
    world.create(2, &[]).await;
    let producer = Producer::new(config(&world)).unwrap();
    let refused = producer.send(Record::new(world.topic.clone(), "a").partition(2)).await.unwrap_err();
    assert_eq!(refused.to_string(), format!("topic {} has no partition 2; it has 2", world.topic));
    assert_eq!(producer.topic(&world.topic).await.unwrap().partitions.len(), 2);
    // The metadata of the topic is fresh for minutes, and yet a partition that is added meanwhile is found.
    world.admin().create_partitions(&world.topic, 3).await.unwrap();
    let send = async || producer.send(Record::new(world.topic.clone(), "a").partition(2)).await.is_ok();
    eventually("the new partition can be written to", send).await;
}

async fn a_topic_that_cannot_be_is_refused(world: World) {
    let producer = Producer::new(config(&world)).unwrap();
    let refused = producer.send(Record::new("no/such", "a")).await.unwrap_err();
    assert_eq!(refused.code(), Some(ErrorCode::INVALID_TOPIC_EXCEPTION));
}

#[tokio::test]
async fn without_a_broker_the_wait_has_an_end() {
    // Bound and never accepted from: a port at which no broker answers.
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let client = ClientConfig::new(&silent.local_addr().unwrap().to_string()).unwrap();
    let config = ProducerConfig { max_block: Duration::from_millis(200), ..ProducerConfig::new(client) };
    let late = Producer::new(config).unwrap().send(Record::new("t", "a")).await.unwrap_err();
    assert!(late.to_string().starts_with("finding topic t was not done within 200ms"), "{late}");
}
