//! The machine that log directories are on.

use std::sync::Arc;

use mainstem_log::boot::boot_id;
use mainstem_log::storage::{RealStorage, Storage};

/// Another machine than this one, as far as logs know it: a simulated one.
#[derive(Debug, Clone)]
pub struct Machine {
    /// Its file system.
    pub storage: Arc<dyn Storage>,
    /// The id of its start: the page cache has not survived where a directory was written under another one.
    pub boot_id: String,
}

impl Default for Machine {
    fn default() -> Self {
        Machine { storage: Arc::new(RealStorage), boot_id: boot_id() }
    }
}
