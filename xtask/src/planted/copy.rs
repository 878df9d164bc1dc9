//! A copy of the repository in which faults are planted: the repository itself never has one.

use std::fs;
use std::io;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::{sources, workspace};

/// Files of a copy that are not of the repository: what is compiled there.
const BUILT: &str = "target";

/// A copy of the repository.
pub(super) struct Copy {
    tree: PathBuf,
    logs: PathBuf,
}

impl Copy {
    /// Makes the copy in a folder, or updates the existing one.
    pub(super) fn create(folder: &Path) -> Result<Copy> {
        fs::create_dir_all(folder).with_context(|| format!("create {}", folder.display()))?;
        let folder = &folder.canonicalize().with_context(|| format!("find {}", folder.display()))?;
        let copy = Copy { tree: folder.join("tree"), logs: folder.join("logs") };
        let built = copy.tree.join(BUILT);
        for folder in [&built, &copy.logs] {
            fs::create_dir_all(folder).with_context(|| format!("create {}", folder.display()))?;
        }
        // Packages that were installed are used by the copy too.
        for (name, there) in [("tools", workspace::tools_dir()), ("interop", workspace::interop_dir())] {
            fs::create_dir_all(&there).with_context(|| format!("create {}", there.display()))?;
            let there = there.canonicalize().with_context(|| format!("find {}", there.display()))?;
            match symlink(&there, built.join(name)) {
                Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
                    return Err(error).with_context(|| format!("link to {}", there.display()));
                }
                _ => {}
            }
        }
        copy.update()?;
        Ok(copy)
    }

    pub(super) fn tree(&self) -> &Path {
        &self.tree
    }

    pub(super) fn logs(&self) -> &Path {
        &self.logs
    }

    /// Makes the copy the same as the repository. Files that are the same already keep their times, so that cargo compiles only
    /// what differs.
    pub(super) fn update(&self) -> Result<()> {
        let root = workspace::root();
        let mut files = sources::files(&root)?;
        // The copy itself is left out, if its folder is not ignored by git.
        files.retain(|file| !root.join(file).starts_with(&self.tree));
        for file in &files {
            update_file(&root.join(file), &self.tree.join(file))?;
        }
        for file in files_below(&self.tree, Path::new(""))? {
            if !files.contains(&file) {
                let path = self.tree.join(file);
                fs::remove_file(&path).with_context(|| format!("remove {}", path.display()))?;
            }
        }
        Ok(())
    }

    /// Applies a patch.
    pub(super) fn apply(&self, patch: &Path) -> Result<()> {
        apply(&self.tree, &[], patch)
    }
}

/// Checks that a patch would apply to a tree, which stays unchanged, or that it is applied there, as in a copy.
#[cfg(test)]
pub(super) fn check_applies(tree: &Path, patch: &Path) -> Result<()> {
    apply(tree, &["--check"], patch)
        .or_else(|error| apply(tree, &["--check", "--reverse"], patch).map_err(|_| error))
}

fn apply(tree: &Path, options: &[&str], patch: &Path) -> Result<()> {
    let mut git = Command::new("git");
    // The copy is inside the repository: git would look for the patched files there.
    git.env("GIT_CEILING_DIRECTORIES", tree.parent().unwrap_or(tree));
    let output = git.arg("apply").args(options).arg(patch).current_dir(tree).output().context("start git")?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{} does not apply: make it again\n{said}", patch.display());
    Ok(())
}

/// Returns the files of a copy, without those that are compiled there.
fn files_below(tree: &Path, below: &Path) -> Result<Vec<PathBuf>> {
    let folder = tree.join(below);
    let mut found = Vec::new();
    for entry in fs::read_dir(&folder).with_context(|| format!("list {}", folder.display()))? {
        let entry = entry?;
        let path = below.join(entry.file_name());
        if path == Path::new(BUILT) {
            continue;
        }
        match entry.file_type()?.is_dir() {
            true => found.extend(files_below(tree, &path)?),
            false => found.push(path),
        }
    }
    Ok(found)
}

/// Makes one file the same as another, permissions included.
fn update_file(from: &Path, to: &Path) -> Result<()> {
    let context = || format!("copy {} to {}", from.display(), to.display());
    if from.symlink_metadata().with_context(context)?.is_symlink() {
        if to.symlink_metadata().is_err() {
            create_parent(to)?;
            symlink(fs::read_link(from).with_context(context)?, to).with_context(context)?;
        }
        return Ok(());
    }
    let content = fs::read(from).with_context(context)?;
    if fs::read(to).is_ok_and(|there| there == content) {
        return Ok(());
    }
    create_parent(to)?;
    fs::write(to, content).with_context(context)?;
    fs::set_permissions(to, from.metadata().with_context(context)?.permissions()).with_context(context)
}

fn create_parent(path: &Path) -> Result<()> {
    let parent = path.parent().context("a file has a folder")?;
    fs::create_dir_all(parent).with_context(|| format!("create {}", parent.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_is_the_same_keeps_its_time() {
        let folder = tempfile::tempdir().unwrap();
        let (from, to) = (folder.path().join("from"), folder.path().join("a").join("to"));
        fs::write(&from, "one").unwrap();
        update_file(&from, &to).unwrap();
        let long_ago = std::time::SystemTime::UNIX_EPOCH;
        fs::File::options().write(true).open(&to).unwrap().set_modified(long_ago).unwrap();
        update_file(&from, &to).unwrap();
        assert_eq!(to.metadata().unwrap().modified().unwrap(), long_ago);
        fs::write(&from, "two").unwrap();
        update_file(&from, &to).unwrap();
        assert_eq!(fs::read_to_string(&to).unwrap(), "two");
        assert_ne!(to.metadata().unwrap().modified().unwrap(), long_ago);
    }

    #[test]
    fn a_patch_changes_the_copy_and_not_the_repository_around_it() {
        let folder = tempfile::tempdir().unwrap();
        let (tree, patch) = (folder.path().join("tree"), folder.path().join("x.patch"));
        fs::create_dir(&tree).unwrap();
        fs::write(tree.join("a"), "one\n").unwrap();
        fs::write(&patch, "Fault: x\ndiff --git a/a b/a\n--- a/a\n+++ b/a\n@@ -1 +1 @@\n-one\n+two\n")
            .unwrap();
        check_applies(&tree, &patch).unwrap();
        assert_eq!(fs::read_to_string(tree.join("a")).unwrap(), "one\n");
        apply(&tree, &[], &patch).unwrap();
        assert_eq!(fs::read_to_string(tree.join("a")).unwrap(), "two\n");
        let error = apply(&tree, &[], &patch).unwrap_err();
        assert!(error.to_string().contains("does not apply"), "{error}");
    }

    #[test]
    fn what_is_compiled_in_a_copy_is_no_file_of_it() {
        let tree = tempfile::tempdir().unwrap();
        for name in ["target/debug/x", "crates/log/target/y", "Cargo.toml"] {
            let path = tree.path().join(name);
            create_parent(&path).unwrap();
            fs::write(path, "").unwrap();
        }
        let mut found = files_below(tree.path(), Path::new("")).unwrap();
        found.sort();
        assert_eq!(found, ["Cargo.toml", "crates/log/target/y"].map(PathBuf::from));
    }
}
