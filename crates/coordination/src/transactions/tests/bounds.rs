//! Limits of the memory that a peer can use.

use expect_test::expect;

use super::cluster::Cluster;
use super::script::{self, Words};
use super::transcript::check_with;
use crate::transactions::{TransactionConfig, memory};

#[test]
fn transactional_ids_are_bounded() {
    check_with(
        TransactionConfig { memory_bytes_max: 2_000, ..TransactionConfig::default() },
        "
        init A
        init B id=u
        init C id=v
        init D idempotent
        init A
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
            > init C id=v
              C: COORDINATOR_NOT_AVAILABLE
            > init D idempotent
              wants a producer id
              D: producer 1002/0
            > init A
              append t Empty 1000/1 []
              A: producer 1000/1
        "#]],
    );
}

#[test]
fn partitions_are_bounded_and_ending_is_not() {
    check_with(
        TransactionConfig { memory_bytes_max: 1_400, ..TransactionConfig::default() },
        "
        init A
        add A t-0
        add A t-1 u-0 v-0 w-0
        offsets A
        describe D
        hold-markers
        end A commit
        # The request with all of these is too large to wait.
        add A epoch=1 t-1 u-0 v-0 w-0 x-0
        ",
        expect![[r#"
            > init A
              wants a producer id
              append t Empty 1000/0 []
              A: producer 1000/0
            > add A t-0
              append t Ongoing 1000/0 [t-0]
              A: t-0 NONE
            > add A t-1 u-0 v-0 w-0
              A: t-1 COORDINATOR_NOT_AVAILABLE, u-0 COORDINATOR_NOT_AVAILABLE, v-0 COORDINATOR_NOT_AVAILABLE, w-0 COORDINATOR_NOT_AVAILABLE
            > offsets A
              A: COORDINATOR_NOT_AVAILABLE
            > describe D
              D: t Ongoing 1000/0 timeout 60000 since 1000000 [t-0]
            > hold-markers
            > end A commit
              append t PrepareCommit 1000/1 [t-0]
              A: NONE, go on as 1000/1
              markers #5 t commit 1000/1 version 2 coordinator 1 [t-0]
            > # The request with all of these is too large to wait.
            > add A epoch=1 t-1 u-0 v-0 w-0 x-0
              A: t-1 CONCURRENT_TRANSACTIONS, u-0 CONCURRENT_TRANSACTIONS, v-0 CONCURRENT_TRANSACTIONS, w-0 CONCURRENT_TRANSACTIONS, x-0 CONCURRENT_TRANSACTIONS
        "#]],
    );
}

#[test]
fn producer_ids_that_are_wanted_are_bounded() {
    let config =
        TransactionConfig { memory_bytes_max: 2 * memory::PRODUCER_ID, ..TransactionConfig::default() };
    let mut cluster = Cluster::new(config, Vec::new());
    for _ in 0..3 {
        let (version, request) = script::request(&Words::parse("init A idempotent"));
        cluster.send(version, request);
    }
    let effects = cluster.effects();
    assert_eq!((cluster.asked.len(), effects.len(), cluster.unanswered()), (2, 3, 2));
}
