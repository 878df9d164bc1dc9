//! Replicas move between the nodes of a cluster while records are written and read. All that was acknowledged is there once and in order,
//! the replicas agree where they are wanted, and nothing of them is left where they were.

mod away;
mod internal;
mod joining;
mod kills;
mod load;
mod scene;
mod tool;

use mainstem_client::NewTopic;
use mainstem_tests::cluster::System;

use load::Load;
use scene::{Scene, partitions, targets};

/// The topic of most tests.
const TOPIC: &str = "moving";

/// Creates the topic with these replicas, and begins to write to it.
fn loaded(scene: &mut Scene, replicas: &[&[i32]]) -> Load {
    scene.create(&NewTopic::new(TOPIC).replicas(replicas.iter().map(|nodes| nodes.to_vec())));
    Load::start(scene, &partitions(TOPIC, replicas.len()), load::Fill { records: 200, value_bytes: 1_000 })
}

#[test]
fn all_replicas_and_their_leaders_move_to_other_nodes() {
    let mut scene = Scene::start("cluster-moves", System::Mainstem);
    let before: [&[i32]; 4] = [&[1, 2], &[2, 1], &[1, 2], &[3, 1]];
    let after: [&[i32]; 4] = [&[3, 4], &[4, 3], &[4, 3], &[2, 4]];
    let load = loaded(&mut scene, &before);
    scene.move_to(&targets(TOPIC, &after));
    load.await_more();
    let written = load.end();
    scene.assert_settled(&written, &targets(TOPIC, &after));
    scene.assert_led_by_the_first(&targets(TOPIC, &after));

    // Nothing of an earlier stay is in the way of the next one.
    let load = Load::continue_after(&scene, written);
    scene.move_to(&targets(TOPIC, &before));
    load.await_more();
    let written = load.end();
    scene.assert_settled(&written, &targets(TOPIC, &before));
    scene.stop_and_look_for_faults();
}

/// A target is replaced by another one, and then by the first, while the replicas cannot get what they lack.
#[test]
fn the_last_of_several_targets_counts() {
    let mut scene = Scene::start("cluster-moves-again", System::Mainstem);
    scene.create(&scene::throttled(NewTopic::new(TOPIC).replicas([vec![1, 2]])));
    let load = Load::start(&scene, &partitions(TOPIC, 1), load::Fill::LARGE);
    scene.throttle();
    for target in [&[3, 4][..], &[2, 3], &[4, 1], &[3, 4]] {
        let target = targets(TOPIC, &[target]);
        scene.reassign(&target);
        scene.await_begun(&target);
        load.await_more();
    }
    scene.unthrottle();
    let target = targets(TOPIC, &[&[3, 4]]);
    scene.await_moved(&target);
    load.await_more();
    scene.assert_settled(&load.end(), &target);
}
