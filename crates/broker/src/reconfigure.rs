//! Applies a configuration that was changed while the broker runs.

use std::collections::BTreeMap;

use mainstem_config::{BrokerConfig, Voter};
use mainstem_node::local::Host;

use crate::broker::Broker;
use crate::founding;

/// The number of event loops for a configuration: more loops than processors would only take turns.
pub(crate) fn loops_for(config: &BrokerConfig) -> usize {
    let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    config.network.num_network_threads.min(cores)
}

impl Host for Broker {
    /// Applies all that is not read from [`Broker::config`] at each use.
    fn reconfigure(&self, config: BrokerConfig) {
        if let Err(error) = self.net.event_loops.resize(loops_for(&config)) {
            tracing::error!("num.network.threads: no further event loop can be started: {error}");
        }
        self.net.event_loops.set_idle_poll(config.network.idle_poll);
        self.net.connections.set_overrides(&config.network.max_connections_per_ip_overrides);
        self.security.reconfigure(&config);
        let before = self.config.replace(config);
        self.security.scram_changed();
        if before.cordoned_log_dirs != self.config().cordoned_log_dirs {
            // A change of the metadata cannot make another one, so that the directories' thread does it.
            self.store.dir_alarm.ring();
        }
    }

    fn credentials_changed(&self) {
        self.security.scram_changed();
    }

    fn subscription_changed(&self, name: &str, values: &BTreeMap<String, String>) {
        self.telemetry.subscribe(name, values);
    }

    fn nodes_changed(&self, nodes: &[Voter]) {
        let metadata = self.store.dirs.metadata();
        if let Err(error) = founding::note_nodes(&**metadata.storage(), metadata.path(), nodes) {
            tracing::error!("{error}; the next start looks for the nodes that were known before");
        }
    }
}
