//! Requests of administrators: list, describe, delete.

use expect_test::expect;

use super::membership::with_two;
use super::transcript::check;

#[test]
fn groups_are_listed_by_state_and_type() {
    check(
        &with_two(
            "
            commit S g=simple t-0=1
            join P v=3 g=young
            list L
            list L states=stable
            list L states=PreparingRebalance
            list L states=Dead
            list L types=CLASSIC
            list L types=consumer
            ",
        ),
        expect![[r#"
            > commit S g=simple t-0=1
              append simple t-0=1
              S: t-0 NONE
            > join P v=3 g=young
              append young generation 0 []
            > list L
              L: NONE [g Stable "consumer" classic, simple Empty "" classic, young PreparingRebalance "consumer" classic]
            > list L states=stable
              L: NONE [g Stable "consumer" classic]
            > list L states=PreparingRebalance
              L: NONE [young PreparingRebalance "consumer" classic]
            > list L states=Dead
              L: NONE []
            > list L types=CLASSIC
              L: NONE [g Stable "consumer" classic, simple Empty "" classic, young PreparingRebalance "consumer" classic]
            > list L types=consumer
              L: NONE []
        "#]],
    );
}

#[test]
fn groups_are_described_with_members_and_their_metadata_while_they_are_stable() {
    check(
        &with_two(
            "
            describe D
            describe D g=none
            describe D v=5 g=none
            describe D g=
            join B id=c-2 protocols=range:t
            describe D
            ",
        ),
        expect![[r#"
            > describe D
              D: Stable "consumer" "range" [c-1 c/host metadata 10 bytes, assigned "P0"; c-2 c/host metadata 10 bytes, assigned "P1"]
            > describe D g=none
              D: Dead GROUP_ID_NOT_FOUND Group none not found.
            > describe D v=5 g=none
              D: Dead "" "" []
            > describe D g=
              D: Dead GROUP_ID_NOT_FOUND Group  not found.
            > join B id=c-2 protocols=range:t
            > describe D
              D: PreparingRebalance "consumer" "" [c-1 c/host metadata 0 bytes, assigned ""; c-2 c/host metadata 0 bytes, assigned ""]
        "#]],
    );
}

#[test]
fn an_empty_group_can_be_deleted_with_its_offsets() {
    check(
        &with_two(
            "
            commit A id=c-1 gen=1 t-0=5 u-0=6
            delete X
            leave X c-1 c-2
            hold
            commit Y v-0=1
            delete X
            delete X2
            describe D
            ok 5
            ok 6
            list L
            fetch F
            delete X
            delete X g=
            ",
        ),
        expect![[r#"
            > commit A id=c-1 gen=1 t-0=5 u-0=6
              append g t-0=5; g u-0=6
              A: t-0 NONE, u-0 NONE
            > delete X
              X: NON_EMPTY_GROUP
            > leave X c-1 c-2
              append g generation 2 []
              X: left NONE c-1 NONE c-2 NONE
            > hold
            > commit Y v-0=1
              append #5 g v-0=1
            > delete X
              append #6 g t-0 gone; g u-0 gone; g v-0 gone; g gone
            > delete X2
              X2: GROUP_ID_NOT_FOUND
            > describe D
              D: Dead GROUP_ID_NOT_FOUND Group g not found.
            > ok 5
              Y: v-0 NONE
            > ok 6
              X: NONE
            > list L
              L: NONE []
            > fetch F
              F: offsets []
            > delete X
              X: GROUP_ID_NOT_FOUND
            > delete X g=
              X: GROUP_ID_NOT_FOUND
        "#]],
    );
}

#[test]
fn a_deletion_that_cannot_be_written_leaves_the_group() {
    check(
        "
        commit A t-0=5
        hold
        delete X
        fail 2 NOT_ENOUGH_REPLICAS
        list L
        fetch F t-0
        ",
        expect![[r#"
            > commit A t-0=5
              append g t-0=5
              A: t-0 NONE
            > hold
            > delete X
              append #2 g t-0 gone; g gone
            > fail 2 NOT_ENOUGH_REPLICAS
              X: COORDINATOR_NOT_AVAILABLE
            > list L
              L: NONE [g Empty "" classic]
            > fetch F t-0
              F: offsets [t-0=5]
        "#]],
    );
}

#[test]
fn offsets_of_topics_that_no_client_reads_can_be_deleted() {
    check(
        "
        join A v=3 protocols=range:t
        wait 3000
        sync A id=c-1 assign=c-1:P
        commit A id=c-1 gen=1 t-0=5 u-0=6 u-1=7
        offset-delete X t-0 u-0 w-0
        fetch F
        offset-delete X g=none t-0
        offset-delete X g= t-0
        join K v=3 type=connect protocols=compatible g=k
        offset-delete X g=k t-0
        commit S g=simple t-0=1
        hold
        commit S g=simple t-1=1
        offset-delete X g=simple t-0 t-1
        ok 7
        ok 8
        list L
        ",
        expect![[r#"
            > join A v=3 protocols=range:t
              append g generation 0 []
            > wait 3000
              at 3000
              A: joined as c-1: generation 1, range, leader c-1, members [c-1]
            > sync A id=c-1 assign=c-1:P
              append g generation 1 [c-1=P]
              A: synced consumer range: "P"
            > commit A id=c-1 gen=1 t-0=5 u-0=6 u-1=7
              append g t-0=5; g u-0=6; g u-1=7
              A: t-0 NONE, u-0 NONE, u-1 NONE
            > offset-delete X t-0 u-0 w-0
              append g u-0 gone
              X: NONE t-0 GROUP_SUBSCRIBED_TO_TOPIC u-0 NONE w-0 NONE
            > fetch F
              F: offsets [t-0=5 u-1=7]
            > offset-delete X g=none t-0
              X: GROUP_ID_NOT_FOUND
            > offset-delete X g= t-0
              X: INVALID_GROUP_ID
            > join K v=3 type=connect protocols=compatible g=k
              append k generation 0 []
            > offset-delete X g=k t-0
              X: NON_EMPTY_GROUP
            > commit S g=simple t-0=1
              append simple t-0=1
              S: t-0 NONE
            > hold
            > commit S g=simple t-1=1
              append #7 simple t-1=1
            > offset-delete X g=simple t-0 t-1
              append #8 simple t-0 gone; simple t-1 gone
            > ok 7
              S: t-1 NONE
            > ok 8
              X: NONE t-0 NONE t-1 NONE
            > list L
              L: NONE [g Stable "consumer" classic, k PreparingRebalance "connect" classic]
        "#]],
    );
}
