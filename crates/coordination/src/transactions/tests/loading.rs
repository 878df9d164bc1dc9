//! Coordinators that come and go.

use expect_test::expect;

use super::transcript::{check, check_after, played, stored};
use crate::transactions::TransactionConfig;
use crate::transactions::state::State;

#[test]
fn who_is_not_the_coordinator_says_so() {
    check(
        "
        init A
        add A t-0
        unload X
        init A
        init A idempotent
        add A t-0
        add A verify t-0
        offsets A
        end A commit
        end A v=4 commit
        describe D ids=t,u
        list L
        begin-load X
        init A
        add A t-0
        add A verify t-0
        offsets A
        end A commit
        describe D
        list L
        ",
        expect![[r#"
            > init A
              wants a producer id
              append t Empty 1000/0 []
              A: producer 1000/0
            > add A t-0
              append t Ongoing 1000/0 [t-0]
              A: t-0 NONE
            > unload X
            > init A
              A: NOT_COORDINATOR
            > init A idempotent
              wants a producer id
              A: producer 1001/0
            > add A t-0
              A: t-0 NOT_COORDINATOR
            > add A verify t-0
              A: t-0 NOT_COORDINATOR
            > offsets A
              A: NOT_COORDINATOR
            > end A commit
              A: NOT_COORDINATOR
            > end A v=4 commit
              A: NOT_COORDINATOR
            > describe D ids=t,u
              D: t NOT_COORDINATOR; u NOT_COORDINATOR
            > list L
              L: NONE []
            > begin-load X
            > init A
              A: COORDINATOR_LOAD_IN_PROGRESS
            > add A t-0
              A: t-0 COORDINATOR_LOAD_IN_PROGRESS
            > add A verify t-0
              A: t-0 COORDINATOR_LOAD_IN_PROGRESS
            > offsets A
              A: COORDINATOR_LOAD_IN_PROGRESS
            > end A commit
              A: COORDINATOR_LOAD_IN_PROGRESS
            > describe D
              D: t COORDINATOR_LOAD_IN_PROGRESS
            > list L
              L: COORDINATOR_LOAD_IN_PROGRESS []
        "#]],
    );
}

#[test]
fn those_who_wait_are_asked_to_look_elsewhere() {
    check(
        "
        init A
        init B id=u
        add B id=u pid=1001 t-0
        hold
        init A
        add A id=v t-0
        end B id=u pid=1001 commit
        hold-ids
        init C id=w
        init D idempotent
        reload
        # Too late, for a coordinator that is gone.
        id 8
        ",
        expect![[r#"
            > init A
              wants a producer id
              append t Empty 1000/0 []
              A: producer 1000/0
            > init B id=u
              wants a producer id
              append u Empty 1001/0 []
              B: producer 1001/0
            > add B id=u pid=1001 t-0
              append u Ongoing 1001/0 [t-0]
              B: t-0 NONE
            > hold
            > init A
              append #6 t Empty 1000/1 []
            > add A id=v t-0
              A: t-0 INVALID_PRODUCER_ID_MAPPING
            > end B id=u pid=1001 commit
              append #7 u PrepareCommit 1001/1 [t-0]
            > hold-ids
            > init C id=w
              wants a producer id #8
            > init D idempotent
              wants a producer id #9
            > reload
              A: NOT_COORDINATOR
              B: NOT_COORDINATOR
              C: NOT_COORDINATOR
            > # Too late, for a coordinator that is gone.
            > id 8
        "#]],
    );
}

#[test]
fn a_decided_transaction_is_ended_by_the_next_coordinator() {
    check(
        "
        init A
        add A t-0 t-1
        hold-markers
        end A commit
        mark 5 t-0
        crash 0
        mark 1 t-0
        mark 1 t-1
        end A commit
        ",
        expect![[r#"
            > init A
              wants a producer id
              append t Empty 1000/0 []
              A: producer 1000/0
            > add A t-0 t-1
              append t Ongoing 1000/0 [t-0 t-1]
              A: t-0 NONE, t-1 NONE
            > hold-markers
            > end A commit
              append t PrepareCommit 1000/1 [t-0 t-1]
              A: NONE, go on as 1000/1
              markers #5 t commit 1000/1 version 2 coordinator 1 [t-0 t-1]
            > mark 5 t-0
            > crash 0
              markers #1 t commit 1000/1 version 2 coordinator 2 [t-0 t-1]
            > mark 1 t-0
            > mark 1 t-1
              append t CompleteCommit 1000/1 []
            > end A commit
              A: NONE, go on as 1000/1
        "#]],
    );
}

#[test]
fn what_reached_the_log_unnoticed_counts() {
    check(
        "
        init A
        add A t-0
        hold
        end A abort
        crash 1
        go
        end A abort
        init A
        ",
        expect![[r#"
            > init A
              wants a producer id
              append t Empty 1000/0 []
              A: producer 1000/0
            > add A t-0
              append t Ongoing 1000/0 [t-0]
              A: t-0 NONE
            > hold
            > end A abort
              append #4 t PrepareAbort 1000/1 [t-0]
            > crash 1
              markers t abort 1000/1 version 2 coordinator 2 [t-0]
              append #2 t CompleteAbort 1000/1 []
            > go
            > end A abort
              A: NONE, go on as 1000/1
            > init A
              append t Empty 1000/2 []
              A: producer 1000/2
        "#]],
    );
}

#[test]
fn what_did_not_reach_the_log_has_not_happened() {
    check(
        "
        init A
        add A t-0
        hold
        end A abort
        crash 0
        go
        end A commit
        ",
        expect![[r#"
            > init A
              wants a producer id
              append t Empty 1000/0 []
              A: producer 1000/0
            > add A t-0
              append t Ongoing 1000/0 [t-0]
              A: t-0 NONE
            > hold
            > end A abort
              append #4 t PrepareAbort 1000/1 [t-0]
            > crash 0
            > go
            > end A commit
              append t PrepareCommit 1000/1 [t-0]
              A: NONE, go on as 1000/1
              markers t commit 1000/1 version 2 coordinator 2 [t-0]
              append t CompleteCommit 1000/1 []
        "#]],
    );
}

#[test]
fn an_ongoing_transaction_has_the_time_that_is_left() {
    check(
        "
        init A timeout=60000
        add A t-0
        wait 45000
        crash 0
        wait 10000
        describe D
        wait 10000
        ",
        expect![[r#"
            > init A timeout=60000
              wants a producer id
              append t Empty 1000/0 []
              A: producer 1000/0
            > add A t-0
              append t Ongoing 1000/0 [t-0]
              A: t-0 NONE
            > wait 45000
            > crash 0
            > wait 10000
            > describe D
              D: t Ongoing 1000/0 timeout 60000 since 1000000 [t-0]
            > wait 10000
              at 65000
              append t PrepareAbort 1000/1 [t-0]
              markers t abort 1000/1 version 2 coordinator 2 [t-0]
              append t CompleteAbort 1000/1 []
        "#]],
    );
}

#[test]
fn a_wall_clock_that_went_back_gives_no_more_than_the_time_out() {
    check_after(
        TransactionConfig::default(),
        vec![stored("t", State::Ongoing, (7, 0), &["t-0"])],
        "
        wall -500000
        crash 0
        wait 60000
        wait 10000
        ",
        expect![[r#"
            > wall -500000
            > crash 0
            > wait 60000
            > wait 10000
              at 70000
              append t PrepareAbort 7/1 [t-0]
              markers t abort 7/1 version 2 coordinator 2 [t-0]
              append t CompleteAbort 7/1 []
        "#]],
    );
}

#[test]
fn a_last_epoch_that_is_being_ended_is_ended_by_the_next_coordinator() {
    check_after(
        TransactionConfig::default(),
        vec![stored("t", State::Ongoing, (7, 32_766), &["t-0"])],
        "
        hold-markers
        end A pid=7 epoch=32766 commit
        crash 0
        go
        end A pid=7 epoch=32766 commit
        add A t-0
        ",
        expect![[r#"
            > hold-markers
            > end A pid=7 epoch=32766 commit
              wants a producer id
              append t PrepareCommit 7/32767, next 1000 [t-0]
              A: NONE, go on as 1000/0
              markers #3 t commit 7/32767 version 2 coordinator 1 [t-0]
            > crash 0
              markers #1 t commit 7/32767 version 2 coordinator 2 [t-0]
            > go
              append t CompleteCommit 1000/0, before 7 []
            > end A pid=7 epoch=32766 commit
              A: NONE, go on as 1000/0
            > add A t-0
              append t Ongoing 1000/0 [t-0]
              A: t-0 NONE
        "#]],
    );
}

/// Two threads may say the same of a topic that was just created, one of them after a partition was taken over.
#[test]
fn the_number_of_partitions_may_be_said_again_while_one_is_served() {
    let mut coordinator = played("init A");
    // That of the clusters of these tests.
    coordinator.set_partition_count(1);
    coordinator.check();
}
