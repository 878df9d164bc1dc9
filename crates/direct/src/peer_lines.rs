//! Lines of the log that instances cause, who come and are refused as often as they like.

use std::fmt;
use std::time::Instant;

use mainstem_lines::{Line, LineBudget};

const LINES_PER_SECOND: u32 = 20;

/// One budget for all that peers of a publisher cause.
#[derive(Debug)]
pub(crate) struct PeerLines(LineBudget);

impl PeerLines {
    pub(crate) fn new() -> PeerLines {
        PeerLines(LineBudget::new(LINES_PER_SECOND))
    }

    /// Says that something was refused, or was wrong.
    pub(crate) fn warn(&self, line: fmt::Arguments<'_>) {
        if self.may_write() {
            tracing::warn!("{line}");
        }
    }

    /// Says what is as it should be.
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
