//! The broker as the node behind the gate between nodes.

use std::sync::{Arc, Weak};

use mainstem_controller::MetadataImage;
use mainstem_security::Secret;

use crate::broker::Broker;
use mainstem_links::GateNode;
use mainstem_listener_security::decoy_secret;

/// The metadata, the configuration and the counters of a broker.
pub(crate) struct AskBroker(Weak<Broker>);

impl AskBroker {
    /// Uses this broker without keeping it alive.
    pub(crate) fn of(broker: &Arc<Broker>) -> Arc<dyn GateNode> {
        Arc::new(AskBroker(Arc::downgrade(broker)))
    }
}

impl GateNode for AskBroker {
    fn metadata(&self) -> Option<Arc<MetadataImage>> {
        self.0.upgrade().map(|broker| broker.controller.image())
    }

    fn decoy_secret(&self) -> Option<Secret> {
        self.0.upgrade().and_then(|broker| decoy_secret(&broker.config()))
    }

    fn authenticated(&self, listener: &str, succeeded: bool) {
        let Some(broker) = self.0.upgrade() else { return };
        let counts = broker.net.counters.authentications.of(listener);
        match succeeded {
            true => counts.succeeded(false),
            false => counts.failed(false),
        }
    }
}
