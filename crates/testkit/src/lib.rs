//! Pieces that tests of several crates share.
//!
//! Architecture invariant: only tests, automation and the benchmark depend on this crate, and it depends on nothing of ours.

pub mod child;
mod depth;
mod document;
mod figures;
pub mod java;
mod logged;
mod ports;
mod random;
mod seed;

pub use depth::cases;
pub use document::document_part;
pub use figures::figure;
pub use logged::Logged;
pub use ports::port;
pub use random::Random;
pub use seed::seed;
