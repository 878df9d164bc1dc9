//! Who has which slices of a consumer, and how far each slice is.
//!
//! ```text
//!            join                Released, or 30 s
//! (none) ─────────▶ waiting ◀──────────────────────── revoking
//!                      │  its target is free              ▲
//!                      └──────────Assign────────▶ holding ┘ its target is another one: Revoke
//! ```
//!
//! Each instance has a target, a range of slices; targets never overlap. One that comes gets half of the largest; what one had
//! that goes is added to a neighbour's. So one instance is disturbed at a time, not all. When the largest is more than twice its
//! fair share, all targets are made anew.
//!
//! An instance that was lost may come back and go on with what it had (`held`), for [`CLAIM_GRACE_MS`]; an instance that comes
//! without such a claim gets free slices at once. What it goes on with may be another's by now, as soon as it gives that back.
//!
//! After a start of the publisher all instances are lost. Slices that one had then are kept for it, though others come before it
//! ([`REJOIN_MS_MAX`]); an instance without slices waits meanwhile. So it is again with those of one that comes back in that time and is
//! lost once more: its next connection may be under way, with what it has done since.
//!
//! A connection that arrives behind a later one of its process takes nothing: its instance has given it up ([`Attempt`]).
//!
//! A slice has one position however often it changes hands: parts are runs of slices that are equally far. What is done in front
//! of a part is not sent again, so that neighbours with different positions become one assignment.
//!
//! Architecture invariant: no clock, no I/O. Time goes in; effects come out, to be carried out in their order.

use std::ops::Range;

use crate::slices::{Done, SliceRange, normalized};

/// Slices of an instance that was lost are kept for it so long.
pub const CLAIM_GRACE_MS: u64 = 1_000;
/// After a start of the publisher, instances of before have so long to come back for what they had, from the first that comes on:
/// they try again after 3.75 s at most.
pub const REJOIN_MS_MAX: u64 = 5_000;
/// So many starts wait for an instance: one that ended together with the publisher holds others up no more then.
const STARTS_WAITED_MAX: u32 = 2;
/// An instance that has not released its slices after so long is fenced.
pub const REVOKE_MS_MAX: u64 = 30_000;
/// So many instances of a consumer may be connected.
pub const INSTANCES_MAX: usize = 1_024;
/// Of so many processes the last connection is known: of all that are connected, and of as many that were.
const ATTEMPTS_MAX: usize = 2 * INSTANCES_MAX;

/// Names a connection of an instance.
pub type Connection = u64;

/// Slices that are equally far.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Part {
    /// Which.
    pub slices: SliceRange,
    /// Everything before is done.
    pub offset: i64,
    /// What is done behind it, ascending and apart.
    pub finished: Vec<Range<i64>>,
    /// The last assignment that had them.
    pub assignment: u64,
}

impl Part {
    /// Returns true if an event of these slices is done.
    pub fn is_done(&self, offset: i64) -> bool {
        let at = self.finished.partition_point(|range| range.end <= offset);
        offset < self.offset || self.finished.get(at).is_some_and(|range| range.start <= offset)
    }

    /// The offset behind all that is done.
    pub fn done_end(&self) -> i64 {
        self.finished.last().map_or(self.offset, |last| last.end)
    }
}

/// What is to be sent to an instance.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Effect {
    /// Slices are its.
    Assign {
        /// To whom.
        connection: Connection,
        /// Names the assignment.
        assignment: u64,
        /// The slices.
        slices: SliceRange,
        /// The offset that is sent first.
        offset: i64,
        /// It goes on with what it had.
        is_resumed: bool,
        /// How far the slices are.
        parts: Vec<Part>,
    },
    /// It is to give them back, or has lost them.
    Revoke {
        /// To whom.
        connection: Connection,
        /// Which assignment.
        assignment: u64,
        /// No answer is expected.
        is_lost: bool,
    },
    /// Its connection ends.
    Fence {
        /// Whose.
        connection: Connection,
    },
}

/// Which connection of its instance's process one is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Attempt {
    /// A number that no other process has.
    pub process: u64,
    /// Greater than those of all connections that it made before.
    pub number: u64,
}

/// An instance that comes.
#[derive(Debug, Clone)]
pub struct Joining {
    /// Its connection.
    pub connection: Connection,
    /// Its name.
    pub name: String,
    /// Which connection of its process it is; none if it does not say, and then the last one to come counts.
    pub attempt: Option<Attempt>,
    /// The only slices that it wants.
    pub pinned: Option<SliceRange>,
    /// What it had when its connection was lost.
    pub held: Option<Held>,
}

/// An assignment when the connection of its instance was lost.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Held {
    /// What was done of it.
    pub done: Done,
    /// Its slices; none if it was given back, so that only what was done counts.
    pub slices: Option<SliceRange>,
    /// The offset up to which events were sent.
    pub sent_to: i64,
}

/// Why an instance may not come.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum JoinError {
    /// Instances with and without pinned slices.
    #[error("some instances of this consumer pin slices and some share them; pin those of all, or of none")]
    Mixed,
    /// Too many.
    #[error("this consumer has {INSTANCES_MAX} instances, which is the most")]
    TooMany,
    /// Its process has given this connection up for another one, which was faster.
    #[error("a later connection of this instance has come already")]
    Overtaken,
}

/// What an instance has.
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
    /// Slices without a target are given to others then.
    give_at_ms: u64,
    lost: Vec<Lost>,
    awaited: Vec<Awaited>,
    /// Until then they are; none before any instance has come.
    awaited_until_ms: Option<u64>,
    /// Until then an instance that is lost is waited for, as all were at the start; 0 before any instance has come.
    rejoin_until_ms: u64,
    /// The last connection of each process, the one that came last at the end.
    attempts: Vec<Attempt>,
}

/// Who has an assignment, or may come back for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Holder {
    /// A hash of the instance's name: with it, it has come back, whatever it says that it had.
    pub name: u16,
    /// At so many starts it was waited for.
    pub starts: u32,
}

impl Holder {
    /// An instance that is there.
    fn new(name: &str) -> Holder {
        Holder { name: (crc32c::crc32c(name.as_bytes()) >> 16) as u16, starts: 0 }
    }
}

/// An instance was lost, and may come back.
#[derive(Debug, Clone)]
struct Lost {
    holder: Holder,
    assignment: u64,
    slices: SliceRange,
    /// It was giving its slices back: until it comes with what it has done of them, no instance gets them.
    is_revoking: bool,
    until_ms: u64,
}

/// Slices of an instance that was there when the publisher ended, and has not come back: no other gets them.
#[derive(Debug, Clone, Copy)]
struct Awaited {
    holder: Holder,
    assignment: u64,
    slices: SliceRange,
}

impl Awaited {
    /// What is left when some slices are not waited for.
    fn without(self, slices: SliceRange) -> impl Iterator<Item = Awaited> {
        let lower = SliceRange::new(self.slices.from.into(), self.slices.to.min(slices.from).into());
        let upper = SliceRange::new(self.slices.from.max(slices.to).into(), self.slices.to.into());
        lower.into_iter().chain(upper).map(move |slices| Awaited { slices, ..self })
    }
}

/// An assignment that goes on.
#[derive(Debug, Clone, Copy)]
struct Claim {
    assignment: u64,
    slices: SliceRange,
    /// Up to which offset it was sent.
    sent_to: i64,
}

impl Handover {
    /// A consumer that begins at an offset.
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

    /// A consumer as it was kept; `None` if the parts are not all slices in their order.
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

    /// An instance had a part when the publisher ended: it is waited for, unless it was at too many starts before.
    pub fn await_holder(&mut self, part: &Part, holder: Holder) {
        if holder.starts < STARTS_WAITED_MAX {
            let (assignment, slices) = (part.assignment, part.slices);
            self.awaited.push(Awaited { holder, assignment, slices });
        }
    }

    /// Who has an assignment, or may come back for it.
    pub fn holder(&self, assignment: u64) -> Option<Holder> {
        let has_it = |one: &&Instance| one.holding.slices().is_some_and(|(held, _)| held == assignment);
        let present = self.instances.iter().find(has_it).map(|one| Holder::new(&one.name));
        let lost = || self.lost.iter().find(|one| one.assignment == assignment).map(|one| one.holder);
        let awaited = || self.awaited.iter().find(|one| one.assignment == assignment).map(|one| one.holder);
        present.or_else(lost).or_else(awaited)
    }

    /// The last assignment.
    pub fn generation(&self) -> u64 {
        self.generation
    }

    /// How far all slices are, in their order.
    pub fn parts(&self) -> &[Part] {
        &self.parts
    }

    /// The first offset that is not done in all slices.
    pub fn frontier(&self) -> i64 {
        self.parts.iter().map(|part| part.offset).min().expect("there is a part at least")
    }

    /// The offset behind all that is done in any slice.
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

    /// When [`Handover::tick`] is due.
    pub fn due_ms(&self) -> Option<u64> {
        let revoking = self.instances.iter().filter_map(|one| match one.holding {
            Holding::Revoking { until_ms, .. } => Some(until_ms),
            _ => None,
        });
        let gives = (self.is_shared() && !self.free_ranges().is_empty()).then_some(self.give_at_ms);
        let lost = self.lost.iter().map(|lost| lost.until_ms);
        revoking.chain(gives).chain(lost).chain(self.awaited_until_ms).min()
    }

    /// An instance comes.
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

    /// An instance goes; `is_lost` if it may come back.
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

    /// An instance is so far. Returns false if it says so of an assignment that is not its own any more.
    pub fn done(&mut self, connection: Connection, done: &Done) -> bool {
        let held = self.held_by(connection);
        let Some((_, slices)) = held.filter(|(assignment, _)| *assignment == done.assignment) else {
            return false;
        };
        self.advance(slices, done);
        true
    }

    /// Nothing of an assignment runs any more.
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

    /// All slices go on at an offset; what is under way is void.
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
        // No claim of before fits a generation of its own.
        self.generation += 1;
        let assignment = self.generation;
        self.parts = vec![Part { slices: SliceRange::ALL, offset, finished: Vec::new(), assignment }];
        self.settle(now_ms, &mut effects);
        effects
    }

    /// No assignment of before is valid any more, as after a start at which some may have been forgotten.
    pub fn skip_generations(&mut self, count: u64) {
        self.generation = self.generation.saturating_add(count);
    }

    /// Time has passed.
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

    /// The first instance since the start has come: others that were there before have time to come back.
    fn begin_to_wait(&mut self, now_ms: u64) {
        if self.awaited.is_empty() || self.awaited_until_ms.is_some() {
            return;
        }
        self.rejoin_until_ms = now_ms + REJOIN_MS_MAX;
        self.awaited_until_ms = Some(self.rejoin_until_ms);
        self.awaited.iter_mut().for_each(|one| one.holder.starts += 1);
    }

    /// An instance is lost, which may have come back just now: it is waited for as long as those that have not.
    fn wait_again(&mut self, lost: Awaited, now_ms: u64) {
        if now_ms < self.rejoin_until_ms {
            self.awaited.push(lost);
            self.awaited_until_ms = Some(self.rejoin_until_ms);
        }
    }

    /// An instance has come back: neither it is waited for any more, nor those that had its slices before it.
    fn has_come_back(&mut self, held: &Held) {
        let assignment = held.done.assignment;
        self.lost.retain(|lost| lost.assignment != assignment);
        self.awaited.retain(|one| one.assignment != assignment);
        // It is not known here if a power cut took that it had got them.
        let Some(slices) = held.slices else { return };
        let (before, others): (Vec<_>, Vec<_>) =
            self.awaited.drain(..).partition(|one| one.assignment < assignment);
        self.awaited = others;
        self.awaited.extend(before.into_iter().flat_map(|one| one.without(slices)));
    }

    /// Takes what a returning instance has done; returns what it goes on with if nothing of it was another's since.
    fn claim(&mut self, held: &Held) -> Option<Claim> {
        self.has_come_back(held);
        let assignment = held.done.assignment;
        let had = |part: &&Part| part.assignment == assignment && assignment > 0;
        let had: Vec<SliceRange> = self.parts.iter().filter(had).map(|part| part.slices).collect();
        had.iter().for_each(|slices| self.advance(*slices, &held.done));
        let slices = held.slices?;
        // It was sent less than is done, as another instance had done what comes next. It begins anew behind that,
        // for an assignment only goes on at the offset that its instance knows.
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

    /// The slices that a new instance is to have.
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

    /// Ranges of slices that are no instance's target, and are kept for none.
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

    /// Makes all targets anew if one is more than twice its fair share.
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
        // In the order of what they have, so that little moves.
        self.instances.sort_by_key(|one| one.target.map_or(u16::MAX, |target| target.from));
        for (instance, index) in self.instances.iter_mut().zip(0..) {
            instance.target = SliceRange::new(all * index / count, all * (index + 1) / count);
        }
    }

    /// Gives slices to instances that have waited for others to come back, when none is waited for any more; then as [`Handover::reconcile`].
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

    /// Brings what instances have closer to their targets.
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
        // Who was lost with them does not get them back.
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

    /// What an instance hears of slices that it has: from where on, if it goes on with them.
    fn assignment(
        &self,
        connection: Connection,
        assignment: u64,
        slices: SliceRange,
        resumes_at: Option<i64>,
    ) -> Effect {
        let mut parts: Vec<Part> =
            self.parts.iter().filter(|part| part.slices.overlaps(slices)).cloned().collect();
        // Parts that go beyond were joined with equal ones, which cannot be: their assignment is another.
        parts.retain(|part| part.slices.from >= slices.from && part.slices.to <= slices.to);
        let behind = parts.iter().map(|part| part.offset).min().unwrap_or(0);
        let (offset, is_resumed) = (resumes_at.unwrap_or(behind), resumes_at.is_some());
        Effect::Assign { connection, assignment, slices, offset, is_resumed, parts }
    }

    /// Moves parts on; none ever goes back.
    fn advance(&mut self, slices: SliceRange, done: &Done) {
        self.cut_at(slices);
        for part in self.parts.iter_mut().filter(|part| part.slices.overlaps(slices)) {
            part.offset = part.offset.max(done.offset);
            let finished = part.finished.drain(..).chain(done.finished.iter().cloned());
            part.finished = normalized(part.offset, finished.collect::<Vec<_>>().into_iter());
            // What touches the position is part of it.
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

    /// Checks what has to be true at all times.
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
