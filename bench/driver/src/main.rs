//! Measures Kafka-compatible brokers with blocking sockets, one thread per connection and one record at a time.
//!
//! It shares no code with the broker. See `bench/README.md` for what is measured and what is not.

// The report is the program's output.
#![allow(clippy::print_stdout)]

mod batch;
mod broker;
mod bytes;
mod cases;
mod clock;
mod compare;
mod connection;
mod figures;
mod load;
mod machine;
mod options;
mod payload;
mod probe;
mod process;
mod profile;
mod protocol;
mod report;
mod settings;
mod stats;

use std::net::{SocketAddr, TcpListener};
use std::process::ExitCode;

use anyhow::{Context, Result, bail};

use crate::options::Options;

const HELP: &str = "\
mainstem-bench-driver compare [OPTIONS]   every system in turn, round by round; prints ratios, keeps raw runs
mainstem-bench-driver profile [OPTIONS]   one load under strace or perf; prints system calls per message

compare:
  --systems LIST      kafka,mainstem-same,mainstem-split,probe (default: all)
  --workloads LIST    small-msg-saturate,local-1kb-saturate,start,idle (default: all)
  --durability LIST   page-cache,fsync (default: both)
  --runs N            rounds (default: 5)
  --warmup SECONDS    load before the window (default: 15)
  --window SECONDS    (default: 10)
  --out DIR           raw runs and SUMMARY.md (default: bench/results/DATE)
  --json              print JSON instead of tables
  --force             measure although the machine is busy

profile:
  --system NAME       (default: mainstem-same)
  --workload NAME     (default: small-msg-saturate)
  --tool NAME         strace, perf-stat or perf-record (default: strace)
  --fsync             sync every record
  --warmup SECONDS    (default: 15)
  --window SECONDS    (default: 10)
  --out DIR           what the tool writes (default: target/bench-profile)

both:
  --mainstem PATH     the broker (default: target/release/mainstem)
  --set KEY=VALUE     a further setting of mainstem; may be repeated
  --kafka-jars DIR    fetched by Maven if they are not there (default: target/peers/kafka-4.3.0)
  --java PATH         (default: the newest JDK that is found)
  --data-root DIR     where data directories are made (default: target/bench-data)
  --port N            the first of 200 ports (default: 22000)
";

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<()> {
    let mut arguments = std::env::args().skip(1);
    let subcommand = arguments.next().unwrap_or_else(|| "--help".to_owned());
    let mut options = Options::new(arguments.collect());
    if options.flag("--help") {
        println!("{HELP}");
        return Ok(());
    }
    match subcommand.as_str() {
        "compare" => compare::run(options),
        "profile" => profile::run(options),
        "probe-server" => run_probe(options),
        "--help" | "-h" | "help" => {
            println!("{HELP}");
            Ok(())
        }
        other => bail!("no subcommand {other}; see --help"),
    }
}

/// The probe in a process of its own, so that its CPU time and memory are its own.
fn run_probe(mut options: Options) -> Result<()> {
    let address: SocketAddr = options.text("--listen")?.context("--listen is missing")?.parse()?;
    let directory = options.path("--directory", ".")?;
    let fsync = options.flag("--fsync");
    options.finish()?;
    probe::serve(TcpListener::bind(address)?, &directory, fsync)
}
