//! State that every check shares: the address of the broker, folders for files, the JVM, the text.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};

use anyhow::Result;

use super::install;
use super::runner::{Finished, Runner};
use super::text::Text;

/// One run against one broker.
pub(crate) struct World {
    /// Files of this run.
    pub(crate) run: PathBuf,
    /// Logs of its processes.
    pub(crate) logs: PathBuf,
    /// Port of the broker, which is on the loopback address.
    pub(crate) port: u16,
    pub(crate) text: Text,
    pub(crate) runner: Mutex<Runner>,
}

impl World {
    pub(crate) fn address(&self) -> SocketAddr {
        SocketAddr::from((Ipv4Addr::LOCALHOST, self.port))
    }

    pub(crate) fn bootstrap(&self) -> String {
        self.address().to_string()
    }

    /// Runs a Java main class in the shared JVM.
    pub(crate) fn java(&self, main: &str, arguments: &[String], input: &str) -> Result<Finished> {
        // A panic of another check leaves the JVM with no call under way, or with no process.
        self.runner.lock().unwrap_or_else(PoisonError::into_inner).call(main, arguments, input)
    }

    /// Runs one of Kafka's tools, by the name of its script, in the shared JVM.
    pub(crate) fn tool(&self, name: &str, arguments: &[&str], input: &str) -> Result<Finished> {
        let arguments: Vec<String> = arguments.iter().map(ToString::to_string).collect();
        self.java(install::tool_class(name), &arguments, input)
    }
}
