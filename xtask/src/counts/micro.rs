//! The cases of `cargo bench`, each counted by itself.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use super::Counted;
use super::callgrind::{Callgrind, total};
use crate::process::Process;
use crate::{build, workspace};

/// The function of `mainstem-microbench` that makes the calls which are counted.
const WITHIN: &str = "counted_calls";
/// Each takes about a second.
const DEADLINE: Duration = Duration::from_secs(120);

/// Counts the cases that have `only` in their names.
pub(super) fn count(callgrind: &Callgrind, benches: &[PathBuf], only: &str) -> Result<Vec<Counted>> {
    let mut counted = Vec::new();
    for bench in benches {
        for (name, calls) in list(bench)?.into_iter().filter(|(name, _)| name.contains(only)) {
            let out = callgrind.out(&name);
            let mut command = callgrind.command(bench, Some(WITHIN), &out)?;
            command.args(["--count", &name]);
            Process::start("micro", &mut command, &callgrind.dir)?.wait(DEADLINE)?;
            let total = total(&out)?;
            ensure!(total > 0, "{name}: callgrind has not seen the function {WITHIN}");
            counted.push((name, total / calls));
        }
    }
    Ok(counted)
}

/// Builds the cases beside the product's package, so that features are those with which most of it is built already. Returns their
/// programs.
pub(super) fn build() -> Result<Vec<PathBuf>> {
    let mut command = Command::new(workspace::cargo());
    command.args(["build", "--release", "--config"]).arg(build::write_bench_profile()?);
    command.args(["--package", "mainstem-cli", "--package", "mainstem-microbench"]);
    for bench in benches()? {
        command.args(["--bench", &bench]);
    }
    command.arg("--message-format=json-render-diagnostics").current_dir(workspace::root());
    let output = command.stderr(std::process::Stdio::inherit()).output().context("start cargo")?;
    ensure!(output.status.success(), "building what is counted ended with {}", output.status);
    Ok(executables(&String::from_utf8_lossy(&output.stdout)))
}

/// The names of the benches.
pub(crate) fn benches() -> Result<Vec<String>> {
    let folder = workspace::root().join("crates/microbench/benches");
    let files = std::fs::read_dir(&folder).with_context(|| format!("read {}", folder.display()))?;
    let mut names = Vec::new();
    for file in files {
        names.extend(file?.path().file_stem().and_then(|name| name.to_str()).map(str::to_owned));
    }
    names.sort();
    Ok(names)
}

/// The programs of benches in the messages of cargo.
fn executables(messages: &str) -> Vec<PathBuf> {
    let messages = messages.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let benches = messages.filter(|message| message["target"]["kind"][0] == "bench");
    benches.filter_map(|message| Some(message["executable"].as_str()?.into())).collect()
}

/// The cases of a bench, with the calls that are counted of each.
fn list(bench: &Path) -> Result<Vec<(String, u64)>> {
    let output = Command::new(bench).arg("--list-cases").output().context("list the benchmark cases")?;
    let text = String::from_utf8_lossy(&output.stdout);
    let case = |line: &str| {
        let (name, calls) = line.split_once(' ').with_context(|| format!("{line} is no case"))?;
        Ok((name.to_owned(), calls.parse()?))
    };
    text.lines().map(case).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_bench_is_built() {
        assert_eq!(benches().unwrap(), ["coordination", "flow", "log", "records", "security", "wire"]);
    }

    #[test]
    fn programs_of_benches_are_found_in_messages() {
        let messages = r#"{"reason":"compiler-artifact","target":{"kind":["lib"]},"executable":null}
{"reason":"compiler-artifact","target":{"kind":["bench"]},"executable":"/t/micro-1"}
{"reason":"compiler-artifact","target":{"kind":["bin"]},"executable":"/t/xtask"}
{"reason":"build-finished","success":true}
"#;
        assert_eq!(executables(messages), [PathBuf::from("/t/micro-1")]);
    }
}
