//! A broker process that is attacked, and what the system knows of it.

use std::cell::Cell;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

use super::client::PATIENCE;
use super::wait_until;
use crate::broker::{Broker, Setup};

/// Held by the one broker that is attacked: tests measure latencies and memory, and would disturb each other.
static ARENA: Mutex<()> = Mutex::new(());

/// A running broker, killed when dropped. There is one at a time in a test program.
#[derive(Debug)]
pub struct Victim {
    broker: Broker,
    /// Where it listens.
    pub address: SocketAddr,
    /// Connections that only had the log go on.
    asked: Cell<isize>,
    _arena: MutexGuard<'static, ()>,
}

impl Victim {
    /// A broker with these settings on an empty directory.
    pub fn start(settings: &[(&str, &str)]) -> Victim {
        let setup = Setup::new("hostile");
        Victim::of(settings.iter().fold(setup, |setup, (key, value)| setup.set(key, value)))
    }

    /// A broker with a soft and a hard limit of descriptors.
    pub fn with_descriptors(soft: u64, hard: u64) -> Victim {
        Victim::of(Setup::new("hostile").limit_descriptors(soft, hard))
    }

    fn of(setup: Setup) -> Victim {
        let arena = ARENA.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let broker = setup.start();
        let address = broker.address().parse().expect("the ready line has the address");
        Victim { broker, address, asked: Cell::new(0), _arena: arena }
    }

    /// Where its data is.
    pub fn data_dir(&self) -> PathBuf {
        self.broker.data_dir()
    }

    /// A figure of `/proc/PID/status` in KiB, such as `VmHWM`.
    pub fn memory_kib(&self, field: &str) -> u64 {
        let status = std::fs::read_to_string(self.proc("status")).expect("the broker lives");
        let line = status.lines().find(|line| line.starts_with(field)).expect("the kernel tells it");
        line.split_whitespace().nth(1).and_then(|kib| kib.parse().ok()).expect("it is a number")
    }

    /// Begins the measurement of `VmHWM` anew.
    pub fn reset_memory_peak(&self) {
        std::fs::write(self.proc("clear_refs"), "5").expect("one's own process may be told");
    }

    /// Open descriptors.
    pub fn descriptors(&self) -> usize {
        std::fs::read_dir(self.proc("fd")).expect("the broker lives").count()
    }

    /// Bytes that threads whose names begin so have had read from the disk, their own read-ahead included.
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

    /// Lines that the broker has logged and that contain `text`.
    pub fn logged(&self, text: &str) -> Vec<String> {
        self.broker.log().lines().filter(|line| line.contains(text)).map(str::to_owned).collect()
    }

    /// Waits until so many lines with `text` are logged, and sees that there are no more.
    pub fn expect_logged(&self, text: &str, count: usize) {
        wait_until(&format!("{count} log lines with {text:?}"), PATIENCE, || {
            self.logged(text).len() >= count
        });
        assert_eq!(self.logged(text).len(), count, "log lines with {text:?}: {:#?}", self.logged(text));
    }

    /// Connections that were refused or closed as the log has them: a line for each of the first of a second, and a number for the others, which
    /// comes with the next line. This causes one.
    pub fn ended(&self) -> isize {
        self.asked.set(self.asked.get() + 1);
        let mut asking = TcpStream::connect(self.address).expect("the broker lives");
        asking.set_read_timeout(Some(PATIENCE)).expect("a time of its own");
        // A length that is none; it may be refused before it has sent it.
        let _ = asking.write_all(&[0xff; 4]);
        let _ = asking.read(&mut [0]);
        // The log is written by another thread. Who is too early asks once more.
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

    /// Waits until the log says that so many connections have ended, and no more.
    pub fn expect_ended(&self, count: usize) {
        wait_until(&format!("{count} connections that ended"), PATIENCE, || {
            usize::try_from(self.ended()) == Ok(count)
        });
    }

    /// The broker lives, answers, and nothing in it has panicked.
    pub fn assert_sound(&mut self) {
        self.broker.assert_healthy();
    }
}
