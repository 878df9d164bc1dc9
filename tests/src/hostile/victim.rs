//! A broker process under attack, and the system's figures about it.

use std::cell::Cell;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

use super::client::TIMEOUT;
use super::wait_until;
use crate::broker::{Broker, Setup};

/// Held by the one broker under attack: tests measure latencies and memory, and would disturb each other.
static ARENA: Mutex<()> = Mutex::new(());

/// A running broker, killed when dropped. A test program has one at a time.
#[derive(Debug)]
pub struct Victim {
    broker: Broker,
    /// The address of its listener.
    pub address: SocketAddr,
    /// The number of connections that [`Victim::ended`] has made.
    asked: Cell<isize>,
    _arena: MutexGuard<'static, ()>,
}

impl Victim {
    /// Starts a broker with these settings on an empty directory.
    pub fn start(settings: &[(&str, &str)]) -> Victim {
        let setup = Setup::new("hostile");
        Victim::of(settings.iter().fold(setup, |setup, (key, value)| setup.set(key, value)))
    }

    /// Starts a broker with a soft and a hard limit of descriptors.
    pub fn with_descriptors(soft: u64, hard: u64) -> Victim {
        Victim::of(Setup::new("hostile").limit_descriptors(soft, hard))
    }

    fn of(setup: Setup) -> Victim {
        let arena = ARENA.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let broker = setup.start();
        let address = broker.address().parse().expect("the ready line has the address");
        Victim { broker, address, asked: Cell::new(0), _arena: arena }
    }

    /// The path of its data.
    pub fn data_dir(&self) -> PathBuf {
        self.broker.data_dir()
    }

    /// A figure of `/proc/PID/status` in KiB, such as `VmHWM`.
    pub fn memory_kib(&self, field: &str) -> u64 {
        let status = std::fs::read_to_string(self.proc("status")).expect("the broker lives");
        let line = status.lines().find(|line| line.starts_with(field)).expect("the kernel has it");
        line.split_whitespace().nth(1).and_then(|kib| kib.parse().ok()).expect("it is a number")
    }

    /// Resets `VmHWM`, the peak of its memory.
    pub fn reset_memory_peak(&self) {
        std::fs::write(self.proc("clear_refs"), "5").expect("one's own process may be reset");
    }

    /// The number of its open descriptors.
    pub fn descriptors(&self) -> usize {
        std::fs::read_dir(self.proc("fd")).expect("the broker lives").count()
    }

    /// Bytes that threads with this prefix in their names have read from the disk, their read-ahead included.
    pub fn bytes_from_disk(&self, thread: &str) -> u64 {
        let tasks = std::fs::read_dir(self.proc("task")).expect("the broker lives");
        let read = tasks.filter_map(|task| {
            let task = task.ok()?.path();
            let name = std::fs::read_to_string(task.join("comm")).ok()?;
            let io = std::fs::read_to_string(task.join("io")).ok().filter(|_| name.starts_with(thread))?;
            let line = io.lines().find_map(|line| line.strip_prefix("read_bytes: "))?;
            line.parse::<u64>().ok()
        });
        read.sum()
    }

    fn proc(&self, file: &str) -> PathBuf {
        Path::new("/proc").join(self.broker.process_id().to_string()).join(file)
    }

    /// Lines of the broker's log that contain `text`.
    pub fn logged(&self, text: &str) -> Vec<String> {
        self.broker.log().lines().filter(|line| line.contains(text)).map(str::to_owned).collect()
    }

    /// Waits until so many lines with `text` are logged, and asserts that there are no more.
    pub fn expect_logged(&self, text: &str, count: usize) {
        wait_until(&format!("{count} log lines with {text:?}"), TIMEOUT, || self.logged(text).len() >= count);
        assert_eq!(self.logged(text).len(), count, "log lines with {text:?}: {:#?}", self.logged(text));
    }

    /// Connections that were refused or closed, by the log. The log has a line for each of the first in a second, and
    /// a count of the others with the next line. This call causes one itself.
    pub fn ended(&self) -> isize {
        self.asked.set(self.asked.get() + 1);
        let mut asking = TcpStream::connect(self.address).expect("the broker lives");
        asking.set_read_timeout(Some(TIMEOUT)).expect("a time of its own");
        // An invalid length. The connection may be refused before it is sent.
        let _ = asking.write_all(&[0xff; 4]);
        let _ = asking.read(&mut [0]);
        // Another thread writes the log. A caller that is too early asks again.
        std::thread::sleep(Duration::from_millis(20));
        let shown = self.logged("connection closed").len() + self.logged("connection refused").len();
        let counted = self.logged("further connections were refused or closed");
        let left_out = counted.iter().filter_map(|line| line.split_once("left_out")).map(|(_, rest)| {
            let rest = rest.trim_start_matches(|letter: char| !letter.is_ascii_digit());
            rest.split(|letter: char| !letter.is_ascii_digit()).next().and_then(|digits| digits.parse().ok())
        });
        let left_out: isize = left_out.map(|number| number.unwrap_or(0)).sum();
        isize::try_from(shown).expect("a file has no more lines") + left_out - self.asked.get()
    }

    /// Waits until so many connections have ended by the log, and asserts that there are no more.
    pub fn expect_ended(&self, count: usize) {
        wait_until(&format!("{count} connections that ended"), TIMEOUT, || {
            usize::try_from(self.ended()) == Ok(count)
        });
    }

    /// Asserts that the broker runs, answers, and had no panic.
    pub fn assert_sound(&mut self) {
        self.broker.assert_healthy();
    }
}
