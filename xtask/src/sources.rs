//! The files of the repository: those that git tracks, and new ones that it does not ignore. In a copy without git, all files.

use std::collections::BTreeSet;
use std::fs;
use std::num::NonZero;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;

use anyhow::{Context, Result, ensure};

use crate::workspace;

/// A file and its text.
pub(crate) struct Source {
    /// From the root of the repository.
    pub(crate) path: String,
    pub(crate) text: String,
}

/// Returns the files whose names end like one of these, in the order of their paths.
///
/// # Errors
/// If the files cannot be listed, or one is no UTF-8.
pub(crate) fn read(ends: &[&str]) -> Result<Vec<Source>> {
    let files = all_files(&workspace::root())?.into_iter().map(|path| path.to_string_lossy().into_owned());
    files.filter(|path| ends.iter().any(|end| path.ends_with(end))).map(read_one).collect()
}

fn read_one(path: String) -> Result<Source> {
    let text = fs::read_to_string(workspace::root().join(&path)).with_context(|| format!("read {path}"))?;
    Ok(Source { path, text })
}

/// Returns the files of the repository, or all files below its folder if this is no checkout, as paths from there.
fn all_files(root: &Path) -> Result<BTreeSet<PathBuf>> {
    match files(root) {
        // Git lists nothing of a tree that a checkout around it ignores.
        Ok(files) if files.contains(Path::new("Cargo.toml")) => Ok(files),
        _ => walk(root),
    }
}

/// Returns the files below a folder without those that are hidden or built.
fn walk(root: &Path) -> Result<BTreeSet<PathBuf>> {
    let (mut found, mut folders) = (BTreeSet::new(), vec![root.to_owned()]);
    while let Some(folder) = folders.pop() {
        let entries = fs::read_dir(&folder).with_context(|| format!("list {}", folder.display()))?;
        for entry in entries {
            let (path, name) = entry.map(|entry| (entry.path(), entry.file_name()))?;
            let name = name.to_string_lossy();
            if name.starts_with('.') || name == "target" {
                continue;
            }
            if path.is_dir() {
                folders.push(path);
            } else {
                found.insert(path.strip_prefix(root).unwrap_or(&path).to_owned());
            }
        }
    }
    Ok(found)
}

/// Returns all files that git knows or does not ignore, as paths from the root.
///
/// # Errors
/// If git cannot list them.
pub(crate) fn files(root: &Path) -> Result<BTreeSet<PathBuf>> {
    let names = git(root, &["ls-files", "-z", "--cached", "--others", "--exclude-standard"])?;
    // A file that is removed but not committed is listed all the same.
    let files = names.split('\0').filter(|name| !name.is_empty()).map(PathBuf::from);
    Ok(files.filter(|file| root.join(file).symlink_metadata().is_ok()).collect())
}

/// Returns the output of a git command in a folder.
///
/// # Errors
/// If git is missing, or fails.
pub(crate) fn git(folder: &Path, arguments: &[&str]) -> Result<String> {
    let output = Command::new("git").args(arguments).current_dir(folder).output();
    let output = output.context("start git, which knows the files of the repository: install it")?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "git {} ended with {}: {said}", arguments.join(" "), output.status);
    String::from_utf8(output.stdout).context("git names a file whose name is not UTF-8: rename it")
}

/// Calls a function for each item, on all CPUs. Returns the results in the order of the items.
pub(crate) fn in_parallel<'i, I: Sync, R: Send>(items: &'i [I], call: impl Fn(&'i I) -> R + Sync) -> Vec<R> {
    let threads = thread::available_parallelism().map_or(1, NonZero::get);
    let size = items.len().div_ceil(threads).max(1);
    let call = &call;
    thread::scope(|scope| {
        let parts: Vec<_> = items
            .chunks(size)
            .map(|part| scope.spawn(move || part.iter().map(call).collect::<Vec<R>>()))
            .collect();
        let join = |part: thread::ScopedJoinHandle<'_, Vec<R>>| {
            part.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        };
        parts.into_iter().flat_map(join).collect()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_found_by_the_end_of_their_names() {
        let found = read(&["xtask/src/sources.rs", "clippy.toml"]).unwrap();
        let paths: Vec<&str> = found.iter().map(|source| source.path.as_str()).collect();
        assert!(paths.contains(&"clippy.toml") && paths.contains(&"xtask/src/sources.rs"), "{paths:?}");
        assert!(found.iter().all(|source| !source.text.is_empty()));
    }

    #[test]
    fn a_copy_without_git_has_the_same_sources() {
        let root = workspace::root();
        let is_source = |path: &&PathBuf| path.extension().is_some_and(|extension| extension == "rs");
        let walked = walk(&root).unwrap();
        let walked: Vec<_> = walked.iter().filter(is_source).collect();
        assert!(walked.len() > 500, "{} files", walked.len());
        let all = all_files(&root).unwrap();
        assert_eq!(all.iter().filter(is_source).collect::<Vec<_>>(), walked);
    }

    #[test]
    fn results_have_the_order_of_the_items() {
        let items: Vec<u32> = (0..100).collect();
        assert_eq!(in_parallel(&items, |item| item + 1), (1..101).collect::<Vec<u32>>());
        assert_eq!(in_parallel(&[], |item: &u32| *item), [0; 0]);
    }
}
