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
        self.say(question)?;
        self.next(limit)
    }

    /// Writes a line that has no answer, or one that is waited for later.
    pub(crate) fn say(&mut self, line: &str) -> Result<()> {
        writeln!(self.questions, "{line}").context("write to a process that has ended")
    }

    /// Waits for a line that begins so; others before it are passed over.
    pub(crate) fn wait_for(&mut self, begin: &str, limit: Duration) -> Result<()> {
        while !self.next(limit)?.starts_with(begin) {}
        Ok(())
    }

    /// Ends its input, and waits until it has ended well.
    pub(crate) fn end(self, limit: Duration) -> Result<()> {
        let Conversation { mut process, questions, .. } = self;
        drop(questions);
        process.wait(limit)
    }

    fn next(&mut self, limit: Duration) -> Result<String> {
        let answer = self.answers.recv_timeout(limit);
        answer.with_context(|| format!("no answer within {limit:?}\n{}", self.process.log_ends()))
    }
}
