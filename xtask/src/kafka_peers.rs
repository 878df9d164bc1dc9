//! The tests of the native client over Apache Kafka's brokers of two releases.
//!
//! A JVM with a broker takes seconds to start, so all these tests share one process and its brokers.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};

use crate::faults;
use crate::junit::{Outcome, Test};
use crate::nextest;
use crate::process::Process;
use crate::workspace;

/// The test program, by its id.
const PROGRAM: &str = "mainstem-client";
/// Modules that have one test for each release, `crates/client/src/testing.rs` makes them.
const MODULES: [&str; 2] = ["kafka::", "kafka_3_9::"];
/// The same tests for nextest, which leaves them out.
pub(crate) const FILTER: &str = "(package(mainstem-client) & test(/(^|::)(kafka|kafka_3_9)::/))";
/// They wait for brokers most of the time.
const THREADS: &str = "6";
/// All of them together, with the start of the brokers.
const DEADLINE: Duration = Duration::from_secs(900);
const LONG_DEADLINE: Duration = Duration::from_secs(24 * 3600);

/// Runs all of them; those that fail have one more try, with brokers of their own.
pub(crate) fn run(is_long: bool, variables: &[(&str, String)]) -> Result<Vec<Test>> {
    let begin = Instant::now();
    let first = run_program("kafka", &MODULES, false, variables, is_long)?;
    let failed: Vec<String> =
        first.iter().filter(|(_, why)| why.is_some()).map(|(name, _)| name.clone()).collect();
    let second = match failed.is_empty() {
        true => Vec::new(),
        false => {
            println!("{} of {} failed, and have a second try", failed.len(), first.len());
            run_program("kafka-again", &failed, true, variables, is_long)?
        }
    };
    // The harness prints no times of single tests.
    let seconds = begin.elapsed().as_secs_f64() / first.len().max(1) as f64;
    let outcome = |name: &str, why: Option<String>| match why {
        None => Outcome::Passed,
        Some(why) if second.iter().any(|(other, why)| other == name && why.is_none()) => Outcome::Flaky(why),
        Some(why) => Outcome::Failed(why),
    };
    let test = |(name, why): (String, Option<String>)| Test {
        outcome: outcome(&name, why),
        name: format!("{PROGRAM} {name}"),
        seconds,
    };
    Ok(first.into_iter().map(test).collect())
}

/// The name of each test that ran, and the reason where it failed.
fn run_program(
    log: &str,
    tests: &[impl AsRef<str>],
    is_exact: bool,
    variables: &[(&str, String)],
    is_long: bool,
) -> Result<Vec<(String, Option<String>)>> {
    let program = nextest::executable(PROGRAM)?;
    let folder = workspace::root().join("crates").join("client");
    let logs = workspace::ci_dir();
    fs::create_dir_all(&logs)?;
    let file = logs.join(format!("{log}.out"));
    let mut command = Command::new(&program);
    command.args(["--test-threads", THREADS]).args(is_exact.then_some("--exact"));
    command.args(tests.iter().map(AsRef::as_ref)).current_dir(&folder).env("CARGO_MANIFEST_DIR", &folder);
    command.envs(variables.iter().map(|(name, value)| (name, value))).stdin(Stdio::null());
    // Its errors go to a log of their own, which a failure shows.
    let _ = fs::remove_file(logs.join(format!("{log}.log")));
    let deadline = if is_long { LONG_DEADLINE } else { DEADLINE };
    let status = Process::start_to_file(log, &mut command, &logs, &file)?.wait_for_status(deadline)?;
    let said = String::from_utf8_lossy(&fs::read(&file)?).into_owned();
    let outcomes = outcomes(&said);
    let is_counted = status.success() || outcomes.iter().any(|(_, why)| why.is_some());
    ensure!(
        is_counted && !outcomes.is_empty(),
        "{} ended with {status}: see {}",
        show(&program),
        file.display()
    );
    Ok(outcomes)
}

fn show(program: &Path) -> String {
    program.file_name().unwrap_or_default().display().to_string()
}

/// The outcomes that a test program prints, `test NAME ... ok` or `FAILED`, with what it repeats of a failure.
fn outcomes(said: &str) -> Vec<(String, Option<String>)> {
    let failed = faults::failed_tests(said);
    let line = |line: &str| {
        let (name, outcome) = line.strip_prefix("test ")?.rsplit_once(" ... ")?;
        let why = || failed.iter().find(|(other, _)| other == name).map(|(_, why)| why.clone());
        match outcome {
            "ok" => Some((name.to_owned(), None)),
            "FAILED" => Some((name.to_owned(), Some(why().unwrap_or_default()))),
            _ => None,
        }
    };
    said.lines().filter_map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn outcomes_are_read_with_their_reasons() {
        let said = "\
running 2 tests
test a::kafka::one ... ok
test a::kafka::two ... FAILED

failures:

---- a::kafka::two stdout ----
thread 'a::kafka::two' panicked at a.rs:1:2:
late

failures:
    a::kafka::two

test result: FAILED. 1 passed; 1 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.02s";
        let outcomes = outcomes(said);
        assert_eq!(outcomes[0], ("a::kafka::one".into(), None));
        assert!(outcomes[1].1.as_ref().unwrap().contains("late"), "{outcomes:?}");
        assert_eq!(outcomes.len(), 2);
    }
}
