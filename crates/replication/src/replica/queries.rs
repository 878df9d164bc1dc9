//! Questions to a leader about its replicas: how far they are, and which of them are in sync.

use super::Replica;
use crate::group::ReplicaId;

/// A replica that had all that its leader had, so long ago at most, is there: a second and a half of silence ends a leader's term.
pub(super) const SEEN_MS: u64 = 3_000;

impl Replica {
    /// The offset up to which a record is acknowledged to a producer that waits for all: it is committed, and durable
    /// on `min_insync` replicas at least (`min.insync.replicas`). Of a leader.
    pub fn acknowledged_offset(&self, min_insync: usize) -> i64 {
        let (committed, offset) = self.log.committed();
        let least = self.group.matched_by(min_insync);
        if least >= committed {
            return offset;
        }
        // Behind what a majority has: where that is not remembered, the start is a bound.
        let index = self.group.index();
        index.recent(least).map_or(index.start().offset, |position| position.next_offset)
    }

    /// The voters that have caught up within `lag_max_ms` (`replica.lag.time.max.ms`), this one included, and those that leave. Of a leader.
    pub fn in_sync(&self, now_ms: u64, lag_max_ms: u64) -> Vec<ReplicaId> {
        let is_in_sync =
            |id: &ReplicaId| *id == self.own() || self.peers.is_in_sync(id.0, now_ms, lag_max_ms);
        let mut in_sync: Vec<_> = self.configuration().all_voters().filter(is_in_sync).collect();
        in_sync.sort_unstable();
        in_sync
    }

    /// Returns true if another replica is known to have all that is committed. Of a leader.
    pub fn has_what_is_committed(&self, id: ReplicaId) -> bool {
        let committed = self.group.committed();
        self.group.others().any(|(other, progress)| other == id.0 && progress.matched >= committed)
    }

    /// Returns true if a leader can have what it appends now acknowledged by a majority: by itself, by replicas that have caught up
    /// within `lag_max_ms` and are not out of sync for another reason (`is_out`), and by those that had everything a moment ago,
    /// whatever is known of their nodes.
    pub fn has_majority(&self, now_ms: u64, lag_max_ms: u64, is_out: impl Fn(ReplicaId) -> bool) -> bool {
        self.configuration().is_majority(|id| {
            id == self.own()
                || self.peers.is_in_sync(id.0, now_ms, SEEN_MS)
                || (self.peers.is_in_sync(id.0, now_ms, lag_max_ms) && !is_out(id))
        })
    }

    /// Returns true if a replica has fallen out of sync, or has only begun to learn, and the others are enough without it: what it is sent
    /// may take its time. Of a leader.
    pub fn is_catching_up(&self, id: ReplicaId, now_ms: u64, lag_max_ms: u64) -> bool {
        if !self.group.is_leader() {
            return false;
        }
        if self.configuration().learners.contains(&id) {
            return !self.group.is_near(id);
        }
        if self.peers.is_in_sync(id.0, now_ms, lag_max_ms) {
            return false;
        }
        let in_sync = self.in_sync(now_ms, lag_max_ms);
        self.configuration().is_majority(|id| in_sync.contains(&id))
    }

    /// The highest term that it has heard of, durably or not.
    pub fn highest_term(&self) -> u64 {
        self.group.term()
    }

    /// The index up to which each replica is known to have the log, in the order of ids. Of a leader.
    pub fn matched(&self) -> Vec<(ReplicaId, u64)> {
        self.group.matched()
    }

    /// The offsets of the log that each other member lacks, of a leader: exactly, or about where that is many. One that has
    /// said nothing since this replica leads is left out.
    pub fn lacking(&self) -> impl Iterator<Item = (ReplicaId, i64)> {
        let index = self.group.index();
        let others = self.group.others().filter(|(_, progress)| progress.matched > 0);
        let end = index.end_offset();
        others.map(move |(id, progress)| (ReplicaId(id), end - index.offset_about(progress.matched)))
    }

    /// Index and term of the last entry, and the index up to which entries are committed.
    pub fn last_and_committed(&self) -> (u64, u64, u64) {
        let index = self.group.index();
        (index.last(), index.term(index.last()).unwrap_or(0), self.group.committed())
    }

    /// The offset up to which this leader has the log durably, and every other member that `is_awaited` has it; `None`: it does not lead,
    /// or does not know that of one of them. `is_awaited` gets the member, the index up to which it is known to have the log, and an offset
    /// at or before the one behind that entry; no offset: the entry is not here.
    pub fn offset_everywhere(
        &self,
        mut is_awaited: impl FnMut(ReplicaId, u64, Option<i64>) -> bool,
    ) -> Option<i64> {
        if !self.group.is_leader() {
            return None;
        }
        let index = self.group.index();
        let mut everywhere = self.persisted_end();
        for (id, progress) in self.group.others() {
            let offset = index.offset_before(progress.matched);
            if is_awaited(ReplicaId(id), progress.matched, offset) {
                everywhere = everywhere.min(offset?);
            }
        }
        Some(everywhere)
    }

    /// The offset before which no entry is here: an entry's index is not counted from what precedes it.
    pub fn start_offset(&self) -> i64 {
        self.group.index().start().offset
    }

    /// An offset that every other member of a leader has reached which the log still serves; what is behind that gets a
    /// snapshot anyway.
    pub fn slowest_offset(&self) -> Option<i64> {
        if !self.group.is_leader() {
            return None;
        }
        let index = self.group.index();
        let others = self.group.others();
        others.filter_map(|(_, progress)| index.offset_before(progress.matched)).min()
    }
}
