//! Automation of this repository: `cargo xtask COMMAND`.
//!
//! Each command is a module with `run(arguments)`; this file only picks one.

// A tool for the terminal prints its results.
#![allow(clippy::print_stdout)]

mod bounds;
mod build;
mod counts;
mod cpu;
mod descendants;
mod duplicates;
mod faults;
mod flaky;
mod fuzz;
mod interop;
mod junit;
mod kafka_peers;
mod missing;
mod nextest;
#[cfg(test)]
mod pages;
mod planted;
mod process;
mod quick;
mod readme;
mod schemas;
mod sources;
mod stress;
mod suites;
mod test;
mod tidy;
mod tokens;
mod workspace;

use std::process::ExitCode;

const USAGE: &str = "\
usage: cargo xtask COMMAND

  test        everything that is checked before a change lands (cargo xtask test --help)
  quick       a change while it is made: lints, and the tests of what depends on it (cargo xtask quick --help)
  interop     real clients and tools against a broker (cargo xtask interop --help)
  counts      instructions of the benchmark cases, against what is recorded (cargo xtask counts --help)
  tidy        counts that may only fall: words, long functions, pub items and others (cargo xtask tidy --help)
  duplicates  passages of source that occur twice (cargo xtask duplicates --help)
  planted     faults planted in a copy one at a time, each of which the tests have to catch (cargo xtask planted --help)
  readme      runs the examples of README.md and of the pages that it links to
  schemas     --version VERSION [--jars DIR] [--check]: the table of messages, from Kafka's jars";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let outcome = match arguments.split_first() {
        Some((name, rest)) => match name.as_str() {
            "test" => test::run(rest),
            "quick" => quick::run(rest),
            "interop" => interop::run(rest),
            "counts" => counts::run(rest),
            "tidy" => tidy::run(rest),
            "duplicates" => duplicates::run(rest),
            "planted" => planted::run(rest),
            "readme" => readme::run(rest),
            "schemas" => schemas::run(rest),
            "help" | "--help" | "-h" => {
                println!("{USAGE}");
                Ok(())
            }
            _ => Err(anyhow::anyhow!(USAGE)),
        },
        None => Err(anyhow::anyhow!(USAGE)),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error:#}");
            ExitCode::FAILURE
        }
    }
}
