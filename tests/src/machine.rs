//! A broker in this process, on a machine whose disk is simulated: it can be killed, and its power can be cut.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use mainstem_broker::config::loggers::{LogLevel, LoggerLevels};
use mainstem_broker::config::{BrokerConfig, Sources};
use mainstem_broker::{Loggers, Machine, ManualClock, Server, StartError, StartOptions};
use mainstem_log::sim::{Random, SimStorage};
use mainstem_log::storage::{Storage, read_small_file};

use crate::broker::get;
use crate::client::{Client, Reachable};

const LOG_DIR: &str = "/data";
const FILE_BYTES_MAX: usize = 1 << 30;

/// The way in which a broker dies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Death {
    /// The process alone dies: written data stay.
    Kill,
    /// The machine dies with it: data that were not synced are lost, or torn.
    PowerCut,
}

/// A broker of this process on a simulated disk.
pub struct SimulatedBroker {
    disk: SimStorage,
    settings: Vec<(String, String)>,
    boots: u32,
    /// The clock of a test that advances the time itself; none is the machine's.
    clock: Option<ManualClock>,
    /// Present while the broker runs.
    server: Option<Server>,
}

impl SimulatedBroker {
    /// Starts it on an empty disk.
    ///
    /// # Panics
    /// When it cannot be started, with the reason.
    pub fn start(settings: &[(&str, &str)]) -> SimulatedBroker {
        SimulatedBroker::start_with(None, settings)
    }

    /// The same with a clock that the test advances, also for the starts that follow.
    ///
    /// # Panics
    /// When it cannot be started, with the reason.
    pub fn start_at(clock: &ManualClock, settings: &[(&str, &str)]) -> SimulatedBroker {
        SimulatedBroker::start_with(Some(clock.clone()), settings)
    }

    fn start_with(clock: Option<ManualClock>, settings: &[(&str, &str)]) -> SimulatedBroker {
        let own = [("listeners", "PLAINTEXT://127.0.0.1:0"), ("log.dirs", LOG_DIR)];
        let settings =
            own.iter().chain(settings).map(|(key, value)| ((*key).to_owned(), (*value).to_owned()));
        let mut broker = SimulatedBroker {
            disk: SimStorage::new(),
            settings: settings.collect(),
            boots: 0,
            clock,
            server: None,
        };
        broker.start_again();
        broker
    }

    /// Starts it with the data on the disk.
    ///
    /// # Panics
    /// When it cannot be started, with the reason.
    pub fn start_again(&mut self) {
        self.try_to_start().unwrap_or_else(|error| panic!("it does not start: {error}"));
    }

    /// The same for a start during which it may die.
    ///
    /// # Errors
    /// The reason why it cannot be started.
    pub fn try_to_start(&mut self) -> Result<(), StartError> {
        let sources = Sources { file: None, environment: &[], overrides: &self.settings };
        let config = BrokerConfig::from_sources(sources).expect("the settings are valid");
        let loggers = Loggers::new(LoggerLevels::new(LogLevel::Info, BTreeMap::new()), |_| {});
        let storage = Arc::new(self.disk.of_this_process());
        let machine = Machine { storage, boot_id: format!("boot-{}", self.boots) };
        let options =
            StartOptions { machine: Some(machine), clock: self.clock.clone(), ..StartOptions::default() };
        self.server = Some(Server::start(config, loggers, &options)?);
        Ok(())
    }

    /// Kills it. What still runs of it in this process reaches neither the disk nor a client that knows the next address.
    pub fn die(&mut self, death: Death, random: &mut Random) {
        match death {
            Death::Kill => self.disk.kill(),
            Death::PowerCut => {
                self.disk.power_cut(random);
                self.boots += 1;
            }
        }
        if let Some(server) = self.server.take() {
            let in_order = server.stop(&AtomicBool::new(true), &mut |_, _| {});
            assert!(!in_order, "nothing can be left in order by the dead");
        }
    }

    /// Stops it in order.
    pub fn stop(&mut self) {
        let server = self.server.take().expect("it runs");
        assert!(server.stop(&AtomicBool::new(false), &mut |_, _| {}), "it is left in order");
    }

    /// Asserts its invariants.
    pub fn check(&self) {
        self.server.as_ref().expect("it runs").check();
    }

    /// Its disk.
    pub fn disk(&self) -> &SimStorage {
        &self.disk
    }

    /// Copies its log directory to the disk of this machine.
    pub fn copy_to(&self, to: &Path) {
        copy(&self.disk, Path::new(LOG_DIR), to);
    }

    /// The answer of its HTTP listener to GET.
    ///
    /// # Panics
    /// When the listener is not configured, or does not answer.
    pub fn http(&self, path: &str) -> String {
        let http = self.server.as_ref().expect("it runs").ready().http;
        get(&http.expect("the operator's listener is open").to_string(), path)
    }

    /// A new connection.
    pub fn connect(&self) -> Client {
        let server = self.server.as_ref().expect("it runs");
        let address = server.ready().listeners[0].1.to_string();
        Client::connect(&address).expect("it accepts")
    }
}

impl Reachable for SimulatedBroker {
    fn connect(&self) -> Client {
        SimulatedBroker::connect(self)
    }
}

impl Drop for SimulatedBroker {
    fn drop(&mut self) {
        if let Some(server) = self.server.take() {
            // It is stopped on another thread: on a thread that panics, a locked coordinator would end the process, and the test would
            // not say why it fails.
            let stopped = std::thread::spawn(move || server.stop(&AtomicBool::new(true), &mut |_, _| {}));
            if let Err(panic) = stopped.join()
                && !std::thread::panicking()
            {
                std::panic::resume_unwind(panic);
            }
        }
    }
}

fn copy(disk: &SimStorage, from: &Path, to: &Path) {
    fs::create_dir_all(to).expect("a directory");
    for entry in disk.list(from).expect("it can be listed") {
        let (from, to) = (from.join(&entry.name), to.join(&entry.name));
        if entry.is_dir {
            copy(disk, &from, &to);
        } else {
            let bytes = read_small_file(disk, &from, FILE_BYTES_MAX).expect("it can be read");
            fs::write(to, bytes).expect("it can be written");
        }
    }
}
