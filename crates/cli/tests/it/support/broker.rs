//! A broker of the same binary, for commands to connect to.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use serde_json::Value;
use tempfile::TempDir;

use super::{Run, run, run_with_input};

/// A broker on a directory of its own.
pub(crate) struct Broker {
    pub(crate) dir: TempDir,
    pub(crate) process: Child,
    pub(crate) address: String,
}

impl Broker {
    /// Starts a broker with the default settings.
    pub(crate) fn start() -> Broker {
        Broker::start_with(&[])
    }

    /// Starts a broker with settings, each as `KEY=VALUE`.
    pub(crate) fn start_with(settings: &[&str]) -> Broker {
        Broker::start_on(tempfile::tempdir().unwrap(), settings)
    }

    /// Starts a broker on a directory with contents.
    pub(crate) fn start_on(dir: TempDir, settings: &[&str]) -> Broker {
        let (process, address) = Broker::spawn(dir.path(), settings);
        Broker { dir, process, address }
    }

    /// Starts it again after a stop, at another address.
    pub(crate) fn start_again(&mut self) {
        (self.process, self.address) = Broker::spawn(self.dir.path(), &[]);
    }

    /// Starts a process, and waits until it prints its address.
    fn spawn(dir: &Path, settings: &[&str]) -> (Child, String) {
        let mut process = Command::new(super::binary::mainstem())
            .args([
                "start",
                "--listen",
                "127.0.0.1:0",
                "--json",
                "--set",
                "group.initial.rebalance.delay.ms=0",
            ])
            .args(settings.iter().flat_map(|setting| ["--set", setting]))
            .arg("--data-dir")
            .arg(dir)
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(process.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let ready: Value = serde_json::from_str(&line).expect("the ready line is JSON");
        let address = ready["listeners"][0]["address"].as_str().unwrap().to_owned();
        (process, address)
    }

    /// Runs a command against it.
    pub(crate) fn run(&self, arguments: &str) -> Run {
        run(&self.address, arguments)
    }

    /// Runs `produce` with input. Returns what it printed.
    pub(crate) fn produce(&self, arguments: &str, input: &str) -> String {
        run_with_input(&self.address, &format!("produce {arguments}"), input.as_bytes()).ok()
    }

    /// Its data directory.
    pub(crate) fn data(&self) -> &Path {
        self.dir.path()
    }

    /// Stops it in order.
    pub(crate) fn stop(&mut self) {
        interrupt(&self.process);
        let status = self.process.wait().unwrap();
        assert!(status.success(), "{status}");
    }
}

impl Drop for Broker {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Asks a process to stop, as Ctrl-C does.
pub(crate) fn interrupt(process: &Child) {
    let pid = rustix::process::Pid::from_child(process);
    rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
}
