//! Groups that commit by a schedule for long, and what `__consumer_offsets` keeps of it on the disk of a node.

use std::fs;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use super::super::{Case, Measured};
use crate::broker::nodes::Nodes;
use crate::connection::Connection;
use crate::load::cluster::retry;
use crate::protocol::error;
use crate::protocol::group::{self, Coordinator, Membership};
use crate::sampler::MIB;

const GROUPS: usize = 10;
/// Commits of all groups per second.
const COMMITS_PER_S: u32 = 1_000;
const PARTITIONS: i32 = 18;
/// The part of the time that the first size is of: ten minutes of an hour.
const FIRST: u32 = 6;
/// Interval between two looks at the sizes.
const SAMPLE_EVERY: Duration = Duration::from_secs(1);
/// The longest time until a group's coordinator serves.
const SERVES_MAX: Duration = Duration::from_secs(60);

/// Commits for the time of a soak.
pub(super) fn run(case: &Case<'_>, nodes: &mut Nodes) -> Result<Measured> {
    let name = nodes.next_topic();
    super::topic(case, nodes, &name, PARTITIONS)?;
    let (begin, length) = (Instant::now(), case.extent.soak);
    let addresses = nodes.addresses.clone();
    thread::scope(|scope| {
        let commit = |number| {
            let (addresses, name) = (&addresses, &name);
            scope.spawn(move || Committer::new(addresses, name, number)?.run(begin + length))
        };
        let committers: Vec<_> = (0..GROUPS).map(commit).collect();
        // Segments are closed and compacted all the time: the most of a time says more than what is there at its end.
        let most_until = |end: Duration| {
            let mut most = 0;
            while begin.elapsed() < end {
                thread::sleep(SAMPLE_EVERY.min(end.saturating_sub(begin.elapsed())));
                for folder in nodes.folders() {
                    most = most.max(kept_bytes(folder)?);
                }
            }
            Ok::<_, anyhow::Error>(most)
        };
        let sizes = [length / FIRST, length].map(most_until);
        let mut commits = 0;
        for committer in committers {
            commits += committer.join().map_err(|_| anyhow::anyhow!("a committer panicked"))??;
        }
        let [first, later] = sizes;
        let first = first? as f64;
        let most = first.max(later? as f64);
        Ok(Measured::of([
            ("commits_per_s", commits as f64 / length.as_secs_f64()),
            ("kept_first_mib", first / MIB),
            ("kept_most_mib", most / MIB),
            ("kept_growth", most / first),
        ]))
    })
}

/// A group that commits one partition after the other, without members.
struct Committer {
    connection: Connection,
    membership: Membership,
}

impl Committer {
    /// Connects to the coordinator of the group with this number.
    fn new(nodes: &[SocketAddr], topic: &str, number: usize) -> Result<Self> {
        let group = format!("group-{number}");
        let membership =
            Membership { group, topic: topic.to_owned(), member_id: String::new(), generation: -1 };
        let connection = retry(Instant::now() + SERVES_MAX, || {
            let asked = &mut Connection::open(nodes[number % nodes.len()])?;
            let Coordinator { error_code, port } = group::find_coordinator(asked, &membership.group)?;
            ensure!(
                error_code == error::NONE,
                "the coordinator is not there: Kafka's error code {error_code}"
            );
            let mut connection = Connection::open(SocketAddr::from((Ipv4Addr::LOCALHOST, port)))?;
            group::commit(&mut connection, &membership, &[(0, 0)]).map(|()| connection)
        });
        Ok(Self { connection: connection.context("the first commit of a group")?, membership })
    }

    /// Commits by the schedule; returns the number of commits.
    fn run(mut self, until: Instant) -> Result<u64> {
        let interval = Duration::from_secs(1) * GROUPS as u32 / COMMITS_PER_S;
        let (mut due, mut commits) = (Instant::now(), 0);
        while due < until {
            thread::sleep(due.saturating_duration_since(Instant::now()));
            let partition = (commits % PARTITIONS as u64) as i32;
            group::commit(&mut self.connection, &self.membership, &[(partition, commits as i64)])?;
            commits += 1;
            due += interval;
        }
        Ok(commits)
    }
}

/// Bytes of records in all partitions of `__consumer_offsets` of a node.
fn kept_bytes(folder: &Path) -> Result<u64> {
    let mut bytes = 0;
    for partition in fs::read_dir(folder.join("data"))? {
        let partition = partition?;
        if !partition.file_name().to_string_lossy().starts_with("__consumer_offsets-") {
            continue;
        }
        for file in fs::read_dir(partition.path())? {
            let file = file?;
            let is_log = file.path().extension().is_some_and(|extension| extension == "log");
            // A file may be removed while they are counted.
            bytes += file.metadata().ok().filter(|_| is_log).map_or(0, |metadata| metadata.len());
        }
    }
    ensure!(bytes > 0, "{} has no committed offsets", folder.display());
    Ok(bytes)
}
