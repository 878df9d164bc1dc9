//! Effects of signals on a service: a process of its own, which is this test run again.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use crate::support::{Directory, World, eventually};
use mainstem_flow::{App, Msg, Route, Text};

const DIRECTORY: &str = "FLOW_SERVICE_DIRECTORY";
const ADDRESS: &str = "FLOW_SERVICE_ADDRESS";

/// The service. Does nothing by itself.
#[test]
fn service() {
    let Ok(directory) = std::env::var(DIRECTORY) else { return };
    let address = std::env::var(ADDRESS).unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    tracing_subscriber::fmt().with_writer(std::io::stderr).with_ansi(false).init();
    let directory = PathBuf::from(directory);
    let ended = runtime.block_on(async {
        let route = Route::topic("lines", move |line: Msg<Text>| {
            let directory = directory.clone();
            async move {
                std::fs::write(directory.join(format!("{}.started", *line)), "").unwrap();
                match line.as_str() {
                    "stuck" => std::future::pending().await,
                    "blocks" => loop {
                        std::thread::park();
                    },
                    _ => tokio::time::sleep(Duration::from_millis(300)).await,
                }
                std::fs::write(directory.join(format!("{}.ended", *line)), "").unwrap();
            }
        });
        App::new("service", &format!("kafka://{address}")).unwrap().add(route).run().await
    });
    std::process::exit(i32::from(ended.is_err()));
}

struct Service {
    child: Child,
    directory: Directory,
}

impl Service {
    fn start(world: &World) -> Service {
        let directory = Directory::new("flow-signals");
        let log = std::fs::File::create(directory.path().join("log")).unwrap();
        let child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "signals::service", "--nocapture", "--test-threads=1"])
            .env(DIRECTORY, directory.path())
            .env(ADDRESS, world.address())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .unwrap();
        Service { child, directory }
    }

    fn signal(&self, name: &str) {
        let id = self.child.id().to_string();
        assert!(Command::new("kill").args([name, &id]).status().unwrap().success());
    }

    fn has(&self, file: &str) -> bool {
        self.directory.path().join(Path::new(file)).exists()
    }

    fn logs(&self, what: &str) -> bool {
        std::fs::read_to_string(self.directory.path().join("log")).unwrap().contains(what)
    }

    async fn end(&mut self) -> ExitStatus {
        let deadline = Instant::now() + Duration::from_secs(60);
        loop {
            if let Some(ended) = self.child.try_wait().unwrap() {
                return ended;
            }
            assert!(Instant::now() < deadline, "the service does not end");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

async fn world() -> World {
    let world = World::start();
    world.create("lines", 1).await;
    world
}

#[tokio::test]
async fn a_service_that_is_terminated_finishes_what_runs_and_commits_it() {
    for signal in ["-TERM", "-INT"] {
        let world = world().await;
        let mut service = Service::start(&world);
        world.write("lines", Some("a"), "one").await;
        eventually("one is started", || service.has("one.started")).await;
        service.signal(signal);
        let ended = service.end().await;
        assert!(ended.success() && service.has("one.ended"), "{signal}: {ended}");
        assert_eq!(world.committed("service").await[&world.t("lines", 0)], 1);
    }
}

#[tokio::test]
async fn a_second_signal_ends_at_once_with_2_and_commits_nothing() {
    let world = world().await;
    let mut service = Service::start(&world);
    world.write("lines", Some("a"), "stuck").await;
    eventually("it is started", || service.has("stuck.started")).await;
    service.signal("-TERM");
    eventually("it says that it stops", || service.logs("another signal ends at once")).await;
    service.signal("-TERM");
    assert_eq!(service.end().await.code(), Some(2));
    assert_eq!(world.committed("service").await.get(&world.t("lines", 0)), None);
}

#[tokio::test]
async fn a_service_rests_between_two_signals_and_says_what_runs_by_a_third() {
    let world = world().await;
    let mut service = Service::start(&world);
    world.write("lines", Some("a"), "one").await;
    eventually("one is handled", || service.has("one.ended")).await;
    service.signal("-TSTP");
    eventually("it says that it rests", || service.logs("nothing more is started until SIGCONT")).await;
    world.write("lines", Some("a"), "two").await;
    let arrived = "lines-0: finished up to offset 1, 1 unfinished, 0 run";
    eventually("it says what runs", || {
        service.signal("-USR1");
        service.logs(arrived)
    })
    .await;
    assert!(!service.has("two.started"));
    service.signal("-CONT");
    eventually("two is handled", || service.has("two.ended")).await;
    service.signal("-TERM");
    assert!(service.end().await.success());
}

#[tokio::test]
async fn a_handler_that_blocks_its_thread_for_ever_is_named() {
    let world = world().await;
    let service = Service::start(&world);
    world.write("lines", Some("a"), "blocks").await;
    let named = "a handler blocks its thread in partition lines-0 for ";
    eventually("it is named", || service.logs(named)).await;
}
