//! Groups that change their protocol while they work (KIP-848).

use expect_test::expect;

use super::consumer::at_once;
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
    check_with(at_once(), &format!("{CLASSIC}{rest}"), expect);
}

#[test]
fn the_first_consumer_makes_a_classic_group_a_consumer_group() {
    play(
        "
        hb N id=N
        consumers D
        describe D
        # Classic members are told to rejoin, and get what is theirs by the protocol that they speak.
        beat A id=c-1
        join A id=c-1 protocols=range:t
        sync A id=c-1 gen=2
        join B id=c-2 protocols=range:t
        sync B id=c-2 gen=2
        hb N id=N epoch=2
        consumers D
        ",
        expect![[""]],
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
        expect![[""]],
    );
}

#[test]
fn policies_forbid_either_way() {
    let config = at_once();
    for policy in [MigrationPolicy::Disabled, MigrationPolicy::Downgrade] {
        let consumer = ConsumerGroupConfig { migration_policy: policy, ..config.consumer.clone() };
        check_with(
            GroupConfig { consumer, ..config.clone() },
            &format!("{CLASSIC}
            hb N id=N
            "),
            expect![[""]],
        );
    }
    let consumer = ConsumerGroupConfig { migration_policy: MigrationPolicy::Upgrade, ..config.consumer.clone() };
    check_with(
        GroupConfig { consumer, ..config },
        &format!("{CLASSIC}
        ~hb N id=N
        ~hb N id=N epoch=-1
        list L
        "),
        expect![[""]],
    );
}

#[test]
fn empty_groups_change_whatever_the_policy() {
    let config = at_once();
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
        expect![[""]],
    );
}

#[test]
fn while_a_group_changes_it_serves_nobody() {
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
        fail 6 NOT_ENOUGH_REPLICAS
        list L
        beat A id=c-1
        ",
        expect![[""]],
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
        expect![[""]],
    );
}

#[test]
fn a_static_member_comes_back_as_a_classic_one() {
    check_with(
        at_once(),
        "
        ~topic t 2
        ~hb A id=A instance=i
        ~join B protocols=range:t instance=j
        ~hb A id=A epoch=-2 instance=i
        join A protocols=range:t instance=i
        list L
        ",
        expect![[""]],
    );
}

#[test]
fn classic_members_have_sessions_and_time_outs_of_their_own() {
    play(
        "
        ~hb N id=N
        # A has 10 s between heartbeats; B goes on.
        ~beat B id=c-2
        wait 10000
        consumers D
        ",
        expect![[""]],
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
        expect![[""]],
    );
}
