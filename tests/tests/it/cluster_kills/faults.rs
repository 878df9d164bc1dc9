//! The faults of a cluster in a round.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::time::{Duration, Instant};

use mainstem_client::Admin;
use mainstem_tests::cluster::Cluster;
use mainstem_wire::sample::Rng;

use crate::cluster_kills::clients::RealClient;
use crate::cluster_kills::run::{IN, PARTITIONS, RESUME_MAX, Run, group_name};

/// The interval at which the cluster is asked for leaders.
const LOOK_AGAIN: Duration = Duration::from_millis(50);

/// A fault: the nodes that are killed, or something else that happens to one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Fault {
    /// The leader of a partition.
    PartitionLeader,
    /// The coordinator of a group.
    Coordinator,
    /// The leader of the metadata.
    MetadataLeader,
    /// Any one.
    Any,
    /// Two at once.
    Two,
    /// All at once.
    All,
    /// One is stopped (SIGSTOP) and later resumed.
    Pause,
    /// One cannot reach the others, nor they it; clients reach all.
    Isolate,
    /// Nothing gets from one to the others.
    Outwards,
    /// Nothing gets from the others to one.
    Inwards,
    /// Two cannot reach each other; the third one reaches both.
    Pair,
    /// One is stopped while another one is killed and started again.
    PauseAndKill,
}

impl Fault {
    /// Kills alone.
    pub(crate) const KILLS: [Fault; 6] = [
        Fault::PartitionLeader,
        Fault::Coordinator,
        Fault::MetadataLeader,
        Fault::Any,
        Fault::Two,
        Fault::All,
    ];
    /// All faults that are not kills alone.
    pub(crate) const DISTURBANCES: [Fault; 6] =
        [Fault::Pause, Fault::Isolate, Fault::Outwards, Fault::Inwards, Fault::Pair, Fault::PauseAndKill];

    /// Each kind of kill comes once in the first rounds; later ones are random.
    pub(crate) fn choose_kill(round: u64, rng: &mut Rng) -> Fault {
        Fault::KILLS.get(round as usize).copied().unwrap_or_else(|| Fault::any_kill(rng))
    }

    fn any_kill(rng: &mut Rng) -> Fault {
        match rng.below(10) {
            0 | 1 => Fault::PartitionLeader,
            2 | 3 => Fault::Coordinator,
            4 | 5 => Fault::MetadataLeader,
            6 => Fault::Any,
            7 | 8 => Fault::Two,
            _ => Fault::All,
        }
    }

    /// Each pause and partition comes once in the first rounds; later ones are random, with kills between them.
    pub(crate) fn choose(round: u64, rng: &mut Rng) -> Fault {
        if let Some(fault) = Fault::DISTURBANCES.get(round as usize) {
            return *fault;
        }
        match rng.below(10) {
            0 | 1 => Fault::Pause,
            2 | 3 => Fault::Isolate,
            4 => Fault::Outwards,
            5 => Fault::Inwards,
            6 => Fault::Pair,
            7 => Fault::PauseAndKill,
            _ => Fault::any_kill(rng),
        }
    }

    /// Makes the fault and ends it. Returns the time until all partitions acknowledged again.
    pub(crate) async fn carry_out(self, cluster: &mut Cluster, run: &Run, rng: &mut Rng) -> Duration {
        match self {
            _ if Fault::DISTURBANCES.contains(&self) => self.disturb(cluster, run, rng).await,
            _ => self.kill(cluster, run, rng).await,
        }
    }

    async fn disturb(self, cluster: &mut Cluster, run: &Run, rng: &mut Rng) -> Duration {
        let node = 1 + rng.below(3) as i32;
        let others: Vec<_> = cluster.ids().into_iter().filter(|other| *other != node).collect();
        let (begun_ms, before) = (run.now_ms(), run.progress());
        eprintln!("{self:?} of node {node} (and node {})", others[0]);
        match self {
            Fault::Pause => cluster.pause(node),
            Fault::PauseAndKill => {
                cluster.pause(node);
                cluster.kill(others[0]);
                cluster.start_node(others[0]);
            }
            Fault::Isolate => others.iter().for_each(|other| {
                cluster.cut(node, *other);
                cluster.cut(*other, node);
            }),
            Fault::Outwards => others.iter().for_each(|other| cluster.cut(node, *other)),
            Fault::Inwards => others.iter().for_each(|other| cluster.cut(*other, node)),
            _ => {
                cluster.cut(node, others[0]);
                cluster.cut(others[0], node);
            }
        }
        // Two of three reach each other, and have to work without the third.
        run.wait_until_acknowledged_after(begun_ms, cluster).await;
        let pause = Duration::from_millis(run.now_ms() - begun_ms);
        match self {
            Fault::Pause | Fault::PauseAndKill => {
                // Real clients drop a node that answers nothing, after a time.
                run.wait_for_clients_after(&before, cluster).await;
                cluster.resume(node);
            }
            Fault::Pair => {
                // A coordinator of transactions cannot begin or end any in a partition while it and the partition's
                // leader do not reach each other. Loops may make no progress for as long.
                let mut before = before;
                for client in RealClient::ALL {
                    before.commits.remove(&client.transactional_loop());
                }
                run.wait_for_clients_after(&before, cluster).await;
                cluster.heal();
            }
            _ => {
                // librdkafka continues to ask the node that it asked last. If that one knows of no leader, it does so
                // until the node ends its connection.
                run.wait_for_clients_after(&before, cluster).await;
                cluster.heal();
            }
        }
        run.wait_for_clients_after(&run.progress(), cluster).await;
        pause
    }

    /// Kills nodes, and starts them again. Returns the time until all partitions acknowledged again.
    async fn kill(self, cluster: &mut Cluster, run: &Run, rng: &mut Rng) -> Duration {
        let nodes = self.nodes(cluster, rng).await;
        let killed_ms = run.now_ms();
        nodes.iter().for_each(|node| cluster.kill(*node));
        // Two of three run, and mostly have to work without the third.
        let is_alone = nodes.len() == 1 && rng.below(4) > 0;
        if is_alone {
            run.wait_until_acknowledged_after(killed_ms, cluster).await;
        } else {
            tokio::time::sleep(Duration::from_millis(rng.below(700))).await;
        }
        let resumed_ms = run.now_ms();
        for node in nodes {
            cluster.start_node(node);
            tokio::time::sleep(Duration::from_millis(rng.below(200))).await;
        }
        if !is_alone {
            run.wait_until_acknowledged_after(killed_ms, cluster).await;
        }
        let acknowledged_ms = if is_alone { resumed_ms } else { run.now_ms() };
        // Each real client has to survive this kill, and not only the last one.
        run.wait_for_clients_after(&run.progress(), cluster).await;
        Duration::from_millis(acknowledged_ms - killed_ms)
    }

    async fn nodes(self, cluster: &Cluster, rng: &mut Rng) -> Vec<i32> {
        let any = 1 + rng.below(3) as i32;
        match self {
            Fault::PartitionLeader | Fault::Coordinator | Fault::MetadataLeader => {
                vec![self.leading(cluster, rng).await]
            }
            Fault::Two => (1..=3).filter(|node| *node != any).collect(),
            Fault::All => vec![1, 2, 3],
            _ => vec![any],
        }
    }

    /// The node that this kind of kill is about, as soon as the cluster knows one.
    async fn leading(self, cluster: &Cluster, rng: &mut Rng) -> i32 {
        let (partition, group) = (rng.below(PARTITIONS as u64) as i32, group_name(1 + rng.below(3)));
        let admin = Admin::new(cluster.client());
        let deadline = Instant::now() + RESUME_MAX;
        loop {
            let found = match self {
                Fault::PartitionLeader => {
                    let topic = admin.topic(IN).await.ok();
                    topic.and_then(|topic| topic.partition(partition).ok().and_then(|one| one.leader))
                }
                Fault::Coordinator => admin.coordinator(&group).await.ok(),
                _ => admin.quorum().await.ok().map(|quorum| quorum.leader),
            };
            if let Some(node) = found.filter(|node| cluster.ids().contains(node)) {
                return node;
            }
            assert!(Instant::now() < deadline, "the cluster knows no {self:?}\n{}", cluster.tails());
            tokio::time::sleep(LOOK_AGAIN).await;
        }
    }
}

/// The pauses between acknowledgements, by fault.
#[derive(Debug, Default)]
pub(crate) struct Pauses(BTreeMap<Fault, Vec<Duration>>);

impl Pauses {
    pub(crate) fn add(&mut self, fault: Fault, pause: Duration) {
        self.0.entry(fault).or_default().push(pause);
    }
}

impl fmt::Display for Pauses {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (fault, pauses) in &self.0 {
            let mut sorted = pauses.clone();
            sorted.sort();
            let (median, longest) = (sorted[sorted.len() / 2], sorted[sorted.len() - 1]);
            writeln!(f, "{fault:?}: {} times, pause median {median:?}, longest {longest:?}", sorted.len())?;
        }
        Ok(())
    }
}

#[test]
fn each_kind_comes_in_the_first_rounds() {
    for seed in 1..=50 {
        let mut rng = Rng(seed);
        let kills: BTreeSet<_> = (0..6).map(|round| Fault::choose_kill(round, &mut rng)).collect();
        assert_eq!(kills, BTreeSet::from(Fault::KILLS), "seed {seed}");
        let disturbances: BTreeSet<_> = (0..6).map(|round| Fault::choose(round, &mut rng)).collect();
        assert_eq!(disturbances, BTreeSet::from(Fault::DISTURBANCES), "seed {seed}");
    }
}
