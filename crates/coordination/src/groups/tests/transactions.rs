//! Offsets that are committed with what a transaction has produced (KIP-98, KIP-447).

use expect_test::expect;
use mainstem_wire::ErrorCode;

use super::consumer::at_once;
use super::membership::with_two;
use super::script::{self, Words};
use super::transcript::{check, check_with, config};
use crate::groups::{GroupConfig, txn_offset_commit};

#[test]
fn offsets_of_a_transaction_are_read_after_its_marker() {
    check(
        "
        txn A t-0=5:note u-3=6
        fetch F t-0 u-3
        fetch F stable t-0 u-3 t-1
        fetch F stable
        list L
        describe D
        end 1 commit
        fetch F stable t-0 u-3
        # The next transaction of the producer changes its mind.
        txn A t-0=7
        txn A t-0=8 t-1=1
        fetch F t-0 t-1
        fetch F stable
        end 1 abort
        fetch F stable t-0 t-1
        # Nothing is open: markers do no harm.
        end 1 commit
        end 2 abort
        fetch F stable
        ",
        expect![[r#"
            > txn A t-0=5:note u-3=6
              append by 1 g t-0=5; g u-3=6
              A: t-0 NONE, u-3 NONE
            > fetch F t-0 u-3
              F: offsets [t-0=-1 u-3=-1]
            > fetch F stable t-0 u-3 t-1
              F: offsets [t-0=-1UNSTABLE_OFFSET_COMMIT u-3=-1UNSTABLE_OFFSET_COMMIT t-1=-1]
            > fetch F stable
              F: offsets []
            > list L
              L: NONE [g Empty "" Classic]
            > describe D
              D: Empty "" "" []
            > end 1 commit
            > fetch F stable t-0 u-3
              F: offsets [t-0=5:note u-3=6]
            > # The next transaction of the producer changes its mind.
            > txn A t-0=7
              append by 1 g t-0=7
              A: t-0 NONE
            > txn A t-0=8 t-1=1
              append by 1 g t-0=8; g t-1=1
              A: t-0 NONE, t-1 NONE
            > fetch F t-0 t-1
              F: offsets [t-0=5:note t-1=-1]
            > fetch F stable
              F: offsets [t-0=-1UNSTABLE_OFFSET_COMMIT u-3=6]
            > end 1 abort
            > fetch F stable t-0 t-1
              F: offsets [t-0=5:note t-1=-1]
            > # Nothing is open: markers do no harm.
            > end 1 commit
            > end 2 abort
            > fetch F stable
              F: offsets [t-0=5:note u-3=6]
        "#]],
    );
}

#[test]
fn a_group_that_a_transaction_made_goes_with_it() {
    check(
        "
        txn A g=h t-0=5
        list L
        txn A gen=0 g=none t-0=5
        txn A g= t-0=5
        fetch F g=h t-0
        end 1 abort
        list L
        fetch F stable g=h t-0
        ",
        expect![[r#"
            > txn A g=h t-0=5
              append by 1 h t-0=5
              A: t-0 NONE
            > list L
              L: NONE [h Empty "" Classic]
            > txn A gen=0 g=none t-0=5
              A: t-0 ILLEGAL_GENERATION
            > txn A g= t-0=5
              A: t-0 INVALID_GROUP_ID
            > fetch F g=h t-0
              F: offsets [t-0=-1]
            > end 1 abort
            > list L
              L: NONE []
            > fetch F stable g=h t-0
              F: offsets [t-0=-1]
        "#]],
    );
}

#[test]
fn the_later_record_counts_whenever_its_transaction_ends() {
    check(
        "
        # A plain commit behind that of a transaction.
        txn A t-0=1
        commit B t-0=2
        end 1 commit
        fetch F stable t-0
        # A plain commit before it.
        commit B t-0=3
        txn A t-0=4
        end 1 commit
        fetch F stable t-0
        # Two transactions that end the other way round.
        txn A pid=1 t-0=5
        txn A pid=2 t-0=6
        end 2 commit
        fetch F t-0
        fetch F stable t-0
        end 1 commit
        fetch F stable t-0
        # One that commits once more gets behind the plain commit again.
        txn A t-0=7
        commit B t-0=8
        txn A t-0=9
        end 1 commit
        fetch F stable t-0
        # What is aborted overtakes nothing.
        txn A pid=1 t-0=10
        txn A pid=2 t-0=11
        end 2 abort
        end 1 commit
        fetch F stable t-0
        ",
        expect![[r#"
            > # A plain commit behind that of a transaction.
            > txn A t-0=1
              append by 1 g t-0=1
              A: t-0 NONE
            > commit B t-0=2
              append g t-0=2
              B: t-0 NONE
            > end 1 commit
            > fetch F stable t-0
              F: offsets [t-0=2]
            > # A plain commit before it.
            > commit B t-0=3
              append g t-0=3
              B: t-0 NONE
            > txn A t-0=4
              append by 1 g t-0=4
              A: t-0 NONE
            > end 1 commit
            > fetch F stable t-0
              F: offsets [t-0=4]
            > # Two transactions that end the other way round.
            > txn A pid=1 t-0=5
              append by 1 g t-0=5
              A: t-0 NONE
            > txn A pid=2 t-0=6
              append by 2 g t-0=6
              A: t-0 NONE
            > end 2 commit
            > fetch F t-0
              F: offsets [t-0=6]
            > fetch F stable t-0
              F: offsets [t-0=-1UNSTABLE_OFFSET_COMMIT]
            > end 1 commit
            > fetch F stable t-0
              F: offsets [t-0=6]
            > # One that commits once more gets behind the plain commit again.
            > txn A t-0=7
              append by 1 g t-0=7
              A: t-0 NONE
            > commit B t-0=8
              append g t-0=8
              B: t-0 NONE
            > txn A t-0=9
              append by 1 g t-0=9
              A: t-0 NONE
            > end 1 commit
            > fetch F stable t-0
              F: offsets [t-0=9]
            > # What is aborted overtakes nothing.
            > txn A pid=1 t-0=10
              append by 1 g t-0=10
              A: t-0 NONE
            > txn A pid=2 t-0=11
              append by 2 g t-0=11
              A: t-0 NONE
            > end 2 abort
            > end 1 commit
            > fetch F stable t-0
              F: offsets [t-0=10]
        "#]],
    );
}

#[test]
fn commits_and_markers_take_effect_in_the_order_of_the_log() {
    check(
        "
        hold
        txn A t-0=5
        fetch F stable t-0
        ok 1
        end 1 commit
        txn B pid=1 t-1=6
        fetch F stable t-0 t-1
        fetch G t-0 t-1
        ok 4
        ok 3
        fetch G t-0 t-1
        # A marker that is not in the log after all.
        end 1 commit
        fail 6 NOT_LEADER_OR_FOLLOWER
        fetch F stable t-0 t-1
        ",
        expect![[r#"
            > hold
            > txn A t-0=5
              append #1 by 1 g t-0=5
            > fetch F stable t-0
            > ok 1
              A: t-0 NONE
              F: offsets [t-0=-1UNSTABLE_OFFSET_COMMIT]
            > end 1 commit
              marker #3
            > txn B pid=1 t-1=6
              append #4 by 1 g t-1=6
            > fetch F stable t-0 t-1
            > fetch G t-0 t-1
              G: offsets [t-0=-1 t-1=-1]
            > ok 4
            > ok 3
              B: t-1 NONE
              F: offsets [t-0=5 t-1=-1UNSTABLE_OFFSET_COMMIT]
            > fetch G t-0 t-1
              G: offsets [t-0=5 t-1=-1]
            > # A marker that is not in the log after all.
            > end 1 commit
              marker #6
            > fail 6 NOT_LEADER_OR_FOLLOWER
            > fetch F stable t-0 t-1
              F: offsets [t-0=5 t-1=-1UNSTABLE_OFFSET_COMMIT]
        "#]],
    );
}

#[test]
fn a_commit_that_cannot_be_written_is_no_part_of_its_transaction() {
    check(
        "
        hold
        txn A t-0=5
        txn B pid=2 t-0=6
        fail 1 INVALID_PRODUCER_EPOCH
        fail 2 NOT_ENOUGH_REPLICAS
        list L
        txn A t-0=7
        # It takes too long; then it is there nevertheless.
        wait 5000
        ok 3
        fetch F stable t-0
        end 1 commit
        ok 4
        fetch F t-0
        ",
        expect![[r#"
            > hold
            > txn A t-0=5
              append #1 by 1 g t-0=5
            > txn B pid=2 t-0=6
              append #2 by 2 g t-0=6
            > fail 1 INVALID_PRODUCER_EPOCH
              A: t-0 INVALID_PRODUCER_EPOCH
            > fail 2 NOT_ENOUGH_REPLICAS
              B: t-0 COORDINATOR_NOT_AVAILABLE
            > list L
              L: NONE []
            > txn A t-0=7
              append #3 by 1 g t-0=7
            > # It takes too long; then it is there nevertheless.
            > wait 5000
              at 5000
              A: t-0 COORDINATOR_NOT_AVAILABLE
            > ok 3
            > fetch F stable t-0
              F: offsets [t-0=-1UNSTABLE_OFFSET_COMMIT]
            > end 1 commit
              marker #4
            > ok 4
            > fetch F t-0
              F: offsets [t-0=7]
        "#]],
    );
}

#[test]
fn members_commit_in_their_generation_and_who_is_none_does_so_in_any() {
    check(
        &with_two(
            "
            txn A id=c-1 gen=1 t-0=1
            txn A id=c-1 gen=0 t-0=1
            txn A id=c-1 t-0=1
            txn A gen=1 t-0=1
            txn A id=c-9 gen=1 t-0=1
            txn A id=c-1 gen=1 instance=i t-0=1
            # Before version 3 producers cannot say whose offsets they are.
            txn A v=2 t-0=2
            # In the middle of a rebalance: unlike members, producers do not know of it.
            join A id=c-1 protocols=range:t
            txn A id=c-1 gen=1 t-0=3
            join B id=c-2
            commit B id=c-2 gen=2 t-0=4
            txn B id=c-2 gen=2 t-0=4
            txn B id=c-2 gen=1 t-0=4
            leave X c-1 c-2
            txn A id=c-1 t-0=5
            txn A id=c-1 gen=2 t-0=5
            txn A gen=3 t-0=5
            ",
        ),
        expect![[r#"
            > txn A id=c-1 gen=1 t-0=1
              append by 1 g t-0=1
              A: t-0 NONE
            > txn A id=c-1 gen=0 t-0=1
              A: t-0 ILLEGAL_GENERATION
            > txn A id=c-1 t-0=1
              A: t-0 ILLEGAL_GENERATION
            > txn A gen=1 t-0=1
              A: t-0 UNKNOWN_MEMBER_ID
            > txn A id=c-9 gen=1 t-0=1
              A: t-0 UNKNOWN_MEMBER_ID
            > txn A id=c-1 gen=1 instance=i t-0=1
              A: t-0 UNKNOWN_MEMBER_ID
            > # Before version 3 producers cannot say whose offsets they are.
            > txn A v=2 t-0=2
              append by 1 g t-0=2
              A: t-0 NONE
            > # In the middle of a rebalance: unlike members, producers do not know of it.
            > join A id=c-1 protocols=range:t
            > txn A id=c-1 gen=1 t-0=3
              append by 1 g t-0=3
              A: t-0 NONE
            > join B id=c-2
              A: joined as c-1: generation 2, range, leader c-1, members [c-1 c-2]
              B: joined as c-2: generation 2, range, leader c-1, members []
            > commit B id=c-2 gen=2 t-0=4
              B: t-0 REBALANCE_IN_PROGRESS
            > txn B id=c-2 gen=2 t-0=4
              append by 1 g t-0=4
              B: t-0 NONE
            > txn B id=c-2 gen=1 t-0=4
              B: t-0 ILLEGAL_GENERATION
            > leave X c-1 c-2
              append g generation 3 []
              X: left NONE c-1 NONE c-2 NONE
            > txn A id=c-1 t-0=5
              append by 1 g t-0=5
              A: t-0 NONE
            > txn A id=c-1 gen=2 t-0=5
              A: t-0 UNKNOWN_MEMBER_ID
            > txn A gen=3 t-0=5
              A: t-0 UNKNOWN_MEMBER_ID
        "#]],
    );
}

#[test]
fn a_static_member_that_was_replaced_is_fenced() {
    check(
        "
        join A v=3 instance=i
        wait 3000
        sync A id=i-1 instance=i assign=i-1:P
        txn A id=i-1 gen=1 instance=i t-0=1
        join B instance=i
        txn A id=i-1 gen=1 instance=i t-0=2
        txn A id=i-1 gen=1 t-0=2
        txn A id=i-2 gen=1 instance=j t-0=2
        txn A id=i-2 gen=1 instance=i t-0=2
        ",
        expect![[r#"
            > join A v=3 instance=i
              append g generation 0 []
            > wait 3000
              at 3000
              A: joined as i-1: generation 1, range, leader i-1, members [i-1/i]
            > sync A id=i-1 instance=i assign=i-1:P
              append g generation 1 [i-1=P]
              A: synced consumer range: "P"
            > txn A id=i-1 gen=1 instance=i t-0=1
              append by 1 g t-0=1
              A: t-0 NONE
            > join B instance=i
              append g generation 1 [i-2=P]
              B: joined as i-2: generation 1, range, leader i-2, members [i-2/i], skips the assignment
            > txn A id=i-1 gen=1 instance=i t-0=2
              A: t-0 FENCED_INSTANCE_ID
            > txn A id=i-1 gen=1 t-0=2
              A: t-0 UNKNOWN_MEMBER_ID
            > txn A id=i-2 gen=1 instance=j t-0=2
              A: t-0 UNKNOWN_MEMBER_ID
            > txn A id=i-2 gen=1 instance=i t-0=2
              append by 1 g t-0=2
              A: t-0 NONE
        "#]],
    );
}

#[test]
fn a_transaction_does_not_keep_a_member_alive() {
    check(
        "
        join A v=3
        wait 3000
        sync A id=c-1 assign=c-1:P
        wait 6000
        txn A id=c-1 gen=1 t-0=1
        wait 6000
        txn A id=c-1 gen=1 t-0=2
        ",
        expect![[r#"
            > join A v=3
              append g generation 0 []
            > wait 3000
              at 3000
              A: joined as c-1: generation 1, range, leader c-1, members [c-1]
            > sync A id=c-1 assign=c-1:P
              append g generation 1 [c-1=P]
              A: synced consumer range: "P"
            > wait 6000
            > txn A id=c-1 gen=1 t-0=1
              append by 1 g t-0=1
              A: t-0 NONE
            > wait 6000
              at 13000
              append g generation 2 []
            > txn A id=c-1 gen=1 t-0=2
              A: t-0 UNKNOWN_MEMBER_ID
        "#]],
    );
}

#[test]
fn members_of_a_consumer_group_commit_in_their_epoch() {
    check_with(
        at_once(),
        "
        topic t 2
        hb A id=A
        txn A id=A gen=1 t-0=1
        txn A id=A gen=3 t-0=1
        txn A id=X gen=1 t-0=1
        txn A id=A t-0=1
        txn A gen=1 t-0=1
        # Who says nothing of a member may commit, as before there were such groups.
        txn A v=2 t-0=2
        txn A t-0=2
        txn A id=A gen=2 t-0=3
        fetch F id=A gen=2 stable t-0
        end 1 commit
        fetch F t-0
        # KIP-1251: behind, but with the partition since then.
        ~topic t 3
        ~hb A id=A epoch=2 owned=t-0,t-1
        txn A id=A gen=2 t-0=4
        txn A id=A gen=2 t-0=4 t-2=4
        # To a group without members those commit who claim to be none.
        ~hb A id=A epoch=-1
        txn A id=A t-0=5
        txn A id=A gen=3 t-0=5
        ",
        expect![[r#"
            > topic t 2
            > hb A id=A
              append g member A [t]; g epoch 2; g target A [t-0 t-1]; g target epoch 2; g current A 2<-0 Stable [t-0@2 t-1@2]
              A: A in epoch 2, has [t-0 t-1]
            > txn A id=A gen=1 t-0=1
              A: t-0 ILLEGAL_GENERATION
            > txn A id=A gen=3 t-0=1
              A: t-0 ILLEGAL_GENERATION
            > txn A id=X gen=1 t-0=1
              A: t-0 UNKNOWN_MEMBER_ID
            > txn A id=A t-0=1
              A: t-0 ILLEGAL_GENERATION
            > txn A gen=1 t-0=1
              A: t-0 UNKNOWN_MEMBER_ID
            > # Who says nothing of a member may commit, as before there were such groups.
            > txn A v=2 t-0=2
              append by 1 g t-0=2
              A: t-0 NONE
            > txn A t-0=2
              append by 1 g t-0=2
              A: t-0 NONE
            > txn A id=A gen=2 t-0=3
              append by 1 g t-0=3
              A: t-0 NONE
            > fetch F id=A gen=2 stable t-0
              F: offsets [t-0=-1UNSTABLE_OFFSET_COMMIT]
            > end 1 commit
            > fetch F t-0
              F: offsets [t-0=3]
            > # KIP-1251: behind, but with the partition since then.
            > txn A id=A gen=2 t-0=4
              append by 1 g t-0=4
              A: t-0 NONE
            > txn A id=A gen=2 t-0=4 t-2=4
              A: t-0 ILLEGAL_GENERATION, t-2 ILLEGAL_GENERATION
            > # To a group without members those commit who claim to be none.
            > txn A id=A t-0=5
              append by 1 g t-0=5
              A: t-0 NONE
            > txn A id=A gen=3 t-0=5
              A: t-0 UNKNOWN_MEMBER_ID
        "#]],
    );
}

#[test]
fn metadata_and_names_are_bounded_as_in_any_commit() {
    check(
        "
        txn A t-0=1:x4096 t-1=1:x4097
        end 1 commit
        fetch F t-1
        ",
        expect![[r#"
            > txn A t-0=1:x4096 t-1=1:x4097
              append by 1 g t-0=1
              A: t-0 NONE, t-1 OFFSET_METADATA_TOO_LARGE
            > end 1 commit
            > fetch F t-1
              F: offsets [t-1=-1]
        "#]],
    );
}

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

/// One minute of retention, looked at every ten seconds.
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
              L: NONE [g Empty "" Classic, h Empty "" Classic]
            > fetch F
              F: offsets [t-0=1]
            > end 1 abort
            > list L
              L: NONE [g Empty "" Classic]
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

#[test]
fn a_coordinator_that_takes_over_knows_of_open_transactions() {
    check(
        "
        commit A t-0=1 t-1=1 t-2=1
        txn A t-0=2
        txn A pid=2 t-1=2
        txn A pid=3 t-2=3
        commit A t-2=4
        txn A pid=4 t-0=5
        end 4 commit
        reload
        fetch F stable t-0 t-1 t-2
        end 1 commit
        end 2 abort
        end 3 commit
        fetch F stable t-0 t-1 t-2
        reload
        fetch F stable t-0 t-1 t-2
        ",
        expect![[r#"
            > commit A t-0=1 t-1=1 t-2=1
              append g t-0=1; g t-1=1; g t-2=1
              A: t-0 NONE, t-1 NONE, t-2 NONE
            > txn A t-0=2
              append by 1 g t-0=2
              A: t-0 NONE
            > txn A pid=2 t-1=2
              append by 2 g t-1=2
              A: t-1 NONE
            > txn A pid=3 t-2=3
              append by 3 g t-2=3
              A: t-2 NONE
            > commit A t-2=4
              append g t-2=4
              A: t-2 NONE
            > txn A pid=4 t-0=5
              append by 4 g t-0=5
              A: t-0 NONE
            > end 4 commit
            > reload
            > fetch F stable t-0 t-1 t-2
              F: offsets [t-0=-1UNSTABLE_OFFSET_COMMIT t-1=-1UNSTABLE_OFFSET_COMMIT t-2=-1UNSTABLE_OFFSET_COMMIT]
            > end 1 commit
            > end 2 abort
            > end 3 commit
            > fetch F stable t-0 t-1 t-2
              F: offsets [t-0=5 t-1=1 t-2=4]
            > reload
            > fetch F stable t-0 t-1 t-2
              F: offsets [t-0=5 t-1=1 t-2=4]
        "#]],
    );
}

#[test]
fn markers_wait_until_the_partition_is_served_and_there_is_room() {
    check_with(
        GroupConfig { pending_appends_max: 2, ..config() },
        "
        hold
        txn A t-0=1
        ok 1
        txn A t-1=1
        end 1 commit
        end 2 commit
        txn B pid=2 t-1=1
        ok 2
        end 2 abort
        unload
        end 1 commit
        txn A t-0=1
        txn A v=1 t-0=1
        begin-load
        end 1 commit
        txn A t-0=1
        txn A v=1 t-0=1
        ",
        expect![[r#"
            > hold
            > txn A t-0=1
              append #1 by 1 g t-0=1
            > ok 1
              A: t-0 NONE
            > txn A t-1=1
              append #2 by 1 g t-1=1
            > end 1 commit
              marker #3
            > end 2 commit
              COORDINATOR_NOT_AVAILABLE
            > txn B pid=2 t-1=1
              B: t-1 COORDINATOR_NOT_AVAILABLE
            > ok 2
              A: t-1 NONE
            > end 2 abort
              marker #4
            > unload
            > end 1 commit
              NOT_COORDINATOR
            > txn A t-0=1
              A: t-0 NOT_COORDINATOR
            > txn A v=1 t-0=1
              A: t-0 NOT_COORDINATOR
            > begin-load
            > end 1 commit
              COORDINATOR_LOAD_IN_PROGRESS
            > txn A t-0=1
              A: t-0 COORDINATOR_LOAD_IN_PROGRESS
            > txn A v=1 t-0=1
              A: t-0 COORDINATOR_NOT_AVAILABLE
        "#]],
    );
}

#[test]
fn offsets_of_open_transactions_are_bounded() {
    check_with(
        GroupConfig { offsets_max: 3, ..config() },
        "
        commit A t-0=1
        txn A t-0=2 t-1=2
        txn A t-0=3
        txn B pid=2 t-0=3
        commit A t-2=1
        end 1 commit
        txn B pid=2 t-0=3
        ",
        expect![[r#"
            > commit A t-0=1
              append g t-0=1
              A: t-0 NONE
            > txn A t-0=2 t-1=2
              append by 1 g t-0=2; g t-1=2
              A: t-0 NONE, t-1 NONE
            > txn A t-0=3
              append by 1 g t-0=3
              A: t-0 NONE
            > txn B pid=2 t-0=3
              B: t-0 INVALID_COMMIT_OFFSET_SIZE
            > commit A t-2=1
              A: t-2 INVALID_COMMIT_OFFSET_SIZE
            > end 1 commit
            > txn B pid=2 t-0=3
              append by 2 g t-0=3
              B: t-0 NONE
        "#]],
    );
    check_with(
        GroupConfig { memory_bytes_max: 1_300, ..config() },
        "
        txn A t-0=1:x200
        txn A t-1=1:x600
        txn A pid=2 t-0=1:x200
        txn A t-0=2:x200
        commit A t-0=3:x200
        txn A t-1=1:x200
        end 1 abort
        txn A t-1=1:x200
        ",
        expect![[r#"
            > txn A t-0=1:x200
              append by 1 g t-0=1
              A: t-0 NONE
            > txn A t-1=1:x600
              A: t-1 INVALID_COMMIT_OFFSET_SIZE
            > txn A pid=2 t-0=1:x200
              A: t-0 INVALID_COMMIT_OFFSET_SIZE
            > txn A t-0=2:x200
              append by 1 g t-0=2
              A: t-0 NONE
            > commit A t-0=3:x200
              append g t-0=3
              A: t-0 NONE
            > txn A t-1=1:x200
              A: t-1 INVALID_COMMIT_OFFSET_SIZE
            > end 1 abort
            > txn A t-1=1:x200
              append by 1 g t-1=1
              A: t-1 NONE
        "#]],
    );
}

#[test]
fn a_refusal_is_said_as_a_producer_of_its_version_understands_it() {
    let request = script::transactional_commit(&Words::parse("txn A t-0=1 t-1=1 u-0=1"));
    let refused = |error, version| {
        let response = txn_offset_commit::refused(&request, error, version);
        let names: Vec<_> = response.topics.iter().map(|topic| topic.name.to_string()).collect();
        assert_eq!(names, ["t", "u"]);
        let partitions = response.topics.iter().flat_map(|topic| &topic.partitions);
        let mut errors: Vec<_> = partitions.map(|partition| ErrorCode(partition.error_code)).collect();
        assert_eq!(errors.len(), 3);
        errors.dedup();
        errors
    };
    for version in 0..=5 {
        let loading = if version < 2 {
            ErrorCode::COORDINATOR_NOT_AVAILABLE
        } else {
            ErrorCode::COORDINATOR_LOAD_IN_PROGRESS
        };
        let table = [
            (ErrorCode::COORDINATOR_LOAD_IN_PROGRESS, loading),
            // The coordinator of the transaction could not be asked.
            (ErrorCode::NETWORK_EXCEPTION, loading),
            (ErrorCode::REQUEST_TIMED_OUT, ErrorCode::COORDINATOR_NOT_AVAILABLE),
            (ErrorCode::NOT_LEADER_OR_FOLLOWER, ErrorCode::NOT_COORDINATOR),
            (ErrorCode::INVALID_TXN_STATE, ErrorCode::INVALID_TXN_STATE),
            (ErrorCode::TRANSACTION_ABORTABLE, ErrorCode::TRANSACTION_ABORTABLE),
        ];
        for (error, expected) in table {
            assert_eq!(refused(error, version), [expected], "{error:?} in v{version}");
        }
    }
}
