//! `kill -9`, pauses and partitions of any nodes of a cluster under load. Acknowledged records are on every replica,
//! once, in order, at their offsets, and committed offsets never go back. Real clients see no error during a rolling
//! restart.
//!
//! Producers with acks=all and idempotence, members of groups that commit, and transactional loops run over all
//! faults: those of our own client, and real clients. Their operations and results form a history, which the checker
//! of the simulator judges. `TEST_CLUSTER_ROUNDS` is the number of rounds, `TEST_SEED` repeats a run's choices (not
//! its timing), `TEST_CLUSTER_SYSTEM=kafka` runs Apache Kafka in place of our nodes.

pub(crate) mod clients;
pub(crate) mod faults;
pub(crate) mod load;
pub(crate) mod loops;
pub(crate) mod members;
pub(crate) mod outcome;
pub(crate) mod producers;
pub(crate) mod run;
pub(crate) mod transactions;

use std::sync::Arc;

use mainstem_tests::cluster::{Cluster, Setup, System};
use mainstem_tests::hostile::is_long;
use mainstem_wire::sample::Rng;
use tokio::task::JoinSet;

use clients::RealClient;
use faults::{Fault, Pauses};
use load::{Others, TOPICS, assert_no_actor_has_failed, start_actors};
use run::Run;

/// The default of `TEST_CLUSTER_ROUNDS`.
const ROUNDS: u64 = 20;
/// Other rounds for one with pauses and partitions, which nodes notice by timeouts.
const OTHERS_FOR_ONE_PARTITION: u64 = 2;
/// Other rounds for one with each kind of fault and real clients. Their programs start slowly and wait for timeouts of their own.
const OTHERS_FOR_ONE_OF_EACH: u64 = 20;
/// Rounds with the same cluster, whose history is all in memory.
const ROUNDS_OF_A_CLUSTER: u64 = 50;

fn number_from(variable: &str) -> Option<u64> {
    let text = std::env::var(variable).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{variable} is a number, not {text}")))
}

/// A share of the rounds asked for.
fn rounds(others_for_one: u64) -> u64 {
    number_from("TEST_CLUSTER_ROUNDS").unwrap_or(ROUNDS).div_ceil(others_for_one)
}

/// Rounds with real clients in which each of these kinds comes at least once.
fn rounds_of_each(kinds: &[Fault]) -> u64 {
    kinds.len() as u64 * rounds(OTHERS_FOR_ONE_OF_EACH)
}

/// Those of these clients that are installed.
pub(crate) fn installed(clients: &[RealClient]) -> Vec<RealClient> {
    clients.iter().copied().filter(|client| client.is_installed()).collect()
}

#[test]
fn what_was_acknowledged_survives_kills_of_any_nodes() {
    run_rounds(Setup::new("cluster-kills", System::from_environment()), &Others::default(), rounds(1));
}

#[test]
fn what_was_acknowledged_survives_pauses_and_partitions() {
    let setup = Setup::new("cluster-partitions", System::from_environment()).proxied();
    run_rounds(setup, &Others::default(), rounds(OTHERS_FOR_ONE_PARTITION));
}

/// Kills of each kind, with all real clients that are installed, and transactional loops of Java's client and librdkafka.
#[test]
fn what_real_clients_had_acknowledged_survives_kills_beside_their_transactional_loops() {
    let others =
        Others { clients: installed(&RealClient::ALL), looping: installed(&RealClient::OF_ALL_FAULTS) };
    if !others.clients.is_empty() {
        let setup = Setup::new("cluster-kills-clients", System::from_environment());
        run_rounds(setup, &others, rounds_of_each(&Fault::KILLS));
    }
}

#[test]
fn what_real_clients_had_acknowledged_survives_pauses_and_partitions() {
    let clients = installed(&RealClient::OF_ALL_FAULTS);
    // Transactional loops only in long runs: a fault may hold them up for as long as their transactions last.
    let looping = if is_long() { clients.clone() } else { Vec::new() };
    let others = Others { clients, looping };
    if !others.clients.is_empty() {
        let setup = Setup::new("cluster-partitions-clients", System::from_environment()).proxied();
        run_rounds(setup, &others, rounds_of_each(&Fault::DISTURBANCES));
    }
}

/// One node after the other stops in order and starts again, when `/health` says that it may. Each record of the
/// producers is acknowledged, and no call of the members fails.
#[test]
fn a_rolling_restart_is_no_error_to_real_clients() {
    let others = Others { clients: installed(&RealClient::OF_ALL_FAULTS), looping: Vec::new() };
    let setup = Setup::new("cluster-rolling-clients", System::from_environment());
    let setup = setup.set("mainstem.http.listener", "127.0.0.1:0");
    let Some(cluster) = setup.start().filter(|_| !others.clients.is_empty()) else { return };
    runtime().block_on(rolls(cluster, &others, random()));
}

pub(crate) fn runtime() -> tokio::runtime::Runtime {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    runtime.expect("a runtime")
}

/// The choices of a run, by a seed that is printed.
pub(crate) fn random() -> Rng {
    Rng(mainstem_testkit::seed())
}

/// Runs so many rounds, with real clients beside our own.
fn run_rounds(setup: Setup, others: &Others, rounds: u64) {
    let mut rng = random();
    for begun in (0..rounds).step_by(ROUNDS_OF_A_CLUSTER as usize) {
        let Some(cluster) = setup.clone().start() else { return };
        let rounds = (rounds - begun).min(ROUNDS_OF_A_CLUSTER);
        let of_these = Rng(rng.next_u64());
        runtime().block_on(survives(cluster, others, of_these, rounds));
    }
}

async fn survives(mut cluster: Cluster, others: &Others, mut rng: Rng, rounds: u64) {
    load::create_topics(&mut cluster).await;
    let run = Arc::new(Run::new());
    let mut actors = start_actors(&run, &cluster, others, &mut rng);
    run.wait_for_begun_clients(&cluster).await;
    let mut pauses = Pauses::default();
    for round in 0..rounds {
        run.wait_for_appends(20 + rng.below(100), &cluster).await;
        let fault = match cluster.has_proxies() {
            true => Fault::choose(round, &mut rng),
            false => Fault::choose_kill(round, &mut rng),
        };
        let pause = fault.carry_out(&mut cluster, &run, &mut rng).await;
        eprintln!("round {round}: {fault:?}, acknowledgements pause for {pause:?}");
        pauses.add(fault, pause);
        assert_no_actor_has_failed(&mut actors).await;
    }
    eprintln!("{pauses}");
    outcome::finish(&run, &mut cluster, actors, others).await;
}

async fn rolls(mut cluster: Cluster, others: &Others, mut rng: Rng) {
    load::create_topics(&mut cluster).await;
    let run = Arc::new(Run::new());
    let mut actors = start_actors(&run, &cluster, others, &mut rng);
    run.wait_for_begun_clients(&cluster).await;
    for node in cluster.ids() {
        stop_in_order(&mut cluster, &run, node).await;
        start_again(&mut cluster, &run, node, &mut actors).await;
    }
    outcome::finish(&run, &mut cluster, actors, others).await;
    assert_eq!(run.errors(), [""; 0], "see the clients' logs in {}", cluster.home().display());
}

/// Stops a node in order, when it says that it may stop. All clients make progress without it.
pub(crate) async fn stop_in_order(cluster: &mut Cluster, run: &Run, node: i32) {
    // Apache Kafka has no such answer.
    if cluster.system() == System::Mainstem {
        cluster.wait_until_may_stop(node);
    }
    let before = run.progress();
    cluster.stop(node);
    run.wait_for_clients_after(&before, cluster).await;
}

/// Starts a node again. Its replicas get in sync, and all clients make progress.
pub(crate) async fn start_again(cluster: &mut Cluster, run: &Run, node: i32, actors: &mut JoinSet<()>) {
    cluster.start_node(node);
    for topic in TOPICS {
        cluster.wait_until_in_sync(topic).await;
    }
    run.wait_for_clients_after(&run.progress(), cluster).await;
    assert_no_actor_has_failed(actors).await;
}
