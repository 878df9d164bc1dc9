//! Lines that have changed since the numbers were written, to tell new places from old ones.

use std::collections::BTreeMap;

use anyhow::Result;

use super::Place;
use crate::{sources, workspace};

/// The lines that are new, or differ from those of a commit.
#[derive(Default)]
pub(super) struct Changes {
    /// The commit, if there is one.
    since: Option<String>,
    /// First and last line of what is new, by file.
    lines: BTreeMap<String, Vec<(u32, u32)>>,
}

impl Changes {
    /// Reads the changes since the last commit that changed `xtask/tidy.toml`.
    ///
    /// # Errors
    /// If git fails.
    pub(super) fn since_the_numbers() -> Result<Changes> {
        let git = |arguments: &[&str]| sources::git(&workspace::root(), arguments);
        let since = git(&["log", "-1", "--format=%h", "--", "xtask/tidy.toml"])?;
        let since = since.trim();
        if since.is_empty() {
            return Ok(Changes::default());
        }
        let prefixes = ["--src-prefix=a/", "--dst-prefix=b/", "--no-color", "--no-ext-diff"];
        let diff = git(&[&["diff", "--unified=0"], &prefixes[..], &[since, "--"]].concat())?;
        Ok(Changes::parse(since, &diff, &git(&["ls-files", "--others", "--exclude-standard"])?))
    }

    /// Reads a diff without context, and a list of files that are new as a whole.
    pub(super) fn parse(since: &str, diff: &str, new: &str) -> Changes {
        let mut lines: BTreeMap<String, Vec<(u32, u32)>> =
            new.lines().map(|file| (file.to_owned(), vec![(1, u32::MAX)])).collect();
        let mut of_file = Vec::new();
        for line in diff.lines().rev() {
            if let Some(hunk) = line.strip_prefix("@@ ") {
                of_file.extend(new_lines(hunk));
            } else if let Some(file) = line.strip_prefix("+++ ") {
                let hunks = std::mem::take(&mut of_file);
                lines.entry(file.strip_prefix("b/").unwrap_or(file).to_owned()).or_default().extend(hunks);
            }
        }
        Changes { since: Some(since.to_owned()), lines }
    }

    pub(super) fn since(&self) -> Option<&str> {
        self.since.as_deref()
    }

    /// Returns true if a line of a place is new, or one of the second place of a pair.
    pub(super) fn touch(&self, place: &Place) -> bool {
        let touches = |file: &str, first: u32, last: u32| {
            let new = self.lines.get(file);
            new.is_some_and(|new| new.iter().any(|(begin, end)| *begin <= last && first <= *end))
        };
        let of_other = place.other.as_ref().is_some_and(|(file, first, last)| touches(file, *first, *last));
        touches(&place.file, place.first_line, place.last_line) || of_other
    }
}

/// Returns the first and the last new line of a hunk `-a,b +c,d @@`: none if lines are only removed.
fn new_lines(hunk: &str) -> Option<(u32, u32)> {
    let new = hunk.split(' ').find_map(|part| part.strip_prefix('+'))?;
    let (begin, count) = new.split_once(',').unwrap_or((new, "1"));
    let (begin, count): (u32, u32) = (begin.parse().ok()?, count.parse().ok()?);
    (count > 0).then(|| (begin, begin + count - 1))
}

#[cfg(test)]
mod tests {
    use super::*;

    const DIFF: &str = "\
diff --git a/a.rs b/a.rs
--- a/a.rs
+++ b/a.rs
@@ -1 +1 @@ fn a() {
-x
+y
@@ -10,3 +10,0 @@
-x
@@ -20,0 +18,2 @@
+x
+y
diff --git a/b.rs b/b.rs
--- a/b.rs
+++ b/b.rs
@@ -5,2 +5,3 @@
";

    #[test]
    fn a_place_is_new_if_one_of_its_lines_is() {
        let changes = Changes::parse("abc", DIFF, "c.rs\n");
        let is_new = |file: &str, first_line, last_line| {
            changes.touch(&Place { first_line, last_line, ..Place::line(file, 0) })
        };
        assert!(
            is_new("a.rs", 1, 1) && is_new("a.rs", 2, 18) && is_new("a.rs", 19, 30) && is_new("b.rs", 7, 7)
        );
        assert!(
            !is_new("a.rs", 2, 17)
                && !is_new("a.rs", 20, 99)
                && !is_new("b.rs", 8, 8)
                && !is_new("d.rs", 1, 9)
        );
        assert!(is_new("c.rs", 1_000, 1_000), "a file that git does not track yet is new");
    }

    #[test]
    fn a_pair_is_new_if_one_of_its_passages_is() {
        let changes = Changes::parse("abc", DIFF, "");
        let pair = |line| Place { other: Some(("b.rs".to_owned(), line, line)), ..Place::line("a.rs", 50) };
        assert!(changes.touch(&pair(5)) && !changes.touch(&pair(4)));
    }

    #[test]
    fn without_a_commit_nothing_is_known_to_be_new() {
        assert!(!Changes::default().touch(&Place::line("a.rs", 1)) && Changes::default().since().is_none());
    }
}
