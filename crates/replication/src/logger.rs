//! What the Raft library logs, handed on to `tracing`.

use slog::{Drain, Level, Logger, Never, OwnedKVList, Record, o};

/// A logger for the Raft library. Its chatter of every election is for debugging alone.
pub(crate) fn logger() -> Logger {
    Logger::root(ToTracing, o!())
}

struct ToTracing;

impl Drain for ToTracing {
    type Ok = ();
    type Err = Never;

    fn log(&self, record: &Record<'_>, _: &OwnedKVList) -> Result<(), Never> {
        match record.level() {
            Level::Critical | Level::Error => tracing::error!(target: "raft", "{}", record.msg()),
            Level::Warning => tracing::warn!(target: "raft", "{}", record.msg()),
            Level::Info | Level::Debug => tracing::debug!(target: "raft", "{}", record.msg()),
            Level::Trace => tracing::trace!(target: "raft", "{}", record.msg()),
        }
        Ok(())
    }
}
