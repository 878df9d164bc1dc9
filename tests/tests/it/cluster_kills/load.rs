//! The load of a run: producers, members of groups, transactional loops.

use std::sync::Arc;

use mainstem_client::{Admin, ClientConfig, GroupProtocol, Isolation, NewTopic};
use mainstem_tests::cluster::Cluster;
use mainstem_wire::sample::Rng;
use tokio::task::JoinSet;

use crate::cluster_kills::clients::RealClient;
use crate::cluster_kills::members::{self, Member};
use crate::cluster_kills::run::{GROUPS, IN, LOOP, OUT, PARTITIONS, Run};
use crate::cluster_kills::{clients, loops, producers, transactions};

/// Topics of the coordinators.
pub(crate) const INTERNAL: [&str; 2] = ["__consumer_offsets", "__transaction_state"];
/// All topics of a run.
pub(crate) const TOPICS: [&str; 4] = [IN, OUT, INTERNAL[0], INTERNAL[1]];
/// The number of our own producers in each run.
const PRODUCERS: usize = 3;

/// Creates the topics of a run, when the cluster is ready.
pub(crate) async fn create_topics(cluster: &mut Cluster) {
    let description = cluster.wait_until_ready().await;
    eprintln!("cluster {} has {} nodes", description.cluster_id, description.brokers.len());
    let admin = Admin::new(cluster.client());
    for topic in [IN, OUT] {
        let topic = NewTopic { replication_factor: Some(3), ..NewTopic::new(topic).partitions(PARTITIONS) };
        admin
            .create_topic(&topic.config("min.insync.replicas", "2"))
            .await
            .expect("a topic of three replicas");
    }
    for topic in [IN, OUT] {
        cluster.wait_until_in_sync(topic).await;
    }
}

/// Real clients in a run.
#[derive(Debug, Clone, Default)]
pub(crate) struct Others {
    /// Clients with a producer, and a member in a group of its own.
    pub(crate) clients: Vec<RealClient>,
    /// Clients with a transactional loop, beside that of our own client. Each is in a group of its own; all read and write the same
    /// partitions.
    pub(crate) looping: Vec<RealClient>,
}

impl Others {
    /// The groups of a run whose commits can be looked at at any time, with the topic that they read: those of our
    /// own client, and of all transactional loops.
    pub(crate) fn watched_groups(&self) -> Vec<(u64, &'static str)> {
        let own = GROUPS.into_iter().map(|(group, topic, _)| (group, topic)).chain([(LOOP, IN)]);
        own.chain(self.looping.iter().map(|client| (client.group_of_loop(), IN))).collect()
    }

    /// The groups of a run, with the topic that they read.
    pub(crate) fn groups(&self) -> Vec<(u64, &'static str)> {
        let of_members = self.clients.iter().map(|client| (client.group(), IN));
        self.watched_groups().into_iter().chain(of_members).collect()
    }
}

/// Starts all actors that run over the faults: those of our own client, and real clients.
pub(crate) fn start_actors(run: &Arc<Run>, cluster: &Cluster, others: &Others, rng: &mut Rng) -> JoinSet<()> {
    let mut actors = start_own(run, &cluster.client(), rng);
    actors.spawn(members::watch_commits(run.clone(), cluster.client(), others.watched_groups()));
    let (bootstrap, folder) = (cluster.bootstrap(), cluster.home().to_owned());
    for client in others.looping.iter().copied() {
        run.expect_commits(client.transactional_loop());
        actors.spawn(loops::process(run.clone(), client, bootstrap.clone(), folder.clone()));
    }
    for client in others.clients.iter().copied() {
        run.expect_progress(client.producer(), client.member());
        let (bootstrap, folder) = (bootstrap.clone(), folder.clone());
        let rng = Rng(rng.next_u64());
        actors.spawn(clients::produce(run.clone(), client, bootstrap.clone(), folder.clone(), rng));
        actors.spawn(clients::member(run.clone(), client, bootstrap, folder));
    }
    actors
}

fn start_own(run: &Arc<Run>, client: &ClientConfig, rng: &mut Rng) -> JoinSet<()> {
    let mut actors = JoinSet::new();
    for _ in 0..PRODUCERS {
        actors.spawn(producers::produce(run.clone(), client.clone(), Rng(rng.next_u64())));
    }
    let protocols = [GroupProtocol::Classic, GroupProtocol::Consumer { assignor: None }];
    for ((group, topic, isolation), protocol) in GROUPS.into_iter().zip(protocols) {
        for _ in 0..2 {
            let (run, client, protocol) = (run.clone(), client.clone(), protocol.clone());
            actors.spawn(Member { run, client, group, topic, isolation, protocol }.go_on());
        }
    }
    actors.spawn(transactions::process(run.clone(), client.clone(), Rng(rng.next_u64())));
    actors
}

/// Asserts that no actor has ended: an actor runs until it is asked to stop, unless it has found a fault.
pub(crate) async fn assert_no_actor_has_failed(actors: &mut JoinSet<()>) {
    if let Some(ended) = actors.try_join_next() {
        ended.expect("an actor");
        panic!("an actor has ended by itself");
    }
}

/// The isolation level for a topic.
pub(crate) fn isolation_of(topic: &str) -> Isolation {
    if topic == OUT { Isolation::ReadCommitted } else { Isolation::ReadUncommitted }
}
