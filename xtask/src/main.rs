//! Automation of this repository: `cargo xtask test`, `cargo xtask interop`.
//!
//! Each subcommand is a module with `run(arguments)`; this file only picks one.

// A tool for the terminal: printing is what it does.
#![allow(clippy::print_stdout)]

mod interop;
mod process;
mod readme;
mod test;
mod workspace;

use std::process::ExitCode;

const USAGE: &str = "\
usage: cargo xtask COMMAND

  test      everything that is checked before a change lands (cargo xtask test --help)
  interop   real clients and tools against a broker (cargo xtask interop --help)
  readme    the examples of README.md, run as they stand there";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let result = match arguments.first().map(String::as_str) {
        Some("test") => test::run(&arguments[1..]),
        Some("interop") => interop::run(&arguments[1..]),
        Some("readme") => readme::run(&arguments[1..]),
        Some("--help" | "-h" | "help") => {
            println!("{USAGE}");
            Ok(())
        }
        _ => Err(anyhow::anyhow!("{USAGE}")),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error:#}");
            ExitCode::FAILURE
        }
    }
}
