//! Bounds on latency and CPU time: `mainstem-bench bounds` runs the test programs that measure, and compares with `bench/bounds.txt`.

use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::interop::report::Counts;
use crate::{build, nextest, workspace};

/// Builds the benchmark.
pub(crate) fn build() -> Result<()> {
    build::run(&["build", "--release", "--package", "mainstem-bench"])
}

/// The stage of `cargo xtask test --long`. It counts as one check: the benchmark prints what is beyond its bound.
pub(crate) fn run() -> Result<Counts> {
    build()?;
    let record = record();
    let text = fs::read_to_string(&record).with_context(|| format!("read {}", record.display()))?;
    let mut bounds = Command::new(workspace::release_binary("mainstem-bench"));
    bounds.arg("bounds").arg("--record").arg(&record).env("MAINSTEM_BINARY", workspace::product());
    for program in programs(&text) {
        let path = nextest::executable(program)?;
        bounds.arg("--program").arg(format!("{program}={}", path.display()));
    }
    let status = bounds.current_dir(workspace::root()).status().context("start mainstem-bench")?;
    ensure!(
        status.success(),
        "mainstem-bench bounds ended with {status}: look for what takes longer than before; if it is meant, record it by \
         --update (CONTRIBUTING.md)"
    );
    Ok(Counts { passed: 1, ..Counts::default() })
}

fn record() -> PathBuf {
    workspace::root().join("bench/bounds.txt")
}

/// The test programs that a record names.
fn programs(record: &str) -> BTreeSet<&str> {
    let lines = record.lines().filter(|line| !line.starts_with('#'));
    lines.filter_map(|line| line.split_whitespace().next()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_are_named_once() {
        let record = "# none\na::it one p99 1 2\na::it two p99 1 2\n\nb one cpu 1 2\n";
        assert_eq!(programs(record), BTreeSet::from(["a::it", "b"]));
    }

    #[test]
    fn what_is_recorded_is_a_test_of_the_sources() {
        let text = fs::read_to_string(record()).unwrap();
        assert!(!programs(&text).is_empty());
        for line in text.lines().filter(|line| !line.starts_with('#')) {
            let words: Vec<&str> = line.split_whitespace().collect();
            let [program, test, ..] = words[..] else { panic!("{line:?}") };
            let folder = match program.split("::").next() {
                Some("mainstem-tests") => workspace::root().join("tests"),
                Some(package) => {
                    workspace::root().join("crates").join(package.trim_start_matches("mainstem-"))
                }
                None => unreachable!("a line has words"),
            };
            let name = test.rsplit("::").next().unwrap();
            assert!(is_in_sources(&folder, &format!("fn {name}(")), "{program} has no test {name}");
        }
    }

    fn is_in_sources(folder: &std::path::Path, text: &str) -> bool {
        fs::read_dir(folder).unwrap().any(|entry| {
            let path = entry.unwrap().path();
            match path.is_dir() {
                true => is_in_sources(&path, text),
                false => {
                    path.extension().is_some_and(|extension| extension == "rs")
                        && fs::read_to_string(&path).unwrap().contains(text)
                }
            }
        })
    }
}
