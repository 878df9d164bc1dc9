//! The coordinators' partitions: this node loads those that it leads, and unloads them. Their drivers are in `mainstem-coordinators`.

use std::sync::Arc;

use crate::local::Local;
use mainstem_coordinators::driver::RequestOrigin;
use mainstem_coordinators::groups::OFFSETS_TOPIC;
use mainstem_coordinators::transactions::TRANSACTIONS_TOPIC;
use mainstem_requests::context::RequestContext;
use mainstem_store::partition::Partition;

/// The origin of a request, as coordinators look at it.
pub fn origin(context: &RequestContext) -> RequestOrigin<'_> {
    RequestOrigin {
        version: context.version,
        client_id: context.client_id.as_deref().unwrap_or(""),
        address: context.connection.peer.ip(),
    }
}

/// The coordinators' topics. Groups first: the markers of transactions that are loaded go into their topic, too.
pub const TOPICS: [&str; 2] = [OFFSETS_TOPIC, TRANSACTIONS_TOPIC];

/// Takes over the partitions of a topic that this node has begun to serve, if it is a coordinator's.
pub(crate) fn load(local: &Local, topic: &str, partitions: &[Arc<Partition>]) {
    match topic {
        OFFSETS_TOPIC => {
            if let Ok(count @ 1..) = i32::try_from(partitions.len()) {
                local.transactions.set(|coordinator| coordinator.set_offsets_partition_count(count));
            }
            local.groups.load(partitions);
        }
        TRANSACTIONS_TOPIC => local.transactions.load(partitions),
        _ => {}
    }
}

/// Returns true if a topic is a coordinator's.
pub(crate) fn is_coordinators(topic: &str) -> bool {
    TOPICS.contains(&topic)
}

/// Tells the coordinators of a topic how many partitions it has, before they take over any of them.
pub(crate) fn set_partition_count(local: &Local, topic: &str, partitions: usize) {
    match topic {
        OFFSETS_TOPIC => {
            if let Ok(count @ 1..) = i32::try_from(partitions) {
                local.transactions.set(|coordinator| coordinator.set_offsets_partition_count(count));
            }
            local.groups.set_partition_count(partitions);
        }
        TRANSACTIONS_TOPIC => local.transactions.set_partition_count(partitions),
        _ => {}
    }
}

/// Takes over a partition that this node has begun to lead, if it is one of a coordinator's topic
/// ([`mainstem_coordinators::driver::Driver::take_over`]).
pub(crate) fn take_over(local: &Local, partition: &Arc<Partition>) {
    match &*partition.topic {
        OFFSETS_TOPIC => local.groups.take_over(partition),
        TRANSACTIONS_TOPIC => local.transactions.take_over(partition),
        _ => {}
    }
}

/// Gives up partitions of a topic, if it is a coordinator's: they are gone, or cannot be used.
pub fn unload(local: &Local, topic: &str, partitions: &[Arc<Partition>]) {
    match topic {
        OFFSETS_TOPIC => local.groups.unload(partitions),
        TRANSACTIONS_TOPIC => local.transactions.unload(partitions),
        _ => {}
    }
}

/// Calls `each` with every coordinator's topic that is served.
pub(crate) fn served(local: &Local, mut each: impl FnMut(&str, &[Arc<Partition>])) {
    for name in TOPICS {
        if let Some(topic) = local.store.topics.by_name(name) {
            each(name, &topic.partitions);
        }
    }
}
