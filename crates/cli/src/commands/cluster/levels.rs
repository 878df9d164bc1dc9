//! Levels of `mainstem.version`: that of the cluster, and those at which each node can work.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::time::Duration;

use futures_util::future::join_all;
use mainstem_client::{Admin, Feature};

/// The feature of Mainstem's clusters that says what their nodes write.
pub(super) const MAINSTEM_VERSION: &str = "mainstem.version";
/// The level of nodes that do not name the feature: those of Mainstem 0.1.
const FIRST: RangeInclusive<i16> = 1..=1;
/// The time that a node has to answer.
const ANSWER_TIME: Duration = Duration::from_secs(2);

/// The levels of a cluster.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(super) struct Levels {
    /// The level at which the cluster works; none where no node of it names the feature.
    pub(super) current: Option<i16>,
    /// The levels of each node that has answered.
    pub(super) nodes: BTreeMap<i32, RangeInclusive<i16>>,
    /// Nodes that have not answered, and why.
    pub(super) silent: BTreeMap<i32, String>,
}

/// The features that a node has named, or why it has not.
type Answer = Result<BTreeMap<String, Feature>, String>;

impl Levels {
    /// Asks nodes for theirs.
    pub(super) async fn ask(admin: &Admin, nodes: impl Iterator<Item = i32>) -> Levels {
        let ask = async |node| {
            let answer = tokio::time::timeout(ANSWER_TIME, admin.features_of(node)).await;
            let late = |_| Err(format!("no answer within {} s", ANSWER_TIME.as_secs()));
            (node, answer.map_or_else(late, |features| features.map_err(|error| error.to_string())))
        };
        Levels::of(join_all(nodes.map(ask)).await.into_iter().collect())
    }

    fn of(answers: BTreeMap<i32, Answer>) -> Levels {
        let mut levels = Levels::default();
        for (node, features) in answers {
            let features = match features {
                Ok(features) => features,
                Err(why) => {
                    levels.silent.insert(node, why);
                    continue;
                }
            };
            let feature = features.get(MAINSTEM_VERSION);
            // A node that lags behind knows of a lower one.
            levels.current = levels.current.max(feature.map(|feature| feature.level));
            levels.nodes.insert(node, feature.map_or(FIRST, |feature| feature.supported.clone()));
        }
        levels
    }

    /// The highest level at which all nodes can work that have answered, if it is higher than that of the cluster.
    pub(super) fn higher(&self) -> Option<i16> {
        let common = self.nodes.values().map(|range| *range.end()).min()?;
        self.current.filter(|current| common > *current).map(|_| common)
    }

    /// The nodes that cannot work at the highest level that any of them knows.
    pub(super) fn behind(&self) -> Vec<i32> {
        let Some(highest) = self.nodes.values().map(|range| *range.end()).max() else { return Vec::new() };
        let behind = self.nodes.iter().filter(|(_, range)| *range.end() < highest);
        behind.map(|(node, _)| *node).collect()
    }

    /// The nodes that have not answered, and why, for a person.
    pub(super) fn shown_silent(&self) -> String {
        let silent = self.silent.iter().map(|(node, why)| format!("node {node} ({why})"));
        silent.collect::<Vec<_>>().join(", ")
    }

    /// The levels of a node, as they are shown; none where no node of the cluster names the feature.
    pub(super) fn shown(&self, node: i32) -> Option<String> {
        self.current?;
        let range = self.nodes.get(&node);
        Some(range.map_or_else(|| "-".to_owned(), |range| format!("{}-{}", range.start(), range.end())))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(highest: Option<i16>, level: i16) -> Answer {
        let feature = highest.map(|highest| Feature { supported: 1..=highest, level });
        Ok(feature.into_iter().map(|feature| (MAINSTEM_VERSION.to_owned(), feature)).collect())
    }

    #[test]
    fn the_next_level_is_one_that_every_node_knows() {
        let check = |answers: [Answer; 3], higher, behind: &[i32], shown: [&str; 3]| {
            let levels = Levels::of((1..).zip(answers).collect());
            assert_eq!((levels.higher(), levels.behind().as_slice()), (higher, behind), "{levels:?}");
            assert_eq!([1, 2, 3].map(|node| levels.shown(node).unwrap_or_default()), shown);
        };
        check([node(Some(2), 1), node(Some(2), 1), node(Some(2), 1)], Some(2), &[], ["1-2"; 3]);
        check([node(Some(2), 1), node(None, 0), node(Some(2), 1)], None, &[2], ["1-2", "1-1", "1-2"]);
        check([node(Some(3), 2), node(Some(3), 1), node(Some(2), 1)], None, &[3], ["1-3", "1-3", "1-2"]);
        let silent = || Err("refused".to_owned());
        check([node(Some(2), 2), silent(), node(Some(2), 2)], None, &[], ["1-2", "-", "1-2"]);
        let levels = Levels::of((1..).zip([silent(), node(Some(2), 1)]).collect());
        assert_eq!((levels.higher(), levels.shown_silent()), (Some(2), "node 1 (refused)".to_owned()));
        check([node(None, 0), node(None, 0), node(None, 0)], None, &[], [""; 3]);
    }
}
