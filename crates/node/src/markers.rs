//! Markers, which end a producer's transaction in a partition (KIP-98): those of the coordinator, and of
//! WriteTxnMarkers.

use std::collections::BTreeMap;
use std::sync::Arc;

use mainstem_coordination::transactions::{MarkerOutcome, Markers};
use mainstem_log::TransactionMarker;
use mainstem_wire::ErrorCode;

use crate::cluster::calls::{Answer, Answered, Ask, MarkersNote};
use crate::node::Node;
use mainstem_coordinators as coordinators;
use mainstem_coordinators::markers::OnMarked;

/// Writes all markers of a transaction; the coordinator hears of each.
pub(crate) fn write_all(node: &Arc<Node>, markers: Markers) {
    let marker = TransactionMarker {
        producer_id: markers.producer_id,
        producer_epoch: markers.producer_epoch,
        coordinator_epoch: markers.coordinator_epoch,
        committed: markers.committed,
        transaction_version: markers.transaction_version.into(),
    };
    // Those of one node in one request.
    let mut elsewhere: BTreeMap<i32, Vec<(String, i32, OnMarked)>> = BTreeMap::new();
    for topic in markers.topics {
        for index in topic.partitions {
            let (own, name, ticket) = (node.clone(), topic.name.clone(), markers.ticket);
            let on_written = move |outcome| {
                own.local.transactions.change(|coordinator, now| {
                    coordinator.marked(now, ticket, &name, index, outcome);
                });
            };
            match leader_elsewhere(node, &topic.name, index) {
                Some(leader) => {
                    let there = elsewhere.entry(leader).or_default();
                    there.push((topic.name.to_string(), index, Box::new(on_written)));
                }
                None => write_own(node, &topic.name, index, marker, Box::new(on_written)),
            }
        }
    }
    for (leader, there) in elsewhere {
        hand_on(node, leader, marker, there);
    }
}

/// The other node that leads a partition, if one does.
fn leader_elsewhere(node: &Node, topic: &str, index: i32) -> Option<i32> {
    let cluster = node.cluster.as_ref()?;
    let topic = node.local.store.topics.by_name(topic)?;
    let partition = topic.partition(index)?;
    let leader = cluster.leader_of_partition(topic.id, index, partition)?;
    Some(leader.node).filter(|leader| *leader != node.local.id)
}

/// Writes a marker into a partition, wherever that is led.
pub fn write(node: &Arc<Node>, topic: &str, index: i32, marker: TransactionMarker, on_marked: OnMarked) {
    match leader_elsewhere(node, topic, index) {
        Some(leader) => hand_on(node, leader, marker, vec![(topic.to_owned(), index, on_marked)]),
        None => write_own(node, topic, index, marker, on_marked),
    }
}

/// Has another node write markers.
fn hand_on(
    node: &Arc<Node>,
    leader: i32,
    marker: TransactionMarker,
    mut there: Vec<(String, i32, OnMarked)>,
) {
    let Some(cluster) = &node.cluster else { return };
    let note = MarkersNote {
        producer_id: marker.producer_id.get(),
        producer_epoch: marker.producer_epoch.get(),
        coordinator_epoch: marker.coordinator_epoch.get(),
        committed: marker.committed,
        transaction_version: marker.transaction_version,
        partitions: there.iter().map(|(topic, index, _)| (topic.clone(), *index)).collect(),
    };
    cluster.ask_then(leader, &Ask::Markers(note), move |answered| {
        let marked = match answered {
            Answered::Is { answer: Answer::Marked(marked), .. } => marked,
            // Its fate is unknown: it is written again, which does no harm.
            _ => Vec::new(),
        };
        for (topic, index, on_marked) in there.drain(..) {
            let found = marked.iter().find(|(name, number, _)| (name.as_str(), *number) == (&topic, index));
            on_marked(match found {
                None => MarkerOutcome::Failed(ErrorCode::NOT_LEADER_OR_FOLLOWER),
                Some((.., 0)) => MarkerOutcome::Written,
                Some((.., code)) => MarkerOutcome::Failed(ErrorCode(*code)),
            });
        }
    });
}

/// Writes a marker into a partition that no other node leads, as far as this one knows.
fn write_own(node: &Arc<Node>, topic: &str, index: i32, marker: TransactionMarker, on_marked: OnMarked) {
    let (own, name) = (node.clone(), topic.to_owned());
    let on_written = move |outcome| match (outcome, &own.cluster) {
        (MarkerOutcome::Gone, Some(cluster)) => {
            // Or this node does not know it yet, as one that starts: its transaction would be left without an end.
            let still = own.clone();
            let current = move |is_current: bool| match is_current {
                true => on_marked(unserved(&still, &name, index)),
                false => on_marked(MarkerOutcome::Failed(ErrorCode::NOT_LEADER_OR_FOLLOWER)),
            };
            cluster.when_current(Box::new(current));
        }
        (outcome, _) => on_marked(outcome),
    };
    write_here(node, topic, index, marker, Box::new(on_written));
}

/// Writes a marker into a partition that this node leads. `on_marked` is called when it is as durable as acks=all, or cannot
/// be written.
pub(crate) fn write_here(
    node: &Arc<Node>,
    topic: &str,
    index: i32,
    marker: TransactionMarker,
    on_marked: OnMarked,
) {
    let (own, name) = (node.clone(), topic.to_owned());
    let on_marked = move |outcome| {
        on_marked(match outcome {
            MarkerOutcome::Gone => unserved(&own, &name, index),
            outcome => outcome,
        });
    };
    coordinators::markers::write(&node.local.groups, (topic, index), marker, Box::new(on_marked));
}

/// A partition that exists is served sooner or later; one that does not has nothing left to end, if this node's metadata are
/// those of now.
fn unserved(node: &Node, topic: &str, index: i32) -> MarkerOutcome {
    let image = node.controller.image();
    let exists = image
        .topic(topic)
        .is_some_and(|topic| usize::try_from(index).is_ok_and(|index| index < topic.partitions.len()));
    match exists {
        true => MarkerOutcome::Failed(ErrorCode::NOT_LEADER_OR_FOLLOWER),
        false => MarkerOutcome::Gone,
    }
}
