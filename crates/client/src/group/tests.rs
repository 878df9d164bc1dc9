//! Members of groups against a broker in this process.

use std::time::Duration;

use mainstem_broker::EmbeddedBroker;

use super::*;
use crate::{ClientConfig, ConsumerConfig, Producer, ProducerConfig, Record};

fn broker(partitions: &str) -> EmbeddedBroker {
    EmbeddedBroker::start(&[
        ("group.initial.rebalance.delay.ms", "0"),
        ("group.min.session.timeout.ms", "100"),
        ("offsets.topic.num.partitions", "1"),
        ("num.partitions", partitions),
    ])
}

fn config(broker: &EmbeddedBroker) -> GroupConfig {
    let client = ClientConfig {
        retry_backoff: Duration::from_millis(5),
        ..ClientConfig::new(broker.address()).unwrap()
    };
    GroupConfig {
        start: Position::Beginning,
        heartbeat_interval: Duration::from_millis(20),
        ..GroupConfig::new("g", ["t"], ConsumerConfig::new(client))
    }
}

/// Numbers to partitions in turn, each in a batch of its own.
async fn fill(broker: &EmbeddedBroker, partitions: i32, numbers: std::ops::Range<i32>) {
    let producer = Producer::new(ProducerConfig::new(ClientConfig::new(broker.address()).unwrap())).unwrap();
    for number in numbers {
        let record = Record::new("t", number.to_string()).partition(number % partitions);
        let _ = producer.send(record).await.unwrap();
        producer.flush().await;
    }
    producer.close().await;
}

fn numbers(batch: &FetchedBatch) -> Vec<i32> {
    let value = |record: Result<crate::FetchedRecord<'_>, Error>| {
        std::str::from_utf8(record.unwrap().value.unwrap()).unwrap().parse().unwrap()
    };
    batch.records().map(value).collect()
}

/// The next numbers, at least so many.
async fn take(consumer: &mut GroupConsumer, count: usize) -> Vec<i32> {
    let mut taken = Vec::new();
    while taken.len() < count {
        let next = tokio::time::timeout(Duration::from_secs(20), consumer.next());
        let batch = next.await.unwrap_or_else(|_| panic!("only {} of {count} came", taken.len()));
        taken.extend(numbers(&batch.unwrap()));
    }
    taken.sort_unstable();
    taken
}

/// Lets members take part until a condition holds; the numbers that came meanwhile.
async fn until(
    members: &mut [&mut GroupConsumer],
    holds: impl Fn(&[&mut GroupConsumer]) -> bool,
) -> Vec<i32> {
    let deadline = Instant::now() + Duration::from_secs(20);
    let mut taken = Vec::new();
    while !holds(members) {
        assert!(Instant::now() < deadline, "the group does not get there");
        for member in members.iter_mut() {
            if let Ok(batch) = tokio::time::timeout(Duration::from_millis(20), member.next()).await {
                taken.extend(numbers(&batch.unwrap()));
            }
        }
    }
    taken
}

fn counts(members: &[&mut GroupConsumer]) -> Vec<usize> {
    members.iter().map(|member| member.assignment().len()).collect()
}

/// Tells what its consumer was told.
struct Told(mpsc::UnboundedSender<String>);

impl RebalanceHooks for Told {
    fn revoked<'a>(
        &'a mut self,
        positions: &'a BTreeMap<TopicPartition, i64>,
        offsets: &'a GroupOffsets,
    ) -> HookFuture<'a> {
        Box::pin(async move {
            offsets.commit(positions).await.unwrap();
            self.0.send(format!("revoked {}", positions.len())).unwrap();
        })
    }

    fn assigned<'a>(&'a mut self, partitions: &'a BTreeSet<TopicPartition>) -> HookFuture<'a> {
        self.0.send(format!("assigned {}", partitions.len())).unwrap();
        Box::pin(std::future::ready(()))
    }

    fn lost<'a>(&'a mut self, partitions: &'a BTreeSet<TopicPartition>) -> HookFuture<'a> {
        self.0.send(format!("lost {}", partitions.len())).unwrap();
        Box::pin(std::future::ready(()))
    }
}

#[tokio::test]
async fn a_group_goes_on_where_it_has_committed() {
    let broker = broker("1");
    fill(&broker, 1, 0..20).await;
    let mut first = GroupConsumer::new(GroupConfig { auto_commit: None, ..config(&broker) }).unwrap();
    assert_eq!(take(&mut first, 10).await.len(), 10);
    first.commit().await.unwrap();
    let _ = take(&mut first, 5).await;
    first.close().await.unwrap();
    let mut second = GroupConsumer::new(GroupConfig { auto_commit: None, ..config(&broker) }).unwrap();
    assert_eq!(
        take(&mut second, 10).await,
        (10..20).collect::<Vec<_>>(),
        "what was not committed comes again"
    );
    second.start_commit().await.unwrap();
    let key = TopicPartition::new("t", 0);
    let committed = second.offsets().committed(&BTreeSet::from([key.clone()])).await.unwrap();
    assert_eq!(committed, BTreeMap::from([(key, 20)]));
}

#[tokio::test]
async fn who_has_not_joined_commits_nothing() {
    let broker = broker("1");
    let consumer = GroupConsumer::new(config(&broker)).unwrap();
    let offsets = BTreeMap::from([(TopicPartition::new("t", 0), 1)]);
    let refused = consumer.offsets().commit(&offsets).await.unwrap_err();
    assert!(refused.to_string().contains("it has not joined yet"), "{refused}");
}

#[tokio::test]
async fn a_group_that_refuses_says_why() {
    let broker = broker("1");
    let late = GroupConfig { session_timeout: Duration::from_secs(3600 * 24), ..config(&broker) };
    let refused = GroupConsumer::new(late).unwrap().next().await.unwrap_err();
    assert!(refused.to_string().starts_with("cannot join group g: "), "{refused}");
}

#[tokio::test]
async fn automatic_commits_happen_in_time_and_at_the_end() {
    let broker = broker("1");
    fill(&broker, 1, 0..10).await;
    let auto = || GroupConfig { auto_commit: Some(Duration::from_millis(10)), ..config(&broker) };
    let mut first = GroupConsumer::new(auto()).unwrap();
    assert_eq!(take(&mut first, 10).await.len(), 10);
    let key = BTreeSet::from([TopicPartition::new("t", 0)]);
    let offsets = first.offsets().clone();
    let deadline = Instant::now() + Duration::from_secs(20);
    while offsets.committed(&key).await.unwrap().values().copied().max() != Some(10) {
        assert!(Instant::now() < deadline, "nothing is committed");
        let _ = tokio::time::timeout(Duration::from_millis(10), first.next()).await;
    }
    fill(&broker, 1, 10..20).await;
    assert_eq!(take(&mut first, 10).await.len(), 10);
    first.close().await.unwrap();
    fill(&broker, 1, 20..21).await;
    let mut second = GroupConsumer::new(auto()).unwrap();
    assert_eq!(take(&mut second, 1).await, [20]);
}

#[tokio::test]
async fn members_share_what_there_is_and_take_over_what_is_left() {
    let broker = broker("4");
    fill(&broker, 4, 0..40).await;
    let (told, mut hears) = mpsc::unbounded_channel();
    let own = || GroupConfig { auto_commit: None, ..config(&broker) };
    let mut first = GroupConsumer::with_hooks(own(), Told(told)).unwrap();
    assert_eq!(take(&mut first, 40).await, (0..40).collect::<Vec<_>>());
    let mut second = GroupConsumer::new(own()).unwrap();
    let again = until(&mut [&mut first, &mut second], |members| counts(members) == [2, 2]).await;
    assert_eq!(again, Vec::<i32>::new(), "what was committed by the hook does not come again");
    assert_eq!(hears.recv().await.unwrap(), "assigned 4");
    assert_eq!(hears.recv().await.unwrap(), "revoked 2");
    fill(&broker, 4, 40..80).await;
    let mut all = take(&mut first, 20).await;
    all.extend(take(&mut second, 20).await);
    all.sort_unstable();
    assert_eq!(all, (40..80).collect::<Vec<_>>());
    second.commit().await.unwrap();
    second.close().await.unwrap();
    let _ = until(&mut [&mut first], |members| counts(members) == [4]).await;
    assert_eq!(hears.recv().await.unwrap(), "assigned 2");
    fill(&broker, 4, 80..84).await;
    assert_eq!(take(&mut first, 4).await, (80..84).collect::<Vec<_>>());
}

#[tokio::test]
async fn who_asks_for_nothing_for_too_long_loses_its_partitions_and_comes_back() {
    let broker = broker("2");
    fill(&broker, 2, 0..2).await;
    let (told, mut hears) = mpsc::unbounded_channel();
    let idle =
        GroupConfig { auto_commit: None, max_poll_interval: Duration::from_millis(300), ..config(&broker) };
    let mut idle = GroupConsumer::with_hooks(idle, Told(told)).unwrap();
    assert_eq!(take(&mut idle, 2).await.len(), 2);
    let mut other = GroupConsumer::new(config(&broker)).unwrap();
    let _ = until(&mut [&mut other], |members| counts(members) == [2]).await;
    let _ = until(&mut [&mut idle, &mut other], |members| counts(members) == [1, 1]).await;
    assert_eq!(hears.recv().await.unwrap(), "assigned 2");
    assert_eq!(hears.recv().await.unwrap(), "lost 2");
    assert_eq!(hears.recv().await.unwrap(), "assigned 1");
}

#[tokio::test]
async fn a_static_member_comes_back_to_what_it_had() {
    let broker = broker("2");
    fill(&broker, 2, 0..2).await;
    let named = |name: &str| GroupConfig { instance_id: Some(name.into()), ..config(&broker) };
    let mut first = GroupConsumer::new(named("a")).unwrap();
    let mut second = GroupConsumer::new(named("b")).unwrap();
    let _ = until(&mut [&mut first, &mut second], |members| counts(members) == [1, 1]).await;
    let had = second.assignment();
    second.close().await.unwrap();
    let mut second = GroupConsumer::new(named("b")).unwrap();
    let _ = until(&mut [&mut second], |members| counts(members) == [1]).await;
    assert_eq!(second.assignment(), had);
    assert_eq!(first.assignment().len(), 1);
}

#[tokio::test]
async fn a_topic_that_comes_later_is_read() {
    let broker = broker("1");
    let mut consumer = GroupConsumer::new(config(&broker)).unwrap();
    let reading = tokio::spawn(async move { take(&mut consumer, 5).await });
    fill(&broker, 1, 0..5).await;
    assert_eq!(reading.await.unwrap(), (0..5).collect::<Vec<_>>());
}
