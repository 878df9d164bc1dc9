//! The library's node of a group, as a start makes it.

use super::ticks::ELECTION_TICKS;
use crate::error::ReplicaError;
use crate::group::ReplicaId;
use crate::index::EntryIndex;
use crate::journal::{EntryKind, GroupState, InternalEntry};
use crate::logger::logger;
use crate::store::Store;
use raft::eraftpb::HardState;
use raft::{Config, RaftState, RawNode};

/// The library's own heartbeats are rarer: the replica decides when one is due, and to whom.
const OWN_HEARTBEAT_TICKS: usize = ELECTION_TICKS - 1;
/// Messages on their way to one replica: with 256 KiB each, 8 MiB.
const INFLIGHT_MAX: usize = 32;
/// Committed entries are listed in lots of so many bytes.
const COMMITTED_BYTES_PER_READY: u64 = 64 << 10;

/// Makes the node of a replica with this state in the journal and these entries, of a log that begins at `log_start`.
pub(super) fn raft_node(
    own: ReplicaId,
    state: &GroupState,
    index: EntryIndex,
    log_start: i64,
) -> Result<RawNode<Store>, ReplicaError> {
    let last = index.last();
    // What precedes the log start is committed, and may be removed at any time. A commit that was noted may be of entries that the
    // disk has lost.
    let deleted = index.last_known_at(log_start).index;
    let applied = state.applied.clamp(deleted, last);
    // A change of members of which the journal has not noted that it was applied is applied now.
    let is_unapplied = |entry: &&InternalEntry| {
        entry.kind == EntryKind::ConfigurationChangeV2 && entry.index > state.configuration_index
    };
    let unapplied = index.internal_entries().iter().find(is_unapplied);
    let commit = state.committed.max(deleted).max(state.configuration_index).clamp(applied, last);
    let applied = unapplied.map_or(applied, |change| applied.min(change.index - 1));
    let term = state.vote.term.max(index.term(last).unwrap_or(0));
    let vote = state.vote.candidate.filter(|_| state.vote.term == term).map_or(0, |candidate| candidate.0);
    let mut hard_state = HardState::default();
    (hard_state.term, hard_state.vote, hard_state.commit) = (term, vote, commit);
    let store = Store::new(index, RaftState::new(hard_state, (&state.configuration).into()));
    let config = Config {
        id: own.0,
        election_tick: ELECTION_TICKS,
        min_election_tick: ELECTION_TICKS,
        max_election_tick: 2 * ELECTION_TICKS,
        heartbeat_tick: OWN_HEARTBEAT_TICKS,
        applied,
        max_size_per_msg: raft::NO_LIMIT,
        max_inflight_msgs: INFLIGHT_MAX,
        max_uncommitted_size: raft::NO_LIMIT,
        max_committed_size_per_ready: COMMITTED_BYTES_PER_READY,
        check_quorum: true,
        pre_vote: true,
        skip_bcast_commit: true,
        batch_append: true,
        ..Config::default()
    };
    Ok(RawNode::new(&config, store, &logger())?)
}
