//! The store of a partition's records: a log alone, or the replica of a group with its log.

use std::ops::{Deref, DerefMut};

use mainstem_log::Log;

use super::replicated::Member;

/// A log, alone or replicated. What makes no difference between the two sees the log.
#[expect(clippy::large_enum_variant, reason = "a log alone is reached without a detour")]
pub(super) enum Stored {
    /// The only replica there is: it leads always, and what is appended is committed.
    Alone(Log),
    /// One of several, which decide together.
    Replicated(Box<Member>),
}

impl Stored {
    /// The log, which is out of service then.
    pub(super) fn into_log(self) -> Log {
        match self {
            Stored::Alone(log) => log,
            Stored::Replicated(member) => member.into_log(),
        }
    }
}

impl Deref for Stored {
    type Target = Log;

    fn deref(&self) -> &Log {
        match self {
            Stored::Alone(log) => log,
            Stored::Replicated(member) => member.replica.log(),
        }
    }
}

impl DerefMut for Stored {
    fn deref_mut(&mut self) -> &mut Log {
        match self {
            Stored::Alone(log) => log,
            Stored::Replicated(member) => member.replica.log_mut(),
        }
    }
}
