//! `mainstem cluster status`: nodes, votes, leaders, and what lacks replicas.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::time::Duration;

use anyhow::{Result, bail};
use clap::Args;
use mainstem_client::{Admin, BrokerDescription, Quorum};
use serde_json::{Value, json};
use tokio::net::TcpStream;

use super::NO_LEADER;
use super::levels::{Levels, MAINSTEM_VERSION};
use super::state::{Known, LastFetch, State};
use crate::output::{print, print_json, shown, table};
use crate::target::Target;

/// Partitions without a leader that are named; more are counted.
const NAMED_MAX: usize = 20;

/// The time to wait for a metadata leader: longer than an election takes.
const QUORUM_TIME: Duration = Duration::from_secs(4);
/// The time that a node has to accept a connection.
const CONNECT_TIME: Duration = Duration::from_secs(1);

/// Arguments of `cluster status`.
#[derive(Debug, Args)]
pub(crate) struct Status {
    /// Print JSON.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    target: Target,
}

/// The state of the cluster at one instant.
#[derive(Debug, Default)]
struct Found {
    id: String,
    metadata_leader: i32,
    metadata_epoch: i32,
    nodes: BTreeMap<i32, Node>,
    partitions: usize,
    /// Partitions with fewer replicas in sync than there are replicas.
    under_replicated: Vec<String>,
    without_leader: Vec<String>,
    /// Partitions with a leader and without a majority of replicas in sync: acks=all is refused.
    without_majority: Vec<String>,
    /// Nodes that accept no connection; asked for only while there is no metadata leader.
    unreachable: Vec<i32>,
    /// The asked broker is too old to say which nodes are fenced.
    is_fencing_unknown: bool,
    levels: Levels,
}

#[derive(Debug, Default)]
struct Node {
    /// None while the node is away.
    address: Option<String>,
    rack: Option<String>,
    known: Known,
    votes: bool,
    /// Records of the metadata log that it lacks, as far as the leader knows.
    metadata_lag: Option<i64>,
    leads: usize,
    replicas: usize,
    in_sync: usize,
    /// Partitions whose preferred leader it is, and that another node leads.
    preferred_elsewhere: usize,
}

/// Shows the cluster.
pub(crate) async fn run(status: &Status) -> Result<()> {
    let admin = status.target.connect().await?;
    let found = collect(&admin).await?;
    match status.json {
        true => print_json(&found.to_json())?,
        false => print(&found.to_text())?,
    }
    match found.why_no_leader() {
        None => Ok(()),
        Some(why) => bail!("no metadata leader: {why}"),
    }
}

async fn collect(admin: &Admin) -> Result<Found> {
    let cluster = admin.cluster_with_fenced().await?;
    let mut found = Found { id: cluster.cluster_id, metadata_leader: NO_LEADER, ..Found::default() };
    let brokers = cluster.brokers;
    for (id, broker) in &brokers {
        let node = found.nodes.entry(*id).or_default();
        node.address = Some(format!("{}:{}", broker.host, broker.port));
        node.rack = broker.rack.clone();
        (node.known.is_listed, node.known.is_fenced) = (true, broker.is_fenced);
        found.is_fencing_unknown |= broker.is_fenced.is_none();
    }
    for topic in admin.topics().await? {
        for partition in &topic.partitions {
            found.note(&topic.name, partition);
        }
    }
    let serving = brokers.iter().filter(|(_, broker)| broker.is_fenced != Some(true));
    found.levels = Levels::ask(admin, serving.map(|(id, _)| *id)).await;
    match tokio::time::timeout(QUORUM_TIME, admin.quorum()).await {
        Ok(quorum) => found.note_quorum(&quorum?),
        // No node knows the states then. The next best is which nodes can be reached from here.
        Err(_) => found.note_unreachable(unreachable(&brokers).await),
    }
    Ok(found)
}

/// The nodes that take no connection.
async fn unreachable(brokers: &BTreeMap<i32, BrokerDescription>) -> Vec<i32> {
    let mut silent = Vec::new();
    for (id, broker) in brokers {
        // A port outside of 16 bits becomes 0, which accepts no connection.
        let port = u16::try_from(broker.port).unwrap_or(0);
        let dialled = TcpStream::connect((broker.host.as_str(), port));
        let connected = tokio::time::timeout(CONNECT_TIME, dialled).await;
        if !connected.is_ok_and(|connected| connected.is_ok()) {
            silent.push(*id);
        }
    }
    silent
}

impl Found {
    /// Advice for a cluster without a metadata leader; none where there is one.
    fn why_no_leader(&self) -> Option<String> {
        if self.metadata_leader != NO_LEADER {
            return None;
        }
        let named = |id: &i32| match self.nodes.get(id).and_then(|node| node.address.as_ref()) {
            Some(address) => format!("{id} ({address})"),
            None => id.to_string(),
        };
        let unreachable: Vec<_> = self.unreachable.iter().map(named).collect();
        Some(match unreachable.is_empty() {
            true => "the nodes elect one, or do not reach each other; try again, and look at their logs"
                .to_owned(),
            false => format!(
                "a majority of the nodes is needed, and these cannot be reached from here: {}; start them, or look at the \
                 network",
                unreachable.join(", ")
            ),
        })
    }

    fn note_quorum(&mut self, quorum: &Quorum) {
        (self.metadata_leader, self.metadata_epoch) = (quorum.leader, quorum.leader_epoch);
        let end = quorum.voters.iter().filter_map(|voter| voter.log_end_offset).max().unwrap_or(0);
        for voter in &quorum.voters {
            let node = self.nodes.entry(voter.node).or_default();
            node.votes = true;
            node.metadata_lag = voter.log_end_offset.map(|offset| end - offset);
        }
        for (id, node) in &mut self.nodes {
            node.known.last_fetch = LastFetch::of(quorum, *id);
        }
    }

    fn note_unreachable(&mut self, unreachable: Vec<i32>) {
        for node in &unreachable {
            self.nodes.entry(*node).or_default().known.is_unreachable = true;
        }
        self.unreachable = unreachable;
    }

    fn note(&mut self, topic: &str, partition: &mainstem_client::Partition) {
        self.partitions += 1;
        let name = || format!("{topic}-{}", partition.index);
        if partition.isr.len() < partition.replicas.len() {
            self.under_replicated.push(name());
        }
        match partition.leader {
            Some(leader) => {
                self.nodes.entry(leader).or_default().leads += 1;
                if partition.isr.len() <= partition.replicas.len() / 2 {
                    self.without_majority.push(name());
                }
            }
            None => self.without_leader.push(name()),
        }
        for replica in &partition.replicas {
            let node = self.nodes.entry(*replica).or_default();
            node.replicas += 1;
            node.in_sync += usize::from(partition.isr.contains(replica));
        }
        if let Some(preferred) = partition.replicas.first().filter(|first| Some(**first) != partition.leader)
        {
            self.nodes.entry(*preferred).or_default().preferred_elsewhere += 1;
        }
    }

    fn to_json(&self) -> Value {
        let node = |(id, node): (&i32, &Node)| {
            let (state, silent_ms) = node.known.state().to_json();
            json!({
                "id": id,
                "address": node.address,
                "rack": node.rack,
                "state": state,
                "silent_ms": silent_ms,
                "fenced": node.known.is_fenced,
                "votes": node.votes,
                "leads_metadata": *id == self.metadata_leader,
                "metadata_lag": node.metadata_lag,
                "leads": node.leads,
                "replicas": node.replicas,
                "in_sync": node.in_sync,
                "preferred_led_elsewhere": node.preferred_elsewhere,
                "lowest_level": self.levels.nodes.get(id).map(RangeInclusive::start),
                "highest_level": self.levels.nodes.get(id).map(RangeInclusive::end),
            })
        };
        json!({
            "id": self.id,
            "metadata_leader": self.metadata_leader,
            "metadata_epoch": self.metadata_epoch,
            "level": self.levels.current,
            "nodes": self.nodes.iter().map(node).collect::<Value>(),
            "partitions": self.partitions,
            "under_replicated": self.under_replicated,
            "without_leader": self.without_leader,
            "without_majority": self.without_majority,
            "unreachable": self.unreachable,
        })
    }

    fn to_text(&self) -> String {
        let row = |(id, node): (&i32, &Node)| {
            let vote = match (node.votes, *id == self.metadata_leader) {
                (true, true) => "leader",
                (true, false) => "voter",
                (false, _) => "-",
            };
            let state = node.known.state();
            // A controller of Kafka that is no broker has no address for clients.
            let without_address = if state == State::Up { "-" } else { "not there" };
            let row = [
                id.to_string(),
                node.address.clone().unwrap_or_else(|| without_address.to_owned()),
                node.rack.clone().unwrap_or_else(|| "-".to_owned()),
                state.to_string(),
                vote.to_owned(),
                node.metadata_lag.map_or_else(|| "-".to_owned(), |lag| lag.to_string()),
                node.leads.to_string(),
                node.replicas.to_string(),
                node.in_sync.to_string(),
            ];
            row.into_iter().chain(self.levels.shown(*id)).collect()
        };
        let columns = [
            ">NODE",
            "ADDRESS",
            "RACK",
            "STATE",
            "METADATA",
            ">LAG",
            ">LEADS",
            ">REPLICAS",
            ">IN SYNC",
            "LEVEL",
        ];
        let columns = &columns[..columns.len() - usize::from(self.levels.current.is_none())];
        let leader = match self.metadata_leader {
            NO_LEADER => "no metadata leader".to_owned(),
            leader => format!("metadata leader {leader}"),
        };
        let level = self.levels.current.map_or(String::new(), |level| format!(", level {level}"));
        let mut lines = vec![
            format!("cluster {}, {leader}{level}", shown(&self.id)),
            table(columns, self.nodes.iter().map(row).collect()),
            String::new(),
        ];
        if self.is_fencing_unknown {
            lines.push(
                "which nodes are fenced is not known: the broker that was asked is too old to say it (DescribeCluster 2, Kafka 4.0)"
                    .to_owned(),
            );
        }
        let counts = [&self.under_replicated, &self.without_majority, &self.without_leader].map(Vec::len);
        lines.push(match counts {
            [0, 0, 0] => format!("{} partitions, all replicas in sync", self.partitions),
            [under, few, without] => format!(
                "{} partitions: {under} lack a replica, {few} have no majority in sync, {without} have no leader",
                self.partitions
            ),
        });
        let has_answered = |id: &i32| self.levels.nodes.contains_key(id);
        if let Some(higher) = self.levels.higher().filter(|_| self.nodes.keys().all(has_answered)) {
            lines.push(format!(
                "all nodes know level {higher} of {MAINSTEM_VERSION}: mainstem cluster finalize"
            ));
        }
        let named = [
            ("lack a replica", &self.under_replicated),
            ("no majority in sync", &self.without_majority),
            ("no leader", &self.without_leader),
        ];
        for (what, names) in named {
            if !names.is_empty() {
                let shown =
                    names.iter().take(NAMED_MAX).map(|name| shown(name)).collect::<Vec<_>>().join(", ");
                let more = names.len().saturating_sub(NAMED_MAX);
                let more = if more > 0 { format!(" and {more} more") } else { String::new() };
                lines.push(format!("{what}: {shown}{more}"));
            }
        }
        lines.join("\n")
    }
}

#[cfg(test)]
mod tests {
    use expect_test::expect;
    use mainstem_client::{Partition, QuorumReplica};

    use super::*;

    fn found(is_fenced: Option<bool>) -> Found {
        let mut found = Found { id: "c".into(), metadata_leader: NO_LEADER, ..Found::default() };
        for id in 1..=3 {
            let known = Known { is_listed: true, is_fenced, ..Known::default() };
            let node = Node { address: Some(format!("h:{id}")), known, ..Node::default() };
            found.nodes.insert(id, node);
        }
        found.is_fencing_unknown = is_fenced.is_none();
        found
    }

    #[test]
    fn each_node_has_a_state() {
        let mut all = found(Some(false));
        all.nodes.get_mut(&3).unwrap().known.is_fenced = Some(true);
        let replica = |node, last_fetch_ms| QuorumReplica {
            node,
            log_end_offset: Some(7),
            last_fetch_ms: Some(last_fetch_ms),
            last_caught_up_ms: None,
        };
        all.note_quorum(&Quorum {
            leader: 1,
            leader_epoch: 2,
            high_watermark: 7,
            voters: vec![replica(1, 60_000), replica(2, 55_000), replica(3, 18_000), replica(4, 59_700)],
            observers: Vec::new(),
        });
        expect![[r"
            cluster c, metadata leader 1
            NODE  ADDRESS  RACK  STATE                    METADATA  LAG  LEADS  REPLICAS  IN SYNC
               1  h:1      -     up                       leader      0      0         0        0
               2  h:2      -     silent for 5 s           voter       0      0         0        0
               3  h:3      -     fenced, silent for 42 s  voter       0      0         0        0
               4  -        -     up                       voter       0      0         0        0

            0 partitions, all replicas in sync"]]
        .assert_eq(&all.to_text());
        let json = all.to_json();
        let third = &json["nodes"][2];
        assert_eq!(
            (&third["state"], &third["silent_ms"], &third["fenced"]),
            (&json!("fenced"), &json!(42_000), &json!(true))
        );
    }

    #[test]
    fn a_level_that_all_nodes_know_is_named() {
        let mut all = found(Some(false));
        all.metadata_leader = 1;
        all.levels.current = Some(1);
        all.levels.nodes.extend([(1, 1..=2), (2, 1..=2)]);
        let text = all.to_text();
        assert!(text.starts_with("cluster c, metadata leader 1, level 1\n"), "{text}");
        assert!(text.contains("IN SYNC  LEVEL\n") && !text.contains("finalize"), "{text}");
        all.levels.nodes.insert(3, 1..=2);
        let text = all.to_text();
        assert!(text.contains("know level 2 of mainstem.version: mainstem cluster finalize"), "{text}");
        let json = all.to_json();
        let third = &json["nodes"][2];
        assert_eq!(
            (&json["level"], &third["lowest_level"], &third["highest_level"]),
            (&json!(1), &json!(1), &json!(2))
        );
    }

    #[test]
    fn a_broker_that_does_not_say_who_is_fenced_is_named_as_the_cause() {
        let mut old = found(None);
        assert!(old.to_text().contains("too old to say it (DescribeCluster 2"), "{}", old.to_text());
        assert!(!found(Some(false)).to_text().contains("too old"));
        old.note_unreachable(vec![2]);
        let states: Vec<_> = old.nodes.values().map(|node| node.known.state()).collect();
        assert_eq!(states, [State::Up, State::Unreachable, State::Up]);
    }

    #[test]
    fn partitions_are_named_by_what_they_lack() {
        let mut found = Found { id: "c".to_owned(), metadata_leader: 1, ..Found::default() };
        let isrs: [(i32, &[i32]); 4] = [(1, &[1, 2, 3]), (1, &[1, 2]), (1, &[1]), (-1, &[1])];
        for (index, (leader, isr)) in (0..).zip(isrs) {
            let leader = (leader > 0).then_some(leader);
            let partition =
                Partition { index, leader, leader_epoch: 1, replicas: vec![1, 2, 3], isr: isr.to_vec() };
            found.note("t", &partition);
        }
        let text = found.to_text();
        let (_, partitions) = text.rsplit_once("\n\n").expect("the nodes come first");
        assert_eq!(
            partitions,
            "4 partitions: 3 lack a replica, 1 have no majority in sync, 1 have no leader\n\
             lack a replica: t-1, t-2, t-3\n\
             no majority in sync: t-2\n\
             no leader: t-3"
        );
        assert_eq!(found.to_json()["without_majority"], json!(["t-2"]));
    }
}
