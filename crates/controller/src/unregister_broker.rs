//! UnregisterBroker (64), v0: removes a node that will not return (KIP-631).

use mainstem_wire::ErrorCode;
use mainstem_wire::messages::unregister_broker_record::UnregisterBrokerRecord;
use mainstem_wire::metadata_frame::MetadataRecord;

use super::controllers::ControllersFixed;
use super::error::ApiError;
use super::image::{NO_BROKER_EPOCH, TopicImage};
use super::node_view::NodeView;
use super::state_machine::{Decision, MetadataStateMachine};

impl MetadataStateMachine {
    /// Removes a node, also from the group of the metadata log. The running one is not removed: Kafka does that, and then serves nothing until
    /// it is started again. Nor is a voter, which would stay in the metadata quorum and keep its replicas.
    pub fn unregister_broker(&mut self, view: &NodeView, id: i32) -> Decision<Result<(), ApiError>> {
        match self.unregistration(view, id) {
            Ok(record) => self.decide(vec![record], Ok(())),
            Err(refused) => self.decide(vec![], Err(refused)),
        }
    }

    /// The record that removes a node. One that has joined and was never registered has no broker epoch.
    fn unregistration(&self, view: &NodeView, id: i32) -> Result<MetadataRecord<'static>, ApiError> {
        let invalid = |message| ApiError::new(ErrorCode::INVALID_REQUEST, message);
        let (broker, controller) = (self.ahead().broker(id), self.ahead().controller(id));
        if broker.is_none() && controller.is_none() {
            let message = format!("Broker ID {id} is not currently registered");
            return Err(ApiError::new(ErrorCode::BROKER_ID_NOT_REGISTERED, message));
        }
        let is_running = broker.is_some_and(|broker| view.has_several_nodes() && !broker.fenced);
        if id == view.node_id() || is_running {
            return Err(invalid(format!("Broker {id} is running: stop it before it is unregistered.")));
        }
        self.check_votes_not(view, id).map_err(invalid)?;
        if controller.is_some() {
            self.check_has_no_replicas(id).map_err(invalid)?;
        }
        if controller.is_some() && self.ahead().controllers_version() == u32::MAX {
            return Err(invalid(ControllersFixed::UsedUp.to_string()));
        }
        Ok(MetadataRecord::UnregisterBrokerRecord(Box::new(UnregisterBrokerRecord {
            broker_id: id,
            broker_epoch: broker.map_or(NO_BROKER_EPOCH, |broker| broker.epoch),
            ..UnregisterBrokerRecord::default()
        })))
    }

    /// Checks that a node that leaves the cluster takes no replicas with it: nothing would bring them back.
    fn check_has_no_replicas(&self, id: i32) -> Result<(), String> {
        let names = |topic: &TopicImage| {
            let partitions = (0..).zip(&topic.partitions).filter(|(_, known)| known.replicas.contains(&id));
            partitions.map(|(index, _): (i32, _)| format!("{}-{index}", topic.name)).collect::<Vec<_>>()
        };
        let mut partitions = self.ahead().topics().flat_map(names);
        match partitions.next() {
            Some(first) => Err(format!(
                "Broker {id} has replicas, {} in all, such as that of {first}: move them to other nodes first (kafka-reassign-partitions).",
                1 + partitions.count()
            )),
            None => Ok(()),
        }
    }

    /// Checks that a node has no vote about the metadata. Until the metadata name the voters, they are those of the configuration.
    fn check_votes_not(&self, view: &NodeView, id: i32) -> Result<(), String> {
        let is_named = self.ahead().controllers_version() > 0;
        let votes = self.ahead().controller(id).is_some_and(|controller| controller.votes);
        match votes || (!is_named && view.has_voter(id)) {
            true => Err(format!(
                "Broker {id} is a voter: it would stay in the metadata quorum and keep its replicas, and voters cannot be changed in this \
                 release. Start it again."
            )),
            false => Ok(()),
        }
    }
}
