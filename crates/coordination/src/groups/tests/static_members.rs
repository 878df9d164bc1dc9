//! Static members (KIP-345): a member keeps its place under its instance id.

use expect_test::expect;

use super::transcript::{check, check_with, config};
use crate::groups::GroupConfig;

/// A stable group of the static members `i-1` (instance i, leader) and `k-2` (instance k).
const TWO: &str = "
    ~join A instance=i
    ~join B instance=k
    ~wait 6000
    ~sync A id=i-1 instance=i assign=i-1:P0,k-2:P1
    ~sync B id=k-2 instance=k
";

fn with_two(rest: &str) -> String {
    format!("{TWO}{rest}")
}

#[test]
fn a_static_member_joins_without_being_given_its_id_first() {
    check(
        "
        join A instance=i
        join B instance=k
        wait 6000
        sync A id=i-1 instance=i assign=i-1:P0,k-2:P1
        sync B id=k-2 instance=k
        ",
        expect![[r#"
            > join A instance=i
              append g generation 0 []
            > join B instance=k
            > wait 6000
              at 6000
              A: joined as i-1: generation 1, range, leader i-1, members [i-1/i k-2/k]
              B: joined as k-2: generation 1, range, leader i-1, members []
            > sync A id=i-1 instance=i assign=i-1:P0,k-2:P1
              append g generation 1 [i-1=P0 k-2=P1]
              A: synced consumer range: "P0"
            > sync B id=k-2 instance=k
              B: synced consumer range: "P1"
        "#]],
    );
}

#[test]
fn a_static_member_that_comes_back_gets_its_assignment_without_a_rebalance() {
    check(
        &with_two(
            "
            hold
            join B instance=k
            # The new id counts at once, and is answered when it is durable.
            beat B id=k-2 instance=k
            ok 3
            sync B id=k-3 instance=k
            beat B id=k-3 instance=k
            beat A id=i-1 instance=i
            describe D
            ",
        ),
        expect![[r#"
            > hold
            > join B instance=k
              append #3 g generation 1 [i-1=P0 k-3=P1]
            > # The new id counts at once, and is answered when it is durable.
            > beat B id=k-2 instance=k
              B: FENCED_INSTANCE_ID
            > ok 3
              B: joined as k-3: generation 1, range, leader i-1, members []
            > sync B id=k-3 instance=k
              B: synced consumer range: "P1"
            > beat B id=k-3 instance=k
              B: NONE
            > beat A id=i-1 instance=i
              A: NONE
            > describe D
              D: Stable "consumer" "range" [i-1/i c/host metadata 10 bytes, assigned "P0"; k-3/k c/host metadata 10 bytes, assigned "P1"]
        "#]],
    );
}

#[test]
fn a_static_leader_that_comes_back_is_not_asked_to_assign() {
    check(
        &with_two(
            "
            # KIP-814: it still gets the members.
            join A instance=i
            sync A id=i-3 instance=i
            # Before, the old leader's id makes it think that it follows.
            join A v=8 instance=i
            sync A id=i-4 instance=i assign=i-4:everything
            ",
        ),
        expect![[r#"
            > # KIP-814: it still gets the members.
            > join A instance=i
              append g generation 1 [i-3=P0 k-2=P1]
              A: joined as i-3: generation 1, range, leader i-3, members [i-3/i k-2/k], skips the assignment
            > sync A id=i-3 instance=i
              A: synced consumer range: "P0"
            > # Before, the old leader's id makes it think that it follows.
            > join A v=8 instance=i
              append g generation 1 [i-4=P0 k-2=P1]
              A: joined as i-4: generation 1, range, leader i-3, members []
            > sync A id=i-4 instance=i assign=i-4:everything
              A: synced consumer range: "P0"
        "#]],
    );
}

#[test]
fn the_older_holder_of_an_instance_is_fenced() {
    check(
        &with_two(
            "
            join B instance=k
            join B id=k-2 instance=k
            sync B id=k-2 instance=k
            beat B id=k-2 instance=k
            leave B k-2/k
            commit B id=k-2 gen=1 instance=k t-0=1
            # Without the instance it is just unknown, and so is an instance that no member has.
            beat B id=k-2
            beat B id=k-3 instance=x
            beat B id=k-3 instance=i
            ",
        ),
        expect![[r#"
            > join B instance=k
              append g generation 1 [i-1=P0 k-3=P1]
              B: joined as k-3: generation 1, range, leader i-1, members []
            > join B id=k-2 instance=k
              B: FENCED_INSTANCE_ID "k-2"
            > sync B id=k-2 instance=k
              B: FENCED_INSTANCE_ID
            > beat B id=k-2 instance=k
              B: FENCED_INSTANCE_ID
            > leave B k-2/k
              B: left NONE k-2/k FENCED_INSTANCE_ID
            > commit B id=k-2 gen=1 instance=k t-0=1
              B: t-0 FENCED_INSTANCE_ID
            > # Without the instance it is just unknown, and so is an instance that no member has.
            > beat B id=k-2
              B: UNKNOWN_MEMBER_ID
            > beat B id=k-3 instance=x
              B: UNKNOWN_MEMBER_ID
            > beat B id=k-3 instance=i
              B: FENCED_INSTANCE_ID
        "#]],
    );
}

#[test]
fn a_member_that_waits_under_the_old_id_is_fenced() {
    check(
        "
        join A instance=i
        join A2 instance=i
        wait 6000
        join B instance=k
        join A2 id=i-2 instance=i
        sync B id=k-3 instance=k gen=2
        # The leader may be assigning to k-3 now, so its successor makes all rejoin.
        join B2 instance=k
        ",
        expect![[r#"
            > join A instance=i
              append g generation 0 []
            > join A2 instance=i
              A: FENCED_INSTANCE_ID "i-1"
            > wait 6000
              at 3000
              A2: joined as i-2: generation 1, range, leader i-2, members [i-2/i]
            > join B instance=k
            > join A2 id=i-2 instance=i
              A2: joined as i-2: generation 2, range, leader i-2, members [i-2/i k-3/k]
              B: joined as k-3: generation 2, range, leader i-2, members []
            > sync B id=k-3 instance=k gen=2
            > # The leader may be assigning to k-3 now, so its successor makes all rejoin.
            > join B2 instance=k
              B: FENCED_INSTANCE_ID
        "#]],
    );
}

#[test]
fn a_static_member_that_offers_another_protocol_rebalances() {
    check(
        "
        join A instance=i protocols=range,sticky
        join B instance=k protocols=sticky,range
        wait 6000
        sync A id=i-1 instance=i assign=i-1:P0,k-2:P1
        join A instance=i protocols=sticky
        ",
        expect![[r#"
            > join A instance=i protocols=range,sticky
              append g generation 0 []
            > join B instance=k protocols=sticky,range
            > wait 6000
              at 6000
              A: joined as i-1: generation 1, range, leader i-1, members [i-1/i k-2/k]
              B: joined as k-2: generation 1, range, leader i-1, members []
            > sync A id=i-1 instance=i assign=i-1:P0,k-2:P1
              append g generation 1 [i-1=P0 k-2=P1]
              A: synced consumer range: "P0"
            > join A instance=i protocols=sticky
        "#]],
    );
}

#[test]
fn a_static_member_does_not_lose_its_place_in_a_rebalance_but_with_its_session() {
    check(
        &with_two(
            "
            join C v=3
            join A id=i-1 instance=i session=100000
            beat B id=k-2 instance=k
            wait 9000
            beat B id=k-2 instance=k
            wait 9000
            beat B id=k-2 instance=k
            wait 9000
            beat B id=k-2 instance=k
            wait 9000
            beat B id=k-2 instance=k
            wait 9000
            beat B id=k-2 instance=k
            wait 9000
            beat B id=k-2 instance=k
            # The phase is over at 66000 without B, which stays for as long as it is alive.
            wait 9000
            describe D
            wait 9000
            ",
        ),
        expect![[r#"
            > join C v=3
            > join A id=i-1 instance=i session=100000
            > beat B id=k-2 instance=k
              B: REBALANCE_IN_PROGRESS
            > wait 9000
            > beat B id=k-2 instance=k
              B: REBALANCE_IN_PROGRESS
            > wait 9000
            > beat B id=k-2 instance=k
              B: REBALANCE_IN_PROGRESS
            > wait 9000
            > beat B id=k-2 instance=k
              B: REBALANCE_IN_PROGRESS
            > wait 9000
            > beat B id=k-2 instance=k
              B: REBALANCE_IN_PROGRESS
            > wait 9000
            > beat B id=k-2 instance=k
              B: REBALANCE_IN_PROGRESS
            > wait 9000
            > beat B id=k-2 instance=k
              B: REBALANCE_IN_PROGRESS
            > # The phase is over at 66000 without B, which stays for as long as it is alive.
            > wait 9000
              at 66000
              C: joined as c-3: generation 2, range, leader i-1, members []
              A: joined as i-1: generation 2, range, leader i-1, members [c-3 i-1/i k-2/k]
            > describe D
              D: CompletingRebalance "consumer" "" [c-3 c/host metadata 0 bytes, assigned ""; i-1/i c/host metadata 0 bytes, assigned ""; k-2/k c/host metadata 0 bytes, assigned ""]
            > wait 9000
        "#]],
    );
}

#[test]
fn an_administrator_removes_static_members_by_instance() {
    check(
        &with_two(
            "
            leave X /k /x k-2/i
            join A id=i-1 instance=i
            leave X i-1/i
            ",
        ),
        expect![[r#"
            > leave X /k /x k-2/i
              X: left NONE /k NONE /x UNKNOWN_MEMBER_ID k-2/i FENCED_INSTANCE_ID
            > join A id=i-1 instance=i
              A: joined as i-1: generation 2, range, leader i-1, members [i-1/i]
            > leave X i-1/i
              append g generation 3 []
              X: left NONE i-1/i NONE
        "#]],
    );
}

#[test]
fn when_no_static_member_comes_back_their_sessions_decide() {
    check(
        "
        join A instance=i session=100000 rebalance=10000
        join B instance=k session=100000 rebalance=10000
        wait 6000
        sync A id=i-1 instance=i assign=i-1:P0,k-2:P1
        sync B id=k-2 instance=k
        join C v=3 rebalance=10000
        leave X c-3
        wait 30000
        join A id=i-1 instance=i session=100000 rebalance=10000
        wait 10000
        ",
        expect![[r#"
            > join A instance=i session=100000 rebalance=10000
              append g generation 0 []
            > join B instance=k session=100000 rebalance=10000
            > wait 6000
              at 6000
              A: joined as i-1: generation 1, range, leader i-1, members [i-1/i k-2/k]
              B: joined as k-2: generation 1, range, leader i-1, members []
            > sync A id=i-1 instance=i assign=i-1:P0,k-2:P1
              append g generation 1 [i-1=P0 k-2=P1]
              A: synced consumer range: "P0"
            > sync B id=k-2 instance=k
              B: synced consumer range: "P1"
            > join C v=3 rebalance=10000
            > leave X c-3
              C: UNKNOWN_MEMBER_ID ""
              X: left NONE c-3 NONE
            > wait 30000
            > join A id=i-1 instance=i session=100000 rebalance=10000
            > wait 10000
              at 46000
              A: joined as i-1: generation 2, range, leader i-1, members [i-1/i k-2/k]
        "#]],
    );
}

#[test]
fn a_pending_member_cannot_become_static() {
    check(
        "
        join A
        join A id=c-1 instance=i
        ",
        expect![[r#"
            > join A
              A: MEMBER_ID_REQUIRED "c-1"
              append g generation 0 []
            > join A id=c-1 instance=i
              A: INVALID_REQUEST "c-1"
        "#]],
    );
}

#[test]
fn static_members_count_for_the_size_of_the_group() {
    check_with(
        GroupConfig { group_max_size: 2, ..config() },
        &with_two(
            "
            join C instance=m
            # A full group does not admit its successor beside it (KIP-345).
            join B instance=k
            ",
        ),
        expect![[r#"
            > join C instance=m
              C: GROUP_MAX_SIZE_REACHED ""
            > # A full group does not admit its successor beside it (KIP-345).
            > join B instance=k
              B: GROUP_MAX_SIZE_REACHED ""
        "#]],
    );
}
