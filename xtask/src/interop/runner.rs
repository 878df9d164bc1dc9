//! One JVM that runs Java's main classes one after another (tests/interop/java, class Runner).

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde::Deserialize;
use serde_json::json;

use super::conversation::Conversation;
use super::install;

/// A call that takes longer hangs.
const CALL_DEADLINE: Duration = Duration::from_secs(150);

/// The result of a main class.
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
    /// Returns its standard output if it ended well.
    pub(crate) fn success(self) -> Result<String> {
        ensure!(self.exit == 0, "exit code {}\n{}{}", self.exit, self.out, self.err);
        Ok(self.out)
    }
}

/// The JVM; started at the first call, and again after a call that hung.
pub(crate) struct Runner {
    logs: PathBuf,
    jvm: Option<Conversation>,
}

impl Runner {
    pub(crate) fn new(logs: &Path) -> Runner {
        Runner { logs: logs.to_path_buf(), jvm: None }
    }

    /// Runs `main` with these arguments and this standard input.
    pub(crate) fn call(&mut self, main: &str, arguments: &[String], input: &str) -> Result<Finished> {
        let mut jvm = match self.jvm.take() {
            Some(jvm) => jvm,
            None => {
                let mut command = install::java(320);
                Conversation::start("jvm", command.arg("mainstem.interop.Runner"), &self.logs)?
            }
        };
        let call = json!({ "main": main, "args": arguments, "stdin": input });
        let reply = jvm.ask(&call.to_string(), CALL_DEADLINE);
        let reply = reply.with_context(|| format!("{main} {arguments:?}"))?;
        self.jvm = Some(jvm);
        serde_json::from_str(&reply).with_context(|| format!("reply {reply}"))
    }
}
