//! The HTTP interface for operators: metrics in the text format of Prometheus ([`Exposition`]), and the health of the process.
//!
//! [`serve`] answers at a listener by a [`Service`]: the broker's (`/metrics`, `/health`, over TLS if that is configured),
//! or that of an application of handlers (`/metrics`, `/live`, `/ready`).
//!
//! Architecture invariant: it knows nothing of what is served, and depends on nothing of ours.

mod exposition;
mod server;

pub use exposition::{Exposition, Kind};
pub use server::{Service, serve, text};
