//! Shared parts of the binary's tests: runs of the binary, its broker, and a broker with scripted answers.
#![allow(dead_code, reason = "each test uses its part")]

pub(crate) mod binary;
pub(crate) mod broker;
pub(crate) mod cluster;
pub(crate) mod fake_broker;
pub(crate) mod transactions;

use std::io::Write;
use std::process::{Command, Output, Stdio};

/// The binary with arguments, separated by blanks, against a broker.
pub(crate) fn mainstem(bootstrap: &str, arguments: &str) -> Command {
    let mut command = Command::new(binary::mainstem());
    command.args(arguments.split_whitespace()).env("MAINSTEM_BOOTSTRAP", bootstrap);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// The outcome of a run of the binary.
#[derive(Debug)]
pub(crate) struct Run {
    pub(crate) code: Option<i32>,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl From<Output> for Run {
    fn from(output: Output) -> Run {
        Run {
            code: output.status.code(),
            stdout: String::from_utf8(output.stdout).expect("standard output is text"),
            stderr: String::from_utf8(output.stderr).expect("standard error is text"),
        }
    }
}

impl Run {
    /// Fails the test unless the run succeeded; returns its output.
    pub(crate) fn ok(self) -> String {
        assert_eq!(self.code, Some(0), "{self:?}");
        self.stdout
    }

    /// Fails the test unless the run failed with exit code 1; returns the message.
    pub(crate) fn failed(self) -> String {
        assert_eq!(self.code, Some(1), "{self:?}");
        self.stderr
    }

    /// The one JSON value that was printed.
    pub(crate) fn json(self) -> serde_json::Value {
        serde_json::from_str(&self.ok()).expect("the output is JSON")
    }
}

/// Runs the binary with arguments that may contain any character.
pub(crate) fn run_words(bootstrap: &str, words: &[&str]) -> Run {
    mainstem(bootstrap, "").args(words).output().expect("the binary runs").into()
}

/// Runs the binary to its end.
pub(crate) fn run(bootstrap: &str, arguments: &str) -> Run {
    mainstem(bootstrap, arguments).output().expect("the binary runs").into()
}

/// The same with input.
pub(crate) fn run_with_input(bootstrap: &str, arguments: &str, input: &[u8]) -> Run {
    let mut child = mainstem(bootstrap, arguments).stdin(Stdio::piped()).spawn().expect("the binary runs");
    let mut stdin = child.stdin.take().expect("standard input is a pipe");
    let input = input.to_vec();
    // A command that fails early does not read all of the input.
    let writer = std::thread::spawn(move || stdin.write_all(&input));
    let run = child.wait_with_output().expect("the binary ends").into();
    let _ = writer.join().expect("the writer does not panic");
    run
}
