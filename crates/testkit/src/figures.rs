//! Figures that a test measures and does not judge: a busy machine has others.

/// Prints a figure for `mainstem-bench bounds`, which compares the median of several runs with `bench/bounds.txt`. Less is better; it is a
/// ratio of two measurements of one run where that is possible.
#[expect(clippy::print_stdout, reason = "the benchmark reads it")]
pub fn figure(name: &str, value: f64) {
    println!("figure: {name} {value}");
}
