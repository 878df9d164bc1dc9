//! Requests of clients for the metadata leader, on their way between nodes.

use std::time::Duration;

use super::calls::{Who, encode_forwarded};
use super::{ANSWER_TIME, Cluster, FORWARD, LEADER_TIMEOUT, RETRY};

/// The first byte of an answer.
const SERVED: u8 = 1;
const NOT_HERE: u8 = 0;

impl Cluster {
    /// Has the metadata leader serve a request, and waits until this node knows what it has changed. Returns the bytes of the
    /// response; `None` where this node decides by then, where it stops, and where there is no leader for too long.
    pub fn hand_on(&self, who: &Who, body: &[u8]) -> Option<Vec<u8>> {
        let deadline = self.local.clock.instant() + LEADER_TIMEOUT;
        let request = encode_forwarded(who, body);
        let is_over = || self.local.stopping.is_stopping() || self.local.clock.instant() >= deadline;
        while !self.controller.decides() && !is_over() {
            let leader = self.controller.leader().filter(|leader| *leader != self.own);
            let answer = leader.and_then(|leader| {
                let may_lead = || self.may_lead(leader);
                self.links.call_while(leader, FORWARD, request.clone(), ANSWER_TIME, may_lead).ok()
            });
            if let Some((at, response)) = answer.as_deref().and_then(decode_answer) {
                let left = deadline.saturating_duration_since(self.local.clock.instant());
                // Late is better than never: the change is made.
                let _ = self.controller.wait_for_image(at, left.max(Duration::from_millis(1)));
                return Some(response.to_vec());
            }
            mainstem_runtime::sync::sleep(RETRY);
        }
        None
    }
}

/// The answer to a request that was handed on: the offset up to which the metadata have to be known for it to show, and
/// the response; `None`: it is not served here.
pub(crate) fn encode_answer(at: i64, response: Option<&[u8]>) -> Vec<u8> {
    match response {
        Some(response) => [&[SERVED][..], &at.to_be_bytes(), response].concat(),
        None => vec![NOT_HERE],
    }
}

fn decode_answer(answer: &[u8]) -> Option<(i64, &[u8])> {
    let (&SERVED, rest) = answer.split_first()? else { return None };
    let (at, response) = rest.split_first_chunk()?;
    Some((i64::from_be_bytes(*at), response))
}
