//! `mainstem log strays`.

use std::collections::HashSet;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use clap::Args;
use mainstem_log::storage::RealStorage;
use mainstem_log::strays::{self, Stray};
use mainstem_queue::{Directory, DirectoryKind};
use serde_json::{Value, json};

use crate::duration;
use crate::execution::{Execution, Plan};
use crate::output::{bytes, counted, print, print_json, table};
use crate::timestamp;

/// Arguments of `log strays`.
#[derive(Debug, Args)]
#[command(after_help = "\
A partition is stray if no topic owns it when the broker starts: its directory then gets a name that ends in -stray. No broker
deletes it, as it may be the only copy of its records, such as after a start with the wrong metadata. `mainstem log dump` reads
its files. The broker may run meanwhile: it has no stray partition open.")]
pub(crate) struct Strays {
    /// Log directories of brokers (log.dirs), such as ./mainstem-data.
    #[arg(required = true, value_name = "DIR")]
    dirs: Vec<PathBuf>,
    /// Only those of this partition; may be given several times.
    #[arg(long = "partition", value_name = "TOPIC-N")]
    partitions: Vec<String>,
    /// Only those that were set aside longer ago: P30D for thirty days, PT12H for twelve hours.
    #[arg(long, value_name = "DURATION", value_parser = duration::argument)]
    older_than: Option<i64>,
    /// Print JSON.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    execution: Execution,
}

/// A stray partition of a log directory.
struct Found {
    log_dir: PathBuf,
    stray: Stray,
    /// The time at which it was set aside, in ms since 1970: its directory got its name then, and has not changed since.
    since_ms: i64,
}

/// Shows the stray partitions, and deletes them if that is asked for.
pub(crate) async fn run(arguments: &Strays) -> Result<()> {
    let found = find(arguments)?;
    if found.is_empty() && !arguments.json {
        return print("no stray partition");
    }
    if !arguments.execution.begin(arguments.json, plan(&found)).await? {
        return Ok(());
    }
    if !arguments.json {
        print(&text(&found))?;
    }
    for (deleted, found) in found.iter().enumerate() {
        delete(&found.stray, deleted)?;
    }
    match arguments.json {
        true => {
            let mut json = to_json(&found);
            json["executed"] = json!(true);
            print_json(&json)
        }
        false => print(&format!("\ndeleted {}", summary(&found))),
    }
}

async fn plan(found: &[Found]) -> Result<Plan> {
    let text = format!("{}\n\n{} would be deleted", text(found), summary(found));
    Ok(Plan { text, json: to_json(found) })
}

fn find(arguments: &Strays) -> Result<Vec<Found>> {
    let newest_ms = arguments.older_than.map(|ms| timestamp::now_ms().saturating_sub(ms));
    let mut all: Vec<Found> = Vec::new();
    let mut seen = HashSet::new();
    for dir in &arguments.dirs {
        check_log_directory(dir)?;
        if !seen.insert(dir.canonicalize().unwrap_or_else(|_| dir.clone())) {
            continue;
        }
        let unreadable = || format!("cannot look for stray partitions in {}", dir.display());
        for stray in strays::find(&RealStorage, dir).with_context(unreadable)? {
            let since_ms = since_ms(&stray.path).with_context(unreadable)?;
            all.push(Found { log_dir: dir.clone(), stray, since_ms });
        }
    }
    for name in &arguments.partitions {
        if !all.iter().any(|found| found.stray.partition.to_string() == *name) {
            bail!("no stray partition was {name}; `mainstem log strays DIR` without --partition lists all");
        }
    }
    all.retain(|found| {
        let name = found.stray.partition.to_string();
        (arguments.partitions.is_empty() || arguments.partitions.contains(&name))
            && newest_ms.is_none_or(|newest_ms| found.since_ms < newest_ms)
    });
    Ok(all)
}

fn check_log_directory(dir: &Path) -> Result<()> {
    match Directory::inspect(dir).kind {
        DirectoryKind::LogDirectory => Ok(()),
        DirectoryKind::WithinLogDirectory(log_dir) => bail!(
            "{} is within the log directory {}; name that one, and --partition TOPIC-N",
            dir.display(),
            log_dir.display()
        ),
        _ => bail!(
            "{} is no log directory of a broker: it has no meta.properties; name one of log.dirs, such as ./mainstem-data",
            dir.display()
        ),
    }
}

/// The time at which the directory was last renamed.
fn since_ms(path: &Path) -> std::io::Result<i64> {
    let data = fs::symlink_metadata(path)?;
    Ok(data.ctime().saturating_mul(1_000).saturating_add(data.ctime_nsec() / 1_000_000))
}

/// Deletes one. `deleted` counts those before it, for the error.
fn delete(stray: &Stray, deleted: usize) -> Result<()> {
    strays::remove(&RealStorage, stray).with_context(|| {
        let deleted = counted(deleted as u64, "stray partition");
        format!(
            "cannot delete {}; {deleted} before it are deleted, and none behind it; try again",
            stray.path.display()
        )
    })
}

fn text(found: &[Found]) -> String {
    let rows = found.iter().map(|found| {
        vec![
            found.stray.partition.to_string(),
            found.stray.extent.segments.to_string(),
            bytes(found.stray.extent.bytes),
            timestamp::format(found.since_ms),
            found.stray.path.display().to_string(),
        ]
    });
    table(&["PARTITION", ">SEGMENTS", ">SIZE", "SET ASIDE", "DIRECTORY"], rows.collect())
}

fn summary(found: &[Found]) -> String {
    let size = found.iter().map(|found| found.stray.extent.bytes).sum();
    format!("{} of {}", counted(found.len() as u64, "stray partition"), bytes(size))
}

fn to_json(found: &[Found]) -> Value {
    let strays = found.iter().map(|Found { log_dir, stray, since_ms }| {
        json!({
            "topic": &*stray.partition.topic,
            "partition": stray.partition.partition,
            "log_directory": log_dir.display().to_string(),
            "directory": stray.path.display().to_string(),
            "bytes": stray.extent.bytes,
            "segments": stray.extent.segments,
            "set_aside": since_ms,
        })
    });
    json!({ "strays": strays.collect::<Vec<_>>() })
}
