//! A load on an embedded queue: starts the side that has the queue, watches its memory, and reads what it printed.

use std::fs;
use std::io::Read;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use hdrhistogram::Histogram;
use serde_json::Value;

use super::cpu::CpuTimes;
use super::{Case, Measured};
use crate::broker::System;
use crate::embedded::EmbeddedLoad;
use crate::latency;
use crate::process::{self, Resident};
use crate::results::Curves;
use crate::sampler::MIB;

/// Interval between samples of the memory.
const LOOK: Duration = Duration::from_millis(20);
/// If a side takes longer than its load by this time, it has lost something.
const LATE: Duration = Duration::from_secs(90);

pub(super) fn run(case: &Case<'_>, load: EmbeddedLoad) -> Result<Measured> {
    let directory = case.environment.data_root.join(format!("embedded-{}", std::process::id()));
    if directory.exists() {
        fs::remove_dir_all(&directory)?;
    }
    fs::create_dir_all(&directory)?;
    let measured = run_in(case, load, &directory);
    // A directory left behind harms no later run.
    let _ = fs::remove_dir_all(&directory);
    measured
}

fn run_in(case: &Case<'_>, load: EmbeddedLoad, directory: &std::path::Path) -> Result<Measured> {
    let (warmup_s, window_s) = (case.extent.warmup.as_secs_f64(), case.extent.window.as_secs_f64());
    let mut arguments = load.arguments(warmup_s, window_s).into_iter();
    let mut command = side(case)?;
    command.args(arguments.next()).arg(directory).args(arguments);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let before = CpuTimes::before_broker()?;
    let begin = Instant::now();
    let child = command.spawn().with_context(|| format!("starting {:?}", command.get_program()))?;
    let (seen, output) = Watched(child).finish(case.extent.warmup + case.extent.window + LATE)?;
    let seconds = begin.elapsed().as_secs_f64();
    let printed: Value =
        serde_json::from_str(&output).with_context(|| format!("the side printed {output:?}"))?;
    let mut measured = Measured::default();
    add_printed(&mut measured, load, window_s, &printed)?;
    measured.add([
        ("rss_anon_mib", seen.most.anonymous as f64 / MIB),
        ("rss_file_mib", seen.most.of_files as f64 / MIB),
        ("process_cpus", seen.cpu.as_secs_f64() / seconds),
        ("written_mib", bytes_below(directory)? as f64 / MIB),
    ]);
    let mut others = Measured::default();
    // The side was a child that has been awaited, so its CPU time counts as the driver's.
    CpuTimes::before_broker()?.since(&before).add_circumstances(&mut others, seconds);
    measured.figures.extend(others.figures.into_iter().filter(|(key, _)| key == "other_cpus"));
    Ok(measured)
}

fn side(case: &Case<'_>) -> Result<Command> {
    if case.system == System::Chronicle {
        return Ok(case.environment.chronicle.as_ref().context("Chronicle Queue was not set up")?.command());
    }
    let mut command = Command::new(&case.environment.tool);
    command.arg("side");
    Ok(command)
}

fn add_printed(measured: &mut Measured, load: EmbeddedLoad, window_s: f64, printed: &Value) -> Result<()> {
    for key in ["publish", "to_service", "end_to_end", "wake"] {
        if let Some(values) = printed.get(key) {
            let histogram = histogram(values).with_context(|| format!("{key} is no histogram"))?;
            latency::add_figures(&mut measured.figures, key, &histogram);
            if key == "end_to_end" {
                measured.curves = Curves { end_to_end_us: latency::curve(&histogram), ..Curves::default() };
            }
        }
    }
    let number = |key: &str| printed.get(key).and_then(Value::as_f64);
    if let (Some(write_s), Some(read_s)) = (number("write_s"), number("read_s")) {
        let count = load.written(window_s);
        measured.add([("messages_per_s", count / write_s), ("read_per_s", count / read_s)]);
    }
    if let Some(counts) = printed.get("counts").and_then(Value::as_array) {
        let counts: Vec<f64> = counts.iter().filter_map(Value::as_f64).collect();
        let all: f64 = counts.iter().sum();
        let least = counts.iter().copied().fold(f64::INFINITY, f64::min);
        let seconds = number("seconds").context("there are no seconds")?;
        measured
            .add([("messages_per_s", all / seconds), ("least_writer", least / (all / counts.len() as f64))]);
    }
    if let Some(percent) = number("idle_cpu_percent") {
        measured.add([("idle_cpu_percent", percent)]);
    }
    Ok(())
}

/// Reads a histogram from pairs of a value and its count.
fn histogram(values: &Value) -> Option<Histogram<u64>> {
    let mut histogram = latency::new_histogram();
    for pair in values.as_array()? {
        let (value, count) = (pair.get(0)?.as_u64()?, pair.get(1)?.as_u64()?);
        histogram.record_n(value.clamp(1, histogram.high()), count).ok()?;
    }
    Some(histogram)
}

fn bytes_below(directory: &std::path::Path) -> Result<u64> {
    let mut bytes = 0;
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        let metadata = entry.metadata()?;
        bytes += if metadata.is_dir() { bytes_below(&entry.path())? } else { metadata.len() };
    }
    Ok(bytes)
}

/// The maximum of each kind of memory, and the CPU time.
#[derive(Debug, Default, Clone, Copy)]
struct Seen {
    most: Resident,
    cpu: Duration,
}

/// A child process that is killed when this is dropped.
struct Watched(Child);

impl Watched {
    /// Samples the child until it ends, at most for `timeout`; returns its output.
    fn finish(mut self, timeout: Duration) -> Result<(Seen, String)> {
        let mut seen = Seen::default();
        let mut output = self.0.stdout.take().context("its output is piped")?;
        let mut errors = self.0.stderr.take().context("its errors are piped")?;
        // The output has to be read, or the child would wait at a full pipe.
        let output = thread::spawn(move || {
            let mut text = String::new();
            output.read_to_string(&mut text).map(|_| text)
        });
        let errors = thread::spawn(move || {
            let mut text = String::new();
            errors.read_to_string(&mut text).map(|_| text)
        });
        let begin = Instant::now();
        let status = loop {
            let pid = self.0.id();
            // A process that has just ended has no such files.
            if let (Ok(resident), Ok(cpu)) = (process::resident(pid), process::cpu_time(pid)) {
                seen.most.anonymous = seen.most.anonymous.max(resident.anonymous);
                seen.most.of_files = seen.most.of_files.max(resident.of_files);
                seen.cpu = cpu;
            }
            if let Some(status) = self.0.try_wait()? {
                break status;
            }
            ensure!(begin.elapsed() < timeout, "the side does not end within {timeout:?}");
            thread::sleep(LOOK);
        };
        let text = |joined: thread::Result<std::io::Result<String>>| match joined {
            Ok(read) => read.context("reading what the side printed"),
            Err(panic) => std::panic::resume_unwind(panic),
        };
        let (output, errors) = (text(output.join())?, text(errors.join())?);
        ensure!(status.success(), "the side ended with {status}: {errors}");
        Ok((seen, output))
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        // Both fail if the process has ended already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
