//! The disk of one node is full, slow, hangs or fails under load. The other nodes still acknowledge, no acknowledged
//! record is lost, and the node is in sync again when its disk works.
//!
//! The load, its history and its check are those of `cluster_kills`. `TEST_CLUSTER_ROUNDS` sets how often each fault
//! comes: once for twenty rounds. A full disk needs root, for a file system of its own; otherwise that test prints
//! that it is skipped. A small library, which `gcc` builds, makes syncs slow, hanging and failing. Beside our own
//! client there are producers and members of groups by Java's client and by librdkafka, where those are installed.

use std::collections::{BTreeSet, HashMap};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use mainstem_client::{Admin, Election};
use mainstem_replication::history::{Operation, Outcome};
use mainstem_testkit::figure;
use mainstem_tests::broker::target_dir;
use mainstem_tests::cluster::{Cluster, Setup, System};
use mainstem_tests::disk_faults::{DiskFaults, Syncs};
use mainstem_tests::small_disk::SmallDisk;
use mainstem_wire::sample::Rng;
use tokio::task::JoinSet;

use crate::cluster_kills::clients::RealClient;
use crate::cluster_kills::load::{
    INTERNAL, Others, TOPICS, assert_no_actor_has_failed, create_topics, start_actors,
};
use crate::cluster_kills::outcome;
use crate::cluster_kills::run::{IN, Run};

/// The node with the faulty disk.
const NODE: i32 = 2;
/// Another node, which is killed in some rounds.
const OTHER: i32 = 3;
/// The longest time from a fault to the next acknowledgement in each partition. An acknowledgement that waits for the
/// disk would take as long as the fault; the rest is for a busy machine.
const PAUSE_MAX: Duration = Duration::from_secs(30);
/// `replica.lag.time.max.ms`.
const LAG_MAX: Duration = Duration::from_millis(2_000);
/// The longest time after that until the cluster reports it.
const NOTED_MAX: Duration = Duration::from_secs(60);
/// The longest time from the end of the fault until the node is in sync.
const BACK_MAX: Duration = Duration::from_secs(120);
/// The delay of slow syncs: far more than they take, so that waits for them show.
const SLOW_MS: u64 = 600;
/// The delay where a majority has to wait for the slow disk.
const SLOW_VOTES_MS: u64 = 200;
/// MiB of the disk that becomes full.
const DISK_MIB: u32 = 48;

fn setup(name: &str) -> Setup {
    let setup = Setup::new(name, System::Mainstem).set("replica.lag.time.max.ms", LAG_MAX.as_millis());
    // Only a fault moves leaders.
    setup.set("auto.leader.rebalance.enable", false).set("mainstem.http.listener", "127.0.0.1:0")
}

fn rounds() -> u64 {
    let rounds = std::env::var("TEST_CLUSTER_ROUNDS").map_or(20, |text| text.parse().expect("a number"));
    u64::div_ceil(rounds, 20)
}

fn block_on(work: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    runtime.expect("a runtime").block_on(work);
}

#[test]
fn what_was_acknowledged_survives_a_full_disk() {
    let Some(disk) = SmallDisk::mount(DISK_MIB) else { return };
    let setup = setup("cluster-full-disk").disks(NODE, &[disk.path().join("data")]);
    let Some(cluster) = setup.start() else { return };
    block_on(async {
        let mut load = Load::begin(cluster).await;
        for round in 0..rounds() {
            let full = || disk.fill();
            let pause = load.assert_goes_on(&format!("round {round}: full disk"), full).await;
            assert!(pause <= PAUSE_MAX, "{pause:?}");
            load.wait_until_out_of_sync().await;
            load.wait_for_clients().await;
            let health = load.health();
            assert!(health.contains("\"degraded\"") && health.contains("is full"), "{health}");
            load.run.wait_for_appends(100, &load.cluster).await;
            load.cluster.kill(NODE);
            load.cluster.start_node(NODE);
            load.run.wait_for_appends(100, &load.cluster).await;
            disk.free();
            load.wait_until_back().await;
            assert!(load.cluster.is_running(NODE));
        }
        load.finish().await;
    });
}

#[test]
fn what_was_acknowledged_survives_slow_hanging_and_failing_syncs() {
    let home = target_dir().join("test-runs");
    std::fs::create_dir_all(&home).unwrap();
    let home = tempfile::Builder::new().prefix("cluster-syncs-disks-").tempdir_in(home).unwrap();
    let dirs = ["metadata", "data"].map(|name| home.path().join(name));
    let faults = DiskFaults::build(home.path());
    let setup = setup("cluster-syncs").proxied().disks(NODE, &dirs).environment(NODE, faults.environment());
    let Some(cluster) = setup.start() else { return };
    block_on(async {
        let mut load = Load::begin(cluster).await;
        for round in 0..rounds() {
            slow(&mut load, &faults, home.path(), round).await;
            slow_and_cut_off(&mut load, &faults, home.path(), round).await;
            hanging(&mut load, &faults, home.path(), round).await;
            for (dir, is_metadata) in [(&dirs[1], false), (&dirs[0], true)] {
                failing(&mut load, &faults, dir, is_metadata, round).await;
            }
        }
        load.finish().await;
    });
}

/// Producers notice nothing of the slow syncs of one node.
async fn slow(load: &mut Load, faults: &DiskFaults, disk: &Path, round: u64) {
    let what = format!("round {round}: slow syncs");
    load.keeps_its_place(&what, faults, disk, Syncs::Slow(SLOW_MS)).await;
    load.wait_for_clients().await;
    // The remaining majority has to wait for the slow disk, for votes too.
    faults.set(Syncs::Slow(SLOW_VOTES_MS), disk);
    load.cluster.kill(OTHER);
    let begun_ms = load.run.now_ms();
    load.run.wait_until_acknowledged_after(begun_ms, &load.cluster).await;
    let pause = Duration::from_millis(load.run.now_ms() - begun_ms);
    eprintln!(
        "round {round}: node {OTHER} killed beside a slow disk: all partitions acknowledge after {pause:?}"
    );
    load.cluster.start_node(OTHER);
    faults.set(Syncs::Work, disk);
    load.wait_until_back().await;
}

/// The remaining majority has to wait for the slow disk. The third node runs and reaches no other.
async fn slow_and_cut_off(load: &mut Load, faults: &DiskFaults, disk: &Path, round: u64) {
    faults.set(Syncs::Slow(SLOW_MS), disk);
    for other in load.cluster.ids().into_iter().filter(|other| *other != OTHER) {
        load.cluster.cut(OTHER, other);
        load.cluster.cut(other, OTHER);
    }
    load.assert_goes_on(&format!("round {round}: slow syncs, node {OTHER} cut off"), || ()).await;
    load.cluster.heal();
    faults.set(Syncs::Work, disk);
    load.wait_until_back().await;
}

/// The node keeps its leaderships: nothing waits for its own disk.
async fn hanging(load: &mut Load, faults: &DiskFaults, disk: &Path, round: u64) {
    load.keeps_its_place(&format!("round {round}: hanging syncs"), faults, disk, Syncs::Hang).await;
    load.wait_for_clients().await;
    // No majority can sync any more: records wait for the disk, or for the other node.
    load.cluster.kill(OTHER);
    let begun_ms = load.run.now_ms();
    // The time for which the fault lasts.
    tokio::time::sleep(LAG_MAX / 4).await;
    match round % 2 {
        0 => faults.set(Syncs::Work, disk),
        _ => load.cluster.start_node(OTHER),
    }
    load.run.wait_until_acknowledged_after(begun_ms, &load.cluster).await;
    match round % 2 {
        0 => load.cluster.start_node(OTHER),
        _ => faults.set(Syncs::Work, disk),
    }
    load.wait_until_back().await;
}

/// All partitions in the directory go offline, and none of their data is trusted. With the metadata the node ends.
async fn failing(load: &mut Load, faults: &DiskFaults, dir: &Path, is_metadata: bool, round: u64) {
    let fail = || faults.set(Syncs::Fail, dir);
    let pause =
        load.assert_goes_on(&format!("round {round}: failing syncs in {}", dir.display()), fail).await;
    assert!(pause <= PAUSE_MAX, "{pause:?}");
    if is_metadata {
        load.cluster.wait_for_end(NODE);
    } else {
        load.wait_until_out_of_sync().await;
        let health = load.health();
        // Other nodes lead the partitions of the directory, the coordinators' too, and this node reports it.
        load.wait_for_clients().await;
        assert!(health.contains("\"failed\"") && health.contains(&*dir.to_string_lossy()), "{health}");
        load.cluster.kill(NODE);
    }
    let log = load.cluster.log(NODE);
    assert!(log.contains("the log directory goes offline"), "{log}");
    load.run.wait_for_appends(100, &load.cluster).await;
    faults.set(Syncs::Work, dir);
    load.cluster.start_node(NODE);
    load.wait_until_back().await;
}

/// A cluster with its load.
struct Load {
    cluster: Cluster,
    run: Arc<Run>,
    actors: JoinSet<()>,
    others: Others,
}

impl Load {
    async fn begin(mut cluster: Cluster) -> Load {
        create_topics(&mut cluster).await;
        let run = Arc::new(Run::new());
        let mut rng = Rng(mainstem_testkit::seed());
        let clients = RealClient::OF_ALL_FAULTS.into_iter().filter(|client| client.is_installed());
        let others = Others { clients: clients.collect(), looping: Vec::new() };
        let actors = start_actors(&run, &cluster, &others, &mut rng);
        run.wait_for_appends(100, &cluster).await;
        run.wait_for_begun_clients(&cluster).await;
        for topic in INTERNAL {
            cluster.wait_until_in_sync(topic).await;
        }
        Load { cluster, run, actors, others }
    }

    /// Makes a fault happen. Returns the time until all partitions acknowledged later records.
    async fn assert_goes_on(&mut self, what: &str, fault: impl FnOnce()) -> Duration {
        self.run.wait_for_appends(50, &self.cluster).await;
        let begun_ms = self.run.now_ms();
        fault();
        self.run.wait_until_acknowledged_after(begun_ms, &self.cluster).await;
        let pause = Duration::from_millis(self.run.now_ms() - begun_ms);
        eprintln!("{what}: all partitions acknowledge after {pause:?}");
        assert_no_actor_has_failed(&mut self.actors).await;
        pause
    }

    /// Waits until each real client makes progress in each partition.
    async fn wait_for_clients(&self) {
        self.run.wait_for_clients_after(&self.run.progress(), &self.cluster).await;
    }

    /// Makes syncs slow or hanging. Figures are the delay of acknowledgements and the number of partitions that the
    /// node leads no more: no acknowledgement waits for a sync, and the node keeps its leaderships. The fault lasts
    /// at the end.
    async fn keeps_its_place(&mut self, what: &str, faults: &DiskFaults, disk: &Path, syncs: Syncs) {
        let late_ms = if let Syncs::Slow(ms) = syncs { ms } else { 0 };
        let led = self.await_led().await;
        let before_ms = self.run.now_ms();
        self.run.wait_for_appends(500, &self.cluster).await;
        let (before, _) = self.latency_since(before_ms);
        let begun_ms = self.run.now_ms();
        let pause = self.assert_goes_on(what, || faults.set(syncs, disk)).await;
        assert!(pause <= PAUSE_MAX, "{what}: {pause:?}");
        self.run.wait_until_acknowledged_after(begun_ms + late_ms, &self.cluster).await;
        self.run.wait_for_appends(500, &self.cluster).await;
        let (median, worst) = self.latency_since(begun_ms + late_ms);
        eprintln!(
            "{what}: acknowledged after {median:?} in the median, {before:?} before, {worst:?} at most"
        );
        let kind = if late_ms > 0 { "slow" } else { "hanging" };
        figure(&format!("{kind}_acknowledgement"), median.div_duration_f64(before));
        // A node without processor time for as long as an election takes loses its leaderships, too.
        let lost = led.difference(&self.led().await).count();
        figure(&format!("{kind}_one_and_lost_partitions"), 1.0 + lost as f64);
    }

    /// The partitions that the node leads.
    async fn led(&self) -> BTreeSet<i32> {
        let topic = Admin::new(self.cluster.client()).topic(IN).await.expect("a topic");
        topic.partitions.iter().filter(|one| one.leader == Some(NODE)).map(|one| one.index).collect()
    }

    /// The partitions that the node leads. If there are none, the preferred leaders are elected.
    async fn await_led(&self) -> BTreeSet<i32> {
        let admin = Admin::new(self.cluster.client());
        let deadline = Instant::now() + BACK_MAX;
        loop {
            let led = self.led().await;
            if !led.is_empty() {
                return led;
            }
            let elected = admin.elect_leaders(Election::Preferred, None).await;
            assert!(Instant::now() < deadline, "node {NODE} leads nothing: {elected:?}");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    /// Waits until the faulty node's replicas are out of sync, or in sync with all others, and another node leads those that are out.
    async fn wait_until_out_of_sync(&self) {
        let deadline = Instant::now() + LAG_MAX + NOTED_MAX;
        let admin = Admin::new(self.cluster.client());
        loop {
            let found = admin.topic(IN).await;
            let is_out = |one: &mainstem_client::Partition| {
                one.leader.is_some_and(|leader| leader != NODE)
                    && one.isr.len() == 2
                    && !one.isr.contains(&NODE)
            };
            let is_in = |one: &mainstem_client::Partition| one.isr.len() == 3;
            if let Ok(found) = &found
                && found.partitions.iter().any(is_out)
                && found.partitions.iter().all(|one| is_out(one) || is_in(one))
            {
                return;
            }
            assert!(Instant::now() < deadline, "{found:?}\n{}", self.cluster.tails());
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    /// Waits until all replicas are in sync again.
    async fn wait_until_back(&mut self) {
        let begun = Instant::now();
        for topic in TOPICS {
            self.cluster.wait_until_in_sync(topic).await;
        }
        let took = begun.elapsed();
        eprintln!("in sync again after {took:?}");
        assert!(took < BACK_MAX, "{took:?}\n{}", self.cluster.tails());
        self.wait_for_clients().await;
        assert_no_actor_has_failed(&mut self.actors).await;
    }

    /// The median and the maximum of the time from sending a record to its acknowledgement, for records since a moment.
    fn latency_since(&self, begun_ms: u64) -> (Duration, Duration) {
        let (mut sent, mut took) = (HashMap::new(), Vec::new());
        for event in self.run.history() {
            match (event.operation, event.outcome) {
                (Operation::Append, Outcome::Invoke) if event.at_ms >= begun_ms => {
                    sent.insert(event.value, event.at_ms);
                }
                (Operation::Append, Outcome::Ok) => {
                    took.extend(sent.remove(&event.value).map(|sent_ms| event.at_ms - sent_ms));
                }
                _ => {}
            }
        }
        took.sort_unstable();
        assert!(!took.is_empty(), "nothing was acknowledged");
        (Duration::from_millis(took[took.len() / 2]), Duration::from_millis(took[took.len() - 1]))
    }

    /// The health report of the node.
    fn health(&self) -> String {
        self.cluster.http(NODE, "/health")
    }

    /// Reads everything, and checks it.
    async fn finish(mut self) {
        outcome::finish(&self.run, &mut self.cluster, self.actors, &self.others).await;
    }
}
