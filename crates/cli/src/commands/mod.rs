//! The commands, one file each: parse, call, print.

pub(crate) mod start;
