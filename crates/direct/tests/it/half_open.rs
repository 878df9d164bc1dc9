//! A network that falls silent: a consumer on another machine is cut off while both ends believe in their connection. The publisher
//! gives its slices to one that lives, and takes it back when it returns.
//!
//! The other machine is a network namespace, for which the test needs root, or to be root in a namespace; `unshare`, `nsenter` and
//! `ip` make it.
#![allow(clippy::print_stderr, clippy::print_stdout, reason = "a role reports to the test that started it")]

use std::collections::BTreeSet;
use std::io::{BufRead as _, BufReader, Write as _};
use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use crate::support;
use crate::support::{Reader, config, open};
use mainstem_direct::{Address, ConsumerConfig, Publisher};
use parking_lot::Mutex;

const ROLE: &str = "TEST_DIRECT_HALF_OPEN_ROLE";
const PUBLISHER: &str = "10.77.0.1";
const CONSUMER: &str = "10.77.0.2";
const DEADLINE: Duration = Duration::from_secs(40);

/// A command that runs another one in a network of its own; `None` if this machine does not allow it, which under `CI=true` is an
/// error.
fn in_a_network_of_its_own() -> Option<Command> {
    let found = [&[][..], &["--user", "--map-root-user"]].into_iter().find_map(|user| {
        let command = || {
            let mut command = Command::new("unshare");
            command.args(user).arg("--net").arg("--");
            command
        };
        let works = command().args(["ip", "link"]).stdout(Stdio::null()).stderr(Stdio::null()).status();
        works.is_ok_and(|status| status.success()).then(command)
    });
    assert!(
        found.is_some() || std::env::var("CI").as_deref() != Ok("true"),
        "there is no unshare, or no ip, or they are not allowed"
    );
    found
}

#[test]
fn an_instance_that_falls_silent_is_replaced_and_comes_back() {
    let Some(mut unshare) = in_a_network_of_its_own() else {
        eprintln!("skipped: this machine lets us have no network of our own");
        return;
    };
    let program = std::env::current_exe().unwrap();
    let output = unshare
        .arg(program)
        .args(["--exact", "half_open::role", "--nocapture"])
        .env(ROLE, "publisher")
        .output()
        .unwrap();
    assert!(
        output.status.success(),
        "{}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
}

/// The body of the processes that the test starts; nothing in the test itself.
#[test]
fn role() {
    let Ok(role) = std::env::var(ROLE) else { return };
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    match role.as_str() {
        "publisher" => runtime.block_on(publish()),
        _ => runtime.block_on(consume()),
    }
}

fn run(command: &str) {
    let status = Command::new("sh").args(["-ec", command]).status().unwrap();
    assert!(status.success(), "{command}");
}

/// Prints the offset of each event that it handles.
async fn consume() {
    println!("ready");
    let mut address = String::new();
    std::io::stdin().read_line(&mut address).unwrap();
    let config = ConsumerConfig::new(Address::new(address.trim()).unwrap(), "cart", "analytics");
    let mut reader = Reader::new(config.instance("far"));
    loop {
        reader.step().await.unwrap_or_else(|error| panic!("{error}"));
        for (offset, _) in reader.events.drain(..) {
            println!("offset {offset}");
        }
    }
}

/// The consumer on the other machine.
struct Far {
    child: Child,
    lines: Receiver<String>,
    seen: Vec<i64>,
}

impl Far {
    fn start() -> Far {
        let mut command = Command::new("unshare");
        command.args(["--net", "--"]).arg(std::env::current_exe().unwrap());
        command.args(["--exact", "half_open::role", "--nocapture"]).env(ROLE, "consumer");
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        let (sender, lines) = channel();
        std::thread::spawn(move || {
            output.lines().map_while(Result::ok).try_for_each(|line| sender.send(line))
        });
        let far = Far { child, lines, seen: Vec::new() };
        // The harness prints lines of its own.
        while !far.lines.recv_timeout(DEADLINE).unwrap().ends_with("ready") {}
        far
    }

    fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Takes what it has handled by now.
    fn look(&mut self) -> &[i64] {
        let offsets =
            self.lines.try_iter().filter_map(|line| line.strip_prefix("offset ")?.parse::<i64>().ok());
        self.seen.extend(offsets);
        &self.seen
    }
}

impl Drop for Far {
    fn drop(&mut self) {
        // It may have ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

async fn wait_until(what: &str, mut is_true: impl FnMut() -> bool) -> Duration {
    let began = Instant::now();
    while !is_true() {
        assert!(began.elapsed() < DEADLINE, "{what}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    began.elapsed()
}

/// Waits until the publisher knows that the events before an offset are handled. Until then it would give them to another
/// instance.
async fn wait_until_committed(at: SocketAddr, offset: i64) {
    let (mut admin, began) = (support::admin(at).await, Instant::now());
    loop {
        let streams = admin.describe("cart").await.unwrap();
        if streams.iter().flat_map(|stream| &stream.consumers).any(|consumer| consumer.offset >= offset) {
            return;
        }
        assert!(began.elapsed() < DEADLINE, "the publisher knows what is handled: {streams:?}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

async fn publish() {
    let dir = tempfile::tempdir().unwrap();
    let journal = open(&dir.path().join("cart"));
    let append = async |count: usize| {
        for n in 0..count {
            journal.append(format!("key {}", n % 50), "value").await.unwrap();
        }
    };
    run("ip link set lo up");
    let mut far = Far::start();
    let there = format!("nsenter --target {} --net", far.pid());
    run(&format!(
        "ip link add near type veth peer name far netns {}; ip addr add {PUBLISHER}/24 dev near; ip link set near up; \
         {there} ip addr add {CONSUMER}/24 dev far; {there} ip link set far up; {there} ip link set lo up",
        far.pid()
    ));
    let serving = Publisher::new().stream(&journal).insecure().start("0.0.0.0:0").await.unwrap();
    let port = serving.address().port();
    writeln!(far.child.stdin.as_mut().unwrap(), "{PUBLISHER}:{port}").unwrap();
    append(100).await;
    wait_until("the far one handles what is there", || far.look().len() == 100).await;
    wait_until_committed(SocketAddr::from(([127, 0, 0, 1], port)), 100).await;

    // The cable is pulled: no packet says so to the publisher, and none can to the consumer.
    run(&format!("{there} ip link set far down"));
    let near = Arc::new(Mutex::new(Vec::new()));
    let reading = {
        let (near, at) = (near.clone(), SocketAddr::from(([127, 0, 0, 1], port)));
        tokio::spawn(async move {
            let mut reader = Reader::new(config(at, "cart").instance("near"));
            loop {
                reader.step().await.unwrap();
                near.lock().extend(reader.events.drain(..).map(|(offset, _)| offset));
            }
        })
    };
    append(100).await;
    let all = |near: &[i64], far: &[i64]| near.iter().chain(far).copied().collect::<BTreeSet<i64>>();
    let took = wait_until("the near one gets what the far one cannot", || {
        all(&near.lock(), far.look()).len() == 200
    })
    .await;
    eprintln!("its slices were given away after {took:?}");
    assert_eq!(far.look().len(), 100, "nothing came to it");

    // It is put back.
    run(&format!("{there} ip link set far up"));
    let deadline = Instant::now() + DEADLINE;
    let mut total = 200;
    while far.look().len() == 100 {
        assert!(Instant::now() < deadline, "nothing comes to the far one, which is back");
        append(50).await;
        total += 50;
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    wait_until("every event is handled", || all(&near.lock(), far.look()).len() == total).await;
    let handled = near.lock().len() + far.look().len();
    assert_eq!(handled, total, "an event is handled twice: nothing was in hand when the cable was pulled");
    reading.abort();
    serving.stop().await.unwrap();
}
