//! The state of an open queue that its appenders and tailers in this process share.

use std::path::PathBuf;
use std::sync::Arc;

use parking_lot::Mutex;

use crate::bell::Bell;
use crate::control::Control;
use crate::error::{QueueError, Result};
use crate::options::Options;
use crate::rules::Rules;

/// The state that appenders and tailers keep alive.
#[derive(Debug)]
pub(crate) struct Inner {
    pub(crate) directory: PathBuf,
    pub(crate) control: Arc<Control>,
    pub(crate) rules: Rules,
    pub(crate) options: Options,
    /// The turn of the one that syncs.
    pub(crate) syncing: Mutex<()>,
    pub(crate) bell: Bell,
}

impl Inner {
    pub(crate) fn check_writable(&self) -> Result<()> {
        match self.control.is_writable {
            true => Ok(()),
            false => Err(QueueError::ReadOnly { path: self.directory.clone() }),
        }
    }
}
