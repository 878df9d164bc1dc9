//! Offsets: permission to commit, reads, and expiry.

use expect_test::expect;

use mainstem_wire::coordinator::encode_with_version;
use mainstem_wire::messages::group_metadata_value::GroupMetadataValue;
use mainstem_wire::messages::offset_fetch_request::{OffsetFetchRequest, OffsetFetchRequestTopic};
use mainstem_wire::{ErrorCode, Uuid};

use super::cluster::{Cluster, Logged, tickets};
use super::membership::with_two;
use super::transcript::{check, check_with, config, record};
use crate::groups::committed_offset::CommittedOffset;
use crate::groups::records::{group_tombstone, offset_commit};
use crate::groups::{CoordinatorRecord, Effect, GroupConfig, offset_fetch};

#[test]
fn a_group_without_members_only_stores_offsets() {
    check(
        "
        commit A t-0=5:note u-3=6
        commit A t-0=7 t-1=8
        fetch F t-0 t-1 t-2 u-3 x-0
        fetch F
        fetch F g=h
        fetch F g=h t-0
        list L
        describe D
        # For as long as consumers have not heard of groups, they commit to the empty name.
        commit A g= t-0=1
        fetch F g= t-0
        commit A gen=3 t-0=1 g=h
        commit A v=8 gen=3 t-0=1 g=h
        commit A gen=3 t-0=1
        ",
        expect![[r#"
            > commit A t-0=5:note u-3=6
              append g t-0=5; g u-3=6
              A: t-0 NONE, u-3 NONE
            > commit A t-0=7 t-1=8
              append g t-0=7; g t-1=8
              A: t-0 NONE, t-1 NONE
            > fetch F t-0 t-1 t-2 u-3 x-0
              F: offsets [t-0=7 t-1=8 t-2=-1 u-3=6 x-0=-1]
            > fetch F
              F: offsets [t-0=7 t-1=8 u-3=6]
            > fetch F g=h
              F: offsets []
            > fetch F g=h t-0
              F: offsets [t-0=-1]
            > list L
              L: NONE [g Empty "" classic]
            > describe D
              D: Empty "" "" []
            > # For as long as consumers have not heard of groups, they commit to the empty name.
            > commit A g= t-0=1
              append  t-0=1
              A: t-0 NONE
            > fetch F g= t-0
              F: offsets [t-0=1]
            > commit A gen=3 t-0=1 g=h
              A: t-0 GROUP_ID_NOT_FOUND
            > commit A v=8 gen=3 t-0=1 g=h
              A: t-0 ILLEGAL_GENERATION
            > commit A gen=3 t-0=1
              A: t-0 UNKNOWN_MEMBER_ID
        "#]],
    );
}

#[test]
fn metadata_is_bounded_in_utf_16_units() {
    check(
        "
        commit A t-0=1:x4096 t-1=1:x4097
        fetch F t-1
        commit A t-1=1:x4097
        ",
        expect![[r#"
            > commit A t-0=1:x4096 t-1=1:x4097
              append g t-0=1
              A: t-0 NONE, t-1 OFFSET_METADATA_TOO_LARGE
            > fetch F t-1
              F: offsets [t-1=-1]
            > commit A t-1=1:x4097
              A: t-1 OFFSET_METADATA_TOO_LARGE
        "#]],
    );
}

#[test]
fn an_offset_belongs_to_one_topic_of_its_name() {
    check(
        "
        commit A v=10 topicid=1 t-0=5
        fetch F v=10 topicid=1 t-0
        fetch F v=10 topicid=2 t-0
        fetch F t-0
        reload
        fetch F v=10 topicid=2 t-0
        commit A t-0=6
        fetch F v=10 topicid=2 t-0
        topic-deleted t
        fetch F t-0
        list L
        ",
        expect![[r#"
            > commit A v=10 topicid=1 t-0=5
              append g t-0=5
              A: t-0 NONE
            > fetch F v=10 topicid=1 t-0
              F: offsets [t-0=5]
            > fetch F v=10 topicid=2 t-0
              F: offsets [t-0=-1]
            > fetch F t-0
              F: offsets [t-0=5]
            > reload
            > fetch F v=10 topicid=2 t-0
              F: offsets [t-0=-1]
            > commit A t-0=6
              append g t-0=6
              A: t-0 NONE
            > fetch F v=10 topicid=2 t-0
              F: offsets [t-0=6]
            > topic-deleted t
              append g t-0 gone
            > fetch F t-0
              F: offsets [t-0=-1]
            > list L
              L: NONE []
        "#]],
    );
}

#[test]
fn members_commit_in_their_generation_and_not_before_they_have_an_assignment() {
    check(
        "
        join A v=3
        wait 3000
        commit A id=c-1 gen=1 t-0=1
        sync A id=c-1 assign=c-1:P
        commit A id=c-1 gen=1 t-0=1
        commit A id=c-1 t-0=1
        commit A gen=1 t-0=1
        # During a rebalance, offsets of partitions that are revoked can still be committed.
        join B v=3
        commit A id=c-1 gen=1 t-0=2
        join A id=c-1
        commit A id=c-1 gen=1 t-0=3
        fetch F t-0
        ",
        expect![[r#"
            > join A v=3
              append g generation 0 []
            > wait 3000
              at 3000
              A: joined as c-1: generation 1, range, leader c-1, members [c-1]
            > commit A id=c-1 gen=1 t-0=1
              A: t-0 REBALANCE_IN_PROGRESS
            > sync A id=c-1 assign=c-1:P
              append g generation 1 [c-1=P]
              A: synced consumer range: "P"
            > commit A id=c-1 gen=1 t-0=1
              append g t-0=1
              A: t-0 NONE
            > commit A id=c-1 t-0=1
              A: t-0 ILLEGAL_GENERATION
            > commit A gen=1 t-0=1
              A: t-0 UNKNOWN_MEMBER_ID
            > # During a rebalance, offsets of partitions that are revoked can still be committed.
            > join B v=3
            > commit A id=c-1 gen=1 t-0=2
              append g t-0=2
              A: t-0 NONE
            > join A id=c-1
              A: joined as c-1: generation 2, range, leader c-1, members [c-1 c-2]
              B: joined as c-2: generation 2, range, leader c-1, members []
            > commit A id=c-1 gen=1 t-0=3
              A: t-0 ILLEGAL_GENERATION
            > fetch F t-0
              F: offsets [t-0=2]
        "#]],
    );
}

/// One minute of retention, checked every ten seconds.
fn one_minute() -> GroupConfig {
    GroupConfig { offsets_retention_ms: 60_000, offsets_retention_check_interval_ms: 10_000, ..config() }
}

#[test]
fn offsets_of_a_group_without_members_expire_by_their_own_age() {
    check_with(
        one_minute(),
        "
        commit A t-0=5
        wait 30000
        commit A t-1=6
        # A client that commits with a retention time of its own is held to that (OffsetCommit v2-4).
        commit B v=4 retention=5000 u-0=1
        wait 10000
        wait 25000
        fetch F
        wait 30000
        list L
        ",
        expect![[r#"
            > commit A t-0=5
              append g t-0=5
              A: t-0 NONE
            > wait 30000
            > commit A t-1=6
              append g t-1=6
              A: t-1 NONE
            > # A client that commits with a retention time of its own is held to that (OffsetCommit v2-4).
            > commit B v=4 retention=5000 u-0=1
              append g u-0=1
              B: u-0 NONE
            > wait 10000
              at 40000
              append g u-0 gone
            > wait 25000
              at 60000
              append g t-0 gone
            > fetch F
              F: offsets [t-1=6]
            > wait 30000
              at 90000
              append g t-1 gone; g gone
            > list L
              L: NONE []
        "#]],
    );
}

#[test]
fn offsets_of_a_group_that_had_members_expire_together_after_the_last_one_left() {
    check_with(
        one_minute(),
        "
        join A v=3 session=100000 protocols=range:t
        wait 3000
        sync A id=c-1 assign=c-1:P
        commit A id=c-1 gen=1 t-0=5 u-0=6
        # While A reads t its offset stays; no member reads u any more.
        wait 70000
        leave A c-1
        wait 50000
        fetch F
        wait 20000
        list L
        ",
        expect![[r#"
            > join A v=3 session=100000 protocols=range:t
              append g generation 0 []
            > wait 3000
              at 3000
              A: joined as c-1: generation 1, range, leader c-1, members [c-1]
            > sync A id=c-1 assign=c-1:P
              append g generation 1 [c-1=P]
              A: synced consumer range: "P"
            > commit A id=c-1 gen=1 t-0=5 u-0=6
              append g t-0=5; g u-0=6
              A: t-0 NONE, u-0 NONE
            > # While A reads t its offset stays; no member reads u any more.
            > wait 70000
              at 70000
              append g u-0 gone
            > leave A c-1
              append g generation 2 []
              A: left NONE c-1 NONE
            > wait 50000
            > fetch F
              F: offsets [t-0=5]
            > wait 20000
              at 140000
              append g t-0 gone; g gone
            > list L
              L: NONE []
        "#]],
    );
}

/// Up to version 1 a group's record has no time since when the group is empty.
#[test]
fn offsets_of_an_empty_group_of_an_old_schema_expire_by_their_own_age() {
    let mut cluster = Cluster::new(one_minute());
    let group = GroupMetadataValue {
        protocol_type: "consumer".into(),
        generation: 3,
        current_state_timestamp: -1,
        ..Default::default()
    };
    let value = encode_with_version(&group, 1).expect("version 1 has all that is set");
    let group = CoordinatorRecord { key: group_tombstone("g").key, value: Some(value) };
    cluster.log.push(Logged::plain(group));
    for (partition, age_ms) in [(0, 50_000), (1, 0)] {
        let committed_ms = cluster.now.wall_ms - age_ms;
        let offset = CommittedOffset::new(5, -1, committed_ms, Uuid::ZERO);
        cluster.log.push(Logged::plain(offset_commit("g", "t", partition, &offset)));
    }
    cluster.reload();
    let mut looks = |ms| {
        cluster.advance(ms);
        cluster.coordinator.tick(cluster.now);
        let effects = cluster.effects();
        let written = effects.iter().filter_map(|effect| match effect {
            Effect::Append { records, .. } => {
                Some(records.iter().map(|written| record(&cluster, written)).collect::<Vec<_>>().join("; "))
            }
            Effect::Reply { .. } => None,
        });
        let written: Vec<_> = written.collect();
        tickets(&effects).for_each(|ticket| cluster.finish(ticket, Ok(())));
        written
    };
    assert_eq!(looks(10_000), ["g t-0 gone"]);
    assert_eq!(looks(40_000), [""; 0]);
    assert_eq!(looks(10_000), ["g t-1 gone; g gone"]);
}

#[test]
fn nothing_expires_while_members_rebalance_or_when_their_topics_are_unknown() {
    check_with(
        one_minute(),
        "
        join A v=3 session=600000 rebalance=600000 protocols=range:junk
        wait 3000
        sync A id=c-1 assign=c-1:P
        commit A id=c-1 gen=1 t-0=5
        wait 100000
        join A id=c-1 session=600000 rebalance=600000 protocols=range:t
        commit A id=c-1 gen=1 t-0=5
        sync A id=c-1 gen=2 assign=c-1:P
        join B v=3 session=600000 rebalance=600000 protocols=range:t
        wait 100000
        fetch F
        ",
        expect![[r#"
            > join A v=3 session=600000 rebalance=600000 protocols=range:junk
              append g generation 0 []
            > wait 3000
              at 3000
              A: joined as c-1: generation 1, range, leader c-1, members [c-1]
            > sync A id=c-1 assign=c-1:P
              append g generation 1 [c-1=P]
              A: synced consumer range: "P"
            > commit A id=c-1 gen=1 t-0=5
              append g t-0=5
              A: t-0 NONE
            > wait 100000
            > join A id=c-1 session=600000 rebalance=600000 protocols=range:t
              A: joined as c-1: generation 2, range, leader c-1, members [c-1]
            > commit A id=c-1 gen=1 t-0=5
              A: t-0 ILLEGAL_GENERATION
            > sync A id=c-1 gen=2 assign=c-1:P
              append g generation 2 [c-1=P]
              A: synced consumer range: "P"
            > join B v=3 session=600000 rebalance=600000 protocols=range:t
            > wait 100000
            > fetch F
              F: offsets [t-0=5]
        "#]],
    );
}

#[test]
fn a_wall_clock_that_jumps_forward_expires_offsets_only_at_the_next_look() {
    check_with(
        one_minute(),
        "
        commit A t-0=5
        wall 1000000
        fetch F t-0
        wait 10000
        commit B t-0=6
        wall -5000000
        wait 10000
        fetch F t-0
        ",
        expect![[r#"
            > commit A t-0=5
              append g t-0=5
              A: t-0 NONE
            > wall 1000000
            > fetch F t-0
              F: offsets [t-0=5]
            > wait 10000
              at 10000
              append g t-0 gone; g gone
            > commit B t-0=6
              append g t-0=6
              B: t-0 NONE
            > wall -5000000
            > wait 10000
            > fetch F t-0
              F: offsets [t-0=6]
        "#]],
    );
}

#[test]
fn an_offset_that_is_being_committed_does_not_expire() {
    check_with(
        one_minute(),
        "
        commit A t-0=5
        wait 55000
        hold
        commit A t-0=6
        wait 10000
        ok 2
        wait 50000
        fetch F t-0
        ",
        expect![[r#"
            > commit A t-0=5
              append g t-0=5
              A: t-0 NONE
            > wait 55000
            > hold
            > commit A t-0=6
              append #2 g t-0=6
            > wait 10000
              at 60000
              A: t-0 COORDINATOR_NOT_AVAILABLE
            > ok 2
            > wait 50000
            > fetch F t-0
              F: offsets [t-0=6]
        "#]],
    );
}

#[test]
fn a_group_that_expires_is_dead_until_that_is_durable() {
    check_with(
        one_minute(),
        "
        commit A t-0=5
        hold
        wait 60000
        join A
        commit A t-0=6
        sync A id=c-1
        beat A id=c-1
        leave A c-1
        fetch F t-0
        describe D
        fail 2 NOT_ENOUGH_REPLICAS
        join A
        list L
        ",
        expect![[r#"
            > commit A t-0=5
              append g t-0=5
              A: t-0 NONE
            > hold
            > wait 60000
              at 60000
              append #2 g t-0 gone; g gone
            > join A
              A: COORDINATOR_NOT_AVAILABLE ""
            > commit A t-0=6
              A: t-0 COORDINATOR_NOT_AVAILABLE
            > sync A id=c-1
              A: COORDINATOR_NOT_AVAILABLE
            > beat A id=c-1
              A: COORDINATOR_NOT_AVAILABLE
            > leave A c-1
              A: left COORDINATOR_NOT_AVAILABLE
            > fetch F t-0
              F: offsets [t-0=5]
            > describe D
              D: Dead GROUP_ID_NOT_FOUND Group g not found.
            > fail 2 NOT_ENOUGH_REPLICAS
            > join A
              A: MEMBER_ID_REQUIRED "c-2"
            > list L
              L: NONE [g Empty "" classic]
        "#]],
    );
}

#[test]
fn an_empty_group_without_offsets_goes_at_the_next_look_unless_a_member_is_coming() {
    check_with(
        one_minute(),
        &with_two(
            "
            leave X c-1 c-2
            join A session=20000
            wait 10000
            list L
            wait 20000
            list L
            ",
        ),
        expect![[r#"
            > leave X c-1 c-2
              append g generation 2 []
              X: left NONE c-1 NONE c-2 NONE
            > join A session=20000
              A: MEMBER_ID_REQUIRED "c-3"
            > wait 10000
            > list L
              L: NONE [g Empty "consumer" classic]
            > wait 20000
              at 30000
              append g gone
            > list L
              L: NONE []
        "#]],
    );
}

#[test]
fn many_tombstones_are_written_in_several_appends() {
    check_with(
        GroupConfig { tombstones_per_append_max: 2, ..one_minute() },
        "
        commit A t-0=1 t-1=1 t-2=1 t-3=1 t-4=1
        wait 60000
        list L
        ",
        expect![[r#"
            > commit A t-0=1 t-1=1 t-2=1 t-3=1 t-4=1
              append g t-0=1; g t-1=1; g t-2=1; g t-3=1; g t-4=1
              A: t-0 NONE, t-1 NONE, t-2 NONE, t-3 NONE, t-4 NONE
            > wait 60000
              at 60000
              append g t-0 gone; g t-1 gone
              append g t-2 gone; g t-3 gone
              append g t-4 gone; g gone
            > list L
              L: NONE []
        "#]],
    );
}

#[test]
fn a_fetch_of_any_version_is_taken_apart_and_answered_in_its_own_form() {
    let topic =
        OffsetFetchRequestTopic { name: "t".into(), partition_indexes: vec![4], ..Default::default() };
    let request =
        OffsetFetchRequest { group_id: "g".into(), topics: Some(vec![topic]), ..Default::default() };
    for version in 1..=7 {
        let groups = offset_fetch::groups_of(request.clone(), version);
        assert_eq!((groups.len(), &*groups[0].group_id), (1, "g"));
        let refused = offset_fetch::refused(&groups[0], ErrorCode::NOT_COORDINATOR, version);
        let response = offset_fetch::response(vec![refused], version);
        let of_partitions: Vec<i16> =
            response.topics.iter().map(|topic| topic.partitions[0].error_code).collect();
        // Version 1 can only report an error for each partition.
        let expected = if version == 1 { (0, vec![16]) } else { (16, vec![]) };
        assert_eq!((response.error_code, of_partitions), expected, "v{version}");
    }
    let all = OffsetFetchRequest { group_id: "g".into(), topics: None, ..Default::default() };
    assert_eq!(offset_fetch::groups_of(all, 2)[0].topics, None);
    for version in 8..=10 {
        let group = offset_fetch::groups_of(request.clone(), 1).remove(0);
        let several = OffsetFetchRequest { groups: vec![group.clone(), group.clone()], ..Default::default() };
        assert_eq!(
            offset_fetch::groups_of(several, version),
            std::slice::from_ref(&group),
            "each counts once"
        );
        let refused = offset_fetch::refused(&group, ErrorCode::NOT_COORDINATOR, version);
        let response = offset_fetch::response(vec![refused.clone(), refused.clone()], version);
        assert_eq!((response.groups, response.error_code), (vec![refused.clone(), refused], 0));
    }
}
