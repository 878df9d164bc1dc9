//! Coordinators in the cluster: the partitions that they take over and give up, markers in partitions of any node, questions between
//! nodes. Their drivers are in `mainstem-coordinators`.

use std::sync::Arc;

use crate::broker::Broker;
use mainstem_coordinators::driver::RequestOrigin;
use mainstem_coordinators::groups::OFFSETS_TOPIC;
use mainstem_coordinators::transactions::TRANSACTIONS_TOPIC;
use mainstem_requests::context::RequestContext;
use mainstem_store::partition::Partition;

pub(crate) mod described;
pub(crate) mod markers;
pub(crate) mod verification;
pub(crate) mod work;

/// The origin of a request, as coordinators look at it.
pub(crate) fn origin(context: &RequestContext) -> RequestOrigin<'_> {
    RequestOrigin {
        version: context.version,
        client_id: context.client_id.as_deref().unwrap_or(""),
        address: context.connection.peer.ip(),
    }
}

/// The coordinators' topics. Groups first: the markers of transactions that are loaded go into their topic, too.
pub(crate) const TOPICS: [&str; 2] = [OFFSETS_TOPIC, TRANSACTIONS_TOPIC];

/// Takes over the partitions of a topic that this node has begun to serve, if it is a coordinator's.
pub(crate) fn load(broker: &Arc<Broker>, topic: &str, partitions: &[Arc<Partition>]) {
    match topic {
        OFFSETS_TOPIC => {
            if let Ok(count @ 1..) = i32::try_from(partitions.len()) {
                broker.transactions.set(|coordinator| coordinator.set_offsets_partition_count(count));
            }
            broker.groups.load(partitions);
        }
        TRANSACTIONS_TOPIC => broker.transactions.load(partitions),
        _ => {}
    }
}

/// Returns true if a topic is a coordinator's.
pub(crate) fn is_coordinators(topic: &str) -> bool {
    TOPICS.contains(&topic)
}

/// Tells the coordinators of a topic how many partitions it has, before this node leads any of them.
pub(crate) fn set_partition_count(broker: &Arc<Broker>, topic: &str, partitions: usize) {
    match topic {
        OFFSETS_TOPIC => {
            if let Ok(count @ 1..) = i32::try_from(partitions) {
                broker.transactions.set(|coordinator| coordinator.set_offsets_partition_count(count));
            }
            broker.groups.set_partition_count(partitions);
        }
        TRANSACTIONS_TOPIC => broker.transactions.set_partition_count(partitions),
        _ => {}
    }
}

/// Takes over one partition of a coordinator's topic that this node has begun to lead.
pub(crate) fn load_one(broker: &Arc<Broker>, partition: &Arc<Partition>) {
    match &*partition.topic {
        OFFSETS_TOPIC => broker.groups.load_one(partition),
        TRANSACTIONS_TOPIC => broker.transactions.load_one(partition),
        _ => {}
    }
}

/// Gives up partitions of a topic, if it is a coordinator's: they are gone, or cannot be used.
pub(crate) fn unload(broker: &Arc<Broker>, topic: &str, partitions: &[Arc<Partition>]) {
    match topic {
        OFFSETS_TOPIC => broker.groups.unload(partitions),
        TRANSACTIONS_TOPIC => broker.transactions.unload(partitions),
        _ => {}
    }
}

/// Calls `each` with every coordinator's topic that is served.
pub(crate) fn served(broker: &Broker, mut each: impl FnMut(&str, &[Arc<Partition>])) {
    for name in TOPICS {
        if let Some(topic) = broker.store.topics.by_name(name) {
            each(name, &topic.partitions);
        }
    }
}
