//! The checks, one file each.

pub(crate) mod admin;
mod api_versions;
pub(crate) mod attached;
pub(crate) mod cluster;
mod consumer_groups;
pub(crate) mod consumer_protocol;
pub(crate) mod dump;
pub(crate) mod errors;
pub(crate) mod group;
mod log_dirs;
pub(crate) mod quotas;
pub(crate) mod restart;
pub(crate) mod security;
pub(crate) mod tools;
pub(crate) mod transactions;
pub(crate) mod transfer;
