//! Progress of recoveries, and the way to break them off.

use crate::error::LogError;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Progress of the recoveries of a node's logs, for callers that wait for them or break them off.
///
/// Breaking off leaves the same as a kill at that moment: the next start begins again.
#[derive(Debug, Default)]
pub struct RecoveryWatch {
    bytes: AtomicU64,
    broken_off: AtomicBool,
}

impl RecoveryWatch {
    /// Ends every recovery as soon as it notices. Logs that are opened later are not recovered.
    pub fn break_off(&self) {
        self.broken_off.store(true, Ordering::Release);
    }

    /// Returns true if recoveries have to end.
    pub fn is_broken_off(&self) -> bool {
        self.broken_off.load(Ordering::Acquire)
    }

    /// Bytes of batches that recoveries have walked over.
    pub fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Counts bytes that a recovery has walked over.
    ///
    /// # Errors
    /// If recoveries have to end.
    pub(crate) fn walked(&self, bytes: u64) -> Result<(), LogError> {
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
        if self.is_broken_off() { Err(LogError::BrokenOff) } else { Ok(()) }
    }
}
