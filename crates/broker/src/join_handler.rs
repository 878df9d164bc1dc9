//! Nodes that join the cluster by this one: it passes their requests to the metadata leader.

use std::sync::{Arc, Weak};

use mainstem_controller::ControllerJoin;
use mainstem_wire::{ErrorCode, Uuid};

use crate::broker::Broker;
use crate::founding::{Founding, JoinAnswer, JoinHandler, JoinRequest, NodeAddress};

/// The requests to join of a node that is one of several.
pub(crate) struct BrokerJoins(Weak<Broker>);

impl BrokerJoins {
    /// Uses this broker without keeping it alive.
    pub(crate) fn of(broker: &Arc<Broker>) -> Arc<dyn JoinHandler> {
        Arc::new(BrokerJoins(Arc::downgrade(broker)))
    }

    fn decide(&self, request: &JoinRequest) -> Result<JoinAnswer, ErrorCode> {
        let broker = self.0.upgrade().ok_or(ErrorCode::NOT_CONTROLLER)?;
        let cluster = broker.cluster.as_ref().ok_or(ErrorCode::NOT_CONTROLLER)?;
        if request.cluster_id != broker.local.cluster_id {
            return Ok(JoinAnswer::Refused(format!("this is cluster {}", broker.local.cluster_id)));
        }
        let Ok(directory) = request.directory.parse::<Uuid>() else {
            return Ok(JoinAnswer::Refused(format!("{} is no id of a directory", request.directory)));
        };
        let join = ControllerJoin {
            node: request.node,
            host: request.host.clone(),
            port: request.port,
            security_protocol: request.security_protocol,
            directory,
            levels: request.levels,
        };
        let incarnation = match cluster.let_join(&join, request.known_as)? {
            Ok(incarnation) => incarnation,
            Err(refused) => return Ok(JoinAnswer::Refused(refused)),
        };
        let metadata = broker.store.dirs.metadata();
        let record = Founding::read(&**metadata.storage(), metadata.path());
        let founding = record.ok().flatten().ok_or(ErrorCode::KAFKA_STORAGE_ERROR)?;
        // This node knows what the leader has decided.
        let nodes = cluster.nodes().iter().map(NodeAddress::of).collect();
        let level = broker.controller.image().mainstem_version();
        Ok(JoinAnswer::Joined { incarnation, level, founding: Founding { joined: None, ..founding }, nodes })
    }
}

impl JoinHandler for BrokerJoins {
    fn join(&self, request: &JoinRequest) -> JoinAnswer {
        self.decide(request).unwrap_or_else(|error| {
            JoinAnswer::NotNow(format!("the metadata leader has not let the node join: {error}"))
        })
    }
}
