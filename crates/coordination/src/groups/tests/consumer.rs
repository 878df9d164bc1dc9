//! The consumer protocol (KIP-848), sentence by sentence.

use expect_test::expect;

use super::transcript::{check, check_with, config};
use crate::groups::{Assignor, ConsumerGroupConfig, GroupConfig, GroupTimes};

/// Targets are computed whenever the epoch moves, so that scripts need no waits.
pub(super) fn immediate_targets() -> GroupConfig {
    let times =
        GroupTimes { session_timeout_ms: 45_000, heartbeat_interval_ms: 5_000, assignment_interval_ms: 0 };
    GroupConfig { consumer: ConsumerGroupConfig { times, ..Default::default() }, ..config() }
}

#[track_caller]
fn play(script: &str, expect: expect_test::Expect) {
    check_with(immediate_targets(), script, expect);
}

#[test]
fn a_member_joins_with_epoch_0_and_gets_everything() {
    play(
        "
        topic t 3
        hb A id=A
        hb A id=A epoch=2 owned=t-0,t-1,t-2
        consumers D
        ",
        expect![[r#"
            > topic t 3
            > hb A id=A
              append g member A [t]; g epoch 2; g target A [t-0 t-1 t-2]; g target epoch 2; g current A 2<-0 Stable [t-0@2 t-1@2 t-2@2]
              A: A in epoch 2, has [t-0 t-1 t-2]
            > hb A id=A epoch=2 owned=t-0,t-1,t-2
              A: A in epoch 2
            > consumers D
              D: Stable epoch 2 target 2 uniform: A 2 [t-0 t-1 t-2] -> [t-0 t-1 t-2]
        "#]],
    );
}

#[test]
fn a_second_member_gets_what_the_first_has_revoked() {
    play(
        "
        ~topic t 4
        ~hb A id=A
        hb B id=B
        # A has to revoke in its old epoch, within its rebalance time-out.
        hb A id=A epoch=2
        consumers D
        # B has nothing until A says that it gave up.
        hb B id=B epoch=3
        hb A id=A epoch=2 owned=t-0,t-1
        hb B id=B epoch=3
        consumers D
        ",
        expect![[r#"
            > hb B id=B
              append g member B [t]; g epoch 3; g target A [t-0 t-1]; g target B [t-2 t-3]; g target epoch 3; g current B 3<-0 UnreleasedPartitions []
              B: B in epoch 3, has []
            > # A has to revoke in its old epoch, within its rebalance time-out.
            > hb A id=A epoch=2
              append g current A 2<-2 UnrevokedPartitions [t-0@2 t-1@2] revoking [t-2@2 t-3@2]
              A: A in epoch 2, has [t-0 t-1]
            > consumers D
              D: Reconciling epoch 3 target 3 uniform: A 2 [t-0 t-1 t-2 t-3] -> [t-0 t-1]; B 3 [] -> [t-2 t-3]
            > # B has nothing until A says that it gave up.
            > hb B id=B epoch=3
              append g current B 3<-3 UnreleasedPartitions []
              B: B in epoch 3
            > hb A id=A epoch=2 owned=t-0,t-1
              append g current A 3<-2 Stable [t-0@2 t-1@2]
              A: A in epoch 3
            > hb B id=B epoch=3
              append g current B 3<-3 Stable [t-2@3 t-3@3]
              B: B in epoch 3, has [t-2 t-3]
            > consumers D
              D: Stable epoch 3 target 3 uniform: A 3 [t-0 t-1] -> [t-0 t-1]; B 3 [t-2 t-3] -> [t-2 t-3]
        "#]],
    );
}

#[test]
fn a_member_that_does_not_give_up_in_time_is_out() {
    play(
        "
        ~topic t 2
        ~hb A id=A rebalance=10000
        ~hb B id=B
        ~hb A id=A epoch=2
        wait 9999
        wait 1
        hb B id=B epoch=3
        hb A id=A epoch=2 owned=t-0,t-1
        ",
        expect![[r#"
            > wait 9999
            > wait 1
              at 10000
              append g current A gone; g target A gone; g member A gone; g epoch 4
            > hb B id=B epoch=3
              append g target B [t-0 t-1]; g target epoch 4; g current B 4<-3 Stable [t-0@4 t-1@4]
              B: B in epoch 4, has [t-0 t-1]
            > hb A id=A epoch=2 owned=t-0,t-1
              A: UNKNOWN_MEMBER_ID
        "#]],
    );
}

#[test]
fn a_session_without_heartbeats_ends() {
    play(
        "
        ~topic t 1
        ~hb A id=A
        wait 44999
        hb A id=A epoch=2
        wait 44999
        wait 1
        hb A id=A epoch=2
        consumers D
        list L
        ",
        expect![[r#"
            > wait 44999
            > hb A id=A epoch=2
              A: A in epoch 2
            > wait 44999
            > wait 1
              at 89999
              append g current A gone; g target A gone; g member A gone; g epoch 3
            > hb A id=A epoch=2
              A: UNKNOWN_MEMBER_ID
            > consumers D
              D: Empty epoch 3 target 2 uniform: 
            > list L
              L: NONE [g Empty "consumer" consumer]
        "#]],
    );
}

#[test]
fn a_member_that_leaves_frees_its_partitions_at_once() {
    play(
        "
        ~topic t 2
        ~hb A id=A
        ~hb B id=B
        ~hb A id=A epoch=2
        ~hb A id=A epoch=2 owned=t-0
        ~hb B id=B epoch=3
        hb A id=A epoch=-1
        hb B id=B epoch=3
        hb A id=A epoch=-1
        hb A id=A epoch=3
        ",
        expect![[r#"
            > hb A id=A epoch=-1
              append g current A gone; g target A gone; g member A gone; g epoch 4
              A: A in epoch -1
            > hb B id=B epoch=3
              append g target B [t-0 t-1]; g target epoch 4; g current B 4<-3 Stable [t-0@4 t-1@3]
              B: B in epoch 4, has [t-0 t-1]
            > hb A id=A epoch=-1
              A: UNKNOWN_MEMBER_ID
            > hb A id=A epoch=3
              A: UNKNOWN_MEMBER_ID
        "#]],
    );
}

#[test]
fn epochs_fence_but_a_lost_answer_does_not() {
    play(
        "
        ~topic t 2
        ~hb A id=A
        # Ahead of the coordinator: fenced.
        hb A id=A epoch=3
        ~topic t 4
        ~hb A id=A epoch=2 owned=t-0,t-1
        # The answer that moved A to epoch 3 was lost; what it has is within what it was given.
        hb A id=A epoch=2 full owned=t-0,t-1
        # Without its saying so it is not known what it has.
        hb A id=A epoch=2
        hb A id=A epoch=1 owned=none
        ",
        expect![[r#"
            > # Ahead of the coordinator: fenced.
            > hb A id=A epoch=3
              A: FENCED_MEMBER_EPOCH
            > # The answer that moved A to epoch 3 was lost; what it has is within what it was given.
            > hb A id=A epoch=2 full owned=t-0,t-1
              A: A in epoch 3, has [t-0 t-1 t-2 t-3]
            > # Without its saying so it is not known what it has.
            > hb A id=A epoch=2
              A: FENCED_MEMBER_EPOCH
            > hb A id=A epoch=1 owned=none
              A: FENCED_MEMBER_EPOCH
        "#]],
    );
}

#[test]
fn a_member_that_rejoins_with_epoch_0_keeps_its_place() {
    play(
        "
        ~topic t 2
        ~hb A id=A
        hb A id=A
        ",
        expect![[r#"
            > hb A id=A
              A: A in epoch 2, has [t-0 t-1]
        "#]],
    );
}

#[test]
fn requests_are_checked_before_their_group_is() {
    play(
        "
        ~topic t 1
        hb A id= v=1
        hb A id=A g=
        hb A id=A rebalance=-1
        hb A id=A owned=t-0
        hb A id=A unsubscribed
        hb A id=A instance=
        hb A id=A epoch=-3
        hb A id=A epoch=-2
        hb A id=A assignor=mine
        hb A id=A regex=a(
        hb A id=A epoch=1
        hb A id=A epoch=-1
        # Before version 1 the coordinator draws the id.
        hb A id= v=0
        ",
        expect![[r#"
            > hb A id= v=1
              A: INVALID_REQUEST
            > hb A id=A g=
              A: INVALID_REQUEST
            > hb A id=A rebalance=-1
              A: INVALID_REQUEST
            > hb A id=A owned=t-0
              A: INVALID_REQUEST
            > hb A id=A unsubscribed
              A: INVALID_REQUEST
            > hb A id=A instance=
              A: INVALID_REQUEST
            > hb A id=A epoch=-3
              A: INVALID_REQUEST
            > hb A id=A epoch=-2
              A: INVALID_REQUEST
            > hb A id=A assignor=mine
              A: UNSUPPORTED_ASSIGNOR
            > hb A id=A regex=a(
              A: INVALID_REGULAR_EXPRESSION
            > hb A id=A epoch=1
              A: GROUP_ID_NOT_FOUND
            > hb A id=A epoch=-1
              A: GROUP_ID_NOT_FOUND
            > # Before version 1 the coordinator draws the id.
            > hb A id= v=0
              append g member AgICAgICAgICAgICAgICAg [t]; g epoch 2; g target AgICAgICAgICAgICAgICAg [t-0]; g target epoch 2; g current AgICAgICAgICAgICAgICAg 2<-0 Stable [t-0@2]
              A: AgICAgICAgICAgICAgICAg in epoch 2, has [t-0]
        "#]],
    );
}

#[test]
fn topics_that_come_grow_and_go_move_the_epoch_with_the_next_heartbeat() {
    play(
        "
        hb A id=A topics=t+u
        topic t 1
        hb A id=A epoch=1 owned=none
        topic t 2
        hb A id=A epoch=2 owned=t-0
        topic u 1
        hb A id=A epoch=3 owned=t-0,t-1
        topic-deleted t
        hb A id=A epoch=4 owned=u-0
        # A topic without subscribers changes nothing.
        topic v 1
        hb A id=A epoch=5 owned=u-0
        ",
        expect![[r#"
            > hb A id=A topics=t+u
              append g member A [t u]; g epoch 2; g target A []; g target epoch 2; g current A 2<-0 Stable []
              A: A in epoch 2, has []
            > topic t 1
            > hb A id=A epoch=1 owned=none
              A: FENCED_MEMBER_EPOCH
            > topic t 2
            > hb A id=A epoch=2 owned=t-0
              append g epoch 3; g target A [t-0 t-1]; g target epoch 3; g current A 3<-2 Stable [t-0@3 t-1@3]
              A: A in epoch 3, has [t-0 t-1]
            > topic u 1
            > hb A id=A epoch=3 owned=t-0,t-1
              append g epoch 4; g target A [t-0 t-1 u-0]; g target epoch 4; g current A 4<-3 Stable [t-0@3 t-1@3 u-0@4]
              A: A in epoch 4, has [t-0 t-1 u-0]
            > topic-deleted t
            > hb A id=A epoch=4 owned=u-0
              append g epoch 5; g target A [u-0]; g target epoch 5; g current A 5<-4 Stable [u-0@4]
              A: A in epoch 5, has [u-0]
            > # A topic without subscribers changes nothing.
            > topic v 1
            > hb A id=A epoch=5 owned=u-0
              A: A in epoch 5
        "#]],
    );
}

#[test]
fn a_subscription_that_changes_takes_topics_away_at_once() {
    play(
        "
        ~topic t 1
        ~topic u 1
        ~hb A id=A topics=t+u
        hb A id=A epoch=2 topics=u owned=t-0,u-0
        hb A id=A epoch=2 owned=u-0
        ",
        expect![[r#"
            > hb A id=A epoch=2 topics=u owned=t-0,u-0
              append g member A [u]; g epoch 3; g target A [u-0]; g target epoch 3; g current A 2<-2 UnrevokedPartitions [u-0@2] revoking [t-0@2]
              A: A in epoch 2, has [u-0]
            > hb A id=A epoch=2 owned=u-0
              append g current A 3<-2 Stable [u-0@2]
              A: A in epoch 3
        "#]],
    );
}

#[test]
fn a_pattern_matches_topics_that_are_there_and_later_ones() {
    play(
        "
        ~topic a1 1
        ~topic b1 1
        hb A id=A regex=a.*
        topic a2 1
        # Topics that come are looked at 10 s after the last time at the earliest.
        hb A id=A epoch=2
        wait 10001
        hb A id=A epoch=2
        hb B id=B regex=a.*
        # The last one with a pattern takes it along.
        hb B id=B epoch=-1
        hb A id=A epoch=4 topics=b1 regex=
        ",
        expect![[r#"
            > hb A id=A regex=a.*
              append g member A [] /a.*/; g /a.*/ [a1]; g epoch 2; g target A [a1-0]; g target epoch 2; g current A 2<-0 Stable [a1-0@2]
              A: A in epoch 2, has [a1-0]
            > topic a2 1
            > # Topics that come are looked at 10 s after the last time at the earliest.
            > hb A id=A epoch=2
              A: A in epoch 2
            > wait 10001
            > hb A id=A epoch=2
              append g /a.*/ [a1 a2]; g epoch 3; g target A [a1-0 a2-0]; g target epoch 3; g current A 3<-2 Stable [a1-0@2 a2-0@3]
              A: A in epoch 3, has [a1-0 a2-0]
            > hb B id=B regex=a.*
              append g member B [] /a.*/; g epoch 4; g target A [a1-0]; g target B [a2-0]; g target epoch 4; g current B 4<-0 UnreleasedPartitions []
              B: B in epoch 4, has []
            > # The last one with a pattern takes it along.
            > hb B id=B epoch=-1
              append g current B gone; g target B gone; g member B gone; g epoch 5
              B: B in epoch -1
            > hb A id=A epoch=4 topics=b1 regex=
              A: FENCED_MEMBER_EPOCH
        "#]],
    );
}

#[test]
fn what_was_not_matched_ahead_of_a_heartbeat_is_left_to_the_next_one() {
    play(
        "
        ~topic a1 1
        hb A id=A regex=a.* unmatched
        hb A id=A epoch=1 unmatched
        hb A id=A epoch=1
        topic a2 1
        wait 10001
        hb A id=A epoch=2 unmatched
        hb A id=A epoch=2
        ",
        expect![[r#"
            > hb A id=A regex=a.* unmatched
              append g member A [] /a.*/; g current A 1<-0 Stable []
              A: A in epoch 1, has []
            > hb A id=A epoch=1 unmatched
              A: A in epoch 1
            > hb A id=A epoch=1
              append g /a.*/ [a1]; g epoch 2; g target A [a1-0]; g target epoch 2; g current A 2<-1 Stable [a1-0@2]
              A: A in epoch 2, has [a1-0]
            > topic a2 1
            > wait 10001
            > hb A id=A epoch=2 unmatched
              A: A in epoch 2
            > hb A id=A epoch=2
              append g /a.*/ [a1 a2]; g epoch 3; g target A [a1-0 a2-0]; g target epoch 3; g current A 3<-2 Stable [a1-0@2 a2-0@3]
              A: A in epoch 3, has [a1-0 a2-0]
        "#]],
    );
}

#[test]
fn a_static_member_leaves_for_a_while_and_its_next_incarnation_has_its_partitions() {
    play(
        "
        ~topic t 2
        ~hb A id=A instance=i
        # No other may have the instance id while its member is there.
        hb X id=X instance=i
        hb A id=A epoch=-2 instance=i
        hb B id=B instance=i
        hb A id=A epoch=2 instance=i
        hb A id=A epoch=-1 instance=i
        hb B id=B epoch=-1 instance=j
        ",
        expect![[r#"
            > # No other may have the instance id while its member is there.
            > hb X id=X instance=i
              X: UNRELEASED_INSTANCE_ID
            > hb A id=A epoch=-2 instance=i
              append g current A -2<-0 Stable [t-0@0 t-1@0]
              A: A in epoch -2
            > hb B id=B instance=i
              append g current A gone; g target A gone; g member A gone; g member B/i [t]; g target B [t-0 t-1]; g current B 0<-0 Stable [t-0@0 t-1@0]; g current B 2<-0 Stable [t-0@0 t-1@0]
              B: B in epoch 2, has [t-0 t-1]
            > hb A id=A epoch=2 instance=i
              A: FENCED_INSTANCE_ID
            > hb A id=A epoch=-1 instance=i
              A: FENCED_INSTANCE_ID
            > hb B id=B epoch=-1 instance=j
              B: UNKNOWN_MEMBER_ID
        "#]],
    );
}

/// Known fault: it was locked out by itself until its session ended.
#[test]
fn a_static_member_whose_join_answer_was_lost_joins_again() {
    play(
        "
        ~topic t 2
        hb A id=A instance=i
        hb A id=A instance=i
        hb A id=A epoch=2 instance=i
        hb X id=X instance=i
        ",
        expect![[r#"
            > hb A id=A instance=i
              append g member A/i [t]; g epoch 2; g target A [t-0 t-1]; g target epoch 2; g current A 2<-0 Stable [t-0@2 t-1@2]
              A: A in epoch 2, has [t-0 t-1]
            > hb A id=A instance=i
              A: A in epoch 2, has [t-0 t-1]
            > hb A id=A epoch=2 instance=i
              A: A in epoch 2
            > hb X id=X instance=i
              X: UNRELEASED_INSTANCE_ID
        "#]],
    );
}

#[test]
fn a_static_member_that_does_not_come_back_is_out_at_the_end_of_its_session() {
    play(
        "
        ~topic t 1
        ~hb A id=A instance=i
        ~hb A id=A epoch=-2 instance=i
        wait 45000
        consumers D
        ",
        expect![[r#"
            > wait 45000
              at 45000
              append g current A gone; g target A gone; g member A gone; g epoch 3
            > consumers D
              D: Empty epoch 3 target 2 uniform: 
        "#]],
    );
}

#[test]
fn commits_and_fetches_need_the_members_epoch() {
    play(
        "
        ~topic t 2
        ~hb A id=A
        commit A id=A gen=2 t-0=5
        commit A id=A gen=3 t-0=6
        commit A id=B gen=2 t-0=6
        commit A t-0=6
        commit A id=A gen=2 v=8 t-0=6
        fetch A id=A gen=2 t-0
        fetch A id=A gen=1 t-0
        fetch A id=B gen=2 t-0
        fetch A t-0
        # KIP-1251: behind, but with the partition since then.
        ~topic t 3
        ~hb A id=A epoch=2 owned=t-0,t-1
        commit A id=A gen=2 t-0=7 t-2=7
        fetch A t-0 t-2
        ",
        expect![[r#"
            > commit A id=A gen=2 t-0=5
              append g t-0=5
              A: t-0 NONE
            > commit A id=A gen=3 t-0=6
              A: t-0 STALE_MEMBER_EPOCH
            > commit A id=B gen=2 t-0=6
              A: t-0 UNKNOWN_MEMBER_ID
            > commit A t-0=6
              A: t-0 UNKNOWN_MEMBER_ID
            > commit A id=A gen=2 v=8 t-0=6
              A: t-0 UNSUPPORTED_VERSION
            > fetch A id=A gen=2 t-0
              A: offsets [t-0=5]
            > fetch A id=A gen=1 t-0
              A: STALE_MEMBER_EPOCH
            > fetch A id=B gen=2 t-0
              A: UNKNOWN_MEMBER_ID
            > fetch A t-0
              A: offsets [t-0=5]
            > # KIP-1251: behind, but with the partition since then.
            > commit A id=A gen=2 t-0=7 t-2=7
              A: t-0 STALE_MEMBER_EPOCH, t-2 STALE_MEMBER_EPOCH
            > fetch A t-0 t-2
              A: offsets [t-0=5 t-2=-1]
        "#]],
    );
}

#[test]
fn a_group_is_assigned_by_whatever_most_members_ask_for() {
    play(
        "
        ~topic t 3
        ~hb A id=A assignor=range
        ~hb B id=B assignor=range
        ~hb C id=C assignor=uniform
        consumers D
        hb A id=A epoch=2 assignor=uniform
        consumers D
        ",
        expect![[r#"
            > consumers D
              D: Reconciling epoch 4 target 4 range: A 2 [t-0 t-1 t-2] -> [t-0]; B 3 [] -> [t-1]; C 4 [] -> [t-2]
            > hb A id=A epoch=2 assignor=uniform
              append g member A [t]; g current A 2<-2 UnrevokedPartitions [t-0@2] revoking [t-1@2 t-2@2]
              A: A in epoch 2, has [t-0]
            > consumers D
              D: Reconciling epoch 4 target 4 uniform: A 2 [t-0 t-1 t-2] -> [t-0]; B 3 [] -> [t-1]; C 4 [] -> [t-2]
        "#]],
    );
}

#[test]
fn targets_are_not_computed_more_often_than_the_interval_says() {
    check(
        "
        ~topic t 2
        ~hb A id=A
        hb B id=B
        wait 999
        hb B id=B epoch=2
        wait 1
        hb B id=B epoch=2
        ",
        expect![[r#"
            > hb B id=B
              append g member B [t]; g epoch 3; g current B 2<-0 Stable []
              B: B in epoch 2, has []
            > wait 999
            > hb B id=B epoch=2
              B: B in epoch 2
            > wait 1
            > hb B id=B epoch=2
              append g target A [t-0]; g target B [t-1]; g target epoch 3; g current B 3<-2 UnreleasedPartitions []
              B: B in epoch 3
        "#]],
    );
}

#[test]
fn a_full_group_lets_no_client_in_who_is_not() {
    let config = immediate_targets();
    let consumer = ConsumerGroupConfig { max_size: 1, ..config.consumer.clone() };
    check_with(
        GroupConfig { consumer, ..config },
        "
        ~topic t 1
        ~hb A id=A
        hb B id=B
        hb A id=A
        ",
        expect![[r#"
            > hb B id=B
              B: GROUP_MAX_SIZE_REACHED
            > hb A id=A
              A: A in epoch 2, has [t-0]
        "#]],
    );
}

#[test]
fn groups_are_listed_described_and_deleted_as_what_they_are() {
    let config = immediate_targets();
    let consumer = ConsumerGroupConfig { assignors: vec![Assignor::Range], ..config.consumer.clone() };
    check_with(
        GroupConfig { consumer, ..config },
        "
        ~topic t 1
        ~hb A id=A
        ~join C g=c
        list L
        list L types=consumer
        list L types=classic
        list L states=assigning
        describe D
        consumers D
        consumers D g=c
        consumers D g=x
        delete X
        ~hb A id=A epoch=-1
        offset-delete O t-0
        delete X
        list L
        ",
        expect![[r#"
            > list L
              L: NONE [c Empty "" classic, g Stable "consumer" consumer]
            > list L types=consumer
              L: NONE [g Stable "consumer" consumer]
            > list L types=classic
              L: NONE [c Empty "" classic]
            > list L states=assigning
              L: NONE []
            > describe D
              D: Dead GROUP_ID_NOT_FOUND Group g is not a classic group.
            > consumers D
              D: Stable epoch 2 target 2 range: A 2 [t-0] -> [t-0]
            > consumers D g=c
              D: GROUP_ID_NOT_FOUND
            > consumers D g=x
              D: GROUP_ID_NOT_FOUND
            > delete X
              X: NON_EMPTY_GROUP
            > offset-delete O t-0
              O: NONE t-0 NONE
            > delete X
              append g target epoch gone; g partition metadata gone; g epoch gone
              X: NONE
            > list L
              L: NONE [c Empty "" classic]
        "#]],
    );
}

#[test]
fn offsets_of_topics_in_use_stay() {
    play(
        "
        ~topic t 1
        ~topic u 1
        ~hb A id=A
        ~commit A id=A gen=2 t-0=5 u-0=6
        offset-delete O t-0 u-0
        wall 700000000
        wait 40000
        ~hb A id=A epoch=2
        fetch F
        ",
        expect![[r#"
            > offset-delete O t-0 u-0
              append g u-0 gone
              O: NONE t-0 GROUP_SUBSCRIBED_TO_TOPIC u-0 NONE
            > wall 700000000
            > wait 40000
            > fetch F
              F: offsets [t-0=5]
        "#]],
    );
}

#[test]
fn another_coordinator_resumes_where_the_last_one_was() {
    play(
        "
        ~topic t 2
        ~hb A id=A
        ~hb B id=B
        ~hb A id=A epoch=2
        reload
        consumers D
        hb A id=A epoch=2 owned=t-0
        hb B id=B epoch=3
        # Sessions have restarted.
        wait 45000
        ",
        expect![[r#"
            > reload
            > consumers D
              D: Reconciling epoch 3 target 3 uniform: A 2 [t-0 t-1] -> [t-0]; B 3 [] -> [t-1]
            > hb A id=A epoch=2 owned=t-0
              append g current A 3<-2 Stable [t-0@2]
              A: A in epoch 3
            > hb B id=B epoch=3
              append g current B 3<-3 Stable [t-1@3]
              B: B in epoch 3, has [t-1]
            > # Sessions have restarted.
            > wait 45000
              at 45000
              append g current A gone; g target A gone; g member A gone; g epoch 4
              append g current B gone; g target B gone; g member B gone; g epoch 5
        "#]],
    );
}

#[test]
fn what_cannot_be_written_has_not_happened() {
    play(
        "
        ~topic t 2
        ~hb A id=A
        hold
        hb B id=B
        hb A id=A epoch=2
        fail 2 NOT_ENOUGH_REPLICAS
        consumers D
        # A's turn was built on B's: it is taken back too, and stated again should it be in the log.
        ok 3
        ok 4
        hb A id=A epoch=2
        ",
        expect![[r#"
            > hold
            > hb B id=B
              append #2 g member B [t]; g epoch 3; g target A [t-0]; g target B [t-1]; g target epoch 3; g current B 3<-0 UnreleasedPartitions []
            > hb A id=A epoch=2
              append #3 g current A 2<-2 UnrevokedPartitions [t-0@2] revoking [t-1@2]
            > fail 2 NOT_ENOUGH_REPLICAS
              B: COORDINATOR_NOT_AVAILABLE
            > consumers D
              D: Stable epoch 2 target 2 uniform: A 2 [t-0 t-1] -> [t-0 t-1]
            > # A's turn was built on B's: it is taken back too, and stated again should it be in the log.
            > ok 3
              append #4 g current A 2<-0 Stable [t-0@2 t-1@2]
              A: COORDINATOR_NOT_AVAILABLE
            > ok 4
            > hb A id=A epoch=2
              A: A in epoch 2
        "#]],
    );
}

#[test]
fn a_group_whose_first_record_fails_is_gone() {
    play(
        "
        hold
        hb A id=A
        list L
        fail 1 KAFKA_STORAGE_ERROR
        list L
        hb A id=A epoch=1
        ",
        expect![[r#"
            > hold
            > hb A id=A
              append #1 g member A [t]; g epoch 2; g target A []; g target epoch 2; g current A 2<-0 Stable []
            > list L
              L: NONE []
            > fail 1 KAFKA_STORAGE_ERROR
              A: NOT_COORDINATOR
            > list L
              L: NONE []
            > hb A id=A epoch=1
              A: GROUP_ID_NOT_FOUND
        "#]],
    );
}

#[test]
fn requests_without_records_wait_for_those_before_them() {
    play(
        "
        ~topic t 1
        hold
        hb A id=A
        hb A id=A epoch=2
        ok 1
        ",
        expect![[r#"
            > hold
            > hb A id=A
              append #1 g member A [t]; g epoch 2; g target A [t-0]; g target epoch 2; g current A 2<-0 Stable [t-0@2]
            > hb A id=A epoch=2
            > ok 1
              A: A in epoch 2, has [t-0]
              A: A in epoch 2
        "#]],
    );
}
