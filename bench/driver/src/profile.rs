//! `profile`: one load on one system while strace or perf looks at it; prints what happens per message.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use rustix::process::{Pid, Signal};

use crate::broker::{Running, System};
use crate::cases::Case;
use crate::load::{self, Plan};
use crate::options::Options;
use crate::settings;

/// Counted by `perf stat`; those that the machine has not are left out of its answer.
const EVENTS: &str = "task-clock,context-switches,cpu-migrations,page-faults,cycles,instructions,cache-misses,\
                      branch-misses,raw_syscalls:sys_enter";
/// Lines of `perf report` that are printed; all of it is in a file.
const REPORT_LINES: usize = 60;

#[derive(Debug, Clone, Copy, PartialEq)]
enum Tool {
    /// System calls by name. It slows the broker down, so that more messages share a wake than otherwise.
    Strace,
    /// Counters of CPU and kernel.
    PerfStat,
    /// Where the time goes, by function.
    PerfRecord,
}

impl Tool {
    fn parse(name: &str) -> Result<Self> {
        match name {
            "strace" => Ok(Self::Strace),
            "perf-stat" => Ok(Self::PerfStat),
            "perf-record" => Ok(Self::PerfRecord),
            _ => bail!("no tool {name}; there are strace, perf-stat and perf-record"),
        }
    }

    /// Attaches to a process and writes to `file` until it is interrupted.
    fn command(self, pid: u32, file: &Path) -> Command {
        let pid = pid.to_string();
        let mut command = match self {
            Self::Strace => {
                let mut command = Command::new("strace");
                command.args(["-c", "-f", "-qq", "-p", &pid]);
                command
            }
            Self::PerfStat => {
                let mut command = Command::new("perf");
                command.args(["stat", "-x", ",", "-e", EVENTS, "-p", &pid]);
                command
            }
            Self::PerfRecord => {
                let mut command = Command::new("perf");
                command.args(["record", "-q", "-g", "-F", "997", "-p", &pid]);
                command
            }
        };
        command.arg("-o").arg(file).stdin(Stdio::null()).stdout(Stdio::null());
        command
    }
}

/// Runs the subcommand.
pub(crate) fn run(mut options: Options) -> Result<()> {
    let system = System::parse(&options.text("--system")?.unwrap_or_else(|| "mainstem-same".to_owned()))?;
    let case = Case::parse(&options.text("--workload")?.unwrap_or_else(|| "small-msg-saturate".to_owned()))?;
    let Case::Load(workload) = case else { bail!("only a load can be profiled, not {}", case.name()) };
    let tool = Tool::parse(&options.text("--tool")?.unwrap_or_else(|| "strace".to_owned()))?;
    let warmup = options.seconds("--warmup", 15.0)?;
    let window = options.seconds("--window", 10.0)?;
    let out = options.path("--out", "target/bench-profile")?;
    let fsync = options.flag("--fsync");
    let environment = settings::environment(&mut options, &[system])?;
    options.finish()?;
    fs::create_dir_all(&out)?;
    let file = out.join(format!("{}-{}-{tool:?}.out", system.name(), workload.name));
    let broker = Running::start_ready(&environment, system, fsync)?;
    let plan = Plan { workload, target: broker.target(), fsync, warmup };
    let (outcome, mut watcher) = load::run(&plan, || observe(tool, broker.pid(), &file, window))?;
    watcher.wait()?;
    broker.stop()?;
    let messages = outcome.acked_in_window as f64;
    println!(
        "{} under {tool:?}, {}: {messages} messages in {:.1} s, {:.0}/s",
        system.name(),
        workload.name,
        outcome.window.as_secs_f64(),
        messages / outcome.window.as_secs_f64()
    );
    match tool {
        Tool::Strace => print_per_message(&strace_calls(&read(&file)?), messages),
        Tool::PerfStat => print_per_message(&perf_counts(&read(&file)?), messages),
        Tool::PerfRecord => print_report(&file, &out)?,
    }
    println!("raw: {}", file.display());
    Ok(())
}

fn read(file: &Path) -> Result<String> {
    fs::read_to_string(file).with_context(|| format!("the tool has not written {}", file.display()))
}

/// Lets the tool watch for as long as the window is; returns it while it still writes what it has seen.
fn observe(tool: Tool, pid: u32, file: &Path, window: Duration) -> Result<Child> {
    let mut command = tool.command(pid, file);
    let child = command.spawn().with_context(|| format!("starting {:?}", command.get_program()))?;
    thread::sleep(window);
    interrupt(child)
}

/// Ends the tool as Ctrl-C would, upon which it writes what it has seen.
fn interrupt(mut child: Child) -> Result<Child> {
    if let Some(status) = child.try_wait()? {
        bail!("the tool ended by itself with {status}: it may not be allowed to attach to other processes");
    }
    rustix::process::kill_process(Pid::from_child(&child), Signal::INT)?;
    Ok(child)
}

/// (name, calls) of the table that `strace -c` writes, with its total.
fn strace_calls(table: &str) -> Vec<(String, f64)> {
    let rows = table.lines().filter_map(|line| {
        let fields: Vec<_> = line.split_whitespace().collect();
        fields.first()?.parse::<f64>().ok()?;
        // % time, seconds, usecs/call, calls, errors (may be empty), name
        Some(((*fields.last()?).to_owned(), fields.get(3)?.parse().ok()?))
    });
    rows.collect()
}

/// (event, count) of what `perf stat -x,` writes; milliseconds of task-clock.
fn perf_counts(lines: &str) -> Vec<(String, f64)> {
    let rows = lines.lines().filter_map(|line| {
        let mut fields = line.split(',');
        let count = fields.next()?.parse().ok()?;
        let _unit = fields.next()?;
        Some((fields.next()?.to_owned(), count))
    });
    rows.collect()
}

fn print_per_message(counts: &[(String, f64)], messages: f64) {
    println!("{:>14} {:>14}  what", "count", "per message");
    for (name, count) in counts {
        println!("{count:>14.0} {:>14.4}  {name}", count / messages);
    }
}

fn print_report(data: &Path, out: &Path) -> Result<()> {
    let mut report = Command::new("perf");
    report.args(["report", "--stdio", "--no-children", "-g", "none", "-i"]).arg(data);
    let output = report.output().context("running perf report")?;
    ensure!(output.status.success(), "perf report: {}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8_lossy(&output.stdout);
    let path: PathBuf = out.join("report.txt");
    fs::write(&path, text.as_bytes())?;
    for line in text.lines().filter(|line| !line.trim().is_empty()).take(REPORT_LINES) {
        println!("{line}");
    }
    println!("report: {}", path.display());
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_of_the_tools_are_read() {
        let strace = "\
% time     seconds  usecs/call     calls    errors syscall
------ ----------- ----------- --------- --------- ----------------
 45.01    0.412345           3    123456           epoll_wait
 10.00    0.100000           5     20000       150 read
------ ----------- ----------- --------- --------- ----------------
100.00    0.912345           4    143456       150 total
";
        let expected = [("epoll_wait", 123_456.0), ("read", 20_000.0), ("total", 143_456.0)];
        assert_eq!(strace_calls(strace), expected.map(|(name, calls)| (name.to_owned(), calls)));
        let perf = "\
# started on today

1234.56,msec,task-clock,1234560000,100.00,0.9,CPUs utilized
<not supported>,,cycles,0,100.00,,
777,,context-switches,1234560000,100.00,0.6,K/sec
";
        let expected = [("task-clock", 1234.56), ("context-switches", 777.0)];
        assert_eq!(perf_counts(perf), expected.map(|(name, count)| (name.to_owned(), count)));
    }
}
