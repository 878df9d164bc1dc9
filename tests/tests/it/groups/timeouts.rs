//! Members that fall silent, and members that do not come to a rebalance.

use std::time::{Duration, Instant};

use mainstem_tests::broker::Setup;
use mainstem_tests::wait::eventually;
use mainstem_wire::ErrorCode;

use crate::groups::broker;
use crate::groups::member::{LONG_MS, Member, assemble, describe, wait_until_known};

/// Far more than the few requests take that have to be made before it is over.
const SESSION: Duration = Duration::from_secs(4);

#[test]
fn a_silent_member_is_dropped_when_its_session_is_over() {
    let broker = broker(Setup::new("session"));
    let mut members = [Member::new(&broker), Member::new(&broker)];
    members[1].session_timeout_ms = SESSION.as_millis() as i32;
    let begin = Instant::now();
    assemble(&mut members);
    let [stays, silent] = &mut members;
    eventually("the silent member to be dropped", || {
        (stays.heartbeat() == ErrorCode::REBALANCE_IN_PROGRESS).then_some(())
    });
    assert!(begin.elapsed() >= SESSION * 9 / 10, "dropped after {:?}", begin.elapsed());
    let joined = stays.join();
    assert_eq!(joined.members, std::slice::from_ref(&stays.id));
    assert_eq!(
        (silent.heartbeat(), silent.commit(1)),
        (ErrorCode::UNKNOWN_MEMBER_ID, ErrorCode::UNKNOWN_MEMBER_ID)
    );
}

#[test]
fn heartbeats_keep_a_member_beyond_its_session() {
    let broker = broker(Setup::new("heartbeats"));
    let mut members = [Member { session_timeout_ms: SESSION.as_millis() as i32, ..Member::new(&broker) }];
    assemble(&mut members);
    let begin = Instant::now();
    while begin.elapsed() < SESSION * 2 {
        assert_eq!(members[0].heartbeat(), ErrorCode::NONE, "after {:?}", begin.elapsed());
    }
}

#[test]
fn a_rebalance_does_not_wait_longer_than_its_time_for_a_member() {
    const REBALANCE: Duration = Duration::from_secs(4);
    let broker = broker(Setup::new("rebalance"));
    let rebalance_timeout_ms = REBALANCE.as_millis() as i32;
    let mut members = [Member { rebalance_timeout_ms, ..Member::new(&broker) }];
    assemble(&mut members);
    let [absent] = &mut members;
    let mut new = Member { rebalance_timeout_ms, ..Member::new(&broker) };
    new.ask_for_id();
    let begin = Instant::now();
    new.send_join();
    wait_until_known(absent, 2);
    assert_eq!(absent.heartbeat(), ErrorCode::REBALANCE_IN_PROGRESS, "told, but it does not come");
    let joined = new.joined();
    assert_eq!((joined.error, joined.members), (ErrorCode::NONE, vec![new.id.clone()]));
    assert!(begin.elapsed() >= REBALANCE * 9 / 10, "{:?}", begin.elapsed());
    assert_eq!(absent.heartbeat(), ErrorCode::UNKNOWN_MEMBER_ID);
}

#[test]
fn a_group_whose_last_member_fell_silent_is_empty() {
    let broker = broker(Setup::new("empty"));
    let mut members = [Member { session_timeout_ms: SESSION.as_millis() as i32, ..Member::new(&broker) }];
    assemble(&mut members);
    assert_eq!(members[0].commit(7), ErrorCode::NONE);
    let mut client = broker.connect();
    eventually("the group to be empty", || (describe(&mut client).0 == "Empty").then_some(()));
    assert_eq!(client.committed(crate::groups::GROUP, crate::groups::TOPIC, 0).unwrap(), 7, "offsets stay");
    let mut next = Member { session_timeout_ms: LONG_MS, ..Member::new(&broker) };
    assert_eq!(next.join().members.len(), 1);
    assert!(next.generation > members[0].generation);
}
