//! Groups that change their protocol while they work (KIP-848).

use expect_test::expect;

use super::consumer::immediate_targets;
use super::transcript::check_with;
use crate::groups::{ConsumerGroupConfig, GroupConfig, MigrationPolicy};

/// A stable classic group of `c-1` and `c-2`, each with a partition of `t`.
const CLASSIC: &str = "
    ~topic t 2
    ~join - protocols=range:t
    ~join A id=c-1 protocols=range:t
    ~join - protocols=range:t
    ~join B id=c-2 protocols=range:t
    ~wait 6000
    ~sync A id=c-1 assign=c-1:t-0,c-2:t-1
    ~sync B id=c-2
";

#[track_caller]
fn play(rest: &str, expect: expect_test::Expect) {
    check_with(immediate_targets(), &format!("{CLASSIC}{rest}"), expect);
}

#[test]
fn the_first_consumer_makes_a_classic_group_a_consumer_group() {
    play(
        "
        hb N id=N
        consumers D
        describe D
        # Classic members are asked to rejoin, and get what is theirs by the protocol that they speak.
        beat A id=c-1
        join A id=c-1 protocols=range:t
        sync A id=c-1 gen=2
        join B id=c-2 protocols=range:t
        sync B id=c-2 gen=2
        hb N id=N epoch=2
        consumers D
        ",
        expect![[r#"
            > hb N id=N
              append g gone; g member c-1 classic [t]; g member c-2 classic [t]; g epoch 1; g target c-1 [t-0]; g target c-2 [t-1]; g target epoch 1; g current c-1 1<-1 Stable [t-0@1]; g current c-2 1<-1 Stable [t-1@1]; g member N [t]; g epoch 2; g target N []; g target epoch 2; g current N 2<-0 Stable []
              N: N in epoch 2, has []
            > consumers D
              D: Reconciling epoch 2 target 2 uniform: N 2 [] -> []; c-1 classic 1 [t-0] -> [t-0]; c-2 classic 1 [t-1] -> [t-1]
            > describe D
              D: Dead GROUP_ID_NOT_FOUND Group g is not a classic group.
            > # Classic members are asked to rejoin, and get what is theirs by the protocol that they speak.
            > beat A id=c-1
              A: REBALANCE_IN_PROGRESS
            > join A id=c-1 protocols=range:t
              append g current c-1 2<-1 Stable [t-0@1]
              A: joined as c-1: generation 2, range, leader , members []
            > sync A id=c-1 gen=2
              A: synced null null: "t-0"
            > join B id=c-2 protocols=range:t
              append g current c-2 2<-1 Stable [t-1@1]
              B: joined as c-2: generation 2, range, leader , members []
            > sync B id=c-2 gen=2
              B: synced null null: "t-1"
            > hb N id=N epoch=2
              N: N in epoch 2
            > consumers D
              D: Stable epoch 2 target 2 uniform: N 2 [] -> []; c-1 classic 2 [t-0] -> [t-0]; c-2 classic 2 [t-1] -> [t-1]
        "#]],
    );
}

#[test]
fn the_last_consumer_that_leaves_makes_it_a_classic_group_again() {
    play(
        "
        ~hb N id=N
        hb N id=N epoch=-1
        list L
        beat A id=c-1 gen=2
        ",
        expect![[r#"
            > hb N id=N epoch=-1
              append g current N gone; g current c-1 gone; g current c-2 gone; g target N gone; g target c-1 gone; g target c-2 gone; g target epoch gone; g member N gone; g member c-1 gone; g member c-2 gone; g partition metadata gone; g epoch gone; g generation 2 [c-1=t-0 c-2=t-1]
              N: N in epoch -1
            > list L
              L: NONE [g PreparingRebalance "consumer" classic]
            > beat A id=c-1 gen=2
              A: REBALANCE_IN_PROGRESS
        "#]],
    );
}

#[test]
fn policies_forbid_either_way() {
    let config = immediate_targets();
    for policy in [MigrationPolicy::Disabled, MigrationPolicy::Downgrade] {
        let consumer = ConsumerGroupConfig { migration_policy: policy, ..config.consumer.clone() };
        check_with(
            GroupConfig { consumer, ..config.clone() },
            &format!(
                "{CLASSIC}
            hb N id=N
            "
            ),
            expect![[r#"
                > hb N id=N
                  N: GROUP_ID_NOT_FOUND
            "#]],
        );
    }
    let consumer =
        ConsumerGroupConfig { migration_policy: MigrationPolicy::Upgrade, ..config.consumer.clone() };
    check_with(
        GroupConfig { consumer, ..config },
        &format!(
            "{CLASSIC}
        ~hb N id=N
        ~hb N id=N epoch=-1
        list L
        "
        ),
        expect![[r#"
            > list L
              L: NONE [g Assigning "consumer" consumer]
        "#]],
    );
}

#[test]
fn empty_groups_change_whatever_the_policy() {
    let config = immediate_targets();
    let consumer =
        ConsumerGroupConfig { migration_policy: MigrationPolicy::Disabled, ..config.consumer.clone() };
    check_with(
        GroupConfig { consumer, ..config },
        "
        ~topic t 1
        commit C t-0=5
        hb A id=A
        ~hb A id=A epoch=-1
        join B
        join B
        list L
        fetch F t-0
        ",
        expect![[r#"
            > commit C t-0=5
              append g t-0=5
              C: t-0 NONE
            > hb A id=A
              append g gone; g member A [t]; g epoch 2; g target A [t-0]; g target epoch 2; g current A 2<-0 Stable [t-0@2]
              A: A in epoch 2, has [t-0]
            > join B
              append g target epoch gone; g partition metadata gone; g epoch gone; g generation 0 []
              B: COORDINATOR_LOAD_IN_PROGRESS ""
            > join B
              B: MEMBER_ID_REQUIRED "c-2"
            > list L
              L: NONE [g Empty "" classic]
            > fetch F t-0
              F: offsets [t-0=5]
        "#]],
    );
}

#[test]
fn while_a_group_changes_it_serves_no_client() {
    play(
        "
        hold
        hb N id=N
        hb M id=M
        beat A id=c-1
        join A id=c-1 protocols=range:t
        sync A id=c-1
        leave A c-1
        delete X
        fail 3 NOT_ENOUGH_REPLICAS
        list L
        beat A id=c-1
        ",
        expect![[r#"
            > hold
            > hb N id=N
              append #3 g gone; g member c-1 classic [t]; g member c-2 classic [t]; g epoch 1; g target c-1 [t-0]; g target c-2 [t-1]; g target epoch 1; g current c-1 1<-1 Stable [t-0@1]; g current c-2 1<-1 Stable [t-1@1]; g member N [t]; g epoch 2; g target N []; g target epoch 2; g current N 2<-0 Stable []
            > hb M id=M
              M: COORDINATOR_LOAD_IN_PROGRESS
            > beat A id=c-1
              A: NONE
            > join A id=c-1 protocols=range:t
              A: COORDINATOR_LOAD_IN_PROGRESS "c-1"
            > sync A id=c-1
              A: COORDINATOR_LOAD_IN_PROGRESS
            > leave A c-1
              A: left COORDINATOR_LOAD_IN_PROGRESS
            > delete X
              X: COORDINATOR_LOAD_IN_PROGRESS
            > fail 3 NOT_ENOUGH_REPLICAS
              N: COORDINATOR_NOT_AVAILABLE
            > list L
              L: NONE [g PreparingRebalance "consumer" classic]
            > beat A id=c-1
              A: REBALANCE_IN_PROGRESS
        "#]],
    );
}

#[test]
fn members_that_wait_in_a_classic_rebalance_are_sent_away() {
    play(
        "
        ~join - protocols=range:t
        join C id=c-3 protocols=range:t
        hb N id=N
        join C id=c-3 protocols=range:t
        ",
        expect![[r#"
            > join C id=c-3 protocols=range:t
            > hb N id=N
              C: REBALANCE_IN_PROGRESS "c-3"
              append g gone; g member c-1 classic [t]; g member c-2 classic [t]; g member c-3 classic [t]; g epoch 1; g target c-1 [t-0]; g target c-2 [t-1]; g target c-3 []; g target epoch 1; g current c-1 1<-1 Stable [t-0@1]; g current c-2 1<-1 Stable [t-1@1]; g current c-3 1<-1 Stable []; g member N [t]; g epoch 2; g target N []; g target epoch 2; g current N 2<-0 Stable []
              N: N in epoch 2, has []
            > join C id=c-3 protocols=range:t
              append g current c-3 2<-1 Stable []
              C: joined as c-3: generation 2, range, leader , members []
        "#]],
    );
}

#[test]
fn a_static_member_comes_back_as_a_classic_one() {
    check_with(
        immediate_targets(),
        "
        ~topic t 2
        ~hb A id=A instance=i
        ~join B protocols=range:t instance=j
        ~hb A id=A epoch=-2 instance=i
        join A protocols=range:t instance=i
        list L
        ",
        expect![[r#"
            > join A protocols=range:t instance=i
              append g current A gone; g target A gone; g member A gone; g member AgICAgICAgICAgICAgICAg/i [t]; g target AgICAgICAgICAgICAgICAg [t-0]; g current AgICAgICAgICAgICAgICAg 0<-0 Stable [t-0@0 t-1@0]; g member AgICAgICAgICAgICAgICAg/i classic [t]; g current AgICAgICAgICAgICAgICAg 3<-0 Stable [t-0@0]; g current AQEBAQEBAQEBAQEBAQEBAQ gone; g current AgICAgICAgICAgICAgICAg gone; g target AQEBAQEBAQEBAQEBAQEBAQ gone; g target AgICAgICAgICAgICAgICAg gone; g target epoch gone; g member AQEBAQEBAQEBAQEBAQEBAQ gone; g member AgICAgICAgICAgICAgICAg gone; g partition metadata gone; g epoch gone; g generation 3 [AQEBAQEBAQEBAQEBAQEBAQ=t-1 AgICAgICAgICAgICAgICAg=t-0]
              A: joined as AgICAgICAgICAgICAgICAg: generation 3, range, leader , members []
            > list L
              L: NONE [g Stable "consumer" classic]
        "#]],
    );
}

#[test]
fn classic_members_have_sessions_and_time_outs_of_their_own() {
    play(
        "
        ~hb N id=N
        # A has 10 s between heartbeats; B continues.
        ~beat B id=c-2
        wait 10000
        consumers D
        ",
        expect![[r#"
            > # A has 10 s between heartbeats; B continues.
            > wait 10000
              at 16000
              append g current c-1 gone; g target c-1 gone; g member c-1 gone; g epoch 3
              append g current c-2 gone; g target c-2 gone; g member c-2 gone; g epoch 4
            > consumers D
              D: Assigning epoch 4 target 2 uniform: N 2 [] -> []
        "#]],
    );
}

#[test]
fn another_coordinator_knows_what_the_group_has_become() {
    play(
        "
        ~hb N id=N
        reload
        consumers D
        ~hb N id=N epoch=-1
        reload
        list L
        ",
        expect![[r#"
            > reload
            > consumers D
              D: Reconciling epoch 2 target 2 uniform: N 2 [] -> []; c-1 classic 1 [t-0] -> [t-0]; c-2 classic 1 [t-1] -> [t-1]
            > reload
            > list L
              L: NONE [g Stable "consumer" classic]
        "#]],
    );
}
