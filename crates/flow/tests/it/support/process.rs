//! A broker as a process of its own, which can be killed: a test's own program, run again.

use std::collections::BTreeMap;
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use mainstem_broker::{Loggers, Server, StartOptions};
use mainstem_config::loggers::{LogLevel, LoggerLevels};
use mainstem_config::{BrokerConfig, Sources};

use super::{Directory, free_address};

/// The name of the test that [`run`] is called by.
const TEST: &str = "promises::broker_process";
const DIRECTORY: &str = "FLOW_BROKER_DIRECTORY";
const ADDRESS: &str = "FLOW_BROKER_ADDRESS";
const SETTINGS: &str = "FLOW_BROKER_SETTINGS";
const START_LIMIT: Duration = Duration::from_secs(30);

/// It is killed when this is dropped.
pub(crate) struct BrokerProcess {
    directory: Directory,
    pub(crate) address: String,
    settings: String,
    child: Child,
}

impl BrokerProcess {
    /// Starts it in a program whose test `broker_process` does nothing but call [`run`].
    pub(crate) fn start(settings: &[(&str, &str)]) -> BrokerProcess {
        let directory = Directory::new("flow-broker");
        let address = free_address();
        let settings: String = settings.iter().map(|(key, value)| format!("{key}={value}\n")).collect();
        let child = child(&directory, &address, &settings);
        BrokerProcess { directory, address, settings, child }
    }

    /// Kills it, and starts it on its files.
    pub(crate) fn kill_and_start(&mut self) {
        self.kill();
        self.child = child(&self.directory, &self.address, &self.settings);
    }

    fn kill(&mut self) {
        // It may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for BrokerProcess {
    fn drop(&mut self) {
        self.kill();
    }
}

fn child(directory: &Directory, address: &str, settings: &str) -> Child {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", TEST, "--nocapture", "--test-threads=1"])
        .env(DIRECTORY, directory.path())
        .env(ADDRESS, address)
        .env(SETTINGS, settings)
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let deadline = Instant::now() + START_LIMIT;
    while TcpStream::connect(address).is_err() {
        let ended = child.try_wait().unwrap();
        assert!(ended.is_none() && Instant::now() < deadline, "the broker does not start: {ended:?}");
        std::thread::sleep(Duration::from_millis(5));
    }
    child
}

/// Runs the broker if this process was started for that: it ends with its input, or a kill.
pub(crate) fn run() {
    let Ok(directory) = std::env::var(DIRECTORY) else { return };
    let listeners = format!("PLAINTEXT://{}", std::env::var(ADDRESS).unwrap());
    let settings = std::env::var(SETTINGS).unwrap();
    let own = [("log.dirs", &*directory), ("listeners", &*listeners)];
    let others = settings.lines().map(|line| line.split_once('=').unwrap());
    let owned = |(key, value): (&str, &str)| (key.to_owned(), value.to_owned());
    let overrides: Vec<_> = own.into_iter().chain(others).map(owned).collect();
    let sources = Sources { file: None, environment: &[], overrides: &overrides };
    let config = BrokerConfig::from_sources(sources).unwrap();
    let loggers = Loggers::new(LoggerLevels::new(LogLevel::Info, BTreeMap::new()), |_| {});
    let _server = Server::start(config, loggers, &StartOptions::default()).unwrap();
    let mut line = String::new();
    std::io::stdin().read_line(&mut line).unwrap();
    std::process::exit(1);
}
