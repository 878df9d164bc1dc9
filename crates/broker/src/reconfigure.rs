//! Putting a configuration into force that was changed while the broker runs.

use mainstem_config::BrokerConfig;

use crate::broker::Broker;

/// Event loops for a configuration: beyond the cores they would only take turns.
pub(crate) fn loops_for(config: &BrokerConfig) -> usize {
    let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    config.network.num_network_threads.min(cores)
}

/// Puts a configuration into force that was changed while the broker runs, as far as that is not read from
/// [`Broker::config`] at each use.
pub(crate) fn reconfigure(broker: &Broker, config: BrokerConfig) {
    if let Err(error) = broker.net.event_loops.resize(loops_for(&config)) {
        tracing::error!("num.network.threads: no further event loop can be started: {error}");
    }
    broker.net.event_loops.set_idle_poll(config.network.idle_poll);
    broker.net.connections.set_overrides(&config.network.max_connections_per_ip_overrides);
    broker.security.reconfigure(&config);
    let before = broker.config.replace(config);
    broker.security.scram_changed();
    if before.cordoned_log_dirs != broker.config().cordoned_log_dirs {
        // A change of the metadata cannot make another one: the thread of the directories does.
        broker.store.dir_alarm.ring();
    }
}
