//! The metadata of a node and the other nodes of its cluster: what is decided, by which node, and what follows from it for the partitions and
//! coordinators here.
//!
//! In layers, each of which knows those before it: [`local::Local`] is a node by itself; [`controller::Controller`] has the metadata, and
//! carries out their changes; [`cluster::Cluster`] follows roles, members and leaders; [`node::Node`] has a change decided
//! wherever that is done, and writes markers in partitions of any node.
//!
//! Architecture invariant: no connection and no API is known here. What a change of the metadata asks of listeners, users and telemetry goes to
//! a [`local::Host`].

#![cfg_attr(test, allow(clippy::disallowed_methods, reason = "tests wait in the time of the machine"))]

pub mod answers;
pub mod assembly;
pub mod client_view;
pub mod cluster;
pub mod controller;
pub mod coordinators;
pub mod current_leader;
pub mod local;
pub mod markers;
pub mod node;
pub mod verification;
mod work;
