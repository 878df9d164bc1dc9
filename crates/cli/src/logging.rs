//! The log of the broker, and its filter, which clients can change while the broker runs.

mod sink;

use std::backtrace::{Backtrace, BacktraceStatus};
use std::borrow::Cow;
use std::io::{self, IsTerminal, stderr};
use std::os::fd::AsFd;
use std::panic::PanicHookInfo;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use mainstem_broker::Loggers;
use mainstem_broker::config::loggers::{LogLevel, LoggerLevels};
use mainstem_terminal::{shown, shown_json};
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::reload;
use tracing_subscriber::util::SubscriberInitExt;

use self::sink::Sink;

/// The environment variable with the levels at start: a level, or `TARGET=LEVEL` pairs separated by commas, or both.
pub(crate) const VARIABLE: &str = "MAINSTEM_LOG";

/// The longest wait at the end of the process for a reader of the last lines.
const LAST_LINES_TIME: Duration = Duration::from_secs(1);

/// The sink of this process, once it logs.
static SINK: OnceLock<Arc<Sink>> = OnceLock::new();

/// Lines of `tracing` on their way to the sink, each in one write.
struct Lines {
    sink: Option<Arc<Sink>>,
    form: Form,
}

/// The form in which `tracing` writes lines.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Form {
    Text,
    /// Text with sequences of its own that choose colours.
    Coloured,
    Json,
}

impl io::Write for Lines {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        let whole = one_line(line, self.form);
        match &self.sink {
            Some(sink) => sink.write(&whole),
            None => stderr().write_all(&whole)?,
        }
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Makes one line of each event that controls no terminal, whatever names of clients are in it. `tracing` escapes
/// some control characters in text, and none beyond ASCII in JSON. A JSON line keeps its value.
fn one_line(line: &[u8], form: Form) -> Cow<'_, [u8]> {
    let text = String::from_utf8_lossy(line.strip_suffix(b"\n").unwrap_or(line));
    let shown = match form {
        Form::Text => shown(&text),
        Form::Coloured => shown_coloured(&text),
        Form::Json => shown_json(&text),
    };
    if shown.as_bytes() == line.strip_suffix(b"\n").unwrap_or_default() {
        return Cow::Borrowed(line);
    }
    Cow::Owned(format!("{shown}\n").into_bytes())
}

/// The sequences that `tracing` writes behind an ESC to begin and end colours. Any other could do harm: hide text, or set a title.
const COLOURS: [&str; 9] = ["[0m", "[1m", "[2m", "[3m", "[31m", "[32m", "[33m", "[34m", "[35m"];

/// Escapes an ESC of a coloured line that begins none of these sequences: a name of a client may have one.
fn shown_coloured(text: &str) -> Cow<'_, str> {
    let mut parts = text.split('\u{1b}');
    let mut out = shown(parts.next().unwrap_or_default()).into_owned();
    for part in parts {
        match COLOURS.iter().any(|colour| part.starts_with(colour)) {
            true => out.push('\u{1b}'),
            false => out.push_str(&shown("\u{1b}")),
        }
        out.push_str(&shown(part));
    }
    Cow::Owned(out)
}

/// Writes a line to stderr, behind what is logged.
pub(crate) fn last_words(line: &str) {
    match SINK.get() {
        Some(sink) => sink.write(format!("{line}\n").as_bytes()),
        None => eprintln!("{line}"),
    }
}

/// Waits a moment for a reader of the log, before the process ends.
pub(crate) fn finish() {
    if let Some(sink) = SINK.get() {
        sink.drain(LAST_LINES_TIME);
    }
}

/// Logs a panic like any other event, without waiting.
fn log_panic(info: &PanicHookInfo<'_>) {
    let thread = std::thread::current();
    let backtrace = Backtrace::capture();
    let backtrace = (backtrace.status() == BacktraceStatus::Captured).then(|| backtrace.to_string());
    let info = info.to_string().replace('\n', " ");
    tracing::error!(backtrace, "thread {:?} {info}", thread.name().unwrap_or("without a name"));
}

/// Begins to log, at the levels of the environment. No event waits for a reader.
pub(crate) fn to_stderr(json: bool) -> Loggers {
    let descriptor = stderr().as_fd().try_clone_to_owned();
    // Without a free descriptor, lines are written directly.
    let sink = descriptor.and_then(|descriptor| Sink::new(descriptor, json)).ok();
    if let Some(sink) = &sink {
        // A process has one log.
        let _ = SINK.set(sink.clone());
    }
    let lost = sink.clone();
    let wanted = std::env::var(VARIABLE).ok();
    let parsed = wanted.as_deref().map(parse);
    let targets = match &parsed {
        Some(Ok(targets)) => targets.clone(),
        _ => Targets::new().with_default(LevelFilter::INFO),
    };
    let (filter, handle) = reload::Layer::new(targets.clone());
    let registry = tracing_subscriber::registry().with(filter);
    // Colours are for a terminal, unless NO_COLOR is set. A collector of lines gets none.
    let is_coloured =
        stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
    let form = match (json, is_coloured) {
        (true, _) => Form::Json,
        (false, true) => Form::Coloured,
        (false, false) => Form::Text,
    };
    let writer = move || Lines { sink: sink.clone(), form };
    let lines = tracing_subscriber::fmt::layer().with_writer(writer).with_ansi(is_coloured);
    if json {
        registry.with(lines.json()).init()
    } else {
        registry.with(lines).init()
    }
    std::panic::set_hook(Box::new(log_panic));
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
    .with_lines_lost(move || lost.as_ref().map_or(0, |sink| sink.lost()))
}

/// Parses levels. A single word must be a level: as a target it would silence all others.
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

/// The level of a filter. No event is logged as fatal, so that OFF is FATAL.
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
    fn what_is_logged_at_once_is_one_line() {
        for (logged, line) in
            [("a\n", "a\n"), ("a\nb: forged\n", "a\\nb: forged\n"), ("a\r\n", "a\\r\n"), ("a\n\n", "a\\n\n")]
        {
            for form in [Form::Text, Form::Coloured] {
                assert_eq!(one_line(logged.as_bytes(), form), line.as_bytes(), "{logged:?}");
            }
        }
    }

    /// The line of an event with a name in its text, in a field of text and in one that is shown.
    fn logged(name: &str, form: Form) -> String {
        #[derive(Clone, Default)]
        struct Captured(Arc<parking_lot::Mutex<Vec<u8>>>, Option<Form>);

        impl io::Write for Captured {
            fn write(&mut self, line: &[u8]) -> io::Result<usize> {
                self.0.lock().extend_from_slice(&one_line(line, self.1.expect("a form is given")));
                Ok(line.len())
            }

            fn flush(&mut self) -> io::Result<()> {
                Ok(())
            }
        }

        let captured = Captured(Arc::default(), Some(form));
        let writer = captured.clone();
        let layer = tracing_subscriber::fmt::layer()
            .with_writer(move || writer.clone())
            .with_ansi(form == Form::Coloured);
        let say = || tracing::warn!(text = name, shown = %name, "named {name}");
        match form {
            Form::Json => {
                tracing::subscriber::with_default(tracing_subscriber::registry().with(layer.json()), say)
            }
            _ => tracing::subscriber::with_default(tracing_subscriber::registry().with(layer), say),
        }
        String::from_utf8(captured.0.lock().clone()).expect("a line is text")
    }

    #[test]
    fn no_name_in_a_line_controls_a_terminal() {
        let names = ["a\u{1b}[2Jb", "a\nb", "a\rb", "a\u{9b}31mb", "a\u{202e}b", "a\u{200b}b", "a\u{7f}b"];
        for (name, form) in names
            .into_iter()
            .flat_map(|name| [Form::Text, Form::Coloured, Form::Json].map(|form| (name, form)))
        {
            let line = logged(name, form);
            let text = line.strip_suffix('\n').expect("it is a line");
            let is_own = |letter| form == Form::Coloured && letter == '\u{1b}';
            assert!(
                !text.contains(|letter| mainstem_lines::is_hidden(letter) && !is_own(letter)),
                "{line:?}"
            );
            assert!(!text.contains("\u{1b}[2J"), "{line:?}");
            if form == Form::Json {
                let value: serde_json::Value = serde_json::from_str(text).expect("it is JSON");
                assert_eq!(
                    (&value["fields"]["text"], &value["fields"]["shown"]),
                    (&name.into(), &name.into())
                );
            }
        }
    }

    #[test]
    fn a_word_that_is_no_level_silences_nothing() {
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
