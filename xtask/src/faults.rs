//! Failures, repeated at the end of `cargo xtask test`: the output before it is long, and logs often keep only its end.

use std::sync::{Mutex, PoisonError};

/// Lines of a fault that are repeated; the rest is where it was printed first.
const LINES_MAX: usize = 8;
/// Characters of a line that are repeated.
const LINE_CHARS_MAX: usize = 400;

static FAULTS: Mutex<Vec<String>> = Mutex::new(Vec::new());

/// Keeps a fault for the end: what failed, and why.
pub(crate) fn keep(what: &str, why: &str) {
    FAULTS.lock().unwrap_or_else(PoisonError::into_inner).push(format!("{what}\n{}", indented(why)));
}

/// Prints the faults that were kept.
pub(crate) fn print() {
    let faults = FAULTS.lock().unwrap_or_else(PoisonError::into_inner);
    if !faults.is_empty() {
        println!("\nwhat failed:\n{}", faults.join("\n"));
    }
}

/// The beginning of a text, with a margin.
pub(crate) fn indented(why: &str) -> String {
    let lines = why.lines().filter(|line| !line.trim().is_empty());
    let cut = lines.take(LINES_MAX).map(|line| line.chars().take(LINE_CHARS_MAX).collect::<String>());
    cut.map(|line| format!("    {line}")).collect::<Vec<_>>().join("\n")
}

/// Names and panics of failed tests, from the blocks `---- NAME stdout ----` of a test program's output.
pub(crate) fn failed_tests(said: &str) -> Vec<(String, String)> {
    let mut failed: Vec<(String, String)> = Vec::new();
    let mut is_inside = false;
    for line in said.lines() {
        if let Some(name) = line.strip_prefix("---- ").and_then(|line| line.strip_suffix(" stdout ----")) {
            failed.push((name.to_owned(), String::new()));
            is_inside = true;
        } else if line == "failures:" || line.starts_with("test result: ") {
            is_inside = false;
        } else if let Some((_, why)) = failed.last_mut().filter(|_| is_inside) {
            // The output of a test before its panic was printed when it ran.
            if line.contains("panicked at") {
                why.clear();
            }
            why.push_str(line);
            why.push('\n');
        }
    }
    failed
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failed_test_is_repeated_with_its_panic() {
        let said = "\
test a::one ... ok
test a::two ... FAILED

failures:

---- a::two stdout ----
a line of the test
thread 'a::two' panicked at src/a.rs:1:2:
assertion failed: 2 < 1
note: run with `RUST_BACKTRACE=1`

failures:
    a::two

test result: FAILED. 1 passed; 1 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.02s";
        let failed = failed_tests(said);
        assert_eq!(failed.len(), 1);
        assert_eq!(failed[0].0, "a::two");
        assert!(
            failed[0].1.starts_with("thread 'a::two' panicked at src/a.rs:1:2:\nassertion failed: 2 < 1\n")
        );
        assert!(!failed[0].1.contains("test result"), "{}", failed[0].1);
    }

    #[test]
    fn a_long_fault_is_cut() {
        let long = "x".repeat(10_000) + "\n" + &"line\n".repeat(100);
        let cut = indented(&long);
        assert_eq!(cut.lines().count(), LINES_MAX);
        assert!(cut.lines().all(|line| line.len() <= LINE_CHARS_MAX + 4));
    }
}
