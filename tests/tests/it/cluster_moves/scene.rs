//! A cluster of four nodes with its clients, and what is asked of it.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::time::Instant;

use mainstem_client::{
    Admin, ConfigChange, ConfigResource, Election, Error, NewTopic, Partition, TopicPartition,
};
use mainstem_tests::cluster::replica::ReplicaBatch;
use mainstem_tests::cluster::{Cluster, Setup, System};
use mainstem_tests::kafka_node::assert_kafka_finds_no_fault;
use mainstem_tests::wait::{TIMEOUT, explained};
use tokio::runtime::Runtime;

use super::load::Written;
use crate::cluster_snapshots::ready;

const RATE: &str = "follower.replication.throttled.rate";
/// Bytes a second at which a replica does not catch up in the time of a test.
const SLOW: u64 = 1_000;

/// The replicas that are wanted of partitions.
pub(super) type Targets = BTreeMap<TopicPartition, Vec<i32>>;

/// The replicas that are wanted of the first partitions of a topic.
pub(super) fn targets(topic: &str, replicas: &[&[i32]]) -> Targets {
    let of = |(index, nodes): (i32, &&[i32])| (TopicPartition::new(topic, index), nodes.to_vec());
    (0..).zip(replicas).map(of).collect()
}

/// The first partitions of a topic.
pub(super) fn partitions(topic: &str, count: usize) -> Vec<TopicPartition> {
    (0..).take(count).map(|index| TopicPartition::new(topic, index)).collect()
}

/// A topic whose replicas heed [`Scene::throttle`].
pub(super) fn throttled(topic: NewTopic) -> NewTopic {
    topic.config("follower.replication.throttled.replicas", "*")
}

/// Nodes, and a client of them.
pub(super) struct Scene {
    pub(super) cluster: Cluster,
    pub(super) runtime: Runtime,
    pub(super) admin: Admin,
}

impl Scene {
    /// Four nodes that soon delete what is not wanted.
    pub(super) fn start(name: &str, system: System) -> Scene {
        Scene::of(Scene::setup(name, system))
    }

    pub(super) fn setup(name: &str, system: System) -> Setup {
        Setup::new(name, system).nodes(4).set("log.segment.delete.delay.ms", 100)
    }

    pub(super) fn of(setup: Setup) -> Scene {
        let (cluster, runtime) = ready(setup);
        let admin = Admin::new(cluster.client());
        Scene { cluster, runtime, admin }
    }

    pub(super) fn create(&mut self, topic: &NewTopic) {
        self.runtime.block_on(self.admin.create_topic(topic)).expect("a topic");
        self.runtime.block_on(self.cluster.wait_until_in_sync(&topic.name));
    }

    /// Looks until there is a value. `look` returns why there is none as an error.
    ///
    /// # Panics
    /// When there is none in time.
    #[track_caller]
    pub(super) fn until<T>(&self, mut look: impl FnMut() -> Result<T, String>) -> T {
        let deadline = Instant::now() + TIMEOUT;
        let with_tails = |why: String| match Instant::now() < deadline {
            true => why,
            false => format!("{why}\n{}", self.cluster.tails()),
        };
        explained(TIMEOUT, || look().map_err(with_tails))
    }

    /// A partition as the metadata have it.
    pub(super) fn look_at(&self, partition: &TopicPartition) -> Result<Partition, Error> {
        let topic = self.runtime.block_on(self.admin.topic(&partition.topic))?;
        Ok(topic.partitions[partition.partition as usize].clone())
    }

    pub(super) fn leader(&self, partition: &TopicPartition) -> i32 {
        self.until(|| {
            let found = self.look_at(partition).map_err(|error| error.to_string())?;
            found.leader.ok_or_else(|| format!("{partition} has no leader"))
        })
    }

    /// Sets the rate at which replicas of throttled topics catch up.
    pub(super) fn throttle(&self) {
        self.set_rate(ConfigChange::Set(RATE.into(), SLOW.to_string()));
    }

    pub(super) fn unthrottle(&self) {
        self.set_rate(ConfigChange::Delete(RATE.into()));
    }

    fn set_rate(&self, change: ConfigChange) {
        let changed =
            self.admin.alter_configs(&ConfigResource::AllBrokers, std::slice::from_ref(&change), false);
        self.runtime.block_on(changed).expect("another rate");
    }

    /// Asks for replicas.
    pub(super) fn reassign(&self, targets: &Targets) {
        let wanted = targets.iter().map(|(partition, nodes)| (partition.clone(), Some(nodes.clone())));
        self.runtime.block_on(self.admin.reassign(&wanted.collect())).expect("replicas may move there");
    }

    /// Cancels moves.
    pub(super) fn cancel<'a>(
        &self,
        partitions: impl IntoIterator<Item = &'a TopicPartition>,
    ) -> Result<(), Error> {
        let none = partitions.into_iter().map(|partition| (partition.clone(), None));
        self.runtime.block_on(self.admin.reassign(&none.collect()))
    }

    /// Asks for replicas, and waits until they are there.
    #[track_caller]
    pub(super) fn move_to(&self, targets: &Targets) {
        self.reassign(targets);
        self.await_moved(targets);
    }

    /// The partitions that move now.
    pub(super) fn moving(&self) -> Result<BTreeSet<TopicPartition>, String> {
        let moves = self.runtime.block_on(self.admin.reassignments()).map_err(|error| error.to_string())?;
        Ok(moves.into_iter().map(|one| one.partition).collect())
    }

    /// Waits until these partitions move, and nodes have directories for what they are to get.
    #[track_caller]
    pub(super) fn await_begun(&self, targets: &Targets) {
        self.until(|| {
            let moving = self.moving()?;
            for (partition, nodes) in targets {
                if !moving.contains(partition) {
                    return Err(format!("{partition} does not move"));
                }
                if let Some(node) = nodes.iter().find(|node| self.dirs_of(partition, **node).is_empty()) {
                    return Err(format!("node {node} has nothing of {partition}"));
                }
            }
            Ok(())
        });
    }

    /// Waits until these are the replicas, all in sync, and nothing of them moves any more.
    #[track_caller]
    pub(super) fn await_moved(&self, targets: &Targets) {
        self.until(|| {
            let moving = self.moving()?;
            for (partition, wanted) in targets {
                let found = self.look_at(partition).map_err(|error| error.to_string())?;
                let isr: BTreeSet<_> = found.isr.iter().collect();
                let is_led = found.leader.is_some_and(|leader| wanted.contains(&leader));
                let is_there = found.replicas == *wanted && isr == wanted.iter().collect() && is_led;
                if !is_there || moving.contains(partition) {
                    return Err(format!(
                        "{partition} is to be on {wanted:?}, moving: {moving:?}, found: {found:?}"
                    ));
                }
            }
            Ok(())
        });
    }

    /// Names of directories on a node with files of a partition, whatever they are.
    pub(super) fn dirs_of(&self, partition: &TopicPartition, node: i32) -> Vec<String> {
        let (name, beside) = (partition.to_string(), format!("{partition}."));
        let entries = fs::read_dir(self.cluster.log_dir(node)).expect("a log directory");
        let names =
            entries.map(|entry| entry.expect("it can be listed").file_name().to_string_lossy().into_owned());
        names.filter(|other| *other == name || other.starts_with(&beside)).collect()
    }

    /// Waits until the replicas are equal and have all that was written, and until each node has files of its own replicas alone.
    #[track_caller]
    pub(super) fn assert_settled(&self, written: &Written, targets: &Targets) {
        for (partition, nodes) in targets {
            self.await_only_on(partition, nodes);
            self.assert_replicas(written, partition, nodes);
        }
    }

    /// Waits until the replicas on these nodes are equal and have all that was written.
    #[track_caller]
    pub(super) fn assert_replicas(&self, written: &Written, partition: &TopicPartition, nodes: &[i32]) {
        written.assert_has_all(partition, &self.equal_replicas(partition, nodes, written.end(partition)));
    }

    /// Waits until each of these nodes has one directory of a partition, and no other node has any.
    #[track_caller]
    pub(super) fn await_only_on(&self, partition: &TopicPartition, nodes: &[i32]) {
        self.until(|| {
            for node in self.cluster.ids() {
                let found = self.dirs_of(partition, node);
                let wanted = if nodes.contains(&node) { vec![partition.to_string()] } else { Vec::new() };
                if found != wanted {
                    return Err(format!("node {node} has {found:?}, not {wanted:?}"));
                }
            }
            Ok(())
        });
    }

    /// Waits until the replicas on these nodes are equal up to an end.
    #[track_caller]
    fn equal_replicas(&self, partition: &TopicPartition, nodes: &[i32], end: i64) -> Vec<ReplicaBatch> {
        self.until(|| {
            let replica = |node: &i32| self.cluster.replica_log(&partition.topic, partition.partition, *node);
            let mut replicas: Vec<_> = nodes.iter().map(replica).collect();
            let ends: Vec<_> = replicas.iter().map(|replica| replica.end()).collect();
            if ends.iter().any(|one| *one != end) {
                return Err(format!("{partition} ends at {ends:?} on {nodes:?}, not at {end}"));
            }
            let first = replicas.swap_remove(0).batches;
            match replicas.iter().all(|other| other.batches == first) {
                true => Ok(first),
                false => Err(format!("the replicas of {partition} on {nodes:?} differ")),
            }
        })
    }

    /// Asks for the preferred leaders, and waits until they lead.
    #[track_caller]
    pub(super) fn assert_led_by_the_first(&self, targets: &Targets) {
        let all: BTreeSet<_> = targets.keys().cloned().collect();
        self.until(|| {
            let elected = self.admin.elect_leaders(Election::Preferred, Some(&all));
            self.runtime.block_on(elected).map_err(|error| error.to_string())?;
            for (partition, nodes) in targets {
                let found = self.look_at(partition).map_err(|error| error.to_string())?;
                if found.leader != nodes.first().copied() {
                    return Err(format!("{partition} is not led by the first of {nodes:?}: {found:?}"));
                }
            }
            Ok(())
        });
    }

    /// Stops all nodes, and has Kafka's own tool look at their files.
    pub(super) fn stop_and_look_for_faults(mut self) {
        let nodes = self.cluster.ids();
        nodes.iter().for_each(|node| self.cluster.stop(*node));
        assert_kafka_finds_no_fault(
            &nodes.iter().map(|node| self.cluster.log_dir(*node)).collect::<Vec<_>>(),
        );
    }
}
