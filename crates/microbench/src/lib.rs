//! Measurement of benchmark cases: `cargo bench` times them by criterion, `cargo xtask counts` counts their instructions.
//!
//! A crate has one bench here, `benches/CRATE.rs`, whose `main` hands its cases to [`Suite::measure`]. Without arguments, or with those
//! that `cargo bench` passes on, the program times all cases. `--list-cases` prints their names, and `--count NAME` calls one case a fixed
//! number of times, to be run under callgrind.
//!
//! Architecture invariant: nothing depends on this crate, and but for its benches it depends on nothing of ours.

#![allow(clippy::print_stdout, reason = "lists of names are for the program that counts")]

use std::hint::black_box;
use std::time::{Duration, Instant};

use criterion::Criterion;

/// The time that criterion takes to warm a case up and to measure it. Its analysis takes another second.
const WARM_UP: Duration = Duration::from_millis(500);
const MEASUREMENT: Duration = Duration::from_secs(2);

/// Times cases, counts one of them, or lists them.
#[allow(missing_debug_implementations, reason = "criterion has none")]
pub struct Suite {
    /// The name of the crate, without `mainstem-`.
    of: &'static str,
    mode: Mode,
}

enum Mode {
    Time(Box<Criterion>),
    Count(String),
    List,
}

/// One benchmark case.
#[derive(Debug, Clone, Copy)]
pub struct Case {
    /// Its name within the crate.
    pub name: &'static str,
    /// Calls on one input, before a new one is made: bounds what an input that grows may take. Counted are so many
    /// calls, after one that is not.
    pub calls: u32,
}

impl Suite {
    /// Suite of a crate, measured as the arguments of the program say.
    pub fn from_args(of: &'static str) -> Suite {
        let mut arguments = std::env::args().skip(1);
        let mode = match arguments.next().as_deref() {
            Some("--list-cases") => Mode::List,
            Some("--count") => Mode::Count(arguments.next().unwrap_or_default()),
            _ => Mode::Time(Box::new(criterion())),
        };
        Suite { of, mode }
    }

    /// Measures a case on what `input` makes. Making the input is neither timed nor counted, nor is dropping it.
    pub fn measure<I, O>(
        &mut self,
        case: Case,
        mut input: impl FnMut() -> I,
        mut call: impl FnMut(&mut I) -> O,
    ) {
        let name = format!("{}/{}", self.of, case.name);
        match &mut self.mode {
            Mode::List => println!("{name} {}", case.calls),
            Mode::Count(wanted) if *wanted == name => {
                let mut input = input();
                black_box(call(&mut input));
                counted_calls(case.calls, &mut || _ = black_box(call(black_box(&mut input))));
            }
            Mode::Count(_) => {}
            Mode::Time(criterion) => {
                criterion.bench_function(&name, |bencher| {
                    bencher.iter_custom(|calls| timed_calls(calls, case.calls, &mut input, &mut call));
                });
            }
        }
    }
}

impl Drop for Suite {
    fn drop(&mut self) {
        if let Mode::Time(criterion) = &self.mode {
            criterion.final_summary();
        }
    }
}

fn criterion() -> Criterion {
    Criterion::default().warm_up_time(WARM_UP).measurement_time(MEASUREMENT).configure_from_args()
}

/// Calls a case `total` times, on a new input whenever one has been called on `calls_of_input` times.
fn timed_calls<I, O>(
    total: u64,
    calls_of_input: u32,
    input: &mut impl FnMut() -> I,
    call: &mut impl FnMut(&mut I) -> O,
) -> Duration {
    let mut took = Duration::ZERO;
    let mut left = total;
    while left > 0 {
        let calls = left.min(u64::from(calls_of_input));
        let mut input = input();
        let begin = Instant::now();
        for _ in 0..calls {
            black_box(call(black_box(&mut input)));
        }
        took += begin.elapsed();
        left -= calls;
    }
    took
}

/// The calls that are counted: `cargo xtask counts` has callgrind look at this function alone, by its name.
#[inline(never)]
fn counted_calls(calls: u32, call: &mut dyn FnMut()) {
    for _ in 0..calls {
        call();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn inputs_are_renewed_before_they_grow_too_large() {
        let (mut inputs, mut lengths) = (0, Vec::new());
        let mut input = || {
            inputs += 1;
            0
        };
        timed_calls(7, 3, &mut input, &mut |calls| {
            *calls += 1;
            lengths.push(*calls);
        });
        assert_eq!((inputs, lengths), (3, vec![1, 2, 3, 1, 2, 3, 1]));
    }

    #[test]
    fn the_case_that_is_counted_is_called_once_more_than_counted() {
        let mut suite = Suite { of: "crate", mode: Mode::Count("crate/b".to_owned()) };
        let mut called = Vec::new();
        for name in ["a", "b", "c"] {
            suite.measure(Case { name, calls: 2 }, || (), |()| called.push(name));
        }
        assert_eq!(called, ["b"; 3]);
    }
}
