//! Child processes that never outlive us: logged to a file, waited for with a deadline, killed when dropped.

use std::fs::{self, File};
use std::io;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use rustix::process::{Pid, Signal, kill_process, kill_process_group};

/// Interval between two looks at a condition.
const TICK: Duration = Duration::from_millis(20);
/// Number of lines from the beginning of a failed process's log that are shown: the first error is often there.
const LOG_HEAD_LINES: usize = 10;
/// Number of lines from the end of a failed process's log that are shown.
const LOG_TAIL_LINES: usize = 30;

/// A running child. Its standard error, and its standard output unless the caller took it, go to a log file.
pub(crate) struct Process {
    name: String,
    child: Child,
    log: PathBuf,
    /// True if it leads a process group of its own, which is ended with it.
    is_group: bool,
}

impl Process {
    /// Starts `command`, with both outputs in `logs/NAME.log` and no input.
    pub(crate) fn start(name: &str, command: &mut Command, logs: &Path) -> Result<Process> {
        command.stdin(Stdio::null());
        Self::spawn(name, command, logs, None)
    }

    /// Starts `command` with a pipe as its input; take it with [`Process::take_stdin`].
    pub(crate) fn start_with_input(name: &str, command: &mut Command, logs: &Path) -> Result<Process> {
        command.stdin(Stdio::piped());
        Self::spawn(name, command, logs, None)
    }

    /// Starts `command` with its standard output in `output`, standard error in `logs/NAME.log`, and no input.
    pub(crate) fn start_to_file(
        name: &str,
        command: &mut Command,
        logs: &Path,
        output: &Path,
    ) -> Result<Process> {
        command.stdin(Stdio::null());
        let output = File::create(output).with_context(|| format!("create {}", output.display()))?;
        Self::spawn(name, command, logs, Some(output.into()))
    }

    /// Starts `command` with pipes as its input and output.
    pub(crate) fn start_piped(name: &str, command: &mut Command, logs: &Path) -> Result<Process> {
        command.stdin(Stdio::piped());
        Self::spawn(name, command, logs, Some(Stdio::piped()))
    }

    /// Starts `command` as the leader of a process group, with both outputs in `logs/NAME.log` and no input.
    pub(crate) fn start_group(name: &str, command: &mut Command, logs: &Path) -> Result<Process> {
        command.stdin(Stdio::null()).process_group(0);
        let mut process = Self::spawn(name, command, logs, None)?;
        process.is_group = true;
        Ok(process)
    }

    fn spawn(name: &str, command: &mut Command, logs: &Path, output: Option<Stdio>) -> Result<Process> {
        let log = logs.join(format!("{name}.log"));
        let file = File::options().create(true).append(true).open(&log);
        let file = file.with_context(|| format!("open {}", log.display()))?;
        let output = match output {
            Some(output) => output,
            None => file.try_clone()?.into(),
        };
        let child = command.stdout(output).stderr(file).spawn();
        let child = child.with_context(|| format!("start {name}: {}", command.get_program().display()))?;
        Ok(Process { name: name.to_string(), child, log, is_group: false })
    }

    /// The pipe to its input; dropping it ends the input.
    pub(crate) fn take_stdin(&mut self) -> ChildStdin {
        self.child.stdin.take().expect("started with an input pipe, and taken once")
    }

    /// The pipe from its output.
    pub(crate) fn take_stdout(&mut self) -> std::process::ChildStdout {
        self.child.stdout.take().expect("started with an output pipe, and taken once")
    }

    /// Waits until it has ended; an end other than exit code 0, or none by the deadline, is an error with its log.
    pub(crate) fn wait(&mut self, limit: Duration) -> Result<()> {
        let status = self.wait_for_status(limit)?;
        if !status.success() {
            bail!("{} ended with {status}\n{}", self.name, self.log_ends());
        }
        Ok(())
    }

    /// Waits until it has ended, by itself or by a signal.
    pub(crate) fn wait_for_status(&mut self, limit: Duration) -> Result<ExitStatus> {
        let end = Instant::now() + limit;
        loop {
            if let Some(status) = self.child.try_wait()? {
                return Ok(status);
            }
            if Instant::now() > end {
                self.kill();
                bail!("{} did not end within {limit:?}\n{}", self.name, self.log_ends());
            }
            thread::sleep(TICK);
        }
    }

    /// Returns an error with its log if it has ended.
    pub(crate) fn check_alive(&mut self) -> Result<()> {
        match self.child.try_wait()? {
            None => Ok(()),
            Some(status) => bail!("{} ended too early with {status}\n{}", self.name, self.log_ends()),
        }
    }

    /// Asks it to end (SIGTERM).
    pub(crate) fn terminate(&self) -> Result<()> {
        kill_process(self.pid(), Signal::TERM).map_err(io::Error::from)?;
        Ok(())
    }

    fn pid(&self) -> Pid {
        let pid = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw);
        pid.expect("the id of a child is a positive number")
    }

    /// Kills it (SIGKILL) and waits until it is gone.
    pub(crate) fn kill(&mut self) {
        // These fail only if it has ended already.
        if self.is_group {
            let _ = kill_process_group(self.pid(), Signal::KILL);
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// Returns the first and the last lines of its output.
    pub(crate) fn log_ends(&self) -> String {
        let text = fs::read(&self.log).map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
        let text = text.unwrap_or_default();
        let lines: Vec<&str> = text.lines().collect();
        let left_out = lines.len().saturating_sub(LOG_HEAD_LINES + LOG_TAIL_LINES);
        if left_out == 0 {
            return format!("  | {}", lines.join("\n  | "));
        }
        let (head, tail) = (&lines[..LOG_HEAD_LINES], &lines[LOG_HEAD_LINES + left_out..]);
        format!("  | {}\n  [{left_out} lines]\n  | {}", head.join("\n  | "), tail.join("\n  | "))
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Returns true if a status says that the process was ended by SIGTERM or left cleanly after it.
pub(crate) fn ended_by_request(status: ExitStatus) -> bool {
    let terminated = 128 + Signal::TERM.as_raw();
    status.success() || status.signal() == Some(Signal::TERM.as_raw()) || status.code() == Some(terminated)
}

/// Waits until `condition` holds; `what` names it in the error.
pub(crate) fn wait_until(
    what: impl Fn() -> String,
    limit: Duration,
    mut condition: impl FnMut() -> Result<bool>,
) -> Result<()> {
    let end = Instant::now() + limit;
    while !condition()? {
        if Instant::now() > end {
            bail!("not within {limit:?}: {}", what());
        }
        thread::sleep(TICK);
    }
    Ok(())
}
