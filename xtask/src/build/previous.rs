//! The previous release, from which a test upgrades a cluster.
//!
//! Its source comes from the history of this repository. It is compiled once, and kept. Its dependencies are those of the product with
//! the same settings, so that cargo compiles them for both.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};

use super::{remove, settings, write_configuration};
use crate::{sources, workspace};

/// The last release before `mainstem.version`: Mainstem 0.1.
const COMMIT: &str = "9632804f8e72b2e61c803b087c0810d409591a4b";
/// Digits of a commit where it is shown.
const SHOWN_DIGITS: usize = 12;
/// The variable that names its binary: for tests, and of a person who has one.
pub(crate) const VARIABLE: &str = "TEST_PREVIOUS_BINARY";

/// Settings of the release profile for packages of the previous release: they compile for longer than they run. Assertions and checks
/// of overflow are as users have them.
const PROFILE: [&str; 2] = ["opt-level=0", "codegen-units=256"];

/// The binary that [`build`] keeps, or the one that [`VARIABLE`] names.
pub(crate) fn binary() -> PathBuf {
    let kept = || workspace::ci_dir().join(format!("mainstem-{}", &COMMIT[..SHOWN_DIGITS]));
    std::env::var_os(VARIABLE).map_or_else(kept, PathBuf::from)
}

/// Builds it unless it is there. Without its source that is skipped.
///
/// Cargo writes it to the place of the product, which has to be moved away before.
///
/// # Errors
/// If it does not compile, or in continuous integration without its source.
pub(super) fn build() -> Result<()> {
    let binary = binary();
    if std::env::var_os(VARIABLE).is_some() {
        println!("the previous release is {}, and is not built", binary.display());
        return Ok(());
    }
    if binary.exists() {
        return Ok(());
    }
    if let Err(error) = find_commit(&workspace::root(), COMMIT) {
        let missing = format!("the upgrade from the previous release, since {error:#}");
        ensure!(!workspace::is_ci(), "cannot test {missing}");
        println!("skipped: {missing}");
        return Ok(());
    }
    let source = workspace::target_dir().join("previous").join("src");
    extract(&workspace::root(), COMMIT, &source)?;
    compile(&source).with_context(|| format!("build the previous release in {}", source.display()))?;
    let built = workspace::release_binary("mainstem");
    fs::rename(&built, &binary).with_context(|| format!("move {}", built.display()))
}

/// Finds a commit in a clone. A shallow clone fetches it.
fn find_commit(clone: &Path, commit: &str) -> Result<()> {
    let git = |arguments: &[&str]| sources::git(clone, arguments);
    if git(&["cat-file", "-e", &format!("{commit}^{{commit}}")]).is_ok() {
        return Ok(());
    }
    let lacks = || {
        format!(
            "this is no clone with its commit {}; clone the repository with its history, or name a binary by {VARIABLE}",
            &commit[..SHOWN_DIGITS]
        )
    };
    match git(&["rev-parse", "--is-shallow-repository"]).with_context(lacks)?.trim() {
        "true" => git(&["fetch", "--quiet", "--depth", "1", "origin", commit]).with_context(lacks).map(drop),
        _ => bail!(lacks()),
    }
}

/// Writes the files of a commit into a folder, which has nothing else then.
fn extract(clone: &Path, commit: &str, folder: &Path) -> Result<()> {
    if folder.exists() {
        fs::remove_dir_all(folder).with_context(|| format!("remove {}", folder.display()))?;
    }
    fs::create_dir_all(folder).with_context(|| format!("create {}", folder.display()))?;
    let archive = folder.with_extension("tar");
    let name = archive.to_str().with_context(|| format!("{} is not UTF-8", archive.display()))?;
    sources::git(clone, &["archive", "--output", name, commit])?;
    let status = Command::new("tar").arg("-xf").arg(&archive).arg("-C").arg(folder).status();
    let status = status.context("start tar: install it")?;
    ensure!(status.success(), "tar of {name} ended with {status}");
    remove(&archive)
}

fn compile(source: &Path) -> Result<()> {
    let profile = settings(&workspace::packages_of(source)?, &PROFILE);
    let mut cargo = Command::new(workspace::cargo());
    cargo.args(["build", "--release", "--locked", "--package", "mainstem-cli", "--bin", "mainstem"]);
    cargo.arg("--target-dir").arg(workspace::root().join(workspace::target_dir()));
    cargo.arg("--config").arg(write_configuration("previous-profile.toml", &profile)?);
    let status = cargo.current_dir(source).status().context("start cargo")?;
    ensure!(status.success(), "cargo build ended with {status}");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs git in a folder, by a name and without the configuration of who runs it.
    fn git(folder: &Path, arguments: &[&str]) -> String {
        let as_somebody = ["-c", "user.name=n", "-c", "user.email=e", "-c", "commit.gpgsign=false"];
        sources::git(folder, &[&as_somebody, arguments].concat()).unwrap().trim().to_owned()
    }

    /// A repository with two commits. Returns the first of them.
    fn repository(folder: &Path) -> String {
        git(folder, &["init", "--quiet"]);
        for text in ["first", "second"] {
            fs::write(folder.join("file"), text).unwrap();
            git(folder, &["add", "file"]);
            git(folder, &["commit", "--quiet", "--message", text]);
        }
        git(folder, &["rev-parse", "HEAD~1"])
    }

    #[test]
    fn the_commit_is_named_by_all_its_digits() {
        assert_eq!(COMMIT.len(), 40);
        assert!(COMMIT.bytes().all(|digit| digit.is_ascii_hexdigit()), "{COMMIT}");
    }

    #[test]
    fn a_shallow_clone_fetches_the_commit() {
        let home = tempfile::tempdir().unwrap();
        let [origin, shallow] = ["origin", "shallow"].map(|name| home.path().join(name));
        fs::create_dir(&origin).unwrap();
        let first = repository(&origin);
        let url = format!("file://{}", origin.display());
        git(home.path(), &["clone", "--quiet", "--depth", "1", &url, "shallow"]);
        extract(&shallow, &first, &home.path().join("src")).unwrap_err();
        find_commit(&shallow, &first).unwrap();
        extract(&shallow, &first, &home.path().join("src")).unwrap();
        assert_eq!(fs::read_to_string(home.path().join("src").join("file")).unwrap(), "first");
    }

    #[test]
    fn a_copy_without_the_history_says_what_to_do() {
        let home = tempfile::tempdir().unwrap();
        let check = |folder: &Path| {
            let said = format!("{:#}", find_commit(folder, COMMIT).unwrap_err());
            assert!(
                said.contains("commit 9632804f8e72; clone the repository with its history, or"),
                "{said}"
            );
        };
        check(home.path());
        repository(home.path());
        check(home.path());
        find_commit(home.path(), &git(home.path(), &["rev-parse", "HEAD~1"])).unwrap();
    }
}
