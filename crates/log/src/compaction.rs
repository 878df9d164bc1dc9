//! Compaction: the last record of each key stays, and tombstones stay for a while.
//!
//! The decisions are pure: [`offset_map`] (bounded; many rounds if the keys do not fit), [`rules`] and [`transactions`]
//! (what stays), [`range`], [`grouping`] and [`choice`] (what is compacted, into what, and when). The driver reads closed
//! segments and writes new ones ([`cleaner`]) without the log's lock, and swaps them in ([`swap`]) in steps. A crash may
//! follow each step: the next start finds the old segments or the new ones, never a mixture.

mod choice;
mod cleaner;
mod copy;
mod grouping;
mod key_hash;
mod offset_map;
mod output;
mod range;
mod reader;
mod round;
mod rules;
mod swap;
mod transactions;
mod view;

pub use choice::{Candidate, Choice, choose};
pub use cleaner::{CleanError, Cleaned, Cleaner, CleanerOptions, LogAccess, Pace, Task, note_recovery_point};
pub use range::Dirty;
pub(crate) use swap::{path_in, renamed};
pub use view::CompactionView;

#[cfg(test)]
mod tests;
