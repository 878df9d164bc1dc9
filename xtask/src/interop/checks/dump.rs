//! Kafka's own DumpLogSegments over every file of the broker's directory.

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};

use super::super::report::{DUMP_LOG, Report};
use super::super::world::World;

/// Words that the tool prints only if a file has a fault.
const FAULTS: &[&str] = &[
    "isvalid: false",
    "invalid bytes at the end",
    "Found timestamp mismatch",
    "Found out of order timestamp",
    "Mismatches in",
    "Non-consecutive offsets",
    "are not found in the log",
    "Ignoring unknown file",
    "Exception",
];

/// Reads all files below the log directories; `when` says in the report what happened to the broker before.
pub(crate) fn run(world: &World, report: &Report, log_dirs: &[PathBuf], when: &str) {
    let partitions = partitions(log_dirs);
    let check = |what: &str, body: &dyn Fn(&[PathBuf]) -> Result<()>| {
        report.check(DUMP_LOG, &format!("{what}, {when}"), || match &partitions {
            Ok(partitions) => body(partitions),
            Err(error) => bail!("{error:#}"),
        });
    };
    check("batches of every .log valid", &|all| {
        dump(world, &files(all, is_user_topic, "log")?, &[], "isvalid: true")
    });
    check("records of compressed batches", &|all| {
        let is_codec_topic = |name: &str| name.starts_with("codec-") && name.ends_with("-0");
        dump(world, &files(all, is_codec_topic, "log")?, &["--deep-iteration"], "headerKeys: [twice")
    });
    check("every .index", &|all| dump(world, &files(all, is_user_topic, "index")?, &[], "offset: "));
    check("every .timeindex", &|all| {
        dump(world, &files(all, is_user_topic, "timeindex")?, &[], "timestamp: ")
    });
    check("every .snapshot", &|all| {
        dump(world, &files(all, is_user_topic, "snapshot")?, &[], "producerId: ")
    });
    check("__consumer_offsets", &|all| {
        let is_offsets = |name: &str| name.starts_with("__consumer_offsets-");
        dump(world, &files(all, is_offsets, "log")?, &["--offsets-decoder"], "\"offset\":")
    });
    check("__transaction_state", &|all| {
        let is_transactions = |name: &str| name.starts_with("__transaction_state-");
        dump(
            world,
            &files(all, is_transactions, "log")?,
            &["--transaction-log-decoder"],
            "\"transactionStatus\"",
        )
    });
    check("__cluster_metadata", &|all| {
        let is_metadata = |name: &str| name == "__cluster_metadata-0";
        dump(world, &files(all, is_metadata, "log")?, &["--cluster-metadata-decoder"], "TOPIC_RECORD")
    });
}

fn is_user_topic(name: &str) -> bool {
    !name.starts_with("__")
}

/// The directories of partitions, in the order of their names.
fn partitions(log_dirs: &[PathBuf]) -> Result<Vec<PathBuf>> {
    let mut partitions = Vec::new();
    let list = |dir: &PathBuf| fs::read_dir(dir).with_context(|| format!("read {}", dir.display()));
    let listed = log_dirs.iter().map(list).collect::<Result<Vec<_>>>()?;
    for entry in listed.into_iter().flatten() {
        let path = entry?.path();
        // Directories on their way out are named NAME-PARTITION.ID-delete.
        if path.join("partition.metadata").is_file() || path.ends_with("__cluster_metadata-0") {
            let is_deleted = path.to_string_lossy().ends_with("-delete");
            partitions.extend((!is_deleted).then_some(path));
        }
    }
    partitions.sort();
    Ok(partitions)
}

/// Returns the files with that extension in the directories whose names match. Those of empty segments are left out: the tool does not know
/// that the index of an empty segment may be preallocated.
fn files(partitions: &[PathBuf], matches: impl Fn(&str) -> bool, extension: &str) -> Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for partition in partitions {
        let name = partition.file_name().and_then(OsStr::to_str).unwrap_or_default();
        if !matches(name) {
            continue;
        }
        for entry in fs::read_dir(partition)? {
            let path = entry?.path();
            let is_wanted = path.extension().is_some_and(|found| found == extension);
            let is_empty = |path: &Path| fs::metadata(path).is_ok_and(|found| found.len() == 0);
            if is_wanted && !is_empty(&path) && !is_empty(&path.with_extension("log")) {
                files.push(path);
            }
        }
    }
    ensure!(!files.is_empty(), "there is no .{extension} file");
    files.sort();
    Ok(files)
}

/// Dumps the files; the output must have none of the words for faults, and `expected` at least once.
pub(super) fn dump(world: &World, files: &[PathBuf], options: &[&str], expected: &str) -> Result<()> {
    let list: Vec<String> = files.iter().map(|file| file.display().to_string()).collect();
    let list = list.join(",");
    let arguments = [options, &["--files", &list]].concat();
    let finished = world.tool(DUMP_LOG, &arguments, "")?;
    ensure!(finished.exit == 0, "exit code {}: {}", finished.exit, finished.err);
    let mut dumping = "";
    for line in finished.out.lines().chain(finished.err.lines()) {
        if line.starts_with("Dumping ") {
            dumping = line;
        }
        let fault = FAULTS.iter().find(|fault| line.contains(**fault));
        ensure!(fault.is_none(), "{dumping}: {line}");
    }
    let dumped = finished.out.lines().filter(|line| line.starts_with("Dumping ")).count();
    ensure!(dumped == files.len(), "{dumped} files of {} were dumped", files.len());
    ensure!(finished.out.contains(expected), "the output has no {expected:?}");
    Ok(())
}
