//! `cargo xtask planted`: faults that a person could make are planted one at a time, and the tests have to catch each.
//!
//! `tests/planted` has the faults as patches. They are applied to a copy of the repository, whose own `cargo xtask test` runs.

mod copy;
mod patch;
mod stages;

use std::fs;
use std::time::Instant;

use anyhow::{Context, Result, bail, ensure};
use serde::Serialize;

use crate::nextest::SIMULATION;
use crate::workspace;
use copy::Copy;
use patch::Patch;
use stages::{Tests, Verdict};

const USAGE: &str = "\
usage: cargo xtask planted [--list | --seeds] [NAME]...

  --list   the faults, and what each breaks; nothing is run
  --seeds  the faults that name mainstem-simulation, among others or not, for the tests of that package: its seeds have to find them

Plants each fault of tests/planted, or those that are named, in a copy of the repository, and runs tests there until one fails: first
those of the packages that the fault names, then all others, in the order pure, broker, simulation, faults. At the end the
tests that failed have to pass without a fault. A fault that no test catches is an error. The copy and all that is compiled in it stay in target/planted, so that the next run is faster.";

/// The outcome of a fault.
#[derive(Debug, Serialize)]
struct Report {
    fault: String,
    breaks: String,
    verdict: Verdict,
    seconds: f64,
}

/// The subcommand.
pub(crate) fn run(arguments: &[String]) -> Result<()> {
    if arguments.iter().any(|argument| argument == "--help") {
        println!("{USAGE}");
        return Ok(());
    }
    let (options, names): (Vec<_>, Vec<_>) =
        arguments.iter().partition(|argument| argument.starts_with("--"));
    let patches = chosen(patch::read_all(&workspace::root().join("tests").join("planted"))?, &names)?;
    match options[..] {
        [] => plant(&patches, Tests::All),
        [option] if option == "--seeds" => {
            let has_seeds = |patch: &Patch| patch.packages.iter().any(|package| package == SIMULATION);
            plant(&patches.into_iter().filter(has_seeds).collect::<Vec<_>>(), Tests::Seeds)
        }
        [option] if option == "--list" => {
            for Patch { name, fault, breaks, .. } in &patches {
                println!("{name}\n    {fault}\n    {breaks}");
            }
            Ok(())
        }
        _ => bail!("{USAGE}"),
    }
}

/// The patches of these names, or all of them if none is named.
fn chosen(patches: Vec<Patch>, names: &[&String]) -> Result<Vec<Patch>> {
    let unknown = names.iter().find(|name| patches.iter().all(|patch| patch.name != name.as_str()));
    ensure!(unknown.is_none(), "there is no fault {unknown:?} in tests/planted; --list names those that are");
    let is_chosen = |patch: &Patch| names.is_empty() || names.iter().any(|name| name.as_str() == patch.name);
    Ok(patches.into_iter().filter(is_chosen).collect())
}

/// Plants faults one at a time, each for these tests.
fn plant(patches: &[Patch], tests: Tests) -> Result<()> {
    let copy = Copy::create(&workspace::target_dir().join("planted"))?;
    println!("the copy is {}, its logs are in {}", copy.tree().display(), copy.logs().display());
    stages::compile(&copy, tests)?;
    let mut reports = Vec::new();
    for (at, patch) in patches.iter().enumerate() {
        println!("{} of {}: {}: {}", at + 1, patches.len(), patch.name, patch.fault);
        let begin = Instant::now();
        copy.update()?;
        copy.apply(&patch.path)?;
        let verdict = stages::run_until_caught(&copy, patch, tests)?;
        let seconds = begin.elapsed().as_secs_f64();
        println!("  {verdict} ({seconds:.0} s)");
        let (fault, breaks) = (patch.name.clone(), patch.breaks.clone());
        reports.push(Report { fault, breaks, verdict, seconds });
        keep(&reports)?;
    }
    copy.update()?;
    println!("without a fault: each test that caught one");
    let failed = stages::failing(&copy, reports.iter().map(|report| &report.verdict), tests)?;
    ensure!(
        failed.is_empty(),
        "these fail without any fault too, and show nothing:\n  {}",
        failed.join("\n  ")
    );
    let left: Vec<&Report> = reports.iter().filter(|report| !report.verdict.is_caught()).collect();
    println!("\n{} of {} faults were caught", reports.len() - left.len(), reports.len());
    for Report { fault, breaks, verdict, .. } in &left {
        println!("  {fault}: {verdict}; {breaks}");
    }
    ensure!(left.is_empty(), "a fault that no test catches is a gap: write the test that would have");
    Ok(())
}

/// Keeps the outcomes in `target/ci/planted.json`.
fn keep(reports: &[Report]) -> Result<()> {
    let path = workspace::ci_dir().join("planted.json");
    fs::create_dir_all(workspace::ci_dir())?;
    let text = serde_json::to_string_pretty(reports)? + "\n";
    fs::write(&path, text).with_context(|| format!("write {}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_fault_says_what_it_breaks_and_which_packages_should_notice() {
        let patches = patch::read_all(&workspace::root().join("tests").join("planted")).unwrap();
        assert!(patches.len() >= 20, "{} faults", patches.len());
        let packages = workspace::packages().unwrap();
        for patch in &patches {
            assert!(!patch.packages.is_empty(), "{} names no package", patch.name);
            let unknown = patch.packages.iter().find(|name| !packages.contains(name));
            assert_eq!(unknown, None, "{} names a package that does not exist", patch.name);
        }
    }

    /// A patch that no longer applies would be noticed only when the faults are planted, which takes hours.
    #[test]
    fn each_fault_applies_to_the_code_as_it_is() {
        for patch in patch::read_all(&workspace::root().join("tests").join("planted")).unwrap() {
            copy::check_applies(&workspace::root(), &patch.path).unwrap();
        }
    }
}
