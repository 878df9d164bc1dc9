//! Fuzzing: every body has a target in `fuzz/`, and each target is run for a while.

use std::env;
use std::ffi::OsString;
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::interop::report::Counts;
use crate::{faults, workspace};

/// The version of cargo-fuzz that is installed where there is none.
const CARGO_FUZZ: &str = "0.13.2";
/// Time for which each target is fuzzed, unless [`SECONDS_VARIABLE`] says otherwise.
const SECONDS: u32 = 60;
const SECONDS_VARIABLE: &str = "TEST_FUZZ_SECONDS";
/// An input that takes longer is a finding.
const INPUT_SECONDS_MAX: u32 = 10;

/// Fuzzes each target for a while, where a nightly toolchain is installed. The target CRATE_BODY begins with the inputs
/// in crates/CRATE/corpus/BODY and keeps what it finds in fuzz/corpus.
pub(crate) fn run() -> Result<Counts> {
    if !succeeds(cargo(&["--version"])) {
        let missing =
            "there is no nightly toolchain, which sanitizers need: rustup toolchain install nightly";
        ensure!(!workspace::is_ci(), missing);
        println!("skipped: {missing}");
        return Ok(Counts { skipped: 1, ..Counts::default() });
    }
    if !succeeds(cargo(&["fuzz", "--version"])) {
        install()?;
    }
    let list = cargo(&["fuzz", "list"]).output()?;
    ensure!(list.status.success(), "cargo fuzz list: {}", String::from_utf8_lossy(&list.stderr));
    let seconds = env::var(SECONDS_VARIABLE).ok().and_then(|text| text.parse().ok()).unwrap_or(SECONDS);
    let mut counts = Counts::default();
    for target in String::from_utf8_lossy(&list.stdout).lines() {
        let is_sound = run_target(target, seconds)?;
        if !is_sound {
            println!("{target}: failed; the input is in fuzz/artifacts/{target}, see above");
            faults::keep(target, &format!("the input is in fuzz/artifacts/{target}"));
        }
        counts += Counts { passed: usize::from(is_sound), failed: usize::from(!is_sound), skipped: 0 };
    }
    Ok(counts)
}

/// Installs cargo-fuzz, for this repository alone.
fn install() -> Result<()> {
    println!("installing cargo-fuzz {CARGO_FUZZ} into {}", workspace::tools_dir().display());
    let mut command = Command::new(workspace::cargo());
    command.args(["install", "--quiet", "--locked", "cargo-fuzz", "--version", CARGO_FUZZ, "--root"]);
    command.arg(workspace::tools_dir());
    let status = command.status().context("start cargo")?;
    ensure!(status.success(), "cargo install cargo-fuzz ended with {status}");
    Ok(())
}

fn run_target(target: &str, seconds: u32) -> Result<bool> {
    let found = format!("fuzz/corpus/{target}");
    std::fs::create_dir_all(workspace::root().join(&found))?;
    let (name, body) = target.split_once('_').with_context(|| format!("{target} is not named CRATE_BODY"))?;
    let seeds = format!("crates/{name}/corpus/{body}");
    let limits = [format!("-max_total_time={seconds}"), format!("-timeout={INPUT_SECONDS_MAX}")];
    let mut command = cargo(&["fuzz", "run", target, &found, &seeds, "--"]);
    Ok(command.args(limits).status()?.success())
}

/// `cargo +nightly`: by the name, since the cargo that runs us is of one toolchain. It finds cargo-fuzz on PATH or where
/// [`install`] puts it.
fn cargo(arguments: &[&str]) -> Command {
    let mut command = Command::new("cargo");
    command.arg("+nightly").args(arguments).current_dir(workspace::root());
    command.env_remove("RUSTUP_TOOLCHAIN").env("PATH", path_with_tools());
    command
}

fn path_with_tools() -> OsString {
    let path = env::var_os("PATH").unwrap_or_default();
    let dirs = env::split_paths(&path).chain([workspace::tools_dir().join("bin")]);
    env::join_paths(dirs).unwrap_or(path)
}

fn succeeds(mut command: Command) -> bool {
    command.output().is_ok_and(|output| output.status.success())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::fs;
    use std::path::{Path, PathBuf};

    use super::*;

    fn entries(dir: &Path) -> Vec<PathBuf> {
        let entries = fs::read_dir(dir).unwrap_or_else(|error| panic!("{}: {error}", dir.display()));
        entries.map(|entry| entry.unwrap().path()).collect()
    }

    fn stem(path: &Path) -> String {
        path.file_stem().unwrap().to_str().unwrap().to_owned()
    }

    /// Files whose names begin with `fuzz`, below a directory.
    fn fuzz_files(dir: &Path) -> Vec<PathBuf> {
        let (dirs, files): (Vec<_>, Vec<_>) = entries(dir).into_iter().partition(|path| path.is_dir());
        let own = files.into_iter().filter(|path| stem(path).starts_with("fuzz"));
        own.chain(dirs.iter().flat_map(|dir| fuzz_files(dir))).collect()
    }

    /// The bodies in a file: public functions of any bytes.
    fn bodies_in(text: &str) -> impl Iterator<Item = &str> {
        text.lines().filter_map(|line| line.strip_prefix("pub fn ")?.strip_suffix("(data: &[u8]) {"))
    }

    /// All bodies, as CRATE_BODY.
    fn bodies() -> BTreeSet<String> {
        let crates = entries(&workspace::root().join("crates"));
        let of_crate = |path: &PathBuf| {
            let files = fuzz_files(&path.join("src"));
            let texts = files.iter().map(|file| fs::read_to_string(file).unwrap());
            let name = |body: &str| format!("{}_{body}", stem(path));
            texts.flat_map(|text| bodies_in(&text).map(name).collect::<Vec<_>>()).collect::<Vec<_>>()
        };
        crates.iter().flat_map(of_crate).collect()
    }

    #[test]
    fn bodies_are_public_functions_of_any_bytes() {
        let text = "pub fn a(data: &[u8]) {\npub(crate) fn b(data: &[u8]) {\npub fn c(rest: &[u8]) -> u8 {\n";
        assert_eq!(bodies_in(text).collect::<Vec<_>>(), ["a"]);
    }

    #[test]
    fn every_body_has_a_target_and_a_corpus() {
        let root = workspace::root();
        let bodies = bodies();
        assert!(
            bodies.contains("coordination_consumer_groups"),
            "the sources are not where they were: {bodies:?}"
        );
        let files = entries(&root.join("fuzz/fuzz_targets"));
        assert_eq!(
            files.iter().map(|file| stem(file)).collect::<BTreeSet<_>>(),
            bodies,
            "files of fuzz_targets"
        );
        let manifest = fs::read_to_string(root.join("fuzz/Cargo.toml")).unwrap();
        for name in &bodies {
            let target = format!("name = \"{name}\"\npath = \"fuzz_targets/{name}.rs\"");
            assert!(manifest.contains(&target), "fuzz/Cargo.toml has no target {name}");
            let (of, body) = name.split_once('_').unwrap();
            let target = fs::read_to_string(root.join(format!("fuzz/fuzz_targets/{name}.rs"))).unwrap();
            let calls =
                target.contains(&format!("| mainstem_{of}::")) && target.contains(&format!("::{body}(data)"));
            assert!(calls, "fuzz_targets/{name}.rs does not call its body");
            assert!(
                !entries(&root.join(format!("crates/{of}/corpus/{body}"))).is_empty(),
                "{name} begins with nothing"
            );
        }
    }
}
