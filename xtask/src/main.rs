//! Automation of this repository: `cargo xtask schemas`.

mod schemas;

use std::process::ExitCode;

const USAGE: &str = "usage: cargo xtask schemas --version VERSION [--jars DIR] [--check]";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let outcome = match arguments.split_first() {
        Some((name, rest)) if name == "schemas" => schemas::run(rest),
        _ => Err(anyhow::anyhow!(USAGE)),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error:#}");
            ExitCode::FAILURE
        }
    }
}
