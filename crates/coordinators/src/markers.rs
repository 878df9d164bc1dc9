//! Markers, which end a producer's transaction in a partition (KIP-98), for partitions that this node leads.

use mainstem_coordination::transactions::MarkerOutcome;
use mainstem_log::TransactionMarker;
use mainstem_store::partition::{Durable, NoLog, Refused};
use mainstem_wire::ErrorCode;

use crate::groups::{Groups, OFFSETS_TOPIC};

/// Called once with the outcome of a marker.
pub type OnMarked = Box<dyn FnOnce(MarkerOutcome) + Send>;

/// Writes a marker into a partition. `on_marked` is called when it is as durable as acks=all, or cannot be written; with
/// [`MarkerOutcome::Gone`] if this node has no such partition. In a partition of groups, their coordinator orders it among its own writes.
pub fn write(groups: &Groups, (topic, index): (&str, i32), marker: TransactionMarker, on_marked: OnMarked) {
    let Some(partition) = groups.topics().partition(topic, index) else {
        return on_marked(MarkerOutcome::Gone);
    };
    if topic == OFFSETS_TOPIC {
        let on_written = move |written: Result<(), ErrorCode>| on_marked(MarkerOutcome::of_groups(written));
        return groups.end_transaction(index, marker, Box::new(on_written));
    }
    match partition.append_marker(&marker, groups.clock()) {
        Ok(outcome) => {
            let on_durable = move |durable: Result<(), ErrorCode>| {
                on_marked(durable.map_or_else(MarkerOutcome::Failed, |()| MarkerOutcome::Written));
            };
            let upto = outcome.appended.last_offset + 1;
            match partition.settings().write_caching && !partition.is_replicated() {
                true => on_durable(Ok(())),
                false => partition.when_committed(upto, outcome.epoch, Durable::Call(Box::new(on_durable))),
            }
        }
        Err(Refused::NoLog(NoLog::Gone)) => on_marked(MarkerOutcome::Gone),
        Err(refused) => on_marked(MarkerOutcome::Failed(refused.code())),
    }
}
