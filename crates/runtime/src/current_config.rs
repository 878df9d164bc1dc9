//! The configuration in force.

use std::sync::Arc;

use mainstem_config::BrokerConfig;
use parking_lot::RwLock;

/// The configuration in force, with what was set while the broker runs.
pub struct CurrentConfig(RwLock<Arc<BrokerConfig>>);

impl CurrentConfig {
    /// That of a start.
    pub fn new(config: BrokerConfig) -> CurrentConfig {
        CurrentConfig(RwLock::new(Arc::new(config)))
    }

    /// The configuration now.
    pub fn get(&self) -> Arc<BrokerConfig> {
        self.0.read().clone()
    }

    /// Puts another one into force, and returns the one before.
    pub fn replace(&self, config: BrokerConfig) -> Arc<BrokerConfig> {
        std::mem::replace(&mut *self.0.write(), Arc::new(config))
    }
}
