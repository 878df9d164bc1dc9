//! Figures of replicas that move between nodes, each of the partitions that this node leads.

use mainstem_operator::{Exposition, Kind};

use crate::broker::Broker;

/// Writes them all, of a node with other nodes.
pub(super) fn expose(broker: &Broker, text: &mut Exposition) {
    if broker.cluster.is_none() {
        return;
    }
    let members = &broker.store.members;
    let name = "kafka_server_replicamanager_reassigningpartitions";
    let help = "Partitions led here whose replicas are not those that are wanted.";
    text.one(name, Kind::Gauge, help, members.under_way() as f64);
    let help = "Those of them that have been so for longer than ten minutes.";
    let stuck = members.stuck(broker.store.clock.instant());
    text.one("mainstem_moves_stuck", Kind::Gauge, help, stuck as f64);
    let help = "Replicas of this node that are lost, and not replaced yet.";
    let lost = members.lost(&broker.controller.image(), broker.store.node);
    text.one("mainstem_replicas_lost", Kind::Gauge, help, lost.len() as f64);
}
