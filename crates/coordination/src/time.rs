//! The time as a state machine sees it: two readings that the driver took together.
//!
//! The monotonic clock drives every time-out; the wall clock only stamps records and expires offsets. A state machine never
//! compares one with the other, so a wall clock that jumps fires nothing.

/// The time of an input, by both clocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Now {
    /// Milliseconds of a clock that never goes backwards, from any fixed origin (for example the process's start).
    pub mono_ms: u64,
    /// Milliseconds since 1970-01-01T00:00:00Z by the host's wall clock; may jump in both directions.
    pub wall_ms: i64,
}
