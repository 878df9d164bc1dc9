//! The topics that this node serves, by name and by id.

use std::sync::Arc;

use foldhash::HashMap;
use mainstem_controller::names;
use mainstem_wire::Uuid;
use parking_lot::RwLock;

use crate::storage::partition::Partition;

/// One topic. It does not change: more partitions make another one with the same id.
pub(crate) struct Topic {
    /// Its name.
    pub(crate) name: Arc<str>,
    /// Its id, never used again.
    pub(crate) id: Uuid,
    /// By index.
    pub(crate) partitions: Vec<Arc<Partition>>,
}

impl Topic {
    /// Whether it is one of the coordinators' topics, to which clients do not write.
    pub(crate) fn is_internal(&self) -> bool {
        names::is_internal(&self.name)
    }

    /// The partition of an index that came from a client.
    pub(crate) fn partition(&self, index: i32) -> Option<&Arc<Partition>> {
        usize::try_from(index).ok().and_then(|index| self.partitions.get(index))
    }
}

/// All topics.
#[derive(Default)]
pub(crate) struct Topics(RwLock<ByKey>);

#[derive(Default)]
struct ByKey {
    by_name: HashMap<Arc<str>, Arc<Topic>>,
    by_id: HashMap<Uuid, Arc<Topic>>,
}

impl Topics {
    /// The topic of a name.
    pub(crate) fn by_name(&self, name: &str) -> Option<Arc<Topic>> {
        self.0.read().by_name.get(name).cloned()
    }

    /// The topic of an id.
    pub(crate) fn by_id(&self, id: &Uuid) -> Option<Arc<Topic>> {
        self.0.read().by_id.get(id).cloned()
    }

    /// One partition by its topic's name.
    pub(crate) fn partition(&self, name: &str, index: i32) -> Option<Arc<Partition>> {
        self.0.read().by_name.get(name).and_then(|topic| topic.partition(index)).cloned()
    }

    /// Adds a topic, or replaces it by one with more partitions.
    pub(crate) fn put(&self, topic: Arc<Topic>) {
        let mut topics = self.0.write();
        topics.by_name.insert(topic.name.clone(), topic.clone());
        topics.by_id.insert(topic.id, topic);
    }

    /// Takes a topic out of service.
    pub(crate) fn remove(&self, id: &Uuid) -> Option<Arc<Topic>> {
        let mut topics = self.0.write();
        let topic = topics.by_id.remove(id)?;
        if topics.by_name.get(&topic.name).is_some_and(|named| named.id == *id) {
            topics.by_name.remove(&topic.name);
        }
        Some(topic)
    }

    /// All topics, in no order.
    pub(crate) fn all(&self) -> Vec<Arc<Topic>> {
        self.0.read().by_id.values().cloned().collect()
    }
}
