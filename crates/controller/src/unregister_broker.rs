//! UnregisterBroker (64), v0: removes a node that will not return (KIP-631).

use mainstem_wire::ErrorCode;
use mainstem_wire::messages::unregister_broker_record::UnregisterBrokerRecord;
use mainstem_wire::metadata_frame::MetadataRecord;

use super::error::ApiError;
use super::node_view::NodeView;
use super::state_machine::{Decision, MetadataStateMachine};

impl MetadataStateMachine {
    /// Removes a node. The running one is not removed: Kafka does that, and then serves nothing until it is started again. Nor is a voter,
    /// which would stay in the metadata quorum and keep its replicas.
    pub fn unregister_broker(&mut self, view: &NodeView, id: i32) -> Decision<Result<(), ApiError>> {
        let Some(broker) = self.ahead().broker(id) else {
            let message = format!("Broker ID {id} is not currently registered");
            return self.decide(vec![], Err(ApiError::new(ErrorCode::BROKER_ID_NOT_REGISTERED, message)));
        };
        if id == view.node_id() || (view.has_several_nodes() && !broker.fenced) {
            let message = format!("Broker {id} is running: stop it before it is unregistered.");
            return self.decide(vec![], Err(ApiError::new(ErrorCode::INVALID_REQUEST, message)));
        }
        if view.has_voter(id) {
            let message = format!(
                "Broker {id} is a voter in controller.quorum.voters: it would stay in the metadata quorum and keep its replicas, \
                 and voters cannot be changed in this release. Start it again."
            );
            return self.decide(vec![], Err(ApiError::new(ErrorCode::INVALID_REQUEST, message)));
        }
        let record = UnregisterBrokerRecord {
            broker_id: id,
            broker_epoch: broker.epoch,
            ..UnregisterBrokerRecord::default()
        };
        self.decide(vec![MetadataRecord::UnregisterBrokerRecord(Box::new(record))], Ok(()))
    }
}
