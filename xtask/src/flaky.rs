//! Tests that failed and passed at their second try: when a run may pass with them.
//!
//! `tests/flaky.toml` lists those that are known, with a reason each. The list is short and its entries are young, so that
//! it is a list of repairs to do and not a place to forget tests in.

use std::collections::BTreeMap;
use std::fs;
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, ensure};
use serde::{Deserialize, Serialize};

use crate::workspace;

/// Flaky tests with which a run passes.
const IN_A_RUN_MAX: usize = 3;
/// Entries of the list.
const LISTED_MAX: usize = 10;
/// Days that an entry may stay.
const DAYS_MAX: i64 = 14;
const SECONDS_A_DAY: u64 = 24 * 3600;

/// `tests/flaky.toml`.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct List {
    #[serde(default, rename = "test")]
    tests: Vec<Known>,
}

/// A test that is known to be flaky.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Known {
    name: String,
    /// `YYYY-MM-DD`.
    since: String,
    /// The commit in which it was seen.
    #[serde(rename = "commit")]
    _commit: String,
    reason: String,
}

/// A test that passed at its second try, as `target/ci/flaky.json` keeps it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct Flaky {
    pub(crate) name: String,
    /// Output of the first try.
    pub(crate) first_failure: String,
}

impl List {
    /// Reads the list of this repository, and holds it to its own rules.
    pub(crate) fn read() -> Result<List> {
        let path = workspace::root().join("tests").join("flaky.toml");
        let text = fs::read_to_string(&path).with_context(|| format!("read {}", path.display()))?;
        let today =
            SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs() / SECONDS_A_DAY;
        List::parse(&text, today as i64).with_context(|| format!("in {}", path.display()))
    }

    /// `today`: days since 1970.
    fn parse(text: &str, today: i64) -> Result<List> {
        let list: List = toml::from_str(text)?;
        ensure!(
            list.tests.len() <= LISTED_MAX,
            "{} tests are listed, and {LISTED_MAX} may be: repair some",
            list.tests.len()
        );
        for known in &list.tests {
            let day = day(&known.since).with_context(|| format!("{}: since is YYYY-MM-DD", known.name))?;
            let age = today - day;
            ensure!(
                age <= DAYS_MAX,
                "{} is listed for {age} days, and {DAYS_MAX} are allowed: repair it",
                known.name
            );
            ensure!(!known.reason.trim().is_empty(), "{} has no reason", known.name);
        }
        Ok(list)
    }

    /// Failures that follow from the flaky tests of a run: the name of each, and the reason.
    pub(crate) fn judge(&self, flaky: &[Flaky]) -> BTreeMap<String, String> {
        let is_known = |name: &str| self.tests.iter().any(|known| known.name == name);
        let unknown = flaky.iter().filter(|test| !is_known(&test.name));
        let mut faults: BTreeMap<String, String> = unknown
            .map(|test| {
                let why = "it failed, passed at its second try, and tests/flaky.toml does not list it";
                (test.name.clone(), format!("{why}\n{}", test.first_failure))
            })
            .collect();
        if flaky.len() > IN_A_RUN_MAX {
            let why = format!("{} tests passed at their second try, and {IN_A_RUN_MAX} may", flaky.len());
            faults.insert("flaky tests".into(), why);
        }
        faults
    }
}

/// Days from 1970 to a date of the Gregorian calendar.
fn day(date: &str) -> Option<i64> {
    let mut parts = date.split('-').map(|part| part.parse::<i64>().ok());
    let (year, month, day) = (parts.next()??, parts.next()??, parts.next()??);
    let is_date = parts.next().is_none() && (1..=12).contains(&month) && (1..=31).contains(&day);
    // Years begin in March, so that the day of a leap year is the last one.
    let (year, month) = if month <= 2 { (year - 1, month + 9) } else { (year, month - 3) };
    let before = year * 365 + year.div_euclid(4) - year.div_euclid(100) + year.div_euclid(400);
    is_date.then(|| before + (month * 153 + 2) / 5 + day - 1 - 719_468)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(name: &str, since: &str) -> String {
        format!("[[test]]\nname = \"{name}\"\nsince = \"{since}\"\ncommit = \"abc\"\nreason = \"a port\"\n")
    }

    fn flaky(name: &str) -> Flaky {
        Flaky { name: name.into(), first_failure: "panicked".into() }
    }

    #[test]
    fn a_listed_test_may_be_flaky_and_another_may_not() {
        let list = List::parse(&entry("a::it b", "2026-11-20"), day("2026-11-28").unwrap()).unwrap();
        assert!(list.judge(&[flaky("a::it b")]).is_empty());
        let faults = list.judge(&[flaky("a::it b"), flaky("a::it c")]);
        assert_eq!(faults.keys().collect::<Vec<_>>(), ["a::it c"]);
    }

    #[test]
    fn more_than_three_fail_a_run_even_where_all_are_listed() {
        let names = ["a 1", "a 2", "a 3", "a 4"];
        let text: String = names.iter().map(|name| entry(name, "2026-11-20")).collect();
        let list = List::parse(&text, day("2026-11-28").unwrap()).unwrap();
        assert!(list.judge(&names[..3].iter().map(|name| flaky(name)).collect::<Vec<_>>()).is_empty());
        let faults = list.judge(&names.map(flaky));
        assert_eq!(faults.keys().collect::<Vec<_>>(), ["flaky tests"]);
    }

    #[test]
    fn entries_are_few_and_young_and_have_reasons() {
        let today = day("2026-11-28").unwrap();
        List::parse(&entry("a", "2026-11-14"), today).unwrap();
        List::parse(&entry("a", "2026-11-13"), today).unwrap_err();
        List::parse(&entry("a", "yesterday"), today).unwrap_err();
        let many: String = (0..11).map(|number| entry(&number.to_string(), "2026-11-28")).collect();
        List::parse(&many, today).unwrap_err();
        List::parse(&entry("a", "2026-11-28").replace("a port", " "), today).unwrap_err();
    }

    #[test]
    fn days_are_counted_by_the_calendar() {
        assert_eq!(day("1970-01-01"), Some(0));
        assert_eq!(day("2000-02-29"), Some(11_016));
        assert_eq!(day("2026-11-28"), Some(20_785));
        assert_eq!(day("2026-13-01"), None);
    }

    #[test]
    fn the_list_of_the_repository_can_be_read() {
        let text = fs::read_to_string(workspace::root().join("tests/flaky.toml")).unwrap();
        // Its age is a matter of the run and not of this test.
        List::parse(&text, 0).unwrap();
    }
}
