//! Members join, sync, rejoin and leave.

use expect_test::expect;

use super::transcript::{check, check_with, config};
use crate::groups::GroupConfig;

/// A stable group of `c-1` (leader) and `c-2`, both dynamic.
pub(super) const TWO: &str = "
    ~join - id=
    ~join A id=c-1
    ~join - id=
    ~join B id=c-2
    ~wait 6000
    ~sync A id=c-1 assign=c-1:P0,c-2:P1
    ~sync B id=c-2
";

/// A script that begins with that group.
pub(super) fn with_two(rest: &str) -> String {
    format!("{TWO}{rest}")
}

#[test]
fn a_new_member_is_given_its_id_then_leads_then_assigns() {
    check(
        "
        join A
        join A id=c-1
        wait 3000
        sync A id=c-1 gen=1 assign=c-1:P0
        beat A id=c-1 gen=1
        ",
        expect![[r#"
            > join A
              A: MEMBER_ID_REQUIRED "c-1"
              append g generation 0 []
            > join A id=c-1
            > wait 3000
              at 3000
              A: joined as c-1: generation 1, range, leader c-1, members [c-1]
            > sync A id=c-1 gen=1 assign=c-1:P0
              append g generation 1 [c-1=P0]
              A: synced consumer range: "P0"
            > beat A id=c-1 gen=1
              A: NONE
        "#]],
    );
}

#[test]
fn before_kip_394_a_new_member_joins_at_once() {
    check(
        "
        join A v=3
        join B v=0
        wait 6000
        ",
        expect![[r#"
            > join A v=3
              append g generation 0 []
            > join B v=0
            > wait 6000
              at 6000
              A: joined as c-1: generation 1, range, leader c-1, members [c-1 c-2]
              B: joined as c-2: generation 1, range, leader c-1, members []
        "#]],
    );
}

#[test]
fn the_initial_delay_is_extended_while_members_join_up_to_the_rebalance_time_out() {
    check(
        "
        join A v=3 rebalance=7000
        wait 2000
        join B v=3 rebalance=7000
        wait 2000
        join C v=3 rebalance=7000
        wait 10000
        ",
        expect![[r#"
            > join A v=3 rebalance=7000
              append g generation 0 []
            > wait 2000
            > join B v=3 rebalance=7000
            > wait 2000
            > join C v=3 rebalance=7000
            > wait 10000
              at 7000
              A: joined as c-1: generation 1, range, leader c-1, members [c-1 c-2 c-3]
              B: joined as c-2: generation 1, range, leader c-1, members []
              C: joined as c-3: generation 1, range, leader c-1, members []
              at 14000
              append g generation 2 []
        "#]],
    );
}

#[test]
fn followers_wait_for_the_leaders_assignment() {
    check(
        "
        join A v=3
        join B v=3
        wait 6000
        sync B id=c-2 gen=1
        beat B id=c-2 gen=1
        sync A id=c-1 gen=1 assign=c-1:P0
        sync B id=c-2 gen=1
        # B was not given anything: it has an empty assignment.
        ",
        expect![[r#"
            > join A v=3
              append g generation 0 []
            > join B v=3
            > wait 6000
              at 6000
              A: joined as c-1: generation 1, range, leader c-1, members [c-1 c-2]
              B: joined as c-2: generation 1, range, leader c-1, members []
            > sync B id=c-2 gen=1
            > beat B id=c-2 gen=1
              B: NONE
            > sync A id=c-1 gen=1 assign=c-1:P0
              append g generation 1 [c-1=P0 c-2=]
              A: synced consumer range: "P0"
              B: synced consumer range: ""
            > sync B id=c-2 gen=1
              B: synced consumer range: ""
            > # B was not given anything: it has an empty assignment.
        "#]],
    );
}

#[test]
fn a_newcomer_makes_the_others_rejoin_eagerly() {
    check(
        &with_two(
            "
            join C
            join C id=c-3
            beat A id=c-1
            beat B id=c-2
            commit A id=c-1 gen=1 t-0=7
            sync A id=c-1
            join A id=c-1
            join B id=c-2
            beat A id=c-1 gen=1
            sync A id=c-1 gen=2 assign=c-1:P0,c-2:P1,c-3:P2
            sync B id=c-2 gen=2
            sync C id=c-3 gen=2
            ",
        ),
        expect![[r#"
            > join C
              C: MEMBER_ID_REQUIRED "c-3"
            > join C id=c-3
            > beat A id=c-1
              A: REBALANCE_IN_PROGRESS
            > beat B id=c-2
              B: REBALANCE_IN_PROGRESS
            > commit A id=c-1 gen=1 t-0=7
              append g t-0=7
              A: t-0 NONE
            > sync A id=c-1
              A: REBALANCE_IN_PROGRESS
            > join A id=c-1
            > join B id=c-2
              A: joined as c-1: generation 2, range, leader c-1, members [c-1 c-2 c-3]
              B: joined as c-2: generation 2, range, leader c-1, members []
              C: joined as c-3: generation 2, range, leader c-1, members []
            > beat A id=c-1 gen=1
              A: ILLEGAL_GENERATION
            > sync A id=c-1 gen=2 assign=c-1:P0,c-2:P1,c-3:P2
              append g generation 2 [c-1=P0 c-2=P1 c-3=P2]
              A: synced consumer range: "P0"
            > sync B id=c-2 gen=2
              B: synced consumer range: "P1"
            > sync C id=c-3 gen=2
              C: synced consumer range: "P2"
        "#]],
    );
}

#[test]
fn cooperative_members_rebalance_twice_the_leader_asking_for_the_second() {
    check(
        "
        join A v=3 protocols=cooperative-sticky:t
        wait 3000
        sync A id=c-1 gen=1 assign=c-1:P0+P1
        join B v=3 protocols=cooperative-sticky:t
        beat A id=c-1 gen=1
        # A keeps what it has while it rejoins; B gets nothing that A has not revoked.
        join A id=c-1 protocols=cooperative-sticky:t-owns-P0-P1
        sync B id=c-2 gen=2
        sync A id=c-1 gen=2 assign=c-1:P0,c-2:
        # Having given P1 up, A joins again.
        join A id=c-1 protocols=cooperative-sticky:t-owns-P0
        beat B id=c-2 gen=2
        join B id=c-2 protocols=cooperative-sticky:t
        sync A id=c-1 gen=3 assign=c-1:P0,c-2:P1
        sync B id=c-2 gen=3
        ",
        expect![[r#"
            > join A v=3 protocols=cooperative-sticky:t
              append g generation 0 []
            > wait 3000
              at 3000
              A: joined as c-1: generation 1, cooperative-sticky, leader c-1, members [c-1]
            > sync A id=c-1 gen=1 assign=c-1:P0+P1
              append g generation 1 [c-1=P0+P1]
              A: synced consumer cooperative-sticky: "P0+P1"
            > join B v=3 protocols=cooperative-sticky:t
            > beat A id=c-1 gen=1
              A: REBALANCE_IN_PROGRESS
            > # A keeps what it has while it rejoins; B gets nothing that A has not revoked.
            > join A id=c-1 protocols=cooperative-sticky:t-owns-P0-P1
              A: joined as c-1: generation 2, cooperative-sticky, leader c-1, members [c-1 c-2]
              B: joined as c-2: generation 2, cooperative-sticky, leader c-1, members []
            > sync B id=c-2 gen=2
            > sync A id=c-1 gen=2 assign=c-1:P0,c-2:
              append g generation 2 [c-1=P0 c-2=]
              A: synced consumer cooperative-sticky: "P0"
              B: synced consumer cooperative-sticky: ""
            > # Having given P1 up, A joins again.
            > join A id=c-1 protocols=cooperative-sticky:t-owns-P0
            > beat B id=c-2 gen=2
              B: REBALANCE_IN_PROGRESS
            > join B id=c-2 protocols=cooperative-sticky:t
              A: joined as c-1: generation 3, cooperative-sticky, leader c-1, members [c-1 c-2]
              B: joined as c-2: generation 3, cooperative-sticky, leader c-1, members []
            > sync A id=c-1 gen=3 assign=c-1:P0,c-2:P1
              append g generation 3 [c-1=P0 c-2=P1]
              A: synced consumer cooperative-sticky: "P0"
            > sync B id=c-2 gen=3
              B: synced consumer cooperative-sticky: "P1"
        "#]],
    );
}

#[test]
fn a_follower_that_has_nothing_new_gets_the_generation_again_a_leader_rebalances() {
    check(
        &with_two(
            "
            join B id=c-2
            sync B id=c-2
            join A id=c-1
            beat B id=c-2
            ",
        ),
        expect![[r#"
            > join B id=c-2
              B: joined as c-2: generation 1, range, leader c-1, members []
            > sync B id=c-2
              B: synced consumer range: "P1"
            > join A id=c-1
            > beat B id=c-2
              B: REBALANCE_IN_PROGRESS
        "#]],
    );
}

#[test]
fn a_follower_that_offers_something_else_rebalances() {
    check(
        &with_two(
            "
            join B id=c-2 protocols=range:t
            join A id=c-1
            # In the phase of assignments a lost answer is given again, news begin another rebalance.
            join A id=c-1
            sync A id=c-1 gen=2
            join B id=c-2 protocols=range:u
            ",
        ),
        expect![[r#"
            > join B id=c-2 protocols=range:t
            > join A id=c-1
              A: joined as c-1: generation 2, range, leader c-1, members [c-1 c-2]
              B: joined as c-2: generation 2, range, leader c-1, members []
            > # In the phase of assignments a lost answer is given again, news begin another rebalance.
            > join A id=c-1
              A: joined as c-1: generation 2, range, leader c-1, members [c-1 c-2]
            > sync A id=c-1 gen=2
              append g generation 2 [c-1= c-2=]
              A: synced consumer range: ""
            > join B id=c-2 protocols=range:u
        "#]],
    );
}

#[test]
fn the_protocol_is_the_one_that_most_members_prefer_of_those_all_offer() {
    check(
        "
        join A v=3 protocols=sticky,range,own
        join B v=3 protocols=range,sticky
        join C v=3 protocols=other,range,sticky
        wait 9000
        join D v=3 protocols=unknown
        join D v=3 type=connect protocols=range
        join D v=3 type= protocols=range g=h
        join D v=3 id=c-1 protocols=unknown
        list L
        ",
        expect![[r#"
            > join A v=3 protocols=sticky,range,own
              append g generation 0 []
            > join B v=3 protocols=range,sticky
            > join C v=3 protocols=other,range,sticky
            > wait 9000
              at 6000
              A: joined as c-1: generation 1, range, leader c-1, members [c-1 c-2 c-3]
              B: joined as c-2: generation 1, range, leader c-1, members []
              C: joined as c-3: generation 1, range, leader c-1, members []
            > join D v=3 protocols=unknown
              D: INCONSISTENT_GROUP_PROTOCOL ""
            > join D v=3 type=connect protocols=range
              D: INCONSISTENT_GROUP_PROTOCOL ""
            > join D v=3 type= protocols=range g=h
              D: INCONSISTENT_GROUP_PROTOCOL ""
            > join D v=3 id=c-1 protocols=unknown
              D: INCONSISTENT_GROUP_PROTOCOL "c-1"
            > list L
              L: NONE [g CompletingRebalance "consumer" classic]
        "#]],
    );
}

#[test]
fn requests_of_an_unknown_member_or_of_another_generation_are_refused() {
    check(
        &with_two(
            "
            join X id=c-9
            join X id=c-9 g=h
            join X g=
            join X session=5999
            join X session=1800001
            sync X id=c-9
            sync X id=c-1 gen=2
            sync X id=c-1 type=connect
            sync X id=c-1 protocol=sticky
            sync X id=c-1 type=consumer protocol=range
            sync X g=h
            sync X g=
            beat X id=c-9
            beat X id=c-1 gen=0
            beat X id=c-1 g=h
            beat X g=
            leave X c-9
            leave X v=2 c-9
            leave X c-1 g=h
            leave X v=1 c-1 g=h
            leave X g=
            commit X id=c-9 gen=1 t-0=1
            commit X id=c-1 gen=2 t-0=1
            commit X t-0=1
            ",
        ),
        expect![[r#"
            > join X id=c-9
              X: UNKNOWN_MEMBER_ID "c-9"
            > join X id=c-9 g=h
              X: UNKNOWN_MEMBER_ID "c-9"
            > join X g=
              X: INVALID_GROUP_ID ""
            > join X session=5999
              X: INVALID_SESSION_TIMEOUT ""
            > join X session=1800001
              X: INVALID_SESSION_TIMEOUT ""
            > sync X id=c-9
              X: UNKNOWN_MEMBER_ID
            > sync X id=c-1 gen=2
              X: ILLEGAL_GENERATION
            > sync X id=c-1 type=connect
              X: INCONSISTENT_GROUP_PROTOCOL
            > sync X id=c-1 protocol=sticky
              X: INCONSISTENT_GROUP_PROTOCOL
            > sync X id=c-1 type=consumer protocol=range
              X: synced consumer range: "P0"
            > sync X g=h
              X: UNKNOWN_MEMBER_ID
            > sync X g=
              X: INVALID_GROUP_ID
            > beat X id=c-9
              X: UNKNOWN_MEMBER_ID
            > beat X id=c-1 gen=0
              X: ILLEGAL_GENERATION
            > beat X id=c-1 g=h
              X: UNKNOWN_MEMBER_ID
            > beat X g=
              X: INVALID_GROUP_ID
            > leave X c-9
              X: left NONE c-9 UNKNOWN_MEMBER_ID
            > leave X v=2 c-9
              X: left UNKNOWN_MEMBER_ID
            > leave X c-1 g=h
              X: left NONE c-1 UNKNOWN_MEMBER_ID
            > leave X v=1 c-1 g=h
              X: left UNKNOWN_MEMBER_ID
            > leave X g=
              X: left INVALID_GROUP_ID
            > commit X id=c-9 gen=1 t-0=1
              X: t-0 UNKNOWN_MEMBER_ID
            > commit X id=c-1 gen=2 t-0=1
              X: t-0 ILLEGAL_GENERATION
            > commit X t-0=1
              X: t-0 UNKNOWN_MEMBER_ID
        "#]],
    );
}

#[test]
fn when_the_leader_leaves_another_member_leads() {
    check(
        &with_two(
            "
            leave A c-1
            beat B id=c-2
            join B id=c-2
            sync B id=c-2 gen=2 assign=c-2:P0+P1
            leave B v=2 c-2
            describe D
            ",
        ),
        expect![[r#"
            > leave A c-1
              A: left NONE c-1 NONE
            > beat B id=c-2
              B: REBALANCE_IN_PROGRESS
            > join B id=c-2
              B: joined as c-2: generation 2, range, leader c-2, members [c-2]
            > sync B id=c-2 gen=2 assign=c-2:P0+P1
              append g generation 2 [c-2=P0+P1]
              B: synced consumer range: "P0+P1"
            > leave B v=2 c-2
              append g generation 3 []
              B: left NONE
            > describe D
              D: Empty "consumer" "" []
        "#]],
    );
}

#[test]
fn a_batch_of_members_leaves_each_with_its_own_answer() {
    check(
        &with_two(
            "
            join C
            leave X c-1 c-3 c-9 c-2
            list L
            ",
        ),
        expect![[r#"
            > join C
              C: MEMBER_ID_REQUIRED "c-3"
            > leave X c-1 c-3 c-9 c-2
              append g generation 2 []
              X: left NONE c-1 NONE c-3 NONE c-9 UNKNOWN_MEMBER_ID c-2 NONE
            > list L
              L: NONE [g Empty "consumer" classic]
        "#]],
    );
}

#[test]
fn a_member_that_leaves_while_it_waits_is_answered() {
    check(
        &with_two(
            "
            join A id=c-1
            leave X c-1
            join B id=c-2
            join C v=3
            join B id=c-2
            sync B id=c-2 gen=3
            sync C id=c-3 gen=3
            leave X c-3
            ",
        ),
        expect![[r#"
            > join A id=c-1
            > leave X c-1
              A: UNKNOWN_MEMBER_ID ""
              X: left NONE c-1 NONE
            > join B id=c-2
              B: joined as c-2: generation 2, range, leader c-2, members [c-2]
            > join C v=3
            > join B id=c-2
              B: joined as c-2: generation 3, range, leader c-2, members [c-2 c-3]
              C: joined as c-3: generation 3, range, leader c-2, members []
            > sync B id=c-2 gen=3
              append g generation 3 [c-2= c-3=]
              B: synced consumer range: ""
            > sync C id=c-3 gen=3
              C: synced consumer range: ""
            > leave X c-3
              X: left NONE c-3 NONE
        "#]],
    );
}

#[test]
fn a_request_that_comes_twice_gets_two_answers() {
    check(
        &with_two(
            "
            join A id=c-1
            join A2 id=c-1
            join B id=c-2
            sync B id=c-2 gen=2
            sync B2 id=c-2 gen=2
            hold
            sync A id=c-1 gen=2 assign=c-2:P
            sync A2 id=c-1 gen=2 assign=c-2:Q
            ok 3
            ",
        ),
        expect![[r#"
            > join A id=c-1
            > join A2 id=c-1
              A: REBALANCE_IN_PROGRESS "c-1"
            > join B id=c-2
              A2: joined as c-1: generation 2, range, leader c-1, members [c-1 c-2]
              B: joined as c-2: generation 2, range, leader c-1, members []
            > sync B id=c-2 gen=2
            > sync B2 id=c-2 gen=2
              B: REBALANCE_IN_PROGRESS
            > hold
            > sync A id=c-1 gen=2 assign=c-2:P
              append #3 g generation 2 [c-1= c-2=P]
            > sync A2 id=c-1 gen=2 assign=c-2:Q
              A: REBALANCE_IN_PROGRESS
            > ok 3
              A2: synced consumer range: ""
              B2: synced consumer range: "P"
        "#]],
    );
}

#[test]
fn a_group_takes_no_more_members_than_it_may() {
    check_with(
        GroupConfig { group_max_size: 2, ..config() },
        &with_two(
            "
            join C
            join C v=3
            join B id=c-2
            # While members rejoin, those that are back count; A comes too late.
            join A id=c-1
            leave X c-2
            join D v=3
            join E v=3
            join A id=c-1
            ",
        ),
        expect![[r#"
            > join C
              C: GROUP_MAX_SIZE_REACHED ""
            > join C v=3
              C: GROUP_MAX_SIZE_REACHED ""
            > join B id=c-2
              B: joined as c-2: generation 1, range, leader c-1, members []
            > # While members rejoin, those that are back count; A comes too late.
            > join A id=c-1
            > leave X c-2
              A: joined as c-1: generation 2, range, leader c-1, members [c-1]
              X: left NONE c-2 NONE
            > join D v=3
            > join E v=3
            > join A id=c-1
              A: GROUP_MAX_SIZE_REACHED ""
              D: joined as c-5: generation 3, range, leader c-5, members [c-5 c-6]
              E: joined as c-6: generation 3, range, leader c-5, members []
        "#]],
    );
}

#[test]
fn no_member_is_left_and_the_group_is_empty_with_the_next_generation() {
    check(
        &with_two(
            "
            leave X c-1 c-2
            beat A id=c-1 gen=2
            sync A id=c-1 gen=2
            commit A id=c-1 gen=2 t-0=1
            # A client that is no member may commit now.
            commit A t-0=1
            join A id=c-1
            join A v=3
            wait 3000
            ",
        ),
        expect![[r#"
            > leave X c-1 c-2
              append g generation 2 []
              X: left NONE c-1 NONE c-2 NONE
            > beat A id=c-1 gen=2
              A: UNKNOWN_MEMBER_ID
            > sync A id=c-1 gen=2
              A: UNKNOWN_MEMBER_ID
            > commit A id=c-1 gen=2 t-0=1
              A: t-0 UNKNOWN_MEMBER_ID
            > # A client that is no member may commit now.
            > commit A t-0=1
              append g t-0=1
              A: t-0 NONE
            > join A id=c-1
              A: UNKNOWN_MEMBER_ID "c-1"
            > join A v=3
            > wait 3000
              at 9000
              A: joined as c-3: generation 3, range, leader c-3, members [c-3]
        "#]],
    );
}

#[test]
fn metadata_that_is_no_subscription_is_fine_but_hides_the_topics() {
    check(
        "
        join A v=3 protocols=range:junk
        wait 3000
        sync A id=c-1 assign=c-1:P
        describe D
        join A v=3 type=connect protocols=compatible:junk g=k
        wait 3000
        sync A id=c-2 g=k
        describe D g=k
        ",
        expect![[r#"
            > join A v=3 protocols=range:junk
              append g generation 0 []
            > wait 3000
              at 3000
              A: joined as c-1: generation 1, range, leader c-1, members [c-1]
            > sync A id=c-1 assign=c-1:P
              append g generation 1 [c-1=P]
              A: synced consumer range: "P"
            > describe D
              D: Stable "consumer" "range" [c-1 c/host metadata 4 bytes, assigned "P"]
            > join A v=3 type=connect protocols=compatible:junk g=k
              append k generation 0 []
            > wait 3000
              at 6000
              A: joined as c-2: generation 1, compatible, leader c-2, members [c-2]
            > sync A id=c-2 g=k
              append k generation 1 [c-2=]
              A: synced connect compatible: ""
            > describe D g=k
              D: Stable "connect" "compatible" [c-2 c/host metadata 4 bytes, assigned ""]
        "#]],
    );
}
