//! A process that is asked by a line of its input and answers by a line of its output.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{ChildStdin, Command};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result};

use crate::process::Process;

/// The running process.
pub(crate) struct Conversation {
    process: Process,
    questions: ChildStdin,
    answers: Receiver<String>,
}

impl Conversation {
    /// Starts `command`, with its standard error in `logs/NAME.log`.
    pub(crate) fn start(name: &str, command: &mut Command, logs: &Path) -> Result<Conversation> {
        let mut process = Process::start_piped(name, command, logs)?;
        let questions = process.take_stdin();
        let output = BufReader::new(process.take_stdout());
        let (sender, answers) = channel();
        // Ends with the process, whose output ends.
        thread::spawn(move || {
            for line in output.lines().map_while(Result::ok) {
                if sender.send(line).is_err() {
                    return;
                }
            }
        });
        Ok(Conversation { process, questions, answers })
    }

    /// Asks, and waits for the answer.
    pub(crate) fn ask(&mut self, question: &str, limit: Duration) -> Result<String> {
        writeln!(self.questions, "{question}")?;
        let answer = self.answers.recv_timeout(limit);
        answer.with_context(|| format!("no answer within {limit:?}\n{}", self.process.log_ends()))
    }
}
