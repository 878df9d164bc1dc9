//! The stages that run tests: the tests of each, and the effect of their outcomes on the run.

use std::fs;
use std::sync::{Mutex, PoisonError};

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

use crate::descendants;
use crate::faults;
use crate::flaky::{Flaky, List};
use crate::interop::report::Counts;
use crate::junit::{Outcome, Test};
use crate::kafka_peers;
use crate::nextest::{Extent, Nextest, SIMULATION, Suite};
use crate::test::Options;
use crate::workspace;

/// Tests of a stage that are named with their times.
const SLOWEST: usize = 6;

/// The outcomes of the stages that have run.
static FINISHED: Mutex<Vec<Finished>> = Mutex::new(Vec::new());

struct Finished {
    stage: &'static str,
    tests: Vec<Test>,
}

/// Runs a suite, or those of its tests that a filter lets through.
pub(crate) fn run(suite: Suite, options: &Options, variables: &[(&str, String)]) -> Result<Counts> {
    let of_suite = filter(suite)?;
    let filter = match &options.filter {
        Some(only) if of_suite.is_empty() => only.to_owned(),
        Some(only) => format!("({of_suite}) and ({only})"),
        None => of_suite,
    };
    let extent = Extent { is_long: options.is_long, is_fail_fast: options.is_fail_fast };
    let tests = Nextest::install()?.run(suite, extent, &filter, variables);
    finish(suite.name(), tests)
}

/// Runs the tests over Kafka's own brokers.
pub(crate) fn run_kafka(is_long: bool, variables: &[(&str, String)]) -> Result<Counts> {
    finish("kafka", kafka_peers::run(is_long, variables))
}

/// Counts the outcomes of a stage.
fn finish(stage: &'static str, tests: Result<Vec<Test>>) -> Result<Counts> {
    let tests = tests?;
    let counts = count(&tests);
    for test in &tests {
        if let Outcome::Failed(why) = &test.outcome {
            faults::keep(&test.name, why);
        }
    }
    print_slowest(stage, &tests);
    FINISHED.lock().unwrap_or_else(PoisonError::into_inner).push(Finished { stage, tests });
    Ok(counts)
}

/// Ends the processes that a stage, and those beside it, have left running. Each of them is a failure.
pub(crate) fn end_what_is_left(stage: &str) -> Counts {
    let left = descendants::end_orphans();
    if left.is_empty() {
        return Counts::default();
    }
    faults::keep(&format!("{stage}: processes were left running, and are ended"), &left.join("\n"));
    Counts { failed: 1, ..Counts::default() }
}

fn count(tests: &[Test]) -> Counts {
    let failed = tests.iter().filter(|test| matches!(test.outcome, Outcome::Failed(_))).count();
    Counts { passed: tests.len() - failed, failed, skipped: 0 }
}

fn print_slowest(stage: &str, tests: &[Test]) {
    let mut tests: Vec<&Test> = tests.iter().collect();
    tests.sort_by(|one, other| other.seconds.total_cmp(&one.seconds));
    println!("the slowest of {stage}:");
    tests.iter().take(SLOWEST).for_each(|test| println!("  {:6.1} s  {}", test.seconds, test.name));
}

/// Judges the tests that passed at their second try, prints and keeps them. Returns the faults that follow from them.
pub(crate) fn judge_flaky() -> Result<Counts> {
    let flaky = flaky();
    let path = workspace::ci_dir().join("flaky.json");
    fs::create_dir_all(workspace::ci_dir())?;
    fs::write(&path, serde_json::to_string_pretty(&flaky)? + "\n")
        .with_context(|| format!("write {}", path.display()))?;
    for test in &flaky {
        println!("FLAKY  {}\n{}", test.name, faults::indented(&test.first_failure));
    }
    let faults = List::read()?.judge(&flaky);
    faults.iter().for_each(|(name, why)| faults::keep(name, why));
    Ok(Counts { failed: faults.len(), ..Counts::default() })
}

fn flaky() -> Vec<Flaky> {
    let finished = FINISHED.lock().unwrap_or_else(PoisonError::into_inner);
    let tests = finished.iter().flat_map(|finished| &finished.tests);
    let flaky = |test: &Test| match &test.outcome {
        Outcome::Flaky(why) => Some(Flaky { name: test.name.clone(), first_failure: why.clone() }),
        _ => None,
    };
    tests.filter_map(flaky).collect()
}

/// The time and the outcome of a test.
#[derive(Debug, Serialize)]
pub(crate) struct TestTime {
    stage: &'static str,
    name: String,
    seconds: f64,
    /// True if it failed at each try.
    has_failed: bool,
}

/// The time of each test that has run.
pub(crate) fn times() -> Vec<TestTime> {
    let finished = FINISHED.lock().unwrap_or_else(PoisonError::into_inner);
    let of_stage = |Finished { stage, tests }: &Finished| -> Vec<TestTime> {
        let time = |test: &Test| TestTime {
            stage,
            name: test.name.clone(),
            seconds: test.seconds,
            has_failed: matches!(test.outcome, Outcome::Failed(_)),
        };
        tests.iter().map(time).collect()
    };
    finished.iter().flat_map(of_stage).collect()
}

/// The profiles of `.config/nextest.toml`, as far as they select tests.
#[derive(Deserialize)]
struct Config {
    profile: Profiles,
}

#[derive(Deserialize)]
struct Profiles {
    broker: Profile,
    faults: Profile,
}

#[derive(Deserialize)]
#[serde(rename_all = "kebab-case")]
struct Profile {
    default_filter: String,
}

/// The filter of a suite beside that of its profile: no test belongs to two suites.
fn filter(suite: Suite) -> Result<String> {
    let path = workspace::root().join(".config").join("nextest.toml");
    let text = fs::read_to_string(&path).with_context(|| format!("read {}", path.display()))?;
    let Config { profile } = toml::from_str(&text).with_context(|| format!("in {}", path.display()))?;
    let Profiles { broker, faults } = profile;
    let except = |profiles: &[&Profile]| {
        let others = profiles.iter().map(|profile| format!("not ({}) and ", profile.default_filter));
        others.chain([format!("not {}", kafka_peers::FILTER)]).collect::<String>()
    };
    Ok(match suite {
        Suite::Pure => format!("{} and not package({SIMULATION})", except(&[&broker, &faults])),
        Suite::Broker => except(&[&faults]),
        Suite::Simulation | Suite::Faults => String::new(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_test_is_in_two_suites() {
        let [pure, broker, faults] =
            [Suite::Pure, Suite::Broker, Suite::Faults].map(|suite| filter(suite).unwrap());
        let of_others = ["cluster", "hostile", kafka_peers::FILTER];
        assert!(of_others.iter().all(|other| pure.contains(other) && broker.contains(other)));
        assert!(pure.contains("mainstem-broker") && !broker.contains("mainstem-broker"));
        assert_eq!(faults, "", "its profile says all");
    }

    #[test]
    fn outcomes_are_counted() {
        let test = |outcome| Test { name: "a b".into(), seconds: 1.0, outcome };
        let tests = [Outcome::Passed, Outcome::Flaky("x".into()), Outcome::Failed("y".into())].map(test);
        assert_eq!(count(&tests), Counts { passed: 2, failed: 1, skipped: 0 });
    }
}
