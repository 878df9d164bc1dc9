//! The Raft library's log, handed on to `tracing`.

use slog::{Drain, Logger, Never, OwnedKVList, Record, o};
use tracing::Level;

/// The library's sentence for each leader that gets nothing from a majority: [`crate::Setback::LostMajority`] says it of all at once.
const LOST_MAJORITY: &str = "stepped down to follower since quorum is not active";

/// A logger for the Raft library. Its chatter of every election is for debugging alone.
pub(crate) fn logger() -> Logger {
    Logger::root(ToTracing, o!())
}

struct ToTracing;

impl Drain for ToTracing {
    type Ok = ();
    type Err = Never;

    fn log(&self, record: &Record<'_>, _: &OwnedKVList) -> Result<(), Never> {
        match level_of(record) {
            Level::ERROR => tracing::error!(target: "raft", "{}", record.msg()),
            Level::WARN => tracing::warn!(target: "raft", "{}", record.msg()),
            Level::TRACE => tracing::trace!(target: "raft", "{}", record.msg()),
            _ => tracing::debug!(target: "raft", "{}", record.msg()),
        }
        Ok(())
    }
}

fn level_of(record: &Record<'_>) -> Level {
    match record.level() {
        slog::Level::Critical | slog::Level::Error => Level::ERROR,
        slog::Level::Warning if record.msg().to_string() == LOST_MAJORITY => Level::DEBUG,
        slog::Level::Warning => Level::WARN,
        slog::Level::Info | slog::Level::Debug => Level::DEBUG,
        slog::Level::Trace => Level::TRACE,
    }
}

#[cfg(test)]
mod tests {
    use slog::{b, record};

    use super::*;

    #[test]
    fn what_is_said_of_all_leaders_at_once_is_not_said_of_each() {
        let warning =
            |text: &str| level_of(&record!(slog::Level::Warning, "", &format_args!("{text}"), b!()));
        assert_eq!(warning("stepped down to follower since quorum is not active"), Level::DEBUG);
        assert_eq!(warning("something else"), Level::WARN);
    }
}
