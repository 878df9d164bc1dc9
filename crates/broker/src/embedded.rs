//! A broker within a test: a free port of this host, and a directory of its own that is removed at its end.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use mainstem_config::loggers::{LogLevel, LoggerLevels};
use mainstem_config::{BrokerConfig, Sources};

use crate::{Loggers, Machine, ManualClock, Server, StartOptions};

/// Distinguishes the directories of one process's brokers.
static STARTED: AtomicU32 = AtomicU32::new(0);

/// A broker for tests. When it is dropped it stops, and its data are removed.
///
/// ```
/// let broker = mainstem_broker::EmbeddedBroker::start(&[("num.partitions", "4")]);
/// assert!(broker.address().starts_with("127.0.0.1:"));
/// ```
pub struct EmbeddedBroker {
    /// Present until it is dropped or stopped.
    server: Option<Server>,
    directory: PathBuf,
    address: String,
    settings: Vec<(String, String)>,
    options: StartOptions,
}

impl EmbeddedBroker {
    /// Starts a broker with Kafka's settings by name, beside those for the listener and the directory.
    ///
    /// # Panics
    /// When the broker cannot be started, with the reason.
    pub fn start(settings: &[(&str, &str)]) -> EmbeddedBroker {
        EmbeddedBroker::start_with((None, None), settings)
    }

    /// The same with a clock that the test advances: timers of the broker depend on it alone.
    ///
    /// ```
    /// let clock = mainstem_broker::ManualClock::new();
    /// let broker = mainstem_broker::EmbeddedBroker::start_at(&clock, &[("log.retention.check.interval.ms", "300000")]);
    /// clock.advance(std::time::Duration::from_secs(300));
    /// ```
    ///
    /// # Panics
    /// As [`EmbeddedBroker::start`].
    pub fn start_at(clock: &ManualClock, settings: &[(&str, &str)]) -> EmbeddedBroker {
        EmbeddedBroker::start_with((None, Some(clock.clone())), settings)
    }

    /// The same with its directory on another machine, at the same path.
    #[cfg(test)]
    pub(crate) fn start_on(machine: Machine, settings: &[(&str, &str)]) -> EmbeddedBroker {
        EmbeddedBroker::start_with((Some(machine), None), settings)
    }

    fn start_with(
        (machine, clock): (Option<Machine>, Option<ManualClock>),
        settings: &[(&str, &str)],
    ) -> EmbeddedBroker {
        let number = STARTED.fetch_add(1, Ordering::Relaxed);
        let name = format!("mainstem-embedded-{}-{number}", std::process::id());
        let directory = std::env::temp_dir().join(name);
        // Files of a killed process with the same id are not in use.
        let _ = std::fs::remove_dir_all(&directory);
        let own = |(key, value): &(&str, &str)| ((*key).to_owned(), (*value).to_owned());
        let settings: Vec<_> = settings.iter().map(own).collect();
        let options = StartOptions { machine, clock, ..StartOptions::default() };
        let server = start(&directory, "127.0.0.1:0", &settings, &options);
        let address = server.ready().listeners.first().expect("one was configured").1.to_string();
        EmbeddedBroker { server: Some(server), directory, address, settings, options }
    }

    /// Stops it, and keeps its data for [`EmbeddedBroker::start_again`]. Nothing happens if it is stopped.
    pub fn stop(&mut self) {
        if let Some(server) = self.server.take() {
            server.stop(&AtomicBool::new(true), &mut |_, _| {});
        }
    }

    /// Starts it on its directory, at the same address and with the same settings; one that runs is stopped first.
    ///
    /// ```
    /// let mut broker = mainstem_broker::EmbeddedBroker::start(&[]);
    /// let address = broker.address().to_owned();
    /// broker.start_again();
    /// assert_eq!(broker.address(), address);
    /// ```
    ///
    /// # Panics
    /// When it cannot be started, with the reason: something else may have taken its port meanwhile.
    pub fn start_again(&mut self) {
        self.stop();
        self.server = Some(start(&self.directory, &self.address, &self.settings, &self.options));
    }

    #[cfg(test)]
    pub(crate) fn broker(&self) -> &std::sync::Arc<crate::broker::Broker> {
        self.server.as_ref().expect("it runs").broker()
    }

    /// The address of a listener.
    #[cfg(test)]
    pub(crate) fn address_of(&self, listener: &str) -> std::net::SocketAddr {
        let listeners = &self.server.as_ref().expect("it runs").ready().listeners;
        listeners.iter().find(|(name, _)| name == listener).expect("it was configured").1
    }

    #[cfg(test)]
    pub(crate) fn http(&self) -> Option<std::net::SocketAddr> {
        self.server.as_ref().expect("it runs").ready().http
    }

    /// The address for clients, as HOST:PORT.
    pub fn address(&self) -> &str {
        &self.address
    }
}

impl Drop for EmbeddedBroker {
    fn drop(&mut self) {
        let mut panic = None;
        if let Some(server) = self.server.take() {
            // It is dropped on another thread: on a thread that panics, a locked coordinator would end the process, and the test would
            // not say why it fails.
            panic = std::thread::scope(|scope| {
                let stopped = scope.spawn(move || server.stop(&AtomicBool::new(true), &mut |_, _| {}));
                stopped.join().err()
            });
        }
        // Files that cannot be removed stay in the directory for temporary files, which the system cleans.
        let _ = std::fs::remove_dir_all(&self.directory);
        if let Some(panic) = panic.filter(|_| !std::thread::panicking()) {
            std::panic::resume_unwind(panic);
        }
    }
}

fn start(directory: &Path, address: &str, settings: &[(String, String)], options: &StartOptions) -> Server {
    let directory = directory.to_str().expect("the directory for temporary files has a name in UTF-8");
    let listeners = format!("PLAINTEXT://{address}");
    let own = [("log.dirs", directory), ("listeners", listeners.as_str())];
    let own = own.map(|(key, value)| (key.to_owned(), value.to_owned()));
    let overrides: Vec<_> = own.into_iter().chain(settings.iter().cloned()).collect();
    let sources = Sources { file: None, environment: &[], overrides: &overrides };
    let config = BrokerConfig::from_sources(sources).unwrap_or_else(|error| panic!("{error}"));
    let loggers = Loggers::new(LoggerLevels::new(LogLevel::Info, BTreeMap::new()), |_| {});
    Server::start(config, loggers, options).unwrap_or_else(|error| panic!("{error}"))
}
