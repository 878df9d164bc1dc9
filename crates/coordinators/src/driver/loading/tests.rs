//! Loads of partitions, of which some are committed only later.

use std::sync::atomic::AtomicUsize;
use std::sync::mpsc;
use std::time::Instant;

use mainstem_store::testing::Leader;
use mainstem_store::topics::{Topic, Topics};
use mainstem_wire::Uuid;
use parking_lot::Mutex;

use super::super::{Effect, RequestOrigin};
use super::*;
use mainstem_coordination::groups::Token;

/// The longest wait of a test.
const SOON: Duration = Duration::from_secs(60);

/// A coordinator that counts loads and unloads of its partition.
#[derive(Default)]
struct Noting {
    is_being_loaded: bool,
    /// Times that it began to serve the partition.
    served: usize,
    /// Times that it unloaded it.
    unloaded: usize,
    /// The partition that a request is refused for.
    wanted: Option<i32>,
    replays: Arc<Replays>,
}

/// The entries that loaders replay.
#[derive(Default)]
struct Replays {
    count: AtomicUsize,
    /// Each replay is announced, and waits.
    gate: Option<Gate>,
}

struct Gate {
    begun: mpsc::Sender<()>,
    released: Mutex<mpsc::Receiver<()>>,
}

impl Coordinator for Noting {
    type Request<'a> = ();
    type Reply = ();
    type Ticket = ();
    type Other = ();

    const TOPIC: &'static str = "t";

    fn step(&mut self, _now: Now, _token: Token, _origin: &RequestOrigin<'_>, (): ()) {}

    fn effects(&mut self) -> Vec<Effect<Self>> {
        Vec::new()
    }

    fn next_deadline_ms(&self) -> Option<u64> {
        None
    }

    fn tick(&mut self, _now: Now) {}

    fn appended(&mut self, _now: Now, (): (), _outcome: Result<(), ErrorCode>) {}

    fn partition_of((): ()) -> i32 {
        0
    }

    fn partition_for(&self, _key: &str) -> i32 {
        0
    }

    fn set_partition_count(&mut self, _count: i32) {}

    fn begin_load(&mut self, _partition: i32, _leader_epoch: LeaderEpoch) -> Self {
        assert!(!self.is_being_loaded, "it is unloaded before");
        self.is_being_loaded = true;
        Noting { replays: self.replays.clone(), ..Noting::default() }
    }

    fn load(&mut self, _now: Now, _partition: i32, _entry: LogEntry<'_>) -> u64 {
        if let Some(gate) = &self.replays.gate {
            gate.begun.send(()).expect("the test listens");
            // Until it is let through, or the test does not hold it any more.
            let _ = gate.released.lock().recv();
        }
        self.replays.count.fetch_add(1, Ordering::Relaxed);
        0
    }

    fn finish_load(&mut self, _now: Now, _partition: i32, _loader: Self) {
        assert!(self.is_being_loaded, "nothing else is served");
        self.is_being_loaded = false;
        self.served += 1;
    }

    fn take_wanted(&mut self) -> Option<i32> {
        self.wanted.take()
    }

    fn unload(&mut self, _now: Now, _partition: i32) {
        self.is_being_loaded = false;
        self.unloaded += 1;
    }

    fn check(&self) {}
}

/// A leader with two records that are not committed, and a coordinator over it.
fn uncommitted() -> (Leader, Arc<Driver<Noting>>) {
    with(Noting::default(), loads())
}

fn with(machine: Noting, loads: Arc<Loads>) -> (Leader, Arc<Driver<Noting>>) {
    let leader = Leader::of_voters(3);
    [b"a record", b"a second"].iter().for_each(|value| leader.append(*value));
    let topics = Arc::<Topics>::default();
    let partitions = vec![leader.partition.clone()];
    topics.put(Arc::new(Topic { name: "t".into(), id: Uuid([7; 16]), partitions }));
    let driver =
        Arc::new_cyclic(|own| Driver::over(machine, leader.clock.clone(), ((topics, true), loads), own));
    (leader, driver)
}

/// Reads the partition on this thread.
fn read(driver: &Driver<Noting>, leader: &Leader) {
    driver.read(driver.begin_load(&leader.partition, None));
}

/// Both followers have all of the log.
fn commit(leader: &Leader) {
    [2, 3].into_iter().for_each(|node| leader.acknowledged_by(node, 3));
    wait_for(|| leader.partition.ends().is_ok_and(|ends| ends.high_watermark == 2));
}

#[track_caller]
fn wait_for(mut is_so: impl FnMut() -> bool) {
    let deadline = Instant::now() + SOON;
    while !is_so() {
        assert!(Instant::now() < deadline, "not within {SOON:?}");
        std::thread::yield_now();
    }
}

/// Times that the partition was served, and that it was unloaded.
fn counts(driver: &Driver<Noting>) -> (usize, usize) {
    driver.look(|machine| (machine.served, machine.unloaded))
}

#[test]
fn a_partition_is_served_when_what_was_read_is_committed_and_holds_up_nobody_until_then() {
    let (leader, driver) = uncommitted();
    // Returns although no majority is there.
    read(&driver, &leader);
    assert_eq!(counts(&driver), (0, 0));
    commit(&leader);
    wait_for(|| counts(&driver) == (1, 0));
}

/// Other partitions that wait do not hold it up.
#[test]
fn a_partition_of_which_all_is_committed_is_served_as_soon_as_it_is_read() {
    let (leader, driver) = uncommitted();
    commit(&leader);
    read(&driver, &leader);
    assert_eq!(counts(&driver), (1, 0));
}

#[test]
fn a_partition_that_is_taken_over_is_read_and_served() {
    let (leader, driver) = uncommitted();
    commit(&leader);
    driver.take_over(&leader.partition);
    wait_for(|| counts(&driver) == (1, 0));
    assert_eq!(driver.look(|machine| machine.replays.count.load(Ordering::Relaxed)), 2);
}

#[test]
fn a_partition_that_cannot_be_read_is_unloaded_at_once_and_may_be_taken_over_again() {
    let (leader, driver) = uncommitted();
    commit(&leader);
    drop(leader.partition.take_log(mainstem_store::partition::NoLog::Gone));
    read(&driver, &leader);
    read(&driver, &leader);
    assert_eq!(counts(&driver), (0, 2));
}

#[test]
fn a_load_of_all_partitions_waits_until_they_are_served() {
    let (leader, driver) = uncommitted();
    std::thread::scope(|scope| {
        let loading = scope.spawn(|| driver.load(std::slice::from_ref(&leader.partition)));
        wait_for(|| driver.look(|machine| machine.is_being_loaded));
        assert!(!loading.is_finished(), "nothing is committed");
        commit(&leader);
        loading.join().expect("nothing panics");
        assert_eq!(counts(&driver), (1, 0));
    });
}

#[test]
fn a_partition_that_was_unloaded_meanwhile_is_not_served() {
    let (leader, driver) = uncommitted();
    read(&driver, &leader);
    driver.unload(std::slice::from_ref(&leader.partition));
    commit(&leader);
    driver.loads.stop();
    assert_eq!(counts(&driver), (0, 1));
}

#[test]
fn of_two_attempts_the_newer_one_serves() {
    let (leader, driver) = uncommitted();
    let older = driver.begin_load(&leader.partition, None);
    commit(&leader);
    let newer = driver.begin_load(&leader.partition, None);
    // The newer attempt has read nothing yet.
    driver.read(older);
    assert_eq!(counts(&driver), (0, 1));
    driver.read(newer);
    assert_eq!(counts(&driver), (1, 1));
}

#[test]
fn a_leader_that_is_gone_before_the_commit_unloads_what_it_has_read() {
    let (leader, driver) = uncommitted();
    read(&driver, &leader);
    drop(leader);
    wait_for(|| counts(&driver) == (0, 1));
}

/// A long log is replayed without the coordinator's lock. One that is not wanted any more is read to the end of a piece.
#[test]
fn a_load_holds_up_no_request_and_ends_when_the_partition_is_unloaded() {
    let ((begun, is_begun), (release, released)) = (mpsc::channel(), mpsc::channel());
    let replays =
        Replays { gate: Some(Gate { begun, released: Mutex::new(released) }), ..Replays::default() };
    let (leader, driver) = with(Noting { replays: Arc::new(replays), ..Noting::default() }, loads());
    commit(&leader);
    driver.take_over(&leader.partition);
    is_begun.recv().expect("an entry is replayed");
    // With the lock this would wait until the test ends.
    driver.unload(std::slice::from_ref(&leader.partition));
    drop(release);
    driver.loads.stop();
    assert_eq!(
        driver.look(|machine| machine.replays.count.load(Ordering::Relaxed)),
        2,
        "both are of a piece"
    );
    assert_eq!(counts(&driver), (0, 1));
}

#[test]
fn the_partition_that_a_request_asks_for_is_loaded_next() {
    let loads = Arc::new(Loads::new("test", 1));
    let (_leader, driver) = with(Noting::default(), loads.clone());
    let (release, gate) = mpsc::channel::<()>();
    loads.run(("another topic", 0), Box::new(move || gate.recv().expect("it is released")));
    let (done, order) = mpsc::channel();
    for partition in [1, 2, 3] {
        let done = done.clone();
        loads.run(("t", partition), Box::new(move || done.send(partition).expect("the test listens")));
    }
    driver.set(|machine| machine.wanted = Some(2));
    let address = std::net::Ipv4Addr::LOCALHOST.into();
    drop(driver.ask(&RequestOrigin { version: 0, client_id: "", address }, ()));
    release.send(()).expect("it waits");
    assert!(order.iter().take(3).eq([2, 1, 3]));
}
