//! The consumer against brokers.

use mainstem_records::{BatchBuilder, BatchOptions};
use mainstem_wire::messages::fetch_response::{FetchResponse, FetchableTopicResponse, PartitionData};
use mainstem_wire::messages::list_offsets_request::{ListOffsetsRequest, ListOffsetsTopic};
use mainstem_wire::messages::list_offsets_response::{
    ListOffsetsPartitionResponse, ListOffsetsResponse, ListOffsetsTopicResponse,
};
use mainstem_wire::{ApiKey, ErrorCode, Records, Uuid};

use super::*;
use crate::testing::{
    Answered, Asked, BrokenNetwork, NoBroker, ScriptedBroker, WAIT_TIMEOUT, World, answer, eventually,
    java_writes, on_both_brokers,
};
use crate::{ClientConfig, Compression, Header, Producer, ProducerConfig, Record, partition_of_key};

on_both_brokers!(
    partitions_are_read_in_order_and_on_from_there,
    lag_counts_what_is_left,
    little_memory_reads_as_much,
    a_seek_goes_where_it_says,
    retention_leaves_records_of_any_age,
    a_paused_partition_keeps_its_place,
    an_offset_that_is_not_there_is_reported_or_passed,
    positions_have_offsets,
    a_topic_that_comes_later_is_read_when_it_is_there,
    a_partition_that_comes_later_holds_up_no_other,
    connections_that_break_neither_lose_nor_double_nor_swap_records,
    records_of_java_are_read_and_lie_where_our_keys_would,
);

struct Fixture {
    world: World,
    producer: Producer,
}

impl Fixture {
    /// A fixture with a topic of so many partitions.
    async fn new(world: World, partitions: i32) -> Fixture {
        world.create(partitions, &[]).await;
        Fixture::without_topic(world)
    }

    fn without_topic(world: World) -> Fixture {
        let config = ProducerConfig::new(world.client());
        let producer = Producer::new(config.compression(Compression::Lz4)).unwrap();
        Fixture { world, producer }
    }

    fn config(&self) -> ConsumerConfig {
        ConsumerConfig::new(self.world.client())
    }

    fn consumer(&self) -> Consumer {
        Consumer::new(self.config()).unwrap()
    }

    fn t(&self, partition: i32) -> TopicPartition {
        self.world.t(partition)
    }

    async fn fill(&self, partition: i32, numbers: std::ops::Range<i64>) {
        fill(&self.producer, &self.t(partition), numbers).await;
    }
}

/// Writes numbers to a partition, with themselves as timestamps, in batches of ten.
async fn fill(producer: &Producer, to: &TopicPartition, numbers: std::ops::Range<i64>) {
    for number in numbers {
        let record = Record::new(to.topic.clone(), number.to_string()).partition(to.partition);
        let _ = producer.send(record.timestamp_ms(number)).await.unwrap();
        if number % 10 == 9 {
            producer.flush().await;
        }
    }
    producer.flush().await;
}

/// The numbers of the next records, at least so many.
async fn take(consumer: &mut Consumer, count: usize) -> Vec<i64> {
    let mut numbers = Vec::new();
    while numbers.len() < count {
        let next = tokio::time::timeout(WAIT_TIMEOUT, consumer.next()).await;
        let batch = match next {
            Ok(batch) => batch.unwrap(),
            Err(_) => panic!("only {} of {count} came: {:?}", numbers.len(), consumer.shared),
        };
        for record in batch.records() {
            let value = std::str::from_utf8(record.unwrap().value.unwrap()).unwrap().to_owned();
            numbers.push(value.parse().unwrap());
        }
    }
    numbers
}

async fn partitions_are_read_in_order_and_on_from_there(world: World) {
    let fixture = Fixture::new(world, 3).await;
    for partition in 0..3 {
        fixture.fill(partition, 0..500).await;
    }
    let mut consumer = fixture.consumer();
    consumer.assign((0..3).map(|partition| (fixture.t(partition), Position::Beginning)));
    let mut read = take(&mut consumer, 1_500).await;
    read.sort_unstable();
    assert_eq!(read, (0..500).flat_map(|number| [number; 3]).collect::<Vec<_>>());
    assert_eq!(consumer.position(&fixture.t(1)), Ok(Some(500)));
    assert_eq!(consumer.lag(&fixture.t(1)), Ok(Some(0)));
    fixture.fill(1, 500..600).await;
    assert_eq!(take(&mut consumer, 100).await, (500..600).collect::<Vec<_>>());
    consumer.close().await;
}

async fn lag_counts_what_is_left(world: World) {
    let fixture = Fixture::new(world, 1).await;
    fixture.fill(0, 0..100).await;
    let (t, mut consumer) = (fixture.t(0), fixture.consumer());
    consumer.assign([(t.clone(), Position::Beginning)]);
    assert_eq!(consumer.lag(&t), Ok(None), "no broker was asked yet");
    let mut left = 100;
    while left > 0 {
        left -= take(&mut consumer, 1).await.len() as i64;
        assert_eq!(consumer.lag(&t), Ok(Some(left)));
    }
    fixture.fill(0, 100..130).await;
    eventually("what comes later counts", async || consumer.lag(&t) == Ok(Some(30))).await;
    consumer.seek(&t, Position::Offset(40)).unwrap();
    eventually("it is counted again", async || consumer.lag(&t) == Ok(Some(90))).await;
    consumer.seek(&t, Position::End).unwrap();
    eventually("there is nothing behind the end", async || consumer.lag(&t) == Ok(Some(0))).await;
    assert!(consumer.lag(&fixture.t(1)).is_err(), "it is not assigned");
}

async fn little_memory_reads_as_much(world: World) {
    let fixture = Fixture::new(world, 2).await;
    for partition in 0..2 {
        fixture.fill(partition, 0..500).await;
    }
    let config = ConsumerConfig { prefetch_bytes: 1, partition_bytes_max: 1, ..fixture.config() };
    let mut consumer = Consumer::new(config).unwrap();
    consumer.assign((0..2).map(|partition| (fixture.t(partition), Position::Beginning)));
    assert_eq!(take(&mut consumer, 1_000).await.len(), 1_000);
}

async fn a_seek_goes_where_it_says(world: World) {
    let fixture = Fixture::new(world, 1).await;
    fixture.fill(0, 0..100).await;
    let mut consumer = fixture.consumer();
    consumer.assign([(fixture.t(0), Position::Offset(55))]);
    assert_eq!(take(&mut consumer, 1).await[0], 55, "within a batch");
    for (position, first) in [(Position::Beginning, 0), (Position::Time(70), 70), (Position::Offset(99), 99)]
    {
        consumer.seek(&fixture.t(0), position).unwrap();
        assert_eq!(take(&mut consumer, 1).await[0], first, "{position:?}");
    }
    for position in [Position::End, Position::Time(1_000)] {
        consumer.seek(&fixture.t(0), position).unwrap();
        let deadline = tokio::time::Instant::now() + WAIT_TIMEOUT;
        while consumer.position(&fixture.t(0)).unwrap().is_none() {
            assert!(tokio::time::Instant::now() < deadline, "{position:?} is not found");
            tokio::task::yield_now().await;
        }
        assert_eq!(consumer.position(&fixture.t(0)), Ok(Some(100)), "{position:?}");
    }
    fixture.fill(0, 100..101).await;
    assert_eq!(take(&mut consumer, 1).await, [100]);
    let unassigned = consumer.seek(&fixture.t(7), Position::End).unwrap_err();
    assert_eq!(
        unassigned.to_string(),
        format!("{} is not assigned to this consumer; assign it first", fixture.t(7))
    );
}

/// The tests rely on kept records: their timestamps are those of 1970.
async fn retention_leaves_records_of_any_age(world: World) {
    let fixture = Fixture::new(world, 1).await;
    fixture.fill(0, 0..10).await;
    let short = TopicPartition::new(fixture.world.name("short"), 0);
    let topic = fixture.world.new_topic(short.topic.clone(), 1).config("retention.ms", "1");
    fixture.world.admin().create_topic(&topic).await.unwrap();
    let consumer = fixture.consumer();
    let beginning =
        async |of: &TopicPartition| consumer.offsets([(of.clone(), Position::Beginning)]).await.unwrap()[of];
    // When the second one goes, the look at all partitions in which the first one went is over.
    for number in 0..2 {
        fill(&fixture.producer, &short, number..number + 1).await;
        eventually("what is too old goes", async || beginning(&short).await == Some(number + 1)).await;
    }
    assert_eq!(beginning(&fixture.t(0)).await, Some(0));
}

async fn a_paused_partition_keeps_its_place(world: World) {
    let fixture = Fixture::new(world, 2).await;
    fixture.fill(0, 0..20).await;
    fixture.fill(1, 1_000..1_020).await;
    let mut consumer = fixture.consumer();
    consumer.assign([(fixture.t(0), Position::Beginning), (fixture.t(1), Position::Beginning)]);
    consumer.pause(&fixture.t(0)).unwrap();
    assert_eq!(take(&mut consumer, 20).await, (1_000..1_020).collect::<Vec<_>>());
    fixture.fill(1, 1_020..1_030).await;
    assert_eq!(take(&mut consumer, 10).await, (1_020..1_030).collect::<Vec<_>>());
    consumer.resume(&fixture.t(0)).unwrap();
    consumer.pause(&fixture.t(1)).unwrap();
    assert_eq!(take(&mut consumer, 20).await, (0..20).collect::<Vec<_>>());
    consumer.assign([(fixture.t(1), Position::Beginning)]);
    assert_eq!(consumer.assignment(), [fixture.t(1)]);
    assert_eq!(consumer.position(&fixture.t(1)), Ok(Some(30)), "it continues where it was");
}

async fn an_offset_that_is_not_there_is_reported_or_passed(world: World) {
    let fixture = Fixture::new(world, 1).await;
    fixture.fill(0, 0..10).await;
    let mut consumer = fixture.consumer();
    consumer.assign([(fixture.t(0), Position::Offset(1_000))]);
    let refused = consumer.next().await.unwrap_err();
    assert_eq!(refused.code(), Some(ErrorCode::OFFSET_OUT_OF_RANGE));
    assert!(
        refused.to_string().starts_with(&format!("cannot read {} at offset 1000: ", fixture.t(0))),
        "{refused}"
    );
    consumer.seek(&fixture.t(0), Position::Beginning).unwrap();
    assert_eq!(take(&mut consumer, 10).await.len(), 10);
    let config = ConsumerConfig { out_of_range: OutOfRange::Beginning, ..fixture.config() };
    let mut consumer = Consumer::new(config).unwrap();
    consumer.assign([(fixture.t(0), Position::Offset(1_000))]);
    assert_eq!(take(&mut consumer, 10).await.len(), 10);
}

async fn positions_have_offsets(world: World) {
    let fixture = Fixture::new(world, 1).await;
    fixture.fill(0, 0..100).await;
    let consumer = fixture.consumer();
    for (position, offset) in [
        (Position::Beginning, Some(0)),
        (Position::End, Some(100)),
        (Position::Time(42), Some(42)),
        (Position::Time(1_000), None),
        (Position::Offset(7), Some(7)),
    ] {
        let found = consumer.offsets([(fixture.t(0), position)]).await.unwrap();
        assert_eq!(found, BTreeMap::from([(fixture.t(0), offset)]), "{position:?}");
    }
    let unknown = consumer.offsets([(fixture.t(3), Position::End)]).await.unwrap_err();
    assert_eq!(unknown.to_string(), format!("topic {} has no partition 3; it has 1", fixture.world.topic));
    assert_eq!(consumer.topic(&fixture.world.topic).await.unwrap().partitions.len(), 1);
}

async fn a_topic_that_comes_later_is_read_when_it_is_there(world: World) {
    let fixture = Fixture::without_topic(world);
    let mut consumer = fixture.consumer();
    consumer.assign([(fixture.t(0), Position::Beginning)]);
    let reading = tokio::spawn(async move { take(&mut consumer, 10).await });
    fixture.fill(0, 0..10).await;
    assert_eq!(reading.await.unwrap(), (0..10).collect::<Vec<_>>());
}

async fn connections_that_break_neither_lose_nor_double_nor_swap_records(world: World) {
    let broken = BrokenNetwork::start(world, 20_000, 20);
    let producer = Producer::new(ProducerConfig::new(broken.client())).unwrap();
    fill(&producer, &broken.world.t(0), 0..5_000).await;
    let config = ConsumerConfig { partition_bytes_max: 6_000, ..ConsumerConfig::new(broken.client()) };
    let mut consumer = Consumer::new(config).unwrap();
    consumer.assign([(broken.world.t(0), Position::Beginning)]);
    assert_eq!(take(&mut consumer, 5_000).await, (0..5_000).collect::<Vec<_>>());
}

async fn a_partition_that_comes_later_holds_up_no_other(world: World) {
    let fixture = Fixture::new(world, 1).await;
    fixture.fill(0, 0..10).await;
    let mut consumer = fixture.consumer();
    consumer.assign([(fixture.t(0), Position::Beginning), (fixture.t(1), Position::Beginning)]);
    assert_eq!(take(&mut consumer, 10).await, (0..10).collect::<Vec<_>>());
    let (admin, topic) = (fixture.world.admin(), &fixture.world.topic);
    admin.create_partitions(topic, 2).await.unwrap();
    // Kafka's controller answers before its broker knows.
    eventually("it has grown", async || admin.topic(topic).await.unwrap().partitions.len() == 2).await;
    fixture.fill(1, 100..110).await;
    assert_eq!(take(&mut consumer, 10).await, (100..110).collect::<Vec<_>>());
}

async fn records_of_java_are_read_and_lie_where_our_keys_would(world: World) {
    // A prime, and keys of all lengths modulo the four bytes that the hash takes at a time; some beyond ASCII.
    const PARTITIONS: i32 = 7;
    let keys: Vec<String> =
        (0..100).map(|number| format!("{}{number}", "\u{fc}b".repeat(number % 9))).collect();
    let fixture = Fixture::new(world, PARTITIONS).await;
    let mut consumer = fixture.consumer();
    consumer.assign((0..PARTITIONS).map(|partition| (fixture.t(partition), Position::Beginning)));
    for codec in Compression::ALL {
        if !java_writes(&fixture.world, codec, &keys).await {
            return;
        }
        let mut read = Vec::new();
        while read.len() < keys.len() {
            let next = tokio::time::timeout(WAIT_TIMEOUT, consumer.next());
            let batch = next.await.unwrap_or_else(|_| panic!("{codec:?}: only {} came", read.len())).unwrap();
            for record in batch.records() {
                let record = record.unwrap();
                let key = std::str::from_utf8(record.key.unwrap()).unwrap();
                let partition = partition_of_key(key.as_bytes(), PARTITIONS as usize) as i32;
                assert_eq!(batch.partition().partition, partition, "{key}");
                assert_eq!(record.value, Some(format!("value of {key}").as_bytes()));
                let header = Header { key: b"codec", value: Some(codec.name().as_bytes()) };
                assert_eq!(record.headers.collect::<Vec<_>>(), [header]);
                read.push(key.to_owned());
            }
        }
        read.sort_unstable();
        let mut expected = keys.clone();
        expected.sort_unstable();
        assert_eq!(read, expected, "{codec:?}");
    }
}

/// Answers ListOffsets of the partition `refused` with an error; others are at offset 5.
fn offsets_but_of(asked: &mut Asked<'_>, refused: i32) -> Answered {
    let code = |partition: i32| match partition == refused {
        true => ErrorCode::NOT_LEADER_OR_FOLLOWER.code(),
        false => 0,
    };
    if asked.api_key != ApiKey::ListOffsets {
        return None;
    }
    let request: ListOffsetsRequest<'_> = asked.decode().unwrap();
    let topic = |topic: &ListOffsetsTopic<'_>| ListOffsetsTopicResponse {
        name: topic.name.to_string().into(),
        partitions: topic
            .partitions
            .iter()
            .map(|one| ListOffsetsPartitionResponse {
                partition_index: one.partition_index,
                error_code: code(one.partition_index),
                offset: 5,
                ..Default::default()
            })
            .collect(),
        ..Default::default()
    };
    let topics = request.topics.iter().map(topic).collect();
    answer(asked, &ListOffsetsResponse { topics, ..Default::default() })
}

#[tokio::test]
async fn an_offset_that_is_refused_holds_up_no_other() {
    let broker = ScriptedBroker::start(2, |asked| offsets_but_of(asked, 1));
    let mut consumer = Consumer::new(ConsumerConfig::new(broker.client())).unwrap();
    let keys = [0, 1].map(|partition| TopicPartition::new("t", partition));
    consumer.assign(keys.clone().map(|key| (key, Position::End)));
    eventually("the other is found", async || consumer.position(&keys[0]) == Ok(Some(5))).await;
    assert_eq!(consumer.position(&keys[1]), Ok(None));
}

/// The error that is returned next.
async fn next_error(consumer: &mut Consumer) -> Error {
    let next = tokio::time::timeout(WAIT_TIMEOUT, consumer.next()).await;
    next.expect("something is returned").unwrap_err()
}

#[tokio::test]
async fn a_fetch_that_would_fail_again_is_reported_of_each_partition() {
    let refusal = ErrorCode::CLUSTER_AUTHORIZATION_FAILED;
    let mut codes = [ErrorCode::REQUEST_TIMED_OUT, refusal, refusal].into_iter();
    let broker = ScriptedBroker::start(2, move |asked| {
        let error_code = (asked.api_key == ApiKey::Fetch).then(|| codes.next()).flatten()?.code();
        answer(asked, &FetchResponse { error_code, ..Default::default() })
    });
    let mut consumer = Consumer::new(ConsumerConfig::new(broker.client())).unwrap();
    let keys = [0, 1].map(|partition| TopicPartition::new("t", partition));
    consumer.assign(keys.clone().map(|key| (key, Position::Offset(5))));
    for _ in &keys {
        assert_eq!(
            next_error(&mut consumer).await.code(),
            Some(refusal),
            "an error that may pass is not returned"
        );
    }
    assert_eq!(consumer.position(&keys[1]), Ok(Some(5)));
    consumer.seek(&keys[1], Position::Offset(5)).unwrap();
    assert_eq!(next_error(&mut consumer).await.code(), Some(refusal), "it is asked again after a seek");
}

#[tokio::test]
async fn a_fetch_whose_answer_is_none_is_reported() {
    let broker = ScriptedBroker::start(1, |asked| (asked.api_key == ApiKey::Fetch).then(|| vec![0x7f; 8]));
    let mut consumer = Consumer::new(ConsumerConfig::new(broker.client())).unwrap();
    consumer.assign([(TopicPartition::new("t", 0), Position::Offset(5))]);
    let error = next_error(&mut consumer).await;
    assert!(matches!(error, Error::Malformed { .. }), "{error}");
}

/// A fetch is answered with one record of one partition.
fn fetched(asked: &Asked<'_>, partition_index: i32, is_damaged: bool) -> Answered {
    let mut builder = BatchBuilder::new(BatchOptions::default());
    builder.append(0, None, Some(b"1"), &[]).unwrap();
    let mut bytes = builder.build().unwrap();
    *bytes.last_mut().unwrap() ^= u8::from(is_damaged);
    let records = Some(Records::Bytes(bytes.into()));
    let partition = PartitionData { partition_index, high_watermark: 1, records, ..Default::default() };
    let (topic_id, partitions) = (Uuid::from_u128(7), vec![partition]);
    let topic = FetchableTopicResponse { topic_id, partitions, ..Default::default() };
    answer(asked, &FetchResponse { responses: vec![topic], ..Default::default() })
}

#[tokio::test]
async fn a_damaged_batch_that_filled_the_buffer_holds_up_no_other_partition() {
    let mut answers = [(0, true), (1, false)].into_iter();
    let broker = ScriptedBroker::start(2, move |asked| {
        let (partition, is_damaged) = (asked.api_key == ApiKey::Fetch).then(|| answers.next()).flatten()?;
        fetched(asked, partition, is_damaged)
    });
    let config = ConsumerConfig { prefetch_bytes: 1, ..ConsumerConfig::new(broker.client()) };
    let mut consumer = Consumer::new(config).unwrap();
    let keys = [0, 1].map(|partition| TopicPartition::new("t", partition));
    consumer.assign(keys.map(|key| (key, Position::Offset(0))));
    let error = next_error(&mut consumer).await;
    assert!(matches!(&error, Error::Damaged { partition, .. } if partition.partition == 0), "{error}");
    assert_eq!(take(&mut consumer, 1).await, [1]);
}

#[tokio::test]
async fn a_cluster_that_is_none_is_reported() {
    let none = NoBroker::start().await;
    let mut consumer = Consumer::new(ConsumerConfig::new(ClientConfig::new(&none.address).unwrap())).unwrap();
    consumer.assign([(TopicPartition::new("t", 0), Position::Beginning)]);
    let error = next_error(&mut consumer).await;
    assert!(matches!(error, Error::Malformed { .. }), "{error}");
}

#[tokio::test]
async fn who_waits_for_a_fetcher_that_panics_is_reported() {
    let broker = ScriptedBroker::start(1, |_| None);
    let mut consumer = Consumer::new(ConsumerConfig::new(broker.client())).unwrap();
    let fetcher = Fetcher::new(consumer.shared.clone());
    let panics = tokio::spawn(async move {
        let _fetcher = fetcher;
        panic!("on purpose");
    });
    let error = tokio::time::timeout(WAIT_TIMEOUT, consumer.next()).await;
    assert_eq!(error.unwrap().unwrap_err(), Error::Panicked { what: "the fetcher of a consumer".into() });
    assert!(panics.await.unwrap_err().is_panic());
}
