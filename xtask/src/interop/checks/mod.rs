//! The checks, one file each.

pub(crate) mod admin;
pub(crate) mod dump;
pub(crate) mod group;
pub(crate) mod restart;
pub(crate) mod tools;
pub(crate) mod transfer;
