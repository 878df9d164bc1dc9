//! A node whose clock is wrong.

use std::collections::BTreeMap;
use std::fs;

use mainstem_client::{Admin, NewTopic, Partition};
use mainstem_records::BatchOptions;
use mainstem_tests::broker::target_dir;
use mainstem_tests::client::Client;
use mainstem_tests::cluster::{Cluster, Setup, System};
use mainstem_tests::kafka::{batch_at, wall_ms};
use mainstem_tests::preload::clock_ahead;
use mainstem_tests::wait::eventually;
use mainstem_wire::sample::Rng;
use tokio::runtime::Runtime;

const TOPIC: &str = "aged";
const NODES: [i32; 3] = [1, 2, 3];
/// The node whose clock is ahead.
const AHEAD: i32 = 2;
const DAY_S: i64 = 24 * 60 * 60;
/// The timestamp in ListOffsets for the first existing offset.
const EARLIEST: i64 = -2;
const RECORDS: i64 = 20;

fn connect(cluster: &Cluster, node: i32) -> Client {
    let addresses = cluster.bootstrap();
    let address = addresses.split(',').nth(node as usize - 1).expect("there is such a node");
    Client::connect(address).expect("it listens")
}

/// The leader of each partition, with its epoch.
fn leaders(cluster: &mut Cluster, runtime: &Runtime) -> BTreeMap<usize, (i32, i32)> {
    let topic = runtime.block_on(cluster.wait_until_in_sync(TOPIC));
    let led = |one: &Partition| (one.index as usize, (one.leader.expect("it is led"), one.leader_epoch));
    topic.partitions.iter().map(led).collect()
}

/// The base offset of the first segment of a node's replica.
fn first_base(cluster: &Cluster, node: i32, partition: usize) -> i64 {
    let dir = cluster.log_dir(node).join(format!("{TOPIC}-{partition}"));
    let names = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let bases = names.filter_map(|name| name.strip_suffix(".log").map(|base| base.parse::<i64>().unwrap()));
    bases.min().expect("a replica has a segment")
}

/// The leader's clock decides about retention on all replicas alike, whatever the clocks of the others show.
/// Otherwise the existing records would depend on the leader. Both nodes report that their clocks differ.
#[test]
fn retention_goes_by_the_clock_of_the_leader_and_a_clock_that_is_wrong_is_named() {
    let home = target_dir().join("test-runs");
    fs::create_dir_all(&home).unwrap();
    let home = tempfile::Builder::new().prefix("cluster-clocks-").tempdir_in(home).unwrap();
    let mut cluster = Setup::new("cluster-clocks", System::Mainstem)
        .set("auto.leader.rebalance.enable", false)
        .set("log.retention.check.interval.ms", 200)
        .set("log.segment.delete.delay.ms", 0)
        .set("mainstem.http.listener", "127.0.0.1:0")
        .environment(AHEAD, clock_ahead(8 * DAY_S, home.path()))
        .start()
        .expect("our own binary");
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let topic = NewTopic { replication_factor: Some(3), ..NewTopic::new(TOPIC).partitions(3) };
    let topic = topic.config("retention.ms", (DAY_S * 1_000).to_string());
    runtime.block_on(async {
        cluster.wait_until_ready().await;
        Admin::new(cluster.client()).create_topic(&topic).await.expect("a topic");
    });
    let leaders = leaders(&mut cluster, &runtime);
    println!("partitions and who leads them: {leaders:?}");
    // Random values, so that segments fill.
    let mut noise = Rng(mainstem_testkit::seed());
    for (partition, (leader, _)) in &leaders {
        let mut client = connect(&cluster, *leader);
        for _ in 0..RECORDS {
            let value: Vec<u8> = (0..200).map(|_| noise.below(256) as u8).collect();
            let batch = batch_at(BatchOptions::default(), wall_ms(), &[&value]);
            client.produce(TOPIC, *partition as i32, -1, &batch).expect("it is acknowledged");
        }
    }
    let is_emptied = |cluster: &Cluster, node, partition| first_base(cluster, node, partition) == RECORDS;
    let of = |is_ahead: bool| leaders.iter().filter(move |(_, (leader, _))| (*leader == AHEAD) == is_ahead);
    for (partition, _) in of(true) {
        for node in NODES {
            eventually("what its leader takes for old is gone", || {
                is_emptied(&cluster, node, *partition).then_some(())
            });
        }
    }
    cluster.assert_running();
    // On a busy machine the node may have led others for a while.
    let still = self::leaders(&mut cluster, &runtime);
    for (partition, (leader, _)) in of(false).filter(|(partition, led)| still.get(partition) == Some(led)) {
        let start = connect(&cluster, *leader).offset_at(TOPIC, *partition as i32, EARLIEST);
        assert_eq!(start.ok(), Some(0), "partition {partition}");
        for node in NODES {
            assert_eq!(first_base(&cluster, node, *partition), 0, "partition {partition} of node {node}");
        }
    }
    for node in NODES {
        let side = if node == AHEAD { "behind" } else { "ahead of" };
        eventually("a clock that is wrong is named", || {
            let log = cluster.log(node);
            let lines = log.lines().filter(|line| line.contains("the clock of node"));
            lines.filter(|line| line.contains(side) && line.contains(" 691")).count().gt(&0).then_some(())
        });
    }
    let metrics = cluster.http(1, "/metrics");
    let sample = format!("mainstem_peer_clock_ahead_seconds{{node=\"{AHEAD}\"}} 691");
    assert!(metrics.contains(&sample), "{metrics}");
}
