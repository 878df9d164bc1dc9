//! Moves, reports and lost disks in any order: the metadata stay sound, and follow from the records alone.

use proptest::prelude::*;

use super::move_tests::{check_copies, cluster};
use super::properties::{damage, replay_damaged};
use super::session::*;
use super::*;

#[derive(Debug, Clone)]
enum Step {
    Move(Vec<i32>),
    Cancel,
    Settle { leader: i32, epochs_later: i32 },
    Lead { leader: i32, epochs_later: i32, isr: Vec<i32> },
    LoseDisk(i32),
    CreateAgain,
}

fn step() -> impl Strategy<Value = Step> {
    let node = 1..=5i32;
    let nodes = || proptest::sample::subsequence(vec![1, 2, 3, 4, 5], 0..=4).prop_shuffle();
    let later = -1..3i32;
    prop_oneof![
        4 => nodes().prop_map(Step::Move),
        2 => Just(Step::Cancel),
        3 => (node.clone(), later.clone())
            .prop_map(|(leader, epochs_later)| Step::Settle { leader, epochs_later }),
        2 => (node.clone(), later, nodes())
            .prop_map(|(leader, epochs_later, isr)| Step::Lead { leader, epochs_later, isr }),
        1 => node.prop_map(Step::LoseDisk),
        1 => Just(Step::CreateAgain),
    ]
}

fn partition(session: &Session) -> &PartitionImage {
    &session.machine.image().topic("a").expect("it exists").partitions[0]
}

fn take(session: &mut Session, step: &Step) {
    let later = |session: &Session, epochs: i32| (partition(session).leader_epoch + epochs).max(0);
    match step {
        Step::Move(replicas) => drop(session.move_to(replicas)),
        Step::Cancel => drop(session.cancel()),
        Step::Settle { leader, epochs_later } => {
            session.settle(*leader, later(session, *epochs_later));
        }
        Step::Lead { leader, epochs_later, isr } => {
            session.lead(*leader, later(session, *epochs_later), isr);
        }
        Step::LoseDisk(node) => {
            session.lose_disk(*node);
        }
        Step::CreateAgain => {
            session.delete(&[(Some("a"), mainstem_wire::Uuid::ZERO)]);
            session.create(assigned("a", &[(0, &[1, 2, 3])]));
            session.commit_all();
        }
    }
}

/// Checks what a step has changed: a version stands for one set of members, and no incarnation is given twice.
fn check_step(before: &PartitionImage, after: &PartitionImage) {
    let members = |image: &PartitionImage| {
        let mut wanted = image.wanted();
        wanted.sort_unstable();
        wanted
    };
    if before.wanted_version() == after.wanted_version() {
        assert_eq!(members(before), members(after), "{before:?} to {after:?}");
    }
    let last = before.group.as_ref().map_or(1, |group| group.last_incarnation);
    for node in &after.replicas {
        let (now, was) = (after.incarnation(*node), before.incarnation(*node));
        assert!(now == was || now > Some(last), "{node}: {before:?} to {after:?}");
    }
    // A node deletes its replica when it is not named any more, so that only a report may leave it out.
    let is_named = |node: &i32| after.replicas.contains(node) || before.removing.contains(node);
    assert!(before.replicas.iter().all(is_named), "{before:?} to {after:?}");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: mainstem_testkit::cases(128), ..ProptestConfig::default() })]
    #[test]
    fn any_order_of_moves_keeps_the_metadata_sound(steps in proptest::collection::vec(step(), 1..30)) {
        let mut session = cluster(2);
        for step in &steps {
            let (id, before) = (session.id("a"), partition(&session).clone());
            take(&mut session, step);
            check_copies(&session);
            if session.id("a") == id {
                check_step(&before, partition(&session));
            }
        }
        // Whatever was asked for last is reached once a leader reports.
        let target = partition(&session).target();
        let epoch = partition(&session).leader_epoch.max(partition(&session).settled_epoch());
        session.settle(target[0], epoch);
        let partition = partition(&session);
        prop_assert_eq!(&partition.replicas, &target);
        prop_assert!(!partition.is_moving() && partition.adding.is_empty() && partition.removing.is_empty());
    }

    /// Damages records of moves.
    #[test]
    fn damaged_records_of_moves_are_refused(
        steps in proptest::collection::vec(step(), 1..12),
        damage in damage(),
    ) {
        let mut session = cluster(2);
        for step in &steps {
            take(&mut session, step);
        }
        replay_damaged(&session.log, damage);
    }
}
