//! Replicas of this node that are lost: their disk is gone, or what is on it is not enough to take part. Another replica of the node
//! takes their place.

use std::collections::BTreeMap;
use std::time::Instant;

use mainstem_replication::ReplicaError;
use parking_lot::Mutex;

use crate::error::StoreError;
use crate::placing::PartitionKey;

/// A replica that could not be opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Unopened {
    incarnation: u32,
    is_lost: bool,
}

/// The replicas that could not be opened, by partition.
#[derive(Default)]
pub(super) struct Losses(Mutex<State>);

#[derive(Default)]
struct State {
    unopened: BTreeMap<PartitionKey, Unopened>,
    /// The time of the first loss.
    since: Option<Instant>,
}

impl Losses {
    /// Notes that a replica of an incarnation cannot be opened, and whether it is lost.
    pub(super) fn note(&self, key: PartitionKey, incarnation: u32, is_lost: bool, now: Instant) {
        let mut state = self.0.lock();
        state.unopened.insert(key, Unopened { incarnation, is_lost });
        if is_lost {
            state.since.get_or_insert(now);
        }
    }

    /// Returns true if a replica of this incarnation may be opened: none of it was tried.
    pub(super) fn may_open(&self, key: PartitionKey, incarnation: u32) -> bool {
        self.0.lock().unopened.get(&key).is_some_and(|unopened| unopened.incarnation < incarnation)
    }

    /// Notes that a replica is in service.
    pub(super) fn forget(&self, key: PartitionKey) {
        self.0.lock().unopened.remove(&key);
    }

    /// The time of the first loss.
    pub(super) fn since(&self) -> Option<Instant> {
        self.0.lock().since
    }

    /// The lost replicas, with their incarnations.
    pub(super) fn lost(&self) -> Vec<(PartitionKey, u32)> {
        let state = self.0.lock();
        let lost = state.unopened.iter().filter(|(_, unopened)| unopened.is_lost);
        lost.map(|(key, unopened)| (*key, unopened.incarnation)).collect()
    }
}

/// Returns true if nothing that this node could do brings a replica back. What an operator may repair is not lost: an offline directory, a
/// partition in two directories, a damaged log.
pub(crate) fn is_lost(error: &StoreError) -> bool {
    match error {
        StoreError::DirectoryMissing { .. } | StoreError::JournalMissing { .. } => true,
        StoreError::Replica { source, .. } => {
            matches!(source, ReplicaError::LacksCompacted { .. } | ReplicaError::CopyGone { .. })
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use mainstem_log::partition_dir::TopicPartition;
    use mainstem_wire::Uuid;

    use super::*;

    #[test]
    fn a_replica_is_lost_where_nothing_brings_it_back_and_the_next_one_may_be_opened() {
        let (losses, key) = (Losses::default(), (Uuid::from_u128(7), 0));
        let now = mainstem_runtime::clock::Clock::start().instant();
        let partition = TopicPartition::new("t", 0);
        assert!(!losses.may_open(key, 2), "it was offline for another cause, while the node ran");
        losses.note(key, 1, is_lost(&StoreError::DirectoryOffline { partition: partition.clone() }), now);
        assert_eq!(losses.lost(), [], "its disk may be repaired");
        losses.note(key, 1, is_lost(&StoreError::DirectoryMissing { partition, directory: Uuid::ZERO }), now);
        assert_eq!(losses.lost(), [(key, 1)]);
        assert!(!losses.may_open(key, 1) && losses.may_open(key, 2));
        losses.forget(key);
        assert_eq!(losses.lost(), []);
    }
}
