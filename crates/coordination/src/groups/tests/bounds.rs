//! Limits of the memory that a peer can use.

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
        super::transcript::answer(&cluster, super::cluster::replies(&effects).next().expect("an answer").1)
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
    assert!(super::transcript::answer(&cluster, reply).ends_with("INVALID_TOPIC_EXCEPTION"));
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
    let before = cluster.coordinator.deadline_count();
    for _ in 0..100 {
        let random = cluster.random();
        cluster.send(3, "c", Request::JoinGroup { request: script::join(&Words::parse("join A")), random });
        let id = format!("leave X c-{}", random[0]);
        cluster.send(5, "c", Request::LeaveGroup(script::leave(&Words::parse(&id), 5)));
        cluster.effects();
    }
    // The one group keeps the end of its phase, and its partition the timer of the appends that members wait for.
    assert_eq!(cluster.coordinator.deadline_count(), before + 2);
    assert_eq!((cluster.coordinator.stats().members, cluster.coordinator.stats().groups), (0, 1));
}

#[test]
fn bytes_of_members_and_assignments_are_bounded() {
    let mut alone = Cluster::new(config());
    let random = alone.random();
    alone.send(3, "c", Request::JoinGroup { request: script::join(&Words::parse("join A")), random });
    let created: Vec<_> = super::cluster::tickets(&alone.effects()).collect();
    created.into_iter().for_each(|ticket| alone.finish(ticket, Ok(())));
    // The member, and a little more.
    let memory_bytes_max = alone.coordinator.stats().bytes + 20;
    check_with(
        GroupConfig { memory_bytes_max, ..config() },
        "
        join A v=3
        join B g=h
        join B v=3
        wait 3000
        join A v=3 id=c-1 protocols=range:more-than-there-is-room-for-with-what-is-there-by-now-and-what-was-in-flight
        sync A id=c-1 assign=c-1:more-than-there-is-room-for-with-what-is-there-by-now-and-what-was-in-flight
        beat A id=c-1
        sync A id=c-1 assign=c-1:less
        sync A id=c-1
        join A v=3 id=c-1
        sync A id=c-1 gen=2 assign=c-1:same
        leave A c-1
        join B v=3
        ",
        expect![[r#"
            > join A v=3
              append g generation 0 []
            > join B g=h
              B: GROUP_MAX_SIZE_REACHED ""
            > join B v=3
              B: GROUP_MAX_SIZE_REACHED ""
            > wait 3000
              at 3000
              A: joined as c-1: generation 1, range, leader c-1, members [c-1]
            > join A v=3 id=c-1 protocols=range:more-than-there-is-room-for-with-what-is-there-by-now-and-what-was-in-flight
              A: GROUP_MAX_SIZE_REACHED ""
            > sync A id=c-1 assign=c-1:more-than-there-is-room-for-with-what-is-there-by-now-and-what-was-in-flight
              A: COORDINATOR_NOT_AVAILABLE
            > beat A id=c-1
              A: NONE
            > sync A id=c-1 assign=c-1:less
              append g generation 1 [c-1=less]
              A: synced consumer range: "less"
            > sync A id=c-1
              A: synced consumer range: "less"
            > join A v=3 id=c-1
              A: joined as c-1: generation 2, range, leader c-1, members [c-1]
            > sync A id=c-1 gen=2 assign=c-1:same
              append g generation 2 [c-1=same]
              A: synced consumer range: "same"
            > leave A c-1
              append g generation 3 []
              A: left NONE c-1 NONE
            > join B v=3
        "#]],
    );
}

#[test]
fn offsets_leave_memory_to_new_groups() {
    check_with(
        GroupConfig { memory_bytes_max: 4_000, memory_bytes_for_members: 2_000, ..config() },
        "
        commit A t-0=1:x1200
        commit A t-1=1:x1200
        join A v=3
        ",
        expect![[r#"
            > commit A t-0=1:x1200
              append g t-0=1
              A: t-0 NONE
            > commit A t-1=1:x1200
              A: t-1 INVALID_COMMIT_OFFSET_SIZE
            > join A v=3
        "#]],
    );
}

#[test]
fn bytes_of_offsets_are_bounded_and_a_commit_that_adds_none_is_not_refused() {
    check_with(
        GroupConfig { memory_bytes_max: 1_300, ..config() },
        "
        commit A t-0=1:x200
        commit A t-1=1:x600
        commit A g=h t-0=1
        commit A t-0=2:x200
        commit A t-0=2:x800
        commit A t-0=3
        commit A t-1=1:x200
        hold
        commit A t-0=4
        commit A t-0=5
        commit A t-0=6
        commit A t-0=7
        commit A t-0=8
        commit A t-0=9
        fetch F stable t-0
        fetch F t-0
        ",
        expect![[r#"
            > commit A t-0=1:x200
              append g t-0=1
              A: t-0 NONE
            > commit A t-1=1:x600
              A: t-1 INVALID_COMMIT_OFFSET_SIZE
            > commit A g=h t-0=1
              A: t-0 INVALID_COMMIT_OFFSET_SIZE
            > commit A t-0=2:x200
              append g t-0=2
              A: t-0 NONE
            > commit A t-0=2:x800
              A: t-0 INVALID_COMMIT_OFFSET_SIZE
            > commit A t-0=3
              append g t-0=3
              A: t-0 NONE
            > commit A t-1=1:x200
              append g t-1=1
              A: t-1 NONE
            > hold
            > commit A t-0=4
              append #5 g t-0=4
            > commit A t-0=5
              append #6 g t-0=5
            > commit A t-0=6
              append #7 g t-0=6
            > commit A t-0=7
              append #8 g t-0=7
            > commit A t-0=8
              append #9 g t-0=8
            > commit A t-0=9
              A: t-0 COORDINATOR_NOT_AVAILABLE
            > fetch F stable t-0
              F: COORDINATOR_NOT_AVAILABLE
            > fetch F t-0
              F: offsets [t-0=3]
        "#]],
    );
}

#[test]
fn what_the_log_holds_is_loaded_whatever_its_size() {
    let mut cluster = Cluster::new(config());
    let commit = |cluster: &mut Cluster, words: &str| {
        cluster.send(9, "c", Request::OffsetCommit(script::commit(&Words::parse(words))));
        let appends: Vec<_> = super::cluster::tickets(&cluster.effects()).collect();
        appends.into_iter().for_each(|ticket| cluster.finish(ticket, Ok(())));
        let effects = cluster.effects();
        super::cluster::replies(&effects)
            .map(|(_, reply)| super::transcript::answer(cluster, reply))
            .collect::<String>()
    };
    for partition in 0..100 {
        commit(&mut cluster, &format!("commit A t-{partition}=1:x100"));
    }
    let before = cluster.coordinator.stats();
    cluster.config.memory_bytes_max = 1_000;
    cluster.reload();
    assert_eq!(cluster.coordinator.stats(), before);
    assert!(before.bytes > 100 * 100, "{before:?}");
    assert_eq!(commit(&mut cluster, "commit A t-0=2:x100"), "t-0 NONE");
}
