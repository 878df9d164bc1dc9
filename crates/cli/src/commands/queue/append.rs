//! `mainstem queue append`.

use std::io::{self, BufRead, BufReader};
use std::path::PathBuf;

use anyhow::{Context, Result};
use bytes::Bytes;
use clap::Args;
use mainstem_client::Record;
use mainstem_queue::{Appender, Header, Options};
use serde_json::json;

use crate::commands::produce::{HeaderArgument, LineFormat};
use crate::output::{counted, print_json, print_line};

/// Lines that are already read become one batch, up to so many bytes.
const BATCH_BYTES: usize = 32 << 10;

/// Arguments of `queue append`.
#[derive(Debug, Args)]
#[command(after_help = "\
Each line of standard input is a message; lines that are read together become one batch. With --json a line is
{\"key\":..,\"value\":..,\"headers\":[..],\"timestamp\":..}, as `mainstem queue tail --json` writes it. Other processes may append
to the same queue meanwhile.")]
pub(crate) struct Append {
    /// Directory of the queue.
    dir: PathBuf,
    /// Split each line into key and value at the first of these.
    #[arg(long, short = 's', value_name = "TEXT", conflicts_with_all = ["key", "json"])]
    key_separator: Option<String>,
    /// The key of every message.
    #[arg(long, short, value_name = "KEY", conflicts_with = "json")]
    key: Option<String>,
    /// A header of every message; may be given several times, also with the same key.
    #[arg(long = "header", short = 'H', value_name = "KEY=VALUE", value_parser = HeaderArgument::parse)]
    headers: Vec<HeaderArgument>,
    /// Have all of it on the disk before the command ends.
    #[arg(long)]
    sync: bool,
    /// Segment size of a queue that is made: 64 KiB to 1 GiB.
    #[arg(long, default_value_t = 64 << 20, value_name = "BYTES")]
    segment_bytes: u64,
    /// Read lines of JSON, and print the result as JSON.
    #[arg(long)]
    json: bool,
}

/// Appends the lines.
pub(crate) fn run(append: &Append) -> Result<()> {
    let queue = Options::new().segment_bytes(append.segment_bytes).open(&append.dir)?;
    let format = LineFormat::plain(
        append.key_separator.as_deref(),
        append.key.as_deref(),
        append.json,
        &append.headers,
    );
    let mut appender = queue.appender()?;
    let appended = append_lines(&mut BufReader::with_capacity(64 << 10, io::stdin()), &format, &mut appender);
    let synced = append.sync.then(|| queue.sync()).transpose();
    let (first, count) = appended?;
    let synced = synced?;
    match append.json {
        true => {
            print_json(&json!({"messages": count, "first_offset": first, "next_offset": queue.ends().next,
            "synced": synced}))
        }
        false => {
            let place = first.map(|first| format!(", from offset {first} on")).unwrap_or_default();
            let synced = synced.map(|end| format!("; on the disk up to offset {end}")).unwrap_or_default();
            print_line(&format!("appended {}{place}{synced}", counted(count, "message")))
        }
    }
}

/// Appends all lines; returns the first offset and how many there were.
fn append_lines(
    input: &mut BufReader<impl io::Read>,
    format: &LineFormat,
    appender: &mut Appender,
) -> Result<(Option<i64>, u64)> {
    let (mut first, mut count) = (None, 0);
    let mut records = Vec::new();
    let mut pending_bytes = 0;
    loop {
        let mut line = Vec::new();
        if input.read_until(b'\n', &mut line).context("standard input cannot be read")? == 0 {
            return Ok((first, count));
        }
        let line = line.strip_suffix(b"\n").unwrap_or(&line);
        let line = Bytes::copy_from_slice(line.strip_suffix(b"\r").unwrap_or(line));
        pending_bytes += line.len();
        let number = count + records.len() as u64 + 1;
        records.push(format.parse(line, number)?);
        // Typed or slow input has each line in the queue as soon as it is read.
        if pending_bytes < BATCH_BYTES && input.buffer().contains(&b'\n') {
            continue;
        }
        let base =
            append_batch(appender, &records).with_context(|| format!("up to line {number} of the input"))?;
        first.get_or_insert(base);
        count += records.len() as u64;
        records.clear();
        pending_bytes = 0;
    }
}

fn append_batch(appender: &mut Appender, records: &[Record]) -> Result<i64> {
    let mut messages = appender.batch();
    for record in records {
        let value = record.value.as_deref().context("a message of a queue has a value, and null is none")?;
        let headers: Vec<Header<'_>> = record
            .headers
            .iter()
            .map(|(key, value)| Header { key: key.as_bytes(), value: value.as_deref() })
            .collect();
        messages.push_with(record.key.as_deref(), value, &headers, record.timestamp_ms)?;
    }
    Ok(messages.commit()?)
}
