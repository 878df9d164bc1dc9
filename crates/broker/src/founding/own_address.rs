//! The address at which the other nodes connect to this one.

use std::time::Instant;

use mainstem_config::Voter;

use super::SAID_EVERY;

/// Rounds without an answer after which a node counts as not reachable by itself.
const OWN_ROUNDS: u32 = 5;

/// The answers of a node to itself, at the address that the others use. A node that does not answer there would wait
/// for the others without a word, as they would for it.
#[derive(Debug, Default)]
pub(super) struct OwnAddress {
    /// Consecutive rounds without an answer.
    failed: u32,
    said: Option<Instant>,
}

impl OwnAddress {
    /// Notes a round. Returns true if the missing answer is to be reported.
    pub(super) fn note(&mut self, has_failed: bool, now: Instant) -> bool {
        self.failed = if has_failed { self.failed.saturating_add(1) } else { 0 };
        let is_due = self.said.is_none_or(|said| now.saturating_duration_since(said) >= SAID_EVERY);
        let says = self.lasts() && is_due;
        if says {
            self.said = Some(now);
        }
        says
    }

    /// Returns true if it has missed enough rounds to count as not answering.
    pub(super) fn lasts(&self) -> bool {
        self.failed >= OWN_ROUNDS
    }

    /// The sentence to report.
    pub(super) fn describe(voter: &Voter, error: &str) -> String {
        format!(
            "{voter}, where the other nodes look for this one, does not answer ({error}): correct the address in \
             controller.quorum.voters, the same on every node, or this node's CONTROLLER listener"
        )
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn no_answer_of_its_own_counts_when_it_lasts_and_is_said_now_and_then() {
        let (mut own, begin) = (OwnAddress::default(), Instant::now());
        let mut rounds = |has_failed, count: u32, seconds| {
            let now = begin + Duration::from_secs(seconds);
            (0..count).filter(|_| own.note(has_failed, now)).count()
        };
        assert_eq!(rounds(true, OWN_ROUNDS - 1, 0), 0);
        assert_eq!(rounds(false, 1, 0), 0);
        assert_eq!(rounds(true, OWN_ROUNDS - 1, 0), 0, "it has answered between");
        assert_eq!(rounds(true, 20, 1), 1);
        assert_eq!(rounds(true, 20, 1 + SAID_EVERY.as_secs()), 1);
    }
}
