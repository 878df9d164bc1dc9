//! The record of a cluster's founding, in a file of each of its nodes.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;

use mainstem_config::Voter;
use mainstem_controller::features::MAINSTEM_VERSION;
use mainstem_log::storage::{RealStorage, Storage, read_small_file, replace_file};
use mainstem_wire::Uuid;
use serde::{Deserialize, Serialize};

use super::agreement::Statement;
use super::{BYTES_MAX, FoundingError};

/// The name of its file, beside `meta.properties` in the directory with the metadata log.
pub(super) const FILE: &str = "mainstem.cluster";

/// A node as the others reach it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct NodeAddress {
    /// Its id.
    pub(crate) id: i32,
    /// The host of its listener for controllers.
    pub(crate) host: String,
    /// The port there.
    pub(crate) port: u16,
}

/// The place of a node that has joined a cluster later.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Joined {
    /// The id of the directory that has its metadata log.
    pub(crate) directory: String,
    /// The incarnation of its replica of the metadata log.
    pub(crate) incarnation: u32,
    /// The level of `mainstem.version` then.
    pub(crate) level: i16,
}

/// The first nodes of a cluster. Each of them writes this once, and again when the nodes of the cluster change.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Founding {
    /// The cluster's id.
    pub(crate) cluster_id: String,
    /// Its nodes, by id, with the id of the directory that has their metadata log.
    pub(crate) voters: BTreeMap<i32, String>,
    /// The level of `mainstem.version` at which it begins. Mainstem 0.1 names none, which is the lowest.
    #[serde(default = "lowest_mainstem_version")]
    pub(crate) mainstem_version: i16,
    /// This node's place, if it has joined later.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) joined: Option<Joined>,
    /// All nodes, as the metadata have named them last; none before others than the first ones have come.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) nodes: Vec<NodeAddress>,
}

/// The level of nodes that name none.
pub(super) fn lowest_mainstem_version() -> i16 {
    MAINSTEM_VERSION.min
}

impl Founding {
    /// Reads the record of a directory, if there is one.
    ///
    /// # Errors
    /// When it cannot be read.
    pub(crate) fn read(storage: &dyn Storage, dir: &Path) -> Result<Option<Founding>, FoundingError> {
        let path = dir.join(FILE);
        let failed = |why: String| FoundingError::File { path: path.clone(), why };
        match read_small_file(storage, &path, BYTES_MAX) {
            Ok(bytes) => serde_json::from_slice(&bytes).map(Some).map_err(|error| failed(error.to_string())),
            // The opening of the directory reports one that is no directory.
            Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
                Ok(None)
            }
            Err(error) => Err(failed(error.to_string())),
        }
    }

    /// The ids of the directories that have the nodes' metadata logs, by node.
    pub(crate) fn directories(&self) -> BTreeMap<i32, Uuid> {
        let parsed =
            self.voters.iter().filter_map(|(node, directory)| Some((*node, directory.parse().ok()?)));
        parsed.collect()
    }

    /// Writes it durably.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub(crate) fn write(&self, dir: &Path) -> Result<(), FoundingError> {
        let path = dir.join(FILE);
        let text = serde_json::to_vec(self).expect("ids are text");
        replace_file(&RealStorage, &path, &text)
            .map_err(|error| FoundingError::File { path, why: error.to_string() })
    }

    /// Checks that this is the record of a node that has joined with this directory.
    ///
    /// # Errors
    /// When it is the record of a node that has founded the cluster, or of another directory.
    pub(super) fn check_joined(&self, dir: &Path, node: i32, directory: &str) -> Result<(), FoundingError> {
        let cluster_id = self.cluster_id.clone();
        match &self.joined {
            Some(joined) if joined.directory == directory => Ok(()),
            Some(_) => Err(FoundingError::LostDirectory { cluster_id, node }),
            // It finds the others by controller.quorum.voters.
            None => {
                let voters = self.voters.keys().copied().collect();
                Err(FoundingError::Several { path: dir.to_owned(), cluster_id, voters })
            }
        }
    }

    /// Checks that the node belongs to it, with this directory.
    ///
    /// # Errors
    /// When it is not.
    pub(super) fn check(&self, own: &Statement, directory: &str) -> Result<(), FoundingError> {
        let founded: Vec<i32> = self.voters.keys().copied().collect();
        let cluster_id = self.cluster_id.clone();
        if founded != own.voters {
            return Err(FoundingError::OtherVoters { cluster_id, founded, configured: own.voters.clone() });
        }
        match self.voters.get(&own.node).is_some_and(|known| known == directory) {
            true => Ok(()),
            false => Err(FoundingError::LostDirectory { cluster_id, node: own.node }),
        }
    }
}

/// Notes the nodes of the cluster in the record of a directory, durably.
///
/// # Errors
/// When the record cannot be read or written.
pub(crate) fn note_nodes(storage: &dyn Storage, dir: &Path, nodes: &[Voter]) -> Result<(), FoundingError> {
    let Some(mut founding) = Founding::read(storage, dir)? else { return Ok(()) };
    let nodes: Vec<_> = nodes.iter().map(NodeAddress::of).collect();
    if founding.nodes == nodes {
        return Ok(());
    }
    founding.nodes = nodes;
    founding.write(dir)
}

/// Checks that a directory that is started without other nodes does not belong to a cluster.
///
/// # Errors
/// When it is.
pub(crate) fn check_alone(dir: &Path) -> Result<(), FoundingError> {
    match Founding::read(&RealStorage, dir)? {
        None => Ok(()),
        Some(Founding { cluster_id, voters, .. }) => Err(FoundingError::Several {
            path: dir.to_owned(),
            cluster_id,
            voters: voters.into_keys().collect(),
        }),
    }
}
