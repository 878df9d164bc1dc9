//! `kill -9` of any nodes of a cluster under load: what was acknowledged is on every replica, once, in order, at its offset,
//! and committed offsets never go back.
//!
//! Producers with acks=all and idempotence, members of groups that commit and a transactional loop go on over all
//! kills. What they do and see is a history, which the checker of the simulator judges. `TEST_CLUSTER_ROUNDS` is the number
//! of rounds, `TEST_SEED` repeats a run's choices (not its timing), `TEST_CLUSTER_SYSTEM=kafka` runs Apache Kafka in the
//! place of our nodes.

#[path = "cluster_kills/clients.rs"]
mod clients;
#[path = "cluster_kills/faults.rs"]
mod faults;
#[path = "cluster_kills/load.rs"]
mod load;
#[path = "cluster_kills/members.rs"]
mod members;
#[path = "cluster_kills/outcome.rs"]
mod outcome;
#[path = "cluster_kills/producers.rs"]
mod producers;
#[path = "cluster_kills/run.rs"]
mod run;
#[path = "cluster_kills/transactions.rs"]
mod transactions;

use std::sync::Arc;

use mainstem_tests::cluster::{Cluster, Setup, System};
use mainstem_tests::kafka_node::assert_kafka_finds_no_fault;
use mainstem_wire::sample::Rng;

use clients::RealClient;
use faults::{Fault, Pauses};
use load::{assert_no_actor_has_failed, start_actors};
use run::{IN, OUT, Phase, Run};

/// Rounds unless `TEST_CLUSTER_ROUNDS` says otherwise.
const ROUNDS: u64 = 20;
/// One with real clients, whose programs take their time to start, for so many of the others.
const OTHERS_FOR_ONE: u64 = 4;
/// One with pauses and partitions, which are noticed by time-outs.
const OTHERS_FOR_ONE_PARTITION: u64 = 2;
/// Rounds with the same cluster, all of whose history is kept in memory.
const ROUNDS_OF_A_CLUSTER: u64 = 50;

fn number_from(variable: &str) -> Option<u64> {
    let text = std::env::var(variable).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{variable} is a number, not {text}")))
}

#[test]
fn what_was_acknowledged_survives_kills_of_any_nodes() {
    run_rounds(Setup::new("cluster-kills", System::from_environment()), &[], 1);
}

#[test]
fn what_was_acknowledged_survives_pauses_and_partitions() {
    let setup = Setup::new("cluster-partitions", System::from_environment()).proxied();
    run_rounds(setup, &[], OTHERS_FOR_ONE_PARTITION);
}

#[test]
fn what_real_clients_had_acknowledged_survives_kills_of_any_nodes() {
    let clients: Vec<_> = RealClient::ALL.into_iter().filter(|client| client.is_installed()).collect();
    if !clients.is_empty() {
        let setup = Setup::new("cluster-kills-clients", System::from_environment());
        run_rounds(setup, &clients, OTHERS_FOR_ONE);
    }
}

/// A part of the rounds, with real clients beside our own.
fn run_rounds(setup: Setup, clients: &[RealClient], others_for_one: u64) {
    let seed = number_from("TEST_SEED").unwrap_or_else(|| mainstem_tests::kafka::wall_ms() as u64);
    let rounds = number_from("TEST_CLUSTER_ROUNDS").unwrap_or(ROUNDS);
    eprintln!("TEST_SEED={seed} TEST_CLUSTER_ROUNDS={rounds}");
    let rounds = rounds.div_ceil(others_for_one);
    let mut rng = Rng(seed);
    for begun in (0..rounds).step_by(ROUNDS_OF_A_CLUSTER as usize) {
        let Some(cluster) = setup.clone().start() else { return };
        let rounds = (rounds - begun).min(ROUNDS_OF_A_CLUSTER);
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
        let of_these = Rng(rng.next_u64());
        runtime.expect("a runtime").block_on(survives(cluster, clients, of_these, rounds));
    }
}

async fn survives(mut cluster: Cluster, clients: &[RealClient], mut rng: Rng, rounds: u64) {
    load::create_topics(&mut cluster).await;
    let run = Arc::new(Run::new());
    let mut actors = start_actors(&run, &cluster.client(), &mut rng);
    for client in clients.iter().copied() {
        let (bootstrap, folder) = (cluster.bootstrap(), cluster.home().to_owned());
        let rng = Rng(rng.next_u64());
        actors.spawn(clients::produce(run.clone(), client, bootstrap.clone(), folder.clone(), rng));
        actors.spawn(clients::member(run.clone(), client, bootstrap, folder));
    }
    let mut pauses = Pauses::default();
    for round in 0..rounds {
        run.wait_for_appends(20 + rng.below(100), &cluster).await;
        let fault = match cluster.has_proxies() {
            true => Fault::choose(&mut rng),
            false => Fault::choose_kill(&mut rng),
        };
        let pause = fault.carry_out(&mut cluster, &run, &mut rng).await;
        eprintln!("round {round}: {fault:?}, acknowledgements pause for {pause:?}");
        pauses.add(fault, pause);
        assert_no_actor_has_failed(&mut actors).await;
    }
    eprintln!("{pauses}");
    for topic in [IN, OUT, "__consumer_offsets", "__transaction_state"] {
        cluster.wait_until_in_sync(topic).await;
    }
    run.enter(Phase::Drain);
    outcome::read_to_the_ends(&run, &cluster, clients).await;
    run.enter(Phase::Stop);
    while let Some(ended) = actors.join_next().await {
        ended.expect("an actor");
    }
    outcome::read_replicas(&run, &cluster).await;
    outcome::check(&run, &cluster);
    // The last nodes of a cluster of Kafka wait for a controller that is gone.
    if cluster.system() == System::Mainstem {
        let ids = cluster.ids();
        ids.iter().for_each(|id| cluster.stop(*id));
        let log_dirs: Vec<_> = ids.iter().map(|id| cluster.log_dir(*id)).collect();
        // It takes a JVM for each kind of topic.
        if !clients.is_empty() {
            assert_kafka_finds_no_fault(&log_dirs);
        }
    }
}
