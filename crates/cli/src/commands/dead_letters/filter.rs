//! Filters of letters by their content.

use clap::Args;
use mainstem_flow::letter;

use super::letters::Letter;
use crate::timestamp;

/// Filters that a letter must pass, all of them; without any, all letters pass.
#[derive(Debug, Args)]
pub(crate) struct Filter {
    /// Only letters of this class of error.
    #[arg(long, value_name = "CLASS", value_parser = ["failed", "poison"])]
    class: Option<String>,
    /// Only letters whose cause contains this text.
    #[arg(long, value_name = "TEXT")]
    cause: Option<String>,
    /// Only letters with this key.
    #[arg(long, value_name = "KEY")]
    key: Option<String>,
    /// Only letters that were set aside at or after a time such as 2026-11-21T22:00:00Z; UTC unless it says otherwise.
    #[arg(long, value_name = "TIME", value_parser = timestamp::argument)]
    since: Option<i64>,
    /// Only letters that were set aside before a time.
    #[arg(long, value_name = "TIME", value_parser = timestamp::argument)]
    until: Option<i64>,
}

impl Filter {
    /// Returns true for a letter that passes.
    pub(crate) fn passes(&self, letter: &Letter) -> bool {
        let Filter { class, cause, key, since, until } = self;
        let set_aside_ms = letter.record.timestamp_ms;
        let has_cause = |text: &str| {
            let says = |name| letter.text(name).is_some_and(|cause| cause.contains(text));
            says(letter::CAUSE) || says(letter::MESSAGE)
        };
        class.as_deref().is_none_or(|class| letter.text(letter::CLASS) == Some(class))
            && cause.as_deref().is_none_or(has_cause)
            && key.as_deref().is_none_or(|key| letter.record.key.as_deref() == Some(key.as_bytes()))
            && since.is_none_or(|since| set_aside_ms >= since)
            && until.is_none_or(|until| set_aside_ms < until)
    }
}
