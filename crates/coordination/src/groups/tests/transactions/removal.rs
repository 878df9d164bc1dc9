//! Tombstones and expiry beside open transactions.

use expect_test::expect;

use super::super::transcript::{check, check_with, config};
use crate::groups::GroupConfig;

#[test]
fn tombstones_are_for_offsets_of_open_transactions_too() {
    check(
        "
        commit A t-0=1 u-0=1
        txn A t-0=2 t-1=2 u-0=2 v-0=2
        txn A pid=2 t-0=3
        offset-delete X t-0 t-1 w-0
        fetch F stable t-0 t-1 u-0
        topic-deleted u
        fetch F stable u-0 v-0
        end 2 commit
        fetch F t-0
        # A group without members is deleted whatever is open, as in Kafka; the marker finds nothing then.
        commit A t-0=4
        txn A t-0=5
        delete X
        end 1 commit
        list L
        ",
        expect![[r#"
            > commit A t-0=1 u-0=1
              append g t-0=1; g u-0=1
              A: t-0 NONE, u-0 NONE
            > txn A t-0=2 t-1=2 u-0=2 v-0=2
              append by 1 g t-0=2; g t-1=2; g u-0=2; g v-0=2
              A: t-0 NONE, t-1 NONE, u-0 NONE, v-0 NONE
            > txn A pid=2 t-0=3
              append by 2 g t-0=3
              A: t-0 NONE
            > offset-delete X t-0 t-1 w-0
              append g t-0 gone; g t-1 gone
              X: NONE t-0 NONE t-1 NONE w-0 NONE
            > fetch F stable t-0 t-1 u-0
              F: offsets [t-0=-1 t-1=-1 u-0=-1UNSTABLE_OFFSET_COMMIT]
            > topic-deleted u
              append g u-0 gone
            > fetch F stable u-0 v-0
              F: offsets [u-0=-1 v-0=-1UNSTABLE_OFFSET_COMMIT]
            > end 2 commit
            > fetch F t-0
              F: offsets [t-0=-1]
            > # A group without members is deleted whatever is open, as in Kafka; the marker finds nothing then.
            > commit A t-0=4
              append g t-0=4
              A: t-0 NONE
            > txn A t-0=5
              append by 1 g t-0=5
              A: t-0 NONE
            > delete X
              append g t-0 gone; g v-0 gone; g gone
              X: NONE
            > end 1 commit
            > list L
              L: NONE []
        "#]],
    );
}

#[test]
fn a_deletion_that_cannot_be_written_leaves_the_transaction() {
    check(
        "
        commit A t-0=4
        hold
        txn A t-0=5
        delete X
        ok 2
        fail 3 NOT_ENOUGH_REPLICAS
        fetch F stable t-0
        end 1 commit
        ok 4
        fetch F stable t-0
        ",
        expect![[r#"
            > commit A t-0=4
              append g t-0=4
              A: t-0 NONE
            > hold
            > txn A t-0=5
              append #2 by 1 g t-0=5
            > delete X
              append #3 g t-0 gone; g t-0 gone; g gone
            > ok 2
              A: t-0 NONE
            > fail 3 NOT_ENOUGH_REPLICAS
              X: COORDINATOR_NOT_AVAILABLE
            > fetch F stable t-0
              F: offsets [t-0=-1UNSTABLE_OFFSET_COMMIT]
            > end 1 commit
              marker #4
            > ok 4
            > fetch F stable t-0
              F: offsets [t-0=5]
        "#]],
    );
}

/// One minute of retention, checked every ten seconds.
fn one_minute() -> GroupConfig {
    GroupConfig { offsets_retention_ms: 60_000, offsets_retention_check_interval_ms: 10_000, ..config() }
}

#[test]
fn what_a_transaction_may_change_does_not_expire_and_neither_does_its_group() {
    check_with(
        one_minute(),
        "
        commit A t-0=1 t-1=1
        txn A t-0=2
        txn A g=h t-0=2
        wait 70000
        list L
        fetch F
        end 1 abort
        list L
        wait 10000
        list L
        # Its age is that of its commit and not that of its marker.
        txn A t-0=3
        wait 65000
        end 1 commit
        fetch F
        wait 10000
        list L
        ",
        expect![[r#"
            > commit A t-0=1 t-1=1
              append g t-0=1; g t-1=1
              A: t-0 NONE, t-1 NONE
            > txn A t-0=2
              append by 1 g t-0=2
              A: t-0 NONE
            > txn A g=h t-0=2
              append by 1 h t-0=2
              A: t-0 NONE
            > wait 70000
              at 60000
              append g t-1 gone
            > list L
              L: NONE [g Empty "" classic, h Empty "" classic]
            > fetch F
              F: offsets [t-0=1]
            > end 1 abort
            > list L
              L: NONE [g Empty "" classic]
            > wait 10000
              at 80000
              append g t-0 gone; g gone
            > list L
              L: NONE []
            > # Its age is that of its commit and not that of its marker.
            > txn A t-0=3
              append by 1 g t-0=3
              A: t-0 NONE
            > wait 65000
            > end 1 commit
            > fetch F
              F: offsets [t-0=3]
            > wait 10000
              at 150000
              append g t-0 gone; g gone
            > list L
              L: NONE []
        "#]],
    );
}
