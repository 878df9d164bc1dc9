//! Markers, which end a producer's transaction in a partition (KIP-98): those of the coordinator, and of
//! WriteTxnMarkers.

use std::sync::Arc;

use mainstem_coordination::transactions::{MarkerOutcome, Markers};
use mainstem_log::TransactionMarker;
use mainstem_wire::ErrorCode;

use crate::broker::Broker;
use crate::coordinators::groups::OFFSETS_TOPIC;
use crate::storage::partition::{Durable, NoLog, Refused};

/// Called once with what became of a marker.
pub(crate) type OnMarked = Box<dyn FnOnce(MarkerOutcome) + Send>;

/// Writes all markers of a transaction; the coordinator hears of each.
pub(crate) fn write_all(broker: &Arc<Broker>, markers: Markers) {
    let marker = TransactionMarker {
        producer_id: markers.producer_id,
        producer_epoch: markers.producer_epoch,
        coordinator_epoch: markers.coordinator_epoch,
        committed: markers.committed,
        transaction_version: markers.transaction_version.into(),
    };
    for topic in markers.topics {
        for index in topic.partitions {
            let (own, name, ticket) = (broker.clone(), topic.name.clone(), markers.ticket);
            let told = move |outcome| {
                own.transactions.change(&own, |coordinator, now| {
                    coordinator.marked(now, ticket, &name, index, outcome);
                });
            };
            write(broker, &topic.name, index, marker, Box::new(told));
        }
    }
}

/// Writes a marker into a partition. `on_marked` is called when it is as durable as acks=all, or cannot be written.
pub(crate) fn write(
    broker: &Arc<Broker>,
    topic: &str,
    index: i32,
    marker: TransactionMarker,
    on_marked: OnMarked,
) {
    let Some(partition) = broker.topics.partition(topic, index) else {
        return on_marked(unserved(broker, topic, index));
    };
    if topic == OFFSETS_TOPIC {
        let told = move |written: Result<(), ErrorCode>| {
            on_marked(written.map_or_else(of_groups, |()| MarkerOutcome::Written))
        };
        return broker.groups.end_transaction(broker, index, marker, Box::new(told));
    }
    match partition.append_marker(&marker, &broker.clock) {
        Ok(outcome) => {
            let told = move |durable: Result<(), ErrorCode>| {
                on_marked(durable.map_or_else(MarkerOutcome::Failed, |()| MarkerOutcome::Written));
            };
            match partition.settings().write_caching {
                true => told(Ok(())),
                false => {
                    partition.when_durable(outcome.appended.last_offset + 1, Durable::Call(Box::new(told)))
                }
            }
        }
        Err(Refused::NoLog(NoLog::Gone)) => on_marked(unserved(broker, topic, index)),
        Err(refused) => on_marked(MarkerOutcome::Failed(refused.code())),
    }
}

/// A partition that exists is served sooner or later; one that does not has nothing left to end.
fn unserved(broker: &Broker, topic: &str, index: i32) -> MarkerOutcome {
    let image = broker.controller.image();
    let exists = image
        .topic(topic)
        .is_some_and(|topic| usize::try_from(index).is_ok_and(|index| index < topic.partitions.len()));
    match exists {
        true => MarkerOutcome::Failed(ErrorCode::NOT_LEADER_OR_FOLLOWER),
        false => MarkerOutcome::Gone,
    }
}

/// What the groups' coordinator says, as the transactions' coordinator is told it by Kafka.
fn of_groups(error: ErrorCode) -> MarkerOutcome {
    MarkerOutcome::Failed(match error {
        ErrorCode::NOT_COORDINATOR
        | ErrorCode::COORDINATOR_LOAD_IN_PROGRESS
        | ErrorCode::COORDINATOR_NOT_AVAILABLE => ErrorCode::NOT_LEADER_OR_FOLLOWER,
        other => other,
    })
}
