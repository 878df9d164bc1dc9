//! Compacted topics move: their last values, and the offsets and members of groups.

use std::collections::{BTreeMap, BTreeSet};

use mainstem_client::{
    ClientConfig, ConsumerConfig, GroupConfig, GroupConsumer, GroupDescription, GroupProtocol, NewTopic,
    Position, TopicPartition,
};
use mainstem_tests::cluster::compacted::difference;
use mainstem_tests::cluster::{Setup, System};
use tokio::sync::watch;
use tokio::task::JoinSet;

use super::load::{Fill, Load};
use super::scene::{Scene, partitions, targets};
use crate::cluster_compaction::writer::Writer;
use crate::cluster_compaction::{
    CHANGES, MORE_CHANGES, TOPIC, assert_same, assert_values_of, await_compaction, eager,
    read_from_the_beginning,
};
use crate::cluster_copies::{INSTALLED, metric};

const OFFSETS: &str = "__consumer_offsets";
/// The topic that groups read.
const READ: &str = "read";
const READ_PARTITIONS: usize = 4;
const MEMBERS: usize = 2;
const CLASSIC: &str = "classic";
/// A group of each protocol.
const GROUPS: [&str; 2] = [CLASSIC, "consumer"];

fn setup(name: &str) -> Setup {
    Scene::setup(name, System::Mainstem)
        .set("log.cleaner.backoff.ms", 50)
        .set("log.retention.check.interval.ms", 100)
        .set("mainstem.http.listener", "127.0.0.1:0")
}

#[test]
fn a_compacted_topic_moves_with_the_last_value_of_each_key() {
    let mut scene = Scene::of(setup("cluster-moves-compacted"));
    scene.create(&eager(TOPIC, vec![1, 2, 3]));
    let mut writer = Writer::new(&scene.cluster, &scene.runtime, TOPIC);
    writer.write(&scene.runtime, CHANGES);
    let end = writer.end();
    await_compaction(&scene.cluster, TOPIC, (&[1, 2, 3], end), || writer.write(&scene.runtime, MORE_CHANGES));

    let after = [4, 3, 1];
    let (partition, target) = (TopicPartition::new(TOPIC, 0), targets(TOPIC, &[&after]));
    writer.write_over(&scene.runtime, CHANGES, || scene.move_to(&target));
    assert!(metric(&scene.cluster, 4, INSTALLED) > 0, "what was compacted is copied");
    scene.assert_led_by_the_first(&target);
    scene.await_only_on(&partition, &after);
    writer.write(&scene.runtime, MORE_CHANGES);
    for node in after {
        let log = scene.until(|| {
            let log = scene.cluster.replica_log(TOPIC, 0, node);
            if log.end() == writer.end() {
                Ok(log)
            } else {
                Err(format!("node {node} ends at {}", log.end()))
            }
        });
        assert_values_of(&log, &writer, node);
    }
    let found = scene.runtime.block_on(read_from_the_beginning(&scene.cluster, writer.end()));
    assert_same(&found, &writer.values(), "a consumer");
    scene.stop_and_look_for_faults();
}

/// Reads and commits as a member until it has to stop. No commit fails.
async fn take_part(client: ClientConfig, group: &'static str, mut stop: watch::Receiver<bool>) {
    let protocol = match group {
        CLASSIC => GroupProtocol::Classic,
        _ => GroupProtocol::Consumer { assignor: None },
    };
    let config = GroupConfig {
        start: Position::Beginning,
        auto_commit: None,
        ..GroupConfig::new(group, [READ], ConsumerConfig::new(client))
    };
    let mut member = GroupConsumer::new(config.protocol(protocol)).expect("the settings agree");
    loop {
        tokio::select! {
            _ = stop.changed() => break,
            batch = member.next() => {
                let batch = batch.expect("a batch");
                let done = BTreeMap::from([(batch.partition().clone(), batch.next_offset())]);
                member.offsets().clone().commit(&done).await.expect("a commit");
            }
        }
    }
    member.close().await.expect("a member leaves in order");
}

/// A group with all its members, each of which has partitions.
fn whole(scene: &Scene, group: &str) -> GroupDescription {
    scene.until(|| {
        let found =
            scene.runtime.block_on(scene.admin.describe_group(group)).map_err(|error| error.to_string())?;
        let found = found.ok_or_else(|| format!("no group {group}"))?;
        let has_some = found.members.iter().all(|member| !member.assignment.is_empty());
        let assigned: BTreeSet<_> =
            found.members.iter().flat_map(|member| member.assignment.clone()).collect();
        let is_whole = found.members.len() == MEMBERS && has_some && assigned.len() == READ_PARTITIONS;
        if is_whole && found.state == "Stable" { Ok(found) } else { Err(format!("{found:?}")) }
    })
}

/// Waits until a group has committed at least these offsets.
fn await_committed(
    scene: &Scene,
    group: &str,
    least: &BTreeMap<TopicPartition, i64>,
) -> BTreeMap<TopicPartition, i64> {
    scene.until(|| {
        let found =
            scene.runtime.block_on(scene.admin.group_offsets(group)).map_err(|error| error.to_string())?;
        let is_there =
            |(partition, offset): (_, &i64)| found.get(partition).is_some_and(|found| found >= offset);
        match least.iter().all(is_there) {
            true => Ok(found),
            false => Err(format!("{group} has committed {found:?}, not {least:?}")),
        }
    })
}

/// Moves the offsets of all groups away from the node that coordinates them. Returns their new replicas.
fn move_the_coordinator(scene: &Scene) -> Vec<i32> {
    let offsets = TopicPartition::new(OFFSETS, 0);
    let (coordinator, before) = (scene.leader(&offsets), scene.look_at(&offsets).expect("a topic").replicas);
    let new = scene.cluster.ids().into_iter().find(|node| !before.contains(node));
    let staying = before.into_iter().filter(|node| *node != coordinator);
    let after: Vec<_> = new.into_iter().chain(staying).collect();
    let target = targets(OFFSETS, &[&after]);
    scene.move_to(&target);
    scene.await_only_on(&offsets, &after);
    after
}

#[test]
fn groups_keep_their_members_and_offsets_when_their_coordinator_moves() {
    let mut scene = Scene::of(setup("cluster-moves-groups").set("offsets.topic.num.partitions", 1));
    let topic =
        NewTopic { replication_factor: Some(3), ..NewTopic::new(READ).partitions(READ_PARTITIONS as i32) };
    scene.create(&topic);
    let load =
        Load::start(&scene, &partitions(READ, READ_PARTITIONS), Fill { records: 20, value_bytes: 100 });
    let (stop, stopped) = watch::channel(false);
    let mut members = JoinSet::new();
    for group in GROUPS.iter().flat_map(|group| [*group; MEMBERS]) {
        members.spawn_on(take_part(scene.cluster.client(), group, stopped.clone()), scene.runtime.handle());
    }
    let before = GROUPS.map(|group| whole(&scene, group));
    let mut replicas = Vec::new();
    for _ in 0..2 {
        replicas = move_the_coordinator(&scene);
        load.await_more();
        for group in GROUPS {
            await_committed(&scene, group, &load.ends());
        }
        assert_eq!(GROUPS.map(|group| whole(&scene, group)), before);
    }
    let written = load.end();
    for group in GROUPS {
        assert_eq!(await_committed(&scene, group, &written.ends()), written.ends(), "{group}");
    }
    assert_eq!(GROUPS.map(|group| whole(&scene, group)), before);
    stop.send(true).expect("members take part");
    let ended = scene.runtime.block_on(members.join_all());
    assert_eq!(ended.len(), GROUPS.len() * MEMBERS);
    scene.until(|| {
        let log = |node: &i32| (*node, scene.cluster.replica_log(OFFSETS, 0, *node));
        difference(&replicas.iter().map(log).collect::<Vec<_>>()).map_or(Ok(()), Err)
    });
    scene.stop_and_look_for_faults();
}
