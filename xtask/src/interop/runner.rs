//! One JVM that runs Java's main classes one after another (tests/interop/java, class Runner).

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::ChildStdin;
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde::Deserialize;
use serde_json::json;

use super::install;
use crate::process::Process;

/// A call that takes longer hangs.
const CALL_DEADLINE: Duration = Duration::from_secs(150);

/// What a main class left behind.
#[derive(Debug, Deserialize)]
pub(crate) struct Finished {
    /// Exit code.
    pub(crate) exit: i32,
    /// Standard output.
    pub(crate) out: String,
    /// Standard error.
    pub(crate) err: String,
}

impl Finished {
    /// Its standard output, where it ended well.
    pub(crate) fn success(self) -> Result<String> {
        ensure!(self.exit == 0, "exit code {}\n{}{}", self.exit, self.out, self.err);
        Ok(self.out)
    }
}

/// The JVM; started at the first call, and again after a call that hung.
pub(crate) struct Runner {
    logs: PathBuf,
    jvm: Option<Jvm>,
}

struct Jvm {
    process: Process,
    calls: ChildStdin,
    replies: Receiver<String>,
}

impl Runner {
    pub(crate) fn new(logs: &Path) -> Runner {
        Runner { logs: logs.to_path_buf(), jvm: None }
    }

    /// Runs `main` with these arguments and this standard input.
    pub(crate) fn call(&mut self, main: &str, arguments: &[String], input: &str) -> Result<Finished> {
        let mut jvm = match self.jvm.take() {
            Some(jvm) => jvm,
            None => Jvm::start(&self.logs)?,
        };
        let finished = jvm.call(main, arguments, input).with_context(|| format!("{main} {arguments:?}"))?;
        self.jvm = Some(jvm);
        Ok(finished)
    }
}

impl Jvm {
    fn start(logs: &Path) -> Result<Jvm> {
        let mut process =
            Process::start_piped("jvm", install::java(320).arg("mainstem.interop.Runner"), logs)?;
        let calls = process.take_stdin();
        let output = BufReader::new(process.take_stdout());
        let (sender, replies) = channel();
        // Ends with the JVM, whose output ends.
        thread::spawn(move || {
            for line in output.lines().map_while(Result::ok) {
                if sender.send(line).is_err() {
                    return;
                }
            }
        });
        Ok(Jvm { process, calls, replies })
    }

    fn call(&mut self, main: &str, arguments: &[String], input: &str) -> Result<Finished> {
        let call = json!({ "main": main, "args": arguments, "stdin": input });
        writeln!(self.calls, "{call}")?;
        let reply = self.replies.recv_timeout(CALL_DEADLINE);
        let reply =
            reply.with_context(|| format!("no end within {CALL_DEADLINE:?}\n{}", self.process.log_tail()))?;
        serde_json::from_str(&reply).with_context(|| format!("reply {reply}"))
    }
}
