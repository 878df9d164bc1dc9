//! Intended differences, each with a sentence of `docs/deviations.md`.

use std::collections::BTreeMap;
use std::fmt::Write as _;

/// The verdicts of both on a certificate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Difference {
    pub(crate) java: String,
    pub(crate) ours: String,
}

/// The sections of differences.txt, by case: the reason, and what both say.
pub(crate) struct Known(BTreeMap<String, (String, Difference)>);

/// The placeholder of a reason that is still to be found.
const UNKNOWN: &str = "?";

impl Known {
    /// Reads the file: a case, and below it `why: `, `java: ` and `ours: `.
    pub(crate) fn parse(text: &str) -> Known {
        let lines: Vec<&str> = text.lines().collect();
        let sections = lines.chunks(4).map(|section| {
            let [case, why, java, ours] = section else { panic!("{section:?} is a section of four lines") };
            let part = |line: &str, name: &str| {
                let said = line.strip_prefix("  ").and_then(|line| line.strip_prefix(name));
                said.unwrap_or_else(|| panic!("{case}: {line:?} begins with {name}")).to_owned()
            };
            let difference = Difference { java: part(java, "java: "), ours: part(ours, "ours: ") };
            ((*case).to_owned(), (part(why, "why: "), difference))
        });
        Known(sections.collect())
    }

    /// The new contents of the file for these differences.
    pub(crate) fn updated(&self, found: &BTreeMap<String, Difference>) -> String {
        let mut text = String::new();
        for (case, Difference { java, ours }) in found {
            let why = self.0.get(case).map_or(UNKNOWN, |(why, _)| why);
            writeln!(text, "{case}\n  why: {why}\n  java: {java}\n  ours: {ours}").unwrap();
        }
        text
    }

    /// Checks that every difference is known, that every known one still exists, and that the page has the reason.
    pub(crate) fn judge(&self, found: &BTreeMap<String, Difference>, page: &str) {
        let page = page.split_whitespace().collect::<Vec<_>>().join(" ");
        let mut said = String::new();
        for (case, difference) in found {
            let Some((why, known)) = self.0.get(case) else {
                writeln!(said, "{case} is judged otherwise than by Java: {difference:?}").unwrap();
                continue;
            };
            if known != difference {
                writeln!(said, "{case}: differences.txt has {known:?}, and now it is {difference:?}")
                    .unwrap();
            }
            if why == UNKNOWN || !page.contains(why) {
                writeln!(said, "{case}: docs/deviations.md does not say {why:?}").unwrap();
            }
        }
        for case in self.0.keys().filter(|case| !found.contains_key(*case)) {
            writeln!(said, "{case} is judged as by Java now, and still in differences.txt").unwrap();
        }
        assert!(said.is_empty(), "{said}");
    }
}
