//! A simulation of both ends of a stream on one thread, by seed: the publisher's members, hand-over and positions, the consumer's
//! inboxes, over simulated networks, disks and clocks.
//!
//! Connections are cut, fall silent and overtake each other; frames of one connection stay in order. Publishers stop, are killed and
//! lose their power, and continue in copies of their directories. Instances come, leave and are killed, share slices or pin some, also
//! such as another one has. Filters, resets and pauses come at any time. After each step this has to hold:
//!
//! - Events that are sent are durable, of the assignment, and pass the filter that holds at their offset. Events that are left out do
//!   not pass it, or were handled. So nothing is lost.
//! - A handler gets the events of a slice in their order, none before those ahead of it are handled.
//! - In an orderly course each event is handled once.
//! - A subscription ends only by a refusal ([`Refused`](crate::Refused)) that what has happened explains. It does end where an
//!   instance has received events that the journal does not have.
//!
//! At the end all faults stop, and every event that passes the filter is handled. A seed always has the same course.
//!
//! In an orderly course publishers are killed and restarted, and connections are lost at any time, while instances live. No instance
//! joins, leaves or is lost while another one is away, for it would get that one's slices, and what that one handles meanwhile would
//! be repeated. Nothing is lost in any course.

mod directory;
mod instance;
mod publisher;
mod random;
mod truth;
mod world;

use std::collections::BTreeMap;

use world::{Defect, World};

/// The number of courses. `TEST_DIRECT_SEEDS` sets another one, `TEST_DIRECT_SEED` the first seed.
const SEEDS: u64 = 2_000;
/// The lines of a failed course that are shown.
const LINES: usize = 80;

fn number(variable: &str) -> Option<u64> {
    std::env::var(variable).ok().map(|number| number.parse().expect("it is a number"))
}

#[test]
fn every_event_comes_in_order_or_a_named_stop() {
    let first = number("TEST_DIRECT_SEED").unwrap_or(1);
    let count = number("TEST_DIRECT_SEEDS").unwrap_or(SEEDS);
    let mut stops = BTreeMap::new();
    for seed in first..first + count {
        let mut world = World::new(seed, None);
        if let Err(violation) = world.run() {
            let tail = world.history.len().saturating_sub(LINES);
            panic!("{}\nseed {seed} (TEST_DIRECT_SEED): {violation}", world.history[tail..].join("\n"));
        }
        world.stops.into_iter().for_each(|(name, count)| *stops.entry(name).or_insert(0) += count);
    }
    if count >= SEEDS {
        let comes = |name: &str| stops.contains_key(name);
        assert!(comes("Diverged") && comes("JournalReplaced"), "copies do no harm: {stops:?}");
        assert!(comes("Fenced"), "no slice is pinned twice: {stops:?}");
    }
}

#[test]
fn equal_seeds_have_equal_histories() {
    let history = |seed| {
        let mut world = World::new(seed, None);
        world.run().expect("it has no fault");
        world.history
    };
    for seed in 1..=8 {
        assert_eq!(history(seed), history(seed), "seed {seed}");
    }
    assert_ne!(history(1), history(5), "they have one profile");
}

/// Each defect would lose, repeat or make up events: the simulation finds it.
#[test]
fn a_defect_is_found() {
    for defect in Defect::ALL {
        let violation = (1..=SEEDS).find_map(|seed| World::new(seed, Some(defect)).run().err());
        assert!(violation.is_some(), "{defect:?} does no harm");
    }
}
