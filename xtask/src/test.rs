//! `cargo xtask test`: all checks before a change lands, stage by stage, each with its time.

use std::fs;
use std::sync::LazyLock;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use serde::Serialize;

use crate::cpu::CpuTime;
use crate::interop::report::Counts;
use crate::interop::{self, install};
use crate::nextest::{Nextest, Suite};
use crate::stress::Stress;
use crate::{
    bounds, build, counts, descendants, faults, fuzz, missing, readme, schemas, suites, tidy, workspace,
};

const USAGE: &str = "\
usage: cargo xtask test [--long] [--only STAGE]... [--filter FILTERSET [--fail-fast]]

  --long       with depth: more kills, more cases, longer soaks, fuzzing where a nightly toolchain is
  --only       only this stage, of: fmt, tidy, tests, product, schemas, pure, simulation, broker, faults,
               kafka, readme, interop, counts, bounds, fuzz (the last two with --long)
  --filter     only the tests that this filterset of cargo-nextest lets through, with the broker as it was compiled for tests
  --fail-fast  the first test that fails ends its stage

All that is compiled is compiled by `tests` and `product`; `tests` has clippy's lints as errors. A stage that fails does not keep
the following ones from running, unless these need what it builds. What needs a toolchain that is missing is skipped by name; under CI=true it is an error.";

/// The variables that `--long` sets, unless they are set already; CONTRIBUTING.md explains each.
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
    ("TEST_RENEWALS", "20"),
    ("TEST_TEXT_LINES", "100000"),
    ("TEST_KAFKA_LIVE", "1"),
    ("TEST_JAVA_LIVE", "1"),
];

/// The variables of a run without `--long`, unless they are set already: each kind of fault once at least, and fewer than a test has by
/// default.
const SHORT: &[(&str, &str)] = &[
    ("PROPTEST_CASES", "64"),
    ("TEST_KILLS", "10"),
    ("TEST_QUEUE_KILLS", "50"),
    ("TEST_HANDLER_KILLS", "5"),
    ("TEST_DIRECT_KILLS", "16"),
    ("TEST_DIRECT_SEEDS", "500"),
    ("TEST_CLUSTER_ROUNDS", "12"),
];

/// The first stages, up to the last one that compiles.
const COMPILING: [&str; 4] = ["fmt", "tidy", "tests", "product"];

/// The seed of the run, which is printed at its first use.
static SEED: LazyLock<u64> = LazyLock::new(mainstem_testkit::seed);

/// The stages that only a run with `--long` has, or one that names them.
const OF_LONG_RUNS: [&str; 2] = ["bounds", "fuzz"];

struct Stage {
    name: &'static str,
    /// Seconds that it takes on two CPUs that do nothing else, with nothing compiled yet.
    budget: u32,
    /// True if it uses clients or jars that package managers install.
    uses_clients: bool,
    /// True if it runs beside the stage before it, behind others that do: both mostly wait.
    is_beside: bool,
    run: fn(&Options) -> Result<Counts>,
}

const STAGES: &[Stage] = &[
    stage("fmt", 5, |_| check(&["fmt", "--all", "--check"])),
    stage("tidy", 5, |_| tidy::check().map(|()| one_passed())),
    stage("tests", 345, build_tests),
    stage("product", 230, build_product),
    stage("schemas", 1, |_| check_schemas()).with_clients(),
    stage("pure", 90, |options| run_suite(options, Suite::Pure)).with_clients(),
    stage("simulation", 60, |options| run_suite(options, Suite::Simulation)).with_clients(),
    stage("broker", 100, |options| run_suite(options, Suite::Broker)).with_clients(),
    stage("faults", 355, |options| run_suite(options, Suite::Faults)).with_clients(),
    stage("kafka", 90, run_kafka).with_clients(),
    stage("readme", 45, |_| run_readme()).with_clients().beside(),
    stage("interop", 170, run_interop).with_clients(),
    stage("counts", 25, |_| counts::check()),
    stage("bounds", 900, |_| bounds::run()),
    stage("fuzz", 1800, |_| fuzz::run()),
];

const fn stage(name: &'static str, budget: u32, run: fn(&Options) -> Result<Counts>) -> Stage {
    Stage { name, budget, uses_clients: false, is_beside: false, run }
}

impl Stage {
    const fn with_clients(self) -> Stage {
        Stage { uses_clients: true, ..self }
    }

    const fn beside(self) -> Stage {
        Stage { is_beside: true, ..self }
    }
}

/// The choice of what a run does.
#[derive(Debug, Default)]
pub(crate) struct Options {
    /// True if it has depth.
    pub(crate) is_long: bool,
    /// Names of the stages that run; none: all of them.
    pub(crate) only: Vec<String>,
    /// The filter of nextest for the tests that run; these get the broker as it was compiled for tests. Without it all tests run, with the
    /// product.
    pub(crate) filter: Option<String>,
    /// True if the first test that fails ends its stage.
    pub(crate) is_fail_fast: bool,
    /// True for a change while it is made: no stage has a test that needs the previous release.
    pub(crate) is_quick: bool,
}

impl Options {
    fn parse(arguments: &[String]) -> Result<Options> {
        let mut options = Options::default();
        let mut rest = arguments.iter();
        while let Some(argument) = rest.next() {
            match argument.as_str() {
                "--long" => options.is_long = true,
                "--only" => options.only.push(rest.next().context(USAGE)?.clone()),
                "--filter" => options.filter = Some(rest.next().context(USAGE)?.clone()),
                "--fail-fast" => options.is_fail_fast = true,
                _ => bail!("{USAGE}"),
            }
        }
        let unknown = options.only.iter().find(|only| STAGES.iter().all(|stage| stage.name != **only));
        ensure!(unknown.is_none(), "there is no stage {unknown:?}\n{USAGE}");
        Ok(options)
    }

    fn wants(&self, stage: &str) -> bool {
        self.only.is_empty() && (self.is_long || !OF_LONG_RUNS.contains(&stage))
            || self.only.iter().any(|only| only == stage)
    }

    /// Returns true if tests may start the previous release.
    fn needs_previous(&self) -> bool {
        !self.is_quick && self.filter.is_none()
    }

    /// The stages in their order.
    fn stages(&self) -> Vec<&'static Stage> {
        STAGES.iter().filter(|stage| self.wants(stage.name)).collect()
    }
}

/// The subcommand.
pub(crate) fn run(arguments: &[String]) -> Result<()> {
    if arguments.iter().any(|argument| argument == "--help") {
        println!("{USAGE}");
        return Ok(());
    }
    run_stages(&Options::parse(arguments)?)
}

/// Runs stages in their order, and says what they found.
pub(crate) fn run_stages(options: &Options) -> Result<()> {
    descendants::adopt()?;
    let stages = options.stages();
    missing::print(&stages.iter().map(|stage| stage.name).collect::<Vec<_>>());
    LazyLock::force(&SEED);
    // Package managers wait for the network while compilers work. An error comes up again where a client is used.
    let needs_clients = stages.iter().any(|stage| stage.uses_clients);
    let mut installation = needs_clients.then(|| thread::spawn(interop::prefetch));
    let mut total = Counts::default();
    let (begin, mut times) = (Instant::now(), Vec::new());
    let mut stress = None;
    for group in groups(&stages) {
        if stress.is_none() && !COMPILING.contains(&group[0].name) {
            stress = Stress::from_environment()?;
        }
        let uses_clients = group.iter().any(|stage| stage.uses_clients);
        if uses_clients && let Some(installation) = installation.take() {
            // Its errors are not lost: they come up again, with a name, where a client is used.
            let _ = installation.join();
        }
        let before = CpuTime::now()?;
        let outcomes = run_group(group, options);
        let mut cpu = CpuTime::now()? - before;
        for (Stage { name, budget, .. }, (counts, took)) in group.iter().zip(outcomes) {
            total += counts;
            let seconds = took.as_secs_f64();
            // The CPU time of the first stage of a group is that of the whole group.
            times.push(StageTime { name, seconds, budget: *budget, cpu: std::mem::take(&mut cpu), counts });
        }
        if uses_clients {
            total += suites::end_what_is_left(group[0].name);
        }
    }
    let took = begin.elapsed();
    total += suites::judge_flaky()?;
    faults::print();
    print_times(&times, took)?;
    println!("\n{total}");
    ensure!(total.failed == 0, "the tests found faults");
    Ok(())
}

/// Stages that run beside each other, group by group.
fn groups<'s>(stages: &'s [&'static Stage]) -> impl Iterator<Item = &'s [&'static Stage]> {
    stages.chunk_by(|_, next| next.is_beside)
}

/// Runs the first stage of a group, and beside it the others, one after the other. Returns their outcomes in their order.
fn run_group(group: &[&'static Stage], options: &Options) -> Vec<(Counts, Duration)> {
    let run = |stage: &Stage| run_stage(stage.name, || (stage.run)(options));
    let (first, others) = (group[0], &group[1..]);
    thread::scope(|scope| {
        let others = scope.spawn(|| others.iter().map(|stage| run(stage)).collect::<Vec<_>>());
        let mut outcomes = vec![run(first)];
        outcomes.extend(others.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)));
        outcomes
    })
}

/// The time and the outcome of a stage.
#[derive(Serialize)]
struct StageTime {
    name: &'static str,
    seconds: f64,
    budget: u32,
    cpu: CpuTime,
    #[serde(flatten)]
    counts: Counts,
}

/// A stage that exceeds its budget by this factor has grown, or the machine is slow or busy. That is printed. It is no failure, since no
/// verdict depends on the speed of a machine.
const BUDGETS_MAX: f64 = 1.5;

impl StageTime {
    /// Says that it took much longer than its budget, if it did.
    fn excess(&self) -> Option<String> {
        let StageTime { name, seconds, budget, cpu, .. } = self;
        let is_over = *seconds > BUDGETS_MAX * f64::from(*budget);
        let others = cpu.of_others();
        let hint = if others > 0.2 * seconds { "others kept the machine busy" } else { "see what has grown" };
        is_over.then(|| {
            format!(
                "OVER BUDGET: {name} took {seconds:.0} s of {budget} s; others used {others:.0} s of CPU time: {hint}"
            )
        })
    }
}

fn is_beside(name: &str) -> bool {
    STAGES.iter().any(|stage| stage.name == name && stage.is_beside)
}

/// Times of a run, as `target/ci/times.json` keeps them.
#[derive(Serialize)]
struct Times<'t> {
    stages: &'t [StageTime],
    tests: Vec<suites::TestTime>,
}

/// Prints the times of the stages, and of the run, and keeps them with those of all tests.
fn print_times(stages: &[StageTime], took: Duration) -> Result<()> {
    println!("\nstage        time   budget  CPU time  of others  outcome");
    let print = |name: &str, seconds: f64, budget: u32, cpu: CpuTime, outcome: &dyn std::fmt::Display| {
        let (own, others) = (cpu.own, cpu.of_others());
        println!("{name:<9} {seconds:5.0} s  {budget:5} s  {own:6.0} s   {others:6.0} s  {outcome}");
    };
    for StageTime { name, seconds, budget, cpu, counts } in stages {
        print(name, *seconds, *budget, *cpu, counts);
    }
    let budget = stages.iter().filter(|stage| !is_beside(stage.name)).map(|stage| stage.budget).sum();
    print("sum", took.as_secs_f64(), budget, stages.iter().map(|stage| stage.cpu).sum(), &"");
    stages.iter().filter_map(StageTime::excess).for_each(|excess| println!("{excess}"));
    let path = workspace::ci_dir().join("times.json");
    fs::create_dir_all(workspace::ci_dir())?;
    let text = serde_json::to_string_pretty(&Times { stages, tests: suites::times() })?;
    fs::write(&path, text + "\n").with_context(|| format!("write {}", path.display()))
}

/// Runs a stage; an error that does not belong to a single test counts as one failure.
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

/// A cargo command that is one check by itself.
fn check(arguments: &[&str]) -> Result<Counts> {
    build::run(arguments).map(|()| one_passed())
}

/// Test programs and examples, with lints, and the examples in the documentation.
fn build_tests(options: &Options) -> Result<Counts> {
    let programs = build::tests(options.needs_previous())?;
    println!("{programs} test programs are built");
    if options.filter.is_none() {
        build::documentation(&variables(options))?;
    }
    Ok(one_passed())
}

/// The broker, and what else is built with it: the simulation, and the benchmark cases.
fn build_product(options: &Options) -> Result<Counts> {
    build::product()?;
    Nextest::install()?.build_simulation()?;
    if options.wants("counts") {
        counts::build()?;
    }
    if options.wants("bounds") {
        bounds::build()?;
    }
    Ok(one_passed())
}

/// Checks that the table of messages in the repository is that of Kafka's jars.
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

fn run_suite(options: &Options, suite: Suite) -> Result<Counts> {
    suites::run(suite, options, &variables(options))
}

/// The native client over Kafka's brokers.
fn run_kafka(options: &Options) -> Result<Counts> {
    if !install::kafka_lib().is_dir() {
        ensure!(!workspace::is_ci(), "Kafka's jars are not installed");
        println!("skipped: Kafka's jars are not installed (Java and Maven are needed)");
        return Ok(Counts { skipped: 1, ..Counts::default() });
    }
    suites::run_kafka(options.is_long, &variables(options))
}

/// The environment of tests.
fn variables(options: &Options) -> Vec<(&'static str, String)> {
    let is_product = options.filter.is_none();
    let binary = if is_product { workspace::product() } else { workspace::unoptimised_binary() };
    // Tests that compare with Kafka's own classes find them there.
    let mut variables = vec![
        ("KAFKA_LIB", install::kafka_lib().display().to_string()),
        ("MAINSTEM_BINARY", binary.display().to_string()),
    ];
    let previous = build::previous::binary();
    variables.extend(previous.exists().then(|| (build::previous::VARIABLE, previous.display().to_string())));
    // The random inputs of tests differ from commit to commit, and are the same whenever a commit is tested.
    let seed = SEED.to_string();
    let seeds =
        ["TEST_SEED", "PROPTEST_RNG_SEED"].into_iter().filter(|name| std::env::var_os(name).is_none());
    variables.extend(seeds.map(|name| (name, seed.clone())));
    let depth = if options.is_long { DEPTH } else { SHORT };
    let unset = depth.iter().filter(|(name, _)| std::env::var_os(name).is_none());
    variables.extend(unset.map(|(name, value)| (*name, (*value).to_owned())));
    variables
}

/// Real clients against the broker that users get.
fn run_interop(options: &Options) -> Result<Counts> {
    build::product()?;
    let depth = interop::Depth::new(|name| depth(options, name))?;
    interop::run_checks(&interop::Options::everything(depth))
}

/// The value of a variable, where `--long` sets it.
fn depth(options: &Options, variable: &str) -> Result<Option<u64>> {
    let set = DEPTH.iter().find(|(name, _)| options.is_long && *name == variable);
    set.map(|(name, times)| times.parse().context(*name)).transpose()
}

/// The examples of README.md, and of the pages behind it.
fn run_readme() -> Result<Counts> {
    build::product()?;
    readme::run_pages()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(is_long: bool, only: &[&str]) -> Options {
        Options { is_long, only: only.iter().map(ToString::to_string).collect(), ..Options::default() }
    }

    #[test]
    fn all_is_compiled_before_the_first_test_runs() {
        let stages = |only: &[&str]| -> Vec<&str> {
            options(false, only).stages().iter().map(|stage| stage.name).collect()
        };
        let all = stages(&[]);
        assert_eq!(all[..COMPILING.len()], COMPILING);
        assert_eq!(all.last(), Some(&"counts"), "bounds on time and fuzzing are for long runs");
        assert_eq!(stages(&["product", "tidy", "fmt"]), ["fmt", "tidy", "product"]);
    }

    #[test]
    fn a_quick_run_does_without_the_previous_release() {
        let parse = |arguments: &[&str]| {
            Options::parse(&arguments.iter().map(ToString::to_string).collect::<Vec<_>>()).unwrap()
        };
        assert!(parse(&[]).needs_previous() && parse(&["--only", "tests"]).needs_previous());
        assert!(!parse(&["--filter", "all()"]).needs_previous());
        assert!(!Options { is_quick: true, ..Options::default() }.needs_previous());
    }

    #[test]
    fn stages_that_wait_run_beside_each_other() {
        let names = |only: &[&str]| -> Vec<Vec<&str>> {
            let stages = options(false, only).stages();
            groups(&stages).map(|group| group.iter().map(|stage| stage.name).collect()).collect()
        };
        assert!(names(&[]).contains(&vec!["kafka", "readme"]), "{:?}", names(&[]));
        assert_eq!(
            names(&["readme", "counts"]),
            [vec!["readme"], vec!["counts"]],
            "one by itself begins a group"
        );
    }

    #[test]
    fn a_stage_that_takes_much_longer_than_its_budget_is_named() {
        let after = |seconds, machine| {
            let cpu = CpuTime { own: 10.0, machine };
            StageTime { name: "pure", seconds, budget: 100, cpu, counts: Counts::default() }.excess()
        };
        assert_eq!(after(150.0, 10.0), None);
        let grown = after(151.0, 12.0).unwrap();
        assert!(grown.contains("pure took 151 s of 100 s") && grown.contains("what has grown"), "{grown}");
        assert!(after(151.0, 110.0).unwrap().contains("others kept the machine busy"));
    }

    #[test]
    fn real_clients_are_refused_more_often_with_depth() {
        let times = |is_long, name| depth(&options(is_long, &[]), name).unwrap();
        assert_eq!((times(true, interop::REFUSALS), times(false, interop::REFUSALS)), (Some(100), None));
        assert_eq!(times(true, interop::RENEWALS), Some(20));
    }

    #[test]
    fn contributing_explains_each_variable_of_depth() {
        let page = std::fs::read_to_string(workspace::root().join("CONTRIBUTING.md")).unwrap();
        for (name, value) in DEPTH.iter().chain(SHORT) {
            let row = page.lines().find(|line| line.starts_with(&format!("| `{name}` |")));
            assert!(row.is_some_and(|row| row.contains(value)), "no row with {name} and {value}");
        }
    }
}
