//! The end of a run: everything is read, from the cluster and from each replica's files, and the history is judged.

use std::collections::BTreeMap;
use std::fs;
use std::time::{Duration, Instant};

use mainstem_client::{Admin, Consumer, ConsumerConfig, Isolation, Position, TopicPartition};
use mainstem_replication::history::{self, CONTROL, Operation, Outcome, assertions};
use mainstem_tests::cluster::replica::ReplicaBatch;
use mainstem_tests::cluster::{Cluster, System, compacted};
use mainstem_tests::kafka_node::assert_kafka_finds_equal_replicas;
use tokio::task::JoinSet;

use crate::cluster_kills::load::{INTERNAL, Others, TOPICS, isolation_of};
use crate::cluster_kills::members::look_at_commits;
use crate::cluster_kills::run::{IN, OUT, Phase, RESUME_MAX, Run, group_name, number, partitions, value_of};

/// The group, in the history, of the last readers.
const LAST_READERS: u64 = 9;
/// The interval at which a condition is checked.
const LOOK_AGAIN: Duration = Duration::from_millis(50);
/// The most violations in a failure's message.
const SHOWN_MAX: usize = 20;

/// Ends the load, reads everything, and judges it. Then the nodes stop. With real clients, Kafka's tools check their
/// files, which takes a JVM for each kind of topic.
pub(crate) async fn finish(run: &Run, cluster: &mut Cluster, actors: JoinSet<()>, others: &Others) {
    let ends = judge(run, cluster, actors, others).await;
    // The last nodes of a cluster of Kafka would wait for a controller that is gone.
    if cluster.system() == System::Mainstem {
        cluster.ids().into_iter().for_each(|id| cluster.stop(id));
        if !others.clients.is_empty() {
            let log_dirs: Vec<_> = cluster.ids().into_iter().map(|id| cluster.log_dirs(id)).collect();
            assert_kafka_finds_equal_replicas(&log_dirs, &ends);
        }
    }
}

/// Ends the load, reads everything, and judges it. Returns the ends of all partitions by their names.
pub(crate) async fn judge(
    run: &Run,
    cluster: &mut Cluster,
    mut actors: JoinSet<()>,
    others: &Others,
) -> BTreeMap<String, i64> {
    for topic in TOPICS {
        cluster.wait_until_in_sync(topic).await;
    }
    run.enter(Phase::Drain);
    read_to_the_ends(run, cluster, others).await;
    run.enter(Phase::Stop);
    while let Some(ended) = actors.join_next().await {
        ended.expect("an actor");
    }
    let ends = read_replicas(run, cluster).await;
    check(run, cluster);
    ends
}

/// Reads each topic from its beginning to its end, and waits until the groups have done so.
async fn read_to_the_ends(run: &Run, cluster: &Cluster, others: &Others) {
    let admin = Admin::new(cluster.client());
    // The end of the loops' output is known only when they have read all of their input.
    for topic in [IN, OUT] {
        settled_ends(&admin, topic).await;
        read_all(run, cluster, topic, Isolation::ReadUncommitted).await;
        let ends = read_all(run, cluster, topic, isolation_of(topic)).await;
        for group in others.groups().into_iter().filter(|(_, read)| *read == topic) {
            wait_for_group(run, &admin, cluster, group, &ends).await;
        }
    }
}

/// Waits until the ends of a topic move no more.
async fn settled_ends(admin: &Admin, topic: &'static str) {
    let mut last = BTreeMap::new();
    loop {
        let positions = partitions(topic).map(|partition| (partition, Position::End));
        let found = admin.offsets(positions, isolation_of(topic)).await.expect("the ends of a topic");
        let found = found.into_iter().map(|(partition, end)| (partition, end.unwrap_or(0))).collect();
        if last == found {
            return;
        }
        last = found;
        tokio::time::sleep(Duration::from_millis(700)).await;
    }
}

async fn wait_for_group(
    run: &Run,
    admin: &Admin,
    cluster: &Cluster,
    (group, topic): (u64, &'static str),
    ends: &BTreeMap<TopicPartition, i64>,
) {
    let process = run.process();
    let deadline = Instant::now() + RESUME_MAX;
    loop {
        let found = admin.group_offsets(&group_name(group)).await.ok();
        let is_through = |committed: &BTreeMap<TopicPartition, i64>| {
            partitions(topic).all(|one| committed.get(&one).copied().unwrap_or(0) >= ends[&one])
        };
        if found.as_ref().is_some_and(is_through) {
            break;
        }
        assert!(
            Instant::now() < deadline,
            "group {group} does not get to the end: {found:?} of {ends:?}\n{}",
            cluster.tails()
        );
        tokio::time::sleep(LOOK_AGAIN).await;
    }
    // Members write a note of a record before they commit it.
    run.wait_for_notes(cluster).await;
    look_at_commits(run, admin, process, group, topic).await;
    for partition in partitions(topic) {
        let place = (number(&partition), ends[&partition]);
        run.record(process, Operation::End, Outcome::Ok, place, group);
    }
}

/// Reads a topic to its end. Returns the offset behind the last record of each partition.
async fn read_all(
    run: &Run,
    cluster: &Cluster,
    topic: &'static str,
    isolation: Isolation,
) -> BTreeMap<TopicPartition, i64> {
    let admin = Admin::new(cluster.client());
    let positions = || partitions(topic).map(|partition| (partition, Position::End));
    let ends = admin.offsets(positions(), isolation).await.expect("the ends of a topic");
    let ends: BTreeMap<_, _> = ends.into_iter().map(|(key, end)| (key, end.unwrap_or(0))).collect();
    let config = ConsumerConfig { isolation, ..ConsumerConfig::new(cluster.client()) };
    let mut consumer = Consumer::new(config).expect("the settings agree");
    let (process, operation, group) = match isolation {
        Isolation::ReadCommitted => (run.process(), Operation::ReadCommitted, LAST_READERS + 1),
        Isolation::ReadUncommitted => (run.process(), Operation::Read, LAST_READERS),
    };
    consumer.assign(partitions(topic).map(|partition| (partition, Position::Beginning)));
    for partition in partitions(topic) {
        run.record(process, Operation::Assign, Outcome::Ok, (number(&partition), 0), group);
    }
    let deadline = Instant::now() + RESUME_MAX;
    let mut next: BTreeMap<TopicPartition, i64> = BTreeMap::new();
    let mut seen: BTreeMap<_, _> = partitions(topic).map(|partition| (partition, 0)).collect();
    let is_through = |next: &BTreeMap<TopicPartition, i64>| {
        ends.iter().all(|(partition, end)| next.get(partition).copied().unwrap_or(0) >= *end)
    };
    while !is_through(&next) {
        assert!(Instant::now() < deadline, "{topic} cannot be read to its end: {next:?} of {ends:?}");
        if let Ok(batch) = tokio::time::timeout(Duration::from_secs(1), consumer.next()).await {
            let batch = batch.expect("a batch");
            run.record_batch(process, &batch, operation);
            seen.insert(batch.partition().clone(), batch.next_offset());
            next.insert(batch.partition().clone(), batch.next_offset());
        }
        // A batch of markers at the end is not delivered.
        for (partition, end) in &ends {
            let position = consumer.position(partition).ok().flatten();
            if position.is_some_and(|position| position >= *end) {
                next.insert(partition.clone(), *end);
            }
        }
    }
    for partition in partitions(topic) {
        let place = (number(&partition), ends[&partition]);
        run.record(process, Operation::End, Outcome::Ok, place, group);
    }
    consumer.close().await;
    seen
}

/// Waits until the replicas of each partition have equal files, batch by batch as far as none is compacted, and notes the
/// contents of the run's own topics. Returns the ends of all partitions by the names of their directories.
async fn read_replicas(run: &Run, cluster: &Cluster) -> BTreeMap<String, i64> {
    let mut ends = BTreeMap::new();
    for partition in partitions(IN).chain(partitions(OUT)) {
        let replicas = equal_replicas(cluster, &partition).await;
        for (node, batches) in &replicas {
            batches.iter().for_each(|batch| record_final(run, *node, &partition, batch));
        }
        ends.insert(partition.to_string(), end_of(&replicas));
    }
    for topic in INTERNAL {
        let found = Admin::new(cluster.client()).topic(topic).await.expect("a topic");
        let mut end = 0;
        for partition in &found.partitions {
            let partition = TopicPartition::new(topic, partition.index);
            let its_end = agreed_end(cluster, &partition).await;
            end += its_end;
            ends.insert(partition.to_string(), its_end);
        }
        assert!(end > 0, "{topic} has no records");
    }
    ends
}

/// The end of equal replicas.
fn end_of(replicas: &[(i32, Vec<ReplicaBatch>)]) -> i64 {
    replicas[0].1.last().map_or(0, |batch| batch.last_offset + 1)
}

fn record_final(run: &Run, node: i32, partition: &TopicPartition, batch: &ReplicaBatch) {
    let records: BTreeMap<i64, Vec<u8>> = batch.records().into_iter().collect();
    for offset in batch.base_offset..=batch.last_offset {
        let value = records.get(&offset).map_or(CONTROL, |bytes| value_of(bytes));
        run.record(node, Operation::Final, Outcome::Ok, (number(partition), offset), value);
    }
}

async fn equal_replicas(cluster: &Cluster, partition: &TopicPartition) -> Vec<(i32, Vec<ReplicaBatch>)> {
    agreed(partition, || {
        let of_node = |id: i32| (id, cluster.replica(&partition.topic, partition.partition, id));
        let replicas: Vec<_> = cluster.ids().into_iter().map(of_node).collect();
        let first_difference = replicas.iter().find(|(_, batches)| *batches != replicas[0].1);
        let Some((node, batches)) = first_difference else { return Ok(replicas) };
        let at = batches.iter().zip(&replicas[0].1).position(|(one, other)| one != other);
        let ends =
            replicas.iter().map(|(_, batches)| batches.last().map_or(0, |batch| batch.last_offset + 1));
        let (first, ends) = (replicas[0].0, ends.collect::<Vec<_>>());
        Err(format!(
            "the files of nodes {first} and {node} differ from batch {at:?} on; they end at {ends:?}"
        ))
    })
    .await
}

/// Waits until the replicas of a compacted partition agree. Returns their end.
async fn agreed_end(cluster: &Cluster, partition: &TopicPartition) -> i64 {
    agreed(partition, || {
        let of_node = |id: i32| (id, cluster.replica_log(&partition.topic, partition.partition, id));
        let replicas: Vec<_> = cluster.ids().into_iter().map(of_node).collect();
        compacted::difference(&replicas).map_or_else(|| Ok(replicas[0].1.end()), Err)
    })
    .await
}

/// Looks until the replicas of a partition agree. `look` returns their difference as an error.
async fn agreed<T>(partition: &TopicPartition, mut look: impl FnMut() -> Result<T, String>) -> T {
    let deadline = Instant::now() + RESUME_MAX;
    loop {
        match look() {
            Ok(agreed) => return agreed,
            Err(difference) => assert!(Instant::now() < deadline, "{partition}: {difference}"),
        }
        tokio::time::sleep(LOOK_AGAIN).await;
    }
}

/// Judges the history; one with a fault is kept as a file.
fn check(run: &Run, cluster: &Cluster) {
    let events = run.history();
    let violations = violations_of(&events);
    let (appends, transactions) = run.counts();
    eprintln!(
        "{appends} appends acknowledged, {transactions} transactions committed, {} events; errors of real clients: {:?}",
        events.len(),
        run.errors()
    );
    for id in cluster.ids() {
        let log = cluster.log(id);
        let found = assertions(&log);
        assert!(found.is_empty(), "node {id} says:\n{}", found.join("\n"));
    }
    assert!(violations.is_empty(), "{}", violations.join("\n"));
    assert!(appends > 0 && transactions > 0, "nothing was done");
}

fn violations_of(events: &[history::Event]) -> Vec<String> {
    let violations = history::check(events);
    if violations.is_empty() {
        return Vec::new();
    }
    let lines: Vec<_> = events.iter().map(ToString::to_string).collect();
    let file = std::env::temp_dir().join(format!("cluster-kills-{}.history", std::process::id()));
    fs::write(&file, lines.join("\n")).expect("a history can be kept");
    let mut shown = vec![format!("{} violations; the history is in {}", violations.len(), file.display())];
    shown.extend(violations.iter().take(SHOWN_MAX).map(|violation| format!("{violation:?}")));
    shown
}
