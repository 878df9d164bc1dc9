//! The topics that this node serves, by name and by id.

use std::sync::Arc;

use foldhash::HashMap;
use mainstem_controller::names;
use mainstem_wire::Uuid;
use parking_lot::RwLock;

use crate::partition::Partition;

/// One topic. It does not change: more partitions make another one with the same id.
pub struct Topic {
    /// Its name.
    pub name: Arc<str>,
    /// Its id, never used again.
    pub id: Uuid,
    /// By index.
    pub partitions: Vec<Arc<Partition>>,
}

impl Topic {
    /// Returns true if it is one of the coordinators' topics, to which clients do not write.
    pub fn is_internal(&self) -> bool {
        names::is_internal(&self.name)
    }

    /// The partition of an index that came from a client.
    pub fn partition(&self, index: i32) -> Option<&Arc<Partition>> {
        usize::try_from(index).ok().and_then(|index| self.partitions.get(index))
    }
}

/// All topics.
#[derive(Default)]
pub struct Topics(RwLock<ByKey>);

#[derive(Default)]
struct ByKey {
    by_name: HashMap<Arc<str>, Arc<Topic>>,
    by_id: HashMap<Uuid, Arc<Topic>>,
}

impl Topics {
    /// The topic of a name.
    pub fn by_name(&self, name: &str) -> Option<Arc<Topic>> {
        self.0.read().by_name.get(name).cloned()
    }

    /// The topic of an id.
    pub fn by_id(&self, id: &Uuid) -> Option<Arc<Topic>> {
        self.0.read().by_id.get(id).cloned()
    }

    /// One partition by its topic's name.
    pub fn partition(&self, name: &str, index: i32) -> Option<Arc<Partition>> {
        self.0.read().by_name.get(name).and_then(|topic| topic.partition(index)).cloned()
    }

    /// Adds a topic, or replaces it by one with more partitions.
    pub fn put(&self, topic: Arc<Topic>) {
        let mut topics = self.0.write();
        topics.by_name.insert(topic.name.clone(), topic.clone());
        topics.by_id.insert(topic.id, topic);
    }

    /// Takes a topic out of service.
    pub fn remove(&self, id: &Uuid) -> Option<Arc<Topic>> {
        let mut topics = self.0.write();
        let topic = topics.by_id.remove(id)?;
        if topics.by_name.get(&topic.name).is_some_and(|named| named.id == *id) {
            topics.by_name.remove(&topic.name);
        }
        Some(topic)
    }

    /// All topics, in the order of their ids.
    pub fn all(&self) -> Vec<Arc<Topic>> {
        let mut all: Vec<_> = self.0.read().by_id.values().cloned().collect();
        all.sort_unstable_by_key(|topic| topic.id);
        all
    }
}
