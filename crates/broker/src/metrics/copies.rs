//! Figures of copies of partitions between nodes.

use mainstem_operator::{Exposition, Kind};

use crate::broker::Broker;

/// Writes them all, of a node with other nodes.
pub(super) fn expose(broker: &Broker, text: &mut Exposition) {
    if broker.cluster.is_none() {
        return;
    }
    let counts = broker.store.copies.counts();
    let by_direction = |text: &mut Exposition, name, values: [(&str, f64); 2]| {
        for (direction, value) in values {
            text.sample(name, &[("direction", direction)], value);
        }
    };
    let name = "mainstem_snapshot_bytes_total";
    text.describe(name, Kind::Counter, "Bytes of copies of partitions, to and from other nodes.");
    by_direction(
        text,
        name,
        [("sent", counts.sent_bytes as f64), ("received", counts.received_bytes as f64)],
    );
    let name = "mainstem_snapshot_active";
    text.describe(name, Kind::Gauge, "Partitions of which a copy is offered, or fetched.");
    by_direction(text, name, [("sent", counts.offered as f64), ("received", counts.fetching as f64)]);
    let name = "mainstem_snapshot_restarts_total";
    let help = "Copies of partitions that went on where an earlier attempt had ended.";
    text.one(name, Kind::Counter, help, counts.resumed as f64);
    let name = "mainstem_snapshot_installed_total";
    let help = "Copies of partitions that have taken the place of a replica's log.";
    text.one(name, Kind::Counter, help, counts.installed as f64);
    let kept: u64 = broker.store.partitions().iter().map(|partition| partition.kept_bytes()).sum();
    let help = "Bytes of replicated logs that are kept for replicas to ask for entry by entry.";
    text.one("mainstem_group_kept_bytes", Kind::Gauge, help, kept as f64);
}
