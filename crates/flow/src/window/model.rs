//! A window beside a model of it: a set of offsets, searched from the start each time.
//!
//! The log is fixed; what the steps decide is who runs, in which order messages end, what fails, what is committed, and when
//! the partition is revoked or the process dies. All that is promised is compared after every step.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;

use super::*;
use crate::metadata::{decode, encode};
use mainstem_records::slice_of;

#[derive(Debug, Clone)]
enum Step {
    Admit(usize),
    Start(usize),
    Batch(usize),
    Finish(usize),
    Retry(usize, u64),
    Wait(u64),
    Commit,
    Revoke,
    Crash,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        8 => (1..12usize).prop_map(Step::Admit),
        8 => (1..12usize).prop_map(Step::Start),
        2 => (1..6usize).prop_map(Step::Batch),
        12 => any::<usize>().prop_map(Step::Finish),
        4 => (any::<usize>(), 0..100u64).prop_map(|(one, wait)| Step::Retry(one, wait)),
        4 => (1..60u64).prop_map(Step::Wait),
        3 => Just(Step::Commit),
        1 => Just(Step::Revoke),
        1 => Just(Step::Crash),
    ]
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
    Waiting { not_before: u64 },
    Running { slot: u16 },
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
        }
    }

    fn slice(&self, offset: i64) -> u16 {
        let record = self.log.iter().find(|record| record.offset == offset).unwrap();
        slice_of(record.key.as_ref().map(std::slice::from_ref), offset)
    }

    fn running(&self) -> Vec<(i64, u16)> {
        let slot = |(offset, is): (&i64, &Is)| match is {
            Is::Running { slot } => Some((*offset, *slot)),
            Is::Waiting { .. } => None,
        };
        self.unfinished.iter().filter_map(slot).collect()
    }

    fn step(&mut self, step: &Step) {
        match *step {
            Step::Admit(count) => (0..count).for_each(|_| self.admit()),
            Step::Start(count) => (0..count).for_each(|_| self.start()),
            Step::Batch(max) => self.batch(max),
            Step::Finish(which) => self.finish(which),
            Step::Retry(which, wait) => self.retry(which, wait),
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
        if !self.window.has_room(record.offset, record.bytes) {
            assert!(!self.unfinished.is_empty(), "an empty window has room for any message");
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

    fn start(&mut self) {
        if let Some(slot) = self.window.start() {
            self.started(slot, false);
        } else {
            // Nothing that may run waits.
            let mut busy: BTreeSet<u16> =
                self.running().into_iter().map(|(offset, _)| self.slice(offset)).collect();
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
        self.window.finish(slot, self.now);
        self.unfinished.remove(&offset);
        self.slots.remove(&offset);
        self.done.insert(offset);
    }

    fn retry(&mut self, which: usize, wait: u64) {
        let running = self.running();
        let Some((offset, slot)) = running.get(which % running.len().max(1)).copied() else { return };
        if self.window.is_revoked() {
            return;
        }
        self.window.retry(slot, self.now + wait, self.now);
        self.unfinished.insert(offset, Is::Waiting { not_before: self.now + wait });
    }

    fn commit(&mut self) {
        let offset = self.window.frontier();
        let text = encode(offset, self.window.finished());
        let kept = decode(offset, &text).unwrap();
        let is_kept = |one: &&i64| **one < offset || kept.iter().any(|range| range.contains(*one));
        self.done_when_committed = self.done.iter().filter(is_kept).copied().collect();
        self.committed = (offset, text);
    }

    /// Gives the partition up in order: running messages end, or are stopped; then the commit.
    fn revoke(&mut self) {
        self.window.revoke();
        assert_eq!(self.window.start(), None, "something starts in a partition that was revoked");
        for (at, (offset, slot)) in self.running().into_iter().enumerate() {
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
        let finished = decode(offset, &text).unwrap();
        self.window = Window::new(offset, finished, self.limits);
        self.read = self.log.iter().position(|record| record.offset >= offset).unwrap_or(self.log.len());
        self.unfinished.clear();
        self.slots.clear();
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
        assert_eq!(self.window.running(), self.running().len());
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
    #![proptest_config(ProptestConfig { cases: 512, ..ProptestConfig::default() })]

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
        // Faults off: all that is there is done in the end.
        let mut rounds = 0;
        while world.read < world.log.len() || !world.unfinished.is_empty() {
            for step in [Step::Admit(50), Step::Start(50), Step::Finish(0), Step::Wait(50)] {
                world.step(&step);
                world.check();
            }
            rounds += 1;
            prop_assert!(rounds < 2_000, "it does not go on");
        }
        prop_assert_eq!(world.done.len(), world.log.len());
    }
}
