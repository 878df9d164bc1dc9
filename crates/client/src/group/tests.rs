//! Members of groups against brokers.

mod scripted;

use std::time::Duration;

use futures_util::{StreamExt, TryStreamExt};
use mainstem_records::{ProducerEpoch, ProducerId};
use mainstem_wire::ErrorCode;

use super::*;
use crate::testing::{JavaMember, WAIT_TIMEOUT, World, eventually, on_both_brokers};
use crate::{Compression, ConsumerConfig, Isolation, Producer, ProducerConfig, Record};

/// Defines tests of groups of either protocol, each on both brokers.
macro_rules! in_both_protocols {
    ($($test:ident),+ $(,)?) => {
        on_both_brokers!($($test),+);

        mod consumer_protocol {
            use super::*;

            on_both_brokers!($($test),+);

            $(async fn $test(world: World) {
                $crate::testing::boxed(super::$test(world.with_consumer_groups())).await;
            })+
        }
    };
}
in_both_protocols!(
    a_group_continues_at_its_committed_offsets,
    a_member_that_leaves_commits_nothing,
    who_has_not_joined_commits_nothing,
    automatic_commits_happen_in_time_and_at_the_end,
    members_share_what_there_is_and_take_over_what_is_left,
    who_asks_for_nothing_for_too_long_loses_its_partitions_and_comes_back,
    a_static_member_comes_back_to_what_it_had,
    a_topic_that_comes_later_is_read,
    a_topic_that_grows_is_read_whole,
    a_static_member_that_comes_back_sees_a_topic_grow,
    what_a_member_keeps_stays_paused_where_it_was,
    a_member_shares_with_one_of_java,
    a_pattern_finds_topics_that_come_later,
    who_was_thrown_out_is_answered_so_when_it_closes,
    a_hook_says_where_to_begin,
    what_is_kept_beside_an_offset_is_read_back_at_assignment,
    a_revocation_stops_no_other_partition,
    a_held_partition_continues_with_what_was_read_ahead,
    a_position_in_a_topic_that_was_deleted_is_none_in_its_successor,
);

mod classic_protocol_alone {
    use super::*;

    on_both_brokers!(
        a_group_that_refuses_says_why,
        an_offset_that_no_leader_has_written_is_reported,
        records_come_as_a_stream,
    );
}

/// With transactions.
mod of_transactions {
    use super::*;

    on_both_brokers!(a_group_reads_what_was_committed);
}

mod consumer_protocol_alone {
    use super::*;

    on_both_brokers!(an_assignor_that_is_not_there_is_refused, a_second_member_of_an_instance_is_refused,);

    async fn an_assignor_that_is_not_there_is_refused(world: World) {
        let protocol = GroupProtocol::Consumer { assignor: Some("best".into()) };
        let own = GroupConfig { protocol, ..config(&world) };
        let refused = GroupConsumer::new(own).unwrap().next().await.unwrap_err();
        assert_eq!(refused.code(), Some(ErrorCode::UNSUPPORTED_ASSIGNOR));
        assert!(refused.to_string().starts_with(&format!("cannot take part in group {}: ", world.group)));
    }

    async fn a_second_member_of_an_instance_is_refused(world: World) {
        let world = world.with_consumer_groups();
        world.create(1, &[]).await;
        let own = || GroupConfig { instance_id: Some("a".into()), ..config(&world) };
        let mut first = GroupConsumer::new(own()).unwrap();
        let _ = until(&mut [&mut first], |members| counts(members) == [1]).await;
        let refused = GroupConsumer::new(own()).unwrap().next().await.unwrap_err();
        assert_eq!(refused.code(), Some(ErrorCode::UNRELEASED_INSTANCE_ID));
    }
}

fn config(world: &World) -> GroupConfig {
    let consumer = ConsumerConfig::new(world.client());
    GroupConfig {
        start: Position::Beginning,
        heartbeat_interval: Duration::from_millis(20),
        protocol: world.group_protocol.clone(),
        ..GroupConfig::new(world.group.clone(), [world.topic.clone()], consumer)
    }
}

/// Numbers to partitions in turn, each in a batch of its own.
async fn fill(world: &World, partitions: i32, numbers: std::ops::Range<i32>) {
    let producer = Producer::new(ProducerConfig::new(world.client())).unwrap();
    for number in numbers {
        let record = Record::new(world.topic.clone(), number.to_string()).partition(number % partitions);
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
        let next = tokio::time::timeout(WAIT_TIMEOUT, consumer.next());
        let batch = next.await.unwrap_or_else(|_| panic!("only {} of {count} came", taken.len()));
        taken.extend(numbers(&batch.unwrap()));
    }
    taken.sort_unstable();
    taken
}

/// Lets members take part until a condition holds, and returns the numbers that came meanwhile.
async fn until(
    members: &mut [&mut GroupConsumer],
    holds: impl Fn(&[&mut GroupConsumer]) -> bool,
) -> Vec<i32> {
    let deadline = Instant::now() + WAIT_TIMEOUT;
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

/// Reports the number of partitions of each change.
struct ReportingHooks(mpsc::UnboundedSender<String>);

impl RebalanceHooks for ReportingHooks {
    fn revoked<'a>(
        &'a mut self,
        partitions: &'a BTreeSet<TopicPartition>,
        positions: &'a BTreeMap<TopicPartition, i64>,
        offsets: &'a GroupOffsets,
    ) -> HookFuture<'a> {
        Box::pin(async move {
            offsets.commit(positions).await.unwrap();
            self.0.send(format!("revoked {}", partitions.len())).unwrap();
        })
    }

    fn assigned<'a>(&'a mut self, begin: &'a mut BTreeMap<TopicPartition, Position>) -> HookFuture<'a> {
        self.0.send(format!("assigned {}", begin.len())).unwrap();
        Box::pin(std::future::ready(()))
    }

    fn lost<'a>(&'a mut self, partitions: &'a BTreeSet<TopicPartition>) -> HookFuture<'a> {
        self.0.send(format!("lost {}", partitions.len())).unwrap();
        Box::pin(std::future::ready(()))
    }
}

async fn a_group_continues_at_its_committed_offsets(world: World) {
    world.create(1, &[]).await;
    fill(&world, 1, 0..20).await;
    let mut first = GroupConsumer::new(GroupConfig { auto_commit: None, ..config(&world) }).unwrap();
    assert_eq!(take(&mut first, 10).await.len(), 10);
    first.commit().await.unwrap();
    let _ = take(&mut first, 5).await;
    first.close().await.unwrap();
    let mut second = GroupConsumer::new(GroupConfig { auto_commit: None, ..config(&world) }).unwrap();
    assert_eq!(
        take(&mut second, 10).await,
        (10..20).collect::<Vec<_>>(),
        "what was not committed comes again"
    );
    second.start_commit().await.unwrap();
    let key = world.t(0);
    let committed = second.offsets().committed(&BTreeSet::from([key.clone()])).await.unwrap();
    assert_eq!(committed, BTreeMap::from([(key, 20)]));
}

async fn a_member_that_leaves_commits_nothing(world: World) {
    world.create(2, &[]).await;
    fill(&world, 2, 0..20).await;
    let own = || GroupConfig {
        starts: BTreeMap::from([(world.t(1), Position::Offset(5))]),
        auto_commit: Some(Duration::from_secs(3600)),
        ..config(&world)
    };
    let expected: Vec<i32> = (0..20).filter(|number| number % 2 == 0 || *number > 10).collect();
    let mut first = GroupConsumer::new(own()).unwrap();
    assert_eq!(take(&mut first, 15).await, expected);
    assert_eq!(first.positions().known(), BTreeMap::from([(world.t(0), 10), (world.t(1), 10)]));
    first.leave().await;
    let mut second = GroupConsumer::new(own()).unwrap();
    assert_eq!(take(&mut second, 15).await, expected);
}

async fn who_has_not_joined_commits_nothing(world: World) {
    world.create(1, &[]).await;
    let consumer = GroupConsumer::new(config(&world)).unwrap();
    let offsets = BTreeMap::from([(world.t(0), 1)]);
    // The member is a task that has not been polled yet.
    let (producer_id, producer_epoch) = (ProducerId::new(1), ProducerEpoch::ZERO);
    let in_transaction = Transaction { id: "t", producer_id, producer_epoch, is_v2: true };
    let refusals = [
        consumer.offsets().commit(&offsets).await.unwrap_err(),
        consumer.offsets().commit_in_transaction(&offsets, &in_transaction).await.unwrap_err(),
    ];
    for refused in refusals {
        assert_eq!(refused, Error::NotAMember { group: world.group.to_string() });
    }
}

async fn a_group_that_refuses_says_why(world: World) {
    world.create(1, &[]).await;
    let late = GroupConfig { session_timeout: Duration::from_secs(3600 * 24), ..config(&world) };
    let refused = GroupConsumer::new(late).unwrap().next().await.unwrap_err();
    assert!(refused.to_string().starts_with(&format!("cannot join group {}: ", world.group)), "{refused}");
}

async fn automatic_commits_happen_in_time_and_at_the_end(world: World) {
    world.create(1, &[]).await;
    fill(&world, 1, 0..10).await;
    let auto = || GroupConfig { auto_commit: Some(Duration::from_millis(10)), ..config(&world) };
    let mut first = GroupConsumer::new(auto()).unwrap();
    assert_eq!(take(&mut first, 10).await.len(), 10);
    let key = BTreeSet::from([world.t(0)]);
    let offsets = first.offsets().clone();
    let deadline = Instant::now() + WAIT_TIMEOUT;
    while offsets.committed(&key).await.unwrap().values().copied().max() != Some(10) {
        assert!(Instant::now() < deadline, "nothing is committed");
        let _ = tokio::time::timeout(Duration::from_millis(10), first.next()).await;
    }
    fill(&world, 1, 10..20).await;
    assert_eq!(take(&mut first, 10).await.len(), 10);
    first.close().await.unwrap();
    fill(&world, 1, 20..21).await;
    let mut second = GroupConsumer::new(auto()).unwrap();
    assert_eq!(take(&mut second, 1).await, [20]);
}

async fn members_share_what_there_is_and_take_over_what_is_left(world: World) {
    world.create(4, &[]).await;
    fill(&world, 4, 0..40).await;
    let (sender, mut reports) = mpsc::unbounded_channel();
    let own = || GroupConfig { auto_commit: None, ..config(&world) };
    let mut first = GroupConsumer::with_hooks(own(), ReportingHooks(sender)).unwrap();
    assert_eq!(take(&mut first, 40).await, (0..40).collect::<Vec<_>>());
    let mut second = GroupConsumer::new(own()).unwrap();
    let again = until(&mut [&mut first, &mut second], |members| counts(members) == [2, 2]).await;
    assert_eq!(again, Vec::<i32>::new(), "what was committed by the hook does not come again");
    assert_eq!(reports.recv().await.unwrap(), "assigned 4");
    assert_eq!(reports.recv().await.unwrap(), "revoked 2");
    fill(&world, 4, 40..80).await;
    let mut all = take(&mut first, 20).await;
    all.extend(take(&mut second, 20).await);
    all.sort_unstable();
    assert_eq!(all, (40..80).collect::<Vec<_>>());
    second.commit().await.unwrap();
    second.close().await.unwrap();
    let _ = until(&mut [&mut first], |members| counts(members) == [4]).await;
    assert_eq!(reports.recv().await.unwrap(), "assigned 2");
    fill(&world, 4, 80..84).await;
    assert_eq!(take(&mut first, 4).await, (80..84).collect::<Vec<_>>());
}

/// A member that has read two partitions and is thrown out soon unless it asks for more, with the reports of its hooks.
async fn idle(world: &World) -> (GroupConsumer, mpsc::UnboundedReceiver<String>) {
    world.create(2, &[]).await;
    fill(world, 2, 0..2).await;
    let (sender, reports) = mpsc::unbounded_channel();
    let idle =
        GroupConfig { auto_commit: None, max_poll_interval: Duration::from_millis(300), ..config(world) };
    let mut idle = GroupConsumer::with_hooks(idle, ReportingHooks(sender)).unwrap();
    assert_eq!(take(&mut idle, 2).await.len(), 2);
    (idle, reports)
}

async fn who_asks_for_nothing_for_too_long_loses_its_partitions_and_comes_back(world: World) {
    let (mut idle, mut reports) = idle(&world).await;
    let mut other = GroupConsumer::new(config(&world)).unwrap();
    let _ = until(&mut [&mut other], |members| counts(members) == [2]).await;
    let _ = until(&mut [&mut idle, &mut other], |members| counts(members) == [1, 1]).await;
    assert_eq!(reports.recv().await.unwrap(), "assigned 2");
    assert_eq!(reports.recv().await.unwrap(), "lost 2");
    assert_eq!(reports.recv().await.unwrap(), "assigned 1");
}

async fn who_was_thrown_out_is_answered_so_when_it_closes(world: World) {
    let (idle, mut reports) = idle(&world).await;
    eventually("it is thrown out", async || idle.shared.identity.lock().generation < 0).await;
    idle.close().await.unwrap();
    assert_eq!(reports.recv().await.unwrap(), "assigned 2");
    assert_eq!(reports.recv().await.unwrap(), "lost 2", "nothing can be committed any more");
    assert_eq!(reports.recv().await, None);
}

/// A hook that begins at one offset in all partitions.
struct BeginAt(i64);

impl RebalanceHooks for BeginAt {
    fn assigned<'a>(&'a mut self, begin: &'a mut BTreeMap<TopicPartition, Position>) -> HookFuture<'a> {
        begin.values_mut().for_each(|position| *position = Position::Offset(self.0));
        Box::pin(std::future::ready(()))
    }
}

async fn a_hook_says_where_to_begin(world: World) {
    world.create(2, &[]).await;
    fill(&world, 2, 0..20).await;
    let mut member = GroupConsumer::with_hooks(config(&world), BeginAt(8)).unwrap();
    assert_eq!(take(&mut member, 4).await, [16, 17, 18, 19]);
}

async fn a_static_member_comes_back_to_what_it_had(world: World) {
    world.create(2, &[]).await;
    fill(&world, 2, 0..2).await;
    let named = |name: &str| GroupConfig { instance_id: Some(name.into()), ..config(&world) };
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

async fn what_a_member_keeps_stays_paused_where_it_was(world: World) {
    world.create(2, &[]).await;
    fill(&world, 2, 0..20).await;
    let own = || GroupConfig { auto_commit: None, ..config(&world) };
    let mut first = GroupConsumer::new(own()).unwrap();
    assert_eq!(take(&mut first, 20).await.len(), 20);
    for partition in 0..2 {
        first.pause(&world.t(partition)).unwrap();
        first.seek(&world.t(partition), Position::Offset(7)).unwrap();
    }
    let mut second = GroupConsumer::new(own()).unwrap();
    let taken = until(&mut [&mut first, &mut second], |members| counts(members) == [1, 1]).await;
    let kept = first.assignment().remove(0);
    assert!(taken.iter().all(|number| number % 2 != kept.partition), "{taken:?} of all but {kept}");
    assert_eq!(first.position(&kept), Ok(Some(7)));
    first.resume(&kept).unwrap();
    assert_eq!(take(&mut first, 3).await, [7, 8, 9].map(|offset| offset * 2 + kept.partition));
}

async fn a_group_reads_what_was_committed(world: World) {
    world.create(1, &[]).await;
    let config = || GroupConfig {
        auto_commit: None,
        consumer: ConsumerConfig {
            isolation: Isolation::ReadCommitted,
            ..ConsumerConfig::new(world.client())
        },
        ..config(&world)
    };
    let writer = ProducerConfig::new(world.client()).transactional_id(world.name("writer"));
    let writer = Producer::new(writer).unwrap();
    writer.init_transactions().await.unwrap();
    let mut first = GroupConsumer::new(config()).unwrap();
    for (number, is_committed) in [(0, true), (1, false), (2, true)] {
        writer.begin_transaction().unwrap();
        let _ = writer.send(Record::new(world.topic.clone(), number.to_string())).await.unwrap();
        writer.flush().await;
        match is_committed {
            true => writer.commit_transaction().await.unwrap(),
            false => writer.abort_transaction().await.unwrap(),
        }
    }
    assert_eq!(take(&mut first, 2).await, [0, 2]);
    first.commit().await.unwrap();
    first.close().await.unwrap();
    writer.begin_transaction().unwrap();
    let _ = writer.send(Record::new(world.topic.clone(), "3")).await.unwrap();
    writer.commit_transaction().await.unwrap();
    let mut second = GroupConsumer::new(config()).unwrap();
    assert_eq!(take(&mut second, 1).await, [3]);
}

async fn a_topic_that_comes_later_is_read(world: World) {
    let mut consumer = GroupConsumer::new(config(&world)).unwrap();
    let reading = tokio::spawn(async move { take(&mut consumer, 5).await });
    fill(&world, 1, 0..5).await;
    assert_eq!(reading.await.unwrap(), (0..5).collect::<Vec<_>>());
}

/// The configuration of a member that often looks for new topics and partitions.
fn looking(world: &World) -> GroupConfig {
    let mut looking = config(world);
    looking.consumer.client.metadata_max_age = Duration::from_millis(50);
    looking
}

async fn a_topic_that_grows_is_read_whole(world: World) {
    world.create(1, &[]).await;
    let mut first = GroupConsumer::new(looking(&world)).unwrap();
    let _ = until(&mut [&mut first], |members| counts(members) == [1]).await;
    let mut second = GroupConsumer::new(looking(&world)).unwrap();
    world.admin().create_partitions(&world.topic, 4).await.unwrap();
    let _ = until(&mut [&mut first, &mut second], |members| counts(members) == [2, 2]).await;
    fill(&world, 4, 0..4).await;
    let mut taken = take(&mut first, 2).await;
    taken.extend(take(&mut second, 2).await);
    taken.sort_unstable();
    assert_eq!(taken, [0, 1, 2, 3]);
}

async fn a_static_member_that_comes_back_sees_a_topic_grow(world: World) {
    world.create(2, &[]).await;
    let named = || GroupConfig { instance_id: Some("a".into()), ..looking(&world) };
    let mut first = GroupConsumer::new(named()).unwrap();
    let _ = until(&mut [&mut first], |members| counts(members) == [2]).await;
    first.close().await.unwrap();
    let mut again = GroupConsumer::new(named()).unwrap();
    let _ = until(&mut [&mut again], |members| counts(members) == [2]).await;
    world.admin().create_partitions(&world.topic, 4).await.unwrap();
    let _ = until(&mut [&mut again], |members| counts(members) == [4]).await;
}

async fn a_pattern_finds_topics_that_come_later(world: World) {
    world.create(1, &[]).await;
    let pattern = format!("{}(-late)?", world.topic);
    let mut consumer = ConsumerConfig::new(world.client());
    consumer.client.metadata_max_age = Duration::from_millis(50);
    let own = GroupConfig { consumer, subscription: Subscription::Pattern(pattern.into()), ..config(&world) };
    let mut member = GroupConsumer::new(own).unwrap();
    let _ = until(&mut [&mut member], |members| counts(members) == [1]).await;
    for name in ["late", "later"] {
        world.admin().create_topic(&world.new_topic(world.name(name), 2)).await.unwrap();
    }
    let _ = until(&mut [&mut member], |members| counts(members) == [3]).await;
}

/// KIP-320: the epoch that is committed with an offset is checked before anything is read there.
async fn an_offset_that_no_leader_has_written_is_reported(world: World) {
    world.create(1, &[]).await;
    fill(&world, 1, 0..10).await;
    let mut first = GroupConsumer::new(GroupConfig { auto_commit: None, ..config(&world) }).unwrap();
    assert_eq!(take(&mut first, 10).await.len(), 10);
    let beyond = first.offsets.positions.places(&BTreeMap::from([(world.t(0), 10)]));
    assert_eq!(beyond[&world.t(0)].leader_epoch, Some(0));
    let beyond =
        BTreeMap::from([(world.t(0), CommittedOffset { offset: 15, ..beyond[&world.t(0)].clone() })]);
    let identity = first.shared.identity.lock().clone();
    first.offsets.calls.commit(&identity, &beyond).await.unwrap();
    first.close().await.unwrap();
    let mut second = GroupConsumer::new(GroupConfig { auto_commit: None, ..config(&world) }).unwrap();
    let error = second.next().await.unwrap_err();
    let partition = world.t(0);
    assert_eq!(error, Error::Truncated { partition, offset: 15, diverges_at: Some(10) });
    second.close().await.unwrap();
    let mut own = GroupConfig { auto_commit: None, ..config(&world) };
    own.consumer.out_of_range = crate::OutOfRange::End;
    let mut third = GroupConsumer::new(own).unwrap();
    let _ = until(&mut [&mut third], |members| members[0].position(&world.t(0)) == Ok(Some(10))).await;
    fill(&world, 1, 10..11).await;
    assert_eq!(take(&mut third, 1).await, [10]);
}

async fn records_come_as_a_stream(world: World) {
    world.create(2, &[]).await;
    fill(&world, 2, 0..20).await;
    let mut member = GroupConsumer::new(config(&world)).unwrap();
    // A stream that is dropped takes nothing with it.
    let mut records: Vec<_> = member.stream().take(7).try_collect().await.unwrap();
    records.extend(member.stream().take(13).try_collect::<Vec<_>>().await.unwrap());
    let number = |record: &crate::OwnedRecord| -> i32 {
        std::str::from_utf8(record.value.as_ref().unwrap()).unwrap().parse().unwrap()
    };
    assert!(records.iter().all(|one| one.offset == i64::from(number(one) / 2)));
    let mut numbers: Vec<i32> = records.iter().map(number).collect();
    numbers.sort_unstable();
    assert_eq!(numbers, (0..20).collect::<Vec<_>>());
}

/// Numbers to partitions in turn, in all codecs in turn, with key and header.
async fn fill_for_java(world: &World, partitions: i32, numbers: std::ops::Range<i32>) {
    for codec in Compression::ALL {
        let config = ProducerConfig::new(world.client()).compression(codec);
        let producer = Producer::new(config).unwrap();
        for number in numbers.clone().filter(|number| codec_of(*number) == codec) {
            let record = Record::new(world.topic.clone(), number.to_string()).partition(number % partitions);
            let record = record.key(format!("key of {number}")).header("codec", codec.name());
            let _ = producer.send(record).await.unwrap();
            producer.flush().await;
        }
        producer.close().await;
    }
}

fn codec_of(number: i32) -> Compression {
    Compression::ALL[number as usize % Compression::ALL.len()]
}

/// The numbers that Java's member has read since, which are whole records of [`fill_for_java`].
fn numbers_of_java(java: &mut JavaMember) -> Vec<i32> {
    let number = |read: Vec<String>| {
        let number: i32 = read[0].parse().unwrap();
        assert_eq!(read[1..], [format!("key of {number}"), format!("codec={}", codec_of(number).name())]);
        number
    };
    java.take_read().into_iter().map(number).collect()
}

/// Each number is read by one of the two, and by it once; one continues where the other has left.
async fn a_member_shares_with_one_of_java(world: World) {
    let world = &world;
    let own = GroupConfig { auto_commit: None, ..config(world) };
    let protocol = if world.group_protocol == GroupProtocol::Classic { "classic" } else { "consumer" };
    world.create(4, &[]).await;
    fill_for_java(world, 4, 0..40).await;
    let (sender, _reports) = mpsc::unbounded_channel();
    let mut ours = GroupConsumer::with_hooks(own.clone(), ReportingHooks(sender.clone())).unwrap();
    let mut taken = take(&mut ours, 40).await;
    let Some(mut java) = JavaMember::join(world, protocol) else { return };
    // Numbers that it has committed by its hook do not come again.
    taken.extend(balanced(&mut ours, &mut java, |ours, java| (ours, java) == (2, 2)).await);
    fill_for_java(world, 4, 40..80).await;
    taken.extend(all_of(&mut ours, &mut java, 40).await);
    ours.commit().await.unwrap();
    java.close();
    taken.extend(balanced(&mut ours, &mut java, |ours, _| ours == 4).await);
    fill_for_java(world, 4, 80..120).await;
    taken.extend(take(&mut ours, 40).await);
    ours.commit().await.unwrap();
    let mut java = JavaMember::join(world, protocol).expect("the first could");
    taken.extend(balanced(&mut ours, &mut java, |ours, java| (ours, java) == (2, 2)).await);
    ours.close().await.unwrap();
    fill_for_java(world, 4, 120..160).await;
    let deadline = Instant::now() + WAIT_TIMEOUT;
    while taken.len() < 160 {
        assert!(Instant::now() < deadline, "Java's member has read {} of 160", taken.len());
        taken.extend(numbers_of_java(&mut java));
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    java.close();
    taken.sort_unstable();
    assert_eq!(taken, (0..160).collect::<Vec<_>>());
}

/// Lets both take part until a condition on the number of their partitions holds, and returns what they read meanwhile.
async fn balanced(
    ours: &mut GroupConsumer,
    java: &mut JavaMember,
    holds: impl Fn(usize, usize) -> bool,
) -> Vec<i32> {
    let deadline = Instant::now() + WAIT_TIMEOUT;
    let mut taken = Vec::new();
    loop {
        taken.extend(numbers_of_java(java));
        let has = (ours.assignment().len(), if java.is_closed() { 0 } else { java.assigned });
        if holds(has.0, has.1) {
            return taken;
        }
        assert!(Instant::now() < deadline, "the group does not get there: {has:?}");
        if let Ok(batch) = tokio::time::timeout(Duration::from_millis(20), ours.next()).await {
            taken.extend(numbers(&batch.unwrap()));
        }
    }
}

/// The given count of numbers, whichever member reads them.
async fn all_of(ours: &mut GroupConsumer, java: &mut JavaMember, count: usize) -> Vec<i32> {
    let deadline = Instant::now() + WAIT_TIMEOUT;
    let mut taken = Vec::new();
    while taken.len() < count {
        assert!(Instant::now() < deadline, "only {} of {count} came", taken.len());
        taken.extend(numbers_of_java(java));
        if let Ok(batch) = tokio::time::timeout(Duration::from_millis(20), ours.next()).await {
            taken.extend(numbers(&batch.unwrap()));
        }
    }
    taken
}

/// The next event that is not a batch, and the batches before it.
async fn next_change(member: &mut GroupConsumer) -> (GroupEvent, Vec<FetchedBatch>) {
    let mut batches = Vec::new();
    loop {
        let event = tokio::time::timeout(WAIT_TIMEOUT, member.next_event());
        match event.await.expect("something happens within 20 s").unwrap() {
            GroupEvent::Batch(batch) => batches.push(batch),
            event => return (event, batches),
        }
    }
}

/// Waits until a member was given partitions.
async fn until_assigned(member: &mut GroupConsumer) -> BTreeMap<TopicPartition, Option<CommittedOffset>> {
    match next_change(member).await {
        (GroupEvent::Assigned(assigned), _) => assigned,
        (event, _) => panic!("{event:?}"),
    }
}

async fn what_is_kept_beside_an_offset_is_read_back_at_assignment(world: World) {
    world.create(2, &[]).await;
    fill(&world, 2, 0..4).await;
    let own = || GroupConfig { auto_commit: None, ..config(&world) };
    let mut first = GroupConsumer::new(own()).unwrap();
    let assigned = until_assigned(&mut first).await;
    assert_eq!(assigned, BTreeMap::from([(world.t(0), None), (world.t(1), None)]));
    let given =
        CommittedOffset { offset: 1, leader_epoch: Some(0), metadata: "1 and \u{e9}".into(), topic_id: None };
    first.offsets().commit_with_metadata(&BTreeMap::from([(world.t(0), given.clone())])).await.unwrap();
    first.leave().await;
    let mut second = GroupConsumer::new(own()).unwrap();
    let assigned = until_assigned(&mut second).await;
    assert_eq!(assigned, BTreeMap::from([(world.t(0), Some(given)), (world.t(1), None)]));
    assert_eq!(take_events(&mut second, 3).await, [1, 2, 3], "0 was committed");
}

/// The next numbers, at least so many, if no other event comes.
async fn take_events(member: &mut GroupConsumer, count: usize) -> Vec<i32> {
    let mut taken = Vec::new();
    while taken.len() < count {
        let event = tokio::time::timeout(WAIT_TIMEOUT, member.next_event());
        match event.await.expect("something comes within 20 s").unwrap() {
            GroupEvent::Batch(batch) => taken.extend(numbers(&batch)),
            event => panic!("{event:?}"),
        }
    }
    taken.sort_unstable();
    taken
}

async fn a_revocation_stops_no_other_partition(world: World) {
    world.create(2, &[]).await;
    let own = || GroupConfig { auto_commit: None, ..config(&world) };
    let mut first = GroupConsumer::new(own()).unwrap();
    assert_eq!(until_assigned(&mut first).await.len(), 2);
    let mut second = GroupConsumer::new(own()).unwrap();
    let joining = tokio::spawn(async move {
        let assigned = until_assigned(&mut second).await;
        (second, assigned)
    });
    let revoking = match next_change(&mut first).await {
        (GroupEvent::Revoking(revoking), _) => revoking,
        (event, _) => panic!("{event:?}"),
    };
    let [revoked] = Vec::from_iter(revoking.partitions()).try_into().expect("one of two is revoked");
    let kept = world.t(1 - revoked.partition);
    // Both partitions get records while the first member has not finished.
    fill(&world, 2, 0..8).await;
    let mut events = Vec::new();
    while events.len() < 4 {
        match tokio::time::timeout(WAIT_TIMEOUT, first.next_event()).await.unwrap().unwrap() {
            GroupEvent::Batch(batch) => {
                assert_eq!(*batch.partition(), kept);
                events.extend(numbers(&batch));
            }
            event => panic!("{event:?}"),
        }
    }
    assert!(!joining.is_finished(), "the group waits");
    let done = BTreeMap::from([(revoked.clone(), CommittedOffset::from(2))]);
    first.offsets().commit_with_metadata(&done).await.unwrap();
    let revoked = revoked.clone();
    first.finish_revocation(revoking);
    let refused = first.offsets().commit_with_metadata(&done).await;
    assert!(matches!(refused, Err(Error::CommitFailed { .. })), "{refused:?}");
    let taking_part = tokio::spawn(async move {
        let (event, batches) = next_change(&mut first).await;
        panic!("{event:?} {batches:?}");
    });
    let (mut second, assigned) = joining.await.unwrap();
    assert_eq!(assigned[&revoked].as_ref().map(|committed| committed.offset), Some(2));
    assert_eq!(take_events(&mut second, 2).await.len(), 2, "0 and 1 of it were committed");
    taking_part.abort();
}

async fn a_held_partition_continues_with_what_was_read_ahead(world: World) {
    world.create(2, &[]).await;
    let own = GroupConfig { auto_commit: None, ..config(&world) };
    let mut member = GroupConsumer::new(own).unwrap();
    assert_eq!(until_assigned(&mut member).await.len(), 2);
    member.hold(&world.t(0)).unwrap();
    fill(&world, 2, 0..8).await;
    assert_eq!(take_events(&mut member, 4).await, [1, 3, 5, 7]);
    assert_eq!(member.position(&world.t(0)), Ok(Some(0)));
    member.release(&world.t(0)).unwrap();
    assert_eq!(take_events(&mut member, 4).await, [0, 2, 4, 6]);
}

async fn a_position_in_a_topic_that_was_deleted_is_none_in_its_successor(world: World) {
    world.create(1, &[]).await;
    fill(&world, 1, 0..1).await;
    let mut member = GroupConsumer::new(GroupConfig { auto_commit: None, ..config(&world) }).unwrap();
    let batch = member.next().await.unwrap();
    assert!(batch.topic_id().is_some());
    let (admin, offsets) = (world.admin(), member.offsets().clone());
    admin.delete_topic(&world.topic).await.unwrap();
    eventually("it is gone", async || matches!(admin.find_topic(&world.topic).await, Ok(None))).await;
    let at = |offset: i64, topic_id| {
        BTreeMap::from([(world.t(0), CommittedOffset { topic_id, ..CommittedOffset::from(offset) })])
    };
    let all = BTreeSet::from([world.t(0)]);
    assert_eq!(offsets.commit_existing(&at(1, batch.topic_id())).await, Ok(all.clone()), "it is deleted");
    let topic = world.new_topic(world.topic.clone(), 1);
    eventually("the name is free", async || admin.create_topic(&topic).await.is_ok()).await;
    let id = admin.topic(&world.topic).await.unwrap().id;
    assert_ne!(Some(id), batch.topic_id());
    assert_eq!(offsets.commit_existing(&at(1, batch.topic_id())).await, Ok(all.clone()), "it is another one");
    assert_eq!(offsets.committed(&all).await, Ok(BTreeMap::new()));
    assert_eq!(offsets.commit_existing(&at(2, Some(id))).await, Ok(BTreeSet::new()));
    assert_eq!(offsets.committed(&all).await, Ok(BTreeMap::from([(world.t(0), 2)])));
    member.leave().await;
}
