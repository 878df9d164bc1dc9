//! `mainstem queue dump`.

use std::io::{self, BufWriter, Write};
use std::path::PathBuf;

use anyhow::{Result, anyhow};
use clap::Args;
use mainstem_records::{Batch, Scratch};
use serde_json::json;

use crate::output::{json_line, written};
use crate::record_json::to_json;
use crate::timestamp;

/// The most bytes to which one batch may decompress.
const DECOMPRESSED_BYTES_MAX: usize = 1 << 30;

/// Arguments of `queue dump`.
#[derive(Debug, Args)]
#[command(after_help = "\
Prints published batches and ends at the first damage. `mainstem log dump` prints all contents of closed segments.")]
pub(crate) struct Dump {
    /// Directory of the queue.
    dir: PathBuf,
    /// Also print the messages.
    #[arg(long, short)]
    records: bool,
    /// Print lines of JSON.
    #[arg(long)]
    json: bool,
}

/// Prints the batches.
pub(crate) fn run(dump: &Dump) -> Result<()> {
    let mut out = BufWriter::with_capacity(64 << 10, io::stdout());
    let printed = mainstem_queue::batches(&dump.dir, |segment, position, batch| {
        print_batch(dump, &mut out, segment, position, batch)
    });
    out.flush().map_err(written)?;
    printed
}

fn print_batch(
    dump: &Dump,
    out: &mut impl Write,
    segment: i64,
    position: u64,
    batch: &Batch<'_>,
) -> Result<()> {
    let line = match dump.json {
        true => json!({"kind": "batch", "segment": segment, "position": position, "size": batch.size(),
            "base_offset": batch.base_offset(), "last_offset": batch.last_offset(), "messages": batch.record_count(),
            "max_timestamp": batch.max_timestamp(), "crc": batch.crc()})
        .to_string(),
        false => format!(
            "segment {segment} position {position}: offsets {} to {}, {} bytes, crc {:08x}, {}",
            batch.base_offset(),
            batch.last_offset(),
            batch.size(),
            batch.crc(),
            timestamp::format(batch.max_timestamp())
        ),
    };
    writeln!(out, "{line}").map_err(written)?;
    if dump.records {
        let mut buffer = Vec::new();
        let damaged = |error: String| anyhow!("the batch of offset {}: {error}", batch.base_offset());
        let records = batch.records(&mut buffer, DECOMPRESSED_BYTES_MAX, &mut Scratch::new());
        for record in records.map_err(|error| damaged(error.to_string()))? {
            let record = to_json(None, None, &record.map_err(|error| damaged(error.to_string()))?);
            let indent = if dump.json { "" } else { "  " };
            writeln!(out, "{indent}{}", json_line(&record)).map_err(written)?;
        }
    }
    Ok(())
}
