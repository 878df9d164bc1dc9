//! Nodes that join a running cluster.

use std::collections::BTreeSet;
use std::process::Command;

use mainstem_client::NewTopic;
use mainstem_tests::broker::binary;
use mainstem_tests::cluster::System;

use super::load::Load;
use super::scene::{Scene, targets};
use super::{TOPIC, loaded};
use crate::cluster_snapshots::first_segment;

impl Scene {
    /// Three nodes that soon delete what is not wanted, and write snapshots of their metadata often.
    fn of_three(name: &str) -> Scene {
        let setup = Scene::setup(name, System::Mainstem).nodes(3);
        Scene::of(setup.set("metadata.log.max.record.bytes.between.snapshots", 2_000))
    }

    /// Changes the metadata until no node has their log from its beginning.
    fn fill_metadata(&self) {
        let mut number = 0;
        self.until(|| {
            let topic = NewTopic::new(format!("filler-{number}")).replicas([vec![1]]);
            number += 1;
            let created = self.runtime.block_on(self.admin.create_topic(&topic));
            created.map_err(|error| error.to_string())?;
            let firsts: Vec<_> = [1, 2, 3].map(|node| first_segment(&self.cluster, node)).into();
            match firsts.iter().all(|first| *first > 0) {
                true => Ok(()),
                false => Err(format!("the metadata logs begin at {firsts:?}")),
            }
        });
    }

    /// Waits until these nodes take part, and others than the first three follow the metadata without a vote.
    #[track_caller]
    fn await_nodes(&self, nodes: &[i32]) {
        self.until(|| {
            let found = self.runtime.block_on(self.admin.cluster()).map_err(|error| error.to_string())?;
            let live: BTreeSet<_> = found.brokers.keys().copied().collect();
            let quorum = self.runtime.block_on(self.admin.quorum()).map_err(|error| error.to_string())?;
            let ids = |replicas: &[mainstem_client::QuorumReplica]| {
                replicas.iter().map(|replica| replica.node).collect::<Vec<_>>()
            };
            let (voters, observers) = (ids(&quorum.voters), ids(&quorum.observers));
            let follow: Vec<_> = nodes.iter().copied().filter(|node| *node > 3).collect();
            let is_there =
                live == nodes.iter().copied().collect() && voters == [1, 2, 3] && observers == follow;
            if !is_there {
                return Err(format!(
                    "{live:?} take part, {voters:?} vote, {observers:?} follow; wanted: {nodes:?}"
                ));
            }
            Ok(())
        });
    }
}

#[test]
fn a_fourth_and_a_fifth_node_join_under_load_and_get_replicas() {
    let mut scene = Scene::of_three("cluster-join");
    let before: [&[i32]; 3] = [&[1, 2, 3], &[2, 3, 1], &[3, 1, 2]];
    let load = loaded(&mut scene, &before);
    for _ in 0..2 {
        let node = scene.cluster.add_node();
        scene.cluster.start_node(node);
        load.await_more();
    }
    scene.await_nodes(&[1, 2, 3, 4, 5]);
    let after: [&[i32]; 3] = [&[4, 5, 1], &[5, 4, 2], &[3, 4, 5]];
    scene.move_to(&targets(TOPIC, &after));
    load.await_more();
    scene.create(&NewTopic::new("new").replicas([vec![5, 4, 3]]));
    // Each of them finds the others again, by itself and all at once.
    scene.cluster.kill(4);
    load.await_more();
    scene.cluster.start_node(4);
    scene.await_nodes(&[1, 2, 3, 4, 5]);
    let written = load.end();
    scene.assert_settled(&written, &targets(TOPIC, &after));
    for node in scene.cluster.ids() {
        scene.cluster.kill(node);
    }
    for node in scene.cluster.ids() {
        scene.cluster.start_node(node);
    }
    scene.await_nodes(&[1, 2, 3, 4, 5]);
    let load = Load::continue_after(&scene, written);
    load.await_more();
    let written = load.end();
    scene.assert_settled(&written, &targets(TOPIC, &after));
    scene.stop_and_look_for_faults();
}

/// Whatever a kill takes of a node that joins, or of the metadata leader: the next start continues.
#[test]
fn a_node_joins_whoever_is_killed_meanwhile() {
    let mut scene = Scene::of_three("cluster-join-kills");
    scene.create(&NewTopic::new(TOPIC).replicas([vec![1, 2, 3]]));
    scene.fill_metadata();
    let node = scene.cluster.add_node();
    for stage in ["joined the cluster", "linked to node", "the metadata go on", "ready"] {
        scene.cluster.start_node(node);
        let log = |scene: &Scene| scene.cluster.log(node);
        scene.until(|| match log(&scene).contains(stage) {
            true => Ok(()),
            false => Err(format!("no {stage:?} in the log of node {node}")),
        });
        scene.cluster.kill(node);
    }
    let leader = scene.until(|| {
        let quorum = scene.runtime.block_on(scene.admin.quorum()).map_err(|error| error.to_string())?;
        Ok(quorum.leader)
    });
    scene.cluster.start_node(node);
    scene.cluster.kill(leader);
    let next = scene.cluster.add_node();
    scene.cluster.start_node(next);
    scene.cluster.start_node(leader);
    scene.await_nodes(&[1, 2, 3, 4, 5]);
    scene.move_to(&targets(TOPIC, &[&[4, 5, 1]]));
    scene.stop_and_look_for_faults();
}

/// Another disk in the place of a node's, and a second process with its id.
#[test]
fn a_node_with_another_disk_joins_again_and_one_with_the_id_of_a_live_node_is_refused() {
    let mut scene = Scene::of_three("cluster-join-again");
    scene.create(&NewTopic::new(TOPIC).replicas([vec![1, 2, 3]]));
    let node = scene.cluster.add_node();
    scene.cluster.start_node(node);
    scene.await_nodes(&[1, 2, 3, 4]);
    scene.cluster.stop(node);
    scene.cluster.wipe(node);
    scene.cluster.start_node(node);
    scene.await_nodes(&[1, 2, 3, 4]);
    scene.move_to(&targets(TOPIC, &[&[4, 2, 3]]));
    // A node that is unregistered is none any more, for the metadata's group either. With other directories it is one again.
    let other = scene.cluster.add_node();
    scene.cluster.start_node(other);
    scene.await_nodes(&[1, 2, 3, 4, 5]);
    scene.cluster.stop(other);
    scene.until(|| {
        let unregistered = scene.runtime.block_on(scene.admin.unregister_broker(other));
        unregistered.map_err(|error| error.to_string())
    });
    scene.await_nodes(&[1, 2, 3, 4]);
    scene.cluster.start_node(other);
    let status = scene.cluster.wait_for_end(other);
    let log = scene.cluster.log(other);
    assert!(!status.success() && log.contains("was unregistered"), "{status}: {log}");
    scene.cluster.wipe(other);
    scene.cluster.start_node(other);
    scene.await_nodes(&[1, 2, 3, 4, 5]);
    // A voter's disk is not replaced by its node alone.
    scene.cluster.stop(1);
    scene.cluster.wipe(1);
    scene.cluster.start_node(1);
    let status = scene.cluster.wait_for_end(1);
    assert!(!status.success(), "{status}");
    let log = scene.cluster.log(1);
    assert!(log.contains("knows node 1 by another directory"), "{log}");
}

/// Nodes prove by a secret that they are nodes: one that does not know it does not join.
#[test]
fn a_node_joins_by_the_secret_of_nodes_and_not_without() {
    const SECRET: &str = "mainstem.node.secret.location";
    let secrets = tempfile::tempdir().expect("a directory");
    let make = |name: &str| {
        let path = secrets.path().join(name);
        let made = Command::new(binary()).args(["security", "node-secret"]).arg(&path).output();
        assert!(made.expect("it runs").status.success());
        path.display().to_string()
    };
    let (own, foreign) = (make("own"), make("foreign"));
    let setup = Scene::setup("cluster-join-secret", System::Mainstem).nodes(3);
    let mut scene = Scene::of(setup.set(SECRET, &own));
    scene.create(&NewTopic::new(TOPIC).replicas([vec![1, 2, 3]]));
    let outsider = scene.cluster.add_node_with(&[(SECRET, &foreign)]);
    scene.cluster.start_node(outsider);
    scene.until(|| match scene.cluster.log(outsider).contains("Authentication failed") {
        true => Ok(()),
        false => Err("the outsider was not refused".into()),
    });
    scene.cluster.kill(outsider);
    let node = scene.cluster.add_node();
    scene.cluster.start_node(node);
    scene.await_nodes(&[1, 2, 3, node]);
    scene.move_to(&targets(TOPIC, &[&[node, 2, 3]]));
}
