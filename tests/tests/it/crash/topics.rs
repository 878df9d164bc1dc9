//! Topics that are created and deleted under a few names repeatedly.

use mainstem_tests::client::Client;
use mainstem_tests::kafka::batch;
use mainstem_wire::sample::Rng;

use crate::crash::Load;

/// The names of the topics.
const NAMES: [&str; 3] = ["now-and-then-a", "now-and-then-b", "now-and-then-c"];

/// The known state of a topic.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    There,
    Gone,
    /// Its creation or deletion got no answer.
    Unknown,
}

/// Creates and deletes topics.
pub(crate) struct Topics {
    states: [State; NAMES.len()],
    rng: Rng,
}

impl Topics {
    pub(crate) fn new(rng: &mut Rng) -> Topics {
        Topics { states: [State::Gone; NAMES.len()], rng: Rng(rng.next_u64()) }
    }

    pub(crate) fn run(&mut self, load: &Load) {
        let Some(mut client) = load.connect() else { return };
        while self.change(load, &mut client).is_some() {}
    }

    fn change(&mut self, load: &Load, client: &mut Client) -> Option<()> {
        let rank = self.rng.below(NAMES.len() as u64) as usize;
        let name = NAMES[rank];
        let before = std::mem::replace(&mut self.states[rank], State::Unknown);
        if before == State::Gone {
            load.outcome("a creation", client.create_topic(name, 2, &[]))?;
            self.states[rank] = State::There;
            let offset = load.outcome("a produce", client.produce(name, 1, 1, &batch(&[b"first"])))?;
            assert_eq!(offset, 0, "the new {name} has records of the old one");
        } else {
            load.outcome("a deletion", client.delete_topic(name))?;
            self.states[rank] = State::Gone;
        }
        Some(())
    }

    /// Asserts that created topics exist, and deleted ones do not.
    pub(crate) fn check(&mut self, client: &mut Client) {
        let there = client.topics().expect("the topics");
        for (state, name) in self.states.iter_mut().zip(NAMES) {
            let found = if there.iter().any(|other| other == name) { State::There } else { State::Gone };
            assert!(*state == State::Unknown || *state == found, "{name} should be {state:?}, is {found:?}");
            *state = found;
        }
    }
}
