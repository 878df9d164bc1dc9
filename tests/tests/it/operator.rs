//! What an operator and an orchestrator rely on: `/health` in any case, a log that holds up no request, a start that can be
//! told to end.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, ExitStatus, Stdio};

use mainstem_testkit::port;
use mainstem_tests::broker::{Broker, Setup, binary};
use mainstem_tests::client::Client;
use mainstem_tests::wait::{PATIENCE, eventually};
use rustix::fs::{Mode, OFlags};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

/// Connections that ask nothing: if each of them kept its seat (of 64) for the three seconds that a request may take, who comes after them
/// would wait for longer than a test does.
const IDLE: usize = 3_000;

/// Status and body of GET; none if there is no answer.
fn get(address: &str, path: &str) -> Option<(u16, String)> {
    let mut stream = TcpStream::connect(address).ok()?;
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
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
fn idle_connections_at_the_operators_door_keep_no_other_out() {
    let mut broker = Setup::new("operator-idle").start();
    let address = http_of(&broker);
    let mut idle: Vec<TcpStream> = (0..IDLE).map(|_| TcpStream::connect(&address).unwrap()).collect();
    // Half of them have begun to ask.
    for stream in &mut idle[IDLE / 2..] {
        // It may have been closed by now.
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
        command.args(["start", "--json", "--listen", "127.0.0.1:0", "--data-dir"]).arg(data_dir);
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

    /// Returns true if it has a thread of this name. `patience` is begun when a signal has been taken during a start, and no sooner.
    fn has_thread(&self, name: &str) -> bool {
        let threads = fs::read_dir(format!("/proc/{}/task", self.child.id())).unwrap();
        // One that ends meanwhile has no name.
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

#[test]
fn a_log_that_is_not_read_holds_up_neither_requests_nor_the_end() {
    let home = tempfile::tempdir().unwrap();
    let mut broker = Process::start(&home.path().join("data"), "127.0.0.1:0", Stdio::piped());
    let ready = broker.ready();
    let address = ready["listeners"][0]["address"].as_str().unwrap();
    // Each is a warning of some hundred bytes; a pipe takes 64 KiB, the queue behind it a MiB.
    for _ in 0..5_000 {
        let mut hostile = TcpStream::connect(address).unwrap();
        // It may be closed before all has left.
        let _ = hostile.write_all(&[0, 0, 0, 8, 0x7f, 0xff, 0, 0, 0, 0, 0, 0]);
        let _ = hostile.shutdown(std::net::Shutdown::Write);
        let _ = hostile.read(&mut [0]);
    }
    Client::connect(address).unwrap().api_versions();
    let (status, metrics) = get(ready["http"].as_str().unwrap(), "/metrics").unwrap();
    assert_eq!(status, 200);
    let lost = metrics.lines().find_map(|line| line.strip_prefix("mainstem_log_lines_lost_total "));
    let lost: u64 = lost.unwrap().parse().unwrap();
    assert!(lost > 0, "the queue is bounded");
    broker.ask_to_stop();
    assert!(broker.wait().success());
}

#[test]
fn what_could_not_be_logged_is_counted_for_a_reader_who_comes_late() {
    let home = tempfile::tempdir().unwrap();
    let mut broker = Process::start(&home.path().join("data"), "127.0.0.1:0", Stdio::piped());
    let ready = broker.ready();
    let address = ready["listeners"][0]["address"].as_str().unwrap();
    for _ in 0..5_000 {
        let mut hostile = TcpStream::connect(address).unwrap();
        let _ = hostile.write_all(&[0, 0, 0, 8, 0x7f, 0xff, 0, 0, 0, 0, 0, 0]);
        let _ = hostile.shutdown(std::net::Shutdown::Write);
        let _ = hostile.read(&mut [0]);
    }
    let mut lines = BufReader::new(broker.child.stderr.take().unwrap()).lines();
    let told = lines.find(|line| line.as_ref().unwrap().contains("lines of the log were lost here"));
    let told: Value = serde_json::from_str(&told.unwrap().unwrap()).unwrap();
    assert_eq!(told["level"], "WARN", "{told}");
    broker.ask_to_stop();
    let rest: Vec<String> = lines.map(Result::unwrap).collect();
    assert!(rest.iter().any(|line| line.contains("stopped in order")), "{rest:?}");
    assert!(broker.wait().success());
}

/// A data directory that was left by a kill, with some partitions; and the pipe at which a recovery of the first of them
/// hangs until its other end is opened.
fn slow_to_recover(name: &str) -> (Broker, PathBuf) {
    let mut broker = Setup::new(name).set("num.recovery.threads.per.data.dir", 1).start();
    let mut client = broker.connect();
    client.create_topic("t", 3, &[]).unwrap();
    broker.kill();
    let pipe = broker.data_dir().join("t-0/leader-epoch-checkpoint");
    let _ = fs::remove_file(&pipe);
    rustix::fs::mknodat(rustix::fs::CWD, &pipe, rustix::fs::FileType::Fifo, Mode::RUSR | Mode::WUSR, 0)
        .unwrap();
    (broker, pipe)
}

/// Waits until a recovery is on its way, as an orchestrator sees it.
fn wait_for_recovery(http: &str) -> Value {
    eventually("the recovery to be told", || {
        let (status, body) = get(http, "/health")?;
        assert_eq!(status, 503, "{body}");
        let report: Value = serde_json::from_str(&body).unwrap();
        (report["status"] == "recovering" && report["logs"] == 3).then_some(report)
    })
}

#[test]
fn a_recovery_is_reported_and_then_it_is_over() {
    let (broker, pipe) = slow_to_recover("operator-recovery");
    let http = format!("127.0.0.1:{}", port());
    let mut process = Process::start(&broker.data_dir(), &http, Stdio::inherit());
    let report = wait_for_recovery(&http);
    assert!(report["logs_open"].as_u64().unwrap() < 3 && report["bytes_checked"].is_u64(), "{report}");
    release(&pipe);
    fs::remove_file(&pipe).unwrap();
    assert_eq!(process.ready()["event"], "ready");
    let (status, body) = get(&http, "/health").unwrap();
    assert!(status == 200 || body.contains("t-0"), "{body}");
}

/// Opens the other end of a pipe, and closes it.
fn release(pipe: &Path) {
    let open = || rustix::fs::open(pipe, OFlags::WRONLY | OFlags::NONBLOCK, Mode::empty()).ok();
    drop(eventually("a reader of the pipe", open));
}

#[test]
fn a_recovery_is_broken_off_by_a_signal() {
    let (mut broker, pipe) = slow_to_recover("operator-broken-off");
    let http = format!("127.0.0.1:{}", port());
    let mut process = Process::start(&broker.data_dir(), &http, Stdio::piped());
    wait_for_recovery(&http);
    process.ask_to_stop();
    // Only then the recovery goes on.
    eventually("the recovery to be broken off", || process.has_thread("patience").then_some(()));
    release(&pipe);
    assert!(process.wait().success());
    let mut said = String::new();
    process.child.stderr.take().unwrap().read_to_string(&mut said).unwrap();
    assert!(said.contains("the next start begins anew"), "{said}");
    fs::remove_file(&pipe).unwrap();
    broker.start_again();
    broker.assert_healthy();
}

#[test]
fn a_recovery_that_hangs_does_not_hold_up_the_end() {
    let (mut broker, pipe) = slow_to_recover("operator-hangs");
    let http = format!("127.0.0.1:{}", port());
    let mut process = Process::start(&broker.data_dir(), &http, Stdio::inherit());
    wait_for_recovery(&http);
    process.ask_to_stop();
    assert!(process.wait().success());
    fs::remove_file(&pipe).unwrap();
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
    for (dir, expected, told) in [
        (elsewhere.clone(), id.as_str(), "would begin a new one"),
        (broker.data_dir(), "AAAAAAAAAAAAAAAAAAAAAA", id.as_str()),
    ] {
        let refused = start(&dir, expected).output().unwrap();
        let said = String::from_utf8(refused.stderr).unwrap();
        assert!(!refused.status.success() && said.contains(told) && said.contains(expected), "{said}");
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
