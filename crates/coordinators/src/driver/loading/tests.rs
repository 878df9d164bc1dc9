//! Loads of partitions whose read records are committed only later.

use mainstem_store::testing::Leader;
use mainstem_store::topics::{Topic, Topics};
use mainstem_wire::Uuid;

use super::super::{Effect, RequestOrigin};
use super::*;
use mainstem_coordination::groups::Token;

/// A coordinator that counts loads and unloads of its partition.
#[derive(Default)]
struct Noting {
    is_being_loaded: bool,
    /// Times that it began to serve the partition.
    served: usize,
    /// Times that it unloaded it.
    unloaded: usize,
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

    fn begin_load(&mut self, _partition: i32, _leader_epoch: LeaderEpoch) {
        assert!(!self.is_being_loaded, "it is unloaded before");
        self.is_being_loaded = true;
    }

    fn load(&mut self, _now: Now, _partition: i32, _entry: LogEntry<'_>) -> u64 {
        0
    }

    fn finish_load(&mut self, _now: Now, _partition: i32) {
        assert!(self.is_being_loaded, "nothing else is served");
        self.is_being_loaded = false;
        self.served += 1;
    }

    fn unload(&mut self, _now: Now, _partition: i32) {
        self.is_being_loaded = false;
        self.unloaded += 1;
    }

    fn check(&self) {}
}

/// A leader with a record that is not committed, and a coordinator over it.
fn uncommitted() -> (Leader, Arc<Driver<Noting>>) {
    let leader = Leader::of_voters(3);
    leader.append(b"a record");
    let topics = Arc::<Topics>::default();
    let partitions = vec![leader.partition.clone()];
    topics.put(Arc::new(Topic { name: "t".into(), id: Uuid([7; 16]), partitions }));
    let driver =
        Arc::new_cyclic(|own| Driver::over(Noting::default(), leader.clock.clone(), (topics, true), own));
    (leader, driver)
}

fn load(driver: &Driver<Noting>, leader: &Leader) {
    driver.load_one(&leader.partition, Box::new(|serve| serve()));
}

/// Both followers have all of the log.
fn commit(leader: &Leader) {
    [2, 3].into_iter().for_each(|node| leader.acknowledged_by(node, 2));
}

/// Panics if a second step of a load has to wait.
fn not_needed() -> RunServing {
    Box::new(|_| unreachable!("the fate of what was read is known"))
}

/// Times that the partition was served, and that it was unloaded.
fn counts(driver: &Driver<Noting>) -> (usize, usize) {
    driver.look(|machine| (machine.served, machine.unloaded))
}

#[test]
fn a_partition_is_served_when_what_was_read_is_committed_and_holds_up_nobody_until_then() {
    let (leader, driver) = uncommitted();
    // Returns although no majority is there.
    load(&driver, &leader);
    assert_eq!(counts(&driver), (0, 0));
    commit(&leader);
    assert_eq!(counts(&driver), (1, 0));
}

/// Other partitions that wait on the same thread do not hold it up.
#[test]
fn a_partition_of_which_all_is_committed_is_served_as_soon_as_it_is_read() {
    let (leader, driver) = uncommitted();
    commit(&leader);
    driver.load_one(&leader.partition, not_needed());
    assert_eq!(counts(&driver), (1, 0));
}

#[test]
fn a_partition_that_cannot_be_read_is_unloaded_at_once_and_may_be_taken_over_again() {
    let (leader, driver) = uncommitted();
    commit(&leader);
    drop(leader.partition.take_log(mainstem_store::partition::NoLog::Gone));
    driver.load_one(&leader.partition, not_needed());
    driver.load_one(&leader.partition, not_needed());
    assert_eq!(counts(&driver), (0, 2));
}

#[test]
fn a_load_of_all_partitions_waits_until_they_are_served() {
    let (leader, driver) = uncommitted();
    std::thread::scope(|scope| {
        let loading = scope.spawn(|| driver.load(std::slice::from_ref(&leader.partition)));
        while !driver.look(|machine| machine.is_being_loaded) {
            std::thread::yield_now();
        }
        assert!(!loading.is_finished(), "nothing is committed");
        commit(&leader);
        loading.join().expect("nothing panics");
        assert_eq!(counts(&driver), (1, 0));
    });
}

#[test]
fn a_partition_that_was_unloaded_meanwhile_is_not_served() {
    let (leader, driver) = uncommitted();
    load(&driver, &leader);
    driver.unload(std::slice::from_ref(&leader.partition));
    commit(&leader);
    assert_eq!(counts(&driver), (0, 1));
}

#[test]
fn of_two_attempts_the_newer_one_serves() {
    let (leader, driver) = uncommitted();
    let (held, jobs) = mpsc::channel();
    driver.load_one(&leader.partition, Box::new(move |serve| held.send(serve).expect("the test takes it")));
    commit(&leader);
    let newer = driver.begin_load(&leader.partition);
    // The older attempt was to serve now, and the newer one has read nothing yet.
    jobs.into_iter().for_each(|serve| serve());
    assert_eq!(counts(&driver), (0, 1));
    driver.read(newer, Box::new(|serve| serve()));
    assert_eq!(counts(&driver), (1, 1));
}

#[test]
fn a_leader_that_is_gone_before_the_commit_unloads_what_it_has_read() {
    let (leader, driver) = uncommitted();
    load(&driver, &leader);
    drop(leader);
    assert_eq!(counts(&driver), (0, 1));
}
