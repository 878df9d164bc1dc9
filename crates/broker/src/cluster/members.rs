//! Which nodes give signs of life, as the metadata leader sees it.

use std::collections::BTreeMap;

/// When each node was last heard of, in monotonic milliseconds.
#[derive(Debug, Default)]
pub(super) struct Members {
    heard: BTreeMap<i32, u64>,
    /// When this node began to lead: until then it did not listen.
    since_ms: u64,
}

impl Members {
    /// The node leads from now on. Each node has the whole time-out from here.
    pub(super) fn begin(&mut self, now_ms: u64) {
        self.heard.clear();
        self.since_ms = now_ms;
    }

    /// A node has given a sign of life.
    pub(super) fn heard(&mut self, node: i32, now_ms: u64) {
        self.heard.insert(node, now_ms);
    }

    /// A node says that it leaves: it counts as silent from now on.
    pub(super) fn left(&mut self, node: i32) {
        self.heard.insert(node, 0);
    }

    /// Whether a node has been silent for longer than that.
    pub(super) fn is_silent(&self, node: i32, now_ms: u64, timeout_ms: u64) -> bool {
        let last_ms = self.heard.get(&node).copied().unwrap_or(self.since_ms);
        now_ms.saturating_sub(last_ms) > timeout_ms
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_are_silent_after_the_time_out() {
        let mut members = Members::default();
        members.begin(1_000);
        assert!(!members.is_silent(2, 10_000, 9_000) && members.is_silent(2, 10_001, 9_000));
        members.heard(2, 10_001);
        assert!(!members.is_silent(2, 19_001, 9_000) && members.is_silent(2, 19_002, 9_000));
        members.begin(20_000);
        assert!(!members.is_silent(2, 29_000, 9_000), "a new leader has not listened before");
        members.left(2);
        assert!(members.is_silent(2, 20_000, 9_000));
    }
}
