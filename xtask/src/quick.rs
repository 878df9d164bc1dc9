//! `cargo xtask quick`: a change is checked while it is made.
//!
//! The tests of the packages that have changed, and of those that depend on them, run against the broker as it was compiled for
//! tests. Nothing that has not changed is compiled again.

use std::collections::BTreeSet;

use anyhow::{Context, Result, bail};

use crate::test::{self, Options};
use crate::{sources, workspace};

const USAGE: &str = "\
usage: cargo xtask quick [--all] [--since COMMIT]

  --all    all packages, the product and the simulation: what there is but clusters and faults, hostile peers, real clients,
           instructions
  --since  what has changed since that commit (default: HEAD, so that it is what is not committed)

Checks the format and the counts of tidy, lints, and runs the tests of the packages that have changed and of those that depend on them.";

/// The stages for what has changed.
const STAGES: [&str; 5] = ["fmt", "tidy", "tests", "pure", "broker"];
/// The stages with `--all`.
const ALL_STAGES: [&str; 7] = ["fmt", "tidy", "tests", "product", "pure", "simulation", "broker"];

/// The subcommand.
pub(crate) fn run(arguments: &[String]) -> Result<()> {
    let (mut is_all, mut since) = (false, "HEAD".to_owned());
    let mut rest = arguments.iter();
    while let Some(argument) = rest.next() {
        match argument.as_str() {
            "--all" => is_all = true,
            "--since" => since.clone_from(rest.next().context(USAGE)?),
            "--help" => {
                println!("{USAGE}");
                return Ok(());
            }
            _ => bail!("{USAGE}"),
        }
    }
    let names = |names: &[&str]| names.iter().map(ToString::to_string).collect();
    if is_all {
        return test::run_stages(&Options { only: names(&ALL_STAGES), is_quick: true, ..Options::default() });
    }
    let changed = match changed(&files(&since)?)? {
        Changed::Packages(packages) if packages.is_empty() => {
            println!("no package has changed since {since}; cargo xtask quick --all checks all of them");
            return test::run_stages(&Options { only: names(&["fmt", "tidy"]), ..Options::default() });
        }
        changed => changed,
    };
    println!("{}", changed.text());
    let filter = Some(changed.filter());
    test::run_stages(&Options { only: names(&STAGES), filter, is_quick: true, ..Options::default() })
}

/// The packages that have to be checked again.
#[derive(Debug, PartialEq, Eq)]
enum Changed {
    /// All of them: all packages depend on a changed file.
    All,
    /// These, and what depends on them.
    Packages(BTreeSet<String>),
}

impl Changed {
    fn text(&self) -> String {
        match self {
            Changed::All => "what all packages are made with has changed".to_owned(),
            Changed::Packages(packages) => {
                format!("changed: {}", packages.iter().cloned().collect::<Vec<_>>().join(", "))
            }
        }
    }

    /// The filter of nextest.
    fn filter(&self) -> String {
        match self {
            Changed::All => "all()".to_owned(),
            Changed::Packages(packages) => {
                packages.iter().map(|name| format!("rdeps(={name})")).collect::<Vec<_>>().join(" | ")
            }
        }
    }
}

/// The files that differ from a commit, or are new: paths from the root of the repository.
fn files(since: &str) -> Result<Vec<String>> {
    let mut files = git(&["diff", "--name-only", since])?;
    files.extend(git(&["ls-files", "--others", "--exclude-standard"])?);
    Ok(files)
}

fn git(arguments: &[&str]) -> Result<Vec<String>> {
    let listed = sources::git(&workspace::root(), arguments)?;
    Ok(listed.lines().map(str::to_owned).collect())
}

/// Returns the packages that files belong to. Pages and fixtures outside of packages are read by tests of `xtask`.
fn changed(files: &[String]) -> Result<Changed> {
    let packages = workspace::packages()?;
    let mut changed = BTreeSet::new();
    for file in files {
        let package = match file.split('/').collect::<Vec<_>>()[..] {
            ["crates", folder, ..] => format!("mainstem-{folder}"),
            ["tests", ..] => "mainstem-tests".to_owned(),
            ["Cargo.toml" | "Cargo.lock" | "clippy.toml" | "rust-toolchain.toml"]
            | [".cargo" | ".config", ..] => {
                return Ok(Changed::All);
            }
            _ => "xtask".to_owned(),
        };
        // A removed package has changed the manifests of others.
        changed.extend(packages.contains(&package).then_some(package));
    }
    Ok(Changed::Packages(changed))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(files: &[&str]) -> Changed {
        changed(&files.iter().map(ToString::to_string).collect::<Vec<_>>()).unwrap()
    }

    #[test]
    fn files_are_of_packages() {
        let packages = |names: &[&str]| Changed::Packages(names.iter().map(ToString::to_string).collect());
        assert_eq!(of(&[]), packages(&[]));
        let files = ["crates/log/src/lib.rs", "crates/log/Cargo.toml", "tests/tests/it/main.rs", "docs/a.md"];
        assert_eq!(of(&files), packages(&["mainstem-log", "mainstem-tests", "xtask"]));
        assert_eq!(of(&["crates/gone/src/lib.rs"]), packages(&[]));
        assert_eq!(of(&["crates/log/src/lib.rs", "Cargo.lock"]), Changed::All);
    }

    #[test]
    fn what_depends_on_a_package_is_tested_with_it() {
        assert_eq!(of(&["crates/log/a", "xtask/a"]).filter(), "rdeps(=mainstem-log) | rdeps(=xtask)");
        assert_eq!(Changed::All.filter(), "all()");
    }
}
