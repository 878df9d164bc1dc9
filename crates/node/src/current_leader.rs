//! KIP-951: an answer that refuses because another node leads names that node, and where it is reached.

use std::collections::BTreeSet;

use mainstem_wire::{ErrorCode, Uuid};

use crate::client_view::{Endpoint, nodes};
use crate::node::Node;
use mainstem_requests::context::RequestContext;
use mainstem_store::partition::Partition;

/// Address at which a client reaches a leader.
pub struct LeaderEndpoint {
    /// The node.
    pub node: i32,
    /// Name or address.
    pub host: String,
    /// Port.
    pub port: i32,
    /// Its rack.
    pub rack: Option<String>,
}

/// Leaders that one answer names.
pub struct CurrentLeaders<'a> {
    node: &'a Node,
    context: &'a RequestContext,
    named: BTreeSet<i32>,
}

impl<'a> CurrentLeaders<'a> {
    /// Those of an answer to this request. `None` without other nodes.
    pub fn begin(node: &'a Node, context: &'a RequestContext) -> Option<Self> {
        node.cluster.is_some().then(|| CurrentLeaders { node, context, named: BTreeSet::new() })
    }

    /// Node and epoch of the leader of a partition that was refused with this error, if the error is that another node
    /// leads, and it is known which.
    pub fn name(
        &mut self,
        error: ErrorCode,
        topic: Uuid,
        index: i32,
        partition: &Partition,
    ) -> Option<(i32, i32)> {
        if !matches!(error, ErrorCode::NOT_LEADER_OR_FOLLOWER | ErrorCode::FENCED_LEADER_EPOCH) {
            return None;
        }
        let cluster = self.node.cluster.as_ref()?;
        let leader = cluster.leader_of_partition(topic, index, partition)?;
        self.named.insert(leader.node);
        Some((leader.node, leader.epoch.get()))
    }

    /// Returns the addresses of the leaders that were named.
    pub fn endpoints(self) -> Vec<LeaderEndpoint> {
        if self.named.is_empty() {
            return Vec::new();
        }
        let image = self.node.controller.image();
        let named =
            nodes(&self.node.local, self.context, &image).filter(|node| self.named.contains(&node.id));
        let endpoint = |node: Endpoint<'_>| LeaderEndpoint {
            node: node.id,
            host: node.host.to_owned(),
            port: node.port,
            rack: node.rack.map(str::to_owned),
        };
        named.map(endpoint).collect()
    }
}
