//! A part of a test in a process of its own, which may end with it.

use std::os::unix::process::ExitStatusExt;
use std::process::Command;

use rustix::process::{Resource, Rlimit, Signal, setrlimit};

/// Names the part that a process is for.
const PART: &str = "MAINSTEM_TEST_PART";

/// The end of the process of a part.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// The part returned.
    Returned,
    /// The process was aborted, and what it printed names the part.
    Aborted,
    /// Anything else.
    Other,
}

/// The part that this process is for; `None` in the process of the whole test.
pub fn part() -> Option<String> {
    let part = std::env::var(PART).ok()?;
    // An abort that is meant leaves no memory image. Where the limit stays, there may be one.
    let _ = setrlimit(Resource::Core, Rlimit { current: Some(0), maximum: Some(0) });
    Some(part)
}

/// Runs this test again in a process of its own, in which [`part`] returns `part`. `test` is the test's whole path.
pub fn run(test: &str, part: &str) -> End {
    // Removed with the files of brokers that an aborted process left in it.
    let directory = tempfile::tempdir().expect("a directory for temporary files");
    let program = std::env::current_exe().expect("a process knows its program");
    let mut command = Command::new(program);
    command.args([test, "--exact", "--nocapture"]).env(PART, part).env("TMPDIR", directory.path());
    let output = command.output().expect("it can be started");
    let (printed, results) =
        (String::from_utf8_lossy(&output.stderr), String::from_utf8_lossy(&output.stdout));
    match output.status.signal() {
        Some(signal) if signal == Signal::ABORT.as_raw() && printed.contains(part) => End::Aborted,
        None if output.status.success() && results.contains("1 passed") => End::Returned,
        _ => {
            eprintln!("{part}: {}\n{results}{printed}", output.status);
            End::Other
        }
    }
}
