//! A broker that is killed or stopped restores its groups, and members continue.

use mainstem_tests::broker::{Broker, Setup};
use mainstem_wire::ErrorCode;

use crate::groups::member::{Member, assemble, describe, wait_until_known};
use crate::groups::{GROUP, TOPIC, broker};

/// The same members on new connections.
fn reconnect(broker: &Broker, members: &mut [Member]) {
    members.iter_mut().for_each(|member| member.client = broker.connect());
}

#[test]
fn members_go_on_after_a_kill_and_after_a_stop() {
    let mut broker = broker(Setup::new("group-restart"));
    let mut members =
        [Member::new(&broker), Member::new(&broker), Member::with_instance(&broker, "instance")];
    assemble(&mut members);
    for round in 0..4_i64 {
        assert_eq!(members[0].commit(round), ErrorCode::NONE);
        if round % 2 == 0 {
            broker.kill()
        } else {
            broker.stop()
        }
        broker.start_again();
        reconnect(&broker, &mut members);
        for member in &mut members {
            assert_eq!(member.heartbeat(), ErrorCode::NONE, "round {round}");
            assert_eq!(member.sync(&[]), Ok(member.id.clone()), "round {round}");
        }
        let mut client = broker.connect();
        assert_eq!(client.committed(GROUP, TOPIC, 0).unwrap(), round);
        assert_eq!(describe(&mut client).0, "Stable");
    }
}

#[test]
fn a_rebalance_goes_on_after_a_kill() {
    let mut broker = broker(Setup::new("group-rebalance"));
    let mut members = [Member::new(&broker), Member::new(&broker)];
    assemble(&mut members);
    let generation = members[0].generation;
    let mut third = Member::new(&broker);
    third.ask_for_id();
    third.send_join();
    wait_until_known(&mut members[0], 3);
    broker.kill();
    broker.start_again();
    reconnect(&broker, &mut members);
    // The new member was never part of a generation: it begins without an id again.
    let mut third = Member::new(&broker);
    third.ask_for_id();
    third.send_join();
    wait_until_known(&mut members[0], 3);
    let [first, second] = &mut members;
    second.send_join();
    let joined = first.join();
    assert_eq!((joined.error, joined.members.len()), (ErrorCode::NONE, 3));
    assert!(first.generation > generation, "a generation is not used twice");
    assert_eq!((second.joined().error, third.joined().error), (ErrorCode::NONE, ErrorCode::NONE));
    let everyone = joined.members.clone();
    let leader = if joined.leader == first.id { first } else { second };
    assert_eq!(leader.sync(&everyone), Ok(leader.id.clone()));
    assert_eq!(third.sync(&[]), Ok(third.id.clone()));
}

#[test]
fn an_empty_group_comes_back_with_its_offsets() {
    let mut broker = broker(Setup::new("group-empty"));
    let mut client = broker.connect();
    client.commit(GROUP, TOPIC, 2, 42).unwrap();
    broker.kill();
    broker.start_again();
    let mut client = broker.connect();
    assert_eq!(client.committed(GROUP, TOPIC, 2).unwrap(), 42);
    assert_eq!(describe(&mut client), ("Empty".to_owned(), vec![]));
}
