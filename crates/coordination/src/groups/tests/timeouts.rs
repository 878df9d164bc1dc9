//! Time-outs of groups, and waits that no time-out ends.

use expect_test::expect;

use super::membership::with_two;
use super::transcript::check;

#[test]
fn a_member_that_is_silent_for_its_session_is_out() {
    check(
        &with_two(
            "
            wait 6000
            beat A id=c-1
            wait 6000
            beat A id=c-1
            join A id=c-1
            ",
        ),
        expect![[r#"
            > wait 6000
            > beat A id=c-1
              A: NONE
            > wait 6000
            > beat A id=c-1
              A: REBALANCE_IN_PROGRESS
            > join A id=c-1
              A: joined as c-1: generation 2, range, leader c-1, members [c-1]
        "#]],
    );
}

#[test]
fn commits_keep_a_session_alive_and_so_does_a_heartbeat_in_a_rebalance() {
    check(
        &with_two(
            "
            wait 6000
            commit A id=c-1 gen=1 t-0=1
            beat B id=c-2
            wait 6000
            beat B id=c-2
            join B id=c-2 protocols=range:t
            wait 6000
            beat A id=c-1
            wait 6000
            beat A id=c-1
            ",
        ),
        expect![[r#"
            > wait 6000
            > commit A id=c-1 gen=1 t-0=1
              append g t-0=1
              A: t-0 NONE
            > beat B id=c-2
              B: NONE
            > wait 6000
            > beat B id=c-2
              B: NONE
            > join B id=c-2 protocols=range:t
            > wait 6000
              at 22000
              B: joined as c-2: generation 2, range, leader c-2, members [c-2]
            > beat A id=c-1
              A: UNKNOWN_MEMBER_ID
            > wait 6000
            > beat A id=c-1
              A: UNKNOWN_MEMBER_ID
        "#]],
    );
}

#[test]
fn the_last_session_ends_and_the_group_is_empty() {
    check(
        &with_two("wait 30000"),
        expect![[r#"
        > wait 30000
          at 16000
          append g generation 2 []
    "#]],
    );
}

#[test]
fn a_wall_clock_that_jumps_ends_nothing() {
    check(
        &with_two(
            "
            wall 1000000000
            wait 1
            beat A id=c-1
            wall -2000000000
            wait 1
            beat A id=c-1
            beat B id=c-2
            ",
        ),
        expect![[r#"
            > wall 1000000000
            > wait 1
            > beat A id=c-1
              A: NONE
            > wall -2000000000
            > wait 1
            > beat A id=c-1
              A: NONE
            > beat B id=c-2
              B: NONE
        "#]],
    );
}

#[test]
fn dynamic_members_that_do_not_rejoin_in_time_are_out() {
    check(
        &with_two(
            "
            join B id=c-2 protocols=range:t rebalance=20000
            wait 8000
            beat A id=c-1
            wait 8000
            beat A id=c-1
            wait 8000
            beat A id=c-1
            wait 8000
            beat A id=c-1
            wait 8000
            beat A id=c-1
            wait 8000
            beat A id=c-1
            wait 8000
            beat A id=c-1
            wait 8000
            beat A id=c-1
            ",
        ),
        expect![[r#"
            > join B id=c-2 protocols=range:t rebalance=20000
            > wait 8000
            > beat A id=c-1
              A: REBALANCE_IN_PROGRESS
            > wait 8000
            > beat A id=c-1
              A: REBALANCE_IN_PROGRESS
            > wait 8000
            > beat A id=c-1
              A: REBALANCE_IN_PROGRESS
            > wait 8000
            > beat A id=c-1
              A: REBALANCE_IN_PROGRESS
            > wait 8000
            > beat A id=c-1
              A: REBALANCE_IN_PROGRESS
            > wait 8000
            > beat A id=c-1
              A: REBALANCE_IN_PROGRESS
            > wait 8000
            > beat A id=c-1
              A: REBALANCE_IN_PROGRESS
            > wait 8000
              at 66000
              B: joined as c-2: generation 2, range, leader c-2, members [c-2]
            > beat A id=c-1
              A: UNKNOWN_MEMBER_ID
        "#]],
    );
}

#[test]
fn a_member_that_was_given_its_id_must_come_back_within_its_session() {
    check(
        "
        join A session=6000
        wait 5999
        join A id=c-1
        join B session=6000
        wait 6000
        join B id=c-2
        ",
        expect![[r#"
            > join A session=6000
              A: MEMBER_ID_REQUIRED "c-1"
              append g generation 0 []
            > wait 5999
            > join A id=c-1
            > join B session=6000
              B: MEMBER_ID_REQUIRED "c-2"
            > wait 6000
              at 8999
              A: joined as c-1: generation 1, range, leader c-1, members [c-1]
            > join B id=c-2
              B: UNKNOWN_MEMBER_ID "c-2"
        "#]],
    );
}

#[test]
fn a_group_whose_members_never_came_back_is_listed_until_it_expires() {
    check(
        "
        join A session=6000
        list L
        wait 6000
        list L
        wait 600000
        list L
        ",
        expect![[r#"
            > join A session=6000
              A: MEMBER_ID_REQUIRED "c-1"
              append g generation 0 []
            > list L
              L: NONE [g Empty "" classic]
            > wait 6000
            > list L
              L: NONE [g Empty "" classic]
            > wait 600000
              at 600000
              append g gone
            > list L
              L: NONE []
        "#]],
    );
}

#[test]
fn a_rebalance_waits_for_a_member_that_was_given_its_id() {
    check(
        &with_two(
            "
            join C session=6000
            join B id=c-2 protocols=range:t
            join A id=c-1
            wait 5999
            wait 1
            ",
        ),
        expect![[r#"
            > join C session=6000
              C: MEMBER_ID_REQUIRED "c-3"
            > join B id=c-2 protocols=range:t
            > join A id=c-1
            > wait 5999
            > wait 1
              at 12000
              A: joined as c-1: generation 2, range, leader c-1, members [c-1 c-2]
              B: joined as c-2: generation 2, range, leader c-1, members []
        "#]],
    );
}

#[test]
fn members_that_do_not_sync_in_time_are_out() {
    check(
        "
        join A v=3 session=60000 rebalance=10000
        join B v=3 session=60000 rebalance=10000
        wait 6000
        sync A id=c-1 assign=c-1:P0,c-2:P1
        wait 9999
        beat A id=c-1
        wait 1
        beat A id=c-1
        beat B id=c-2
        ",
        expect![[r#"
            > join A v=3 session=60000 rebalance=10000
              append g generation 0 []
            > join B v=3 session=60000 rebalance=10000
            > wait 6000
              at 6000
              A: joined as c-1: generation 1, range, leader c-1, members [c-1 c-2]
              B: joined as c-2: generation 1, range, leader c-1, members []
            > sync A id=c-1 assign=c-1:P0,c-2:P1
              append g generation 1 [c-1=P0 c-2=P1]
              A: synced consumer range: "P0"
            > wait 9999
            > beat A id=c-1
              A: NONE
            > wait 1
            > beat A id=c-1
              A: REBALANCE_IN_PROGRESS
            > beat B id=c-2
              B: UNKNOWN_MEMBER_ID
        "#]],
    );
}

#[test]
fn followers_wait_in_vain_for_a_leader_that_does_not_sync() {
    check(
        "
        join A v=3 session=60000 rebalance=10000
        join B v=3 session=60000 rebalance=10000
        wait 6000
        sync B id=c-2
        wait 10000
        ",
        expect![[r#"
            > join A v=3 session=60000 rebalance=10000
              append g generation 0 []
            > join B v=3 session=60000 rebalance=10000
            > wait 6000
              at 6000
              A: joined as c-1: generation 1, range, leader c-1, members [c-1 c-2]
              B: joined as c-2: generation 1, range, leader c-1, members []
            > sync B id=c-2
            > wait 10000
              at 16000
              B: REBALANCE_IN_PROGRESS
        "#]],
    );
}

#[test]
fn a_session_does_not_end_while_the_member_waits_for_us() {
    check(
        "
        join A v=3 session=30000 rebalance=40000
        join B v=3 session=6000 rebalance=40000
        wait 6000
        # B waits for the assignment, then for A to rejoin, longer than its session lasts.
        sync B id=c-2
        wait 20000
        sync A id=c-1 assign=c-1:P
        wait 5999
        join B id=c-2 session=6000 protocols=range:t
        wait 20000
        join A id=c-1 session=30000
        # From its answer on the session counts again.
        wait 6000
        beat B id=c-2 gen=2
        ",
        expect![[r#"
            > join A v=3 session=30000 rebalance=40000
              append g generation 0 []
            > join B v=3 session=6000 rebalance=40000
            > wait 6000
              at 6000
              A: joined as c-1: generation 1, range, leader c-1, members [c-1 c-2]
              B: joined as c-2: generation 1, range, leader c-1, members []
            > # B waits for the assignment, then for A to rejoin, longer than its session lasts.
            > sync B id=c-2
            > wait 20000
            > sync A id=c-1 assign=c-1:P
              append g generation 1 [c-1=P c-2=]
              A: synced consumer range: "P"
              B: synced consumer range: ""
            > wait 5999
            > join B id=c-2 session=6000 protocols=range:t
            > wait 20000
            > join A id=c-1 session=30000
              A: joined as c-1: generation 2, range, leader c-1, members [c-1 c-2]
              B: joined as c-2: generation 2, range, leader c-1, members []
            > # From its answer on the session counts again.
            > wait 6000
            > beat B id=c-2 gen=2
              B: UNKNOWN_MEMBER_ID
        "#]],
    );
}

#[test]
fn a_new_member_does_not_wait_for_ever() {
    check(
        "
        join A v=3 session=1800000 rebalance=1700000
        wait 3000
        sync A id=c-1 assign=c-1:P
        join B v=3 session=1800000 rebalance=1700000
        wait 299999
        wait 1
        beat A id=c-1
        join A id=c-1 session=1800000
        ",
        expect![[r#"
            > join A v=3 session=1800000 rebalance=1700000
              append g generation 0 []
            > wait 3000
              at 3000
              A: joined as c-1: generation 1, range, leader c-1, members [c-1]
            > sync A id=c-1 assign=c-1:P
              append g generation 1 [c-1=P]
              A: synced consumer range: "P"
            > join B v=3 session=1800000 rebalance=1700000
            > wait 299999
            > wait 1
              at 303000
              B: UNKNOWN_MEMBER_ID ""
            > beat A id=c-1
              A: REBALANCE_IN_PROGRESS
            > join A id=c-1 session=1800000
              A: joined as c-1: generation 2, range, leader c-1, members [c-1]
        "#]],
    );
}

#[test]
fn a_rebalance_time_out_of_nothing_does_not_stop_the_time() {
    check(
        "
        join A v=3 rebalance=0
        wait 3000
        sync A id=c-1 assign=c-1:P
        join B v=3 rebalance=0
        wait 5
        sync B id=c-2 gen=2 assign=c-2:P
        ",
        expect![[r#"
            > join A v=3 rebalance=0
              append g generation 0 []
            > wait 3000
              at 3000
              A: joined as c-1: generation 1, range, leader c-1, members [c-1]
            > sync A id=c-1 assign=c-1:P
              append g generation 1 [c-1=P]
              A: synced consumer range: "P"
            > join B v=3 rebalance=0
            > wait 5
              at 3001
              B: joined as c-2: generation 2, range, leader c-2, members [c-2]
              at 3002
              append g generation 3 []
            > sync B id=c-2 gen=2 assign=c-2:P
              B: UNKNOWN_MEMBER_ID
        "#]],
    );
}
