//! What is known of a replica without its partition's lock, how its time passes, and the heartbeats that stand.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use mainstem_replication::ReplicaId;

use super::super::Partition;
use super::super::stored::Stored;
use super::{Member, Replication};

/// A leader whose turn has not come for so long is not repeated to be one: something has its lock.
const TURN_MAX_MS: u64 = 800;

/// Whether a replica of the node has its next tick earlier than it had said, so that who keeps the times of all has to ask again.
#[derive(Debug, Default)]
pub(crate) struct EarlierTicks(AtomicBool);

impl EarlierTicks {
    fn note(&self) {
        self.0.store(true, Ordering::Release);
    }

    /// Whether one has since the last call. What replicas said before is seen by who gets `true`.
    pub(crate) fn take(&self) -> bool {
        self.0.swap(false, Ordering::Acquire)
    }
}

/// What is known of a replica without its lock.
#[derive(Debug, Default)]
pub(crate) struct Pulse {
    /// When its time is to pass next. Written under the partition's lock only.
    next_tick_ms: AtomicU64,
    earlier: Arc<EarlierTicks>,
    /// When it has passed last.
    ticked_ms: AtomicU64,
    /// The term in which it leads; 0: it does not.
    leads_in: AtomicU64,
    /// The term of the heartbeat that stands here; 0: none does.
    stands_in: AtomicU64,
    /// When that was repeated last.
    heard_ms: AtomicU64,
    /// Nodes that have answered to such a heartbeat since the last tick, by their ranks.
    answered: AtomicU64,
}

impl Pulse {
    /// Of a replica whose first tick is due at once.
    pub(crate) fn new(earlier: Arc<EarlierTicks>) -> Pulse {
        Pulse { earlier, ..Pulse::default() }
    }

    /// When time has to pass for it.
    pub(crate) fn next_tick_ms(&self) -> u64 {
        self.next_tick_ms.load(Ordering::Relaxed)
    }

    pub(crate) fn set_next_tick_ms(&self, next_ms: u64) {
        let is_earlier = next_ms < self.next_tick_ms();
        self.next_tick_ms.store(next_ms, Ordering::Relaxed);
        if is_earlier {
            self.earlier.note();
        }
    }

    pub(super) fn note(&self, member: &Member) {
        let leads_in = if member.leads() { member.replica.role().term } else { 0 };
        self.leads_in.store(leads_in, Ordering::Relaxed);
        self.stands_in.store(member.replica.stands_in().unwrap_or(0), Ordering::Relaxed);
        // Who waits for something that only time brings has every tick.
        let is_waiting = member.succession.is_some() || !member.commit_waits.is_empty();
        let next_tick_ms = if is_waiting { 0 } else { member.replica.next_tick_ms() };
        self.set_next_tick_ms(next_tick_ms);
    }
}

impl Partition {
    /// What is known of its replica without its lock, if it is replicated.
    pub(crate) fn pulse(&self) -> Option<Arc<Pulse>> {
        self.replication.as_ref().map(|replication| replication.pulse.clone())
    }

    /// Lets the time pass; where another thread has the partition, the next tick makes up for it.
    pub(crate) fn tick(&self, now_ms: u64) {
        let Some(replication) = &self.replication else { return };
        let pulse = &replication.pulse;
        let Some(mut state) = self.try_lock() else { return };
        let Ok(Stored::Replicated(member)) = &mut state.log else { return };
        if !member.is_running() {
            return;
        }
        if pulse.answered.load(Ordering::Relaxed) != 0 {
            let answered = replication.links.nodes(pulse.answered.swap(0, Ordering::Relaxed));
            let replicas: Vec<_> = member.replica.configuration().replicas().collect();
            let answered = replicas.into_iter().filter(|replica| answered.contains(&replica.node()));
            answered.for_each(|replica| member.replica.note_answer(replica));
        }
        member.replica.hear(pulse.heard_ms.load(Ordering::Relaxed));
        member.replica.tick(now_ms);
        pulse.ticked_ms.store(now_ms, Ordering::Relaxed);
        if let Some((gone, until_ms)) = member.succession {
            let is_over = until_ms < now_ms || member.leader().is_some_and(|leader| leader != gone);
            match is_over {
                true => member.succession = None,
                false => member.replica.succeed(),
            }
        }
        let mut aftermath = self.drive_locked(replication, &mut state);
        if let Ok(Stored::Replicated(member)) = &mut state.log {
            member.end_short_waits(&replication.links, self.min_insync(), &mut aftermath);
        }
        drop(state);
        self.finish(replication, aftermath);
    }

    /// A heartbeat of a leader that was just taken ([`Self::step`]) stands from now on.
    pub(crate) fn let_stand(&self, from: ReplicaId, term: u64) {
        let Some(replication) = &self.replication else { return };
        let Some(mut state) = self.lock_without_disk_step() else { return };
        if let Ok(Stored::Replicated(member)) = &mut state.log
            && member.is_running()
            && member.replica.let_stand(from, term)
        {
            replication.pulse.note(member);
        }
    }

    /// The heartbeat of a term that stands is repeated. Returns false where none of that term does. Takes no lock.
    pub(crate) fn hear(&self, term: u64, now_ms: u64) -> bool {
        let Some(Replication { pulse, .. }) = &self.replication else { return false };
        let stands = pulse.stands_in.load(Ordering::Relaxed) == term;
        if stands {
            pulse.heard_ms.store(now_ms, Ordering::Relaxed);
        }
        stands
    }

    /// Whether it still leads in a term, and its clock goes: it was the partition's turn within the time between two ticks
    /// of a replica at rest. Takes no lock.
    pub(crate) fn leads_on(&self, term: u64, now_ms: u64) -> bool {
        let Some(Replication { pulse, .. }) = &self.replication else { return false };
        let ticked_ms = pulse.ticked_ms.load(Ordering::Relaxed);
        pulse.leads_in.load(Ordering::Relaxed) == term && now_ms <= ticked_ms + TURN_MAX_MS
    }

    /// The node of a follower, by its rank among the links, has answered to the heartbeat that stands. Takes no lock.
    pub(crate) fn note_answer(&self, rank: usize) {
        if let Some(Replication { pulse, .. }) = &self.replication {
            pulse.answered.fetch_or(1 << rank, Ordering::Relaxed);
        }
    }

    /// A follower has refused the heartbeat that stands: it gets the next one in full.
    pub(crate) fn note_refusal(&self, node: i32) {
        let Some(replication) = &self.replication else { return };
        let Some(mut state) = self.lock_without_disk_step() else { return };
        if let Ok(Stored::Replicated(member)) = &mut state.log {
            let replicas: Vec<_> = member.replica.configuration().replicas().collect();
            let refusing = replicas.into_iter().filter(|replica| replica.node() == node);
            refusing.for_each(|replica| member.replica.note_refusal(replica));
            replication.pulse.note(member);
        }
    }
}
