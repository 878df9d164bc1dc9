//! Runs of one test, and the figures that it prints.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};

use crate::stats::Spread;

/// The prefix of a line with a figure.
const MARK: &str = "figure: ";

/// Figures by their names.
pub(super) type Figures = BTreeMap<String, f64>;

/// The medians of what a test prints in so many runs; it also measures where it is left out of ordinary runs.
pub(super) fn measure(
    program: &Path,
    test: &str,
    runs: usize,
    mut get_quiet: impl FnMut() -> Result<()>,
) -> Result<Figures> {
    let mut values: BTreeMap<String, Vec<f64>> = BTreeMap::new();
    for _ in 0..runs {
        get_quiet()?;
        for (name, value) in run(program, test)? {
            values.entry(name).or_default().push(value);
        }
    }
    let median = |(name, values)| Some((name, Spread::of(values)?.median));
    Ok(values.into_iter().filter_map(median).collect())
}

fn run(program: &Path, test: &str) -> Result<Figures> {
    let mut command = Command::new(program);
    command.args(["--exact", test, "--include-ignored", "--nocapture", "--test-threads=1"]);
    let output =
        command.stdin(Stdio::null()).output().with_context(|| format!("start {}", program.display()))?;
    let said = String::from_utf8_lossy(&output.stdout);
    ensure!(
        output.status.success(),
        "{test} ended with {}\n{said}\n{}",
        output.status,
        String::from_utf8_lossy(&output.stderr)
    );
    ensure!(
        said.contains("1 passed"),
        "{} has no test {test}: is its name another one now?",
        program.display()
    );
    figures(&said)
}

/// The figures in what a test program prints; the harness prints words of its own in the same line.
fn figures(said: &str) -> Result<Figures> {
    let figure = |line: &str| {
        let (name, value) = line.rsplit_once(MARK)?.1.split_once(' ')?;
        let value = value.trim().parse::<f64>().with_context(|| format!("{line:?} has no number"));
        Some(value.map(|value| (name.to_owned(), value)))
    };
    said.lines().filter_map(figure).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_found_beside_what_else_is_printed() {
        let said = "running 1 test\ntest a::b ... figure: p99 1.25\nother\nfigure: worst 7\nok\n";
        let expected = Figures::from([("p99".to_owned(), 1.25), ("worst".to_owned(), 7.0)]);
        assert_eq!(figures(said).unwrap(), expected);
        assert!(figures("figure: p99 much\n").is_err());
    }

    #[test]
    fn a_program_without_the_test_is_an_error() {
        let program = std::env::current_exe().unwrap();
        let error = measure(&program, "no::such::test", 1, || Ok(())).unwrap_err();
        assert!(error.to_string().contains("has no test no::such::test"), "{error}");
    }

    /// Run by itself, it measures something.
    #[test]
    #[ignore = "the next test runs it"]
    fn measures() {
        println!("{MARK}two {}", 2);
    }

    #[test]
    fn a_test_that_is_left_out_of_ordinary_runs_is_run() {
        let program = std::env::current_exe().unwrap();
        let figures = measure(&program, "bounds::measure::tests::measures", 3, || Ok(())).unwrap();
        assert_eq!(figures, Figures::from([("two".to_owned(), 2.0)]));
    }
}
