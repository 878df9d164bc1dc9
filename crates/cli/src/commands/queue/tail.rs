//! `mainstem queue tail`.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Result, bail};
use clap::Args;
use mainstem_queue::{Options, Queue, QueueError, Record, Start as Place, Tailer, Wait};

use crate::commands::consume::{Format, Printer, Start};
use crate::commands::produce::HeaderArgument;
use crate::interrupt::Interrupt;

/// The interval at which a command that waits for messages checks for signals.
const LOOK_FOR_SIGNALS: Duration = Duration::from_millis(200);

/// Arguments of `queue tail`.
#[derive(Debug, Args)]
#[command(after_help = "\
Without --follow the command ends when it has printed the last message. A named tailer resumes where it ended; printed
messages count as done. A message has to pass all filters; --max counts messages that pass.")]
pub(crate) struct Tail {
    /// Directory of the queue.
    dir: PathBuf,
    /// The first message: beginning, end, an offset, -N for N messages before the end, a time as
    /// 2026-11-21T22:00:00Z, or @MS for milliseconds since 1970. [default: beginning; with --named where it ended]
    #[arg(long, short, value_name = "WHERE", allow_hyphen_values = true)]
    from: Option<Start>,
    /// Read as the tailer of this name, which keeps its position in the queue's directory.
    #[arg(long, value_name = "NAME")]
    named: Option<String>,
    /// Wait for further messages.
    #[arg(long, short = 'F')]
    follow: bool,
    /// End after so many messages.
    #[arg(long, short = 'n', value_name = "N")]
    max: Option<u64>,
    /// Only messages of this key.
    #[arg(long, value_name = "KEY")]
    key: Option<String>,
    /// Only messages with this header; may be given several times.
    #[arg(long = "header", short = 'H', value_name = "KEY=VALUE", value_parser = HeaderArgument::parse)]
    headers: Vec<HeaderArgument>,
    /// Only messages whose value has this text in it.
    #[arg(long, value_name = "TEXT")]
    contains: Option<String>,
    /// Print the key and a tab before each value.
    #[arg(long, short = 'k', conflicts_with = "json")]
    with_key: bool,
    /// Print each message as a line of JSON with offset, timestamp, key, value and headers.
    #[arg(long)]
    json: bool,
}

/// Prints the messages.
pub(crate) fn run(tail: &Tail) -> Result<()> {
    let interrupt = Interrupt::listen()?;
    let queue = open(&tail.dir)?;
    let mut tailer = tailer(&queue, tail)?;
    let format = match (tail.json, tail.with_key) {
        (true, _) => Format::Json,
        (false, true) => Format::KeyAndValue,
        (false, false) => Format::Value,
    };
    let mut printer = Printer::new(format, tail.max);
    while !printer.is_done() && !interrupt.is_raised() {
        match tailer.read()? {
            Some(record) if is_wanted(tail, &record) => printer.print_message(&record)?,
            Some(_) => {}
            None => {
                printer.flush()?;
                tailer.commit();
                if !tail.follow {
                    return Ok(());
                }
                tailer.wait(Wait::Sleep, Some(LOOK_FOR_SIGNALS));
            }
        }
    }
    printer.flush()?;
    tailer.commit();
    Ok(())
}

/// Opens an existing queue. One that this process may not write, or that lies within a broker's log directory, is only read.
pub(super) fn open(dir: &Path) -> Result<Queue> {
    match Options::new().create(false).open(dir) {
        Err(QueueError::Io { source, .. }) if source.kind() == std::io::ErrorKind::PermissionDenied => {
            Ok(Options::new().read_only(true).open(dir)?)
        }
        Err(error @ QueueError::OfBroker { .. }) => {
            Options::new().read_only(true).open(dir).map_err(|_| error.into())
        }
        opened => Ok(opened?),
    }
}

fn tailer(queue: &Queue, tail: &Tail) -> Result<Tailer> {
    let place = tail.from.map(|from| place(queue, from));
    let Some(name) = &tail.named else { return Ok(queue.reader(place.unwrap_or(Place::Earliest))?) };
    if name.is_empty() {
        bail!("--named needs a name");
    }
    let mut tailer = queue.tailer(name)?;
    if let Some(place) = place {
        tailer.seek(place)?;
    }
    Ok(tailer)
}

fn place(queue: &Queue, from: Start) -> Place {
    match from {
        Start::Beginning => Place::Earliest,
        Start::End => Place::Latest,
        Start::BeforeEnd(count) => {
            let ends = queue.ends();
            Place::Offset(ends.next.saturating_sub(count).max(ends.start))
        }
        Start::Offset(offset) => Place::Offset(offset),
        Start::Time(ms) => Place::Time(ms),
    }
}

fn is_wanted(tail: &Tail, record: &Record<'_>) -> bool {
    let value = record.value.unwrap_or_default();
    let has = |text: &str| text.is_empty() || value.windows(text.len()).any(|part| part == text.as_bytes());
    tail.key.as_ref().is_none_or(|key| record.key == Some(key.as_bytes()))
        && tail.contains.as_deref().is_none_or(has)
        && tail.headers.iter().all(|wanted| record.headers.clone().any(|header| wanted.is(&header)))
}
