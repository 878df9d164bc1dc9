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
//! without such a claim gets free slices at once.
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
    /// Its slices; none if it was being given back, so that only what was done counts.
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

#[derive(Debug)]
struct Instance {
    connection: Connection,
    name: String,
    pinned: bool,
    target: Option<SliceRange>,
    holding: Holding,
    /// The assignment to go on with, and where.
    resumes: Option<(u64, SliceRange, i64)>,
}

/// The slices of one consumer.
#[derive(Debug)]
pub struct Handover {
    generation: u64,
    parts: Vec<Part>,
    instances: Vec<Instance>,
    /// Slices without a target are given to others then.
    give_at_ms: u64,
    lost: Vec<LostRevoking>,
    /// The last connection of each process, the one that came last at the end.
    attempts: Vec<Attempt>,
}

/// An instance was lost while it gave its slices back: it may come with what it has done of them, until then no instance gets them.
#[derive(Debug)]
struct LostRevoking {
    assignment: u64,
    slices: SliceRange,
    until_ms: u64,
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
        revoking.chain(gives).chain(lost).min()
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
        if let Some(held) = &joining.held {
            self.lost.retain(|lost| lost.assignment != held.done.assignment);
        }
        let claimed = joining.held.and_then(|held| self.claim(&held));
        let target = joining.pinned.or_else(|| self.target_of_new(claimed.map(|(_, slices, _)| slices)));
        self.instances.push(Instance {
            connection: joining.connection,
            name: joining.name,
            pinned: joining.pinned.is_some(),
            target,
            holding: Holding::Nothing,
            resumes: claimed.filter(|(_, slices, _)| target == Some(*slices)),
        });
        self.rebalance_if_uneven();
        if claimed.is_some() {
            self.give_at_ms = now_ms + CLAIM_GRACE_MS;
        }
        self.reconcile(now_ms, &mut effects);
        Ok(effects)
    }

    /// An instance goes; `is_lost` if it may come back.
    pub fn leave(&mut self, connection: Connection, is_lost: bool, now_ms: u64) -> Vec<Effect> {
        let mut effects = Vec::new();
        if self.instance(connection).is_none() {
            return effects;
        }
        let holding = self.instance(connection).map(|one| one.holding);
        if let Some(Holding::Revoking { assignment, slices, .. }) = holding.filter(|_| is_lost) {
            self.lost.push(LostRevoking { assignment, slices, until_ms: now_ms + CLAIM_GRACE_MS });
        }
        self.remove(|one| one.connection == connection);
        match is_lost {
            true => self.give_at_ms = now_ms + CLAIM_GRACE_MS,
            false => self.give_free_ranges(),
        }
        self.reconcile(now_ms, &mut effects);
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
            self.reconcile(now_ms, &mut effects);
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
            (instance.holding, instance.resumes) = (Holding::Nothing, None);
        }
        self.lost.clear();
        // No claim of before fits a generation of its own.
        self.generation += 1;
        let assignment = self.generation;
        self.parts = vec![Part { slices: SliceRange::ALL, offset, finished: Vec::new(), assignment }];
        self.reconcile(now_ms, &mut effects);
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
        if self.give_at_ms <= now_ms {
            self.give_free_ranges();
        }
        self.reconcile(now_ms, &mut effects);
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

    /// Takes what a returning instance has done; returns what it goes on with if nothing of it was another's since.
    fn claim(&mut self, held: &Held) -> Option<(u64, SliceRange, i64)> {
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
        let is_whole = had.first().map(|first| first.from) == Some(slices.from)
            && had.iter().map(|slices| slices.count()).sum::<u16>() == slices.count();
        is_whole.then_some((assignment, slices, held.sent_to))
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

    /// Ranges of slices that are no instance's target.
    fn free_ranges(&self) -> Vec<SliceRange> {
        let mut targets: Vec<SliceRange> = self.instances.iter().filter_map(|one| one.target).collect();
        targets.sort_unstable();
        let mut free = Vec::new();
        let mut next = 0;
        for target in targets {
            free.extend(SliceRange::new(next, target.from.into()));
            next = target.to.into();
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
        if !self.is_shared() || !self.free_ranges().is_empty() {
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
            let may_be_claimed = |lost: &LostRevoking| lost.slices.overlaps(target);
            if !self.instances.iter().any(is_held) && !self.lost.iter().any(may_be_claimed) {
                effects.push(self.assign(index, target));
            }
        }
    }

    fn assign(&mut self, index: usize, slices: SliceRange) -> Effect {
        let resumes = self.instances[index].resumes.take().filter(|(_, claimed, _)| *claimed == slices);
        let assignment = match resumes {
            Some((assignment, ..)) => assignment,
            None => {
                self.generation += 1;
                self.generation
            }
        };
        self.cut_at(slices);
        for part in self.parts.iter_mut().filter(|part| part.slices.overlaps(slices)) {
            part.assignment = assignment;
        }
        self.join_parts();
        let mut parts: Vec<Part> =
            self.parts.iter().filter(|part| part.slices.overlaps(slices)).cloned().collect();
        // Parts that go beyond were joined with equal ones, which cannot be: their assignment is another.
        parts.retain(|part| part.slices.from >= slices.from && part.slices.to <= slices.to);
        let behind = parts.iter().map(|part| part.offset).min().unwrap_or(0);
        let instance = &mut self.instances[index];
        instance.holding = Holding::Slices { assignment, slices };
        Effect::Assign {
            connection: instance.connection,
            assignment,
            slices,
            offset: resumes.map_or(behind, |(.., sent_to)| sent_to),
            is_resumed: resumes.is_some(),
            parts,
        }
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
        }
    }
}

#[cfg(test)]
mod tests;
