//! Transcripts of hand-overs, and a model in which each event is done once, or at least once where instances are lost.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use expect_test::{Expect, expect};
use proptest::prelude::*;

use super::*;

fn joining(connection: Connection, name: &str) -> Joining {
    Joining { connection, name: name.to_owned(), attempt: None, pinned: None, held: None }
}

fn held(done: Done, slices: (u32, u32), sent_to: i64) -> Held {
    Held { done, slices: SliceRange::new(slices.0, slices.1), sent_to }
}

fn done(assignment: u64, offset: i64, finished: &[Range<i64>]) -> Done {
    Done { assignment, offset, finished: finished.to_vec() }
}

/// An instance is lost while it releases slices. If it comes back in time, what it had done of them counts.
#[test]
fn what_was_being_given_back_waits_for_an_instance_that_was_lost() {
    let mut handover = Handover::new(0);
    handover.join(joining(1, "one"), 0).unwrap();
    handover.join(joining(2, "two"), 0).unwrap();
    let upper = SliceRange::new(512, 1_024).unwrap();
    // The first instance was to release all, and then to get half of it.
    assert_eq!(handover.leave(1, true, 10), [], "no instance gets any of it yet");
    assert_eq!(handover.due_ms(), Some(10 + CLAIM_GRACE_MS));
    let claim = Held { done: done(1, 5, std::slice::from_ref(&(7..9))), slices: None, sent_to: 9 };
    let effects = handover.join(Joining { held: Some(claim), ..joining(3, "one") }, 20).unwrap();
    let to_two = |effects: &[Effect]| {
        effects.iter().find_map(|effect| match effect {
            Effect::Assign { connection: 2, slices, offset, parts, .. } => {
                Some((*slices, *offset, parts[0].finished.clone()))
            }
            _ => None,
        })
    };
    assert_eq!(to_two(&effects), Some((upper, 5, std::iter::once(7..9).collect())));
    // If it does not come back, it holds the others up for that time alone.
    let mut handover = Handover::new(0);
    handover.join(joining(1, "one"), 0).unwrap();
    handover.join(joining(2, "two"), 0).unwrap();
    handover.leave(1, true, 10);
    assert_eq!(handover.tick(9 + CLAIM_GRACE_MS), []);
    assert_eq!(to_two(&handover.tick(10 + CLAIM_GRACE_MS)).map(|(_, offset, _)| offset), Some(0));
}

/// The hand-over of the next publisher, restored from what is stored.
fn restarted(handover: &Handover) -> Handover {
    let kept = Handover::restored(handover.generation(), handover.parts().to_vec());
    let mut next = kept.expect("parts are all slices");
    for part in handover.parts() {
        if let Some(holder) = handover.holder(part.assignment) {
            next.await_holder(part, holder);
        }
    }
    next
}

struct Script {
    handover: Handover,
    now_ms: u64,
    text: String,
}

impl Script {
    fn new() -> Script {
        Script { handover: Handover::new(0), now_ms: 0, text: String::new() }
    }

    fn step(&mut self, what: &str, step: impl FnOnce(&mut Handover, u64) -> Vec<Effect>) -> &mut Script {
        let effects = step(&mut self.handover, self.now_ms);
        self.handover.check();
        writeln!(self.text, "{what}").unwrap();
        for effect in effects {
            match effect {
                Effect::Assign { connection, assignment, slices, offset, is_resumed, parts } => {
                    let resumed = if is_resumed { ", resumed" } else { "" };
                    write!(self.text, "  {connection}: assign #{assignment} {slices} at {offset}{resumed}")
                        .unwrap();
                    let parts =
                        parts.iter().filter(|part| part.offset != offset || !part.finished.is_empty());
                    for part in parts {
                        write!(self.text, "; {} is at {} {:?}", part.slices, part.offset, part.finished)
                            .unwrap();
                    }
                    writeln!(self.text).unwrap();
                }
                Effect::Revoke { connection, assignment, is_lost } => {
                    let lost = if is_lost { ", lost" } else { "" };
                    writeln!(self.text, "  {connection}: revoke #{assignment}{lost}").unwrap();
                }
                Effect::Fence { connection } => writeln!(self.text, "  {connection}: fenced").unwrap(),
            }
        }
        self
    }

    fn join(&mut self, connection: Connection, name: &str) -> &mut Script {
        let joining = joining(connection, name);
        self.step(&format!("{name} comes"), |handover, now| handover.join(joining, now).unwrap())
    }

    fn restart(&mut self) -> &mut Script {
        self.handover = restarted(&self.handover);
        self.step("the publisher starts again", |_, _| Vec::new())
    }

    fn try_join(&mut self, what: &str, joining: Joining) -> &mut Script {
        let mut refused = None;
        self.step(what, |handover, now| {
            handover.join(joining, now).unwrap_or_else(|error| {
                refused = Some(error);
                Vec::new()
            })
        });
        if let Some(error) = refused {
            writeln!(self.text, "  refused: {error}").unwrap();
        }
        self
    }

    fn check(&self, expect: Expect) {
        expect.assert_eq(&self.text);
    }
}

#[test]
fn a_connection_that_comes_behind_a_later_one_of_its_process_takes_nothing() {
    let attempt = |connection, process, number| {
        let attempt = Some(Attempt { process, number });
        Joining { attempt, ..joining(connection, "one") }
    };
    let back = Some(held(done(1, 40, &[]), (0, 1_024), 50));
    let mut script = Script::new();
    script
        .try_join("its second connection comes", attempt(1, 7, 2))
        .try_join("its first one", attempt(2, 7, 1))
        .step("the second is lost", |handover, now| handover.leave(1, true, now))
        .try_join("the first one", attempt(3, 7, 1))
        .try_join("the third, with what it had", Joining { held: back, ..attempt(4, 7, 3) })
        .try_join("another process of its name", attempt(5, 8, 1))
        .try_join("one that does not say which it is", joining(6, "one"));
    script.check(expect![[r#"
        its second connection comes
          1: assign #1 0..1024 at 0
        its first one
          refused: a later connection of this instance has come already
        the second is lost
        the first one
          refused: a later connection of this instance has come already
        the third, with what it had
          4: assign #1 0..1024 at 50, resumed; 0..1024 is at 40 []
        another process of its name
          4: fenced
          5: assign #2 0..1024 at 40
        one that does not say which it is
          5: fenced
          6: assign #3 0..1024 at 40
    "#]]);
}

#[test]
fn of_processes_that_came_and_went_the_last_ones_are_known() {
    let mut handover = Handover::new(0);
    let last = 3 * ATTEMPTS_MAX as u64;
    for process in 0..=last {
        let attempt = Some(Attempt { process, number: 2 });
        handover.join(Joining { attempt, ..joining(process, "one") }, 0).unwrap();
    }
    assert_eq!(handover.attempts.len(), ATTEMPTS_MAX);
    let late = Joining { attempt: Some(Attempt { process: last, number: 1 }), ..joining(last + 1, "one") };
    assert_eq!(handover.join(late, 0), Err(JoinError::Overtaken));
}

#[test]
fn one_comes_and_half_of_the_slices_change_hands_with_what_is_done() {
    let mut script = Script::new();
    script
        .join(1, "one")
        .join(2, "two")
        .step("one releases at 10, 12 to 15 done", |handover, now| {
            handover.released(1, &done(1, 10, std::slice::from_ref(&(12..15))), now)
        })
        .step("one is at 20", |handover, _| {
            assert!(handover.done(1, &done(2, 20, &[])));
            assert!(!handover.done(1, &done(1, 30, &[])), "of the old assignment");
            Vec::new()
        })
        .step("two leaves", |handover, now| handover.leave(2, false, now))
        .step("one releases at 21", |handover, now| handover.released(1, &done(2, 21, &[]), now));
    script.check(expect![[r#"
        one comes
          1: assign #1 0..1024 at 0
        two comes
          1: revoke #1
        one releases at 10, 12 to 15 done
          1: assign #2 0..512 at 10; 0..512 is at 10 [12..15]
          2: assign #3 512..1024 at 10; 512..1024 is at 10 [12..15]
        one is at 20
        two leaves
          1: revoke #2
        one releases at 21
          1: assign #4 0..1024 at 10; 0..512 is at 21 []; 512..1024 is at 10 [12..15]
    "#]]);
}

#[test]
fn one_that_was_lost_goes_on_if_it_comes_back_in_time() {
    let mut script = Script::new();
    script
        .join(1, "one")
        .step("its connection is lost", |handover, now| handover.leave(1, true, now))
        .step("it comes back, sent to 50, done to 40", |handover, now| {
            handover.join(back(2, "one", held(done(1, 40, &[]), (0, 1_024), 50)), now).unwrap()
        })
        .step("the old connection says something", |handover, now| {
            handover.released(1, &done(1, 45, &[]), now)
        })
        .step("a second connection of its name", |handover, now| {
            handover.join(back(3, "one", held(done(1, 60, &[]), (0, 1_024), 70)), now).unwrap()
        })
        .step("it is lost", |handover, now| handover.leave(3, true, now))
        .join(4, "other")
        .step("it comes back too late", |handover, now| {
            handover.join(back(5, "one", held(done(1, 65, &[]), (0, 1_024), 70)), now).unwrap()
        });
    script.check(expect![[r#"
        one comes
          1: assign #1 0..1024 at 0
        its connection is lost
        it comes back, sent to 50, done to 40
          2: assign #1 0..1024 at 50, resumed; 0..1024 is at 40 []
        the old connection says something
        a second connection of its name
          2: fenced
          3: assign #1 0..1024 at 70, resumed; 0..1024 is at 60 []
        it is lost
        other comes
          4: assign #2 0..1024 at 60
        it comes back too late
          4: revoke #2
    "#]]);
}

#[test]
fn after_a_restart_of_the_publisher_all_go_on_with_what_they_had() {
    let mut script = Script::new();
    script.join(1, "one").join(2, "two");
    script.step("one releases", |handover, now| handover.released(1, &done(1, 5, &[]), now));
    script.restart();
    script.text.clear();
    for (connection, name, assignment, slices) in [(11, "two", 3, (512, 1_024)), (12, "one", 2, (0, 512))] {
        script.step(&format!("{name} comes back"), |handover, now| {
            let held = Some(held(done(assignment, 5, &[]), slices, 9));
            handover.join(Joining { held, ..joining(connection, name) }, now).unwrap()
        });
    }
    script.check(expect![[r#"
        two comes back
          11: assign #3 512..1024 at 9, resumed; 512..1024 is at 5 []
        one comes back
          12: assign #2 0..512 at 9, resumed; 0..512 is at 5 []
    "#]]);
}

/// Two instances that share the slices, as assignments 2 and 3.
fn two() -> Script {
    let mut script = Script::new();
    script.join(1, "one").join(2, "two");
    script.step("one releases", |handover, now| handover.released(1, &done(1, 5, &[]), now));
    script.text.clear();
    script
}

fn back(connection: Connection, name: &str, held: Held) -> Joining {
    Joining { held: Some(held), ..joining(connection, name) }
}

#[test]
fn after_a_restart_of_the_publisher_no_newcomer_gets_what_another_may_come_back_for() {
    let mut script = two();
    script
        .restart()
        .join(11, "new")
        .try_join("one comes back", back(12, "one", held(done(2, 7, &[]), (0, 512), 9)))
        .try_join("two comes back", back(13, "two", held(done(3, 8, &[]), (512, 1_024), 9)))
        .step("two releases at 9", |handover, now| handover.released(13, &done(3, 9, &[]), now));
    script.check(expect![[r#"
        the publisher starts again
        new comes
        one comes back
          12: assign #2 0..512 at 9, resumed; 0..512 is at 7 []
        two comes back
          13: assign #3 512..1024 at 9, resumed; 512..1024 is at 8 []
          13: revoke #3
        two releases at 9
          11: assign #4 768..1024 at 9
          13: assign #5 512..768 at 9
    "#]]);
}

#[test]
fn an_instance_that_does_not_come_back_is_waited_for_within_bounds() {
    let mut script = Script::new();
    script.join(1, "one").restart().join(11, "new");
    assert_eq!(script.handover.due_ms(), Some(REJOIN_MS_MAX));
    script.now_ms += REJOIN_MS_MAX;
    script.step("5 s later", |handover, now| handover.tick(now));
    assert_eq!(script.handover.due_ms(), None);
    // The wait ends with the publisher, and so does that of instances that come in its place.
    for start in 12..=14 {
        script.restart().join(start, &format!("another {start}"));
    }
    script.check(expect![[r#"
        one comes
          1: assign #1 0..1024 at 0
        the publisher starts again
        new comes
        5 s later
          11: assign #2 0..1024 at 0
        the publisher starts again
        another 12 comes
        the publisher starts again
        another 13 comes
        the publisher starts again
        another 14 comes
          14: assign #3 0..1024 at 0
    "#]]);
}

/// Its next connection is under way, or it has not noticed yet that it lost the one before.
#[test]
fn one_that_comes_back_after_a_restart_and_is_lost_again_is_waited_for_again() {
    let one_is_back = |connection, offset| back(connection, "one", held(done(2, offset, &[]), (0, 512), 9));
    let mut script = two();
    script
        .restart()
        .try_join("one comes back", one_is_back(11, 7))
        .step("its connection is lost", |handover, now| handover.leave(11, true, now))
        .join(12, "new")
        .try_join("two comes back", back(13, "two", held(done(3, 8, &[]), (512, 1_024), 9)))
        .try_join("one comes back once more", one_is_back(14, 8));
    script.check(expect![[r#"
        the publisher starts again
        one comes back
          11: assign #2 0..512 at 9, resumed; 0..512 is at 7 []
        its connection is lost
        new comes
        two comes back
          13: assign #3 512..1024 at 9, resumed; 512..1024 is at 8 []
        one comes back once more
          14: assign #2 0..512 at 9, resumed; 0..512 is at 8 []
          14: revoke #2
    "#]]);
    // It has no longer than any other. One that is lost later is not waited for.
    let mut script = two();
    script
        .restart()
        .try_join("one comes back", one_is_back(11, 7))
        .step("its connection is lost", |handover, now| handover.leave(11, true, now))
        .join(12, "new");
    script.now_ms = REJOIN_MS_MAX;
    script
        .step("5 s later", |handover, now| handover.tick(now))
        .step("the new one is lost", |handover, now| handover.leave(12, true, now))
        .join(13, "another");
    script.check(expect![[r#"
        the publisher starts again
        one comes back
          11: assign #2 0..512 at 9, resumed; 0..512 is at 7 []
        its connection is lost
        new comes
        5 s later
          12: assign #4 0..1024 at 5; 0..512 is at 7 []
        the new one is lost
        another comes
          13: assign #5 0..1024 at 5; 0..512 is at 7 []
    "#]]);
}

/// Its process has restarted too, or it never received its assignment.
#[test]
fn one_that_has_come_back_without_what_it_had_is_not_waited_for() {
    let mut script = two();
    script
        .restart()
        .join(11, "two")
        .join(12, "new")
        .try_join("one comes back", back(13, "one", held(done(2, 7, &[]), (0, 512), 9)));
    script.check(expect![[r#"
        the publisher starts again
        two comes
          11: assign #4 512..1024 at 5
        new comes
        one comes back
          13: assign #2 0..512 at 9, resumed; 0..512 is at 7 []
          13: revoke #2
    "#]]);
}

#[test]
fn one_that_had_left_is_not_waited_for() {
    let mut script = two();
    script
        .step("two leaves", |handover, now| handover.leave(2, false, now))
        .restart()
        .join(11, "new")
        .try_join("one comes back", back(12, "one", held(done(2, 7, &[]), (0, 512), 9)));
    script.check(expect![[r#"
        two leaves
          1: revoke #2
        the publisher starts again
        new comes
          11: assign #4 512..1024 at 5
        one comes back
          12: assign #2 0..512 at 9, resumed; 0..512 is at 7 []
    "#]]);
}

/// A power cut has erased that two instances had got some of the slices of one.
#[test]
fn no_one_is_waited_for_whose_slices_another_got_later() {
    let mut script = Script::new();
    script.join(1, "one");
    let kept = restarted(&script.handover);
    script.handover = kept;
    script.handover.skip_generations(10);
    script
        .try_join("two comes back", back(11, "two", held(done(3, 8, &[]), (512, 1_024), 9)))
        .try_join("one comes back", back(12, "one", held(done(2, 7, &[]), (0, 512), 9)));
    script.check(expect![[r#"
        one comes
          1: assign #1 0..1024 at 0
        two comes back
          11: assign #12 512..1024 at 0
        one comes back
          12: assign #13 0..512 at 0
    "#]]);
}

#[test]
fn one_that_was_lost_while_it_gave_back_goes_on_with_that() {
    let mut script = Script::new();
    script
        .join(1, "one")
        .join(2, "two")
        .step("its connection is lost", |handover, now| handover.leave(1, true, now))
        .try_join("one comes back", back(3, "one", held(done(1, 5, &[]), (0, 1_024), 9)))
        .step("one releases at 8", |handover, now| handover.released(3, &done(1, 8, &[]), now));
    script.check(expect![[r#"
        one comes
          1: assign #1 0..1024 at 0
        two comes
          1: revoke #1
        its connection is lost
        one comes back
          3: assign #1 0..1024 at 9, resumed; 0..1024 is at 5 []
          3: revoke #1
        one releases at 8
          2: assign #2 512..1024 at 8
          3: assign #3 0..512 at 8
    "#]]);
}

#[test]
fn one_that_comes_back_behind_what_others_did_gets_a_new_assignment() {
    let mut script = Script::new();
    script.join(1, "one").step("one leaves at 3, 5 done", |handover, now| {
        assert!(handover.done(1, &done(1, 3, std::slice::from_ref(&(5..6)))));
        handover.leave(1, false, now)
    });
    script.join(2, "two").step("its connection is lost", |handover, now| handover.leave(2, true, now));
    script.step("it comes back, sent and done to 5", |handover, now| {
        let held = Some(held(done(2, 5, &[]), (0, 1_024), 5));
        handover.join(Joining { held, ..joining(3, "two") }, now).unwrap()
    });
    script.check(expect![[r#"
        one comes
          1: assign #1 0..1024 at 0
        one leaves at 3, 5 done
        two comes
          2: assign #2 0..1024 at 3; 0..1024 is at 3 [5..6]
        its connection is lost
        it comes back, sent and done to 5
          3: assign #3 0..1024 at 6
    "#]]);
}

#[test]
fn what_is_not_given_back_in_time_is_taken_and_a_reset_voids_all() {
    let mut script = Script::new();
    script.join(1, "one").join(2, "two");
    script.now_ms = REVOKE_MS_MAX;
    script
        .step("30 s later", |handover, now| handover.tick(now))
        .step("one says something", |handover, now| handover.released(1, &done(1, 100, &[]), now));
    script.now_ms += CLAIM_GRACE_MS;
    script
        .step("a second later", |handover, now| handover.tick(now))
        .step("two gives back", |handover, now| handover.released(2, &done(2, 7, &[]), now))
        .step("reset to 3", |handover, now| handover.reset(3, now));
    script.check(expect![[r#"
        one comes
          1: assign #1 0..1024 at 0
        two comes
          1: revoke #1
        30 s later
          1: fenced
          2: assign #2 0..1024 at 0
        one says something
        a second later
        two gives back
          2: assign #3 0..1024 at 7
        reset to 3
          2: revoke #3, lost
          2: assign #5 0..1024 at 3
    "#]]);
}

#[test]
fn a_second_holder_of_pinned_slices_fences_the_first() {
    let mut script = Script::new();
    for (connection, name, from, to) in [(1, "a", 0, 512), (2, "b", 512, 1_024), (3, "c", 500, 600)] {
        let pinned = SliceRange::new(from, to);
        script.step(&format!("{name} pins {from}..{to}"), |handover, now| {
            handover.join(Joining { pinned, ..joining(connection, name) }, now).unwrap()
        });
    }
    script.check(expect![[r#"
        a pins 0..512
          1: assign #1 0..512 at 0
        b pins 512..1024
          2: assign #2 512..1024 at 0
        c pins 500..600
          1: fenced
          2: fenced
          3: assign #3 500..600 at 0
    "#]]);
    assert_eq!(script.handover.join(joining(4, "d"), 0), Err(JoinError::Mixed));
}

#[test]
fn what_was_kept_and_is_damaged_is_refused() {
    let part =
        |from, to| Part { slices: SliceRange { from, to }, offset: 0, finished: vec![], assignment: 1 };
    assert!(Handover::restored(1, vec![part(0, 5), part(5, 1_024)]).is_some());
    assert!(Handover::restored(1, vec![part(0, 5), part(6, 1_024)]).is_none());
    assert!(Handover::restored(1, vec![part(0, 5)]).is_none());
    assert!(Handover::restored(0, vec![part(0, 1_024)]).is_none());
    assert!(Handover::restored(0, vec![]).is_none());
}

/// An instance of the model: what it was sent and has done.
#[derive(Debug, Default)]
struct Model {
    assignment: Option<(u64, SliceRange)>,
    sent_to: i64,
    parts: Vec<Part>,
    /// Events that it was sent and has not done, and those that it has.
    open: BTreeSet<(i64, u16)>,
    finished: BTreeSet<i64>,
    revoked: bool,
}

/// Each offset is one event, of this slice.
fn slice(offset: i64) -> u16 {
    (offset * 389 % 1_024) as u16
}

const EVENTS: i64 = 120;

impl Model {
    fn send(&mut self, upto: i64) {
        let Some((_, slices)) = self.assignment.filter(|_| !self.revoked) else { return };
        for offset in self.sent_to..upto.min(EVENTS) {
            let slice = slice(offset);
            let part = self.parts.iter().find(|part| part.slices.contains(slice));
            let is_done = part.is_some_and(|part| part.is_done(offset));
            if slices.contains(slice) && !is_done {
                self.open.insert((offset, slice));
            }
            self.sent_to = offset + 1;
        }
    }

    /// Does one of the events that may be done: in order within a slice, in any order between slices.
    fn handle(&mut self, which: usize) -> Option<i64> {
        let mut first_of_slice = BTreeMap::new();
        self.open.iter().for_each(|&(offset, slice)| {
            first_of_slice.entry(slice).or_insert(offset);
        });
        let mut ready: Vec<_> = first_of_slice.into_iter().collect();
        ready.sort_unstable_by_key(|(_, offset)| *offset);
        let &(slice, offset) = ready.get(which % ready.len().max(1))?;
        self.open.remove(&(offset, slice));
        self.finished.insert(offset);
        Some(offset)
    }

    /// The assignment that it claims when it comes back.
    fn held(&self) -> Option<Held> {
        let (_, slices) = self.assignment?;
        Some(Held { done: self.done(), slices: Some(slices), sent_to: self.sent_to })
    }

    fn done(&self) -> Done {
        let offset = self.open.first().map_or(self.sent_to, |(offset, _)| *offset);
        let behind = self.finished.iter().filter(|one| **one >= offset).map(|one| *one..one + 1);
        Done {
            assignment: self.assignment.map_or(0, |(assignment, _)| assignment),
            offset,
            finished: normalized(offset, behind),
        }
    }
}

#[derive(Debug, Clone)]
enum Step {
    Join,
    Leave(usize),
    Lose(usize),
    Return(usize),
    /// It comes back on a connection that is lost before it notices.
    Retry(usize),
    /// The publisher restarts: all instances are lost.
    Restart,
    Send(usize, i64),
    /// Does the open event of this number.
    Handle(usize, usize),
    Done(usize),
    Release(usize),
    Wait(u64),
}

fn steps(orderly: bool) -> impl Strategy<Value = Vec<Step>> {
    let who = 0usize..6;
    let lose = if orderly { 0 } else { 2 };
    let restart = if orderly { 2 } else { 1 };
    let step = prop_oneof![
        2 => Just(Step::Join),
        1 => who.clone().prop_map(Step::Leave),
        lose => who.clone().prop_map(Step::Lose),
        6 => (who.clone(), 0u8..3).prop_map(|(who, tries)| match tries {
            0 => Step::Retry(who),
            _ => Step::Return(who),
        }),
        restart => Just(Step::Restart),
        6 => (who.clone(), 1i64..30).prop_map(|(who, more)| Step::Send(who, more)),
        12 => (who.clone(), 0usize..20).prop_map(|(who, which)| Step::Handle(who, which)),
        3 => who.clone().prop_map(Step::Done),
        5 => who.prop_map(Step::Release),
        1 => (0u64..3_000).prop_map(Step::Wait),
    ];
    prop::collection::vec(step, 1..150)
}

#[derive(Debug)]
struct World {
    /// All that are lost come back before anything ends by time.
    is_orderly: bool,
    handover: Handover,
    now_ms: u64,
    living: Vec<(Connection, Model)>,
    lost: Vec<(Connection, Model)>,
    connections: Connection,
    handled: BTreeMap<i64, u32>,
}

impl World {
    fn new(is_orderly: bool) -> World {
        World {
            is_orderly,
            handover: Handover::new(0),
            now_ms: 0,
            living: Vec::new(),
            lost: Vec::new(),
            connections: 0,
            handled: BTreeMap::new(),
        }
    }

    fn carry_out(&mut self, effects: Vec<Effect>) {
        self.handover.check();
        for effect in effects {
            match effect {
                Effect::Assign { connection, assignment, slices, offset, is_resumed, parts } => {
                    let (_, model) = self.living.iter_mut().find(|(one, _)| *one == connection).unwrap();
                    match is_resumed {
                        true => assert_eq!(
                            (model.assignment, model.sent_to),
                            (Some((assignment, slices)), offset)
                        ),
                        false => {
                            *model = Model {
                                assignment: Some((assignment, slices)),
                                sent_to: offset,
                                ..Model::default()
                            }
                        }
                    }
                    model.parts = parts;
                }
                Effect::Revoke { connection, is_lost, .. } => {
                    let (_, model) = self.living.iter_mut().find(|(one, _)| *one == connection).unwrap();
                    match is_lost {
                        true => *model = Model::default(),
                        false => model.revoked = true,
                    }
                }
                Effect::Fence { connection } => self.living.retain(|(one, _)| *one != connection),
            }
        }
    }

    fn join(&mut self, name: Connection, mut model: Model) {
        self.connections += 1;
        let connection = self.connections;
        let held = model.held();
        model.revoked = false;
        self.living.push((connection, model));
        let joining = Joining { connection, name: name.to_string(), attempt: None, pinned: None, held };
        let effects = self.handover.join(joining, self.now_ms).unwrap();
        // One whose claim was refused has lost what it had.
        let resumed = effects.iter().any(|effect| matches!(effect, Effect::Assign { connection: to, is_resumed: true, .. } if *to == connection));
        if !resumed && let Some((_, model)) = self.living.iter_mut().find(|(one, _)| *one == connection) {
            *model = Model::default();
        }
        self.carry_out(effects);
    }

    /// The publisher loses an instance, which does not notice, and does one event more meanwhile.
    fn retry(&mut self, who: usize) {
        self.connections += 1;
        let (connection, (name, model)) = (self.connections, &self.lost[who]);
        let (name, held) = ((name + 2_000).to_string(), model.held());
        let joining = Joining { connection, name, attempt: None, pinned: None, held };
        let mut effects = self.handover.join(joining, self.now_ms).unwrap();
        effects.extend(self.handover.leave(connection, true, self.now_ms));
        effects.retain(|effect| match effect {
            Effect::Assign { connection: to, .. }
            | Effect::Revoke { connection: to, .. }
            | Effect::Fence { connection: to } => *to != connection,
        });
        self.carry_out(effects);
        let handled = self.lost[who].1.handle(0);
        handled.into_iter().for_each(|offset| *self.handled.entry(offset).or_default() += 1);
    }

    fn step(&mut self, step: &Step) {
        let count = self.living.len().max(1);
        let at = |who: usize| who % count;
        match *step {
            Step::Join if self.living.len() < 6 => self.join(self.connections + 1_000, Model::default()),
            Step::Join => {}
            Step::Leave(who) if !self.living.is_empty() => self.leave(at(who)),
            Step::Lose(who) if !self.living.is_empty() => {
                let (connection, model) = self.living.remove(at(who));
                let effects = self.handover.leave(connection, true, self.now_ms);
                self.lost.push((connection, model));
                self.carry_out(effects);
            }
            Step::Return(who) if !self.lost.is_empty() => {
                let (name, model) = self.lost.remove(who % self.lost.len());
                self.join(name + 2_000, model);
            }
            Step::Retry(who) if !self.lost.is_empty() => self.retry(who % self.lost.len()),
            Step::Restart if !self.is_orderly || self.lost.is_empty() => {
                self.handover = restarted(&self.handover);
                self.lost.append(&mut self.living);
            }
            Step::Wait(_) if self.is_orderly && !self.lost.is_empty() => {}
            Step::Send(who, more) => {
                if let Some((_, model)) = self.living.get_mut(at(who)) {
                    let upto = model.sent_to + more;
                    model.send(upto);
                }
            }
            Step::Handle(who, which) => self.handle(at(who), which),
            Step::Done(who) => {
                if let Some((connection, model)) = self.living.get(at(who))
                    && model.assignment.is_some()
                {
                    self.handover.done(*connection, &model.done());
                    self.handover.check();
                }
            }
            Step::Release(who) => self.release(at(who)),
            Step::Wait(ms) => {
                self.now_ms += ms.min(1_500);
                let effects = self.handover.tick(self.now_ms);
                self.carry_out(effects);
            }
            _ => {}
        }
    }

    fn handle(&mut self, who: usize, which: usize) {
        let Some((_, model)) = self.living.get_mut(who) else { return };
        let handled = model.handle(which);
        handled.into_iter().for_each(|offset| *self.handled.entry(offset).or_default() += 1);
    }

    fn release(&mut self, who: usize) {
        let Some((connection, model)) = self.living.get_mut(who) else { return };
        if !std::mem::take(&mut model.revoked) {
            return;
        }
        let (connection, done) = (*connection, model.done());
        *model = Model::default();
        let effects = self.handover.released(connection, &done, self.now_ms);
        self.carry_out(effects);
    }

    fn leave(&mut self, who: usize) {
        let (connection, model) = self.living.remove(who);
        if model.assignment.is_some() {
            self.handover.done(connection, &model.done());
        }
        let effects = self.handover.leave(connection, false, self.now_ms);
        self.carry_out(effects);
    }

    /// From now on nothing fails.
    fn finish(&mut self) {
        while self.is_orderly
            && let Some((name, model)) = self.lost.pop()
        {
            self.join(name + 2_000, model);
        }
        self.join(9_999, Model::default());
        for _ in 0..200 {
            self.now_ms += 100;
            let effects = self.handover.tick(self.now_ms);
            self.carry_out(effects);
            for who in 0..self.living.len() {
                if let Some((_, model)) = self.living.get_mut(who) {
                    model.send(EVENTS);
                }
                (0..EVENTS).for_each(|_| self.handle(who, 0));
                self.release(who);
                if let Some((connection, model)) = self.living.get(who)
                    && model.assignment.is_some()
                {
                    self.handover.done(*connection, &model.done());
                }
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(mainstem_testkit::cases(96)))]

    #[test]
    fn orderly_hand_overs_repeat_and_lose_nothing(steps in steps(true)) {
        let mut world = World::new(true);
        steps.iter().for_each(|step| world.step(step));
        world.finish();
        let all: Vec<(i64, u32)> = (0..EVENTS).map(|offset| (offset, 1)).collect();
        prop_assert_eq!(world.handled.into_iter().collect::<Vec<_>>(), all);
        prop_assert_eq!(world.handover.frontier(), EVENTS);
    }

    #[test]
    fn a_lost_instance_loses_nothing_else(steps in steps(false)) {
        let mut world = World::new(false);
        steps.iter().for_each(|step| world.step(step));
        world.finish();
        prop_assert_eq!(world.handled.len() as i64, EVENTS);
        prop_assert_eq!(world.handover.frontier(), EVENTS);
        prop_assert_eq!(world.handover.parts().len(), world.handover.instances().count(), "equal parts are joined");
    }
}
