//! Joins, votes, other directories and removals in any order: the group of the metadata log stays sound, and follows from the records alone.

use std::collections::{BTreeMap, BTreeSet};

use mainstem_wire::Uuid;
use proptest::prelude::*;

use super::controller_tests::Step;
use super::move_tests::{check_copies, cluster};
use super::properties::{damage, replay_damaged};
use super::session::*;
use super::*;

fn step() -> impl Strategy<Value = Step> {
    let node = 1..=7i32;
    let letter = || proptest::sample::select(vec!['a', 'b', 'c']);
    let place = (node.clone(), letter(), 1..=9i32, any::<bool>());
    // Most nodes have their own address.
    let place =
        place.prop_map(|(node, directory, other, own)| (node, directory, if own { node } else { other }));
    let replica = (node.clone(), letter());
    prop_oneof![
        4 => place.clone().prop_map(|(node, directory, address)| Step::Join { node, directory, address }),
        1 => place.prop_map(|(node, directory, address)| Step::Update { node, directory, address }),
        2 => replica.clone().prop_map(|(node, directory)| Step::AddVoter { node, directory }),
        2 => replica.prop_map(|(node, directory)| Step::RemoveVoter { node, directory }),
        1 => node.clone().prop_map(Step::Register),
        3 => node.clone().prop_map(Step::Fence),
        2 => node.prop_map(Step::Unregister),
    ]
}

/// A step, or a start from a snapshot.
fn step_or_start() -> impl Strategy<Value = Option<Step>> {
    prop_oneof![8 => step().prop_map(Some), 1 => Just(None)]
}

fn start_from_snapshot(session: &mut Session) {
    let (end, mut loaded) = (session.end(), MetadataStateMachine::default());
    for value in session.machine.image().snapshot() {
        loaded.load(end, &value).expect("a record of the snapshot");
    }
    loaded.skip_to(end);
    session.machine = loaded;
}

/// Every replica that there ever was: the directory of a node's incarnation.
type Replicas = BTreeMap<(i32, u32), Uuid>;

/// Checks what a step has changed: the version tells of each change, and an incarnation is that of one directory.
fn check_step(before: &MetadataImage, after: &MetadataImage, replicas: &mut Replicas) {
    let controllers = |image: &MetadataImage| -> Vec<(i32, ControllerImage)> {
        image.controllers().map(|(id, controller)| (id, controller.clone())).collect()
    };
    let (old, new) = (controllers(before), controllers(after));
    let is_changed = old != new;
    assert_eq!(before.controllers_version() < after.controllers_version(), is_changed, "{old:?} to {new:?}");
    let last = replicas.keys().map(|(_, incarnation)| *incarnation).max();
    for (id, controller) in new {
        let key = (id, controller.incarnation);
        let was_there = old.iter().any(|(other, known)| (*other, known.incarnation) == key);
        let is_new = Some(controller.incarnation) > last || old.is_empty();
        assert!(was_there || is_new, "{id} has incarnation {} again", controller.incarnation);
        let directory = *replicas.entry(key).or_insert(controller.directory);
        assert_eq!(directory, controller.directory, "an incarnation of {id} has two directories");
    }
    let voters = |all: &[(i32, ControllerImage)]| -> BTreeSet<i32> {
        all.iter().filter(|(_, controller)| controller.votes).map(|(id, _)| *id).collect()
    };
    let (was, is) = (voters(&old), voters(&controllers(after)));
    let changed = was.symmetric_difference(&is).count();
    assert!(old.is_empty() || changed <= 1, "one vote changes at a time: {was:?} to {is:?}");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: mainstem_testkit::cases(128), ..ProptestConfig::default() })]
    #[test]
    fn any_order_of_joins_and_votes_keeps_the_metadata_sound(
        steps in proptest::collection::vec(step_or_start(), 1..40),
    ) {
        let (mut session, mut replicas) = (cluster(2), Replicas::new());
        for step in steps {
            let before = session.machine.shared_image();
            match step {
                Some(step) => drop(session.take(step)),
                None => start_from_snapshot(&mut session),
            }
            check_copies(&session);
            check_step(&before, session.machine.image(), &mut replicas);
        }
    }

    /// Damages records of joins and votes.
    #[test]
    fn damaged_records_of_controllers_are_refused(
        steps in proptest::collection::vec(step(), 1..12),
        damage in damage(),
    ) {
        let mut session = cluster(2);
        for step in steps {
            session.take(step);
        }
        replay_damaged(&session.log, damage);
    }
}
