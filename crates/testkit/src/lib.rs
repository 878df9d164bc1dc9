//! Pieces that tests of several crates share.
//!
//! Architecture invariant: only tests and automation depend on this crate, and it depends on nothing of ours.

mod depth;
mod ports;

pub use depth::cases;
pub use ports::port;
