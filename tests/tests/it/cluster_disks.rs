//! The disk of one node of a cluster is full, slow, hangs or fails under load: acknowledgements go on by the others, nothing
//! that was acknowledged is lost, and the node is in sync again when its disk works.
//!
//! The load, its history and the judgement are those of `cluster_kills`. `TEST_CLUSTER_ROUNDS` says how often each fault
//! comes: once for twenty rounds. A full disk needs root, for a file system of its own; otherwise that test says that it
//! is skipped. Syncs are made slow, hanging and failing by a small library, which `gcc` builds. Beside our own client there
//! are producers and members of groups by Java's and by librdkafka, where those are installed.

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

/// The node whose disk it is.
const NODE: i32 = 2;
/// One that is killed beside it.
const OTHER: i32 = 3;
/// From the fault to the next acknowledgement in each partition, at most. One that waits for the disk waits for as long as the
/// fault is there; the rest is for a machine that has other things to do.
const PAUSE_MAX: Duration = Duration::from_secs(30);
/// `replica.lag.time.max.ms`.
const LAG_MAX: Duration = Duration::from_millis(2_000);
/// So much later the cluster says so, at most.
const NOTED_MAX: Duration = Duration::from_secs(60);
/// From the end of the fault until the node is in sync.
const BACK_MAX: Duration = Duration::from_secs(120);
/// Its syncs are late by so much: far more than they take, so that who waits for one is seen.
const SLOW_MS: u64 = 600;
/// The same where all wait for it.
const SLOW_VOTES_MS: u64 = 200;
/// MiB of the disk that gets full.
const DISK_MIB: u32 = 48;

fn setup(name: &str) -> Setup {
    let setup = Setup::new(name, System::Mainstem).set("replica.lag.time.max.ms", LAG_MAX.as_millis());
    // Leaders stay where they are, unless a fault moves them.
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

/// Producers see nothing of the syncs of one node.
async fn slow(load: &mut Load, faults: &DiskFaults, disk: &Path, round: u64) {
    let what = format!("round {round}: slow syncs");
    load.keeps_its_place(&what, faults, disk, Syncs::Slow(SLOW_MS)).await;
    load.wait_for_clients().await;
    // The majority that is left has to wait for the slow disk, for votes too.
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

/// The majority that is left has to wait for the slow disk, beside a node that runs and reaches no other.
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

/// The node goes on to lead what it leads: its own disk is none of those that are waited for.
async fn hanging(load: &mut Load, faults: &DiskFaults, disk: &Path, round: u64) {
    load.keeps_its_place(&format!("round {round}: hanging syncs"), faults, disk, Syncs::Hang).await;
    load.wait_for_clients().await;
    // No majority syncs any more: what is written waits for the disk, or for the other node.
    load.cluster.kill(OTHER);
    let begun_ms = load.run.now_ms();
    // So long the fault is there.
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

/// What was in the directory is offline, and nothing of it is believed; with the metadata the node ends.
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
        // Others lead what was in the directory, the coordinators' partitions too, and this node says so.
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

    /// Lets a fault happen; returns how long it took until all partitions acknowledged what came after it.
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

    /// Waits until each real client goes on in each partition.
    async fn wait_for_clients(&self) {
        self.run.wait_for_clients_after(&self.run.progress(), &self.cluster).await;
    }

    /// Lets syncs be late or hang: acknowledgements go on. How much later they come and how many partitions the node leads no more are
    /// figures: no acknowledgement waits for a sync, and the node leads what it led. The fault is there at the end.
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
        // A node that gets no turn for as long as an election takes loses what it leads, too.
        let lost = led.difference(&self.led().await).count();
        figure(&format!("{kind}_one_and_lost_partitions"), 1.0 + lost as f64);
    }

    /// The partitions that the node leads.
    async fn led(&self) -> BTreeSet<i32> {
        let topic = Admin::new(self.cluster.client()).topic(IN).await.expect("a topic");
        topic.partitions.iter().filter(|one| one.leader == Some(NODE)).map(|one| one.index).collect()
    }

    /// The partitions that the node leads. Where there are none, it is given those of which it is the first replica.
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

    /// Waits until another node leads each partition of which the faulty one has no replica that is in sync.
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

    /// The median and the longest time between a record that was sent since a moment and its acknowledgement.
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

    /// What the node says of itself.
    fn health(&self) -> String {
        self.cluster.http(NODE, "/health")
    }

    /// Everything is read, and judged.
    async fn finish(mut self) {
        outcome::finish(&self.run, &mut self.cluster, self.actors, &self.others).await;
    }
}
