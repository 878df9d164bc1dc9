//! The consumer protocol (KIP-848), sentence by sentence.

use expect_test::expect;

use super::transcript::{check, check_with, config};
use crate::groups::{Assignor, ConsumerGroupConfig, GroupConfig, GroupTimes};

/// Targets are computed whenever the epoch moves, so that scripts need no waits.
pub(super) fn at_once() -> GroupConfig {
    let times =
        GroupTimes { session_timeout_ms: 45_000, heartbeat_interval_ms: 5_000, assignment_interval_ms: 0 };
    GroupConfig { consumer: ConsumerGroupConfig { times, ..Default::default() }, ..config() }
}

#[track_caller]
fn play(script: &str, expect: expect_test::Expect) {
    check_with(at_once(), script, expect);
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
        expect![[""]],
    );
}

#[test]
fn a_second_member_gets_what_the_first_has_given_up() {
    play(
        "
        ~topic t 4
        ~hb A id=A
        hb B id=B
        # A is told to give up in its old epoch, and has the time of its rebalance time-out for it.
        hb A id=A epoch=2
        consumers D
        # B has nothing until A says that it gave up.
        hb B id=B epoch=3
        hb A id=A epoch=2 owned=t-0,t-1
        hb B id=B epoch=3
        consumers D
        ",
        expect![[""]],
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
        expect![[""]],
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
        expect![[""]],
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
        expect![[""]],
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
        # Without saying what it has nobody can know.
        hb A id=A epoch=2
        hb A id=A epoch=1 owned=none
        ",
        expect![[""]],
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
        expect![[""]],
    );
}

#[test]
fn requests_are_checked_before_their_group_is() {
    play(
        "
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
        expect![[""]],
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
        # A topic that nobody subscribes to changes nothing.
        topic v 1
        hb A id=A epoch=5 owned=u-0
        ",
        expect![[""]],
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
        expect![[""]],
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
        expect![[""]],
    );
}

#[test]
fn a_static_member_leaves_for_a_while_and_its_next_incarnation_has_its_partitions() {
    play(
        "
        ~topic t 2
        ~hb A id=A instance=i
        # Nobody else may have the instance id while its member is there.
        hb X id=X instance=i
        hb A id=A epoch=-2 instance=i
        hb B id=B instance=i
        hb A id=A epoch=2 instance=i
        hb A id=A epoch=-1 instance=i
        hb B id=B epoch=-1 instance=j
        ",
        expect![[""]],
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
        expect![[""]],
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
        expect![[""]],
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
        expect![[""]],
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
        expect![[""]],
    );
}

#[test]
fn a_full_group_lets_nobody_in_who_is_not() {
    let config = at_once();
    let consumer = ConsumerGroupConfig { max_size: 1, ..config.consumer.clone() };
    check_with(
        GroupConfig { consumer, ..config },
        "
        ~topic t 1
        ~hb A id=A
        hb B id=B
        hb A id=A
        ",
        expect![[""]],
    );
}

#[test]
fn groups_are_listed_described_and_deleted_as_what_they_are() {
    let config = at_once();
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
        expect![[""]],
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
        expect![[""]],
    );
}

#[test]
fn another_coordinator_goes_on_where_the_last_one_was() {
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
        # Sessions have begun anew.
        wait 45000
        ",
        expect![[""]],
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
        expect![[""]],
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
        expect![[""]],
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
        expect![[""]],
    );
}
