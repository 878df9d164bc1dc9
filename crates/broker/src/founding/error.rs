//! Reasons for which nodes do not become a cluster.

use std::path::PathBuf;

/// The reason why nodes do not become a cluster.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FoundingError {
    /// Two processes with the same id.
    #[error(
        "node.id={node} is running already: another process with it answers at {address}; give this one another node.id, or \
         stop the other one. If this node's own address in controller.quorum.voters is wrong, correct it on every node"
    )]
    SameId {
        /// The id.
        node: i32,
        /// The address of the other one.
        address: String,
    },
    /// Another node is at an address.
    #[error(
        "node {found} answers at {address}, where controller.quorum.voters has node {expected}; correct the list, the same on \
         every node, or node.id there"
    )]
    OtherNode {
        /// The address.
        address: String,
        /// The node that answers.
        found: i32,
        /// The node that should.
        expected: i32,
    },
    /// Two nodes have other lists.
    #[error(
        "node {node} has the nodes {theirs:?} in controller.quorum.voters, and this node {own:?}; name the same ones on every \
         node, then start again"
    )]
    VotersDisagree {
        /// The other one.
        node: i32,
        /// Its list.
        theirs: Vec<i32>,
        /// This node's.
        own: Vec<i32>,
    },
    /// Directories of another cluster.
    #[error(
        "the directories of this node are of cluster {own}, and node {node} is of cluster {theirs}; correct log.dirs on the \
         one that has the wrong directories, or move those away"
    )]
    OtherCluster {
        /// The other node.
        node: i32,
        /// Its cluster.
        theirs: String,
        /// This node's cluster.
        own: String,
    },
    /// The node's directory is not the one that it had.
    #[error(
        "cluster {cluster_id} knows node {node} by another directory than this: its disk was lost, or log.dirs is wrong. \
         Mount the disk with that directory; a node that has founded the cluster does not get another metadata log in this release"
    )]
    LostDirectory {
        /// The cluster.
        cluster_id: String,
        /// This node.
        node: i32,
    },
    /// The cluster does not take the node.
    #[error("cluster {cluster_id} does not let this node join: {why}")]
    NotJoined {
        /// The cluster.
        cluster_id: String,
        /// Why not, and what to do.
        why: String,
    },
    /// The cluster was founded with other nodes.
    #[error(
        "cluster {cluster_id} was founded by the nodes {founded:?}, and controller.quorum.voters names {configured:?}; name \
         those: a node that comes later finds the cluster by controller.quorum.bootstrap.servers"
    )]
    OtherVoters {
        /// The cluster.
        cluster_id: String,
        /// Its nodes.
        founded: Vec<i32>,
        /// The configuration's.
        configured: Vec<i32>,
    },
    /// The directory has the metadata of one node.
    #[error(
        "log directory {} has the metadata of a node that was a cluster of its own: such a node does not become one of \
         several in this release; start it without other nodes in controller.quorum.voters, or begin with empty directories",
        path.display()
    )]
    OneNode {
        /// The directory.
        path: PathBuf,
    },
    /// The directory is of a cluster of several nodes.
    #[error(
        "log directory {} is of cluster {cluster_id}, which has the nodes {voters:?}; name them in controller.quorum.voters",
        path.display()
    )]
    Several {
        /// The directory.
        path: PathBuf,
        /// The cluster.
        cluster_id: String,
        /// Its nodes.
        voters: Vec<i32>,
    },
    /// The file that says who founded the cluster.
    #[error("{} cannot be used: {why}; put it back from a backup, or from another node that has founded the cluster, where it is the same", path.display())]
    File {
        /// Which.
        path: PathBuf,
        /// Why.
        why: String,
    },
    /// It was asked to stop.
    #[error("the start was broken off")]
    BrokenOff,
}
