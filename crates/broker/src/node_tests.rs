//! A node that other nodes send requests.

use mainstem_log::TransactionMarker;
use mainstem_node::answers::write_markers;
use mainstem_node::cluster::calls::Who;
use mainstem_node::cluster::decisions::may_transfer;
use mainstem_records::{CoordinatorEpoch, ProducerEpoch, ProducerId};
use mainstem_wire::{ApiKey, ErrorCode};

use crate::EmbeddedBroker;

#[test]
fn the_leader_of_a_partition_judges_who_wants_it_to_hand_over() {
    let embedded = EmbeddedBroker::start(&[
        ("authorizer.class.name", "org.apache.kafka.metadata.authorizer.StandardAuthorizer"),
        ("super.users", "User:admin"),
    ]);
    let of = |principal: &str| Who {
        node: 2,
        principal: principal.into(),
        listener: "PLAINTEXT".into(),
        peer: "127.0.0.1:5".into(),
        client_id: None,
        api: ApiKey::ElectLeaders as i16,
        version: 2,
        correlation_id: 1,
        denied: Default::default(),
    };
    let may = |who: Option<&Who>| may_transfer(&embedded.broker().local, who);
    assert_eq!(may(Some(&of("User:a"))), Err(ErrorCode::CLUSTER_AUTHORIZATION_FAILED));
    assert_eq!((may(Some(&of("User:admin"))), may(None)), (Ok(()), Ok(())));
}

/// A node answers soon after its start, before it knows any topic.
#[test]
fn that_a_partition_is_gone_is_no_answer_to_another_node() {
    let embedded = EmbeddedBroker::start(&[]);
    let marker = TransactionMarker {
        producer_id: ProducerId::new(1),
        producer_epoch: ProducerEpoch::new(2),
        coordinator_epoch: CoordinatorEpoch::new(3),
        committed: true,
        transaction_version: 2,
    };
    let marked = write_markers(&embedded.broker().node, marker, vec![("not-here".to_owned(), 4)]);
    assert_eq!(marked, [("not-here".to_owned(), 4, ErrorCode::NOT_LEADER_OR_FOLLOWER.code())]);
}
