//! Listeners, event loops and connections: bytes of the network in, whole requests to `api/`, responses out.
//!
//! Architecture invariant: nothing here knows a partition or a coordinator.

pub(crate) mod answers;
pub(crate) mod authentication;
pub(crate) mod buffers;
pub(crate) mod connection;
pub(crate) mod context;
pub(crate) mod dispatch;
pub(crate) mod door;
pub(crate) mod event_loop;
pub(crate) mod http;
pub(crate) mod input;
pub(crate) mod listener;
pub(crate) mod output;
pub(crate) mod respond;
pub(crate) mod transport;
