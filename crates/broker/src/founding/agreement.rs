//! The rule by which nodes agree: the next step of a node, given its own and the others' statements. It knows neither sockets nor files.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::record::lowest_mainstem_version;
use super::{Founding, FoundingError};

/// The stage of a node on its way into a cluster.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Stage {
    /// Its directories have no cluster's id.
    Empty,
    /// They have one, and no cluster was founded as far as it knows.
    Named { cluster_id: String, directory: String },
    /// It is one of the nodes of a cluster.
    Founded(Founding),
}

/// The statement of a node about itself.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Statement {
    /// Its id.
    pub(crate) node: i32,
    /// The id of this start, which distinguishes two processes with the same node id.
    pub(crate) start: String,
    /// The ids of the cluster's nodes in its configuration.
    pub(crate) voters: Vec<i32>,
    /// Its stage.
    #[serde(rename = "standing")]
    pub(crate) stage: Stage,
    /// The highest level of `mainstem.version` at which it can work. Mainstem 0.1 names none, which is the lowest.
    #[serde(default = "lowest_mainstem_version")]
    pub(crate) mainstem_version: i16,
}

/// The next step of a node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Step {
    /// It waits for these nodes.
    Wait { missing: Vec<i32> },
    /// It makes the cluster's id.
    MakeId,
    /// It takes on this cluster's id.
    Take(String),
    /// It writes this founding and begins.
    Write(Founding),
}

/// Decides the next step of a node. `others` has the statements of those that answered.
///
/// # Errors
/// When they cannot become one cluster.
pub(super) fn next(own: &Statement, others: &BTreeMap<i32, Statement>) -> Result<Step, FoundingError> {
    let cluster_of = |statement: &Statement| match &statement.stage {
        Stage::Empty => None,
        Stage::Named { cluster_id, .. } => Some(cluster_id.clone()),
        Stage::Founded(founding) => Some(founding.cluster_id.clone()),
    };
    let own_cluster = cluster_of(own);
    for (node, other) in others {
        if other.voters != own.voters {
            let (theirs, own) = (other.voters.clone(), own.voters.clone());
            return Err(FoundingError::VotersDisagree { node: *node, theirs, own });
        }
        if let (Some(own), Some(theirs)) = (&own_cluster, cluster_of(other))
            && *own != theirs
        {
            return Err(FoundingError::OtherCluster { node: *node, theirs, own: own.clone() });
        }
    }
    let missing: Vec<i32> =
        own.voters.iter().copied().filter(|id| *id != own.node && !others.contains_key(id)).collect();
    let founded = others.values().find_map(|other| match &other.stage {
        Stage::Founded(founding) => Some(founding),
        _ => None,
    });
    let is_lowest = own.voters.first() == Some(&own.node);
    match (&own.stage, founded) {
        (Stage::Founded(founding), _) => Ok(Step::Write(founding.clone())),
        (Stage::Named { directory, .. }, Some(founding))
            if founding.voters.get(&own.node) == Some(directory) =>
        {
            Ok(Step::Write(founding.clone()))
        }
        (_, Some(founding)) => {
            Err(FoundingError::LostDirectory { cluster_id: founding.cluster_id.clone(), node: own.node })
        }
        (Stage::Empty, None) => match others.values().find_map(cluster_of) {
            Some(cluster_id) => Ok(Step::Take(cluster_id)),
            None if missing.is_empty() && is_lowest => Ok(Step::MakeId),
            None => Ok(Step::Wait { missing }),
        },
        (Stage::Named { cluster_id, .. }, None) => {
            let directories = others.values().chain([own]).filter_map(|statement| match &statement.stage {
                Stage::Named { directory, .. } => Some((statement.node, directory.clone())),
                _ => None,
            });
            let voters: BTreeMap<i32, String> = directories.collect();
            // All nodes can work at the lowest of their highest levels.
            let levels = others.values().chain([own]).map(|statement| statement.mainstem_version);
            let mainstem_version = levels.min().unwrap_or(own.mainstem_version);
            let cluster_id = cluster_id.clone();
            match is_lowest && voters.len() == own.voters.len() {
                true => Ok(Step::Write(Founding {
                    cluster_id,
                    voters,
                    mainstem_version,
                    joined: None,
                    nodes: Vec::new(),
                })),
                false => Ok(Step::Wait { missing }),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn statement(node: i32, stage: Stage) -> Statement {
        let (start, voters) = (format!("start {node}"), vec![1, 2, 3]);
        Statement { node, start, voters, stage, mainstem_version: 2 }
    }

    fn named(node: i32) -> Stage {
        Stage::Named { cluster_id: "c".into(), directory: format!("d{node}") }
    }

    fn founded() -> Founding {
        let voters = [1, 2, 3].map(|node| (node, format!("d{node}")));
        Founding {
            cluster_id: "c".into(),
            voters: voters.into(),
            mainstem_version: 2,
            joined: None,
            nodes: Vec::new(),
        }
    }

    fn step(own: Statement, others: &[Statement]) -> Result<Step, FoundingError> {
        next(&own, &others.iter().map(|other| (other.node, other.clone())).collect())
    }

    #[test]
    fn the_lowest_makes_the_id_when_all_are_there_and_empty() {
        let empty = |node| statement(node, Stage::Empty);
        assert_eq!(step(empty(1), &[empty(2)]), Ok(Step::Wait { missing: vec![3] }));
        assert_eq!(step(empty(1), &[empty(2), empty(3)]), Ok(Step::MakeId));
        assert_eq!(step(empty(2), &[empty(1), empty(3)]), Ok(Step::Wait { missing: vec![] }));
        let one = statement(1, named(1));
        assert_eq!(step(empty(2), std::slice::from_ref(&one)), Ok(Step::Take("c".into())));
        assert_eq!(step(one.clone(), &[empty(2), empty(3)]), Ok(Step::Wait { missing: vec![] }));
        let two = statement(2, named(2));
        assert_eq!(step(one.clone(), &[two.clone(), empty(3)]), Ok(Step::Wait { missing: vec![] }));
        let three = statement(3, named(3));
        assert_eq!(step(one.clone(), &[two.clone(), three.clone()]), Ok(Step::Write(founded())));
        assert_eq!(
            step(two.clone(), &[one, three]),
            Ok(Step::Wait { missing: vec![] }),
            "the lowest does that"
        );
        let one = statement(1, Stage::Founded(founded()));
        assert_eq!(step(two, &[one]), Ok(Step::Write(founded())), "one that has founded is enough");
    }

    #[test]
    fn a_cluster_begins_at_a_level_that_all_nodes_know() {
        let of_0_1 = r#"{"node":3,"start":"start 3","voters":[1,2,3],
            "standing":{"Named":{"cluster_id":"c","directory":"d3"}}}"#;
        let three: Statement = serde_json::from_str(of_0_1).expect("a statement of Mainstem 0.1");
        assert_eq!(three.mainstem_version, 1);
        let step = step(statement(1, named(1)), &[statement(2, named(2)), three]);
        assert_eq!(step, Ok(Step::Write(Founding { mainstem_version: 1, ..founded() })));
        let file = r#"{"cluster_id":"c","voters":{"1":"d1","2":"d2","3":"d3"}}"#;
        let of_0_1: Founding = serde_json::from_str(file).expect("a file of Mainstem 0.1");
        assert_eq!(of_0_1, Founding { mainstem_version: 1, ..founded() });
    }

    #[test]
    fn what_does_not_fit_is_said() {
        let founded = statement(1, Stage::Founded(founded()));
        let wiped = step(statement(2, Stage::Empty), std::slice::from_ref(&founded));
        assert!(matches!(wiped, Err(FoundingError::LostDirectory { node: 2, .. })), "{wiped:?}");
        let mut other = statement(2, Stage::Empty);
        other.voters = vec![1, 2];
        let disagree = step(other, std::slice::from_ref(&founded));
        assert!(matches!(disagree, Err(FoundingError::VotersDisagree { node: 1, .. })), "{disagree:?}");
        let foreign = Stage::Named { cluster_id: "other".into(), directory: "d2".into() };
        let foreign = step(statement(2, foreign), &[founded]);
        assert!(matches!(foreign, Err(FoundingError::OtherCluster { node: 1, .. })), "{foreign:?}");
    }
}
