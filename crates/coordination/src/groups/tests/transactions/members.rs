//! Permission to commit offsets of a transaction, and the error code of each refusal.

use expect_test::expect;
use mainstem_wire::ErrorCode;

use super::super::consumer::immediate_targets;
use super::super::membership::with_two;
use super::super::script::{self, Words};
use super::super::transcript::{check, check_with};
use crate::groups::txn_offset_commit;

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
        immediate_targets(),
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
