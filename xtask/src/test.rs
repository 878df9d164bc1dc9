//! `cargo xtask test`: everything that is checked before a change lands, stage by stage, each with its time.

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

use crate::interop::report::Counts;
use crate::interop::{self, install};
use crate::{compile, counts, faults, fuzz, readme, schemas, unit, workspace};

const USAGE: &str = "\
usage: cargo xtask test [--long] [--only STAGE]...

  --long  with depth: more kills, more cases, longer soaks, fuzzing where a nightly toolchain is
  --only  only this stage, of: fmt, clippy, build, schemas, unit, interop, readme, counts, fuzz (the last with --long)

With `unit`, clippy runs beside the tests and is counted there. A stage that fails does not keep the following ones from
running. What needs a toolchain that is missing is skipped by name; under CI=true it is an error.";

/// What `--long` sets, unless it is set already; CONTRIBUTING.md says what each means.
const DEPTH: &[(&str, &str)] = &[
    ("PROPTEST_CASES", "4096"),
    ("TEST_KILLS", "1000"),
    ("TEST_QUEUE_POWER_CUTS", "3000"),
    ("TEST_QUEUE_KILLS", "10000"),
    ("TEST_HANDLER_KILLS", "1000"),
    ("TEST_HANDLER_OUTAGE_SECONDS", "120"),
    ("TEST_DIRECT_KILLS", "1000"),
    ("TEST_DIRECT_POWER_CUTS", "100"),
    ("TEST_DIRECT_SEEDS", "200000"),
    ("TEST_CLUSTER_ROUNDS", "1000"),
    ("TEST_LINK_SEEDS", "30"),
    ("TEST_SIMULATED_GROUPS", "20000"),
    ("TEST_SIMULATED_CLUSTERS", "20000"),
    ("TEST_SOAK_SECONDS", "600"),
    ("TEST_COMPACT_MIB", "10240"),
    ("TEST_OFFSET_COMMITS", "10000000"),
    ("TEST_REFUSALS", "100"),
    ("TEST_KAFKA_ANEW", "1"),
];

struct Stage {
    name: &'static str,
    run: fn(&Options) -> Result<Counts>,
}

const STAGES: &[Stage] = &[
    Stage { name: "fmt", run: |_| cargo_check(&["fmt", "--all", "--check"]) },
    Stage { name: "clippy", run: |_| cargo_check(CLIPPY) },
    Stage { name: "build", run: |_| build_tests() },
    Stage { name: "schemas", run: |_| check_schemas() },
    Stage { name: "unit", run: cargo_test },
    Stage { name: "interop", run: run_interop },
    Stage { name: "readme", run: |_| run_readme() },
    Stage { name: "counts", run: |_| counts::check() },
    Stage { name: "fuzz", run: |_| fuzz::run() },
];

/// Stages that use no clients.
const WITHOUT_CLIENTS: &[&str] = &["fmt", "clippy", "build", "counts", "fuzz"];

const CLIPPY: &[&str] = &["clippy", "--release", "--workspace", "--all-targets", "--", "-D", "warnings"];

struct Options {
    long: bool,
    only: Vec<String>,
}

impl Options {
    fn parse(arguments: &[String]) -> Result<Options> {
        let mut options = Options { long: false, only: Vec::new() };
        let mut rest = arguments.iter();
        while let Some(argument) = rest.next() {
            match argument.as_str() {
                "--long" => options.long = true,
                "--only" => options.only.push(rest.next().context(USAGE)?.clone()),
                _ => bail!("{USAGE}"),
            }
        }
        let unknown = options.only.iter().find(|only| STAGES.iter().all(|stage| stage.name != **only));
        ensure!(unknown.is_none(), "there is no stage {unknown:?}\n{USAGE}");
        Ok(options)
    }

    fn wants(&self, stage: &str) -> bool {
        self.only.is_empty() && (self.long || stage != "fuzz") || self.only.iter().any(|only| only == stage)
    }

    /// Whether clippy runs beside the tests, and not as a stage.
    fn lints_beside_tests(&self) -> bool {
        self.wants("clippy") && self.wants("unit")
    }

    /// The stages in their order.
    fn stages(&self) -> Vec<&'static Stage> {
        let is_beside = |stage: &Stage| stage.name == "clippy" && self.lints_beside_tests();
        STAGES.iter().filter(|stage| self.wants(stage.name) && !is_beside(stage)).collect()
    }
}

/// The subcommand.
pub(crate) fn run(arguments: &[String]) -> Result<()> {
    if arguments.iter().any(|argument| argument == "--help") {
        println!("{USAGE}");
        return Ok(());
    }
    let options = Options::parse(arguments)?;
    let stages = options.stages();
    // Package managers wait for the network while compilers work. An error comes up again where a client is used.
    let needs_clients = stages.iter().any(|stage| !WITHOUT_CLIENTS.contains(&stage.name));
    let mut installation = needs_clients.then(|| thread::spawn(interop::prefetch));
    let mut total = Counts::default();
    let mut times = Vec::new();
    for stage in stages {
        if !WITHOUT_CLIENTS.contains(&stage.name)
            && let Some(installation) = installation.take()
        {
            // Its errors are not lost: they come up again, with a name, where a client is used.
            let _ = installation.join();
        }
        let (counts, took) = run_stage(stage.name, || (stage.run)(&options));
        total += counts;
        times.push((stage.name, counts, took));
    }
    faults::print();
    println!("\nstage        time  outcome");
    for (name, counts, took) in times {
        println!("{name:<9} {:5.0} s  {counts}", took.as_secs_f64());
    }
    println!("\n{total}");
    ensure!(total.failed == 0, "cargo xtask test found faults");
    Ok(())
}

/// Runs a stage; an error that is none of a single test's counts as one failure.
fn run_stage(name: &str, run: impl FnOnce() -> Result<Counts>) -> (Counts, Duration) {
    println!("== {name}");
    let begin = Instant::now();
    let counts = run().unwrap_or_else(|error| {
        println!("{name}: {error:#}");
        faults::keep(name, &format!("{error:#}"));
        Counts { failed: 1, ..Counts::default() }
    });
    let took = begin.elapsed();
    println!("== {name}: {counts} in {:.0} s", took.as_secs_f64());
    (counts, took)
}

fn one_passed() -> Counts {
    Counts { passed: 1, ..Counts::default() }
}

fn cargo(arguments: &[&str]) -> Command {
    let mut command = Command::new(workspace::cargo());
    command.args(arguments).current_dir(workspace::root());
    command
}

/// A cargo command that is one check by itself.
fn cargo_check(arguments: &[&str]) -> Result<Counts> {
    let status = cargo(arguments).status().context("start cargo")?;
    ensure!(status.success(), "cargo {} ended with {status}", arguments.join(" "));
    Ok(one_passed())
}

/// The checked-in table of messages is what Kafka's jars say.
fn check_schemas() -> Result<Counts> {
    let jars = install::kafka_lib();
    if !jars.is_dir() {
        ensure!(!workspace::is_ci(), "Kafka's jars are not installed");
        println!("skipped: Kafka's jars are not installed (Java and Maven are needed)");
        return Ok(Counts { skipped: 1, ..Counts::default() });
    }
    let jars = jars.display().to_string();
    let arguments = ["--version", install::KAFKA_VERSION, "--jars", &jars, "--check"];
    schemas::run(&arguments.map(str::to_string))?;
    Ok(one_passed())
}

/// The test programs: what they are built in is a time of its own.
fn build_tests() -> Result<Counts> {
    let programs = unit::build_programs()?;
    println!("{programs} test programs are built");
    Ok(one_passed())
}

/// Unit, property, fuzz-body, integration and documentation tests.
fn cargo_test(options: &Options) -> Result<Counts> {
    // Tests that compare with Kafka's own classes find them there.
    let mut variables = vec![("KAFKA_LIB", install::kafka_lib().display().to_string())];
    let deeper = DEPTH.iter().filter(|(name, _)| options.long && std::env::var_os(name).is_none());
    variables.extend(deeper.map(|(name, value)| (*name, (*value).to_owned())));
    let mut counts = unit::run(&variables, || compile_beside(options))?;
    counts += documentation_tests(&variables)?;
    Ok(counts)
}

/// What other stages would compile by themselves.
fn compile_beside(options: &Options) -> Counts {
    let mut counts = Counts::default();
    if options.lints_beside_tests() {
        let lint = || compile::run("clippy", CLIPPY, &[]).map(|()| one_passed());
        counts += run_stage("clippy", lint).0;
    }
    // What fails here is no failure by itself: who needs it builds it again, and fails.
    if options.wants("readme")
        && let Err(error) = compile::product()
    {
        println!("the broker of README.md: {error:#}");
    }
    if ["interop", "counts"].into_iter().any(|stage| options.wants(stage))
        && let Err(error) = counts::build_beside()
    {
        println!("what is counted: {error:#}");
    }
    counts
}

/// Examples in the documentation. Their output is passed on line by line.
fn documentation_tests(variables: &[(&str, String)]) -> Result<Counts> {
    let mut command = cargo(&["test", "--release", "--workspace", "--doc", "--no-fail-fast"]);
    command.envs(variables.iter().map(|(name, value)| (name, value)));
    let mut child = command.stdout(Stdio::piped()).spawn().context("start cargo")?;
    let output = child.stdout.take().expect("its output is a pipe");
    let mut counts = Counts::default();
    let mut said = String::new();
    for line in BufReader::new(output).lines() {
        let line = line?;
        println!("{line}");
        counts += count_results(&line);
        said.push_str(&line);
        said.push('\n');
    }
    faults::keep_tests("documentation", &said);
    let status = child.wait()?;
    if !status.success() && counts.failed == 0 {
        bail!("cargo test --doc ended with {status}");
    }
    Ok(counts)
}

/// What a closing line of cargo's test runner counts: "test result: ok. 5 passed; 0 failed; 1 ignored; ...".
pub(crate) fn count_results(line: &str) -> Counts {
    let Some(results) = line.strip_prefix("test result: ") else { return Counts::default() };
    let count = |what: &str| {
        let words: Vec<&str> = results.split_whitespace().collect();
        let found = words.windows(2).find(|pair| pair[1].trim_end_matches(';') == what);
        found.and_then(|pair| pair[0].parse().ok()).unwrap_or(0)
    };
    Counts { passed: count("passed"), failed: count("failed"), skipped: count("ignored") }
}

/// Real clients against the release binary, as the tests build it: nothing is compiled twice.
fn run_interop(options: &Options) -> Result<Counts> {
    counts::build()?;
    interop::run_checks(&interop::Options::everything(refusals(options)?))
}

/// How often real clients are refused in each way, where `--long` says it.
fn refusals(options: &Options) -> Result<Option<usize>> {
    let set = DEPTH.iter().find(|(name, _)| options.long && *name == interop::REFUSALS);
    set.map(|(name, times)| times.parse().context(*name)).transpose()
}

/// The examples of README.md, and of the pages that are run as well.
fn run_readme() -> Result<Counts> {
    let mut counts = Counts::default();
    for page in ["README.md", "docs/security.md"] {
        counts += readme::run_examples(&workspace::root().join(page))?;
    }
    Ok(counts)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn closing_lines_are_counted() {
        let line = "test result: FAILED. 12 passed; 1 failed; 3 ignored; 0 measured; 0 filtered out; finished in 0.02s";
        assert_eq!(count_results(line), Counts { passed: 12, failed: 1, skipped: 3 });
        assert_eq!(count_results("test a::b ... ok"), Counts::default());
    }

    #[test]
    fn clippy_is_a_stage_where_no_tests_run_beside_it() {
        let stages = |only: &[&str]| -> Vec<&str> {
            let only = only.iter().map(ToString::to_string).collect();
            Options { long: false, only }.stages().iter().map(|stage| stage.name).collect()
        };
        assert_eq!(
            stages(&[]),
            ["fmt", "build", "schemas", "unit", "interop", "readme", "counts"],
            "it is part of `unit`"
        );
        assert_eq!(stages(&["clippy", "fmt"]), ["fmt", "clippy"]);
        assert_eq!(stages(&["unit", "clippy"]), ["unit"]);
        assert_eq!(stages(&["unit"]), ["unit"]);
    }

    #[test]
    fn real_clients_are_refused_more_often_with_depth() {
        let with = |long| refusals(&Options { long, only: Vec::new() }).unwrap();
        assert_eq!((with(true), with(false)), (Some(100), None));
    }

    #[test]
    fn contributing_explains_each_variable_of_depth() {
        let page = std::fs::read_to_string(workspace::root().join("CONTRIBUTING.md")).unwrap();
        for (name, value) in DEPTH {
            let row = page.lines().find(|line| line.starts_with(&format!("| `{name}` |")));
            assert!(row.is_some_and(|row| row.contains(value)), "no row with {name} and {value}");
        }
    }
}
