//! What the broker logs, and the filter behind it, which clients can change while it runs.

use std::io::{IsTerminal, stderr};

use mainstem_broker::Loggers;
use mainstem_broker::config::loggers::{LogLevel, LoggerLevels};
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::reload;
use tracing_subscriber::util::SubscriberInitExt;

/// The environment variable with the levels at start: a level, or `TARGET=LEVEL` pairs separated by commas, or both.
pub(crate) const VARIABLE: &str = "MAINSTEM_LOG";

/// Begins to log, as the environment wants it.
pub(crate) fn to_stderr(json: bool) -> Loggers {
    let wanted = std::env::var(VARIABLE).ok();
    let parsed = wanted.as_deref().map(parse);
    let targets = match &parsed {
        Some(Ok(targets)) => targets.clone(),
        _ => Targets::new().with_default(LevelFilter::INFO),
    };
    let (filter, handle) = reload::Layer::new(targets.clone());
    let registry = tracing_subscriber::registry().with(filter);
    // Colours are for who looks, unless NO_COLOR is set; what collects lines wants the lines.
    let is_coloured =
        stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
    let lines = tracing_subscriber::fmt::layer().with_writer(stderr).with_ansi(is_coloured);
    if json {
        registry.with(lines.json()).init()
    } else {
        registry.with(lines).init()
    }
    if let Some(Err(error)) = parsed {
        tracing::warn!(
            "{VARIABLE} is ignored: {error}; set it to a level such as debug, or to mainstem_log=debug,info"
        );
    }
    Loggers::new(levels(&targets), move |levels| {
        if let Err(error) = handle.reload(targets_of(levels)) {
            tracing::error!("the levels of loggers cannot be changed: {error}");
        }
    })
}

/// Levels as they are typed. A word alone has to be a level: as a target it would leave all others silent.
fn parse(text: &str) -> Result<Targets, String> {
    let mut words = text.split(',').map(str::trim).filter(|part| !part.contains('='));
    match words.find(|word| word.parse::<LevelFilter>().is_err()) {
        Some(word) => Err(format!("{word:?} is no level")),
        None => text.parse().map_err(|error| format!("{error}")),
    }
}

fn levels(targets: &Targets) -> LoggerLevels {
    let own = targets.iter().map(|(name, filter)| (name.to_owned(), level(filter)));
    LoggerLevels::new(targets.default_level().map_or(LogLevel::Fatal, level), own.collect())
}

fn targets_of(levels: &LoggerLevels) -> Targets {
    let own = levels.own().map(|(name, level)| (name.to_owned(), filter(level)));
    Targets::new().with_default(filter(levels.root())).with_targets(own)
}

/// Nothing is logged as fatal here, so that the two are one.
fn level(filter: LevelFilter) -> LogLevel {
    match filter {
        LevelFilter::OFF => LogLevel::Fatal,
        LevelFilter::ERROR => LogLevel::Error,
        LevelFilter::WARN => LogLevel::Warn,
        LevelFilter::INFO => LogLevel::Info,
        LevelFilter::DEBUG => LogLevel::Debug,
        _ => LogLevel::Trace,
    }
}

fn filter(level: LogLevel) -> LevelFilter {
    match level {
        LogLevel::Fatal => LevelFilter::OFF,
        LogLevel::Error => LevelFilter::ERROR,
        LogLevel::Warn => LevelFilter::WARN,
        LogLevel::Info => LevelFilter::INFO,
        LogLevel::Debug => LevelFilter::DEBUG,
        LogLevel::Trace => LevelFilter::TRACE,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_that_is_no_level_silences_nobody() {
        for text in ["warning", "verbose", "info,mainstem_log", "mainstem_log=loud"] {
            assert!(parse(text).is_err(), "{text}");
        }
        for text in ["warn", "INFO", "info, mainstem_log=debug"] {
            assert!(parse(text).is_ok(), "{text}");
        }
    }

    #[test]
    fn levels_and_filters_say_the_same() {
        for text in ["debug", "off", "warn,mainstem_log=trace,hyper=off", "mainstem_broker::controller=debug"]
        {
            let targets: Targets = text.parse().expect("the test's text is a filter");
            let again = targets_of(&levels(&targets));
            let of = |targets: &Targets| {
                let mut own: Vec<_> = targets.iter().map(|(name, level)| (name.to_owned(), level)).collect();
                own.sort();
                (targets.default_level().unwrap_or(LevelFilter::OFF), own)
            };
            assert_eq!(of(&again), of(&targets), "{text}");
        }
    }
}
