//! Brokerless publish/subscribe: services stream events to each other over gRPC, straight from the publisher's own log.

mod credit;
mod error;
mod filter;
mod handover;
pub mod proto;
mod resume;
mod sequence;
mod slices;

pub use credit::*;
pub use error::*;
pub use filter::*;
pub use handover::*;
pub use resume::*;
pub use sequence::*;
pub use slices::*;
