//! What operators ask a process over HTTP: its metrics, in the text format of Prometheus ([`Exposition`]), and how it is.
//!
//! [`serve`] answers at a listener as a [`Service`] says: the broker's (`/metrics`, `/health`, over TLS where that is asked for),
//! or that of an application of handlers (`/metrics`, `/live`, `/ready`).
//!
//! Architecture invariant: it knows nothing of what is served, and depends on nothing of ours.

mod exposition;
mod server;

pub use exposition::{Exposition, Kind};
pub use server::{Service, serve, text};
