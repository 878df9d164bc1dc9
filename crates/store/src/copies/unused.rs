//! Removal of copies that were begun and are not fetched any more: the replica has caught up without, or its group has another leader that
//! has all entries.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;

use mainstem_log::dir::{FoundFuture, LogDir};
use mainstem_replication::GroupId;

use super::Copies;
use crate::store::Store;

/// Interval between two looks.
const LOOK_MS: u64 = 60_000;
/// A copy that is not fetched for so long is removed.
const UNUSED_MS: u64 = 15 * 60_000;

/// Copies that no thread fetches, and since when that is so.
#[derive(Default)]
pub(super) struct Unused {
    since_ms: HashMap<PathBuf, u64>,
    looked_ms: Option<u64>,
}

impl Unused {
    fn is_due(&mut self, now_ms: u64) -> bool {
        let is_due = self.looked_ms.is_none_or(|at| now_ms.saturating_sub(at) >= LOOK_MS);
        if is_due {
            self.looked_ms = Some(now_ms);
        }
        is_due
    }

    /// Notes the copies that are not fetched now; returns those for which that is so for long.
    fn note(&mut self, idle: Vec<PathBuf>, now_ms: u64) -> Vec<PathBuf> {
        let mut before = std::mem::take(&mut self.since_ms);
        let since = idle.into_iter().map(|path| {
            let since_ms = before.remove(&path).unwrap_or(now_ms);
            (path, since_ms)
        });
        self.since_ms = since.collect();
        let is_old = |since_ms: &u64| now_ms.saturating_sub(*since_ms) >= UNUSED_MS;
        self.since_ms.iter().filter(|(_, since_ms)| is_old(since_ms)).map(|(path, _)| path.clone()).collect()
    }
}

impl Copies {
    pub(super) fn remove_unused(&self, store: &Store, now_ms: u64) {
        let mut unused = self.unused.lock();
        if store.peers.is_none() || !unused.is_due(now_ms) {
            return;
        }
        let mut idle = Vec::new();
        for dir in store.dirs.online() {
            // A directory that cannot be listed is dealt with where it is used.
            let futures = dir.futures().unwrap_or_default().into_iter();
            let of_dir =
                futures.filter(|future| future.is_import && !self.is_needed(store, dir, future, now_ms));
            idle.extend(of_dir.map(|future| (future.path, dir.clone())));
        }
        let paths = idle.iter().map(|(path, _)| path.clone()).collect();
        for path in unused.note(paths, now_ms) {
            let dir = idle.iter().find(|(idle, _)| *idle == path).map(|(_, dir)| dir);
            let removed = dir.map_or(Ok(()), |dir| dir.remove_future(&path));
            match removed {
                Ok(()) => {
                    tracing::info!(path = %path.display(), "a copy that is not fetched any more is removed")
                }
                Err(error) => {
                    tracing::warn!(path = %path.display(), "a copy that is not fetched any more stays: {error}")
                }
            }
        }
    }

    /// Returns true if a thread works for the partition of a copy, or did since the last look, or the journal has it take a log's place.
    fn is_needed(&self, store: &Store, dir: &Arc<LogDir>, future: &FoundFuture, now_ms: u64) -> bool {
        let (Some(topic_id), Some(peers)) = (future.topic_id, &store.peers) else { return false };
        let group = GroupId { topic_id, partition: future.partition };
        let is_replacing = || peers.journals.is_replacing(dir, group);
        self.is_fetching(group) || self.was_tried(group, LOOK_MS, now_ms) || is_replacing()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_copy_is_removed_when_it_was_not_fetched_for_long() {
        let mut unused = Unused::default();
        let (one, other) = (PathBuf::from("one"), PathBuf::from("other"));
        assert!(unused.is_due(5) && !unused.is_due(LOOK_MS) && unused.is_due(LOOK_MS + 5));
        assert_eq!(unused.note(vec![one.clone(), other.clone()], 0), [] as [PathBuf; 0]);
        assert_eq!(unused.note(vec![other.clone()], UNUSED_MS - 1), [] as [PathBuf; 0]);
        // The first one was fetched meanwhile: it is counted from the beginning.
        assert_eq!(unused.note(vec![one, other.clone()], UNUSED_MS), [other]);
    }
}
