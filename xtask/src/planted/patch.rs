//! The patches of `tests/planted`: a few lines that describe the fault, then a diff.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};

/// A fault, and how it is planted.
#[derive(Debug, Clone)]
pub(crate) struct Patch {
    /// The name of its file, without `.patch`.
    pub(crate) name: String,
    pub(crate) path: PathBuf,
    /// The mistake that a person would have made.
    pub(crate) fault: String,
    /// The promise that no longer holds.
    pub(crate) breaks: String,
    /// The packages whose tests run first.
    pub(crate) packages: Vec<String>,
}

/// Reads all patches of a folder, by name.
///
/// # Errors
/// If a file cannot be read, or does not describe its fault.
pub(crate) fn read_all(folder: &Path) -> Result<Vec<Patch>> {
    let mut patches = Vec::new();
    for entry in fs::read_dir(folder).with_context(|| format!("list {}", folder.display()))? {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == "patch") {
            patches.push(read(&path)?);
        }
    }
    patches.sort_by(|one, other| one.name.cmp(&other.name));
    Ok(patches)
}

fn read(path: &Path) -> Result<Patch> {
    let text = fs::read_to_string(path).with_context(|| format!("read {}", path.display()))?;
    let head: Vec<&str> = text.lines().take_while(|line| !line.starts_with("diff --git")).collect();
    let field = |name: &str| {
        let line = head.iter().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "));
        line.map(str::trim).with_context(|| format!("{} has no line `{name}: ...`", path.display()))
    };
    ensure!(head.len() < text.lines().count(), "{} has no diff", path.display());
    let name = path.file_stem().context("a patch without a name")?.to_string_lossy().into_owned();
    Ok(Patch {
        name,
        path: path.to_path_buf(),
        fault: field("Fault")?.to_owned(),
        breaks: field("Breaks")?.to_owned(),
        packages: field("Packages")?.split(',').map(|package| package.trim().to_owned()).collect(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_patch_says_what_it_plants() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("early-vote.patch");
        let head = "Fault: A vote is given early.\nBreaks: One leader.\nPackages: a, b\n\n";
        fs::write(&path, format!("{head}diff --git a/x b/x\n")).unwrap();
        fs::write(folder.path().join("README.md"), "no patch").unwrap();
        let patches = read_all(folder.path()).unwrap();
        assert_eq!(patches.len(), 1);
        assert_eq!((patches[0].name.as_str(), patches[0].breaks.as_str()), ("early-vote", "One leader."));
        assert_eq!(patches[0].packages, ["a", "b"]);
    }

    #[test]
    fn what_is_missing_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x.patch");
        for (text, missing) in [
            ("Fault: a\nPackages: b\ndiff --git", "`Breaks"),
            ("Fault: a\nBreaks: b\nPackages: c\n", "no diff"),
        ] {
            fs::write(&path, text).unwrap();
            let error = format!("{:#}", read_all(folder.path()).unwrap_err());
            assert!(error.contains(missing), "{error}");
        }
    }
}
