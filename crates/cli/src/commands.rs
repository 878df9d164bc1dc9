//! One file per command: its arguments, its work, its output.

pub(crate) mod acl;
pub(crate) mod cluster;
pub(crate) mod completions;
pub(crate) mod config;
pub(crate) mod consume;
pub(crate) mod dead_letters;
pub(crate) mod direct;
pub(crate) mod group;
pub(crate) mod log;
pub(crate) mod man;
pub(crate) mod produce;
pub(crate) mod profile;
pub(crate) mod queue;
pub(crate) mod quota;
pub(crate) mod security;
pub(crate) mod simulate;
pub(crate) mod start;
pub(crate) mod topic;
pub(crate) mod transaction;
pub(crate) mod user;
