//! Nodes are killed while replicas move. The move ends without them where it can, and with them where it needs them.

use mainstem_client::{NewTopic, TopicPartition};
use mainstem_tests::cluster::System;

use super::TOPIC;
use super::load::{Fill, Load};
use super::scene::{Scene, Targets, partitions, targets, throttled};

/// The replicas before the moves and after each of them.
const STAYS: [[i32; 3]; 4] = [[1, 2, 3], [2, 3, 4], [3, 4, 1], [4, 1, 2]];

/// A topic of one partition, with more records than a throttled replica gets, and its load.
fn begin(name: &str) -> (Scene, TopicPartition, Load) {
    let mut scene = Scene::start(name, System::Mainstem);
    scene.create(&throttled(NewTopic::new(TOPIC).replicas([STAYS[0].to_vec()])));
    let load = Load::start(&scene, &partitions(TOPIC, 1), Fill::LARGE);
    (scene, TopicPartition::new(TOPIC, 0), load)
}

fn stay(number: usize) -> Targets {
    targets(TOPIC, &[&STAYS[number]])
}

impl Scene {
    /// Begins a move that cannot end before its throttle does.
    fn begin_slowly(&self, target: &Targets) {
        self.throttle();
        self.reassign(target);
        self.await_begun(target);
    }

    /// Kills a node in the midst of a move, and waits until the partition is written to without it.
    fn kill_in_the_midst(&mut self, node: i32, load: &Load, partition: &TopicPartition) {
        self.cluster.kill(node);
        load.await_more();
        self.until(|| match self.moving()?.contains(partition) {
            true => Ok(()),
            false => Err("the move is over".to_owned()),
        });
    }
}

#[test]
fn a_move_ends_whichever_node_is_killed_in_its_midst() {
    let (mut scene, partition, load) = begin("cluster-moves-kills");

    // The leader is the one that goes. The others need it no more, and it finds that it is not wanted when it is back.
    scene.assert_led_by_the_first(&stay(0));
    scene.begin_slowly(&stay(1));
    scene.kill_in_the_midst(1, &load, &partition);
    scene.unthrottle();
    scene.await_moved(&stay(1));
    scene.cluster.start_node(1);
    scene.await_only_on(&partition, &STAYS[1]);

    // The target has to be back.
    scene.begin_slowly(&stay(2));
    scene.kill_in_the_midst(1, &load, &partition);
    scene.unthrottle();
    load.await_more();
    scene.cluster.start_node(1);
    scene.await_moved(&stay(2));
    scene.await_only_on(&partition, &STAYS[2]);

    scene.begin_slowly(&stay(3));
    let controller = scene.runtime.block_on(scene.admin.quorum()).expect("the metadata have a leader").leader;
    scene.kill_in_the_midst(controller, &load, &partition);
    scene.unthrottle();
    scene.cluster.start_node(controller);
    scene.await_moved(&stay(3));

    load.await_more();
    scene.assert_settled(&load.end(), &stay(3));
    scene.stop_and_look_for_faults();
}

/// The leader is killed when it has just begun to let the new replica vote: the next one finds old and new voters, and continues from there.
#[test]
fn a_move_ends_when_its_leader_is_killed_between_old_and_new_voters() {
    const SAID: &str = "] are to vote, replicas [";
    let (mut scene, partition, load) = begin("cluster-moves-joint");
    for (number, nodes) in STAYS.iter().enumerate().skip(1) {
        let leader = scene.leader(&partition);
        let said = |scene: &Scene| scene.cluster.log(leader).matches(SAID).count();
        let before = said(&scene);
        scene.reassign(&stay(number));
        mainstem_tests::wait::eventually("a change of voters", || (said(&scene) > before).then_some(()));
        scene.cluster.kill(leader);
        load.await_more();
        scene.cluster.start_node(leader);
        scene.await_moved(&stay(number));
        scene.await_only_on(&partition, nodes);
    }
    scene.assert_settled(&load.end(), &stay(STAYS.len() - 1));
}
