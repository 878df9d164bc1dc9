//! The state machine that assigns a consumer's slices to its instances, and knows how far each slice is.
//!
//! ```text
//!            join                Released, or 30 s
//! (none) ─────────▶ waiting ◀──────────────────────── revoking
//!                      │  its target is free              ▲
//!                      └──────────Assign────────▶ holding ┘ its target is another one: Revoke
//! ```
//!
//! Each instance has a target, a range of slices; targets never overlap. A new instance gets half of the largest target. The target of
//! one that leaves is added to a neighbour's. So each change disturbs one instance, not all. If the largest target is more than twice
//! its fair share, all targets are computed again.
//!
//! An instance that was lost may come back within [`CLAIM_GRACE_MS`] and resume the assignment that it had (`held`). An instance that
//! comes without such a claim gets free slices at once. What an instance has resumed may be the target of another one, which gets it
//! once it is given back.
//!
//! After a start of the publisher all instances are lost. The slices that an instance had then are kept for it, though others come first
//! ([`REJOIN_MS_MAX`]); an instance without slices waits meanwhile. If an instance comes back in that time and is lost again, its slices
//! are kept once more. Its next connection may be under way, with what it has done since.
//!
//! A connection that arrives after a later one of its process gets nothing: its instance has dropped it ([`Attempt`]).
//!
//! A slice has one position however often it changes hands. Parts are runs of slices that are equally far. Events that are done ahead of
//! a part's position are not sent again, so neighbours with different positions can become one assignment.
//!
//! Architecture invariant: no clock, no I/O. Time goes in; effects come out, to be carried out in their order.

use std::ops::Range;

use crate::slices::{Done, SliceRange, normalized};

/// The time for which the slices of a lost instance are kept for it.
pub const CLAIM_GRACE_MS: u64 = 1_000;
/// The time that instances have after a start of the publisher to come back for their slices. It begins with the first instance
/// that comes. Instances try again after 3.75 s at most.
pub const REJOIN_MS_MAX: u64 = 5_000;
/// The most starts at which an instance is waited for. One that ended together with the publisher holds others up no
/// more then.
const STARTS_WAITED_MAX: u32 = 2;
/// The time after which an instance that has not released its slices is fenced.
pub const REVOKE_MS_MAX: u64 = 30_000;
/// The most instances of a consumer that may be connected.
pub const INSTANCES_MAX: usize = 1_024;
/// The most processes whose last connection is known: those of all connected instances, and as many earlier ones.
const ATTEMPTS_MAX: usize = 2 * INSTANCES_MAX;

/// The number of a connection of an instance.
pub type Connection = u64;

/// A run of slices that are equally far.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Part {
    /// The slices.
    pub slices: SliceRange,
    /// Every event before it is done.
    pub offset: i64,
    /// Ranges of events behind `offset` that are done, ascending and apart.
    pub finished: Vec<Range<i64>>,
    /// The last assignment with these slices.
    pub assignment: u64,
}

impl Part {
    /// Returns true if an event of these slices is done.
    pub fn is_done(&self, offset: i64) -> bool {
        let at = self.finished.partition_point(|range| range.end <= offset);
        offset < self.offset || self.finished.get(at).is_some_and(|range| range.start <= offset)
    }

    /// The offset behind all events that are done.
    pub fn done_end(&self) -> i64 {
        self.finished.last().map_or(self.offset, |last| last.end)
    }
}

/// A message to send to an instance.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Effect {
    /// The instance is assigned slices.
    Assign {
        /// The instance's connection.
        connection: Connection,
        /// The assignment's number.
        assignment: u64,
        /// The slices.
        slices: SliceRange,
        /// The first offset that is sent.
        offset: i64,
        /// The instance resumes the assignment that it had.
        is_resumed: bool,
        /// The slices by how far they are.
        parts: Vec<Part>,
    },
    /// The instance has to release slices, or has lost them.
    Revoke {
        /// The instance's connection.
        connection: Connection,
        /// The assignment's number.
        assignment: u64,
        /// The slices are lost already; no answer is expected.
        is_lost: bool,
    },
    /// The connection ends.
    Fence {
        /// The connection.
        connection: Connection,
    },
}

/// The number of a connection among those of its instance's process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Attempt {
    /// A number that no other process has.
    pub process: u64,
    /// Greater than the numbers of all earlier connections of the process.
    pub number: u64,
}

/// An instance that connects.
#[derive(Debug, Clone)]
pub struct Joining {
    /// Its connection.
    pub connection: Connection,
    /// Its name.
    pub name: String,
    /// The number of the connection in its process. Without one, the connection that comes last counts.
    pub attempt: Option<Attempt>,
    /// The slices that it pins, if it does.
    pub pinned: Option<SliceRange>,
    /// The assignment that it had when its connection was lost.
    pub held: Option<Held>,
}

/// An assignment when the connection of its instance was lost.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Held {
    /// The events of it that are done.
    pub done: Done,
    /// Its slices; none if the instance has released it, so that only `done` counts.
    pub slices: Option<SliceRange>,
    /// The offset up to which events were sent.
    pub sent_to: i64,
}

/// The reason why an instance may not join.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum JoinError {
    /// Some instances pin slices and some do not.
    #[error("some instances of this consumer pin slices and some share them; pin those of all, or of none")]
    Mixed,
    /// The consumer has too many instances.
    #[error("this consumer has {INSTANCES_MAX} instances, which is the most")]
    TooMany,
    /// A later connection of the process has come first.
    #[error("a later connection of this instance has come already")]
    Overtaken,
}

/// The slices that an instance holds now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Holding {
    Nothing,
    Slices { assignment: u64, slices: SliceRange },
    Revoking { assignment: u64, slices: SliceRange, until_ms: u64 },
}

impl Holding {
    fn slices(self) -> Option<(u64, SliceRange)> {
        match self {
            Holding::Nothing => None,
            Holding::Slices { assignment, slices } | Holding::Revoking { assignment, slices, .. } => {
                Some((assignment, slices))
            }
        }
    }
}

#[derive(Debug, Clone)]
struct Instance {
    connection: Connection,
    name: String,
    pinned: bool,
    target: Option<SliceRange>,
    holding: Holding,
}

/// The slices of one consumer.
#[derive(Debug, Clone)]
pub struct Handover {
    generation: u64,
    parts: Vec<Part>,
    instances: Vec<Instance>,
    /// The time at which slices without a target are given to others.
    give_at_ms: u64,
    lost: Vec<Lost>,
    awaited: Vec<Awaited>,
    /// The end of the wait for `awaited`; none before any instance has come.
    awaited_until_ms: Option<u64>,
    /// The time until which an instance that is lost again is waited for; 0 before any instance has come.
    rejoin_until_ms: u64,
    /// The last connection of each process; the one that came last is at the end.
    attempts: Vec<Attempt>,
}

/// An instance that has an assignment, or may come back for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Holder {
    /// A hash of the instance's name. An instance of that name has come back, whatever it says that it had.
    pub name: u16,
    /// The number of starts at which it was waited for.
    pub starts: u32,
}

impl Holder {
    /// The holder of an assignment that a connected instance has.
    fn new(name: &str) -> Holder {
        Holder { name: (crc32c::crc32c(name.as_bytes()) >> 16) as u16, starts: 0 }
    }
}

/// An instance that was lost, and may come back.
#[derive(Debug, Clone)]
struct Lost {
    holder: Holder,
    assignment: u64,
    slices: SliceRange,
    /// It was releasing its slices. No instance gets them until it comes back with what it has done of them, or its
    /// time is over.
    is_revoking: bool,
    until_ms: u64,
}

/// Slices of an instance that was connected when the publisher ended, and has not come back. No other instance gets
/// them.
#[derive(Debug, Clone, Copy)]
struct Awaited {
    holder: Holder,
    assignment: u64,
    slices: SliceRange,
}

impl Awaited {
    /// Returns what is left when some slices are not waited for.
    fn without(self, slices: SliceRange) -> impl Iterator<Item = Awaited> {
        let lower = SliceRange::new(self.slices.from.into(), self.slices.to.min(slices.from).into());
        let upper = SliceRange::new(self.slices.from.max(slices.to).into(), self.slices.to.into());
        lower.into_iter().chain(upper).map(move |slices| Awaited { slices, ..self })
    }
}

/// An assignment that an instance resumes.
#[derive(Debug, Clone, Copy)]
struct Claim {
    assignment: u64,
    slices: SliceRange,
    /// The offset before which its events were sent.
    sent_to: i64,
}

impl Handover {
    /// Makes a consumer that begins at an offset.
    pub fn new(offset: i64) -> Handover {
        let part = Part { slices: SliceRange::ALL, offset, finished: Vec::new(), assignment: 0 };
        Handover::of(0, vec![part])
    }

    fn of(generation: u64, parts: Vec<Part>) -> Handover {
        Handover {
            generation,
            parts,
            instances: Vec::new(),
            give_at_ms: 0,
            lost: Vec::new(),
            awaited: Vec::new(),
            awaited_until_ms: None,
            rejoin_until_ms: 0,
            attempts: Vec::new(),
        }
    }

    /// Restores a stored consumer; `None` if the parts are not all slices in their order.
    pub fn restored(generation: u64, parts: Vec<Part>) -> Option<Handover> {
        let mut next = 0;
        for part in &parts {
            if part.slices.from != next || part.assignment > generation {
                return None;
            }
            next = part.slices.to;
        }
        let is_whole = next == SliceRange::ALL.to;
        is_whole.then(|| Handover::of(generation, parts))
    }

    /// Has the holder of a part waited for, unless it was at too many starts before. It had the part when the publisher
    /// ended.
    pub fn await_holder(&mut self, part: &Part, holder: Holder) {
        if holder.starts < STARTS_WAITED_MAX {
            let (assignment, slices) = (part.assignment, part.slices);
            self.awaited.push(Awaited { holder, assignment, slices });
        }
    }

    /// Returns the holder of an assignment, present or expected.
    pub fn holder(&self, assignment: u64) -> Option<Holder> {
        let has_it = |one: &&Instance| one.holding.slices().is_some_and(|(held, _)| held == assignment);
        let present = self.instances.iter().find(has_it).map(|one| Holder::new(&one.name));
        let lost = || self.lost.iter().find(|one| one.assignment == assignment).map(|one| one.holder);
        let awaited = || self.awaited.iter().find(|one| one.assignment == assignment).map(|one| one.holder);
        present.or_else(lost).or_else(awaited)
    }

    /// The number of the last assignment.
    pub fn generation(&self) -> u64 {
        self.generation
    }

    /// All slices in their order, by how far they are.
    pub fn parts(&self) -> &[Part] {
        &self.parts
    }

    /// The first offset that is not done in all slices.
    pub fn frontier(&self) -> i64 {
        self.parts.iter().map(|part| part.offset).min().expect("there is a part at least")
    }

    /// The offset behind all events that are done in any slice.
    pub fn done_end(&self) -> i64 {
        self.parts.iter().map(Part::done_end).max().expect("there is a part at least")
    }

    /// Names and slices of the instances that are connected.
    pub fn instances(&self) -> impl Iterator<Item = (&str, Option<SliceRange>)> {
        self.instances.iter().map(|one| (one.name.as_str(), one.holding.slices().map(|(_, slices)| slices)))
    }

    /// The slices that a connection has now.
    pub fn held_by(&self, connection: Connection) -> Option<(u64, SliceRange)> {
        self.instance(connection)?.holding.slices()
    }

    /// The time at which [`Handover::tick`] is due.
    pub fn due_ms(&self) -> Option<u64> {
        let revoking = self.instances.iter().filter_map(|one| match one.holding {
            Holding::Revoking { until_ms, .. } => Some(until_ms),
            _ => None,
        });
        let gives = (self.is_shared() && !self.free_ranges().is_empty()).then_some(self.give_at_ms);
        let lost = self.lost.iter().map(|lost| lost.until_ms);
        revoking.chain(gives).chain(lost).chain(self.awaited_until_ms).min()
    }

    /// Takes an instance that connects.
    ///
    /// # Errors
    /// [`JoinError`]; nothing has changed then.
    pub fn join(&mut self, joining: Joining, now_ms: u64) -> Result<Vec<Effect>, JoinError> {
        let mut effects = Vec::new();
        if joining.attempt.is_some_and(|attempt| self.is_overtaken(attempt)) {
            return Err(JoinError::Overtaken);
        }
        let others = || self.instances.iter().filter(|one| one.name != joining.name);
        if others().any(|one| one.pinned != joining.pinned.is_some()) {
            return Err(JoinError::Mixed);
        }
        if others().count() >= INSTANCES_MAX {
            return Err(JoinError::TooMany);
        }
        joining.attempt.into_iter().for_each(|attempt| self.note_attempt(attempt));
        self.remove(|one| {
            let is_in_the_way =
                joining.pinned.zip(one.target).is_some_and(|(pin, target)| pin.overlaps(target));
            let is_fenced = one.name == joining.name || is_in_the_way;
            if is_fenced {
                effects.push(Effect::Fence { connection: one.connection });
            }
            is_fenced
        });
        self.begin_to_wait(now_ms);
        let name = Holder::new(&joining.name).name;
        self.awaited.retain(|one| one.holder.name != name);
        let claim = joining.held.and_then(|held| self.claim(&held));
        let target = joining.pinned.or_else(|| self.target_of_new(claim.map(|claim| claim.slices)));
        let holding = claim.map_or(Holding::Nothing, |Claim { assignment, slices, .. }| Holding::Slices {
            assignment,
            slices,
        });
        let (connection, pinned) = (joining.connection, joining.pinned.is_some());
        self.instances.push(Instance { connection, name: joining.name, pinned, target, holding });
        if let Some(Claim { assignment, slices, sent_to }) = claim {
            self.give_at_ms = now_ms + CLAIM_GRACE_MS;
            effects.push(self.assignment(connection, assignment, slices, Some(sent_to)));
        }
        self.rebalance_if_uneven();
        self.settle(now_ms, &mut effects);
        Ok(effects)
    }

    /// Takes an instance off; `is_lost` if it may come back.
    pub fn leave(&mut self, connection: Connection, is_lost: bool, now_ms: u64) -> Vec<Effect> {
        let mut effects = Vec::new();
        if self.instance(connection).is_none() {
            return effects;
        }
        let lost = self.instance(connection).filter(|_| is_lost);
        if let Some((one, (assignment, slices))) = lost.and_then(|one| Some((one, one.holding.slices()?))) {
            let is_revoking = matches!(one.holding, Holding::Revoking { .. });
            let until_ms = now_ms + if is_revoking { CLAIM_GRACE_MS } else { REJOIN_MS_MAX };
            let holder = Holder::new(&one.name);
            self.lost.push(Lost { holder, assignment, slices, is_revoking, until_ms });
            self.wait_again(Awaited { holder, assignment, slices }, now_ms);
        }
        self.remove(|one| one.connection == connection);
        match is_lost {
            true => self.give_at_ms = now_ms + CLAIM_GRACE_MS,
            false => self.give_free_ranges(),
        }
        self.settle(now_ms, &mut effects);
        effects
    }

    /// Notes how far an instance is. Returns false if the assignment is not its own any more.
    pub fn done(&mut self, connection: Connection, done: &Done) -> bool {
        let held = self.held_by(connection);
        let Some((_, slices)) = held.filter(|(assignment, _)| *assignment == done.assignment) else {
            return false;
        };
        self.advance(slices, done);
        true
    }

    /// Takes an assignment back, of which no handler runs any more.
    pub fn released(&mut self, connection: Connection, done: &Done, now_ms: u64) -> Vec<Effect> {
        let mut effects = Vec::new();
        if self.done(connection, done)
            && let Some(instance) = self.instances.iter_mut().find(|one| one.connection == connection)
        {
            instance.holding = Holding::Nothing;
            self.settle(now_ms, &mut effects);
        }
        effects
    }

    /// Moves all slices to an offset. All present assignments are void.
    pub fn reset(&mut self, offset: i64, now_ms: u64) -> Vec<Effect> {
        let mut effects = Vec::new();
        for instance in &mut self.instances {
            if let Some((assignment, _)) = instance.holding.slices() {
                let connection = instance.connection;
                effects.push(Effect::Revoke { connection, assignment, is_lost: true });
            }
            instance.holding = Holding::Nothing;
        }
        self.lost.clear();
        self.awaited.clear();
        // The reset has a generation of its own, so that no earlier claim fits it.
        self.generation += 1;
        let assignment = self.generation;
        self.parts = vec![Part { slices: SliceRange::ALL, offset, finished: Vec::new(), assignment }];
        self.settle(now_ms, &mut effects);
        effects
    }

    /// Makes all earlier assignments invalid: a start may have forgotten some of them.
    pub fn skip_generations(&mut self, count: u64) {
        self.generation = self.generation.saturating_add(count);
    }

    /// Acts on what is due by the time.
    pub fn tick(&mut self, now_ms: u64) -> Vec<Effect> {
        let mut effects = Vec::new();
        self.remove(|one| {
            let is_late = matches!(one.holding, Holding::Revoking { until_ms, .. } if until_ms <= now_ms);
            if is_late {
                effects.push(Effect::Fence { connection: one.connection });
            }
            is_late
        });
        self.lost.retain(|lost| lost.until_ms > now_ms);
        if self.awaited_until_ms.is_some_and(|until_ms| until_ms <= now_ms) {
            self.awaited.clear();
        }
        if self.give_at_ms <= now_ms {
            self.give_free_ranges();
        }
        self.settle(now_ms, &mut effects);
        effects
    }

    fn instance(&self, connection: Connection) -> Option<&Instance> {
        self.instances.iter().find(|one| one.connection == connection)
    }

    fn remove(&mut self, mut is_to_go: impl FnMut(&Instance) -> bool) {
        self.instances.retain(|one| !is_to_go(one));
    }

    /// Returns true if a later connection of its process has come.
    fn is_overtaken(&self, attempt: Attempt) -> bool {
        self.attempts.iter().any(|one| one.process == attempt.process && one.number > attempt.number)
    }

    fn note_attempt(&mut self, attempt: Attempt) {
        self.attempts.retain(|one| one.process != attempt.process);
        self.attempts.push(attempt);
        let too_many = self.attempts.len().saturating_sub(ATTEMPTS_MAX);
        self.attempts.drain(..too_many);
    }

    fn is_shared(&self) -> bool {
        self.instances.iter().any(|one| !one.pinned)
    }

    /// Begins the wait for the other instances of before the start, when the first instance comes.
    fn begin_to_wait(&mut self, now_ms: u64) {
        if self.awaited.is_empty() || self.awaited_until_ms.is_some() {
            return;
        }
        self.rejoin_until_ms = now_ms + REJOIN_MS_MAX;
        self.awaited_until_ms = Some(self.rejoin_until_ms);
        self.awaited.iter_mut().for_each(|one| one.holder.starts += 1);
    }

    /// Waits again for an instance that is lost, which may just have come back: as long as for those that have not.
    fn wait_again(&mut self, lost: Awaited, now_ms: u64) {
        if now_ms < self.rejoin_until_ms {
            self.awaited.push(lost);
            self.awaited_until_ms = Some(self.rejoin_until_ms);
        }
    }

    /// Ends the wait for an instance that has come back, and for those that had its slices before it.
    fn has_come_back(&mut self, held: &Held) {
        let assignment = held.done.assignment;
        self.lost.retain(|lost| lost.assignment != assignment);
        self.awaited.retain(|one| one.assignment != assignment);
        // A power cut may have erased that it got them, which is not known here.
        let Some(slices) = held.slices else { return };
        let (before, others): (Vec<_>, Vec<_>) =
            self.awaited.drain(..).partition(|one| one.assignment < assignment);
        self.awaited = others;
        self.awaited.extend(before.into_iter().flat_map(|one| one.without(slices)));
    }

    /// Takes what a returning instance has done; returns the assignment that it resumes, if no other instance has had
    /// any of it since.
    fn claim(&mut self, held: &Held) -> Option<Claim> {
        self.has_come_back(held);
        let assignment = held.done.assignment;
        let had = |part: &&Part| part.assignment == assignment && assignment > 0;
        let had: Vec<SliceRange> = self.parts.iter().filter(had).map(|part| part.slices).collect();
        had.iter().for_each(|slices| self.advance(*slices, &held.done));
        let slices = held.slices?;
        // If another instance has done events that come next, the assignment is not resumed: it would resume at the
        // offset that its instance knows. The instance gets a new one behind these events.
        let of_claim = self.parts.iter().filter(|part| part.slices.overlaps(slices));
        if of_claim.map(|part| part.offset).min() > Some(held.sent_to) {
            return None;
        }
        let is_held = |one: &Instance| one.holding.slices().is_some_and(|(_, held)| held.overlaps(slices));
        if self.instances.iter().any(is_held) {
            return None;
        }
        let is_whole = had.first().map(|first| first.from) == Some(slices.from)
            && had.iter().map(|slices| slices.count()).sum::<u16>() == slices.count();
        is_whole.then_some(Claim { assignment, slices, sent_to: held.sent_to })
    }

    /// Returns the slices that a new instance shall have.
    fn target_of_new(&mut self, claimed: Option<SliceRange>) -> Option<SliceRange> {
        let free = self.free_ranges();
        let is_free =
            |slices: &SliceRange| free.iter().any(|one| one.from <= slices.from && slices.to <= one.to);
        if let Some(claimed) = claimed.filter(is_free) {
            return Some(claimed);
        }
        if let Some(largest) = free.into_iter().max_by_key(|range| range.count()) {
            return Some(largest);
        }
        if !self.awaited.is_empty() {
            return None;
        }
        let largest = self
            .instances
            .iter_mut()
            .filter_map(|one| one.target.as_mut())
            .max_by_key(|range| range.count())?;
        if largest.count() < 2 {
            return None;
        }
        let middle = largest.from + largest.count() / 2;
        let upper = SliceRange { from: middle, to: largest.to };
        largest.to = middle;
        Some(upper)
    }

    /// Returns ranges of slices that are no instance's target and are kept for none.
    fn free_ranges(&self) -> Vec<SliceRange> {
        let targets = self.instances.iter().filter_map(|one| one.target);
        let mut taken: Vec<SliceRange> = targets.chain(self.awaited.iter().map(|one| one.slices)).collect();
        taken.sort_unstable();
        let mut free = Vec::new();
        let mut next = 0;
        for range in taken {
            free.extend(SliceRange::new(next, range.from.into()));
            next = next.max(range.to.into());
        }
        free.extend(SliceRange::new(next, SliceRange::ALL.to.into()));
        free
    }

    /// Gives slices that are no instance's target to one that has none, or to a neighbour.
    fn give_free_ranges(&mut self) {
        if !self.is_shared() {
            return;
        }
        for free in self.free_ranges() {
            if let Some(idle) = self.instances.iter_mut().find(|one| one.target.is_none()) {
                idle.target = Some(free);
                continue;
            }
            let targets = self.instances.iter_mut().filter_map(|one| one.target.as_mut());
            let neighbours = targets.filter(|target| target.to == free.from || target.from == free.to);
            if let Some(smaller) = neighbours.min_by_key(|target| target.count()) {
                *smaller = SliceRange { from: smaller.from.min(free.from), to: smaller.to.max(free.to) };
            }
        }
        self.rebalance_if_uneven();
    }

    /// Computes all targets again if one is more than twice its fair share.
    fn rebalance_if_uneven(&mut self) {
        if !self.is_shared() || !self.awaited.is_empty() || !self.free_ranges().is_empty() {
            return;
        }
        let all = u32::from(SliceRange::ALL.to);
        let count = u32::try_from(self.instances.len()).unwrap_or(u32::MAX);
        let fair = all.div_ceil(count);
        let largest = self.instances.iter().filter_map(|one| one.target).map(SliceRange::count).max();
        if u32::from(largest.unwrap_or(0)) <= 2 * fair {
            return;
        }
        // Sorted by what they have, so that little moves.
        self.instances.sort_by_key(|one| one.target.map_or(u16::MAX, |target| target.from));
        for (instance, index) in self.instances.iter_mut().zip(0..) {
            instance.target = SliceRange::new(all * index / count, all * (index + 1) / count);
        }
    }

    /// If no instance is waited for any more, gives targets to those without one. Then does as [`Handover::reconcile`].
    fn settle(&mut self, now_ms: u64, effects: &mut Vec<Effect>) {
        if self.awaited.is_empty() && self.awaited_until_ms.take().is_some() {
            while let Some(index) = self.instances.iter().position(|one| one.target.is_none())
                && let Some(target) = self.target_of_new(None)
            {
                self.instances[index].target = Some(target);
            }
            self.rebalance_if_uneven();
        }
        self.reconcile(now_ms, effects);
    }

    /// Revokes what is not an instance's target, and assigns targets that are free.
    fn reconcile(&mut self, now_ms: u64, effects: &mut Vec<Effect>) {
        for instance in &mut self.instances {
            if let Holding::Slices { assignment, slices } = instance.holding
                && instance.target != Some(slices)
            {
                let connection = instance.connection;
                instance.holding = Holding::Revoking { assignment, slices, until_ms: now_ms + REVOKE_MS_MAX };
                effects.push(Effect::Revoke { connection, assignment, is_lost: false });
            }
        }
        for index in 0..self.instances.len() {
            let instance = &self.instances[index];
            let Some(target) = instance.target.filter(|_| instance.holding == Holding::Nothing) else {
                continue;
            };
            let is_held =
                |one: &Instance| one.holding.slices().is_some_and(|(_, held)| held.overlaps(target));
            let may_be_claimed = self.lost.iter().filter(|lost| lost.is_revoking).map(|lost| lost.slices);
            let mut kept = may_be_claimed.chain(self.awaited.iter().map(|one| one.slices));
            if !self.instances.iter().any(is_held) && !kept.any(|slices| slices.overlaps(target)) {
                effects.push(self.assign(index, target));
            }
        }
    }

    fn assign(&mut self, index: usize, slices: SliceRange) -> Effect {
        self.generation += 1;
        let assignment = self.generation;
        // An instance that was lost with these slices does not get them back.
        self.lost.retain(|lost| lost.is_revoking || !lost.slices.overlaps(slices));
        self.cut_at(slices);
        for part in self.parts.iter_mut().filter(|part| part.slices.overlaps(slices)) {
            part.assignment = assignment;
        }
        self.join_parts();
        let instance = &mut self.instances[index];
        instance.holding = Holding::Slices { assignment, slices };
        let connection = instance.connection;
        self.assignment(connection, assignment, slices, None)
    }

    /// Makes the message of an assignment, which is resumed at `resumes_at` if given.
    fn assignment(
        &self,
        connection: Connection,
        assignment: u64,
        slices: SliceRange,
        resumes_at: Option<i64>,
    ) -> Effect {
        let mut parts: Vec<Part> =
            self.parts.iter().filter(|part| part.slices.overlaps(slices)).cloned().collect();
        // A part that goes beyond would have been joined with a neighbour of another assignment, which cannot be.
        parts.retain(|part| part.slices.from >= slices.from && part.slices.to <= slices.to);
        let behind = parts.iter().map(|part| part.offset).min().unwrap_or(0);
        let (offset, is_resumed) = (resumes_at.unwrap_or(behind), resumes_at.is_some());
        Effect::Assign { connection, assignment, slices, offset, is_resumed, parts }
    }

    /// Moves the positions of parts forward, never back.
    fn advance(&mut self, slices: SliceRange, done: &Done) {
        self.cut_at(slices);
        for part in self.parts.iter_mut().filter(|part| part.slices.overlaps(slices)) {
            part.offset = part.offset.max(done.offset);
            let finished = part.finished.drain(..).chain(done.finished.iter().cloned());
            part.finished = normalized(part.offset, finished.collect::<Vec<_>>().into_iter());
            // A finished range that touches the position moves it.
            while part.finished.first().is_some_and(|first| first.start <= part.offset) {
                part.offset = part.finished.remove(0).end.max(part.offset);
            }
        }
        self.join_parts();
    }

    /// Has parts begin and end where a range does.
    fn cut_at(&mut self, slices: SliceRange) {
        for boundary in [slices.from, slices.to] {
            let within = |part: &Part| part.slices.from < boundary && boundary < part.slices.to;
            if let Some(index) = self.parts.iter().position(within) {
                let mut upper = self.parts[index].clone();
                upper.slices.from = boundary;
                self.parts[index].slices.to = boundary;
                self.parts.insert(index + 1, upper);
            }
        }
    }

    fn join_parts(&mut self) {
        self.parts.dedup_by(|next, part| {
            let is_equal = part.offset == next.offset
                && part.assignment == next.assignment
                && part.finished == next.finished;
            if is_equal {
                part.slices.to = next.slices.to;
            }
            is_equal
        });
    }

    /// Checks the invariants.
    #[cfg(test)]
    fn check(&self) {
        Handover::restored(self.generation, self.parts.clone()).expect("parts are all slices in their order");
        for (index, one) in self.instances.iter().enumerate() {
            for other in &self.instances[index + 1..] {
                let both = |of: fn(&Instance) -> Option<SliceRange>| of(one).zip(of(other));
                let holding = both(|one| one.holding.slices().map(|(_, slices)| slices));
                assert!(!holding.is_some_and(|(one, other)| one.overlaps(other)), "two holders: {self:?}");
                let targets = both(|one| one.target);
                assert!(!targets.is_some_and(|(one, other)| one.overlaps(other)), "two targets: {self:?}");
            }
            let is_awaited = |slices: SliceRange| self.awaited.iter().any(|one| one.slices.overlaps(slices));
            let holding = one.holding.slices();
            assert!(!holding.is_some_and(|(_, held)| is_awaited(held)), "another is waited for: {self:?}");
        }
    }
}

#[cfg(test)]
mod tests;
