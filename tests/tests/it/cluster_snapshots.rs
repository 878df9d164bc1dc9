//! Snapshots of a cluster's metadata against real nodes. Each node writes its own and removes its log before them. A
//! node that was away meanwhile resumes behind a snapshot of the leader. Whatever a node was doing when it was
//! killed, all nodes have the same metadata afterwards: the acknowledged changes.
//!
//! `TEST_SEED` repeats the moments of the kills.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use mainstem_client::acl::{AclBinding, AclOperation, AclPermissionType, PatternType, ResourceType};
use mainstem_client::{
    AclFilter, Admin, ConfigChange, ConfigResource, Error, ErrorCode, NewTopic, QuotaEntity, QuotaFilter,
    ScramMechanism, Uuid,
};
use mainstem_log::storage::RealStorage;
use mainstem_replication::snapshots::SnapshotFile;
use mainstem_tests::client::Client;
use mainstem_tests::cluster::replica::{batches, read_file};
use mainstem_tests::cluster::{Cluster, Setup, System};
use mainstem_tests::kafka_node::assert_kafka_finds_no_fault;
use mainstem_wire::sample::Rng;
use tokio::runtime::Runtime;

/// Bytes of records between two snapshots.
const BYTES_BETWEEN: i64 = 4 << 10;
/// The time after which a snapshot is due as well. When nothing changes any more, all nodes have one with the same end.
const INTERVAL_MS: i64 = 1_000;
/// Kills, at moments that the seed chooses.
const KILLS: usize = 20;
/// The longest wait for a node's start, or for equal metadata on all nodes, on a busy machine.
const DEADLINE: Duration = Duration::from_secs(120);
/// The interval at which a condition is checked.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// With users and rules in the metadata nodes need passwords and an authorizer; clients may do everything.
const SECURITY: [(&str, &str); 6] = [
    ("listener.security.protocol.map", "PLAINTEXT:PLAINTEXT,CONTROLLER:SASL_PLAINTEXT"),
    ("sasl.mechanism.controller.protocol", "PLAIN"),
    ("listener.name.controller.sasl.enabled.mechanisms", "PLAIN"),
    (
        "listener.name.controller.plain.sasl.jaas.config",
        "org.apache.kafka.common.security.plain.PlainLoginModule required username=\"node\" password=\"secret\" \
         user_node=\"secret\";",
    ),
    ("authorizer.class.name", "org.apache.kafka.metadata.authorizer.StandardAuthorizer"),
    ("super.users", "User:node;User:ANONYMOUS"),
];

fn start(name: &str) -> (Cluster, Runtime) {
    let mut setup = Setup::new(name, System::Mainstem)
        .set("metadata.log.max.record.bytes.between.snapshots", BYTES_BETWEEN)
        .set("metadata.log.max.snapshot.interval.ms", INTERVAL_MS)
        .set("mainstem.http.listener", "127.0.0.1:0");
    for (key, value) in SECURITY {
        setup = setup.set(key, value);
    }
    ready(setup)
}

/// Starts nodes and waits until they are ready.
pub(crate) fn ready(setup: Setup) -> (Cluster, Runtime) {
    let mut cluster = setup.start().expect("our own binary");
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    let runtime = runtime.expect("a runtime");
    runtime.block_on(cluster.wait_until_ready());
    (cluster, runtime)
}

fn metadata_dir(cluster: &Cluster, node: i32) -> PathBuf {
    cluster.log_dir(node).join("__cluster_metadata-0")
}

/// The snapshots of a node, the newest last.
fn snapshots(cluster: &Cluster, node: i32) -> Vec<SnapshotFile> {
    SnapshotFile::list(&RealStorage, &metadata_dir(cluster, node)).expect("the directory is there")
}

/// The values of a snapshot's records. Files with the same end are equal on all nodes, but for their times.
fn values(file: &SnapshotFile) -> Vec<Vec<u8>> {
    let batches = read_file(&file.path);
    assert!(batches.len() >= 2 && batches[0].is_control, "{}: no header", file.path.display());
    assert!(batches[batches.len() - 1].is_control, "{}: no footer", file.path.display());
    batches.iter().flat_map(|batch| batch.records()).map(|(_, value)| value).collect()
}

/// The segments of a node by their base offsets, in order.
fn segments(cluster: &Cluster, node: i32) -> BTreeMap<i64, PathBuf> {
    let entries = fs::read_dir(metadata_dir(cluster, node)).expect("the directory is there");
    let segment = |path: PathBuf| {
        let base = path.file_name()?.to_str()?.strip_suffix(".log")?.parse().ok()?;
        Some((base, path))
    };
    entries.filter_map(|entry| segment(entry.expect("it is there").path())).collect()
}

/// The end of a node's metadata log, from its files; `None` while they change.
fn log_end(cluster: &Cluster, node: i32) -> Option<i64> {
    let (base, path) = segments(cluster, node).pop_last()?;
    let bytes = fs::read(&path).ok()?;
    Some(batches(&bytes, &path).last().map_or(base, |batch| batch.last_offset + 1))
}

/// The base offset of a node's first segment; 0 while the files change.
pub(crate) fn first_segment(cluster: &Cluster, node: i32) -> i64 {
    segments(cluster, node).pop_first().map_or(0, |(base, _)| base)
}

#[track_caller]
fn await_that(cluster: &mut Cluster, what: &str, mut is_so: impl FnMut(&Cluster) -> bool) {
    let deadline = Instant::now() + DEADLINE;
    while !is_so(cluster) {
        cluster.assert_running();
        assert!(Instant::now() < deadline, "not within {DEADLINE:?}: {what}\n{}", cluster.tails());
        std::thread::sleep(LOOK_EVERY);
    }
}

/// Waits until all nodes have a snapshot with the same end and contents. Returns the values of its records.
#[track_caller]
fn await_agreement(cluster: &mut Cluster) -> Vec<Vec<u8>> {
    let newest = |cluster: &Cluster| -> Option<Vec<SnapshotFile>> {
        cluster.ids().into_iter().map(|node| snapshots(cluster, node).pop()).collect()
    };
    let mut agreed = Vec::new();
    await_that(cluster, "a snapshot of the same end on all nodes, which is that of the log", |cluster| {
        let Some(files) = newest(cluster) else { return false };
        let is_at_the_end =
            |(node, file): (i32, &SnapshotFile)| Some(file.end_offset) == log_end(cluster, node);
        if !(1..).zip(&files).all(is_at_the_end)
            || files.iter().any(|file| file.end_offset != files[0].end_offset)
        {
            return false;
        }
        agreed = files.iter().map(values).collect();
        true
    });
    for (node, found) in (1..).zip(&agreed) {
        assert_eq!(found, &agreed[0], "node {node} knows something else than node 1");
    }
    agreed.swap_remove(0)
}

/// The acknowledged changes.
#[derive(Default)]
struct Acknowledged {
    /// Topics with their ids, and their `retention.ms`.
    topics: BTreeMap<String, (Uuid, String)>,
    quotas: BTreeMap<String, f64>,
    users: BTreeSet<String>,
    /// The principals of rules.
    principals: BTreeSet<String>,
    producer_ids: BTreeSet<i64>,
}

/// Makes one change after the other, and repeats each until it is acknowledged.
struct Changes {
    admin: Admin,
    number: usize,
    acknowledged: Acknowledged,
}

/// Returns true if a change is done, perhaps by an earlier attempt whose answer was lost: `done` is its error then.
fn done_or(result: Result<(), Error>, done: ErrorCode) -> bool {
    match result {
        Ok(()) => true,
        Err(error) if error.code() == Some(done) => true,
        Err(error) if error.is_retriable() => false,
        Err(error) => panic!("{error}"),
    }
}

/// Repeats an attempt until it is acknowledged, or `done` shows that an earlier one was carried out.
async fn acknowledged<F>(what: &str, done: ErrorCode, attempt: impl Fn() -> F)
where
    F: Future<Output = Result<(), Error>>,
{
    let deadline = Instant::now() + DEADLINE;
    loop {
        let result = attempt().await;
        let said = format!("{result:?}");
        if done_or(result, done) {
            return;
        }
        assert!(Instant::now() < deadline, "not within {DEADLINE:?}: {what}: {said}");
    }
}

impl Changes {
    fn new(cluster: &Cluster) -> Changes {
        Changes { admin: Admin::new(cluster.client()), number: 0, acknowledged: Acknowledged::default() }
    }

    async fn next(&mut self) {
        self.number += 1;
        let number = self.number;
        match number % 6 {
            0 => self.keep_topic(number).await,
            1 => self.set_quota(number).await,
            2 => self.set_user(number).await,
            3 => self.set_rule(number).await,
            4 => self.set_retention(number).await,
            _ => {
                let name = format!("gone-{number}");
                self.create(&name, 1).await;
                self.delete(&name).await;
            }
        }
    }

    /// Creates a topic. Returns its id, or zero if the answer of an earlier attempt was lost.
    async fn create(&self, name: &str, replicas: i16) -> Uuid {
        let topic = NewTopic::new(name).partitions(2).config("retention.ms", "100000");
        let topic = NewTopic { replication_factor: Some(replicas), ..topic };
        let deadline = Instant::now() + DEADLINE;
        loop {
            match self.admin.create_topic(&topic).await {
                Ok(created) => return created.id,
                Err(error) => {
                    let said = error.to_string();
                    if done_or(Err(error), ErrorCode::TOPIC_ALREADY_EXISTS) {
                        return Uuid::ZERO;
                    }
                    assert!(Instant::now() < deadline, "not within {DEADLINE:?}: {name}: {said}");
                }
            }
        }
    }

    async fn delete(&self, name: &str) {
        let delete = || async { self.admin.delete_topic(name).await };
        acknowledged("a deletion", ErrorCode::UNKNOWN_TOPIC_OR_PARTITION, delete).await;
    }

    async fn keep_topic(&mut self, number: usize) {
        // Each third topic has replicas on all nodes.
        let (name, replicas) = (format!("kept-{number}"), if number.is_multiple_of(18) { 3 } else { 1 });
        let id = self.create(&name, replicas).await;
        self.acknowledged.topics.insert(name, (id, "100000".to_owned()));
    }

    async fn set_retention(&mut self, number: usize) {
        let Some(name) = self.acknowledged.topics.keys().nth(number % self.acknowledged.topics.len().max(1))
        else {
            return;
        };
        let (name, value) = (name.clone(), (200_000 + number).to_string());
        let changes = [ConfigChange::Set("retention.ms".into(), value.clone())];
        let resource = ConfigResource::Topic(name.clone());
        // The node that is asked may not know the topic yet.
        let change = || async { self.admin.alter_configs(&resource, &changes, false).await };
        acknowledged("a setting", ErrorCode::NONE, change).await;
        self.acknowledged.topics.get_mut(&name).expect("it was looked up").1 = value;
    }

    async fn set_quota(&mut self, number: usize) {
        let (name, value) = (format!("client-{}", number % 5), number as f64 * 1e6);
        let quotas = [("producer_byte_rate".to_owned(), Some(value))].into();
        let change = || async { self.admin.alter_quotas(&quota_of(&name), &quotas, false).await };
        acknowledged("a quota", ErrorCode::NONE, change).await;
        self.acknowledged.quotas.insert(name, value);
    }

    async fn set_user(&mut self, number: usize) {
        let name = format!("user-{}", number % 4);
        let set = || async {
            self.admin.set_scram_credential(&name, ScramMechanism::Sha256, "secret", 4_096).await
        };
        acknowledged("a user", ErrorCode::NONE, set).await;
        self.acknowledged.users.insert(name);
    }

    async fn set_rule(&mut self, number: usize) {
        let principal = format!("User:of-{}", number % 8);
        let rule = AclBinding {
            resource_type: ResourceType::Topic,
            name: "kept".into(),
            pattern_type: PatternType::Prefixed,
            principal: principal.clone(),
            host: "*".into(),
            operation: AclOperation::Read,
            permission: AclPermissionType::Allow,
        };
        if number.is_multiple_of(2) || !self.acknowledged.principals.contains(&principal) {
            let rules = [rule];
            acknowledged("a rule", ErrorCode::NONE, || async { self.admin.create_acls(&rules).await }).await;
            self.acknowledged.principals.insert(principal);
        } else {
            let filter = AclFilter { principal: Some(principal.clone()), ..AclFilter::default() };
            let remove = || async { self.admin.delete_acls(&filter).await.map(drop) };
            acknowledged("the removal of a rule", ErrorCode::NONE, remove).await;
            self.acknowledged.principals.remove(&principal);
        }
    }

    /// Creates the rules of a topic that has no others.
    async fn set_watched_rules(&mut self) {
        let rule = |number: usize| AclBinding {
            resource_type: ResourceType::Topic,
            name: WATCHED.into(),
            pattern_type: PatternType::Literal,
            principal: format!("User:watched-{number}"),
            host: "*".into(),
            operation: AclOperation::Read,
            permission: AclPermissionType::Allow,
        };
        let rules: Vec<_> = (0..WATCHED_RULES).map(rule).collect();
        acknowledged("rules", ErrorCode::NONE, || async { self.admin.create_acls(&rules).await }).await;
    }

    async fn remove_watched_rules(&mut self) {
        let filter = AclFilter { name: Some(WATCHED.into()), ..AclFilter::default() };
        let remove = || async { self.admin.delete_acls(&filter).await.map(drop) };
        acknowledged("the removal of rules", ErrorCode::NONE, remove).await;
    }

    /// Takes a producer id from each running node; no id comes twice.
    fn take_producer_ids(&mut self, cluster: &Cluster) {
        for node in cluster.ids().into_iter().filter(|node| cluster.is_running(*node)) {
            let deadline = Instant::now() + DEADLINE;
            let id = loop {
                let taken = connect(cluster, node).and_then(|mut client| client.init_producer_id().ok());
                match taken {
                    Some(id) => break id,
                    None => assert!(Instant::now() < deadline, "no producer id from node {node}"),
                }
                std::thread::sleep(LOOK_EVERY);
            };
            assert!(self.acknowledged.producer_ids.insert(id), "{id} was given out twice");
        }
    }

    /// Makes changes of all kinds until a condition holds.
    #[track_caller]
    fn until(
        &mut self,
        runtime: &Runtime,
        cluster: &mut Cluster,
        what: &str,
        is_so: impl Fn(&Cluster) -> bool,
    ) {
        let deadline = Instant::now() + DEADLINE;
        while !is_so(cluster) {
            cluster.assert_running();
            assert!(Instant::now() < deadline, "not within {DEADLINE:?}: {what}\n{}", cluster.tails());
            runtime.block_on(self.next());
        }
    }

    /// Asserts that the cluster has the acknowledged changes.
    async fn check(&self) {
        let Acknowledged { topics, quotas, users, principals, producer_ids: _ } = &self.acknowledged;
        let found = self.admin.topics().await.expect("the topics");
        let names: Vec<_> =
            found.iter().map(|topic| &*topic.name).filter(|name| !name.starts_with("__")).collect();
        assert_eq!(names, topics.keys().collect::<Vec<_>>());
        for topic in found.iter().filter(|topic| topics.contains_key(&*topic.name)) {
            let (id, retention) = &topics[&*topic.name];
            assert!(*id == Uuid::ZERO || topic.id == *id, "{}: {id}, {}", topic.name, topic.id);
            let configs = self.admin.configs(&ConfigResource::Topic(topic.name.to_string())).await;
            let configs = configs.expect("the settings");
            let config = configs.iter().find(|config| config.name == "retention.ms").expect("it has one");
            assert_eq!(config.value.as_ref(), Some(retention), "{}", topic.name);
        }
        let found = self.admin.quotas(&[QuotaFilter::Any("client-id".into())], true).await.expect("quotas");
        assert_eq!(found.len(), quotas.len());
        for (name, value) in quotas {
            assert_eq!(found[&quota_of(name)]["producer_byte_rate"], *value, "{name}");
        }
        let found = self.admin.scram_credentials(None).await.expect("users");
        assert_eq!(found.keys().collect::<Vec<_>>(), users.iter().collect::<Vec<_>>());
        let found = self.admin.acls(&AclFilter::default()).await.expect("rules");
        let found: BTreeSet<_> = found.into_iter().map(|rule| rule.principal).collect();
        assert_eq!(&found, principals);
    }
}

fn quota_of(client_id: &str) -> QuotaEntity {
    [("client-id".to_owned(), Some(client_id.to_owned()))].into()
}

fn connect(cluster: &Cluster, node: i32) -> Option<Client> {
    let addresses = cluster.bootstrap();
    Client::connect(addresses.split(',').nth(node as usize - 1)?).ok()
}

/// A gauge of a node.
fn metric(cluster: &Cluster, node: i32, name: &str) -> f64 {
    let text = cluster.http(node, "/metrics");
    let value = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')?.parse().ok());
    value.unwrap_or_else(|| panic!("node {node} has no {name}"))
}

/// The metric with the number of rules.
const RULES: &str = "kafka_server_authorizer_metrics_acls_total_count";
/// The topic with a number of rules that no other number is close to.
const WATCHED: &str = "watched";
const WATCHED_RULES: usize = 20;
const LOADED: &str = "kafka_server_metadataloader_handleloadsnapshotcount";
const WRITTEN_BYTES: &str = "kafka_server_snapshotemitter_latestsnapshotgeneratedbytes";
const WRITTEN_AGE_MS: &str = "kafka_server_snapshotemitter_latestsnapshotgeneratedagems";

/// Directories of topics with a prefix on a node, without those that are being removed or were set aside.
fn directories(cluster: &Cluster, node: i32, begin: &str) -> Vec<String> {
    let entries = fs::read_dir(cluster.log_dir(node)).expect("it is there");
    let names = entries.map(|entry| entry.expect("it is there").file_name().to_string_lossy().into_owned());
    names.filter(|name| name.starts_with(begin) && !name.contains('.')).collect()
}

/// Nodes that were away, killed or paused, find that the log of the others begins behind their own end.
#[test]
fn a_node_that_was_away_goes_on_behind_a_snapshot() {
    let (mut cluster, runtime) = start("cluster-snapshots-away");
    let mut changes = Changes::new(&cluster);
    // The topic exists on all nodes, and is deleted when a node comes back.
    runtime.block_on(changes.create("early", 3));
    changes.until(
        &runtime,
        &mut cluster,
        "two snapshots on each node, and the log before them gone",
        |cluster| {
            cluster
                .ids()
                .iter()
                .all(|node| snapshots(cluster, *node).len() >= 2 && first_segment(cluster, *node) > 0)
        },
    );
    for node in cluster.ids() {
        assert!(metric(&cluster, node, WRITTEN_BYTES) > 0.0 && metric(&cluster, node, WRITTEN_AGE_MS) >= 0.0);
    }
    for (away, is_killed) in [(3, true), (2, false)] {
        runtime.block_on(changes.set_watched_rules());
        await_that(&mut cluster, "the node decides by the rules", |cluster| {
            metric(cluster, away, RULES) >= WATCHED_RULES as f64
        });
        changes.take_producer_ids(&cluster);
        match is_killed {
            true => cluster.kill(away),
            false => cluster.pause(away),
        }
        let behind = log_end(&cluster, away).expect("nothing changes it");
        let others: Vec<_> = cluster.ids().into_iter().filter(|node| *node != away).collect();
        if is_killed {
            runtime.block_on(changes.delete("early"));
        }
        runtime.block_on(changes.remove_watched_rules());
        changes.until(&runtime, &mut cluster, "the others have removed what the node lacks", |cluster| {
            others.iter().all(|node| first_segment(cluster, *node) > behind)
        });
        match is_killed {
            true => cluster.start_node(away),
            false => cluster.resume(away),
        }
        runtime.block_on(cluster.wait_until_ready());
        let begins_behind = |cluster: &Cluster| first_segment(cluster, away) > behind;
        let what = "the log of the node begins behind a snapshot";
        match is_killed {
            true => await_that(&mut cluster, what, begins_behind),
            // Entries that were on their way to it when it was paused arrive now. With all of them it writes that snapshot itself.
            false => changes.until(&runtime, &mut cluster, what, begins_behind),
        }
        changes.until(&runtime, &mut cluster, "the node writes snapshots of its own again", |cluster| {
            snapshots(cluster, away).len() >= 2
        });
        await_agreement(&mut cluster);
        let loaded = metric(&cluster, away, LOADED);
        assert!(!is_killed || loaded >= 2.0, "{loaded}: one at the start, and one of the leader");
        let rules = runtime.block_on(changes.admin.acls(&AclFilter::default())).expect("rules").len() as f64;
        await_that(&mut cluster, "a node decides by the rules that are left", |cluster| {
            cluster.ids().into_iter().all(|node| metric(cluster, node, RULES) == rules)
        });
        runtime.block_on(changes.check());
    }
    await_that(&mut cluster, "files of topics that were deleted while a node was away are gone", |cluster| {
        cluster.ids().iter().all(|node| {
            directories(cluster, *node, "gone").is_empty() && directories(cluster, *node, "early").is_empty()
        })
    });
    changes.take_producer_ids(&cluster);
    restart_all(&runtime, &mut cluster, &mut changes);
}

/// All nodes stop in order, and later all are killed. Their metadata are the same afterwards.
fn restart_all(runtime: &Runtime, cluster: &mut Cluster, changes: &mut Changes) {
    for is_killed in [false, true] {
        for node in cluster.ids() {
            match is_killed {
                true => cluster.kill(node),
                false => cluster.stop(node),
            }
        }
        cluster.ids().into_iter().for_each(|node| cluster.start_node(node));
        runtime.block_on(cluster.wait_until_ready());
        changes.take_producer_ids(cluster);
        await_agreement(cluster);
        runtime.block_on(changes.check());
    }
    cluster.ids().into_iter().for_each(|node| cluster.stop(node));
    let log_dirs: Vec<_> = cluster.ids().into_iter().map(|node| cluster.log_dir(node)).collect();
    assert_kafka_finds_no_fault(&log_dirs);
}

/// Any node is killed at any moment of its work with snapshots, while the metadata change all the time.
#[test]
fn what_was_acknowledged_survives_kills_at_any_moment_of_a_snapshot() {
    let mut rng = Rng(mainstem_testkit::seed());
    let (mut cluster, runtime) = start("cluster-snapshots-kills");
    let mut changes = Changes::new(&cluster);
    let (stop, count) = (Arc::<AtomicBool>::default(), Arc::<AtomicUsize>::default());
    let (ends, counted) = (stop.clone(), count.clone());
    let changing = runtime.spawn(async move {
        while !ends.load(Ordering::Acquire) {
            changes.next().await;
            counted.fetch_add(1, Ordering::Release);
        }
        changes
    });
    for kill in 0..KILLS {
        // The moment lies between two snapshots, or before in the start of the node.
        let node = 1 + rng.below(3) as i32;
        let newest = snapshots(&cluster, node).last().map_or(0, |file| file.end_offset);
        if kill.is_multiple_of(2) {
            await_that(&mut cluster, "another snapshot", |cluster| {
                snapshots(cluster, node).last().is_some_and(|file| file.end_offset > newest)
            });
        }
        std::thread::sleep(Duration::from_millis(rng.below(700)));
        assert!(!changing.is_finished(), "what changes the metadata has failed");
        cluster.kill(node);
        let before = count.load(Ordering::Acquire);
        if kill.is_multiple_of(3) {
            // The others work without it.
            await_that(&mut cluster, "changes without the node", |_| {
                count.load(Ordering::Acquire) > before + 3 || changing.is_finished()
            });
        }
        cluster.start_node(node);
    }
    stop.store(true, Ordering::Release);
    let mut changes = runtime.block_on(changing).expect("no change was refused");
    runtime.block_on(cluster.wait_until_ready());
    await_agreement(&mut cluster);
    runtime.block_on(changes.check());
    restart_all(&runtime, &mut cluster, &mut changes);
}

/// Files that a kill or a disk can leave of a snapshot, placed by hand into the directory of a node that is down.
#[test]
fn a_node_starts_with_whatever_is_left_of_snapshots() {
    let (mut cluster, runtime) = start("cluster-snapshots-left");
    let mut changes = Changes::new(&cluster);
    changes.until(&runtime, &mut cluster, "two snapshots on each node", |cluster| {
        cluster
            .ids()
            .iter()
            .all(|node| snapshots(cluster, *node).len() >= 2 && first_segment(cluster, *node) > 0)
    });
    let node = 3;
    let dir = metadata_dir(&cluster, node);

    // A snapshot that was being written, one that was being received, and one that was received and not loaded.
    cluster.kill(node);
    let behind = log_end(&cluster, node).expect("nothing changes it");
    changes.until(&runtime, &mut cluster, "another node has a snapshot of what the node lacks", |cluster| {
        snapshots(cluster, 1).last().is_some_and(|file| file.end_offset > behind)
    });
    let ahead = snapshots(&cluster, 1).pop().expect("it was looked at");
    let name = ahead.path.file_name().expect("a name");
    fs::copy(&ahead.path, dir.join(name)).expect("it can be copied");
    let left = ["00000000000000999999-0000000001.checkpoint.tmp", "received.checkpoint.tmp"];
    left.iter().for_each(|name| fs::write(dir.join(name), b"half").expect("it can be written"));
    cluster.start_node(node);
    runtime.block_on(cluster.wait_until_ready());
    await_agreement(&mut cluster);
    assert!(left.iter().all(|name| !dir.join(name).exists()), "what is not finished is removed");
    runtime.block_on(changes.check());

    // The newest snapshot is damaged: the one before it is loaded.
    changes.until(&runtime, &mut cluster, "two snapshots", |cluster| snapshots(cluster, node).len() >= 2);
    cluster.kill(node);
    let files = snapshots(&cluster, node);
    let damage = |file: &SnapshotFile| {
        let mut bytes = fs::read(&file.path).expect("it is there");
        let middle = bytes.len() / 2;
        bytes[middle] ^= 1;
        fs::write(&file.path, bytes).expect("it can be written");
    };
    damage(files.last().expect("there are two"));
    cluster.start_node(node);
    runtime.block_on(cluster.wait_until_ready());
    await_that(&mut cluster, "the node says so", |cluster| {
        cluster.log(node).contains("this start does without it")
    });
    runtime.block_on(changes.next());
    await_agreement(&mut cluster);
    runtime.block_on(changes.check());

    // All are damaged: the node says so, and does not start with a part of the metadata.
    cluster.kill(node);
    snapshots(&cluster, node).iter().for_each(damage);
    cluster.start_node(node);
    cluster.wait_for_end(node);
    let said = cluster.log(node);
    assert!(said.contains("the metadata snapshot") && said.contains("from a backup"), "{said}");
}
