//! How far a recovery is, and the way to break it off.

use crate::error::LogError;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// What the recoveries of a node's logs have read, for who waits for them; and their end, if that cannot be waited for.
///
/// Breaking off leaves what a kill at that moment would: the next start begins anew.
#[derive(Debug, Default)]
pub struct RecoveryWatch {
    bytes: AtomicU64,
    broken_off: AtomicBool,
}

impl RecoveryWatch {
    /// Has every recovery end as soon as it notices; logs that are opened later are not recovered.
    pub fn break_off(&self) {
        self.broken_off.store(true, Ordering::Release);
    }

    /// Whether recoveries are to end.
    pub fn is_broken_off(&self) -> bool {
        self.broken_off.load(Ordering::Acquire)
    }

    /// Bytes of batches that recoveries have walked over.
    pub fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    /// A recovery has walked over so many bytes.
    ///
    /// # Errors
    /// It is to end.
    pub(crate) fn walked(&self, bytes: u64) -> Result<(), LogError> {
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
        if self.is_broken_off() { Err(LogError::BrokenOff) } else { Ok(()) }
    }
}
