//! The time in which coordinators load the offsets of groups, after `kill -9` of the node that had them.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use super::super::{Case, Measured};
use crate::broker::nodes::Nodes;
use crate::connection::Connection;
use crate::load::cluster::retry;
use crate::protocol::error;
use crate::protocol::group::{self, Coordinator, Membership};

const GROUPS: usize = 1_000;
/// Partitions that each group commits at once.
const PARTITIONS: i32 = 100;
/// Commits of each group: 50,000 requests with 5,000,000 offsets.
const ROUNDS: i64 = 50;
/// Commits that a connection has under way.
const UNDER_WAY: usize = 8;
/// Connections to each node.
const CONNECTIONS: usize = 2;
/// The default of `offsets.topic.num.partitions`.
const OFFSETS_PARTITIONS: i32 = 50;
/// Time of rest after the commits, in which logs are compacted as far as the defaults of a system have it.
const SETTLE: Duration = Duration::from_secs(20);
/// Pause between two looks at all groups.
const LOOK_EVERY: Duration = Duration::from_millis(2);
/// The longest time until a group's coordinator serves.
const SERVES_MAX: Duration = Duration::from_secs(120);

/// Kills the first node, and looks how long it takes until the groups that it had can be asked for their offsets.
pub(super) fn run(case: &Case<'_>, nodes: &mut Nodes) -> Result<Measured> {
    let name = nodes.next_topic();
    super::topic(case, nodes, &name, PARTITIONS)?;
    let memberships: Vec<_> = (0..GROUPS)
        .map(|number| Membership {
            group: format!("group-{number}"),
            topic: name.clone(),
            member_id: String::new(),
            generation: -1,
        })
        .collect();
    let by_port = by_coordinator(&nodes.addresses, &memberships)?;
    let (addresses, begin) = (nodes.addresses.clone(), Instant::now());
    thread::scope(|scope| {
        let mut committers = Vec::new();
        for (port, groups) in &by_port {
            for part in groups.chunks(groups.len().div_ceil(CONNECTIONS)) {
                committers.push(scope.spawn(move || commit_all(*port, part)));
            }
        }
        let join = |one: thread::ScopedJoinHandle<'_, Result<()>>| {
            one.join().map_err(|_| anyhow::anyhow!("a committer panicked"))?
        };
        committers.into_iter().try_for_each(join)
    })?;
    let commits_per_s =
        (GROUPS as f64 * f64::from(PARTITIONS) * ROUNDS as f64) / begin.elapsed().as_secs_f64();
    thread::sleep(SETTLE);
    let lost = by_port.get(&addresses[0].port()).context("the first node coordinates no group")?;
    // One group of each partition that gets another leader.
    let asked: BTreeMap<i32, &str> =
        lost.iter().map(|membership| (partition_for(&membership.group), &*membership.group)).collect();
    let mut survivors = [1, 2].map(|number| Survivor { address: addresses[number], connection: None });
    let killed = Instant::now();
    nodes.kill(0);
    let times = wait_for_all(asked.into_values(), &mut survivors, killed)?;
    let ms = |time: Duration| time.as_secs_f64() * 1_000.0;
    let most = |of: fn(&Times) -> Duration| times.iter().map(of).max().map_or(0.0, ms);
    let shortest = times.iter().map(Times::load).min().map_or(0.0, ms);
    Ok(Measured::of([
        ("commits_per_s", commits_per_s),
        ("elected_ms", most(|times| times.elected)),
        ("load_ms", most(Times::load)),
        ("shortest_load_ms", shortest),
        ("offsets_ms", most(|times| times.answered)),
    ]))
}

/// Groups by the port of their coordinator. Each of them has committed once.
fn by_coordinator(
    nodes: &[SocketAddr],
    memberships: &[Membership],
) -> Result<BTreeMap<u16, Vec<Membership>>> {
    let mut by_port = BTreeMap::<u16, Vec<Membership>>::new();
    let mut asked = Connection::open(nodes[0])?;
    for membership in memberships {
        let port = retry(Instant::now() + SERVES_MAX, || {
            let Coordinator { error_code, port } = group::find_coordinator(&mut asked, &membership.group)?;
            ensure!(error_code == error::NONE, "no coordinator yet: Kafka's error code {error_code}");
            Ok(port)
        });
        by_port.entry(port.context("the coordinator of a group")?).or_default().push(membership.clone());
    }
    for (port, groups) in &by_port {
        let mut connection = Connection::open(SocketAddr::from((Ipv4Addr::LOCALHOST, *port)))?;
        for membership in groups {
            let first = || group::commit(&mut connection, membership, &[(0, 0)]);
            retry(Instant::now() + SERVES_MAX, first).context("the first commit of a group")?;
        }
    }
    Ok(by_port)
}

/// Commits all rounds of some groups of one coordinator.
fn commit_all(port: u16, groups: &[Membership]) -> Result<()> {
    let mut connection = Connection::open(SocketAddr::from((Ipv4Addr::LOCALHOST, port)))?;
    let mut under_way = 0;
    for round in 0..ROUNDS {
        let positions: Vec<_> = (0..PARTITIONS).map(|partition| (partition, round)).collect();
        for membership in groups {
            if under_way == UNDER_WAY {
                group::take_committed(&mut connection, positions.len())?;
                under_way -= 1;
            }
            group::send_commit(&mut connection, membership, &positions)?;
            under_way += 1;
        }
    }
    (0..under_way).try_for_each(|_| group::take_committed(&mut connection, PARTITIONS as usize))
}

/// A node that runs on.
#[derive(Debug)]
struct Survivor {
    address: SocketAddr,
    connection: Option<Connection>,
}

impl Survivor {
    fn connection(&mut self) -> Result<&mut Connection> {
        let connection = match self.connection.take() {
            Some(connection) => connection,
            None => Connection::open(self.address)?,
        };
        Ok(self.connection.insert(connection))
    }
}

/// Times of a group since its coordinator was killed.
#[derive(Debug, Clone, Copy)]
struct Times {
    /// A node named another coordinator.
    elected: Duration,
    /// That one has answered with the offsets.
    answered: Duration,
}

impl Times {
    /// From the one to the other.
    fn load(&self) -> Duration {
        self.answered - self.elected
    }
}

/// Asks for groups until all have answered.
fn wait_for_all<'g>(
    groups: impl Iterator<Item = &'g str>,
    survivors: &mut [Survivor],
    killed: Instant,
) -> Result<Vec<Times>> {
    let mut waiting: Vec<(&str, Option<Duration>)> = groups.map(|group| (group, None)).collect();
    let mut times = Vec::new();
    while !waiting.is_empty() {
        ensure!(killed.elapsed() < SERVES_MAX, "{} groups have no coordinator", waiting.len());
        let mut rest = Vec::new();
        for (group, elected) in waiting {
            let Coordinator { error_code, port } =
                group::find_coordinator(survivors[0].connection()?, group)?;
            let coordinator = survivors.iter_mut().find(|node| node.address.port() == port);
            let Some(coordinator) = coordinator.filter(|_| error_code == error::NONE) else {
                rest.push((group, elected));
                continue;
            };
            let elected = elected.unwrap_or_else(|| killed.elapsed());
            let (error_code, positions) = group::fetch(coordinator.connection()?, group)?;
            if error_code != error::NONE {
                rest.push((group, Some(elected)));
                continue;
            }
            let is_last = |(_, position): &(i32, i64)| *position == ROUNDS - 1;
            let are_all = positions.len() == PARTITIONS as usize && positions.iter().all(is_last);
            ensure!(are_all, "{group} has other offsets than it has committed: {positions:?}");
            times.push(Times { elected, answered: killed.elapsed() });
        }
        waiting = rest;
        thread::sleep(LOOK_EVERY);
    }
    Ok(times)
}

/// The partition of `__consumer_offsets` of a group: by Java's hash of its name.
fn partition_for(group: &str) -> i32 {
    let hash = group.bytes().fold(0_i32, |hash, byte| hash.wrapping_mul(31).wrapping_add(i32::from(byte)));
    hash.checked_abs().unwrap_or(0) % OFFSETS_PARTITIONS
}
