//! The stage `unit`: every test of the workspace is built at once, and run program by program.
//!
//! Some programs do little but wait, for kills, for JVMs, for a slow network, and some compute in simulated time. They run one after the
//! other beside all others, at a priority so low that these do not feel it, and compilers at a lower one. Programs that run clusters
//! of processes or judge times come last, when all others are through, and run one test at a time: a process that gets no turn for
//! seconds is fenced, or loses its place, as it should.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::sync::Mutex;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use crate::interop::report::Counts;
use crate::{faults, workspace};

/// Targets that mostly wait, for kills and timeouts or for JVMs, or to which time is nothing; the longest come first.
const WAITING: &[&str] = &[
    "takeover",
    "streams",
    "kills",
    "mainstem_simulation",
    "crash",
    "app",
    "half_open",
    "network",
    "codec_differential",
];
/// Targets whose tests start several nodes, or a node with bounds on its times.
const CLUSTERS: &[&str] = &[
    "scenarios",
    "attached",
    "groups",
    "semantics",
    "cluster",
    "cluster_bad_input",
    "cluster_disks",
    "cluster_isolation",
    "cluster_kills",
    "cluster_operations",
    "cluster_security",
    "cluster_snapshots",
];
/// Targets that judge how long something takes, or what is resident meanwhile.
const JUDGES: &[&str] = &["bench", "hostile_connections", "hostile_loads", "stop", "allocations", "memory"];
/// Examples that tests run.
const EXAMPLES: &[&str] = &["stream_lag"];
/// What a waiting program's niceness is raised by.
const NICENESS: &str = "10";
/// So many programs are named with their times at the end.
const SLOWEST: usize = 12;

/// One test program.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Program {
    /// The target's name, which need not be the only one of it.
    target: String,
    executable: PathBuf,
    /// The folder of its package, where cargo would run it.
    folder: PathBuf,
}

/// A program that has ended.
struct Ended {
    target: String,
    took: Duration,
    counts: Counts,
}

/// Builds all tests, runs them with these variables, prints what they print, and counts the outcomes; with those of `compile`, which
/// runs beside the programs that bear company.
pub(crate) fn run(variables: &[(&str, String)], compile: impl FnOnce() -> Counts + Send) -> Result<Counts> {
    let programs = build()?;
    let logs = workspace::root().join("target").join("test-logs");
    fs::create_dir_all(&logs)?;
    let Lanes { beside, rest, alone } = lanes(programs);
    let ended = Mutex::new(Vec::new());
    let lane = |programs: &[Program], is_waiting| -> Result<()> {
        for program in programs {
            let one = run_program(program, is_waiting, variables, &logs)?;
            ended.lock().expect("no thread panics with it").push(one);
        }
        Ok(())
    };
    let mut counts = thread::scope(|scope| {
        let compiling = scope.spawn(compile);
        let waiting = scope.spawn(|| lane(&beside, true));
        lane(&rest, false)?;
        waiting.join().expect("a lane does not panic")?;
        Ok::<_, anyhow::Error>(compiling.join().expect("what compiles does not panic"))
    })?;
    lane(&alone, false)?;
    let mut ended = ended.into_inner().expect("no thread panicked with it");
    ended.iter().for_each(|one| counts += one.counts);
    ended.sort_by_key(|one| std::cmp::Reverse(one.took));
    println!("the slowest test programs:");
    for one in ended.iter().take(SLOWEST) {
        println!("  {:<30} {:5.0} s", one.target, one.took.as_secs_f64());
    }
    Ok(counts)
}

/// Builds everything that [`run`] runs, and returns the number of programs.
pub(crate) fn build_programs() -> Result<usize> {
    build().map(|programs| programs.len())
}

/// Builds what `cargo test` builds, but for examples that no test runs, which clippy checks like all others.
fn build() -> Result<Vec<Program>> {
    let mut command = Command::new(workspace::cargo());
    // Of `cargo test`, an example would be a test program.
    command.args(["build", "--release", "--workspace", "--tests"]);
    command.args(EXAMPLES.iter().flat_map(|name| ["--example", name]));
    command.arg("--message-format=json-render-diagnostics").current_dir(workspace::root());
    let output = command.stderr(Stdio::inherit()).output().context("start cargo")?;
    ensure!(output.status.success(), "building the tests ended with {}", output.status);
    Ok(programs(&String::from_utf8_lossy(&output.stdout)))
}

/// The test programs in the messages of cargo.
fn programs(messages: &str) -> Vec<Program> {
    let messages = messages.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let tests = messages.filter(|message| message["profile"]["test"] == true);
    let mut programs: Vec<_> = tests.filter_map(|message| program(&message)).collect();
    programs.sort_by(|one, other| (&one.folder, &one.target).cmp(&(&other.folder, &other.target)));
    programs
}

fn program(message: &Value) -> Option<Program> {
    Some(Program {
        target: message["target"]["name"].as_str()?.to_owned(),
        executable: message["executable"].as_str()?.into(),
        folder: Path::new(message["manifest_path"].as_str()?).parent()?.to_path_buf(),
    })
}

/// The programs in the order in which they run.
struct Lanes {
    /// Beside `rest`.
    beside: Vec<Program>,
    rest: Vec<Program>,
    /// After both.
    alone: Vec<Program>,
}

fn rank(of: &[&str], program: &Program) -> Option<usize> {
    of.iter().position(|target| *target == program.target)
}

/// Whether its tests run one at a time.
fn is_cluster(program: &Program) -> bool {
    rank(CLUSTERS, program).is_some()
}

fn lanes(programs: Vec<Program>) -> Lanes {
    let (mut beside, others): (Vec<_>, Vec<_>) =
        programs.into_iter().partition(|program| rank(WAITING, program).is_some());
    let is_alone = |program: &Program| is_cluster(program) || rank(JUDGES, program).is_some();
    let (mut alone, rest): (Vec<_>, Vec<_>) = others.into_iter().partition(is_alone);
    beside.sort_by_key(|program| rank(WAITING, program));
    alone.sort_by_key(|program| (rank(JUDGES, program), rank(CLUSTERS, program)));
    Lanes { beside, rest, alone }
}

/// Runs a program to its end and prints what it said.
fn run_program(
    program: &Program,
    is_waiting: bool,
    variables: &[(&str, String)],
    logs: &Path,
) -> Result<Ended> {
    let mut command = match is_waiting {
        true => {
            let mut nice = Command::new("nice");
            nice.args(["-n", NICENESS]).arg(&program.executable);
            nice
        }
        false => Command::new(&program.executable),
    };
    let log = logs.join(format!("{}.log", program.executable.file_name().unwrap_or_default().display()));
    let output = File::create(&log).with_context(|| format!("create {}", log.display()))?;
    command.current_dir(&program.folder).env("CARGO_MANIFEST_DIR", &program.folder);
    command.envs(variables.iter().map(|(name, value)| (name, value)));
    if is_cluster(program) {
        command.env("RUST_TEST_THREADS", "1");
    }
    command.stdin(Stdio::null()).stdout(output.try_clone()?).stderr(output);
    let begin = Instant::now();
    let status = command.status().with_context(|| format!("start {}", program.executable.display()))?;
    let took = begin.elapsed();
    let said = String::from_utf8_lossy(&fs::read(&log)?).into_owned();
    let counts = counts_of(&said, status);
    // One call, so that the lanes do not mix.
    println!("     Running {} ({})\n{said}", program.target, program.executable.display());
    faults::keep_tests(&program.target, &said);
    if !status.success() {
        println!("{} ended with {status}", program.target);
        if !said.contains("test result: ") {
            faults::keep(&program.target, &format!("ended with {status}, see {}", log.display()));
        }
    }
    Ok(Ended { target: program.target.clone(), took, counts })
}

/// The outcomes that a program's harness counts; a program that ends badly without a count is one failure.
fn counts_of(said: &str, status: ExitStatus) -> Counts {
    let mut counts = Counts::default();
    said.lines().for_each(|line| counts += crate::test::count_results(line));
    if !status.success() && counts.failed == 0 {
        counts.failed = 1;
    }
    counts
}

#[cfg(test)]
mod tests {
    use std::ffi::OsString;
    use std::os::unix::process::ExitStatusExt as _;

    use super::*;

    fn message(folder: &str, target: &str, is_test: bool) -> String {
        format!(
            r#"{{"reason":"compiler-artifact","manifest_path":"/w/{folder}/Cargo.toml","target":{{"name":"{target}"}},"profile":{{"test":{is_test}}},"executable":"/w/t/{target}-1"}}"#
        )
    }

    #[test]
    fn programs_run_in_lanes_and_judges_of_time_come_last() {
        let messages = [
            message("tests", "streams", true),
            message("tests", "hostile_loads", true),
            message("tests", "cluster_disks", true),
            message("tests", "takeover", true),
            message("xtask", "xtask", true),
            message("crates/cli", "mainstem", false),
            r#"{"reason":"build-finished","success":true}"#.to_owned(),
        ];
        let Lanes { beside, rest, alone } = lanes(programs(&messages.join("\n")));
        let names = |programs: &[Program]| -> Vec<String> {
            programs.iter().map(|program| program.target.clone()).collect()
        };
        assert_eq!(names(&beside), ["takeover", "streams"]);
        assert_eq!(names(&rest), ["xtask"]);
        assert_eq!(names(&alone), ["cluster_disks", "hostile_loads"]);
        assert_eq!(alone[1].folder, Path::new("/w/tests"));
        assert!(is_cluster(&alone[0]) && !is_cluster(&alone[1]));
    }

    #[test]
    fn a_program_that_ends_badly_is_a_failure() {
        let fine =
            "test result: ok. 2 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.1s";
        let (well, killed) = (ExitStatus::from_raw(0), ExitStatus::from_raw(9));
        assert_eq!(counts_of(fine, well), Counts { passed: 2, failed: 0, skipped: 1 });
        assert_eq!(counts_of(fine, killed), Counts { passed: 2, failed: 1, skipped: 1 });
        assert_eq!(counts_of("thread 'main' panicked", killed).failed, 1);
    }

    #[test]
    fn the_lanes_name_what_there_is() {
        let mut found = Vec::new();
        for root in ["crates", "tests"] {
            let mut folders: Vec<_> = fs::read_dir(workspace::root().join(root)).unwrap().collect();
            folders.extend(fs::read_dir(workspace::root()).unwrap());
            for folder in folders.into_iter().map(Result::unwrap) {
                found.push(OsString::from(format!("mainstem_{}", folder.file_name().display())));
                let Ok(tests) = fs::read_dir(folder.path().join("tests")) else { continue };
                found.extend(tests.map(|test| test.unwrap().path().file_stem().unwrap().to_owned()));
            }
        }
        for name in WAITING.iter().chain(CLUSTERS).chain(JUDGES) {
            assert!(found.iter().any(|target| target == name), "there is no test program {name}");
        }
    }
}
