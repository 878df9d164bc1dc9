//! Topic patterns that are matched ahead of the heartbeat which needs them, on any thread and without the coordinator.
//!
//! A driver asks which patterns are due, matches them, and gives the matches to the heartbeat. Such a heartbeat matches nothing itself:
//! patterns that have become due meanwhile are left to the group's next one.

use std::collections::HashMap;
use std::sync::Arc;

use super::regex::{PatternFault, matching};
use super::topics::ClusterTopics;
use crate::groups::request_context::VisibleTopics;

/// Patterns to be matched, and the existing topics.
#[derive(Debug, Clone)]
pub struct DuePatterns {
    patterns: Vec<Arc<str>>,
    names: Arc<[Arc<str>]>,
    version: i64,
}

impl DuePatterns {
    pub(crate) fn new(patterns: Vec<Arc<str>>, topics: &ClusterTopics) -> DuePatterns {
        let version = i64::try_from(topics.created()).unwrap_or(i64::MAX);
        DuePatterns { patterns, names: topics.all_names(), version }
    }

    /// Matches them, which takes about 10 ms at most. Topics that the sender of the heartbeat may not know of are left out,
    /// for all members with the pattern, as in Kafka.
    pub fn matched(self, visible: VisibleTopics<'_>) -> MatchedPatterns {
        let matched = self.patterns.into_iter().map(|pattern| {
            let mut topics = matching(&pattern, &self.names);
            if let Ok(topics) = &mut topics {
                topics.retain(|name| visible.has(name));
            }
            (pattern, topics)
        });
        MatchedPatterns { by_pattern: matched.collect(), version: self.version }
    }
}

/// The topics that each pattern matched, to be given back to the coordinator that asked.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct MatchedPatterns {
    by_pattern: HashMap<Arc<str>, Result<Vec<Box<str>>, PatternFault>>,
    version: i64,
}

impl MatchedPatterns {
    /// The matches of a pattern; none if it was not among them.
    pub(crate) fn get(&self, pattern: &str) -> Option<&Result<Vec<Box<str>>, PatternFault>> {
        self.by_pattern.get(pattern)
    }

    /// The version of the topics that the patterns were matched against.
    pub(crate) fn version(&self) -> i64 {
        self.version
    }
}

#[cfg(test)]
mod tests {
    use mainstem_wire::Uuid;

    use super::*;

    #[test]
    fn what_may_not_be_described_is_not_matched() {
        let mut topics = ClusterTopics::default();
        for (id, name) in (1..).zip(["a", "ab", "b"]) {
            topics.put(name, Uuid::from_u128(id), 1);
        }
        let due = DuePatterns::new(vec![".*".into(), "(".into()], &topics);
        let may_describe = |name: &str| name.starts_with('a');
        let matched = due.matched(VisibleTopics::by(&may_describe));
        assert_eq!(matched.get(".*"), Some(&Ok(vec!["a".into(), "ab".into()])));
        assert!(matches!(matched.get("("), Some(Err(PatternFault::Invalid(_)))));
        assert_eq!((matched.get("a"), matched.version()), (None, 3));
    }
}
