//! The files that are compiled for tests alone.

use std::collections::BTreeSet;

use crate::sources::Source;

/// Files and folders of modules behind `#[cfg(test)] mod name;`.
pub(super) struct TestCode {
    modules: BTreeSet<String>,
}

impl TestCode {
    /// Reads the modules of all files.
    pub(super) fn new(sources: &[Source]) -> TestCode {
        TestCode { modules: sources.iter().flat_map(modules).collect() }
    }

    /// Returns true if a file is in a folder `tests`, is called `tests.rs`, or is a module that only tests have, or one below it.
    pub(super) fn contains(&self, path: &str) -> bool {
        let is_tests = |part: &str| part == "tests" || part == "tests.rs";
        let ends = path.match_indices('/').map(|(end, _)| end).chain(path.strip_suffix(".rs").map(str::len));
        path.split('/').any(is_tests) || ends.into_iter().any(|end| self.modules.contains(&path[..end]))
    }
}

/// Returns the paths, without `.rs`, of the modules that a file has for tests alone.
fn modules(source: &Source) -> impl Iterator<Item = String> {
    const MARKS: [&str; 2] = ["#[cfg(test)]", "#[cfg(any(test, feature = \"testing\"))]"];
    let text = source.text.as_str();
    let behind = MARKS.into_iter().flat_map(move |mark| {
        text.match_indices(mark).map(move |(at, _)| text[at + mark.len()..].trim_start())
    });
    let names = behind.filter_map(|behind| {
        let line = behind.lines().next()?.strip_suffix(';')?;
        let line =
            ["pub(crate) ", "pub "].iter().find_map(|is_public| line.strip_prefix(is_public)).unwrap_or(line);
        line.strip_prefix("mod ")
    });
    names.map(|name| format!("{}/{name}", folder(&source.path)))
}

/// Returns the folder in which the modules of a file are.
fn folder(path: &str) -> &str {
    let roots = ["/lib.rs", "/main.rs", "/mod.rs", ".rs"];
    roots.into_iter().find_map(|end| path.strip_suffix(end)).unwrap_or(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modules_behind_cfg_test_are_test_code() {
        let source = |path: &str, text: &str| Source { path: path.to_owned(), text: text.to_owned() };
        let tests = TestCode::new(&[
            source("a/src/lib.rs", "#[cfg(test)]\nmod model;\nmod plain;\n#[cfg(test)]\nmod inner { }"),
            source("a/src/log.rs", "#[cfg(test)]\npub(crate) mod testing;"),
        ]);
        for path in [
            "a/src/model.rs",
            "a/src/model/disk.rs",
            "a/src/log/testing.rs",
            "a/src/b/tests.rs",
            "a/tests/it/b.rs",
        ] {
            assert!(tests.contains(path), "{path}");
        }
        for path in
            ["a/src/lib.rs", "a/src/plain.rs", "a/src/models.rs", "a/src/testing.rs", "a/src/inner.rs"]
        {
            assert!(!tests.contains(path), "{path}");
        }
    }
}
