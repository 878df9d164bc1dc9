//! Handlers over streams of publishers: the two programs of docs/brokerless.md as two processes, and the promises of handlers.
#![allow(clippy::print_stdout, reason = "a role reports to the test that started it")]

#[allow(unreachable_pub, reason = "docs/brokerless.md has this file as it is")]
mod consumer;
#[allow(unreachable_pub, reason = "docs/brokerless.md has this file as it is")]
mod publisher;

use std::collections::HashMap;
use std::io::{BufRead as _, BufReader};
use std::net::TcpListener;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use mainstem_direct::proto::{self, manage_request::Action, reset::To};
use mainstem_direct::{Address, Admin, Journal, Publisher, Serving};
use mainstem_flow::{App, Cx, Fault, Handler, Msg, Route, Running, Text};
use mainstem_queue::Queue;
use parking_lot::Mutex;

use crate::support::free_address;
use crate::support::logs::Logs;

const ROLE: &str = "TEST_BROKERLESS_ROLE";
const DEADLINE: Duration = Duration::from_secs(60);

/// The code of the processes that the next test starts. In the test's own process it does nothing.
#[test]
fn role() {
    match std::env::var(ROLE).as_deref() {
        Ok("publisher") => publisher::main().unwrap(),
        Ok("consumer") => consumer::main().unwrap(),
        _ => {}
    }
}

fn start(role: &str, directory: &Path) -> Child {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "brokerless::role", "--nocapture"]).env(ROLE, role).current_dir(directory);
    command.stdout(Stdio::piped()).spawn().unwrap()
}

/// Waits for a line; what comes behind it has to be read, or the process could not print it.
fn wait_for(child: &mut Child, wanted: &str) -> impl Iterator<Item = std::io::Result<String>> + use<> {
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let found = lines.any(|line| line.unwrap().contains(wanted));
    assert!(found, "the process has ended without {wanted:?}");
    lines
}

/// Ends a process in order.
fn terminate(mut child: Child, rest: impl Iterator<Item = std::io::Result<String>>) {
    let sent = Command::new("kill").arg(child.id().to_string()).status().unwrap();
    assert!(sent.success());
    let rest: Vec<String> = rest.map(Result::unwrap).collect();
    assert!(child.wait().unwrap().success(), "SIGTERM ends it in order: {rest:?}");
}

#[test]
fn the_programs_of_the_readme_are_two_processes() {
    let deadline = Instant::now() + DEADLINE;
    while TcpListener::bind("127.0.0.1:8101").is_err() {
        assert!(Instant::now() < deadline, "port 8101, which the example names, is taken");
        std::thread::sleep(Duration::from_millis(100));
    }
    let dir = tempfile::tempdir().unwrap();
    let mut consumer = start("consumer", dir.path());
    let mut publisher = start("publisher", dir.path());
    let rest = wait_for(&mut consumer, "tea was added");
    terminate(consumer, rest);
    publisher.kill().unwrap();
    publisher.wait().unwrap();
    // The next start appends one more; the first is done, whatever was killed meanwhile.
    let mut publisher = start("publisher", dir.path());
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let at = Address::new("grpc://127.0.0.1:8101").unwrap();
    let consumer = runtime.block_on(async {
        loop {
            if let Ok(mut admin) = Admin::connect(at.clone()).await {
                break admin.describe("cart").await.unwrap().remove(0).consumers.remove(0);
            }
            assert!(Instant::now() < deadline, "it is served again");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    });
    publisher.kill().unwrap();
    publisher.wait().unwrap();
    assert_eq!((consumer.name.as_str(), consumer.offset, consumer.lag), ("analytics", 1, 1));
}

async fn serve(directory: &Path) -> (Journal, Serving, String) {
    let journal = Journal::open(directory.join("cart")).unwrap();
    let serving = Publisher::new().stream(&journal).start(&free_address()).await.unwrap();
    let url = format!("grpc://{}", serving.address());
    (journal, serving, url)
}

#[derive(Clone, Default)]
struct Seen(Arc<Mutex<Vec<String>>>);

impl Handler<Msg<Text>> for Seen {
    async fn handle(&self, event: Msg<Text>, cx: &mut Cx) -> Result<(), Fault> {
        if event.starts_with("bad") {
            return Err(Fault::poison("it is bad"));
        }
        // Events of other keys continue in this time.
        tokio::time::sleep(Duration::from_millis(event.len() as u64 % 5)).await;
        cx.send("copies", event.key(), &Text(event.to_uppercase()))?;
        self.0.lock().push(event.to_string());
        Ok(())
    }
}

fn app(url: &str, seen: &Seen, letters: &Path) -> Running {
    let route = Route::topic("cart", seen.clone());
    let app = App::new("analytics", url).unwrap().add(route).outputs(format!("mmap:{}", letters.display()));
    app.start().unwrap()
}

async fn until(what: &str, is_true: impl Fn() -> bool) {
    let deadline = Instant::now() + DEADLINE;
    while !is_true() {
        assert!(Instant::now() < deadline, "{what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn handlers_get_each_event_once_while_instances_come_and_go() {
    let dir = tempfile::tempdir().unwrap();
    let (journal, _serving, url) = serve(dir.path()).await;
    let outputs = dir.path().join("outputs");
    let seen = Seen::default();
    let first = app(&url, &seen, &outputs);
    let appended = |range: std::ops::Range<u32>| {
        let journal = journal.clone();
        async move {
            for n in range {
                journal.append(format!("key {}", n % 50), &format!("event {n}")).await.unwrap();
            }
        }
    };
    appended(0..300).await;
    let second = app(&url, &seen, &outputs);
    appended(300..600).await;
    until("both work", || seen.0.lock().len() > 550).await;
    first.stop().await.unwrap();
    appended(600..900).await;
    until("all is handled", || seen.0.lock().len() >= 900).await;
    second.stop().await.unwrap();
    let mut all = seen.0.lock().clone();
    all.sort_unstable();
    let mut wanted: Vec<String> = (0..900).map(|n| format!("event {n}")).collect();
    wanted.sort_unstable();
    assert_eq!(all, wanted, "orderly hand-overs repeat nothing and lose nothing");
    let copies = Queue::open(outputs.join("copies")).unwrap();
    assert_eq!(copies.ends().next, 900);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_work_is_set_aside_to_a_queue() {
    let dir = tempfile::tempdir().unwrap();
    let (journal, serving, url) = serve(dir.path()).await;
    let outputs = dir.path().join("outputs");
    let seen = Seen::default();
    let running = app(&url, &seen, &outputs);
    for value in ["good", "bad one", "better"] {
        journal.append("key", value).await.unwrap();
    }
    until("the others are handled", || seen.0.lock().len() == 2).await;
    running.stop().await.unwrap();
    let letters = Queue::open(outputs.join("dlq.analytics.cart")).unwrap();
    let letter = letters.tailer("test").unwrap().next().unwrap().unwrap();
    assert_eq!(letter.value(), b"bad one");
    let offset = letter.headers().last_with_key(b"__dlq.errors.offset").unwrap();
    assert_eq!(offset.value, Some(&b"1"[..]));
    let info =
        Admin::connect(Address::new(&url).unwrap()).await.unwrap().describe("cart").await.unwrap().remove(0);
    assert_eq!((info.consumers[0].offset, info.consumers[0].lag), (3, 0));
    drop(serving);
}

/// Starts an application whose handler seeks from some offsets to others of a stream, once each. Returns it with the offsets that it has
/// handled.
fn jumping(url: &str, jumps: &[(i64, i64)]) -> (Running, Arc<Mutex<Vec<i64>>>) {
    let jumps: HashMap<i64, i64> = jumps.iter().copied().collect();
    let (handled, jumps) = (Arc::<Mutex<Vec<i64>>>::default(), Arc::new(Mutex::new(jumps)));
    let own = handled.clone();
    let route = Route::topic("cart", move |event: Msg<Text>, cx: Cx| {
        own.lock().push(event.offset());
        let to = jumps.lock().remove(&event.offset());
        async move { to.map_or(Ok(()), |to| cx.seek(to)) }
    });
    (App::new("analytics", url).unwrap().add(route).start().unwrap(), handled)
}

async fn append(journal: &Journal, count: i64) {
    for n in 0..count {
        journal.append("key", &format!("event {n}")).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_handler_goes_elsewhere_and_nothing_of_before_comes_between() {
    let dir = tempfile::tempdir().unwrap();
    let (journal, _serving, url) = serve(dir.path()).await;
    append(&journal, 20).await;
    let (running, handled) = jumping(&url, &[(5, 15), (17, 3)]);
    let wanted: Vec<i64> = (0..=5).chain(15..=17).chain(3..20).collect();
    until("all is handled", || handled.lock().len() >= wanted.len()).await;
    append(&journal, 1).await;
    until("it continues", || handled.lock().last() == Some(&20)).await;
    running.stop().await.unwrap();
    assert_eq!(*handled.lock(), [wanted, vec![20]].concat());
    let info = Admin::connect(Address::new(&url).unwrap()).await.unwrap().describe("cart").await.unwrap();
    assert_eq!((info[0].consumers[0].offset, info[0].consumers[0].lag), (21, 0));
}

/// Reads the lag of the only partition from the metrics.
fn lag(running: &Running) -> Option<f64> {
    let metrics = running.status().metrics();
    let line = metrics.lines().find(|line| line.starts_with("mainstem_flow_lag{"))?;
    line.rsplit(' ').next()?.parse().ok()
}

#[tokio::test(flavor = "multi_thread")]
async fn the_lag_counts_what_the_publisher_has_not_sent() {
    let dir = tempfile::tempdir().unwrap();
    let (journal, _serving, url) = serve(dir.path()).await;
    append(&journal, 1).await;
    let (running, handled) = jumping(&url, &[]);
    until("the first is handled", || handled.lock().len() == 1).await;
    let mut admin = Admin::connect(Address::new(&url).unwrap()).await.unwrap();
    admin.manage("cart", "analytics", Action::Pause(proto::Pause {})).await.unwrap();
    append(&journal, 50).await;
    until("the publisher has said so", || lag(&running) == Some(50.0)).await;
    admin.manage("cart", "analytics", Action::Resume(proto::Resume {})).await.unwrap();
    until("all is handled", || lag(&running) == Some(0.0)).await;
    assert_eq!(handled.lock().len(), 51);
    running.stop().await.unwrap();
}

#[tokio::test]
async fn a_reset_from_outside_is_said_to_be_one() {
    let logs = Logs::capture();
    let dir = tempfile::tempdir().unwrap();
    let (journal, _serving, url) = serve(dir.path()).await;
    append(&journal, 2).await;
    let (running, handled) = jumping(&url, &[]);
    until("all is handled", || handled.lock().len() == 2).await;
    let mut admin = Admin::connect(Address::new(&url).unwrap()).await.unwrap();
    let to = Some(To::Earliest(proto::Everything {}));
    admin.manage("cart", "analytics", Action::Reset(proto::Reset { to })).await.unwrap();
    until("all is handled again", || handled.lock().len() == 4).await;
    running.stop().await.unwrap();
    assert_eq!(logs.lines("partitions are lost: the consumer was reset").len(), 1);
    assert_eq!(logs.lines("partitions are lost").len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_handler_goes_elsewhere_though_its_publisher_is_away() {
    let dir = tempfile::tempdir().unwrap();
    let (journal, serving, url) = serve(dir.path()).await;
    append(&journal, 5).await;
    // It is known, and so begins behind these events.
    let (running, handled) = jumping(&url, &[]);
    until("all is handled", || handled.lock().len() == 5).await;
    running.stop().await.unwrap();
    let (may_seek, is_there) = (Arc::new(tokio::sync::Notify::new()), Arc::new(tokio::sync::Notify::new()));
    let (seeks, there) = (may_seek.clone(), is_there.clone());
    let again = Arc::<Mutex<Vec<i64>>>::default();
    let own = again.clone();
    let route = Route::topic("cart", move |event: Msg<Text>, cx: Cx| {
        let (seeks, there) = (seeks.clone(), there.clone());
        own.lock().push(event.offset());
        let is_first = own.lock().len() == 1;
        async move {
            if is_first {
                there.notify_one();
                seeks.notified().await;
                return cx.seek(2);
            }
            Ok(())
        }
    });
    let running = App::new("analytics", &url).unwrap().add(route).start().unwrap();
    append(&journal, 1).await;
    is_there.notified().await;
    let address = serving.address().to_string();
    serving.stop().await.unwrap();
    may_seek.notify_one();
    // The driver has received the request when it knows of no partition until the publisher is back.
    until("it seeks", || !running.status().metrics().contains("partition=\"0\"")).await;
    let deadline = Instant::now() + DEADLINE;
    let _serving = loop {
        match Publisher::new().stream(&journal).start(&address).await {
            Ok(serving) => break serving,
            Err(error) => assert!(Instant::now() < deadline, "{error}"),
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    };
    until("it has gone there", || again.lock().len() >= 5).await;
    running.stop().await.unwrap();
    assert_eq!(*again.lock(), [5, 2, 3, 4, 5]);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_application_that_cannot_go_where_a_handler_asks_to_ends_and_says_so() {
    let dir = tempfile::tempdir().unwrap();
    let (journal, _serving, url) = serve(dir.path()).await;
    append(&journal, 3).await;
    let (running, handled) = jumping(&url, &[(1, 1_000)]);
    let error = running.wait().await.unwrap_err().to_string();
    assert!(error.contains("cart-0 cannot continue at offset 1000, as a handler has asked to"), "{error}");
    assert!(error.contains("0 to 3"), "{error}");
    assert_eq!(*handled.lock(), [0, 1]);
    // It is where it was.
    let (running, handled) = jumping(&url, &[]);
    until("the others are handled", || handled.lock().last() == Some(&2)).await;
    running.stop().await.unwrap();
}

#[tokio::test]
async fn what_a_stream_cannot_do_is_refused() {
    let app = || App::new("analytics", "grpc://127.0.0.1:1").unwrap();
    let pattern = Route::pattern("c.*", |_: Msg<Text>| async {});
    let refused = app().add(pattern).start().unwrap_err().to_string();
    assert!(refused.contains("name the streams"), "{refused}");
    let refused = app().lag().await.unwrap_err().to_string();
    assert!(refused.contains("mainstem direct lag"), "{refused}");
    assert!(App::new("analytics", "grpc://nowhere").unwrap_err().to_string().contains("grpc://HOST:PORT"));
}
