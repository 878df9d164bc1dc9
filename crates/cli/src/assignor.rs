//! Kafka's range assignor: each topic's partitions in runs, the first members by id taking one more.

use std::collections::BTreeMap;

/// Name of the protocol that members agree on.
pub(crate) const RANGE: &str = "range";

/// Partitions by topic.
pub(crate) type Assignment = BTreeMap<String, Vec<i32>>;

/// Gives each member its partitions. `subscriptions` are topics by member id, `partitions` the number by topic; a topic
/// that is missing there has none. A member without any partition is in the result all the same.
pub(crate) fn assign_ranges(
    subscriptions: &BTreeMap<String, Vec<String>>,
    partitions: &BTreeMap<String, i32>,
) -> BTreeMap<String, Assignment> {
    let mut assignments: BTreeMap<String, Assignment> =
        subscriptions.keys().map(|member| (member.clone(), Assignment::new())).collect();
    for (topic, count) in partitions {
        let members: Vec<&String> = subscriptions
            .iter()
            .filter(|(_, topics)| topics.contains(topic))
            .map(|(member, _)| member)
            .collect();
        let mut next = 0;
        for (at, member) in members.iter().enumerate() {
            let share = *count as usize / members.len() + usize::from(at < *count as usize % members.len());
            let run: Vec<i32> = (next..next + share as i32).collect();
            next += share as i32;
            let assignment = assignments.get_mut(*member).expect("every member has an assignment");
            if !run.is_empty() {
                assignment.insert(topic.clone(), run);
            }
        }
    }
    assignments
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    fn check(members: &[(&str, &[&str])], partitions: &[(&str, i32)], expected: &str) {
        let subscriptions = members
            .iter()
            .map(|(member, topics)| ((*member).to_owned(), topics.iter().map(|t| (*t).to_owned()).collect()))
            .collect();
        let partitions = partitions.iter().map(|(topic, count)| ((*topic).to_owned(), *count)).collect();
        let assigned = assign_ranges(&subscriptions, &partitions);
        let text: Vec<String> =
            assigned.iter().map(|(member, topics)| format!("{member}: {topics:?}")).collect();
        assert_eq!(text.join("; "), expected);
    }

    #[test]
    fn the_first_members_take_one_more() {
        check(&[("a", &["t"]), ("b", &["t"])], &[("t", 3)], r#"a: {"t": [0, 1]}; b: {"t": [2]}"#);
        check(&[("a", &["t"])], &[("t", 2)], r#"a: {"t": [0, 1]}"#);
        check(
            &[("b", &["t"]), ("a", &["t"]), ("c", &["t"])],
            &[("t", 2)],
            r#"a: {"t": [0]}; b: {"t": [1]}; c: {}"#,
        );
    }

    #[test]
    fn only_those_who_subscribe_get_a_topic() {
        check(
            &[("a", &["t", "u"]), ("b", &["u"]), ("c", &["gone"])],
            &[("t", 2), ("u", 3)],
            r#"a: {"t": [0, 1], "u": [0, 1]}; b: {"u": [2]}; c: {}"#,
        );
    }

    proptest! {
        #[test]
        fn every_partition_has_one_owner(members in 1usize..9, count in 0i32..40) {
            let topics = vec!["t".to_owned()];
            let subscriptions = (0..members).map(|member| (format!("m{member}"), topics.clone())).collect();
            let assigned = assign_ranges(&subscriptions, &BTreeMap::from([("t".to_owned(), count)]));
            let runs: Vec<&Vec<i32>> = assigned.values().filter_map(|topics| topics.get("t")).collect();
            let all: BTreeSet<i32> = runs.iter().flat_map(|run| run.iter().copied()).collect();
            prop_assert_eq!(all.len(), count as usize);
            prop_assert_eq!(runs.iter().map(|run| run.len()).sum::<usize>(), count as usize);
            let sizes = assigned.values().map(|topics| topics.get("t").map_or(0, Vec::len));
            let (least, most) = sizes.fold((usize::MAX, 0), |(l, m), size| (l.min(size), m.max(size)));
            prop_assert!(most - least <= 1);
        }
    }
}
