//! Knowledge of a leader about the other replicas of its group.

use super::{RaftGroup, Refusal};
use crate::group::{Configuration, ReplicaId};
use bytes::Bytes;
use raft::eraftpb::{Message, MessageType};
use raft::{Progress, ProgressState, SnapshotStatus, StateRole};

/// The context of a heartbeat that says what a leader has counted on; questions have eight bytes
/// ([`Replica::confirm`](crate::Replica::confirm)).
const COUNTED_ON: &[u8] = &[0];

impl RaftGroup {
    /// All members but this one, also those that only learn, or leave.
    pub(in crate::replica) fn others(&self) -> impl Iterator<Item = (u64, &Progress)> {
        let own = self.own.0;
        let all = self.node.raft.prs().iter().map(|(id, progress)| (*id, progress));
        all.filter(move |(id, _)| *id != own)
    }

    /// The other voters that stay when a change under way is complete.
    fn other_voters(&self) -> impl Iterator<Item = (u64, &Progress)> {
        self.others().filter(|(id, _)| self.configuration.voters.contains(&ReplicaId(*id)))
    }

    /// The index up to which each replica is known to have the log, in the order of ids.
    pub(in crate::replica) fn matched(&self) -> Vec<(ReplicaId, u64)> {
        let of = |(id, progress): (&u64, &Progress)| (ReplicaId(*id), progress.matched);
        let mut matched: Vec<_> = self.node.raft.prs().iter().map(of).collect();
        matched.sort_unstable();
        matched
    }

    /// The index up to which `count` voters are known to have the log, also when a change under way is complete; 0: there are fewer.
    pub(in crate::replica) fn matched_by(&self, count: usize) -> u64 {
        let of = |voters: &[ReplicaId], count: usize| {
            let progress = voters.iter().filter_map(|id| self.node.raft.prs().get(id.0));
            let mut matched: Vec<_> = progress.map(|progress| progress.matched).collect();
            matched.sort_unstable_by(|a, b| b.cmp(a));
            count.checked_sub(1).and_then(|at| matched.get(at)).copied().unwrap_or(0)
        };
        let Configuration { voters, voters_outgoing, .. } = &self.configuration;
        let count = count.max(1);
        match voters_outgoing.is_empty() {
            true => of(voters, count),
            // Before the change there may have been fewer.
            false => of(voters, count).min(of(voters_outgoing, count.min(voters_outgoing.len()))),
        }
    }

    /// The voter that leadership is given to by a leader which cannot append: one that has what is committed, and rather not the one that
    /// it was offered to last.
    pub(in crate::replica) fn best_successor(&self, offered_to: u64) -> Option<u64> {
        let committed = self.committed();
        let able = self
            .other_voters()
            .filter(|(_, progress)| progress.recent_active && progress.matched >= committed);
        able.max_by_key(|(id, progress)| (*id != offered_to, progress.matched, *id)).map(|(id, _)| id)
    }

    /// Returns true if all that a leader has is committed, and a peer has it.
    pub(in crate::replica) fn has_everything(&self, peer: u64) -> bool {
        self.node.raft.prs().get(peer).is_some_and(|progress| self.is_everything_at(progress))
    }

    fn is_everything_at(&self, progress: &Progress) -> bool {
        let log = &self.node.raft.raft_log;
        let last = log.last_index();
        progress.state == ProgressState::Replicate && progress.matched == last && log.committed == last
    }

    /// Returns true if a leader has nothing to do by itself for a while: all others have everything, and know it by a coalesced heartbeat
    /// (`is_coalesced` says that of a peer and a commit index), and no question is open.
    pub(in crate::replica) fn is_at_ease(&self, is_coalesced: impl Fn(u64, u64) -> bool) -> bool {
        let raft = &self.node.raft;
        let mut others = raft.prs().iter().filter(|(id, _)| **id != self.own.0);
        let committed = raft.raft_log.committed;
        raft.lead_transferee.is_none()
            && raft.pending_read_count() == 0
            && others.all(|(id, progress)| self.is_everything_at(progress) && is_coalesced(*id, committed))
    }

    /// Returns true if a heartbeat says to a peer that it has everything, and that in the term in which the driver knows this replica to
    /// lead. To a follower that lacks something a leader says all: what that one has dropped for want of free space is sent again when it
    /// answers.
    pub(in crate::replica) fn says_all(&self, heartbeat: &Message) -> bool {
        self.is_leader()
            && heartbeat.term == self.role.term
            && heartbeat.commit == self.committed()
            && self.has_everything(heartbeat.to)
    }

    /// Returns true if appends ask a peer for what it has.
    pub(in crate::replica) fn is_probed(&self, peer: u64) -> bool {
        let progress = self.node.raft.prs().get(peer);
        progress.is_some_and(|progress| progress.state == ProgressState::Probe)
    }

    /// Asks a peer for the entry that precedes those here. Returns false where this replica does not lead, or there is no such peer.
    pub(in crate::replica) fn ask_for_start(&mut self, peer: u64) -> bool {
        let start = self.start().index;
        let raft = &mut self.node.raft;
        if raft.state != StateRole::Leader {
            return false;
        }
        let Some(progress) = raft.mut_prs().get_mut(peer) else { return false };
        progress.become_probe();
        progress.next_idx = start + 1;
        raft.send_append(peer);
        true
    }

    /// Notes that a peer has answered.
    pub(in crate::replica) fn note_answer(&mut self, from: ReplicaId) {
        if self.is_leader()
            && let Some(progress) = self.node.raft.mut_prs().get_mut(from.0)
        {
            progress.recent_active = true;
        }
    }

    /// Asks a peer again for what it has: messages may not have arrived.
    pub(in crate::replica) fn report_unreachable(&mut self, peer: u64) {
        self.node.report_unreachable(peer);
    }

    /// The peers that are offered a snapshot.
    pub(in crate::replica) fn offered(&self) -> Vec<u64> {
        let is_offered = |progress: &Progress| progress.state == ProgressState::Snapshot;
        self.node.raft.prs().iter().filter(|(_, one)| is_offered(one)).map(|(id, _)| *id).collect()
    }

    /// Notes that a peer does not get the snapshot which it was offered.
    pub(in crate::replica) fn end_offer(&mut self, peer: u64) {
        self.node.report_snapshot(peer, SnapshotStatus::Failure);
    }

    /// Says to the leader where it may find what is here. Returns false where it is not the leader any more.
    pub(in crate::replica) fn refuse(&mut self, to: u64, refusal: Refusal) -> bool {
        let raft = &mut self.node.raft;
        if raft.leader_id != to || raft.state != StateRole::Follower {
            return false;
        }
        let Refusal { index, hint, term } = refusal;
        let mut message =
            Message { msg_type: MessageType::MsgAppendResponse, reject: true, index, ..Message::default() };
        (message.from, message.to, message.term) = (self.own.0, to, raft.term);
        (message.reject_hint, message.log_term) = (hint, term);
        message.commit = raft.raft_log.committed;
        raft.msgs.push(message);
        true
    }

    /// Takes back what a leader counts on where a peer refuses entries behind what it has acknowledged: it has lost them. It is sent what
    /// has counted, before any entry: where no power cut can have taken that, it stops. It is asked again for what it has. Returns the
    /// index that counted; `None`: nothing that counted is refused.
    pub(in crate::replica) fn take_back_match(&mut self, refusal: &mut Message) -> Option<u64> {
        let (own, raft) = (self.own.0, &mut self.node.raft);
        let is_refusal = refusal.reject && refusal.request_snapshot == 0;
        if !is_refusal || raft.state != StateRole::Leader || raft.term != refusal.term || refusal.from == own
        {
            return None;
        }
        let (last, committed, term) = (raft.raft_log.last_index(), raft.raft_log.committed, raft.term);
        let progress = raft.mut_prs().get_mut(refusal.from)?;
        let (matched, end) = (progress.matched, refusal.reject_hint);
        if matched <= end {
            return None;
        }
        // The library takes the refusal for an answer to what it has just asked.
        refusal.index = refusal.index.min(last);
        progress.matched = 0;
        progress.become_probe();
        progress.next_idx = refusal.index + 1;
        let (to, commit) = (refusal.from, matched.min(committed));
        if commit > end {
            let mut heartbeat =
                Message { msg_type: MessageType::MsgHeartbeat, term, commit, ..Message::default() };
            (heartbeat.from, heartbeat.to, heartbeat.context) = (own, to, Bytes::from_static(COUNTED_ON));
            raft.msgs.push(heartbeat);
        }
        Some(matched)
    }
}
