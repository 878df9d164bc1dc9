//! A process that reads commands and answers each with a line of JSON.

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

use crate::broker::without_developers_variables;

/// Figures that a process prints, by name.
pub(super) type Figures = BTreeMap<String, f64>;

/// The longest that an answer may take beyond the length of a window: an hour's.
const ANSWER_WITHIN: Duration = Duration::from_secs(3_600);
const END_WITHIN: Duration = Duration::from_secs(30);

/// The process; it is killed when it is dropped.
#[derive(Debug)]
pub(super) struct Talking {
    child: Child,
    input: Option<ChildStdin>,
    lines: Receiver<String>,
}

impl Talking {
    /// Starts it, and waits until it says that it is ready.
    pub(super) fn start(mut command: Command) -> Result<Talking> {
        without_developers_variables(&mut command);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().with_context(|| format!("{command:?} does not start"))?;
        let output = BufReader::new(child.stdout.take().context("its output is a pipe")?);
        let (sender, lines) = channel();
        // The thread ends with the process.
        thread::spawn(move || {
            output.lines().map_while(std::io::Result::ok).try_for_each(|line| sender.send(line))
        });
        let mut talking = Talking { input: child.stdin.take(), child, lines };
        talking.answer().with_context(|| format!("{command:?} is not ready"))?;
        Ok(talking)
    }

    pub(super) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Sends a command and waits for the answer.
    pub(super) fn ask(&mut self, command: &str) -> Result<Figures> {
        self.say(command)?;
        self.answer().with_context(|| format!("{command:?} was not answered"))
    }

    /// Sends a command.
    pub(super) fn say(&mut self, command: &str) -> Result<()> {
        let input = self.input.as_mut().context("it has ended")?;
        writeln!(input, "{command}").and_then(|()| input.flush()).context("it has ended")
    }

    /// Waits for an answer.
    pub(super) fn answer(&mut self) -> Result<Figures> {
        let Ok(line) = self.lines.recv_timeout(ANSWER_WITHIN) else {
            bail!("the process says nothing ({:?})", self.child.try_wait())
        };
        serde_json::from_str(&line).with_context(|| format!("it said {line:?}"))
    }

    /// Closes its input and waits for its end.
    pub(super) fn end(mut self) -> Result<()> {
        self.input = None;
        let deadline = Instant::now() + END_WITHIN;
        loop {
            if let Some(status) = self.child.try_wait()? {
                ensure!(status.success(), "a process ended with {status}");
                return Ok(());
            }
            ensure!(Instant::now() < deadline, "a process does not end within {END_WITHIN:?}");
            thread::sleep(Duration::from_millis(10));
        }
    }

    /// Ends it as a crash does.
    pub(super) fn kill(&mut self) -> Result<()> {
        self.child.kill()?;
        self.child.wait()?;
        Ok(())
    }
}

impl Drop for Talking {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        command
    }

    #[test]
    fn commands_are_answered_until_the_input_ends() {
        let script = r#"echo '{"ready": 1}'; while read -r number; do echo "{\"number\": $number}"; done"#;
        let mut talking = Talking::start(shell(script)).unwrap();
        assert_eq!(talking.ask("7").unwrap()["number"], 7.0);
        talking.end().unwrap();
    }

    #[test]
    fn a_process_that_fails_is_an_error() {
        assert!(Talking::start(shell("exit 3")).is_err());
        let talking = Talking::start(shell(r#"echo '{"ready": 1}'; read -r line; exit 3"#)).unwrap();
        assert!(talking.end().unwrap_err().to_string().contains("exit status: 3"));
    }
}
