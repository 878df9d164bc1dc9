//! The record: a line for each count, and the compiler that made the programs.

use std::collections::BTreeMap;
use std::fmt;
use std::process::Command;

use anyhow::{Context, Result};

use super::Counted;

/// The most by which the count of a case may differ from the record. Runs of the same program do not differ at all. The compiler may lay
/// out code differently after a change elsewhere in its crate.
const CASE_PERCENT: f64 = 3.0;
/// The same for a broker, whose housekeeping depends on the clock: runs differ by up to 2 % on a busy machine.
const BROKER_PERCENT: f64 = 5.0;
/// The same if another compiler made the programs.
pub(super) const OTHER_COMPILER_PERCENT: f64 = 25.0;

const HEADER: &str = "\
# Instructions of the benchmark cases (one call) and of the broker (one message), as callgrind counts them.
# Written by `cargo xtask counts --update`; CONTRIBUTING.md says what to do when a count changes.
";

/// A file of counts.
#[derive(Debug, PartialEq)]
pub(super) struct Record {
    /// The version of rustc.
    pub(super) compiler: String,
    pub(super) counts: BTreeMap<String, u64>,
}

/// The verdict on a count, with the change in per cent.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Verdict {
    Same(f64),
    /// Less than recorded: no fault, but if it is not recorded, the gain can be lost again without notice.
    Less(f64),
    More(f64),
    /// Not recorded.
    New,
    /// Recorded, and not counted any more.
    Gone,
}

impl Record {
    /// Reads a file.
    pub(super) fn parse(text: &str) -> Result<Record> {
        let lines = text.lines().filter(|line| !line.starts_with('#') && !line.trim().is_empty());
        let mut pairs = lines.map(|line| {
            let mut words = line.split_whitespace();
            let pair = words.next().zip(words.next());
            pair.with_context(|| format!("{line:?} is not a name and a number"))
        });
        let (first, compiler) = pairs.next().context("it is empty")??;
        anyhow::ensure!(first == "rustc", "the first line names the version of rustc");
        let counts = pairs.map(|pair| {
            let (name, count) = pair?;
            Ok((name.to_owned(), count.parse().with_context(|| format!("{name} {count}"))?))
        });
        Ok(Record { compiler: compiler.to_owned(), counts: counts.collect::<Result<_>>()? })
    }

    /// Compares a count with what is recorded, for programs made by a compiler.
    pub(super) fn judge(&self, name: &str, count: u64, compiler: &str) -> Verdict {
        let Some(&recorded) = self.counts.get(name) else { return Verdict::New };
        let tolerance = match name.starts_with("broker/") {
            _ if compiler != self.compiler => OTHER_COMPILER_PERCENT,
            true => BROKER_PERCENT,
            false => CASE_PERCENT,
        };
        let change = 100.0 * (count as f64 - recorded as f64) / recorded as f64;
        match change {
            change if change > tolerance => Verdict::More(change),
            change if change < -tolerance => Verdict::Less(change),
            change => Verdict::Same(change),
        }
    }

    /// Names with `only` in them that were not counted.
    pub(super) fn missing_in<'a>(
        &'a self,
        counted: &'a [Counted],
        only: &'a str,
    ) -> impl Iterator<Item = &'a str> {
        let names = self.counts.keys().map(String::as_str).filter(move |name| name.contains(only));
        names.filter(|name| counted.iter().all(|(other, _)| other != name))
    }
}

impl fmt::Display for Record {
    fn fmt(&self, text: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(text, "{HEADER}rustc {}", self.compiler)?;
        self.counts.iter().try_for_each(|(name, count)| writeln!(text, "{name} {count}"))
    }
}

impl Verdict {
    /// Returns true if it is a failure, and not only a note.
    pub(super) fn is_failure(self) -> bool {
        matches!(self, Verdict::More(_) | Verdict::New | Verdict::Gone)
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, text: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Verdict::Same(change) => write!(text, "{change:+.1} %"),
            Verdict::Less(change) => write!(text, "{change:+.1} %: record it by cargo xtask counts --update"),
            Verdict::More(change) => write!(text, "{change:+.1} %: TOO MANY"),
            Verdict::New => write!(text, "NOT RECORDED"),
            Verdict::Gone => write!(text, "RECORDED, AND NOT THERE"),
        }
    }
}

/// The version of the rustc that builds here.
pub(super) fn compiler() -> Result<String> {
    let rustc = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let output = Command::new(rustc).arg("--version").output().context("start rustc")?;
    let text = String::from_utf8_lossy(&output.stdout);
    let version = text.split_whitespace().nth(1).context("rustc does not tell its version")?;
    Ok(version.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record() -> Record {
        let counts = [("log/append".to_owned(), 1_000), ("wire/decode".to_owned(), 200)];
        Record { compiler: "1.97.0".to_owned(), counts: counts.into() }
    }

    #[test]
    fn what_is_written_is_read() {
        assert_eq!(Record::parse(&record().to_string()).unwrap(), record());
        assert!(Record::parse("# nothing\n").is_err());
        assert!(Record::parse("wire/decode 3\n").is_err());
        assert!(Record::parse("rustc 1.97.0\nwire/decode many\n").is_err());
    }

    #[test]
    fn counts_are_judged_by_their_change() {
        let judge = |name, count| record().judge(name, count, "1.97.0");
        assert_eq!(judge("log/append", 1_030), Verdict::Same(3.0));
        assert_eq!(judge("log/append", 1_040), Verdict::More(4.0));
        assert_eq!(judge("log/append", 900), Verdict::Less(-10.0));
        assert_eq!(judge("log/other", 900), Verdict::New);
        assert_eq!(record().judge("log/append", 1_250, "1.98.0"), Verdict::Same(25.0));
        assert_eq!(record().judge("log/append", 1_260, "1.98.0"), Verdict::More(26.0));
        assert!(Verdict::More(4.0).is_failure() && !Verdict::Less(-10.0).is_failure());
    }

    #[test]
    fn what_is_recorded_has_to_be_counted() {
        let counted = [("log/append".to_owned(), 1)];
        let record = record();
        assert_eq!(record.missing_in(&counted, "").collect::<Vec<_>>(), ["wire/decode"]);
        assert_eq!(record.missing_in(&counted, "log").count(), 0);
    }
}
