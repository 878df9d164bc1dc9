//! One load on one system under strace or perf: events per message.

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use rustix::process::{Pid, Signal};
use serde::Serialize;

use crate::broker::{DEFAULT_HEAP_MIB, Launch, Running, System};
use crate::cases::Extent;
use crate::environment::{Environment, Needs, Settings};
use crate::load::{Keeps, Load, Plan};
use crate::secure::CertificateKey;
use crate::workload::{Durability, Workload};

/// Events for `perf stat`. Its output leaves out those that the machine does not have.
const EVENTS: &str = "task-clock,context-switches,cpu-migrations,page-faults,cycles,instructions,cache-misses,\
                      branch-misses,raw_syscalls:sys_enter";
/// Lines of `perf report` that are shown; all of it is in a file.
const REPORT_LINES: usize = 60;

/// The tool that observes the broker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tool {
    /// System calls by name. It slows the broker down, so that more messages share a wake than otherwise.
    Strace,
    /// Counters of CPU and kernel.
    PerfStat,
    /// CPU time by function.
    PerfRecord,
}

/// Options of `mainstem-bench profile`.
#[derive(Debug, Clone)]
pub struct ProfileOrder {
    /// The system that carries the load.
    pub system: System,
    /// A load by the driver's own clients.
    pub workload: Workload,
    /// The durability of the load.
    pub durability: Durability,
    /// The tool.
    pub tool: Tool,
    /// The extent, of which only warm-up and window count.
    pub extent: Extent,
    /// The folder for the tool's output.
    pub out: PathBuf,
}

/// The result of a profile.
#[derive(Debug, Serialize)]
pub struct Profile {
    /// The name of the system.
    pub system: &'static str,
    /// The name of the workload.
    pub workload: &'static str,
    /// Messages that were acknowledged during the observation.
    pub messages: u64,
    /// Messages per second meanwhile: fewer than without the tool.
    pub messages_per_s: f64,
    /// The counts; empty for `perf record`.
    pub counts: Vec<Count>,
    /// The head of the report of `perf record`; empty of the others.
    pub report: String,
    /// The file that the tool wrote.
    pub raw: PathBuf,
}

/// The count of an event.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Count {
    /// The name of a system call or an event.
    pub what: String,
    /// The count in all.
    pub count: f64,
    /// The count for each message.
    pub per_message: f64,
}

impl Tool {
    /// All tools.
    pub const ALL: [Self; 3] = [Self::Strace, Self::PerfStat, Self::PerfRecord];

    /// The name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Strace => "strace",
            Self::PerfStat => "perf-stat",
            Self::PerfRecord => "perf-record",
        }
    }

    /// Attaches to a process and writes to `file` until it is interrupted.
    fn command(self, pid: u32, file: &Path) -> Command {
        let pid = pid.to_string();
        let (program, arguments): (_, &[&str]) = match self {
            Self::Strace => ("strace", &["-c", "-f", "-qq", "-p", &pid]),
            Self::PerfStat => ("perf", &["stat", "-x", ",", "-e", EVENTS, "-p", &pid]),
            Self::PerfRecord => ("perf", &["record", "-q", "-g", "-F", "997", "-p", &pid]),
        };
        let mut command = Command::new(program);
        command.args(arguments).arg("-o").arg(file).stdin(Stdio::null()).stdout(Stdio::null());
        command
    }
}

/// Runs the load under the tool.
///
/// # Errors
/// If the workload is no load, or the tool is missing or may not attach, or the load fails.
pub fn profile(order: &ProfileOrder, settings: &Settings) -> Result<Profile> {
    let (system, workload) = (order.system, order.workload);
    let shape = workload.shape().with_context(|| {
        format!("{} cannot be profiled: take a load by the driver's own clients", workload.name())
    })?;
    let environment =
        Environment::prepare(settings, &[system], Needs { kafka: system.is_kafka(), chronicle: false })?;
    fs::create_dir_all(&order.out)
        .with_context(|| format!("{} cannot be made: choose another by --out", order.out.display()))?;
    let name = format!("{}-{}-{}.out", system.name(), workload.name(), order.tool.name());
    let raw = order.out.join(name);
    let (durability, partitions) = (order.durability, shape.partitions);
    let launch = Launch {
        system,
        durability,
        heap_mib: DEFAULT_HEAP_MIB,
        partitions,
        settings: &[],
        key: CertificateKey::P256,
    };
    let broker = Running::start_ready(&environment, launch)?;
    let (target, warmup) = (broker.target(), order.extent.warmup);
    let plan = Plan { shape, target, durability, keeps: Keeps::All, warmup, acked: Arc::default() };
    let look = || observe(order.tool, broker.pid(), &raw, order.extent.window);
    let (outcome, mut watcher) = Load::prepare(&plan)?.run(look)?;
    watcher.wait()?;
    broker.stop()?;
    let messages = outcome.acked_in_window;
    let mut profile = Profile {
        system: system.name(),
        workload: workload.name(),
        messages,
        messages_per_s: messages as f64 / outcome.window.as_secs_f64(),
        counts: Vec::new(),
        report: String::new(),
        raw: raw.clone(),
    };
    match order.tool {
        Tool::Strace => profile.counts = per_message(strace_calls(&read(&raw)?), messages),
        Tool::PerfStat => profile.counts = per_message(perf_counts(&read(&raw)?), messages),
        Tool::PerfRecord => profile.report = perf_report(&raw, &order.out)?,
    }
    Ok(profile)
}

fn read(file: &Path) -> Result<String> {
    fs::read_to_string(file).with_context(|| format!("the tool has not written {}", file.display()))
}

/// Runs the tool for the length of the window. Returns it while it still writes its output.
fn observe(tool: Tool, pid: u32, file: &Path, window: Duration) -> Result<Child> {
    let mut command = tool.command(pid, file);
    let child = command.spawn().with_context(|| {
        format!("{:?} does not start: install it, or choose another by --tool", command.get_program())
    })?;
    thread::sleep(window);
    interrupt(child)
}

/// Ends the tool as Ctrl-C would, after which it writes its output.
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

fn per_message(counts: Vec<(String, f64)>, messages: u64) -> Vec<Count> {
    let messages = messages as f64;
    counts.into_iter().map(|(what, count)| Count { what, count, per_message: count / messages }).collect()
}

/// Writes all of the report beside the data; returns its head.
fn perf_report(data: &Path, out: &Path) -> Result<String> {
    let mut report = Command::new("perf");
    report.args(["report", "--stdio", "--no-children", "-g", "none", "-i"]).arg(data);
    let output = report.output().context("running perf report")?;
    ensure!(output.status.success(), "perf report: {}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8_lossy(&output.stdout);
    let path = out.join("report.txt");
    fs::write(&path, text.as_bytes()).with_context(|| format!("{} cannot be written", path.display()))?;
    let head = text.lines().filter(|line| !line.trim().is_empty()).take(REPORT_LINES);
    Ok(head.collect::<Vec<_>>().join("\n"))
}

impl fmt::Display for Profile {
    fn fmt(&self, text: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { system, workload, messages, messages_per_s, .. } = self;
        writeln!(
            text,
            "{system}, {workload}: {messages} messages, {messages_per_s:.0}/s while the tool looked"
        )?;
        if !self.counts.is_empty() {
            writeln!(text, "{:>14} {:>14}  what", "count", "per message")?;
        }
        for Count { what, count, per_message } in &self.counts {
            writeln!(text, "{count:>14.0} {per_message:>14.4}  {what}")?;
        }
        if !self.report.is_empty() {
            writeln!(text, "{}", self.report)?;
        }
        write!(text, "raw: {}", self.raw.display())
    }
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

    #[test]
    fn counts_are_shown_per_message() {
        let profile = Profile {
            system: "probe",
            workload: "small-msg-saturate",
            messages: 200,
            messages_per_s: 100.4,
            counts: per_message(vec![("read".to_owned(), 300.0)], 200),
            report: String::new(),
            raw: "out/file".into(),
        };
        let text = profile.to_string();
        assert!(
            text.starts_with("probe, small-msg-saturate: 200 messages, 100/s while the tool looked\n"),
            "{text}"
        );
        assert!(text.contains("           300         1.5000  read\nraw: out/file"), "{text}");
    }
}
