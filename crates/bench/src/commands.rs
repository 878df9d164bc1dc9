//! The commands of `mainstem-bench`, one file each.

pub(crate) mod bounds;
pub(crate) mod direct;
pub(crate) mod handlers;
pub(crate) mod list;
pub(crate) mod probe;
pub(crate) mod profile;
pub(crate) mod report;
pub(crate) mod run;
pub(crate) mod settings;
pub(crate) mod side;
