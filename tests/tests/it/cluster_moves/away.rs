//! A node was away while replicas moved to it and away from it. It does what the metadata say when it is back.

use mainstem_client::{NewTopic, TopicPartition};
use mainstem_tests::cluster::System;

use super::load::{Fill, Load, Written};
use super::scene::{Scene, Targets, targets, throttled};

/// The node that is away.
const AWAY: i32 = 4;
/// A topic whose replica leaves the node meanwhile.
const LEAVES: &str = "leaves";
/// A topic that gets a replica on the node meanwhile.
const COMES: &str = "comes";
/// A topic that was about to get one before.
const CANCELLED: &str = "cancelled";
/// A topic whose replica leaves the node and comes to it again.
const RETURNS: &str = "returns";

/// The topics with their replicas, before the node goes and when it is back.
const REPLICAS: [(&str, [i32; 3], [i32; 3]); 4] = [
    (LEAVES, [4, 1, 2], [1, 2, 3]),
    (COMES, [1, 2, 3], [4, 3, 1]),
    (CANCELLED, [2, 3, 1], [2, 3, 1]),
    (RETURNS, [3, 4, 1], [3, 1, 4]),
];

fn create(scene: &mut Scene) -> Vec<TopicPartition> {
    let topics =
        REPLICAS.map(|(topic, before, _)| throttled(NewTopic::new(topic).replicas([before.to_vec()])));
    topics.iter().for_each(|topic| scene.create(topic));
    topics.iter().map(|topic| TopicPartition::new(&*topic.name, 0)).collect()
}

/// Begins a move, kills the node while it gets what it lacks, and cancels.
fn cancel_while_it_is_away(scene: &mut Scene, load: &Load) {
    let on_its_way = targets(CANCELLED, &[&[2, 3, AWAY]]);
    scene.throttle();
    scene.reassign(&on_its_way);
    scene.await_begun(&on_its_way);
    scene.cluster.kill(AWAY);
    load.await_more();
    scene.cancel(on_its_way.keys()).expect("a move is cancelled");
    scene.await_moved(&targets(CANCELLED, &[&[2, 3, 1]]));
    scene.unthrottle();
}

/// Waits until all replicas are equal and have all that was written, and until each node has files of its own replicas alone. The node that
/// was away cannot know why its replica was replaced by another one: the earlier files are kept as stray.
#[track_caller]
fn assert_all_there(scene: &Scene, written: &Written, wanted: &Targets) {
    for (partition, nodes) in wanted {
        scene.assert_replicas(written, partition, nodes);
        match &*partition.topic {
            RETURNS => {
                let mut found = scene.dirs_of(partition, AWAY);
                found.sort();
                assert!(found.len() == 2 && found[1].ends_with("-stray"), "{found:?}");
                assert_eq!(found[0], partition.to_string());
            }
            _ => scene.await_only_on(partition, nodes),
        }
    }
}

#[test]
fn a_node_that_was_away_opens_and_removes_what_the_metadata_say() {
    let mut scene = Scene::start("cluster-moves-away", System::Mainstem);
    let all = create(&mut scene);
    let load = Load::start(&scene, &all, Fill { records: 400, ..Fill::LARGE });
    cancel_while_it_is_away(&mut scene, &load);
    scene.move_to(&targets(LEAVES, &[&[1, 2, 3]]));
    scene.move_to(&targets(RETURNS, &[&[3, 2, 1]]));
    let comes = targets(COMES, &[&[4, 3, 1]]);
    let returns = targets(RETURNS, &[&[3, 1, 4]]);
    scene.reassign(&comes);
    scene.reassign(&returns);
    load.await_more();
    let moving = scene.until(|| scene.moving());
    assert_eq!(moving, comes.keys().chain(returns.keys()).cloned().collect(), "they wait for the node");
    scene.cluster.start_node(AWAY);

    let wanted: Targets = REPLICAS.iter().flat_map(|(topic, _, after)| targets(topic, &[after])).collect();
    scene.await_moved(&wanted);
    load.await_more();
    let written = load.end();
    assert_all_there(&scene, &written, &wanted);

    // All nodes find the same after another start.
    scene.cluster.ids().iter().for_each(|node| scene.cluster.stop(*node));
    scene.cluster.ids().iter().for_each(|node| scene.cluster.start_node(*node));
    scene.await_moved(&wanted);
    let load = Load::continue_after(&scene, written);
    load.await_more();
    assert_all_there(&scene, &load.end(), &wanted);
}
