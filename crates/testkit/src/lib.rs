//! Pieces that tests of several crates share.
//!
//! Architecture invariant: only tests, automation and the benchmark depend on this crate, and it depends on nothing of ours.

mod depth;
mod document;
mod figures;
pub mod java;
mod ports;
mod seed;

pub use depth::cases;
pub use document::document_part;
pub use figures::figure;
pub use ports::port;
pub use seed::seed;
