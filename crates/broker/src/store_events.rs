//! Events of the store, passed to the controller and the coordinators.

use std::sync::{Arc, Weak};

use mainstem_controller::DirectoryAssignment;

use crate::broker::Broker;
use mainstem_node::coordinators;
use mainstem_store::partition::Partition;
use mainstem_store::store::StoreEvents;

/// The broker as the receiver of its store's events.
pub(crate) struct ToBroker(Weak<Broker>);

impl ToBroker {
    /// Passes events to this broker without keeping it alive.
    pub(crate) fn of(broker: &Arc<Broker>) -> Arc<dyn StoreEvents> {
        Arc::new(ToBroker(Arc::downgrade(broker)))
    }
}

impl StoreEvents for ToBroker {
    fn went_offline(&self, partitions: &[Arc<Partition>]) {
        let Some(broker) = self.0.upgrade() else { return };
        for topic in coordinators::TOPICS {
            let of_topic = partitions.iter().filter(|partition| &*partition.topic == topic).cloned();
            let of_topic: Vec<_> = of_topic.collect();
            if !of_topic.is_empty() {
                coordinators::unload(&broker.local, topic, &of_topic);
            }
        }
    }

    fn online_directories_changed(&self) {
        if let Some(broker) = self.0.upgrade() {
            broker.node.note_online_directories();
        }
    }

    fn cordoned_directories_changed(&self) {
        if let Some(broker) = self.0.upgrade() {
            broker.node.note_cordoned_directories();
        }
    }

    fn directory_changed(&self, assignment: DirectoryAssignment) {
        if let Some(broker) = self.0.upgrade() {
            broker.node.note_directory(assignment);
        }
    }
}
