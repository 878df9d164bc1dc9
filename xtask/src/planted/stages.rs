//! The tests of a copy, run in steps until one fails.

use std::fmt;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use serde::{Deserialize, Serialize};

use super::copy::Copy;
use super::patch::Patch;
use crate::process::Process;
use crate::workspace;

/// Time for one step, in which all of a copy may be compiled again.
const DEADLINE: Duration = Duration::from_secs(2 * 3_600);

/// The outcome of a fault.
#[derive(Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Verdict {
    /// A test failed.
    Caught {
        /// The stage that it is of.
        stage: String,
        /// Its name.
        test: String,
    },
    /// A test failed, and passed when it ran again.
    CaughtOnce {
        /// Its name.
        test: String,
    },
    /// It does not compile, or a lint sees it: no fault for a test.
    DoesNotCompile,
    /// No test failed.
    NotCaught,
}

impl Verdict {
    pub(super) fn is_caught(&self) -> bool {
        matches!(self, Verdict::Caught { .. })
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Verdict::Caught { stage, test } => write!(f, "caught by {stage}: {test}"),
            Verdict::CaughtOnce { test } => write!(f, "caught once of two times, by {test}"),
            Verdict::DoesNotCompile => f.write_str("does not compile, or a lint refuses it"),
            Verdict::NotCaught => f.write_str("no test fails"),
        }
    }
}

/// The tests that have to catch a fault.
#[derive(Debug, Clone, Copy)]
pub(super) enum Tests {
    /// Any test.
    All,
    /// One of the simulation, whose seeds drive what production runs.
    Seeds,
}

impl Tests {
    /// The stage that compiles them.
    fn compiled_by(self) -> &'static str {
        match self {
            Tests::All => "tests",
            Tests::Seeds => "product",
        }
    }
}

/// A step: stages, and the filter for their tests.
struct Step {
    stages: &'static [&'static str],
    filter: String,
}

/// The steps for a fault, from the tests that are nearest to it to all tests.
///
/// The tests of this tool are left out: one of them checks that the patches apply.
fn steps(patch: &Patch, tests: Tests) -> Vec<Step> {
    if let Tests::Seeds = tests {
        return vec![Step { stages: &["product", "simulation"], filter: "all()".to_owned() }];
    }
    let near = patch.packages.iter().map(|name| format!("package(={name})")).collect::<Vec<_>>().join(" | ");
    let step = |stages, filter: &str| Step { stages, filter: filter.to_owned() };
    vec![
        step(&["pure", "broker"], &near),
        step(&["pure", "broker"], &format!("not ({near} | package(=xtask))")),
        step(&["product", "simulation"], "all()"),
        step(&["faults"], "all()"),
    ]
}

/// Compiles a copy that has no fault.
///
/// # Errors
/// If that fails: no outcome would be due to a fault.
pub(super) fn compile(copy: &Copy, tests: Tests) -> Result<()> {
    let stage = tests.compiled_by();
    run(copy, &[stage], "none()")?;
    ensure!(
        times(copy.tree())?.has_passed(stage),
        "the copy does not compile: see {}",
        copy.logs().display()
    );
    Ok(())
}

/// Compiles a copy and runs its tests until one fails, twice.
///
/// # Errors
/// If a stage fails and no test of it does: that says nothing about the fault.
pub(super) fn run_until_caught(copy: &Copy, patch: &Patch, tests: Tests) -> Result<Verdict> {
    let stage = tests.compiled_by();
    run(copy, &[stage], "none()")?;
    if !times(copy.tree())?.has_passed(stage) {
        return Ok(Verdict::DoesNotCompile);
    }
    for step in steps(patch, tests) {
        run(copy, step.stages, &step.filter)?;
        let times = times(copy.tree())?;
        if let Some(TestTime { stage, name, .. }) = times.tests.iter().find(|test| test.has_failed) {
            let caught = Verdict::Caught { stage: stage.clone(), test: name.clone() };
            // A test that fails only sometimes is no proof.
            let again = failing(copy, std::iter::once(&caught), tests)?;
            return Ok(if again.is_empty() { Verdict::CaughtOnce { test: name.clone() } } else { caught });
        }
        if let Some(stage) = times.stages.iter().find(|stage| stage.failed > 0) {
            bail!("the stage {} fails, and none of its tests: see {}", stage.name, copy.logs().display());
        }
    }
    Ok(Verdict::NotCaught)
}

/// The tests that caught a fault and fail in a copy as it is now, by name.
pub(super) fn failing<'v>(
    copy: &Copy,
    verdicts: impl Iterator<Item = &'v Verdict>,
    of: Tests,
) -> Result<Vec<String>> {
    let caught = verdicts.filter_map(|verdict| match verdict {
        Verdict::Caught { stage, test } => Some((stage.as_str(), test.as_str())),
        _ => None,
    });
    let (mut stages, tests): (Vec<&str>, Vec<&str>) = caught.unzip();
    if tests.is_empty() {
        return Ok(Vec::new());
    }
    stages.push(of.compiled_by());
    if stages.contains(&"simulation") {
        stages.push("product");
    }
    run(copy, &stages, &exactly(&tests))?;
    let times = times(copy.tree())?;
    Ok(times.tests.into_iter().filter(|test| test.has_failed).map(|test| test.name).collect())
}

/// The filter that lets tests of these names through, each its program's and its own.
fn exactly(tests: &[&str]) -> String {
    let one = |test: &&str| {
        let (program, name) = test.split_once(' ').unwrap_or(("", test));
        format!("(binary_id(={program}) & test(={name}))")
    };
    tests.iter().map(one).collect::<Vec<_>>().join(" | ")
}

/// Runs stages of the copy's own `cargo xtask test`, which writes its results to `times.json`.
fn run(copy: &Copy, stages: &[&str], filter: &str) -> Result<()> {
    let mut xtask = Command::new(workspace::cargo());
    xtask.args(["run", "--quiet", "--package", "xtask", "--", "test", "--fail-fast", "--filter", filter]);
    xtask.args(stages.iter().flat_map(|stage| ["--only", stage]));
    xtask.current_dir(copy.tree()).env_remove("CARGO_TARGET_DIR").env_remove("MAINSTEM_BINARY");
    let _ = fs::remove_file(times_file(copy.tree()));
    // It fails if a test does, which is wanted here.
    Process::start(&stages.join("-"), &mut xtask, copy.logs())?.wait_for_status(DEADLINE)?;
    Ok(())
}

fn times_file(tree: &Path) -> std::path::PathBuf {
    tree.join("target").join("ci").join("times.json")
}

/// The part of `times.json` that is read.
#[derive(Deserialize)]
struct Times {
    stages: Vec<Stage>,
    tests: Vec<TestTime>,
}

#[derive(Deserialize)]
struct Stage {
    name: String,
    failed: usize,
}

#[derive(Deserialize)]
struct TestTime {
    stage: String,
    name: String,
    has_failed: bool,
}

impl Times {
    fn has_passed(&self, stage: &str) -> bool {
        self.stages.iter().any(|there| there.name == stage && there.failed == 0)
    }
}

/// The outcome of the last run of a copy.
fn times(tree: &Path) -> Result<Times> {
    let path = times_file(tree);
    let text = fs::read_to_string(&path);
    let text = text.with_context(|| format!("read {}: the tests of the copy did not run", path.display()))?;
    serde_json::from_str(&text).with_context(|| format!("in {}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nearest_tests_are_asked_first_and_no_test_twice() {
        let packages = ["a", "b"].map(str::to_owned).to_vec();
        let text = || String::new();
        let patch = Patch { name: text(), path: "x".into(), fault: text(), breaks: text(), packages };
        let seeds: Vec<_> = steps(&patch, Tests::Seeds).iter().map(|step| step.stages).collect();
        assert_eq!(seeds, [["product", "simulation"]]);
        let steps = steps(&patch, Tests::All);
        assert_eq!(steps[0].filter, "package(=a) | package(=b)");
        assert_eq!(steps[1].filter, "not (package(=a) | package(=b) | package(=xtask))");
    }

    #[test]
    fn tests_are_selected_by_program_and_name() {
        let filter = exactly(&["mainstem-log::it a::b", "mainstem-wire c"]);
        let each = "(binary_id(=mainstem-log::it) & test(=a::b)) | (binary_id(=mainstem-wire) & test(=c))";
        assert_eq!(filter, each);
    }

    #[test]
    fn outcomes_are_read() {
        let text = r#"{"stages":[{"name":"pure","seconds":1.0,"failed":1}],
            "tests":[{"stage":"pure","name":"a b","seconds":1.0,"has_failed":true}]}"#;
        let times: Times = serde_json::from_str(text).unwrap();
        assert!(!times.has_passed("pure") && !times.has_passed("tests"));
        assert!(times.tests[0].has_failed && times.tests[0].name == "a b");
    }
}
