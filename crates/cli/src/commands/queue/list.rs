//! `mainstem queue list`.

use std::path::PathBuf;

use anyhow::Result;
use clap::Args;
use mainstem_queue::TailerInfo;
use serde_json::json;

use crate::output::{bytes, print, print_json, print_line, table};
use crate::timestamp;

/// Arguments of `queue list`.
#[derive(Debug, Args)]
pub(crate) struct List {
    /// Directory of the queue.
    dir: PathBuf,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// Prints ends, segments and tailers.
pub(crate) fn run(list: &List) -> Result<()> {
    let queue = super::tail::open(&list.dir)?;
    let ends = queue.ends();
    let segments = queue.segments()?;
    let tailers = queue.tailers()?;
    if list.json {
        let segments: Vec<_> = segments
            .iter()
            .map(|segment| json!({"base_offset": segment.base_offset, "bytes": segment.bytes, "open": segment.is_open}))
            .collect();
        let tailers: Vec<_> = tailers
            .iter()
            .map(|tailer| {
                json!({"name": tailer.name, "position": tailer.position, "lag": tailer.lag, "live": tailer.is_live,
                    "updated": tailer.updated_ms})
            })
            .collect();
        return print_json(&json!({"directory": list.dir.display().to_string(), "start": ends.start,
            "synced": ends.synced, "next": ends.next, "segments": segments, "tailers": tailers}));
    }
    print_line(&format!(
        "{}: offsets {} to {}, synced up to {}",
        list.dir.display(),
        ends.start,
        ends.next,
        ends.synced
    ))?;
    let rows = segments.iter().map(|segment| {
        let state = if segment.is_open { "open" } else { "closed" };
        vec![segment.base_offset.to_string(), bytes(segment.bytes), state.to_owned()]
    });
    print(&table(&[">SEGMENT", ">BYTES", "STATE"], rows.collect()))?;
    match tailers.is_empty() {
        true => Ok(()),
        false => print(&table(
            &["TAILER", ">POSITION", ">LAG", "LIVE", "MOVED"],
            tailers.iter().map(row).collect(),
        )),
    }
}

fn row(tailer: &TailerInfo) -> Vec<String> {
    vec![
        tailer.name.clone(),
        tailer.position.to_string(),
        tailer.lag.to_string(),
        if tailer.is_live { "yes" } else { "no" }.to_owned(),
        timestamp::format(tailer.updated_ms),
    ]
}
