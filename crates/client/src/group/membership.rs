//! A member of a group of the consumer protocol (KIP-848): the content and time of its heartbeats, and the partitions that it
//! releases and takes over.
//!
//! Pure: answers, the time and chance go in; heartbeats and changes come out of [`Membership::next`]. The coordinator
//! names partitions by the ids of their topics. Changes have names, as soon as these are known.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use mainstem_wire::{ErrorCode, Uuid};

use crate::backoff::Backoff;
use crate::error::Error;
use crate::topic_partition::TopicPartition;

/// The epoch of a member that wants to join.
const JOIN_EPOCH: i32 = 0;
/// The epoch by which a member leaves for good.
const LEAVE_EPOCH: i32 = -1;
/// The epoch by which a static member leaves and keeps its partitions for a while.
const LEAVE_FOR_NOW_EPOCH: i32 = -2;

/// Partitions by the ids of their topics.
pub(crate) type Partitions = BTreeMap<Uuid, BTreeSet<i32>>;

/// The content of a heartbeat beside the names of group and member.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Heartbeat {
    pub(crate) epoch: i32,
    /// It repeats the settings that the coordinator keeps of a member: subscription, assignor, time-out.
    pub(crate) is_full: bool,
    /// The partitions that the member has, if the coordinator has to know them.
    pub(crate) owned: Option<Partitions>,
}

/// The coordinator's answer to a heartbeat.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Answer {
    pub(crate) epoch: i32,
    pub(crate) interval_ms: u64,
    /// The partitions that the member should have, if that has changed.
    pub(crate) assignment: Option<Partitions>,
}

/// The next step that the driver has to take.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Step {
    /// Send it, then call [`Membership::answered`] or [`Membership::refused`].
    Beat(Heartbeat),
    /// Let the consumer release partitions, then call [`Membership::reconciled`].
    Revoke(BTreeSet<TopicPartition>),
    /// Let the consumer read partitions from now on, then call the same.
    Assign(BTreeSet<TopicPartition>),
    /// The partitions that the consumer was to read are another member's by now. If it has not begun with them, make sure that
    /// it never does, then call [`Membership::withdrawn`].
    Withdraw,
    /// Drop the heartbeat and the change that are under way, let the consumer drop the partitions that are lost, then call
    /// [`Membership::lost`].
    Lose,
    /// The member cannot be in its group any more.
    Fail(Error),
    /// Nothing until this time in ms, or until something happens.
    Wait(u64),
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum State {
    Joining,
    Joined,
    /// Thrown out, or left: the consumer has to drop its partitions. `is_begun`: that step was returned.
    Out {
        is_begun: bool,
    },
    Failed(Error),
}

/// The member.
#[derive(Debug)]
pub(crate) struct Membership {
    state: State,
    is_static: bool,
    epoch: i32,
    /// The partitions that the coordinator wants it to have.
    target: Partitions,
    /// The partitions that the consumer has.
    current: Partitions,
    /// The partitions that the consumer will have after the change under way.
    reconciling: Option<Partitions>,
    /// That change was to be withdrawn.
    is_withdrawing: bool,
    /// The partitions that the coordinator was last sent; none if it has to be sent them.
    reported: Option<Partitions>,
    /// The next heartbeat repeats everything, as the coordinator may not have got the last one.
    is_full: bool,
    in_flight: bool,
    /// It has asked to join, and was not thrown out since.
    may_be_in: bool,
    interval_ms: u64,
    /// The time at which the next heartbeat is due.
    beat_at_ms: u64,
    /// After a failure, no heartbeat is due before this time.
    retry_at_ms: u64,
    backoff: Backoff,
    names: HashMap<Uuid, Arc<str>>,
}

impl Membership {
    /// A member that is to join now.
    pub(crate) fn new(is_static: bool, backoff: Backoff) -> Membership {
        Membership {
            state: State::Joining,
            is_static,
            epoch: JOIN_EPOCH,
            target: Partitions::new(),
            current: Partitions::new(),
            reconciling: None,
            is_withdrawing: false,
            reported: None,
            is_full: true,
            in_flight: false,
            may_be_in: false,
            interval_ms: 0,
            beat_at_ms: 0,
            retry_at_ms: 0,
            backoff,
            names: HashMap::new(),
        }
    }

    /// The epoch under which offsets are committed; none outside of the group.
    pub(crate) fn epoch(&self) -> Option<i32> {
        (self.state == State::Joined).then_some(self.epoch)
    }

    /// The step to take at this time.
    pub(crate) fn next(&mut self, now_ms: u64) -> Step {
        match &mut self.state {
            State::Failed(error) => return Step::Fail(error.clone()),
            State::Out { is_begun: is_begun @ false } => {
                *is_begun = true;
                return Step::Lose;
            }
            State::Out { .. } => return Step::Wait(u64::MAX),
            State::Joining | State::Joined => {}
        }
        if self.is_stale() && !std::mem::replace(&mut self.is_withdrawing, true) {
            return Step::Withdraw;
        }
        if let Some(change) = self.reconcile() {
            return change;
        }
        if self.in_flight {
            return Step::Wait(u64::MAX);
        }
        // A change that was made is acknowledged at once: another member may wait for it.
        let is_news = self.reported.as_ref() != Some(&self.current);
        let due_ms = if is_news { 0 } else { self.beat_at_ms }.max(self.retry_at_ms);
        if now_ms < due_ms {
            return Step::Wait(due_ms);
        }
        (self.in_flight, self.may_be_in) = (true, true);
        self.beat_at_ms = now_ms + self.interval_ms;
        Step::Beat(self.heartbeat(is_news))
    }

    fn heartbeat(&mut self, is_news: bool) -> Heartbeat {
        let is_full = std::mem::take(&mut self.is_full) || self.state == State::Joining;
        let owned = (is_full || is_news).then(|| self.current.clone());
        self.reported = Some(self.current.clone());
        Heartbeat { epoch: self.epoch, is_full, owned }
    }

    /// Begins the next change towards the target, of partitions whose topics have known names. A revocation comes first, by
    /// itself: it is acknowledged before anything that the rest may have to wait for.
    fn reconcile(&mut self) -> Option<Step> {
        if self.reconciling.is_some() {
            return None;
        }
        let named = self.target.iter().filter(|(id, _)| self.names.contains_key(id));
        let next: Partitions = named.map(|(id, partitions)| (*id, partitions.clone())).collect();
        if next == self.current {
            return None;
        }
        let revoked = self.difference(&self.current, &next);
        if revoked.is_empty() {
            let added = self.difference(&next, &self.current);
            self.reconciling = Some(next);
            return Some(Step::Assign(added));
        }
        self.reconciling = Some(in_both(&self.current, &next));
        Some(Step::Revoke(revoked))
    }

    /// Returns true if the consumer is to take over partitions that are not this member's any more.
    fn is_stale(&self) -> bool {
        let is_in = |partitions: &Partitions, id: &Uuid, one: &i32| {
            partitions.get(id).is_some_and(|partitions| partitions.contains(one))
        };
        let is_gone = |id: &Uuid, one: &i32| !is_in(&self.current, id, one) && !is_in(&self.target, id, one);
        let mut next = self.reconciling.iter().flatten();
        next.any(|(id, partitions)| partitions.iter().any(|one| is_gone(id, one)))
    }

    /// Partitions of `these` that are not in `those`, by name.
    fn difference(&self, these: &Partitions, those: &Partitions) -> BTreeSet<TopicPartition> {
        let of_topic = |(id, partitions): (&Uuid, &BTreeSet<i32>)| {
            let name = self.names[id].clone();
            let (id, others) = (*id, partitions.clone());
            others
                .into_iter()
                .filter(move |one| !those.get(&id).is_some_and(|those| those.contains(one)))
                .map(move |partition| TopicPartition { topic: name.clone(), partition })
        };
        these.iter().flat_map(of_topic).collect()
    }

    /// Topics of the target whose names have to be asked for.
    pub(crate) fn unnamed(&self) -> BTreeSet<Uuid> {
        let is_unnamed = |id: &&Uuid| !self.names.contains_key(id);
        self.target.keys().filter(is_unnamed).copied().collect()
    }

    /// Takes the names of topics.
    pub(crate) fn named(&mut self, names: impl IntoIterator<Item = (Uuid, Arc<str>)>) {
        self.names.extend(names);
    }

    /// Takes the coordinator's answer to the heartbeat.
    pub(crate) fn answered(&mut self, answer: Answer) {
        self.in_flight = false;
        if !matches!(self.state, State::Joining | State::Joined) {
            return;
        }
        self.backoff.reset();
        self.state = State::Joined;
        self.epoch = answer.epoch;
        self.beat_at_ms = self.beat_at_ms - self.interval_ms + answer.interval_ms;
        self.interval_ms = answer.interval_ms;
        if let Some(target) = answer.assignment {
            self.target = target;
            let (target, current, next) = (&self.target, &self.current, &self.reconciling);
            let is_used = |id: &Uuid| {
                target.contains_key(id)
                    || current.contains_key(id)
                    || next.as_ref().is_some_and(|next| next.contains_key(id))
            };
            self.names.retain(|id, _| is_used(id));
        }
    }

    /// Takes the error of the heartbeat. `spread`: a random number in 0..1.
    pub(crate) fn refused(&mut self, error: &Error, now_ms: u64, spread: f64) {
        self.in_flight = false;
        (self.is_full, self.reported) = (true, None);
        if !matches!(self.state, State::Joining | State::Joined) {
            return;
        }
        match error.code() {
            Some(ErrorCode::FENCED_MEMBER_EPOCH | ErrorCode::UNKNOWN_MEMBER_ID) => self.go_out(),
            _ if error.is_retriable() => {
                let wait = self.backoff.next(spread);
                self.retry_at_ms = now_ms + u64::try_from(wait.as_millis()).unwrap_or(u64::MAX / 2);
            }
            _ => self.fail(error.clone()),
        }
    }

    /// Takes the error of a change that cannot be made, and never will be.
    pub(crate) fn fail(&mut self, error: Error) {
        self.state = State::Failed(error);
    }

    /// Notes that the consumer has made the change.
    pub(crate) fn reconciled(&mut self) {
        if let Some(current) = self.reconciling.take() {
            self.current = current;
            // Even if it is the same as before: the coordinator waits for the report.
            (self.reported, self.is_withdrawing) = (None, false);
        }
    }

    /// Notes that the consumer will not make the change, and has not begun with it.
    pub(crate) fn withdrawn(&mut self) {
        // The coordinator waits for the report that the member does without the added partitions.
        (self.reconciling, self.reported, self.is_withdrawing) = (None, None, false);
    }

    /// The heartbeat by which the member leaves, as its caller asks for no records. It joins again when the consumer has dropped
    /// its partitions, which happens when records are asked for again.
    pub(crate) fn go_idle(&mut self) -> Option<Heartbeat> {
        let leave = self.leave();
        if matches!(self.state, State::Joining | State::Joined) {
            self.go_out();
        }
        leave
    }

    /// The heartbeat by which the member leaves, if the coordinator may have it in the group: the answer to a join may still be
    /// under way. A static member keeps its partitions until its session ends.
    pub(crate) fn leave(&self) -> Option<Heartbeat> {
        let epoch = if self.is_static { LEAVE_FOR_NOW_EPOCH } else { LEAVE_EPOCH };
        self.may_be_in.then_some(Heartbeat { epoch, is_full: false, owned: None })
    }

    /// Returns true if the member is in the group, or on its way into it.
    pub(crate) fn takes_part(&self) -> bool {
        matches!(self.state, State::Joining | State::Joined)
    }

    fn go_out(&mut self) {
        self.state = State::Out { is_begun: false };
        self.epoch = JOIN_EPOCH;
        self.target.clear();
        self.current.clear();
        (self.reconciling, self.is_withdrawing) = (None, false);
        (self.in_flight, self.may_be_in) = (false, false);
        (self.is_full, self.reported) = (true, None);
    }

    /// Notes that the consumer has dropped all partitions: the member joins again.
    pub(crate) fn lost(&mut self, now_ms: u64) {
        self.state = State::Joining;
        (self.beat_at_ms, self.retry_at_ms) = (now_ms, now_ms);
    }
}

/// The partitions that are in both.
fn in_both(these: &Partitions, those: &Partitions) -> Partitions {
    let common = |(id, partitions): (&Uuid, &BTreeSet<i32>)| {
        let both: BTreeSet<i32> = partitions.intersection(those.get(id)?).copied().collect();
        (!both.is_empty()).then_some((*id, both))
    };
    these.iter().filter_map(common).collect()
}

#[cfg(test)]
#[path = "membership/tests.rs"]
mod tests;
