//! Limits: what a peer cannot make grow.

use expect_test::expect;

use super::cluster::Cluster;
use super::script::{self, Words};
use super::transcript::{check_with, config};
use crate::groups::{GroupConfig, Request};

#[test]
fn groups_members_and_offsets_are_bounded() {
    check_with(
        GroupConfig { groups_max: 1, members_max: 2, offsets_max: 2, ..config() },
        "
        join A v=3
        join B g=h
        commit B g=h t-0=1
        join B
        join C
        join C v=3 g=g
        join B id=c-3
        commit S id=c-1 gen=0 t-0=1 t-1=1
        commit S id=c-1 gen=0 t-2=1
        ",
        expect![[r#"
            > join A v=3
              append g generation 0 []
            > join B g=h
              B: COORDINATOR_NOT_AVAILABLE ""
            > commit B g=h t-0=1
              B: t-0 COORDINATOR_NOT_AVAILABLE
            > join B
              B: MEMBER_ID_REQUIRED "c-3"
            > join C
              C: GROUP_MAX_SIZE_REACHED ""
            > join C v=3 g=g
              C: GROUP_MAX_SIZE_REACHED ""
            > join B id=c-3
            > commit S id=c-1 gen=0 t-0=1 t-1=1
              append g t-0=1; g t-1=1
              S: t-0 NONE, t-1 NONE
            > commit S id=c-1 gen=0 t-2=1
              S: t-2 INVALID_COMMIT_OFFSET_SIZE
        "#]],
    );
}

#[test]
fn appends_in_flight_are_bounded() {
    check_with(
        GroupConfig { pending_appends_max: 2, ..config() },
        "
        hold
        commit A t-0=1
        commit B t-0=2
        commit C t-0=3
        join J
        fetch F stable t-0
        fetch F t-0
        ok 1
        commit C t-0=3
        ",
        expect![[r#"
            > hold
            > commit A t-0=1
              append #1 g t-0=1
            > commit B t-0=2
              append #2 g t-0=2
            > commit C t-0=3
              C: t-0 COORDINATOR_NOT_AVAILABLE
            > join J
              J: COORDINATOR_NOT_AVAILABLE ""
            > fetch F stable t-0
              F: COORDINATOR_NOT_AVAILABLE
            > fetch F t-0
              F: offsets [t-0=-1]
            > ok 1
              A: t-0 NONE
            > commit C t-0=3
              append #3 g t-0=3
        "#]],
    );
}

#[test]
fn names_that_cannot_be_stored_are_refused() {
    let long = "n".repeat(32_760);
    let mut cluster = Cluster::new(config());
    let join = |words: &str| script::join(&Words::parse(words));
    let mut refused = |client: &str, request| {
        let random = [1; 16];
        cluster.send(9, client, Request::JoinGroup { request, random });
        let effects = cluster.effects();
        assert_eq!(effects.len(), 1, "{effects:?}");
        super::transcript::answer(super::cluster::replies(&effects).next().expect("an answer").1)
    };
    assert_eq!(refused(&long, join("join A")), "INVALID_REQUEST \"\"");
    assert_eq!(refused("c", join(&format!("join A g={long}"))), "INVALID_REQUEST \"\"");
    assert_eq!(refused("c", join(&format!("join A instance={long}"))), "INVALID_REQUEST \"\"");
    assert_eq!(refused("c", join(&format!("join A protocols={long}"))), "INVALID_REQUEST \"\"");
    let commit = script::commit(&Words::parse(&format!("commit A {long}-0=1"))).clone();
    let mut cluster = Cluster::new(config());
    cluster.send(9, "c", Request::OffsetCommit(commit));
    let effects = cluster.effects();
    let (_, reply) = super::cluster::replies(&effects).next().expect("an answer");
    assert!(super::transcript::answer(reply).ends_with("INVALID_TOPIC_EXCEPTION"));
}

#[test]
fn protocols_of_a_member_are_bounded() {
    check_with(
        GroupConfig { member_protocol_bytes_max: 100, ..config() },
        "
        join A protocols=range:aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa
        join A
        ",
        expect![[r#"
            > join A protocols=range:aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa
              A: INVALID_REQUEST ""
            > join A
              A: MEMBER_ID_REQUIRED "c-2"
              append g generation 0 []
        "#]],
    );
}

#[test]
fn members_that_come_and_go_leave_no_deadline_behind() {
    let mut cluster = Cluster::new(config());
    let before = cluster.heart.deadline_count();
    for _ in 0..100 {
        let random = cluster.random();
        cluster.send(3, "c", Request::JoinGroup { request: script::join(&Words::parse("join A")), random });
        let id = format!("leave X c-{}", random[0]);
        cluster.send(5, "c", Request::LeaveGroup(script::leave(&Words::parse(&id), 5)));
        cluster.effects();
    }
    // The one group keeps the end of its phase.
    assert_eq!(cluster.heart.deadline_count(), before + 1);
    assert_eq!((cluster.heart.stats().members, cluster.heart.stats().groups), (0, 1));
}
