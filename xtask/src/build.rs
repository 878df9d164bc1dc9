//! All that is compiled before the first test runs.
//!
//! The product is built once, in the release profile and with the features that users get. All tests with a broker run this binary. Test
//! programs and examples share its dependencies.

mod dependencies;
pub(crate) mod previous;

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use self::dependencies::Dependencies;
use crate::nextest::Nextest;
use crate::{counts, workspace};

/// Examples that tests or README.md run, and the program that loads the broker while its instructions are counted.
const EXAMPLES: [&str; 5] = ["letters", "lockstep", "orders", "stream_lag", "trades"];

/// A cargo command at the root of the workspace.
pub(crate) fn cargo(arguments: &[&str]) -> Command {
    let mut command = Command::new(workspace::cargo());
    command.args(arguments).current_dir(workspace::root());
    command
}

/// Runs a cargo command, which has to succeed.
pub(crate) fn run(arguments: &[&str]) -> Result<()> {
    let status = cargo(arguments).status().context("start cargo")?;
    ensure!(status.success(), "cargo {} ended with {status}", arguments.join(" "));
    Ok(())
}

/// The broker and its tools, exactly as the first command of README.md builds them.
pub(crate) fn product() -> Result<()> {
    if std::env::var_os("MAINSTEM_BINARY").is_some() {
        println!("the broker is {}, and is not built", workspace::product().display());
        return Ok(());
    }
    run(&["build", "--release"])
}

/// The options and the compiler of everything that only tests run.
///
/// Dependencies that the product has too are compiled once for both. Others are not optimised, and neither are packages of the
/// workspace, since they compile for longer than their tests run; these have debug assertions. Clippy's driver compiles them, so that they are checked on the way.
pub(crate) struct TestBuild {
    /// Options of cargo.
    options: Vec<OsString>,
    /// The program that compiles packages of the workspace, if it is installed.
    clippy: Option<PathBuf>,
}

/// Settings of the release profile for dependencies that are compiled for tests alone.
///
/// Cargo takes each setting for a package from the profile but `strip`. Without it a dependency that programs of the build have too,
/// such as `syn`, is another one for tests, as is all that uses it.
const UNOPTIMISED: [&str; 2] = ["opt-level=0", "strip=\"none\""];

/// The same for packages of the workspace.
const TEST_PROFILE: [&str; 4] =
    [UNOPTIMISED[0], UNOPTIMISED[1], "debug-assertions=true", "codegen-units=256"];

/// The variable in which clippy's driver is given its arguments, each with [`CLIPPY_END`] behind it, as `cargo clippy` does it.
const CLIPPY_ARGUMENTS: &str = "CLIPPY_ARGS";
const CLIPPY_END: &str = "__CLIPPY_HACKERY__";

impl TestBuild {
    /// Finds the options and the compiler, for all commands of a run.
    ///
    /// # Errors
    /// If clippy is missing in continuous integration.
    pub(crate) fn new() -> Result<TestBuild> {
        let options = vec!["--release".into(), "--config".into(), write_profile()?.into_os_string()];
        let clippy = workspace::cargo().with_file_name("clippy-driver");
        let clippy = clippy.is_file().then_some(clippy);
        if clippy.is_none() {
            let missing = "clippy is not installed: rustup component add clippy";
            ensure!(!workspace::is_ci(), missing);
            println!("skipped: no lints, {missing}");
        }
        Ok(TestBuild { options, clippy })
    }

    /// Adds these options, and the compiler, to a command of cargo or of cargo-nextest.
    pub(crate) fn add_to<'c>(&self, command: &'c mut Command) -> &'c mut Command {
        if let Some(clippy) = &self.clippy {
            command.env("RUSTC_WORKSPACE_WRAPPER", clippy);
            command
                .env(CLIPPY_ARGUMENTS, ["-D", "warnings"].map(|word| format!("{word}{CLIPPY_END}")).concat());
        }
        command.args(&self.options)
    }

    /// Runs a command of cargo with them, which has to succeed.
    pub(crate) fn run(
        &self,
        subcommand: &str,
        arguments: &[&str],
        variables: &[(&str, String)],
    ) -> Result<()> {
        let mut command = cargo(&[subcommand]);
        self.add_to(&mut command).args(arguments);
        command.envs(variables.iter().map(|(name, value)| (name, value)));
        let status = command.status().context("start cargo")?;
        ensure!(status.success(), "cargo {subcommand} {} ended with {status}", arguments.join(" "));
        Ok(())
    }
}

/// Writes the settings of the release profile that tests have, as a file of configuration for cargo. Returns its path.
fn write_profile() -> Result<PathBuf> {
    let mut text = settings(&workspace::packages()?, &TEST_PROFILE);
    text += &settings(&Dependencies::read()?.of_tests_alone()?, &UNOPTIMISED);
    write_configuration("test-profile.toml", &text)
}

/// Writes the settings of the release profile for benchmark cases, as a file of configuration for cargo. Returns its path.
///
/// The cases and the product are compiled as users get it. Dependencies that the product does not have are compiled as for tests.
pub(crate) fn write_bench_profile() -> Result<PathBuf> {
    let packages = Dependencies::read()?.not_of_the_product()?;
    write_configuration("bench-profile.toml", &settings(&packages, &UNOPTIMISED))
}

/// Returns the same settings of the release profile for each of these packages.
fn settings(packages: &[String], settings: &[&str]) -> String {
    let settings = settings.join("\n");
    packages.iter().map(|package| format!("[profile.release.package.{package}]\n{settings}\n")).collect()
}

fn write_configuration(name: &str, text: &str) -> Result<PathBuf> {
    fs::create_dir_all(workspace::ci_dir())?;
    let path = workspace::ci_dir().join(name);
    fs::write(&path, text).with_context(|| format!("write {}", path.display()))?;
    Ok(path)
}

/// The examples that are run.
pub(crate) fn examples() -> Result<()> {
    let mut arguments = vec!["--workspace"];
    arguments.extend(EXAMPLES.iter().flat_map(|name| ["--example", name]));
    TestBuild::new()?.run("build", &arguments, &[])
}

/// Test programs, whose number is returned, examples and benchmark cases: all that clippy checks. Beside them the previous release, if it
/// is needed.
pub(crate) fn tests(needs_previous: bool) -> Result<usize> {
    let build = TestBuild::new()?;
    let nextest = Nextest::install()?;
    let kept = KeptProduct::new()?;
    let programs = nextest.build(&build)?;
    let benches = counts::benches()?;
    let mut rest = vec!["--workspace", "--examples"];
    rest.extend(benches.iter().flat_map(|name| ["--bench", name]));
    build.run("build", &rest, &[])?;
    kept.take_unoptimised()?;
    if needs_previous {
        previous::build()?;
    }
    Ok(programs)
}

/// The examples in the documentation, which are compiled as they run.
pub(crate) fn documentation(variables: &[(&str, String)]) -> Result<()> {
    TestBuild::new()?.run("test", &["--workspace", "--doc", "--no-fail-fast"], variables)
}

/// The product, moved away while the same program is compiled for tests: cargo writes both to the same path.
struct KeptProduct {
    place: PathBuf,
    kept: PathBuf,
}

impl KeptProduct {
    fn new() -> Result<KeptProduct> {
        let place = workspace::release_binary("mainstem");
        let kept = workspace::ci_dir().join("kept-mainstem");
        fs::create_dir_all(workspace::ci_dir())?;
        remove(&kept)?;
        if place.exists() {
            fs::rename(&place, &kept).with_context(|| format!("move {}", place.display()))?;
        }
        Ok(KeptProduct { place, kept })
    }

    /// Moves what was compiled for tests to [`workspace::unoptimised_binary`].
    fn take_unoptimised(&self) -> Result<()> {
        let unoptimised = workspace::unoptimised_binary();
        remove(&unoptimised)?;
        fs::rename(&self.place, &unoptimised).with_context(|| format!("move {}", self.place.display()))
    }
}

impl Drop for KeptProduct {
    /// Puts it back. If that fails, the next `cargo build --release` does.
    fn drop(&mut self) {
        if self.kept.exists() {
            let _ = fs::rename(&self.kept, &self.place);
        }
    }
}

/// Removes a file if it exists.
fn remove(path: &Path) -> Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(error).with_context(|| format!("remove {}", path.display()))
        }
        _ => Ok(()),
    }
}
