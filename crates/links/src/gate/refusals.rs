//! Lines about peers that are refused, or whose links end, again and again: one at first, then how often, once a minute.

use std::collections::HashMap;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use mainstem_peers::Peer;
use parking_lot::Mutex;

/// Between two lines about one peer that is refused for one reason.
const SAID_EVERY: Duration = Duration::from_secs(60);
/// Limit of the pairs of peer and reason that are logged on their own. Further ones are only counted.
const KNOWN_MAX: usize = 64;

/// Refusals that were logged, by peer and reason.
#[derive(Default)]
pub(super) struct Refusals(Mutex<Known>);

#[derive(Default)]
struct Known {
    said: HashMap<(Peer, String), Said>,
    left_out: u64,
}

struct Said {
    at: Instant,
    since: u64,
}

impl Refusals {
    pub(super) fn say(&self, peer: IpAddr, why: &str, now: Instant) {
        if let Some(line) = self.line(peer, why, now) {
            tracing::warn!("a connection of {peer} to the controllers' listener was refused: {line}");
        }
    }

    /// The same of a link that was taken first.
    pub(super) fn say_ended(&self, peer: IpAddr, node: i32, why: &str, now: Instant) {
        let ended = format!("the link from node {node} ended: {why}");
        if let Some(line) = self.line(peer, &ended, now) {
            tracing::warn!(node, "{line}");
        }
    }

    /// Returns the line to log now; `None` if this refusal is only counted.
    fn line(&self, peer: IpAddr, why: &str, now: Instant) -> Option<String> {
        let peer = Peer::of(peer);
        let mut known = self.0.lock();
        if let Some(said) = known.said.get_mut(&(peer, why.to_owned())) {
            said.since += 1;
            if now.saturating_duration_since(said.at) < SAID_EVERY {
                return None;
            }
            said.at = now;
            let times = std::mem::take(&mut said.since);
            return Some(format!("{why} ({times} times since this was said)"));
        }
        if known.said.len() >= KNOWN_MAX {
            known.said.retain(|_, said| now.saturating_duration_since(said.at) < SAID_EVERY);
        }
        if known.said.len() >= KNOWN_MAX {
            known.left_out += 1;
            return None;
        }
        known.said.insert((peer, why.to_owned()), Said { at: now, since: 0 });
        match std::mem::take(&mut known.left_out) {
            0 => Some(why.to_owned()),
            left_out => Some(format!("{why} ({left_out} other refusals were not shown)")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_peer_that_comes_again_and_again_is_one_line_a_minute() {
        let (refusals, begin) = (Refusals::default(), Instant::now());
        let line = |last: u8, why: &str, seconds| {
            refusals.line([10, 0, 0, last].into(), why, begin + Duration::from_secs(seconds))
        };
        assert_eq!(line(1, "a", 0).as_deref(), Some("a"));
        assert_eq!(line(1, "a", 1), None);
        assert_eq!(line(1, "b", 1).as_deref(), Some("b"), "another reason");
        assert_eq!(line(1, "a", 61).as_deref(), Some("a (2 times since this was said)"));
        for last in 0..200 {
            line(last, "c", 62);
        }
        assert!(refusals.0.lock().said.len() <= KNOWN_MAX);
        let later = line(1, "d", 200).expect("there is room again");
        assert!(later.contains("other refusals were not shown"), "{later}");
    }
}
