//! Applications in a test: topics in memory, and time that passes when the test says so.

#[cfg(feature = "testing")]
mod app;
#[cfg_attr(not(feature = "testing"), allow(dead_code, reason = "a partition by itself has no source"))]
pub(crate) mod memory;
mod partition;

#[cfg(feature = "testing")]
pub use app::TestApp;
pub use partition::TestPartition;
