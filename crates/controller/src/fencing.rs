//! Fencing of nodes that send no heartbeats, and its end (KIP-631).

use mainstem_wire::messages::broker_registration_change_record::BrokerRegistrationChangeRecord;

use super::state_machine::{Decision, MetadataStateMachine};

/// The value in the record.
const FENCE: i8 = 1;
const UNFENCE: i8 = -1;

impl MetadataStateMachine {
    /// Fences or unfences a node. Nothing is decided if it is so already, or if the node registered again since `broker_epoch`.
    pub fn set_fenced(&mut self, node: i32, broker_epoch: i64, fenced: bool) -> Decision<()> {
        let broker = self.ahead().broker(node);
        let broker = broker.filter(|broker| broker.epoch == broker_epoch && broker.fenced != fenced);
        let change = broker.map(|broker| BrokerRegistrationChangeRecord {
            broker_id: broker.id,
            broker_epoch: broker.epoch,
            fenced: if fenced { FENCE } else { UNFENCE },
            ..BrokerRegistrationChangeRecord::default()
        });
        self.change_registration(change)
    }
}
