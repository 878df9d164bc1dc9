//! Places: the repository, the output of cargo, the installations of `cargo xtask interop`.

use std::env;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use serde::Deserialize;

/// The root of the repository.
pub(crate) fn root() -> PathBuf {
    let xtask = Path::new(env!("CARGO_MANIFEST_DIR"));
    xtask.parent().expect("xtask is a folder of the repository").to_path_buf()
}

/// Returns the folder into which cargo builds.
pub(crate) fn target_dir() -> PathBuf {
    env::var_os("CARGO_TARGET_DIR").map_or_else(|| root().join("target"), PathBuf::from)
}

/// A binary of the workspace, as the release profile builds it.
pub(crate) fn release_binary(name: &str) -> PathBuf {
    target_dir().join("release").join(name)
}

/// The broker that is tested: the one that users get, or the one that `MAINSTEM_BINARY` names.
pub(crate) fn product() -> PathBuf {
    env::var_os("MAINSTEM_BINARY").map_or_else(|| release_binary("mainstem"), PathBuf::from)
}

/// The broker as it was compiled for tests, without optimisation: a change is checked before it has been compiled as users get it.
pub(crate) fn unoptimised_binary() -> PathBuf {
    ci_dir().join("mainstem")
}

/// An example of the workspace.
pub(crate) fn example(name: &str) -> PathBuf {
    release_binary("examples").join(name)
}

/// The names of the packages of the workspace, sorted.
///
/// # Errors
/// If cargo cannot read the workspace.
pub(crate) fn packages() -> Result<Vec<String>> {
    packages_of(&root())
}

/// The same for the workspace in a folder.
pub(crate) fn packages_of(workspace: &Path) -> Result<Vec<String>> {
    let mut metadata = Command::new(cargo());
    metadata.args(["metadata", "--no-deps", "--format-version", "1"]).current_dir(workspace);
    let output = metadata.stderr(Stdio::inherit()).output().context("start cargo")?;
    ensure!(output.status.success(), "cargo metadata ended with {}", output.status);
    let metadata: Metadata = serde_json::from_slice(&output.stdout).context("read cargo's metadata")?;
    let mut names: Vec<_> = metadata.packages.into_iter().map(|package| package.name).collect();
    names.sort();
    Ok(names)
}

/// The part of cargo's metadata that is read.
#[derive(Deserialize)]
struct Metadata {
    packages: Vec<Package>,
}

#[derive(Deserialize)]
struct Package {
    name: String,
}

/// The folder in which a run of the tests leaves its reports.
pub(crate) fn ci_dir() -> PathBuf {
    target_dir().join("ci")
}

/// The folder in which tools of this repository are installed.
pub(crate) fn tools_dir() -> PathBuf {
    target_dir().join("tools")
}

/// Returns the folder in which third-party clients are installed, and their runs leave logs and results.
pub(crate) fn interop_dir() -> PathBuf {
    root().join("target").join("interop")
}

/// Returns true in a run of continuous integration: nothing may be skipped.
pub(crate) fn is_ci() -> bool {
    env::var("CI").is_ok_and(|value| value == "true")
}

/// The program of that name on PATH.
pub(crate) fn find_program(name: &str) -> Option<PathBuf> {
    let path = env::var_os("PATH")?;
    env::split_paths(&path).map(|dir| dir.join(name)).find(|program| program.is_file())
}

/// The cargo that runs us.
pub(crate) fn cargo() -> PathBuf {
    env::var_os("CARGO").map_or_else(|| PathBuf::from("cargo"), PathBuf::from)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::fs;

    use super::*;

    /// Returns the crates that a crate of the workspace needs to run, by the names in its manifest.
    fn dependencies(name: &str) -> Vec<String> {
        let folder = name.strip_prefix("mainstem-").unwrap_or(name);
        let path = root().join("crates").join(folder).join("Cargo.toml");
        let manifest =
            fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        let lines = manifest.lines().skip_while(|line| *line != "[dependencies]").skip(1);
        let lines = lines.take_while(|line| !line.starts_with('['));
        let name = |line: &str| line.split(['.', ' ', '=']).next().map(str::to_owned);
        lines.filter_map(name).filter(|name| !name.is_empty()).collect()
    }

    /// Returns all crates of the workspace that a crate of it needs, directly or through others.
    fn closure(name: &str) -> BTreeSet<String> {
        let (mut found, mut open) = (BTreeSet::new(), vec![name.to_owned()]);
        while let Some(name) = open.pop() {
            let new = dependencies(&name).into_iter().filter(|name| found.insert(name.clone()));
            open.extend(new.collect::<Vec<_>>().into_iter().filter(|name| name.starts_with("mainstem-")));
        }
        found
    }

    /// The broker's start and memory do not depend on packages that streams between services need.
    #[test]
    fn the_broker_is_made_without_the_streams_of_services() {
        let broker = closure("mainstem-broker");
        let of_streams = closure("mainstem-direct");
        assert!(
            broker.contains("mainstem-replication") && of_streams.contains("tonic"),
            "the manifests are read"
        );
        for name in ["mainstem-direct", "mainstem-flow", "tonic", "tonic-prost"] {
            assert!(!broker.contains(name), "the broker needs {name}");
        }
    }

    /// The level of each part of the broker that logs can be set.
    #[test]
    fn each_part_of_the_broker_that_logs_has_a_logger() {
        let loggers = fs::read_to_string(root().join("crates/config/src/loggers.rs")).unwrap();
        let parts = closure("mainstem-broker").into_iter().chain(["mainstem-broker".to_owned()]);
        let logs = |name: &String| {
            name.starts_with("mainstem-") && dependencies(name).iter().any(|needed| needed == "tracing")
        };
        let missing = parts.filter(logs).map(|name| name.replace('-', "_"));
        let missing: Vec<_> =
            missing.filter(|name| !loggers.contains(&format!("    \"{name}\",\n"))).collect();
        assert!(missing.is_empty(), "no logger of crates/config/src/loggers.rs is called {missing:?}");
    }
}
