//! Guarantees for operators and orchestrators: `/health` in any state, a log that holds up no request, a start that
//! can be interrupted.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, ChildStdout, Command, ExitStatus, Stdio};
use std::time::Instant;

use mainstem_testkit::port;
use mainstem_tests::broker::{Broker, Setup, binary};
use mainstem_tests::client::Client;
use mainstem_tests::disk_faults::{DiskFaults, Syncs};
use mainstem_tests::kafka::batch;
use mainstem_tests::wait::{TIMEOUT, eventually};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

/// Connections without a request. If each of them kept its place (of 64) for the three seconds that a request may
/// take, later ones would wait for longer than a test does.
const IDLE: usize = 3_000;

/// Status and body of GET; none if there is no answer.
fn get(address: &str, path: &str) -> Option<(u16, String)> {
    let mut stream = TcpStream::connect(address).ok()?;
    stream.set_read_timeout(Some(TIMEOUT)).unwrap();
    let request = format!("GET {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).ok()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).ok()?;
    let (head, body) = answer.split_once("\r\n\r\n")?;
    Some((head.split(' ').nth(1)?.parse().ok()?, body.to_owned()))
}

fn http_of(broker: &Broker) -> String {
    broker.ready()["http"].as_str().unwrap().to_owned()
}

#[test]
fn idle_connections_at_the_http_listener_keep_no_other_out() {
    let mut broker = Setup::new("operator-idle").start();
    let address = http_of(&broker);
    let mut idle: Vec<TcpStream> = (0..IDLE).map(|_| TcpStream::connect(&address).unwrap()).collect();
    // Half of them have begun a request.
    for stream in &mut idle[IDLE / 2..] {
        // The connection may be closed by now.
        let _ = stream.write_all(b"GET /health HTT");
    }
    for path in ["/health", "/metrics", "/health"] {
        assert_eq!(get(&address, path).map(|(status, _)| status), Some(200), "{path}");
    }
    eventually("the oldest to be closed", || {
        idle[0].set_nonblocking(true).unwrap();
        matches!(idle[0].read(&mut [0]), Ok(0) | Err(_)).then_some(())
    });
    broker.assert_healthy();
}

/// A broker process whose stderr is this test's.
struct Process {
    child: Child,
    stdout: BufReader<ChildStdout>,
}

impl Process {
    fn start(data_dir: &Path, http: &str, stderr: Stdio) -> Process {
        let mut command = Command::new(binary());
        command.arg("start");
        Process::spawn(data_dir, http, stderr, command)
    }

    /// Starts a broker whose recovery of a partition waits until the disk works again.
    fn start_slowly(data_dir: &Path, http: &str, stderr: Stdio, disk: &DiskFaults) -> Process {
        disk.set(Syncs::Hang, &data_dir.join("t-0"));
        let mut command = Command::new(binary());
        command.arg("start").envs(disk.environment());
        Process::spawn(data_dir, http, stderr, command)
    }

    fn spawn(data_dir: &Path, http: &str, stderr: Stdio, mut command: Command) -> Process {
        command.args(["--json", "--listen", "127.0.0.1:0", "--data-dir"]).arg(data_dir);
        command.arg("--set").arg(format!("mainstem.http.listener={http}"));
        command.args(["--set", "num.recovery.threads.per.data.dir=1"]);
        let mut child = command.stdout(Stdio::piped()).stderr(stderr).spawn().unwrap();
        let stdout = BufReader::new(child.stdout.take().unwrap());
        Process { child, stdout }
    }

    fn ready(&mut self) -> Value {
        let mut line = String::new();
        self.stdout.read_line(&mut line).unwrap();
        serde_json::from_str(&line).unwrap()
    }

    fn ask_to_stop(&self) {
        kill_process(Pid::from_child(&self.child), Signal::TERM).unwrap();
    }

    /// Returns true if it has a thread of this name. `stop-timeout` starts when a signal is handled during a start.
    fn has_thread(&self, name: &str) -> bool {
        let threads = fs::read_dir(format!("/proc/{}/task", self.child.id())).unwrap();
        // A thread that ends meanwhile has no name.
        let name_of =
            |thread: std::io::Result<fs::DirEntry>| fs::read_to_string(thread.ok()?.path().join("comm")).ok();
        threads.filter_map(name_of).any(|found| found.trim() == name)
    }

    fn wait(&mut self) -> ExitStatus {
        eventually("the broker's end", || self.child.try_wait().unwrap())
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A broker whose log at the start is larger than a pipe (64 KiB) and the queue behind it (a MiB), without a reader.
fn unheard(home: &Path) -> Process {
    let file = home.join("server.properties");
    let unknown = (0..5_000).map(|n| format!("unknown.{n}.{}=1\n", "x".repeat(250)));
    fs::write(&file, unknown.chain(["num.partitions=1\n".to_owned()]).collect::<String>()).unwrap();
    let mut command = Command::new(binary());
    command.arg("start").arg("--config").arg(&file);
    Process::spawn(&home.join("data"), "127.0.0.1:0", Stdio::piped(), command)
}

#[test]
fn a_log_that_is_not_read_holds_up_neither_requests_nor_the_end() {
    let home = tempfile::tempdir().unwrap();
    let mut broker = unheard(home.path());
    let ready = broker.ready();
    let address = ready["listeners"][0]["address"].as_str().unwrap();
    Client::connect(address).unwrap().api_versions();
    assert!(lost_lines(&ready) > 0, "the queue is bounded");
    broker.ask_to_stop();
    assert!(broker.wait().success());
}

#[test]
fn a_full_disk_behind_the_standard_output_keeps_no_broker_from_starting() {
    let home = tempfile::tempdir().unwrap();
    let mut command = Command::new(binary());
    let http = format!("127.0.0.1:{}", port());
    command.args(["start", "--listen", "127.0.0.1:0", "--set"]).arg(format!("mainstem.http.listener={http}"));
    command.arg("--data-dir").arg(home.path().join("data"));
    let full = fs::File::options().write(true).open("/dev/full").unwrap();
    let mut child = command.stdout(full).stderr(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(child.stderr.take().unwrap()).lines().map(Result::unwrap);
    assert!(lines.any(|line| line.contains("No space left on device")));
    assert_eq!(get(&http, "/health").unwrap().0, 200);
    kill_process(Pid::from_child(&child), Signal::TERM).unwrap();
    assert!(child.wait().unwrap().success());
}

/// The number of log lines that a broker has lost.
fn lost_lines(ready: &Value) -> u64 {
    let (status, metrics) = get(ready["http"].as_str().unwrap(), "/metrics").unwrap();
    assert_eq!(status, 200);
    let lost = metrics.lines().find_map(|line| line.strip_prefix("mainstem_log_lines_lost_total "));
    lost.unwrap().parse().unwrap()
}

#[test]
fn what_could_not_be_logged_is_counted_for_a_reader_who_comes_late() {
    let home = tempfile::tempdir().unwrap();
    let mut broker = unheard(home.path());
    broker.ready();
    let mut lines = BufReader::new(broker.child.stderr.take().unwrap()).lines();
    let lost = lines.find(|line| line.as_ref().unwrap().contains("lines of the log were lost here"));
    let lost: Value = serde_json::from_str(&lost.unwrap().unwrap()).unwrap();
    assert_eq!(lost["level"], "WARN", "{lost}");
    broker.ask_to_stop();
    let rest: Vec<String> = lines.map(Result::unwrap).collect();
    assert!(rest.iter().any(|line| line.contains("stopped in order")), "{rest:?}");
    assert!(broker.wait().success());
}

/// A client that sends bad requests as fast as it can does not fill the disk with log lines.
#[test]
fn lines_that_peers_cause_are_few_and_the_others_are_counted() {
    let home = tempfile::tempdir().unwrap();
    let mut broker = Process::start(&home.path().join("data"), "127.0.0.1:0", Stdio::piped());
    let ready = broker.ready();
    let address = ready["listeners"][0]["address"].as_str().unwrap();
    let began = Instant::now();
    for _ in 0..5_000 {
        let mut hostile = TcpStream::connect(address).unwrap();
        // The connection may be closed before all bytes are sent.
        let _ = hostile.write_all(&[0, 0, 0, 8, 0x7f, 0xff, 0, 0, 0, 0, 0, 0]);
        let _ = hostile.shutdown(std::net::Shutdown::Write);
        let _ = hostile.read(&mut [0]);
    }
    let seconds = began.elapsed().as_secs() + 1;
    broker.ask_to_stop();
    assert!(broker.wait().success());
    let log = BufReader::new(broker.child.stderr.take().unwrap()).lines().map(Result::unwrap);
    let closed = log.filter(|line| line.contains("connection closed")).count() as u64;
    // The limit is for each second, and the last one has only begun.
    assert!((1..=(seconds + 1) * 20).contains(&closed), "{closed} in {seconds} s");
}

/// A data directory with some partitions that a kill has left, and a disk whose syncs may hang.
fn left_by_a_kill(name: &str) -> (Broker, DiskFaults) {
    let mut broker = Setup::new(name).set("num.recovery.threads.per.data.dir", 1).start();
    let mut client = broker.connect();
    client.create_topic("t", 3, &[]).unwrap();
    client.produce("t", 0, -1, &batch(&[b"a"])).unwrap();
    broker.kill();
    let disk = DiskFaults::build(broker.data_dir().parent().unwrap());
    (broker, disk)
}

/// Waits until a recovery is running, as an orchestrator sees it.
fn wait_for_recovery(http: &str) -> Value {
    eventually("a report of the recovery", || {
        let (status, body) = get(http, "/health")?;
        assert_eq!(status, 503, "{body}");
        let report: Value = serde_json::from_str(&body).unwrap();
        (report["status"] == "recovering" && report["logs"] == 3).then_some(report)
    })
}

#[test]
fn a_recovery_is_reported_and_then_it_is_over() {
    let (broker, disk) = left_by_a_kill("operator-recovery");
    let http = format!("127.0.0.1:{}", port());
    let mut process = Process::start_slowly(&broker.data_dir(), &http, Stdio::inherit(), &disk);
    let report = wait_for_recovery(&http);
    assert!(report["logs_open"].as_u64().unwrap() < 3 && report["bytes_checked"].is_u64(), "{report}");
    disk.set(Syncs::Work, &broker.data_dir());
    assert_eq!(process.ready()["event"], "ready");
    let (status, body) = get(&http, "/health").unwrap();
    assert!(status == 200 || body.contains("t-0"), "{body}");
}

#[test]
fn a_recovery_is_broken_off_by_a_signal() {
    let (mut broker, disk) = left_by_a_kill("operator-broken-off");
    let http = format!("127.0.0.1:{}", port());
    let mut process = Process::start_slowly(&broker.data_dir(), &http, Stdio::piped(), &disk);
    wait_for_recovery(&http);
    // A recovery that has not come to that sync yet ends at once.
    disk.wait_until_one_hangs();
    process.ask_to_stop();
    // The recovery continues only after the signal was handled.
    eventually("the recovery to be broken off", || process.has_thread("stop-timeout").then_some(()));
    disk.set(Syncs::Work, &broker.data_dir());
    assert!(process.wait().success());
    let mut said = String::new();
    process.child.stderr.take().unwrap().read_to_string(&mut said).unwrap();
    assert!(said.contains("the next start begins again"), "{said}");
    broker.start_again();
    broker.assert_healthy();
}

#[test]
fn a_recovery_that_hangs_does_not_hold_up_the_end() {
    let (mut broker, disk) = left_by_a_kill("operator-hangs");
    let http = format!("127.0.0.1:{}", port());
    let mut process = Process::start_slowly(&broker.data_dir(), &http, Stdio::inherit(), &disk);
    wait_for_recovery(&http);
    // A recovery that has not come to that sync yet ends at once.
    disk.wait_until_one_hangs();
    process.ask_to_stop();
    assert!(process.wait().success());
    broker.start_again();
    broker.assert_healthy();
}

#[test]
fn a_cluster_that_is_expected_has_to_be_there() {
    let mut broker = Setup::new("operator-expected").start();
    assert_eq!(broker.ready()["new_cluster"], true);
    let id = broker.ready()["cluster_id"].as_str().unwrap().to_owned();
    broker.stop();
    let start = |dir: &Path, expected: &str| {
        let mut command = Command::new(binary());
        command
            .args(["start", "--listen", "127.0.0.1:0", "--expect-cluster", expected, "--data-dir"])
            .arg(dir);
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    };
    let elsewhere = broker.data_dir().with_file_name("elsewhere");
    for (dir, expected, message) in [
        (elsewhere.clone(), id.as_str(), "would begin a new one"),
        (broker.data_dir(), "AAAAAAAAAAAAAAAAAAAAAA", id.as_str()),
    ] {
        let refused = start(&dir, expected).output().unwrap();
        let said = String::from_utf8(refused.stderr).unwrap();
        assert!(!refused.status.success() && said.contains(message) && said.contains(expected), "{said}");
    }
    assert!(!elsewhere.exists(), "nothing was touched");
    let mut child = start(&broker.data_dir(), &id).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    assert!(line.contains("ready") && !line.contains("new cluster"), "{line}");
    kill_process(Pid::from_child(&child), Signal::TERM).unwrap();
    assert!(child.wait().unwrap().success());
    broker.start_again();
    assert_eq!(broker.ready()["new_cluster"], false);
}
