//! The releases of Apache Kafka that tests run against, and the tests that need a feature which some of them lack.

use std::io::Write;
use std::sync::OnceLock;

use super::kafka::KafkaPeer;

/// A release of Apache Kafka.
pub(crate) struct Release {
    /// As Maven names it; `cargo xtask test` installs those that this file names.
    pub(crate) version: &'static str,
    /// Major and minor version, to be compared.
    number: (u32, u32),
    peer: OnceLock<Result<KafkaPeer, String>>,
}

/// The release that most tests compare with.
pub(crate) static NEWEST: Release = Release::new("4.3.0", (4, 3));

/// The oldest one that is supported, and the last one before 4.0.
pub(crate) static OLDEST: Release = Release::new("3.9.2", (3, 9));

/// A feature that tests need and that some releases lack.
struct Need {
    /// In the names of the tests.
    tests: &'static str,
    /// The first release that has it.
    since: (u32, u32),
    what: &'static str,
}

const fn need(tests: &'static str, since: (u32, u32), what: &'static str) -> Need {
    Need { tests, since, what }
}

const NEEDS: &[Need] = &[
    need(
        "consumer_protocol::a_pattern_finds_topics_that_come_later",
        (4, 0),
        "patterns of the consumer protocol",
    ),
    need("groups_have_settings", (4, 0), "settings of groups (KIP-848)"),
    need("what_has_settings_is_listed", (4, 1), "a list of all that has settings (KIP-1142)"),
];

impl Release {
    const fn new(version: &'static str, number: (u32, u32)) -> Release {
        Release { version, number, peer: OnceLock::new() }
    }

    /// Returns true if it is this release or a later one.
    pub(crate) fn is_at_least(&self, major: u32, minor: u32) -> bool {
        self.number >= (major, minor)
    }

    /// Its JVM, which all tests of the process share; the error is the reason if it cannot run.
    pub(crate) fn peer(&'static self) -> &'static Result<KafkaPeer, String> {
        self.peer.get_or_init(|| KafkaPeer::start(self))
    }

    /// Returns true if a test is to run against it; otherwise reports why not. The test's name has its module's and that of the
    /// release before it.
    pub(crate) fn takes(&self, test: &str) -> bool {
        let (module, name) = test.rsplit_once("::").expect("it is in a module");
        let name = format!("{}::{name}", module.rsplit_once("::").expect("it is in a crate").0);
        let lacking = NEEDS.iter().find(|need| name.contains(need.tests) && self.number < need.since);
        if let Some(Need { since, what, .. }) = lacking {
            skipped(test, &format!("Kafka {} lacks {what}, new in {}.{}", self.version, since.0, since.1));
        }
        lacking.is_none()
    }
}

/// Reports why a test does not run. Not by `eprintln`, which is shown only if a test fails.
pub(super) fn skipped(test: &str, why: &str) {
    let _ = writeln!(std::io::stderr(), "skipped: {test}: {why}");
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A name that no test has would let every test run.
    #[test]
    fn the_names_of_the_tables_are_those_of_tests() {
        let sources = sources(&std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("src"));
        for name in NEEDS.iter().map(|need| need.tests) {
            let last = name.trim_end_matches(':').rsplit("::").next().expect("a name has a part");
            let is_there = |what: &str| sources.contains(&format!("{what} {last}"));
            assert!(is_there("async fn") || is_there("mod"), "no test is named {name}");
        }
    }

    fn sources(folder: &std::path::Path) -> String {
        let entries = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
        let text = |path: std::path::PathBuf| match path.is_dir() {
            true => sources(&path),
            false => std::fs::read_to_string(path).unwrap(),
        };
        entries.map(text).collect()
    }
}
