//! Log lines that peers cause, bounded since a peer may connect and be refused any number of times.

use std::fmt;
use std::time::Instant;

use mainstem_lines::{Line, LineBudget};

const LINES_PER_SECOND: u32 = 20;

/// One budget for all lines that the peers of a publisher cause.
#[derive(Debug)]
pub(crate) struct PeerLines(LineBudget);

impl PeerLines {
    pub(crate) fn new() -> PeerLines {
        PeerLines(LineBudget::new(LINES_PER_SECOND))
    }

    /// Logs a refusal or a fault.
    pub(crate) fn warn(&self, line: fmt::Arguments<'_>) {
        if self.may_write() {
            tracing::warn!("{line}");
        }
    }

    /// Logs an ordinary event.
    pub(crate) fn info(&self, line: fmt::Arguments<'_>) {
        if self.may_write() {
            tracing::info!("{line}");
        }
    }

    fn may_write(&self) -> bool {
        let Line::Write { left_out } = self.0.next(Instant::now()) else { return false };
        if left_out > 0 {
            tracing::warn!("{left_out} lines about requests and connections of peers were left out");
        }
        true
    }
}
