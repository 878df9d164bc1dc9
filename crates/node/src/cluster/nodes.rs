//! The nodes of the cluster, and how each is reached: first those that have founded it, and those that the metadata name from when others
//! have joined.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use mainstem_config::Voter;
use mainstem_controller::features::MAINSTEM_VERSION;
use mainstem_controller::{ControllerJoin, FirstController};
use mainstem_wire::{ErrorCode, Uuid};
use parking_lot::{Mutex, RwLock};

use super::Cluster;
use super::calls::{Answer, Ask, JoinNote};
use mainstem_links::Peer;

/// The nodes of the cluster.
#[derive(Debug)]
pub(super) struct Nodes {
    /// Those that have founded it; none where this node has joined later.
    first: Vec<FirstController>,
    /// All of them, by id, as they are known.
    current: RwLock<Arc<[Voter]>>,
    /// Links to some of them could not be made.
    are_unlinked: AtomicBool,
    /// Held while links are set.
    linking: Mutex<()>,
}

impl Nodes {
    pub(super) fn new(first: Vec<FirstController>, known: Vec<Voter>) -> Nodes {
        Nodes {
            first,
            current: RwLock::new(known.into()),
            are_unlinked: AtomicBool::new(false),
            linking: Mutex::new(()),
        }
    }

    /// Sets the nodes that the metadata name. Those that were known stay beside them with `keeps`, and those that have founded the cluster
    /// stay where this node's configuration has them. Returns them if they are others.
    fn follow(&self, named: Vec<Voter>, keeps: bool) -> Option<Arc<[Voter]>> {
        let mut current = self.current.write();
        let mut nodes: BTreeMap<i32, Voter> = BTreeMap::new();
        if keeps {
            nodes.extend(current.iter().map(|node| (node.id, node.clone())));
        }
        nodes.extend(named.into_iter().map(|node| (node.id, node)));
        for first in &self.first {
            if let Some(node) = nodes.get_mut(&first.node) {
                (node.host, node.port) = (first.host.clone(), first.port);
            }
        }
        let nodes: Arc<[Voter]> = nodes.into_values().collect();
        if *current == nodes {
            return None;
        }
        *current = nodes.clone();
        Some(nodes)
    }
}

impl Cluster {
    /// All nodes, this one included, in ascending order of their ids.
    pub fn nodes(&self) -> Arc<[Voter]> {
        self.nodes.current.read().clone()
    }

    /// The ids of all nodes, ascending.
    pub(crate) fn node_ids(&self) -> Vec<i32> {
        self.nodes().iter().map(|node| node.id).collect()
    }

    /// The node of an id.
    pub(crate) fn node(&self, id: i32) -> Option<Voter> {
        self.nodes().iter().find(|node| node.id == id).cloned()
    }

    /// The nodes that vote about the metadata, ascending. Those that are known, where this node does not know who votes.
    pub fn voters(&self) -> Vec<i32> {
        let members = self.controller.log().configuration();
        let mut voters: Vec<_> =
            members.iter().flat_map(|members| &members.voters).map(|replica| replica.node()).collect();
        if voters.is_empty() {
            voters = self.node_ids();
        }
        voters.sort_unstable();
        voters
    }

    /// The nodes that follow the metadata and do not vote, ascending, as the leader of the metadata knows them.
    pub fn observers(&self) -> Vec<i32> {
        let members = self.controller.log().configuration();
        let learners = members.iter().flat_map(|members| &members.learners);
        let mut observers: Vec<_> = learners.map(|replica| replica.node()).collect();
        observers.sort_unstable();
        observers
    }

    /// The directory that has a node's metadata log.
    pub fn directory(&self, node: i32) -> Option<Uuid> {
        let named = self.controller.image().controller(node).map(|known| known.directory);
        let first = || self.nodes.first.iter().find(|first| first.node == node).map(|first| first.directory);
        named.or_else(first)
    }

    /// Follows the nodes that the metadata name: links to them, and notes them for the next start. Nodes that are not named go when this
    /// node is registered: its metadata may be old before that.
    pub(super) fn follow_nodes(&self) {
        let image = self.controller.image();
        if image.controllers_version() == 0 {
            return;
        }
        let voter = |(id, known): (i32, &mainstem_controller::ControllerImage)| Voter {
            id,
            host: known.host.clone(),
            port: known.port,
        };
        let named = image.controllers().map(voter).collect();
        drop(image);
        let is_registered = self.registered.lock().is_some();
        let Some(nodes) = self.nodes.follow(named, !is_registered) else { return };
        self.link_nodes();
        if let Some(host) = self.local.host() {
            host.nodes_changed(&nodes);
        }
    }

    fn link_nodes(&self) {
        // The last one that looks sets what is known last.
        let _turn = self.nodes.linking.lock();
        let peer = |node: &Voter| Peer { node: node.id, host: node.host.clone(), port: node.port };
        if let Err(error) = self.links.set_peers(self.nodes().iter().map(peer).collect()) {
            self.nodes.are_unlinked.store(true, Ordering::Relaxed);
            tracing::error!("no thread can be made for a link to a new node, to be tried again: {error}");
        }
    }

    /// Links to nodes again to which it could not be done before.
    pub(super) fn retry_links(&self) {
        if self.nodes.are_unlinked.swap(false, Ordering::Relaxed) {
            self.link_nodes();
        }
    }

    /// Has the metadata note where this node is now, which has founded the cluster: other nodes find it there.
    pub(super) fn note_own_address(self: &Arc<Self>) {
        let Some(first) = self.nodes.first.iter().find(|first| first.node == self.own) else { return };
        let known =
            self.controller.image().controller(self.own).map(|known| (known.host.clone(), known.port));
        if known.is_none_or(|known| known == (first.host.clone(), first.port)) {
            return;
        }
        let join = ControllerJoin {
            node: first.node,
            host: first.host.clone(),
            port: first.port,
            security_protocol: first.security_protocol,
            directory: first.directory,
            levels: (MAINSTEM_VERSION.min, MAINSTEM_VERSION.max),
        };
        self.report(Ask::Join(JoinNote::of(&join, None)));
    }

    /// Has a node join the cluster, which has a replica of this incarnation of the metadata log already or none: the metadata leader decides. Returns the incarnation of its replica of the metadata log, or why it
    /// does not join, for a person.
    ///
    /// # Errors
    /// NOT_CONTROLLER where there is no metadata leader for too long, or its error.
    pub fn let_join(
        &self,
        join: &ControllerJoin,
        known_as: Option<u32>,
    ) -> Result<Result<u32, String>, ErrorCode> {
        match self.ask_leader(&Ask::Join(JoinNote::of(join, known_as)))? {
            Answer::Joined(joined) => Ok(joined),
            _ => Err(ErrorCode::UNKNOWN_SERVER_ERROR),
        }
    }

    /// Decides that a node joins, as the metadata leader.
    pub(super) fn join_controller(&self, note: &JoinNote) -> Result<Answer, ErrorCode> {
        let (join, view) = (note.join(), self.controller.view());
        let known_as = self.controller.image().controller(join.node).map(|known| known.incarnation);
        if note.known_as.is_some() && note.known_as != known_as {
            let node = join.node;
            return Ok(Answer::Joined(Err(format!(
                "node {node} was unregistered after it had joined, or has had another disk since: begin with empty log directories"
            ))));
        }
        let joined =
            self.controller.commit(|machine| machine.join_controller(view, &join, &self.nodes.first))?;
        if let Ok(incarnation) = joined {
            tracing::info!(
                node = join.node,
                incarnation,
                "the node joins the cluster, at {}:{}",
                join.host,
                join.port
            );
        }
        Ok(Answer::Joined(joined.map_err(|refused| refused.to_string())))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_are_those_that_the_metadata_name_and_before_that_also_those_that_were_known() {
        let node = |id: i32, port: u16| Voter { id, host: "h".into(), port };
        let nodes = Nodes::new(Vec::new(), vec![node(1, 1), node(2, 2)]);
        let ids = |nodes: &Option<Arc<[Voter]>>| {
            nodes.as_ref().map(|nodes| nodes.iter().map(|node| (node.id, node.port)).collect::<Vec<_>>())
        };
        let followed = nodes.follow(vec![node(3, 3), node(2, 7)], true);
        assert_eq!(ids(&followed), Some(vec![(1, 1), (2, 7), (3, 3)]));
        assert_eq!(nodes.follow(vec![node(3, 3)], true), None, "they are known");
        let followed = nodes.follow(vec![node(3, 3), node(2, 7)], false);
        assert_eq!(ids(&followed), Some(vec![(2, 7), (3, 3)]));
        // The configuration of this node says where those are that have founded the cluster.
        let first = FirstController {
            node: 2,
            host: "h".into(),
            port: 9,
            security_protocol: 0,
            directory: Uuid::from_u128(7),
        };
        let nodes = Nodes::new(vec![first], vec![node(2, 9)]);
        let followed = nodes.follow(vec![node(3, 3), node(2, 7)], false);
        assert_eq!(ids(&followed), Some(vec![(2, 9), (3, 3)]));
    }
}
