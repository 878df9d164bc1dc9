//! The members of a partition's group: those that the metadata want, and the steps of a leader towards them.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use mainstem_log::dir::LogDir;
use mainstem_replication::{Configuration, GroupId, MemberChange, ReplicaId, RoleState, Step, WantedMembers};

use super::super::stored::Stored;
use super::super::{NoLog, Partition};
use super::Member;
use mainstem_links::Links;

/// The members that the metadata want, and what this replica knows of the way there.
#[derive(Debug, Default)]
pub(super) struct Wanted {
    /// The members; without voters nothing is wanted.
    members: WantedMembers,
    /// The version of the metadata's wish. It rises.
    version: u32,
    /// The term in which this replica leads and has found that the group has these members and no others.
    settled_in: Option<u64>,
    /// The joint configuration that the group is in.
    joint: Option<Joint>,
}

/// A joint configuration.
#[derive(Debug)]
struct Joint {
    added: Vec<ReplicaId>,
    removed: Vec<ReplicaId>,
    /// The time since which it is known here.
    since_ms: u64,
}

/// A replica on this node, as a removal looks at it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct OwnReplica {
    /// Its id.
    pub(crate) id: ReplicaId,
    /// The highest term that it has heard of.
    pub(crate) term: u64,
    /// It knows that it is a member of its group.
    pub(crate) is_member: bool,
}

/// The way of a leader towards the members that are wanted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Progress {
    /// There is nothing to do until it leads again, or others are wanted.
    Ended,
    /// There is more to do.
    UnderWay,
    /// There is more to do at once: a joint configuration needs the majorities of two.
    Joint,
}

impl Member {
    fn own_replica(&self) -> OwnReplica {
        let (id, term) = (self.replica.own(), self.replica.highest_term());
        let is_member = self.replica.configuration().replicas().any(|replica| replica == id);
        OwnReplica { id, term, is_member }
    }

    /// Number of in-sync replicas that count towards `min.insync.replicas`: of those that vote when a change under way is complete, and of
    /// those before, whichever are fewer.
    pub(super) fn in_sync_count(&self, links: &Links) -> usize {
        let in_sync = self.in_sync(links);
        let configuration = self.replica.configuration();
        let of = |voters: &[ReplicaId]| voters.iter().filter(|voter| in_sync.contains(voter)).count();
        let count = of(&configuration.voters);
        let before = of(&configuration.voters_outgoing);
        // All of them are enough, where there were fewer before the change.
        let are_all = before == configuration.voters_outgoing.len();
        if are_all { count } else { count.min(before) }
    }

    /// Takes the next step of a leader.
    fn reconcile(&mut self, describe: impl FnOnce() -> String) -> Progress {
        let role = self.replica.role();
        if role.state != RoleState::Leader || self.wanted.members.voters.is_empty() {
            return Progress::Ended;
        }
        let mut is_joint = !self.replica.configuration().voters_outgoing.is_empty();
        match self.replica.reconcile(&self.wanted.members) {
            Ok(Step::Wait) => {}
            Ok(Step::Done) => {
                self.wanted.settled_in = Some(role.term);
                return Progress::Ended;
            }
            Ok(Step::Transfer(to)) => {
                tracing::info!("{}: leadership goes to replica {to}, since this one leaves", describe());
            }
            Ok(Step::Change(MemberChange::AddLearner(id))) => {
                tracing::info!("{}: replica {id} gets the log", describe());
            }
            Ok(Step::Change(MemberChange::RemoveLearner(id))) => {
                tracing::info!("{}: replica {id} is not wanted any more", describe());
            }
            Ok(Step::Change(MemberChange::EnterJoint { add, remove })) => {
                let (add, remove) = (listed(&add), listed(&remove));
                tracing::info!("{}: replicas [{add}] are to vote, replicas [{remove}] to leave", describe());
                is_joint = true;
            }
            Ok(Step::Change(MemberChange::LeaveJoint)) => {}
            // It is out of service, or another leads.
            Err(_) => return Progress::Ended,
        }
        if is_joint { Progress::Joint } else { Progress::UnderWay }
    }
}

fn listed(ids: &[ReplicaId]) -> String {
    ids.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}

impl Wanted {
    /// Notes the members that the group has from now on. Returns what a leader says when they have changed: who votes, who has left, and
    /// how long both have decided.
    pub(super) fn note_members(&mut self, members: &Configuration, now_ms: u64) -> Option<String> {
        let without = |some: &[ReplicaId], others: &[ReplicaId]| -> Vec<_> {
            some.iter().copied().filter(|id| !others.contains(id)).collect()
        };
        if members.voters_outgoing.is_empty() {
            let Joint { added, removed, since_ms } = self.joint.take()?;
            let (added, removed) = (listed(&added), listed(&removed));
            let joint_ms = now_ms.saturating_sub(since_ms);
            return Some(format!(
                "replicas [{added}] vote, replicas [{removed}] have left (joint {joint_ms} ms)"
            ));
        }
        self.joint = Some(Joint {
            added: without(&members.voters, &members.voters_outgoing),
            removed: without(&members.voters_outgoing, &members.voters),
            since_ms: now_ms,
        });
        None
    }
}

impl Partition {
    /// The members of the group, as its replica here knows them; `None` without a replica.
    pub fn configuration(&self) -> Option<Configuration> {
        match &self.lock().log {
            Ok(Stored::Replicated(member)) => Some(member.replica.configuration().clone()),
            _ => None,
        }
    }

    /// Sets the members that its group is to have, of a version of the metadata. An earlier version than is known changes nothing.
    pub fn want_members(&self, members: WantedMembers, version: u32) {
        let Some(replication) = &self.replication else { return };
        // Each note of a leader comes by here. The lock may be held while a disk is waited for.
        if replication.wanted_version.load(Ordering::Acquire) > i64::from(version) - 1 {
            return;
        }
        if let Ok(Stored::Replicated(member)) = &mut self.lock().log
            && (member.wanted.members.voters.is_empty() || version > member.wanted.version)
        {
            (member.wanted.members, member.wanted.version) = (members, version);
            member.wanted.settled_in = None;
            replication.wanted_version.store(i64::from(version), Ordering::Release);
        }
    }

    /// The version of what is wanted, if its replica leads and may have to change the members of the group.
    pub(crate) fn wants_members(&self) -> Option<u32> {
        match &self.lock().log {
            Ok(Stored::Replicated(member)) => {
                let term = member.replica.role().term;
                let wants = member.leads()
                    && !member.wanted.members.voters.is_empty()
                    && member.wanted.settled_in != Some(term);
                wants.then_some(member.wanted.version)
            }
            _ => None,
        }
    }

    /// Takes the next step of a leader towards the members that are wanted. Blocks on the disk, and links do not wait for that.
    pub(crate) fn reconcile(&self) -> Progress {
        let Some(replication) = &self.replication else { return Progress::Ended };
        let mut state = self.lock();
        let progress = match &mut state.log {
            Ok(Stored::Replicated(member)) if member.is_running() => {
                let _wait = replication.disk_waits.begin_proposal();
                member.reconcile(|| format!("{}-{}", self.topic, self.index))
            }
            _ => Progress::Ended,
        };
        self.drive(state);
        progress
    }

    /// The version of what is wanted, where this replica leads and its group has exactly those members.
    pub fn settled_version(&self) -> Option<u32> {
        match &self.lock().log {
            Ok(Stored::Replicated(member)) => {
                let is_settled =
                    member.leads() && member.wanted.settled_in == Some(member.replica.role().term);
                is_settled.then_some(member.wanted.version)
            }
            _ => None,
        }
    }

    /// The replicas that are wanted and do not vote yet, of a leader.
    pub(crate) fn missing_members(&self) -> Vec<ReplicaId> {
        match &self.lock().log {
            Ok(Stored::Replicated(member)) => {
                let voters = &member.replica.configuration().voters;
                member.wanted.members.voters.iter().copied().filter(|id| !voters.contains(id)).collect()
            }
            _ => Vec::new(),
        }
    }

    /// The id of the replica that this node has, or had. Takes no lock.
    pub(crate) fn replica_id(&self) -> Option<ReplicaId> {
        Some(self.replication.as_ref()?.handle.own)
    }

    /// Takes its replica out of its group and closes the log, if it has heard of no later term than `term_max`, or knows that it is not a
    /// member. Returns its log directory and its group; `None`: it stays.
    pub(crate) fn leave_for_good(&self, term_max: Option<u64>) -> Option<(Arc<LogDir>, GroupId)> {
        let group = self.group_id()?;
        let dir = {
            let mut state = self.lock();
            let Ok(Stored::Replicated(member)) = &mut state.log else { return None };
            let own = member.own_replica();
            if own.is_member && term_max.is_some_and(|max| own.term > max) {
                return None;
            }
            // From here on it takes no message, so that it hears of no later term.
            member.is_closing = true;
            member.replica.log().dir().clone()
        };
        drop(self.take_log(NoLog::Elsewhere));
        Some((dir, group))
    }
}
