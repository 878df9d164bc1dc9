//! Members that fall silent, and members that miss a rebalance.

use std::time::Duration;

use mainstem_broker::ManualClock;
use mainstem_tests::wait::eventually;
use mainstem_wire::ErrorCode;

use crate::groups::broker_at;
use crate::groups::member::{LONG_MS, Member, assemble_at, describe, wait_until_known};

/// Kafka's minimum (`group.min.session.timeout.ms`).
const SESSION: Duration = Duration::from_secs(6);

/// Less than a session.
const PART: Duration = Duration::from_millis(5_999);

#[test]
fn a_silent_member_is_dropped_when_its_session_is_over() {
    let clock = ManualClock::new();
    let broker = broker_at(&clock);
    let mut members = [Member::new(&broker), Member::new(&broker)];
    members[1].session_timeout_ms = SESSION.as_millis() as i32;
    assemble_at(&clock, &mut members);
    let [stays, silent] = &mut members;
    clock.advance(PART);
    assert_eq!(stays.heartbeat(), ErrorCode::NONE, "the session of the other one is not over");
    clock.advance(SESSION - PART);
    eventually("the silent member to be dropped", || {
        (stays.heartbeat() == ErrorCode::REBALANCE_IN_PROGRESS).then_some(())
    });
    let joined = stays.join();
    assert_eq!(joined.members, std::slice::from_ref(&stays.id));
    assert_eq!(
        (silent.heartbeat(), silent.commit(1)),
        (ErrorCode::UNKNOWN_MEMBER_ID, ErrorCode::UNKNOWN_MEMBER_ID)
    );
}

#[test]
fn heartbeats_keep_a_member_beyond_its_session() {
    let clock = ManualClock::new();
    let broker = broker_at(&clock);
    let mut members = [Member { session_timeout_ms: SESSION.as_millis() as i32, ..Member::new(&broker) }];
    assemble_at(&clock, &mut members);
    for round in 0..10 {
        clock.advance(PART);
        assert_eq!(members[0].heartbeat(), ErrorCode::NONE, "in round {round}");
    }
    let mut client = broker.connect();
    clock.advance(SESSION);
    // A heartbeat before its session ends would begin another one, so that the check asks another member.
    eventually("it to be dropped without", || (describe(&mut client).0 == "Empty").then_some(()));
    assert_eq!(members[0].heartbeat(), ErrorCode::UNKNOWN_MEMBER_ID);
}

#[test]
fn a_rebalance_does_not_wait_longer_than_its_time_for_a_member() {
    const REBALANCE: Duration = Duration::from_secs(4);
    let clock = ManualClock::new();
    let broker = broker_at(&clock);
    let rebalance_timeout_ms = REBALANCE.as_millis() as i32;
    let mut members = [Member { rebalance_timeout_ms, ..Member::new(&broker) }];
    assemble_at(&clock, &mut members);
    let [absent] = &mut members;
    let mut new = Member { rebalance_timeout_ms, ..Member::new(&broker) };
    new.ask_for_id();
    new.send_join();
    wait_until_known(absent, 2);
    clock.advance(REBALANCE - Duration::from_millis(1));
    assert_eq!(
        absent.heartbeat(),
        ErrorCode::REBALANCE_IN_PROGRESS,
        "it knows of the rebalance, but does not join"
    );
    clock.advance(Duration::from_millis(1));
    let joined = new.joined();
    assert_eq!((joined.error, joined.members), (ErrorCode::NONE, vec![new.id.clone()]));
    assert_eq!(absent.heartbeat(), ErrorCode::UNKNOWN_MEMBER_ID);
}

#[test]
fn a_group_whose_last_member_fell_silent_is_empty() {
    let clock = ManualClock::new();
    let broker = broker_at(&clock);
    let mut members = [Member { session_timeout_ms: SESSION.as_millis() as i32, ..Member::new(&broker) }];
    assemble_at(&clock, &mut members);
    assert_eq!(members[0].commit(7), ErrorCode::NONE);
    let mut client = broker.connect();
    clock.advance(SESSION);
    eventually("the group to be empty", || (describe(&mut client).0 == "Empty").then_some(()));
    assert_eq!(client.committed(crate::groups::GROUP, crate::groups::TOPIC, 0).unwrap(), 7, "offsets stay");
    let mut next = Member { session_timeout_ms: LONG_MS, ..Member::new(&broker) };
    assert_eq!(next.join_at(&clock).members.len(), 1);
    assert!(next.generation > members[0].generation);
}
