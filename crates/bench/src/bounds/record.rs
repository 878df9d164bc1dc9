//! The record: the median of each figure, and the factor that is permitted above it, a line for each.

use std::fmt;

use anyhow::{Context, Result};

use super::Bound;
use super::measure::Figures;

const HEADER: &str = "\
# Figures that tests measure: the program, the test, the figure, what it was, and the factor that a run may be above that.
# Less is better. `mainstem-bench bounds` compares, `mainstem-bench bounds --update` writes what it measures and leaves the factors.
# A new figure is written with FACTOR_NEW; a new test begins as a line with any figure of it. CONTRIBUTING.md says more.
";

/// The factor of a figure that was not recorded before.
const FACTOR_NEW: f64 = 3.0;

/// The lines of the file.
#[derive(Debug, PartialEq)]
pub(super) struct Record(Vec<Line>);

#[derive(Debug, Clone, PartialEq)]
struct Line {
    program: String,
    test: String,
    figure: String,
    recorded: f64,
    factor: f64,
}

impl Record {
    /// Reads a file.
    pub(super) fn parse(text: &str) -> Result<Record> {
        let lines = text.lines().filter(|line| !line.starts_with('#') && !line.trim().is_empty());
        lines.map(Line::parse).collect::<Result<_>>().map(Record)
    }

    /// Programs and tests with `only` in their names, each once, in the order of the file.
    pub(super) fn tests_with(&self, only: &str) -> Vec<(String, String)> {
        let tests = self.0.iter().filter(|line| line.test.contains(only));
        let mut tests: Vec<_> = tests.map(|line| (line.program.clone(), line.test.clone())).collect();
        tests.dedup();
        tests
    }

    /// Compares what was measured of a test with what is recorded of it.
    pub(super) fn judge(&self, program: &str, test: &str, medians: &Figures) -> Vec<Bound> {
        let of_test = self.0.iter().filter(|line| line.is_of(program, test));
        let bound = |figure: &str, median, max| Bound {
            test: test.to_owned(),
            figure: figure.to_owned(),
            median,
            max,
        };
        let recorded = of_test.clone().map(|line| {
            bound(&line.figure, medians.get(&line.figure).copied(), Some(line.recorded * line.factor))
        });
        let is_new = |figure: &&String| of_test.clone().all(|line| line.figure != **figure);
        let new = medians.keys().filter(is_new).map(|figure| bound(figure, Some(medians[figure]), None));
        recorded.chain(new).collect()
    }

    /// Records what was measured of a test, in the place of what was.
    pub(super) fn update(&mut self, program: &str, test: &str, medians: &Figures) {
        let Some(at) = self.0.iter().position(|line| line.is_of(program, test)) else { return };
        let of_test: Vec<Line> = self.0.extract_if(.., |line| line.is_of(program, test)).collect();
        let lines = medians.iter().map(|(figure, recorded)| {
            let before = of_test.iter().find(|line| line.figure == *figure);
            Line {
                program: program.to_owned(),
                test: test.to_owned(),
                figure: figure.clone(),
                recorded: *recorded,
                factor: before.map_or(FACTOR_NEW, |line| line.factor),
            }
        });
        self.0.splice(at..at, lines);
    }
}

impl Line {
    fn parse(line: &str) -> Result<Line> {
        let words: Vec<&str> = line.split_whitespace().collect();
        let [program, test, figure, recorded, factor] = words[..] else {
            anyhow::bail!("{line:?} is not a program, a test, a figure, its value and a factor")
        };
        let number = |word: &str| word.parse::<f64>().with_context(|| format!("{word:?} in {line:?}"));
        Ok(Line {
            program: program.to_owned(),
            test: test.to_owned(),
            figure: figure.to_owned(),
            recorded: number(recorded)?,
            factor: number(factor)?,
        })
    }

    fn is_of(&self, program: &str, test: &str) -> bool {
        self.program == program && self.test == test
    }
}

impl fmt::Display for Record {
    fn fmt(&self, text: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(text, "{}", HEADER.replace("FACTOR_NEW", &FACTOR_NEW.to_string()))?;
        self.0.iter().try_for_each(|line| {
            let Line { program, test, figure, recorded, factor } = line;
            writeln!(text, "{program} {test} {figure} {recorded:.3} {factor}")
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "a::it one p99 2.000 3\na::it one worst 10.000 1.5\nb two cpu 0.500 4\n";

    fn record() -> Record {
        Record::parse(TEXT).unwrap()
    }

    fn figures<const N: usize>(figures: [(&str, f64); N]) -> Figures {
        figures.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
    }

    #[test]
    fn what_is_written_is_read() {
        assert_eq!(Record::parse(&record().to_string()).unwrap(), record());
        assert!(Record::parse("a::it one p99 2\n").is_err());
        assert!(Record::parse("a::it one p99 two 3\n").is_err());
    }

    #[test]
    fn tests_are_run_once_each() {
        let names = |only| record().tests_with(only).into_iter().map(|(_, test)| test).collect::<Vec<_>>();
        assert_eq!(names(""), ["one", "two"]);
        assert_eq!(names("tw"), ["two"]);
    }

    #[test]
    fn a_figure_is_judged_by_its_factor_and_has_to_be_measured_and_recorded() {
        let judge = |medians| {
            let bounds = record().judge("a::it", "one", &medians);
            bounds.into_iter().map(|bound| (bound.figure.clone(), bound.is_failure())).collect::<Vec<_>>()
        };
        let named = |name: &str, fails| (name.to_owned(), fails);
        let fits = figures([("p99", 6.0), ("worst", 15.0)]);
        assert_eq!(judge(fits), [named("p99", false), named("worst", false)]);
        let more = figures([("p99", 6.1), ("worst", 1.0)]);
        assert_eq!(judge(more), [named("p99", true), named("worst", false)]);
        let others = figures([("p99", 1.0), ("p50", 1.0)]);
        assert_eq!(judge(others), [named("p99", false), named("worst", true), named("p50", true)]);
        assert_eq!(judge(figures([("p99", f64::NAN), ("worst", 1.0)]))[0], named("p99", true));
    }

    #[test]
    fn an_update_keeps_factors_and_other_tests() {
        let mut record = record();
        record.update("a::it", "one", &figures([("p50", 1.0), ("p99", 4.0)]));
        let expected = "a::it one p50 1.000 3\na::it one p99 4.000 3\nb two cpu 0.500 4\n";
        assert_eq!(record, Record::parse(expected).unwrap());
    }
}
