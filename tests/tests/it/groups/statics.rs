//! Static members (KIP-345).

use mainstem_tests::broker::Setup;
use mainstem_wire::ErrorCode;

use crate::groups::broker;
use crate::groups::member::{Member, assemble, describe};

#[test]
fn a_static_member_that_comes_back_takes_its_place_without_a_rebalance() {
    let broker = broker(Setup::new("static"));
    let mut members = [Member::with_instance(&broker, "one"), Member::with_instance(&broker, "two")];
    assemble(&mut members);
    let [one, two] = &mut members;
    let (generation, assigned) = (two.generation, two.id.clone());
    let mut again = Member::with_instance(&broker, "two");
    let joined = again.join();
    assert_eq!((joined.error, again.generation), (ErrorCode::NONE, generation));
    assert_ne!(again.id, two.id, "a new life has a new id");
    assert_eq!(again.sync(&[]), Ok(assigned), "and the assignment of the old");
    assert_eq!(one.heartbeat(), ErrorCode::NONE, "no other member noticed");
    assert_eq!(again.heartbeat(), ErrorCode::NONE);
    assert_eq!(two.heartbeat(), ErrorCode::FENCED_INSTANCE_ID);
    assert_eq!(two.commit(1), ErrorCode::FENCED_INSTANCE_ID);
    assert_eq!(describe(&mut one.client).1.len(), 2);
}

#[test]
fn a_fenced_static_member_cannot_join_by_its_old_id() {
    let broker = broker(Setup::new("static-fenced"));
    let mut members = [Member::with_instance(&broker, "one")];
    assemble(&mut members);
    let mut again = Member::with_instance(&broker, "one");
    assert_eq!(again.join().error, ErrorCode::NONE);
    let [old] = &mut members;
    old.send_join();
    assert_eq!(old.joined().error, ErrorCode::FENCED_INSTANCE_ID);
    old.send_sync(&[]);
    assert_eq!(old.synced(), Err(ErrorCode::FENCED_INSTANCE_ID));
    let mut unknown = Member { id: "missing".to_owned(), ..Member::with_instance(&broker, "three") };
    unknown.send_join();
    assert_eq!(unknown.joined().error, ErrorCode::UNKNOWN_MEMBER_ID);
}
