//! Guarantees of the assignors: everything is assigned once, to subscribers, evenly, and little moves.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};

use mainstem_wire::Uuid;
use proptest::collection::vec;
use proptest::prelude::*;

use super::super::partitions::{Assignment, Partition};
use super::{Assignor, GroupSpec, MemberSpec, Topics};

/// A member in a test: its id, its subscribed topics, its partitions.
#[derive(Debug, Clone)]
struct Given {
    id: String,
    instance: Option<String>,
    topics: Vec<u128>,
    assigned: Assignment,
}

fn topic(id: u128) -> Uuid {
    Uuid::from_u128(id)
}

fn member(id: &str, topics: &[u128], assigned: &[(u128, i32)]) -> Given {
    Given {
        id: id.to_owned(),
        instance: None,
        topics: topics.to_vec(),
        assigned: assigned.iter().map(|(id, index)| (topic(*id), *index)).collect(),
    }
}

fn assign(assignor: Assignor, topics: &[(u128, i32)], members: &[Given]) -> Vec<Assignment> {
    let is_read = |id: &u128| members.iter().any(|member| member.topics.contains(id));
    let read = topics.iter().filter(|(id, _)| is_read(id));
    let topics: Topics = read.map(|(id, count)| (topic(*id), *count)).collect();
    let homogeneous = members.iter().all(|member| member.topics == members[0].topics);
    let members = members.iter().map(|member| MemberSpec {
        id: &member.id,
        instance_id: member.instance.as_deref(),
        topics: member.topics.iter().map(|id| topic(*id)).collect(),
        assigned: Cow::Borrowed(&member.assigned),
    });
    let group = GroupSpec { members: members.collect(), topics, homogeneous };
    super::assign(assignor, &group).into_iter().map(Cow::into_owned).collect()
}

fn show(assignments: &[Assignment]) -> String {
    let member = |assignment: &Assignment| {
        let partitions: Vec<String> =
            assignment.iter().map(|(topic, index)| format!("{}.{index}", topic.to_u128())).collect();
        partitions.join(" ")
    };
    assignments.iter().map(member).collect::<Vec<_>>().join(" | ")
}

#[track_caller]
fn check(assignor: Assignor, topics: &[(u128, i32)], members: &[Given], expected: &str) {
    assert_eq!(show(&assign(assignor, topics, members)), expected);
}

#[test]
fn uniform_with_the_same_topics() {
    let both = [(1, 3), (2, 2)];
    let new = [member("a", &[1, 2], &[]), member("b", &[1, 2], &[])];
    check(Assignor::Uniform, &both, &new, "1.0 1.1 | 1.2 2.0 2.1");
    // More members than partitions: some have none.
    let crowd = [member("a", &[1], &[]), member("b", &[1], &[]), member("c", &[1], &[])];
    check(Assignor::Uniform, &[(1, 2)], &crowd, " | 1.0 | 1.1");
    // A third member gets one partition of each, and nothing else moves.
    let third = [
        member("a", &[1], &[(1, 0), (1, 1), (1, 2)]),
        member("b", &[1], &[(1, 3), (1, 4), (1, 5)]),
        member("c", &[1], &[]),
    ];
    check(Assignor::Uniform, &[(1, 6)], &third, "1.0 1.1 | 1.3 1.4 | 1.2 1.5");
    // The member with the larger share keeps it, although it comes last.
    let larger = [member("a", &[1], &[(1, 0)]), member("b", &[1], &[(1, 1), (1, 2)])];
    check(Assignor::Uniform, &[(1, 3)], &larger, "1.0 | 1.1 1.2");
    // A partition is dropped if its member does not subscribe to the topic any more.
    let dropped = [member("a", &[1], &[(1, 0), (2, 0)]), member("b", &[1], &[])];
    check(Assignor::Uniform, &[(1, 2)], &dropped, "1.0 | 1.1");
    check(Assignor::Uniform, &[], &[member("a", &[], &[(1, 0)])], "");
}

#[test]
fn uniform_with_different_topics() {
    let members = [member("a", &[1], &[]), member("b", &[1, 2], &[]), member("c", &[2], &[])];
    check(Assignor::Uniform, &[(1, 3), (2, 3)], &members, "1.0 1.2 | 1.1 2.2 | 2.0 2.1");
    // b can only read 2, so a, which has both, loses all of it.
    let narrow = [member("a", &[1, 2], &[(1, 0), (1, 1), (2, 0), (2, 1)]), member("b", &[2], &[])];
    check(Assignor::Uniform, &[(1, 2), (2, 2)], &narrow, "1.0 1.1 | 2.0 2.1");
    // Only its owner subscribes to 2 now, and keeps it.
    let kept = [member("a", &[1], &[(1, 0)]), member("b", &[1, 2], &[(1, 1), (2, 0)])];
    check(Assignor::Uniform, &[(1, 2), (2, 1)], &kept, "1.0 | 1.1 2.0");
}

#[test]
fn range_keeps_equal_partitions_together() {
    let members = [member("b", &[1, 2], &[]), member("a", &[1, 2], &[])];
    check(Assignor::Range, &[(1, 3), (2, 3)], &members, "1.2 2.2 | 1.0 1.1 2.0 2.1");
    let some = [member("a", &[1], &[]), member("b", &[1, 2], &[]), member("c", &[2], &[])];
    check(Assignor::Range, &[(1, 3), (2, 3)], &some, "1.0 1.1 | 1.2 2.0 2.1 | 2.2");
    // Static members come first, ordered by their instance ids.
    let mut fixed = [member("x", &[1], &[]), member("a", &[1], &[]), member("b", &[1], &[])];
    fixed[0].instance = Some("i2".to_owned());
    fixed[2].instance = Some("i1".to_owned());
    check(Assignor::Range, &[(1, 3)], &fixed, "1.1 | 1.2 | 1.0");
}

/// `1.0,2.3`
fn partitions(text: &str) -> Vec<(u128, i32)> {
    let partition = |word: &str| {
        let (topic, index) = word.split_once('.').expect("TOPIC.INDEX");
        (topic.parse().expect("a topic"), index.parse().expect("an index"))
    };
    text.split(',').filter(|word| !word.is_empty()).map(partition).collect()
}

/// Compares with the assignors of Kafka 4.3.0: `golden/Assignors.java` has recorded their answers for 120 groups in five states each.
#[test]
fn kafkas_own_assignors_say_the_same() {
    let lines = include_str!("../../../../golden/assignors.txt").lines();
    let mut groups = 0;
    for line in lines {
        let [assignor, topics, members, expected] = line.split('\t').collect::<Vec<_>>()[..] else {
            panic!("a line has four fields: {line}")
        };
        let topic = |word: &str| {
            let (id, count) = word.split_once(':').expect("ID:PARTITIONS");
            (id.parse().expect("an id"), count.parse().expect("a count"))
        };
        let given = |word: &str| {
            let [id, instance, topics, has] = word.split('/').collect::<Vec<_>>()[..] else {
                panic!("{word}")
            };
            let topics: Vec<u128> = topics.split(',').map(|id| id.parse().expect("an id")).collect();
            let instance = (!instance.is_empty()).then(|| instance.to_owned());
            Given { instance, ..member(id, &topics, &partitions(has)) }
        };
        let topics: Vec<(u128, i32)> = topics.split(' ').map(topic).collect();
        let members: Vec<Given> = members.split(' ').map(given).collect();
        let assignor = Assignor::named(assignor).expect("a name that Kafka has");
        let found = assign(assignor, &topics, &members);
        assert_eq!(show(&found).replace(" | ", "|").replace(' ', ","), expected, "{line}");
        groups += 1;
    }
    assert_eq!(groups, 600);
}

/// Checks that everything is assigned once, to a member that subscribes to it.
fn check_complete(topics: &[(u128, i32)], members: &[Given], assignments: &[Assignment]) {
    let mut seen: BTreeSet<Partition> = BTreeSet::new();
    for (member, assignment) in members.iter().zip(assignments) {
        for at in assignment.iter() {
            assert!(member.topics.contains(&at.0.to_u128()), "{} got {at:?}", member.id);
            assert!(seen.insert(*at), "{at:?} is assigned twice");
        }
    }
    let subscribed: BTreeSet<u128> =
        members.iter().flat_map(|member| member.topics.iter().copied()).collect();
    let all: BTreeSet<Partition> = topics
        .iter()
        .filter(|(id, _)| subscribed.contains(id))
        .flat_map(|(id, count)| (0..*count).map(|index| (topic(*id), index)))
        .collect();
    assert_eq!(seen, all);
}

/// Members with the partitions that an assignor gave them last.
fn with_last(members: &[Given], last: &[Assignment]) -> Vec<Given> {
    members
        .iter()
        .zip(last)
        .map(|(member, last)| Given { assigned: last.clone(), ..member.clone() })
        .collect()
}

fn moved(before: &[Given], after: &[Assignment]) -> usize {
    let kept: usize = before
        .iter()
        .zip(after)
        .map(|(before, after)| after.iter().filter(|at| before.assigned.contains(at)).count())
        .sum();
    after.iter().map(Assignment::len).sum::<usize>() - kept
}

fn group() -> impl Strategy<Value = (Vec<(u128, i32)>, Vec<Given>)> {
    let topics = vec(0..9_i32, 1..5);
    let members = vec(1..16_u8, 1..7);
    (topics, members, any::<bool>()).prop_map(|(counts, masks, same)| {
        let topics: Vec<(u128, i32)> = (1..).zip(counts).collect();
        let members = masks.iter().enumerate().map(|(at, mask)| {
            let mask = if same { masks[0] } else { *mask };
            let subscribed = topics.iter().enumerate().filter(|(bit, _)| mask & (1 << bit) != 0);
            let ids: Vec<u128> = subscribed.map(|(_, (id, _))| *id).collect();
            member(&format!("m{at}"), &ids, &[])
        });
        let members = members.collect();
        (topics, members)
    })
}

proptest! {
    #[test]
    fn everything_is_assigned_once_and_evenly_and_stays((topics, members) in group(), leaver in any::<prop::sample::Index>()) {
        for assignor in Assignor::ALL {
            let first = assign(assignor, &topics, &members);
            check_complete(&topics, &members, &first);
            let members = with_last(&members, &first);
            // Nothing has changed: nothing moves.
            prop_assert_eq!(&assign(assignor, &topics, &members), &first);
            let mut fewer = members.clone();
            fewer.remove(leaver.index(members.len()));
            let second = assign(assignor, &topics, &fewer);
            check_complete(&topics, &fewer, &second);
        }
    }

    #[test]
    fn uniform_moves_no_more_than_balance_asks_for(counts in vec(0..12_i32, 1..4), members in 1..8_usize) {
        let topics: Vec<(u128, i32)> = (1..).zip(counts).collect();
        let ids: Vec<u128> = topics.iter().map(|(id, _)| *id).collect();
        let total: usize = topics.iter().map(|(_, count)| usize::try_from(*count).expect("positive")).sum();
        let mut group: Vec<Given> = (0..members).map(|at| member(&format!("m{at}"), &ids, &[])).collect();
        let first = assign(Assignor::Uniform, &topics, &group);
        let sizes: Vec<usize> = first.iter().map(Assignment::len).collect();
        prop_assert!(sizes.iter().max().unwrap_or(&0) - sizes.iter().min().unwrap_or(&0) <= 1);
        group = with_last(&group, &first);
        group.push(member("z", &ids, &[]));
        let second = assign(Assignor::Uniform, &topics, &group);
        // Only the newcomer's share moves.
        prop_assert_eq!(moved(&group, &second), second[members].len());
        prop_assert!(second[members].len() == total / (members + 1) || second[members].len() == total / (members + 1) + 1);
        // The newcomer leaves: only its share moves back.
        let mut group = with_last(&group, &second);
        group.pop();
        let third = assign(Assignor::Uniform, &topics, &group);
        prop_assert_eq!(moved(&group, &third), second[members].len());
    }

    #[test]
    fn uniform_leaves_no_move_within_a_topic_that_would_help((topics, members) in group()) {
        let assignments = assign(Assignor::Uniform, &topics, &members);
        let sizes: BTreeMap<&str, usize> =
            members.iter().zip(&assignments).map(|(member, assignment)| (&*member.id, assignment.len())).collect();
        for (owner, assignment) in members.iter().zip(&assignments) {
            for (id, _) in assignment.iter() {
                for other in members.iter().filter(|other| other.topics.contains(&id.to_u128())) {
                    prop_assert!(sizes[&*owner.id] <= sizes[&*other.id] + 1, "{} could give to {}", owner.id, other.id);
                }
            }
        }
    }
}
