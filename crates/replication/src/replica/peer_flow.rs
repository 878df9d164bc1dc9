//! The flow to each peer of a leader: how far it lags behind, which heartbeats to it are coalesced, for what it was asked, and which
//! snapshot it fetches.
//!
//! A leader whose follower has everything says so once, in a heartbeat that its node repeats from then on
//! ([`crate::CoalescedHeartbeats`]). An append that a follower leaves without an answer is not sent again at once: the library would send
//! it with each heartbeat, also to a follower whose disk is full.

use crate::group::ReplicaId;
use crate::lag::Lag;
use crate::store::Store;
use raft::Raft;
use std::collections::BTreeMap;

/// An append that a peer has left without an answer, since its disk is full, is not sent again before.
const ASK_AGAIN_MS: u64 = 1_000;

/// A peer that was offered a snapshot and asks for none of it for so long is offered one again.
const SNAPSHOT_TIMEOUT_MS: u64 = 10_000;

/// Values by peer, of which there are few: they take less memory than a map.
#[derive(Debug, Default)]
struct PerPeer<T>(Vec<(u64, T)>);

impl<T: Copy> PerPeer<T> {
    fn get(&self, peer: u64) -> Option<T> {
        self.0.iter().find(|(id, _)| *id == peer).map(|(_, value)| *value)
    }

    fn remove(&mut self, peer: u64) {
        self.0.retain(|(id, _)| *id != peer);
    }

    fn set(&mut self, peer: u64, value: T) {
        self.remove(peer);
        self.0.push((peer, value));
    }

    fn clear(&mut self) {
        self.0.clear();
    }

    /// Asserts that there is one value for each peer at most.
    fn check(&self) {
        let is_alone = |(id, _): &(u64, T)| self.0.iter().filter(|(other, _)| other == id).count() == 1;
        assert!(self.0.iter().all(is_alone), "two values for one peer");
    }
}

/// The flow to each peer of a leader.
#[derive(Debug, Default)]
pub(super) struct PeerFlow {
    lag: Lag,
    /// The peers whose heartbeats are coalesced in this term, with the commit index that they have got.
    coalesced: PerPeer<u64>,
    /// The entry that precedes those of the append by which a peer was asked last what it has, and when that was.
    asked: PerPeer<(u64, u64)>,
    /// The entry that precedes the leader's own ones, where a peer was asked for it: it is all that the leader can ask some for.
    asked_for_start: PerPeer<u64>,
    /// The time at which a peer that was offered a snapshot asked for a range of it last.
    fetching: BTreeMap<u64, u64>,
}

impl PeerFlow {
    /// Takes note of the leader's own view of its peers.
    pub(super) fn note_lag(&mut self, now_ms: u64, raft: &Raft<Store>) {
        self.lag.note(now_ms, raft);
    }

    /// Returns true if a peer has had everything within the last `lag_max_ms`.
    pub(super) fn is_in_sync(&self, peer: u64, now_ms: u64, lag_max_ms: u64) -> bool {
        self.lag.is_in_sync(peer, now_ms, lag_max_ms)
    }

    /// Decides about a heartbeat that the library wants sent, of a leader whose peer has everything or not. Returns true if heartbeats are
    /// coalesced from this one on; `None`: they are already, and nothing has to be sent.
    pub(super) fn coalesce(&mut self, peer: u64, commit: u64, has_everything: bool) -> Option<bool> {
        if has_everything && self.is_coalesced(peer, commit) {
            return None;
        }
        self.coalesced.remove(peer);
        if has_everything {
            self.coalesced.set(peer, commit);
        }
        Some(has_everything)
    }

    /// Returns true if the heartbeats of a peer are coalesced, and it has this commit index.
    pub(super) fn is_coalesced(&self, peer: u64, commit: u64) -> bool {
        self.coalesced.get(peer) == Some(commit)
    }

    /// Returns true if the heartbeats of a peer are coalesced.
    pub(super) fn has_coalesced(&self, peer: u64) -> bool {
        self.coalesced.get(peer).is_some()
    }

    /// Sends a peer its next heartbeat in full.
    pub(super) fn end_coalesced(&mut self, peer: u64) {
        self.coalesced.remove(peer);
    }

    /// Sends all peers their next heartbeats in full.
    pub(super) fn end_all_coalesced(&mut self) {
        self.coalesced.clear();
    }

    /// Returns true if an append is not to be sent, since its peer got the same a moment ago, over the same link. `is_probe`: the library
    /// asks the peer by it for what it has. `index` is that of the entry which precedes those of the append.
    pub(super) fn was_just_asked(&mut self, peer: u64, index: u64, is_probe: bool, now_ms: u64) -> bool {
        let is_same = |(asked, at_ms): (u64, u64)| asked == index && now_ms < at_ms + ASK_AGAIN_MS;
        if is_probe && self.asked.get(peer).is_some_and(is_same) {
            return true;
        }
        self.asked.remove(peer);
        if is_probe {
            self.asked.set(peer, (index, now_ms));
        }
        false
    }

    /// Lets a peer be asked again at once: what it was sent may not have arrived.
    pub(super) fn forget_asked(&mut self, peer: u64) {
        self.asked.remove(peer);
    }

    /// Returns true if a peer was asked for the entry at the leader's start, which has this index.
    pub(super) fn was_asked_for_start(&self, peer: u64, start: u64) -> bool {
        self.asked_for_start.get(peer) == Some(start)
    }

    /// Notes that a peer is asked for the entry at the leader's start.
    pub(super) fn note_asked_for_start(&mut self, peer: u64, start: u64) {
        self.asked_for_start.set(peer, start);
    }

    /// Notes that the replicas of a node fetch the snapshot that they were offered.
    pub(super) fn note_fetch(&mut self, node: i32, now_ms: u64) {
        let of_node = |(id, _): &(&u64, &mut u64)| ReplicaId(**id).node() == node;
        self.fetching.iter_mut().filter(of_node).for_each(|(_, at_ms)| *at_ms = now_ms);
    }

    /// The replicas of a node that fetch a snapshot.
    pub(super) fn fetching_at(&self, node: i32) -> Vec<u64> {
        self.fetching.keys().copied().filter(|id| ReplicaId(*id).node() == node).collect()
    }

    /// Forgets that a peer fetches a snapshot.
    pub(super) fn end_fetch(&mut self, peer: u64) {
        self.fetching.remove(&peer);
    }

    /// Returns those of the peers with a snapshot on offer that have asked for none of it for so long that they are offered one again.
    pub(super) fn idle_fetches(&mut self, offered: Vec<u64>, now_ms: u64) -> Vec<u64> {
        self.fetching.retain(|id, _| offered.contains(id));
        let is_idle = |id: &u64| {
            let since_ms = *self.fetching.entry(*id).or_insert(now_ms);
            now_ms.saturating_sub(since_ms) >= SNAPSHOT_TIMEOUT_MS
        };
        offered.into_iter().filter(is_idle).collect()
    }

    /// Begins a role: what was said in another one is of no account.
    pub(super) fn begin_role(&mut self) {
        self.coalesced.clear();
        self.asked.clear();
        self.asked_for_start.clear();
    }

    /// Begins with the entries that are in the log.
    pub(super) fn restart(&mut self) {
        self.coalesced.clear();
        self.asked_for_start.clear();
        self.fetching.clear();
    }

    /// Asserts what holds between any two calls, of a leader or another replica.
    pub(super) fn check(&self, is_leader: bool) {
        assert!(is_leader || self.coalesced.0.is_empty(), "a leader alone has heartbeats: {self:?}");
        self.coalesced.check();
        self.asked.check();
        self.asked_for_start.check();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PEER: u64 = 2 << 32 | 1;
    const OTHER: u64 = 3 << 32 | 1;

    #[test]
    fn heartbeats_are_coalesced_from_one_that_says_all_until_something_changes() {
        let mut flow = PeerFlow::default();
        assert_eq!(flow.coalesce(PEER, 5, false), Some(false), "it lacks something");
        assert_eq!(flow.coalesce(PEER, 5, true), Some(true));
        assert_eq!(flow.coalesce(PEER, 5, true), None, "its node says it");
        assert_eq!(flow.coalesce(OTHER, 5, true), Some(true), "each peer for itself");
        assert_eq!(flow.coalesce(PEER, 6, true), Some(true), "another commit index is said in full");
        assert!(flow.is_coalesced(PEER, 6) && !flow.is_coalesced(PEER, 5));
        flow.end_coalesced(PEER);
        assert_eq!(flow.coalesce(PEER, 6, true), Some(true), "the peer has refused");
        assert_eq!(flow.coalesce(PEER, 6, false), Some(false));
        assert!(!flow.is_coalesced(PEER, 6) && flow.is_coalesced(OTHER, 5));
        flow.check(true);
        flow.begin_role();
        assert!(!flow.is_coalesced(OTHER, 5));
        flow.check(false);
    }

    #[test]
    fn a_peer_is_asked_the_same_again_after_a_second_and_something_else_at_once() {
        let mut flow = PeerFlow::default();
        assert!(!flow.was_just_asked(PEER, 7, true, 10_000));
        let asked_again = (10_050..12_200).step_by(150).filter(|at| !flow.was_just_asked(PEER, 7, true, *at));
        assert_eq!(asked_again.collect::<Vec<u64>>(), [11_100, 12_150], "with a heartbeat each 150 ms");
        assert!(!flow.was_just_asked(OTHER, 7, true, 12_160), "each peer for itself");
        assert!(!flow.was_just_asked(PEER, 6, true, 12_170), "another entry");
        assert!(flow.was_just_asked(PEER, 6, true, 12_180));
        assert!(!flow.was_just_asked(PEER, 6, false, 12_190), "it is no question");
        assert!(!flow.was_just_asked(PEER, 6, true, 12_200), "and ends the one before");
        flow.forget_asked(PEER);
        assert!(!flow.was_just_asked(PEER, 6, true, 12_210), "it may not have arrived");
        flow.check(true);
    }

    #[test]
    fn a_peer_that_fetches_nothing_of_a_snapshot_is_offered_one_again() {
        const NONE: [u64; 0] = [];
        let mut flow = PeerFlow::default();
        assert_eq!(flow.idle_fetches(vec![PEER, OTHER], 1_000), NONE);
        flow.note_fetch(2, 5_000);
        assert_eq!(flow.idle_fetches(vec![PEER, OTHER], 10_999), NONE);
        assert_eq!(flow.idle_fetches(vec![PEER, OTHER], 11_000), [OTHER]);
        flow.end_fetch(OTHER);
        assert_eq!((flow.fetching_at(2), flow.fetching_at(3)), (vec![PEER], vec![]));
        assert_eq!(flow.idle_fetches(vec![PEER, OTHER], 14_999), NONE, "it was offered one a moment ago");
        // One that has the snapshot is not offered it any more, and begins again the next time.
        assert_eq!(flow.idle_fetches(vec![OTHER], 15_000), NONE);
        assert_eq!(flow.idle_fetches(vec![PEER], 16_000), NONE);
    }
}
