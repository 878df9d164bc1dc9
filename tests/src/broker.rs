//! The real binary as a child process: started, stopped, killed and started again over one data directory.

use std::fs::{self, File, OpenOptions};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Resource, Rlimit, Signal, getrlimit, kill_process, prlimit};
use tempfile::TempDir;

use crate::client::{Client, Reachable};
use crate::wait::{TIMEOUT, eventually};

/// Lines of the log in a failure's message.
const LOG_TAIL_LINES: usize = 40;

/// Settings of every broker here: no group waits longer than its test, and groups need few partitions.
const SETTINGS: [(&str, &str); 4] = [
    ("group.initial.rebalance.delay.ms", "0"),
    ("group.min.session.timeout.ms", "100"),
    ("offsets.topic.num.partitions", "4"),
    ("mainstem.http.listener", "127.0.0.1:0"),
];

/// A broker to start.
#[derive(Debug)]
pub struct Setup {
    name: String,
    settings: Vec<(String, String)>,
    descriptors: Option<(u64, u64)>,
    log_dirs: usize,
    data_dir: Option<PathBuf>,
    environment: Vec<(&'static str, PathBuf)>,
}

impl Setup {
    /// A broker for the test `name` with the settings that all tests have.
    pub fn new(name: &str) -> Setup {
        let settings = SETTINGS.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned()));
        Setup {
            name: name.to_owned(),
            settings: settings.collect(),
            descriptors: None,
            log_dirs: 1,
            data_dir: None,
            environment: Vec::new(),
        }
    }

    /// Sets a soft and a hard limit of open descriptors.
    pub fn limit_descriptors(mut self, soft: u64, hard: u64) -> Setup {
        self.descriptors = Some((soft, hard));
        self
    }

    /// Sets the number of log directories.
    pub fn log_dirs(mut self, count: usize) -> Setup {
        self.log_dirs = count;
        self
    }

    /// Sets the path of its one log directory.
    pub fn data_dir(mut self, path: PathBuf) -> Setup {
        self.data_dir = Some(path);
        self
    }

    /// Sets variables in the environment of its processes.
    pub fn environment(mut self, variables: Vec<(&'static str, PathBuf)>) -> Setup {
        self.environment = variables;
        self
    }

    /// Sets a setting, by Kafka's name; the last value of a name counts.
    pub fn set(mut self, key: &str, value: impl ToString) -> Setup {
        self.settings.retain(|(other, _)| other != key);
        self.settings.push((key.to_owned(), value.to_string()));
        self
    }

    /// Starts it over an empty directory, and waits until it is ready.
    pub fn start(self) -> Broker {
        let home = target_dir().join("test-runs");
        fs::create_dir_all(&home).expect("the target directory can be written to");
        let home = tempfile::Builder::new().prefix(&format!("{}-", self.name)).tempdir_in(home);
        let home = home.expect("a directory for the broker can be made");
        let mut broker = Broker {
            home: Some(home),
            settings: self.settings,
            descriptors: self.descriptors,
            log_dirs: self.log_dirs,
            data_dir: self.data_dir,
            environment: self.environment,
            running: None,
        };
        broker.start_again();
        broker
    }
}

/// The outcome of a start.
#[derive(Debug)]
pub enum Started {
    /// It is ready. Has the ready line.
    Ready(serde_json::Value),
    /// It ended before it was ready.
    Ended(ExitStatus),
}

/// A broker process and its directory, which is kept when the test fails.
#[derive(Debug)]
pub struct Broker {
    home: Option<TempDir>,
    settings: Vec<(String, String)>,
    descriptors: Option<(u64, u64)>,
    log_dirs: usize,
    data_dir: Option<PathBuf>,
    environment: Vec<(&'static str, PathBuf)>,
    running: Option<Running>,
}

#[derive(Debug)]
struct Running {
    process: Child,
    ready: serde_json::Value,
}

impl Broker {
    /// Starts it over the same directory, on another port.
    ///
    /// # Panics
    /// When it already runs, or does not get ready.
    pub fn start_again(&mut self) {
        assert!(self.running.is_none(), "the broker runs already");
        let mut process = self.spawn("127.0.0.1:0", &self.data_dir(), "broker.log");
        match wait_until_ready(&mut process) {
            Started::Ready(ready) => self.running = Some(Running { process, ready }),
            Started::Ended(status) => panic!("the broker ended at start with {status}\n{}", self.log_tail()),
        }
    }

    /// Starts another process of this broker, which must end by itself. Returns its exit status and its stderr.
    ///
    /// # Panics
    /// When it gets ready, or does not end in time.
    pub fn start_another(&self, listen: &str, data_dir: &Path) -> (ExitStatus, String) {
        let mut process = self.spawn(listen, data_dir, "another.log");
        let status = match wait_until_ready(&mut process) {
            Started::Ended(status) => status,
            Started::Ready(ready) => {
                end(&mut process);
                panic!("a broker started that should not: {ready}")
            }
        };
        let said = fs::read_to_string(self.home().join("another.log")).expect("the log can be read");
        (status, said)
    }

    /// Starts it and kills it after a time, at any point of the start.
    pub fn start_and_kill(&mut self, after: Duration) {
        assert!(self.running.is_none(), "the broker runs already");
        let mut process = self.spawn("127.0.0.1:0", &self.data_dir(), "broker.log");
        std::thread::sleep(after);
        end(&mut process);
    }

    fn spawn(&self, listen: &str, data_dir: &Path, log: &str) -> Child {
        let log = OpenOptions::new().create(true).append(true).open(self.home().join(log));
        let mut command = self.command();
        command.args(["start", "--json"]);
        if !self.settings.iter().any(|(key, _)| key == "listeners") {
            command.args(["--listen", listen]);
        }
        if self.log_dirs == 1 {
            command.arg("--data-dir").arg(data_dir);
        } else {
            let dirs = (0..self.log_dirs).map(|rank| self.log_dir(rank).display().to_string());
            command.arg("--set").arg(format!("log.dirs={}", dirs.collect::<Vec<_>>().join(",")));
        }
        for (key, value) in &self.settings {
            command.arg("--set").arg(format!("{key}={value}"));
        }
        command.envs(self.environment.iter().map(|(name, value)| (name, value)));
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(log.expect("the log can be written"));
        command.spawn().expect("the binary can be started")
    }

    fn command(&self) -> Command {
        if self.descriptors.is_none() && self.log_dirs == 1 {
            return Command::new(binary());
        }
        let mut command = Command::new("sh");
        let limits =
            self.descriptors.map(|(soft, hard)| format!("ulimit -Sn {soft} && ulimit -Hn {hard} && "));
        // See `limit_files`.
        let script = format!("trap '' XFSZ && {}exec \"$0\" \"$@\"", limits.unwrap_or_default());
        command.arg("-c").arg(script).arg(binary());
        command
    }

    /// Sets the soft and the hard limit of open descriptors for later starts; `None` is the test's own limit.
    pub fn limit_descriptors(&mut self, limits: Option<(u64, u64)>) {
        self.descriptors = limits;
    }

    /// Changes a setting for later starts.
    pub fn set(&mut self, key: &str, value: impl ToString) {
        self.settings.retain(|(other, _)| other != key);
        self.settings.push((key.to_owned(), value.to_string()));
    }

    /// Removes a setting for later starts.
    pub fn unset(&mut self, key: &str) {
        self.settings.retain(|(other, _)| other != key);
    }

    /// HOST:PORT of its listener.
    pub fn address(&self) -> String {
        let address = &self.ready()["listeners"][0]["address"];
        address.as_str().expect("the ready line names an address").to_owned()
    }

    /// The ready line of the last start.
    pub fn ready(&self) -> &serde_json::Value {
        &self.running.as_ref().expect("the broker runs").ready
    }

    /// The process id.
    pub fn process_id(&self) -> u32 {
        self.running.as_ref().expect("the broker runs").process.id()
    }

    /// A new connection.
    pub fn connect(&self) -> Client {
        Client::connect(&self.address()).expect("the broker accepts")
    }

    /// The path of its first log directory.
    pub fn data_dir(&self) -> PathBuf {
        self.data_dir.clone().unwrap_or_else(|| self.home().join("data"))
    }

    /// One of its log directories; the first is [`Broker::data_dir`].
    pub fn log_dir(&self, rank: usize) -> PathBuf {
        match rank {
            0 => self.data_dir(),
            rank => self.home().join(format!("data-{rank}")),
        }
    }

    /// Makes each write of the running broker fail (EFBIG) that would make a file longer than this. A directory whose
    /// files are shorter still works. With several directories the broker ignores the signal that comes with it.
    ///
    /// # Panics
    /// When the system refuses.
    pub fn limit_files(&self, bytes: u64) {
        let id = i32::try_from(self.process_id()).ok().and_then(Pid::from_raw);
        let limit = Rlimit { current: Some(bytes), ..getrlimit(Resource::Fsize) };
        prlimit(id, Resource::Fsize, limit).expect("an own child can be limited");
    }

    /// Limits the descriptors of the running broker; open ones stay open.
    ///
    /// # Panics
    /// When the system refuses.
    pub fn limit_open_files(&self, soft: u64) {
        let id = i32::try_from(self.process_id()).ok().and_then(Pid::from_raw);
        let limit = Rlimit { current: Some(soft), ..getrlimit(Resource::Nofile) };
        prlimit(id, Resource::Nofile, limit).expect("an own child can be limited");
    }

    /// The number of its open descriptors.
    pub fn descriptors(&self) -> usize {
        fs::read_dir(format!("/proc/{}/fd", self.process_id())).expect("it runs").count()
    }

    /// The processor time of all its threads so far.
    pub fn cpu_time(&self) -> Duration {
        let of_thread = |file: &str| file.split(' ').next().and_then(|time| time.parse::<u64>().ok());
        Duration::from_nanos(self.of_threads("schedstat", of_thread))
    }

    /// The number of times that its threads went to sleep. The count does not depend on how busy the machine is.
    pub fn sleeps(&self) -> u64 {
        self.of_threads("status", sleeps)
    }

    /// The same for its threads of one name.
    pub fn sleeps_of(&self, name: &str) -> u64 {
        let is_it =
            |file: &str| file.lines().any(|line| line.strip_prefix("Name:").map(str::trim) == Some(name));
        self.of_threads("status", |file| sleeps(file).filter(|_| is_it(file)))
    }

    /// The sum of a value from a file of `/proc` over its threads.
    fn of_threads(&self, file: &str, value: impl Fn(&str) -> Option<u64>) -> u64 {
        let tasks = fs::read_dir(format!("/proc/{}/task", self.process_id())).expect("it runs");
        // A thread that ends meanwhile counts as zero.
        let of_thread = |task: std::io::Result<fs::DirEntry>| {
            value(&fs::read_to_string(task.ok()?.path().join(file)).ok()?)
        };
        tasks.filter_map(of_thread).sum()
    }

    fn home(&self) -> &Path {
        self.home.as_ref().expect("the directory is there until the end").path()
    }

    /// Its log since the first start.
    pub fn log(&self) -> String {
        fs::read_to_string(self.home().join("broker.log")).unwrap_or_default()
    }

    fn log_tail(&self) -> String {
        let log = self.log();
        let lines: Vec<&str> = log.lines().collect();
        lines[lines.len().saturating_sub(LOG_TAIL_LINES)..].join("\n")
    }

    /// `kill -9`, and waits for the end.
    pub fn kill(&mut self) {
        let mut running = self.running.take().expect("the broker runs");
        end(&mut running.process);
    }

    /// Sends SIGTERM and does not wait.
    pub fn ask_to_stop(&self) {
        let id = i32::try_from(self.process_id()).expect("process ids are positive");
        let id = Pid::from_raw(id).expect("a child has an id");
        kill_process(id, Signal::TERM).expect("an own child can be signalled");
    }

    /// Returns true while a SIGTERM waits for the broker to take it.
    pub fn is_asked_to_stop(&self) -> bool {
        let status = fs::read_to_string(format!("/proc/{}/status", self.process_id())).expect("it runs");
        let pending = status.lines().find_map(|line| line.strip_prefix("ShdPnd:")).expect("Linux tells it");
        let pending = u64::from_str_radix(pending.trim(), 16).expect("a mask of signals");
        pending & 1 << (Signal::TERM.as_raw() - 1) != 0
    }

    /// Waits until it has ended after [`Broker::ask_to_stop`].
    pub fn wait_for_end(&mut self) -> ExitStatus {
        let mut running = self.running.take().expect("the broker runs");
        let ended =
            eventually("the broker's end", || running.process.try_wait().expect("a child can be asked"));
        assert!(!self.log().contains("panicked"), "the broker panicked\n{}", self.log_tail());
        ended
    }

    /// Sends SIGTERM and waits for the end, which has to be in order.
    pub fn stop(&mut self) {
        self.ask_to_stop();
        let status = self.wait_for_end();
        assert!(status.success(), "the broker stopped with {status}\n{}", self.log_tail());
    }

    /// Asserts that it runs, answers, and had no panic.
    pub fn assert_healthy(&mut self) {
        let running = self.running.as_mut().expect("the broker runs");
        let ended = running.process.try_wait().expect("a child can be asked");
        assert!(ended.is_none(), "the broker ended: {ended:?}\n{}", self.log_tail());
        assert!(!self.log().contains("panicked"), "the broker panicked\n{}", self.log_tail());
        assert!(self.http("/health").contains("ok"), "the broker is not healthy\n{}", self.log_tail());
        self.connect().api_versions();
    }

    /// The answer of its HTTP listener to GET.
    pub fn http(&self, path: &str) -> String {
        let address = self.ready()["http"].as_str().expect("the operator's listener is open");
        get(address, path)
    }
}

/// The answer of an HTTP listener to GET, with its head.
///
/// # Panics
/// When it does not answer.
pub(crate) fn get(address: &str, path: &str) -> String {
    // The listener closes a connection whose request takes seconds. That happens to a process that gets no processor time.
    eventually("an answer of the operator's listener", || {
        let mut stream = TcpStream::connect(address).expect("it accepts");
        stream.set_read_timeout(Some(TIMEOUT)).expect("sockets have time-outs");
        let request = format!("GET {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n");
        let mut answer = String::new();
        let read = stream.write_all(request.as_bytes()).and_then(|()| stream.read_to_string(&mut answer));
        read.is_ok_and(|_| !answer.is_empty()).then_some(answer)
    })
}

impl Reachable for Broker {
    fn connect(&self) -> Client {
        Broker::connect(self)
    }
}

impl Drop for Broker {
    fn drop(&mut self) {
        if let Some(running) = &mut self.running {
            end(&mut running.process);
        }
        let panicked = self.log().contains("panicked");
        if std::thread::panicking() || panicked {
            let tail = self.log_tail();
            let kept = self.home.take().map(TempDir::keep).unwrap_or_default();
            eprintln!("data and logs are kept in {}; the last of the log:\n{tail}", kept.display());
        }
        assert!(std::thread::panicking() || !panicked, "the broker panicked");
    }
}

/// The share of a core that an idle broker uses in a time: a figure of a quiet machine, and no verdict.
pub fn share_of_a_core(broker: &Broker, time: Duration) -> f64 {
    /// On a quiet machine the work of a start is done by then.
    const SETTLED_AFTER: Duration = Duration::from_secs(2);
    std::thread::sleep(SETTLED_AFTER);
    let (before, begin) = (broker.cpu_time(), Instant::now());
    std::thread::sleep(time);
    broker.cpu_time().saturating_sub(before).div_duration_f64(begin.elapsed())
}

/// Kills a process that this test started.
fn end(process: &mut Child) {
    // The process may have ended by itself. It still has to be waited for.
    let _ = process.kill();
    process.wait().expect("a child can be waited for");
}

fn wait_until_ready(process: &mut Child) -> Started {
    let output = process.stdout.take().expect("its output is a pipe");
    let (sender, receiver) = mpsc::channel();
    let reader = std::thread::spawn(move || {
        let mut line = String::new();
        // An error ends the output like its end.
        let _ = BufReader::new(output).read_line(&mut line);
        let _ = sender.send(line);
    });
    let line = receiver.recv_timeout(TIMEOUT);
    if line.is_err() {
        end(process);
    }
    reader.join().expect("reading a line does not panic");
    let line = line.expect("the broker gets ready, or ends, in time");
    if line.is_empty() {
        return Started::Ended(process.wait().expect("a child can be waited for"));
    }
    let ready: serde_json::Value = serde_json::from_str(&line).expect("the ready line is JSON");
    assert_eq!(ready["event"], "ready");
    Started::Ready(ready)
}

/// The `target/` directory of the build of this test.
pub fn target_dir() -> PathBuf {
    profile_dir().parent().expect("a profile has its directory in target").to_owned()
}

fn profile_dir() -> PathBuf {
    let test = std::env::current_exe().expect("a process knows its executable");
    let profile = test.parent().and_then(Path::parent);
    profile.expect("tests are in target/PROFILE/deps").to_owned()
}

/// The broker under test: the one that `MAINSTEM_BINARY` names, else the one that users get, `target/release/mainstem`.
///
/// # Panics
/// When it is not built.
pub fn binary() -> PathBuf {
    let built = || target_dir().join("release").join(format!("mainstem{}", std::env::consts::EXE_SUFFIX));
    let binary = std::env::var_os("MAINSTEM_BINARY").map_or_else(built, PathBuf::from);
    let found = File::open(&binary).is_ok();
    assert!(
        found,
        "{} is missing; build it first: cargo build --release (cargo xtask test does), or name another by MAINSTEM_BINARY",
        binary.display()
    );
    binary
}

/// The number of times that a thread went to sleep, from its `status` in `/proc`.
fn sleeps(status: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
    line.and_then(|count| count.trim().parse().ok())
}
