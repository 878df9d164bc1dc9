//! A window and a judge beside a model of them: a set of offsets, searched from the start each time, and all attempts that have
//! ended.
//!
//! The log is fixed. The steps decide who runs, in which order messages end, what fails, and by whose fault. They also decide when a dead
//! letter is acknowledged, what is committed, and when the partition is revoked or the process dies. All promises are compared after every
//! step.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;

use super::*;
use crate::judge::{FaultClass, Judge, Mark, Retry, Tries, Verdict};
use crate::metadata::{decode, encode};
use mainstem_records::slice_of;

#[derive(Debug, Clone)]
enum Step {
    Admit(usize),
    /// Messages are polled where they arrive, and done at once but for the last one.
    Inline(usize, bool),
    Start(usize),
    Batch(usize),
    Finish(usize),
    Fail(usize, FaultClass),
    /// A dead letter is acknowledged.
    Written(usize),
    Wait(u64),
    Commit,
    Revoke,
    Crash,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        8 => (1..12usize).prop_map(Step::Admit),
        6 => (1..12usize, any::<bool>()).prop_map(|(count, last_waits)| Step::Inline(count, last_waits)),
        8 => (1..12usize).prop_map(Step::Start),
        2 => (1..6usize).prop_map(Step::Batch),
        12 => any::<usize>().prop_map(Step::Finish),
        4 => (any::<usize>(), class()).prop_map(|(one, class)| Step::Fail(one, class)),
        3 => any::<usize>().prop_map(Step::Written),
        4 => (1..60u64).prop_map(Step::Wait),
        3 => Just(Step::Commit),
        1 => Just(Step::Revoke),
        1 => Just(Step::Crash),
    ]
}

fn class() -> impl Strategy<Value = FaultClass> {
    prop_oneof![
        8 => Just(FaultClass::Failed),
        2 => Just(FaultClass::Transient),
        1 => Just(FaultClass::Poison),
    ]
}

/// Messages that fail alone are letters soon, so that there are some.
const RETRY: Retry = Retry { initial_ms: 20, max_ms: 80, attempts: 2, give_up_after_ms: 400 };
/// Number of attempts of others that decide whether a failed one failed alone.
const WITNESSES: usize = 10;

/// An attempt that failed: how many had ended when it started, and when it ended.
#[derive(Debug, Clone, Copy)]
struct Failed {
    class: FaultClass,
    started: usize,
    ended: usize,
    at_ms: u64,
}

/// A record of the log.
#[derive(Debug, Clone)]
struct Logged {
    offset: i64,
    key: Option<u8>,
    bytes: u32,
}

fn log() -> impl Strategy<Value = Vec<Logged>> {
    let record = (prop_oneof![5 => Just(1), 1 => 2..9i64], prop::option::weighted(0.8, 0..6u8), 1..60u32);
    prop::collection::vec(record, 1..200).prop_map(|records| {
        let mut offset = 0;
        let logged = records.into_iter().map(|(gap, key, bytes)| {
            offset += gap;
            Logged { offset, key, bytes }
        });
        logged.collect()
    })
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Is {
    Waiting {
        not_before: u64,
    },
    Running {
        slot: u16,
    },
    /// It runs for the window, and ends when its letter is acknowledged.
    SetAside {
        slot: u16,
    },
}

struct World {
    log: Vec<Logged>,
    limits: Limits,
    window: Window,
    now: u64,
    /// The next record to be read.
    read: usize,
    unfinished: BTreeMap<i64, Is>,
    slots: BTreeMap<i64, u16>,
    /// Finished in any life.
    done: BTreeSet<i64>,
    /// As of the last commit.
    committed: (i64, String),
    done_when_committed: BTreeSet<i64>,
    frontier: i64,
    judge: Judge,
    /// All attempts that have ended, in order: true for each that failed.
    ended: Vec<bool>,
    /// The attempts of each unfinished message, by its offset.
    tries: BTreeMap<i64, (Tries, Mark, usize)>,
    failures: BTreeMap<i64, Vec<Failed>>,
}

impl World {
    fn new(log: Vec<Logged>, limits: Limits) -> World {
        World {
            log,
            limits,
            window: Window::new(0, [], limits),
            now: 0,
            read: 0,
            unfinished: BTreeMap::new(),
            slots: BTreeMap::new(),
            done: BTreeSet::new(),
            committed: (0, String::new()),
            done_when_committed: BTreeSet::new(),
            frontier: 0,
            judge: Judge::new(RETRY),
            ended: Vec::new(),
            tries: BTreeMap::new(),
            failures: BTreeMap::new(),
        }
    }

    fn slice(&self, offset: i64) -> u16 {
        let record = self.log.iter().find(|record| record.offset == offset).unwrap();
        slice_of(record.key.as_ref().map(std::slice::from_ref), offset)
    }

    fn running(&self) -> Vec<(i64, u16)> {
        let slot = |(offset, is): (&i64, &Is)| match is {
            Is::Running { slot } => Some((*offset, *slot)),
            Is::Waiting { .. } | Is::SetAside { .. } => None,
        };
        self.unfinished.iter().filter_map(slot).collect()
    }

    fn set_aside(&self) -> Vec<(i64, u16)> {
        let slot = |(offset, is): (&i64, &Is)| match is {
            Is::SetAside { slot } => Some((*offset, *slot)),
            Is::Running { .. } | Is::Waiting { .. } => None,
        };
        self.unfinished.iter().filter_map(slot).collect()
    }

    fn step(&mut self, step: &Step) {
        match *step {
            Step::Admit(count) => (0..count).for_each(|_| self.admit()),
            Step::Inline(count, last_waits) => self.run_inline(count, last_waits),
            Step::Start(count) => (0..count).for_each(|_| self.start()),
            Step::Batch(max) => self.batch(max),
            Step::Finish(which) => self.finish(which),
            Step::Fail(which, class) => self.fail(which, class),
            Step::Written(which) => self.written(which),
            Step::Wait(time) => {
                self.now += time;
                self.window.tick(self.now);
            }
            Step::Commit => self.commit(),
            Step::Revoke => self.revoke(),
            Step::Crash => self.restart(),
        }
    }

    fn admit(&mut self) {
        let Some(record) = self.log.get(self.read).cloned() else { return };
        let is_bounded = self.unfinished.len() >= self.limits.messages
            || record.offset - self.model_frontier() >= self.limits.ahead;
        if !self.window.fits(record.offset, record.bytes) {
            assert!(!self.unfinished.is_empty(), "any message fits into an empty window");
            return;
        }
        self.read += 1;
        let slice = self.slice(record.offset);
        match self.window.admit(record.offset, slice, record.bytes) {
            Admitted::AlreadyFinished => {
                assert!(self.done.contains(&record.offset), "{} was never run", record.offset);
            }
            Admitted::Slot(slot) => {
                assert!(!is_bounded || self.unfinished.is_empty(), "beyond the bounds");
                assert!(!self.done_when_committed.contains(&record.offset), "what was committed is repeated");
                self.unfinished.insert(record.offset, Is::Waiting { not_before: 0 });
                self.slots.insert(record.offset, slot);
            }
        }
    }

    fn run_inline(&mut self, count: usize, last_waits: bool) {
        let next: Vec<_> = self.log[self.read..].iter().take(count).cloned().collect();
        let may_run = |record: &&Logged| {
            self.window.may_run_inline(record.offset, record.bytes, || self.slice(record.offset))
        };
        let group: Vec<_> = next.iter().take_while(may_run).cloned().collect();
        let slot = self.window.next_slot();
        for (at, record) in group.iter().enumerate() {
            assert!(!self.done_when_committed.contains(&record.offset), "what was committed is repeated");
            self.read += 1;
            if last_waits && at + 1 == group.len() {
                let slice = self.slice(record.offset);
                assert_eq!(self.window.admit(record.offset, slice, record.bytes), Admitted::Slot(slot));
                assert_eq!(self.window.start(), Some(slot), "nothing is ready before it");
                self.slots.insert(record.offset, slot);
                self.unfinished.insert(record.offset, Is::Waiting { not_before: 0 });
                self.started(slot, false);
            } else {
                self.window.pass(record.offset + 1);
                self.done.insert(record.offset);
                self.succeeded();
            }
        }
    }

    fn start(&mut self) {
        if let Some(slot) = self.window.start() {
            self.started(slot, false);
        } else {
            // Nothing that may run waits.
            let running = self.running().into_iter().chain(self.set_aside());
            let mut busy: BTreeSet<u16> = running.map(|(offset, _)| self.slice(offset)).collect();
            for (offset, is) in &self.unfinished {
                let is_first = busy.insert(self.slice(*offset));
                let may_run = matches!(is, Is::Waiting { not_before } if *not_before <= self.now);
                assert!(!(is_first && may_run) || self.window.is_revoked(), "{offset} could run");
            }
        }
    }

    fn started(&mut self, slot: u16, follows: bool) {
        let offset = self.window.offset(slot);
        assert_eq!(self.slots[&offset], slot);
        let slice = self.slice(offset);
        let before = self.unfinished.range(..offset).filter(|(other, _)| self.slice(**other) == slice);
        assert!(before.count() == 0 || follows, "{offset} overtakes one of its slice");
        let Is::Waiting { not_before } = self.unfinished[&offset] else { panic!("{offset} runs twice") };
        assert!(not_before <= self.now, "{offset} is too early");
        self.unfinished.insert(offset, Is::Running { slot });
        let (mark, started) = (self.judge.started(), self.ended.len());
        let one = self.tries.entry(offset).or_default();
        (one.1, one.2) = (mark, started);
    }

    fn batch(&mut self, max: usize) {
        let mut slots = Vec::new();
        self.window.start_batch(max, &mut slots);
        assert!(slots.len() <= max);
        for (at, slot) in slots.into_iter().enumerate() {
            self.started(slot, at > 0);
        }
    }

    fn finish(&mut self, which: usize) {
        let running = self.running();
        let Some((offset, slot)) = running.get(which % running.len().max(1)).copied() else { return };
        self.succeeded();
        self.finish_slot(offset, slot);
    }

    fn finish_slot(&mut self, offset: i64, slot: u16) {
        self.window.finish(slot, self.now);
        self.unfinished.remove(&offset);
        self.slots.remove(&offset);
        self.tries.remove(&offset);
        self.failures.remove(&offset);
        self.done.insert(offset);
    }

    fn succeeded(&mut self) {
        self.judge.succeeded();
        self.ended.push(false);
    }

    fn fail(&mut self, which: usize, class: FaultClass) {
        let running = self.running();
        let Some((offset, slot)) = running.get(which % running.len().max(1)).copied() else { return };
        if self.window.is_revoked() {
            return;
        }
        let (tries, mark, started) = self.tries.get_mut(&offset).expect("it was started");
        let failed = Failed { class, started: *started, ended: self.ended.len(), at_ms: self.now };
        let verdict = self.judge.failed(tries, *mark, class, offset.unsigned_abs(), self.now);
        if class != FaultClass::Poison {
            self.ended.push(true);
            self.failures.entry(offset).or_default().push(failed);
        }
        match verdict {
            Verdict::Letter => {
                assert!(class == FaultClass::Poison || self.is_its_own_fault(offset), "{offset}: {failed:?}");
                self.unfinished.insert(offset, Is::SetAside { slot });
            }
            Verdict::Retry { at_ms } => {
                assert!(at_ms >= self.now && at_ms <= self.now + RETRY.max_ms * 6 / 5, "{at_ms}");
                self.window.retry(slot, at_ms, self.now);
                self.unfinished.insert(offset, Is::Waiting { not_before: at_ms });
            }
            Verdict::Stop => panic!("nothing has asked for that"),
        }
    }

    /// A message failed as often as it may, the last time not beside others, and each time before alone, or for long without
    /// anything that says otherwise.
    fn is_its_own_fault(&self, offset: i64) -> bool {
        let failures = &self.failures[&offset];
        let last = failures[failures.len() - 1];
        let attempts = failures.iter().filter(|one| one.class == FaultClass::Failed).count();
        let is_beside = |one: &Failed| {
            let beside = &self.ended[one.started..one.ended];
            beside.iter().filter(|failed| **failed).count() * 10 > beside.len()
        };
        if last.class != FaultClass::Failed || attempts < RETRY.attempts as usize || is_beside(&last) {
            return false;
        }
        let (mut alone, mut since_ms) = (0, failures[0].at_ms);
        for pair in failures.windows(2) {
            let (one, next) = (&pair[0], &pair[1]);
            if one.class == FaultClass::Transient || is_beside(one) {
                (alone, since_ms) = (0, one.at_ms);
                continue;
            }
            let after = &self.ended[one.ended + 1..next.ended];
            let witnesses = after.iter().take(WITNESSES);
            match (after.len() >= WITNESSES, witnesses.filter(|failed| **failed).count()) {
                (true, 0 | 1) => alone += 1,
                // That is known when it fails again.
                (true, _) => (alone, since_ms) = (0, next.at_ms),
                (false, _) => {}
            }
        }
        alone + 1 >= RETRY.attempts || last.at_ms - since_ms >= RETRY.give_up_after_ms
    }

    fn written(&mut self, which: usize) {
        let letters = self.set_aside();
        let Some((offset, slot)) = letters.get(which % letters.len().max(1)).copied() else { return };
        self.finish_slot(offset, slot);
    }

    fn commit(&mut self) {
        let offset = self.window.frontier();
        let text = encode(offset, Some(0), self.window.finished());
        let kept = decode(offset, &text).unwrap().ranges;
        let is_kept = |one: &&i64| **one < offset || kept.iter().any(|range| range.contains(*one));
        self.done_when_committed = self.done.iter().filter(is_kept).copied().collect();
        self.committed = (offset, text);
    }

    /// Gives the partition up in order: running messages end, or are stopped; then the commit.
    fn revoke(&mut self) {
        self.window.revoke();
        assert_eq!(self.window.start(), None, "something starts in a partition that was revoked");
        let running = self.running().into_iter().chain(self.set_aside());
        for (at, (offset, slot)) in running.collect::<Vec<_>>().into_iter().enumerate() {
            if at % 2 == 0 {
                self.finish(0);
            } else if self.unfinished.contains_key(&offset) {
                self.window.abandon(slot);
                self.unfinished.insert(offset, Is::Waiting { not_before: 0 });
            }
            self.check();
        }
        self.commit();
        self.restart();
    }

    /// Another life begins behind the last commit.
    fn restart(&mut self) {
        let (offset, text) = self.committed.clone();
        let finished = decode(offset, &text).unwrap().ranges;
        self.window = Window::new(offset, finished, self.limits);
        self.read = self.log.iter().position(|record| record.offset >= offset).unwrap_or(self.log.len());
        self.unfinished.clear();
        self.slots.clear();
        // Another process knows nothing of these.
        (self.judge, self.tries) = (Judge::new(RETRY), BTreeMap::new());
        self.ended.clear();
        self.failures.clear();
        self.frontier = self.window.frontier();
    }

    fn model_frontier(&self) -> i64 {
        self.unfinished.keys().next().copied().unwrap_or(self.window.next)
    }

    fn check(&mut self) {
        self.window.check();
        let frontier = self.window.frontier();
        assert_eq!(frontier, self.model_frontier());
        assert!(frontier >= self.frontier, "the position goes back");
        self.frontier = frontier;
        assert_eq!(self.window.unfinished(), self.unfinished.len());
        assert_eq!(self.window.running(), self.running().len() + self.set_aside().len());
        let finished: Vec<_> = self.window.finished().collect();
        for record in &self.log[..self.read] {
            let is_finished =
                record.offset < frontier || finished.iter().any(|range| range.contains(&record.offset));
            assert_eq!(is_finished, !self.unfinished.contains_key(&record.offset), "{}", record.offset);
            assert!(!is_finished || self.done.contains(&record.offset), "{} is lost", record.offset);
        }
        for range in finished.iter().filter(|range| range.start >= self.window.next) {
            let known = self.log.iter().filter(|record| range.contains(&record.offset));
            assert!(known.clone().all(|record| self.done.contains(&record.offset)), "{range:?}");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: mainstem_testkit::cases(512), ..ProptestConfig::default() })]

    #[test]
    fn a_window_does_what_its_model_does(
        log in log(),
        messages in 1..20usize,
        bytes in 30..400u64,
        ahead in 3..60i64,
        steps in prop::collection::vec(step(), 1..300),
    ) {
        let mut world = World::new(log, Limits { messages, bytes, ahead });
        for step in &steps {
            world.step(step);
            world.check();
        }
        // Faults off: in the end every record is done.
        let mut rounds = 0;
        while world.read < world.log.len() || !world.unfinished.is_empty() {
            for step in [Step::Admit(50), Step::Start(50), Step::Finish(0), Step::Written(0), Step::Wait(50)] {
                world.step(&step);
                world.check();
            }
            rounds += 1;
            prop_assert!(rounds < 2_000, "it does not end");
        }
        prop_assert_eq!(world.done.len(), world.log.len());
    }
}
