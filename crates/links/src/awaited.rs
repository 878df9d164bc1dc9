//! The cause for which a start waits, and the other nodes that it does not reach. Threads that wait or dial write it; `/health`
//! and messages about a missing majority read it.

use std::collections::BTreeMap;
use std::fmt::Display;

use mainstem_config::Voter;
use mainstem_lines::Sentence;
use parking_lot::Mutex;
use serde_json::{Value, json};

/// The one place that has it. Times are monotonic milliseconds of the broker's clock.
#[derive(Debug, Default)]
pub struct Awaited {
    stage: Mutex<Option<Stage>>,
    unreached: Mutex<BTreeMap<i32, Unreached>>,
}

/// A stage of the start that cannot go on.
#[derive(Debug)]
struct Stage {
    name: &'static str,
    since_ms: u64,
    /// The sentence that the log has.
    reason: String,
}

/// A node that is not reached.
#[derive(Debug)]
struct Unreached {
    /// `ID@HOST:PORT`.
    voter: String,
    since_ms: u64,
    /// Why the last attempt came to nothing, in one line.
    why: String,
}

impl Awaited {
    /// The start waits at a stage, since the first time that this was said of it without another one between. `reason` is
    /// the sentence that a person reads.
    pub fn waits(&self, name: &'static str, reason: String, now_ms: u64) {
        let mut stage = self.stage.lock();
        let since_ms =
            stage.as_ref().filter(|stage| stage.name == name).map_or(now_ms, |stage| stage.since_ms);
        *stage = Some(Stage { name, since_ms, reason });
    }

    /// Clears the reason: the start waits no longer.
    pub fn clear(&self) {
        *self.stage.lock() = None;
    }

    /// An attempt to reach a node came to nothing. `why` may have words of the peer in it.
    pub fn not_reached(&self, voter: &Voter, why: impl Display, now_ms: u64) {
        let why = Sentence(&why.to_string()).to_string();
        let mut unreached = self.unreached.lock();
        let since_ms = unreached.get(&voter.id).map_or(now_ms, |before| before.since_ms);
        unreached.insert(voter.id, Unreached { voter: voter.to_string(), since_ms, why });
    }

    /// A node was reached.
    pub fn reached(&self, node: i32) {
        self.forget(node);
    }

    /// A node is not one to be reached, or not any more.
    pub(crate) fn forget(&self, node: i32) {
        self.unreached.lock().remove(&node);
    }

    /// Names a node, and for one that is not reached the time since then and the reason.
    pub fn describe(&self, voter: &Voter, now_ms: u64) -> String {
        match self.unreached.lock().get(&voter.id) {
            None => voter.to_string(),
            Some(Unreached { since_ms, why, .. }) => {
                format!("{voter} (for {} s: {why})", now_ms.saturating_sub(*since_ms) / 1_000)
            }
        }
    }

    /// Adds the reason for which the start waits to the answer of `/health`, if it waits.
    pub fn add_to(&self, report: &mut Value, now_ms: u64) {
        let stage = self.stage.lock();
        let Some(Stage { name, since_ms, reason }) = &*stage else { return };
        let seconds = |since_ms: &u64| now_ms.saturating_sub(*since_ms) / 1_000;
        report["stage"] = json!(name);
        report["reason"] = json!(reason);
        report["seconds"] = json!(seconds(since_ms));
        let unreached = self.unreached.lock();
        let nodes = unreached.iter().map(|(node, unreached)| {
            let Unreached { voter, since_ms, why } = unreached;
            json!({ "node": node, "voter": voter, "seconds": seconds(since_ms), "why": why })
        });
        report["unreached"] = nodes.collect();
    }
}
