//! The nodes that are a cluster (`controller.quorum.voters`).

use std::fmt;

use super::listeners::Listeners;
use super::problem::Problem;

/// Nodes that one cluster may have: each connects to each.
const VOTERS_MAX: usize = 15;

/// A node of a cluster, as the others reach it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Voter {
    /// Its `node.id`.
    pub id: i32,
    /// A name or address without brackets.
    pub host: String,
    /// The port of its controller's listener.
    pub port: u16,
}

impl fmt::Display for Voter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (open, close) = if self.host.contains(':') { ("[", "]") } else { ("", "") };
        write!(f, "{}@{open}{}{close}:{}", self.id, self.host, self.port)
    }
}

/// The nodes of a cluster.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Quorum {
    /// By id, ascending; each id and each address once.
    pub voters: Vec<Voter>,
}

impl fmt::Display for Quorum {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, voter) in self.voters.iter().enumerate() {
            write!(f, "{}{voter}", if at > 0 { "," } else { "" })?;
        }
        Ok(())
    }
}

impl Quorum {
    /// The node of an id.
    pub fn voter(&self, id: i32) -> Option<&Voter> {
        self.voters.iter().find(|voter| voter.id == id)
    }

    /// The ids, ascending.
    pub fn ids(&self) -> impl Iterator<Item = i32> + '_ {
        self.voters.iter().map(|voter| voter.id)
    }

    pub(super) fn parse(texts: &[String]) -> Result<Quorum, Problem> {
        let mut voters = texts.iter().map(|text| parse_voter(text)).collect::<Result<Vec<_>, _>>()?;
        voters.sort_unstable();
        for (at, voter) in voters.iter().enumerate() {
            let is_same = |other: &&Voter| {
                other.id == voter.id || (&other.host, other.port) == (&voter.host, voter.port)
            };
            if let Some(other) = voters[..at].iter().find(is_same) {
                return Err(invalid(texts, &format!("{other} and {voter} are the same node or address")));
            }
        }
        if voters.len() > VOTERS_MAX {
            return Err(invalid(texts, &format!("a cluster has at most {VOTERS_MAX} nodes")));
        }
        Ok(Quorum { voters })
    }

    /// The quorum if it has other nodes than this one, and this release can serve it.
    pub(super) fn of_several(
        self,
        own: i32,
        roles: &[String],
        listeners: &Listeners,
    ) -> Result<Option<Quorum>, Problem> {
        if self.voters.is_empty() || matches!(self.voters.as_slice(), [only] if only.id == own) {
            return Ok(None);
        }
        if self.voter(own).is_none() {
            return Err(Problem::new(format!(
                "node.id={own} is not among controller.quorum.voters={self}: nodes that do not vote are not served yet; \
                 add {own}@HOST:PORT on every node, or correct node.id"
            )));
        }
        if roles.len() < 2 {
            return Err(Problem::new(format!(
                "process.roles={} with other nodes in controller.quorum.voters: nodes with one role are not served yet; \
                 set process.roles=broker,controller",
                roles.join(",")
            )));
        }
        if listeners.controller.is_none() {
            return Err(Problem::new(
                "controller.quorum.voters names other nodes, and there is no listener for them: name one in \
                 controller.listener.names, and its address in listeners (CONTROLLER://HOST:PORT)",
            ));
        }
        Ok(Some(self))
    }
}

fn parse_voter(text: &str) -> Result<Voter, Problem> {
    let refused = || invalid(&[text.to_string()], "each voter is ID@HOST:PORT, such as 1@127.0.0.1:9093");
    let (id, address) = text.trim().split_once('@').ok_or_else(refused)?;
    let (host, port) = address.rsplit_once(':').ok_or_else(refused)?;
    let host =
        host.strip_prefix('[').map_or(Some(host), |inner| inner.strip_suffix(']')).ok_or_else(refused)?;
    let id = id.parse().ok().filter(|id: &i32| *id >= 0).ok_or_else(refused)?;
    let port = port.parse().ok().filter(|port: &u16| *port > 0).ok_or_else(refused)?;
    if host.is_empty() || host == "0.0.0.0" || host == "::" {
        return Err(invalid(&[text.to_string()], "other nodes cannot reach this address"));
    }
    Ok(Voter { id, host: host.to_string(), port })
}

fn invalid(texts: &[String], why: &str) -> Problem {
    let shown = texts.join(",");
    Problem::new(format!("Invalid value {shown} for configuration controller.quorum.voters: {why}"))
}

#[cfg(test)]
mod tests {
    use super::super::broker::BrokerConfig;
    use super::super::properties::Properties;
    use super::super::sources::Sources;

    const NODE: &str = "process.roles=broker,controller\nnode.id=2\ncontroller.listener.names=CONTROLLER\n\
                        listeners=PLAINTEXT://127.0.0.1:9092,CONTROLLER://127.0.0.1:9093\n";

    fn build(lines: &str) -> Result<BrokerConfig, String> {
        let file =
            Properties::parse(format!("{NODE}{lines}").as_bytes()).expect("the test's file is well formed");
        let sources = Sources { file: Some(&file), ..Sources::default() };
        BrokerConfig::from_sources(sources).map_err(|error| error.to_string())
    }

    #[track_caller]
    fn check(lines: &str, expect: &str) {
        let shown = match build(lines) {
            Ok(config) => config.quorum.map_or("one node".to_string(), |quorum| quorum.to_string()),
            Err(error) => error,
        };
        assert!(shown.contains(expect), "{lines}: {shown}");
    }

    #[test]
    fn voters_are_a_cluster_in_the_order_of_their_ids() {
        let config = build("controller.quorum.voters=3@c:3,1@a:1, 2@[::1]:2").expect("valid");
        let quorum = config.quorum.expect("several nodes");
        assert_eq!(quorum.to_string(), "1@a:1,2@[::1]:2,3@c:3");
        assert_eq!(config.listeners.controller.expect("it is named").port, 9093);
        assert_eq!(config.listeners.open.len(), 1, "clients do not come by it");
        let transactions = &config.transactions;
        assert_eq!(
            (
                config.offsets.topic_replication_factor,
                transactions.topic_replication_factor,
                transactions.topic_min_isr
            ),
            (3, 3, 2)
        );
        let config = build("controller.quorum.voters=3@c:3,1@a:1,2@b:2\noffsets.topic.replication.factor=1");
        assert_eq!(config.expect("valid").offsets.topic_replication_factor, 1, "it was set");
    }

    #[test]
    fn one_node_is_no_cluster() {
        check("", "one node");
        check("controller.quorum.voters=2@localhost:9093", "one node");
        check("controller.quorum.bootstrap.servers=localhost:9093", "one node");
    }

    #[test]
    fn what_cannot_be_a_cluster_is_refused() {
        check("controller.quorum.voters=1@a:1,1@b:1", "1@a:1 and 1@b:1 are the same node or address");
        check("controller.quorum.voters=1@a:1,2@a:1", "the same node or address");
        for wrong in ["a:1", "1@a", "x@a:1", "-1@a:1", "1@a:0", "1@a:70000", "1@[::1:5"] {
            check(&format!("controller.quorum.voters={wrong}"), "each voter is ID@HOST:PORT");
        }
        check("controller.quorum.voters=1@0.0.0.0:1,2@b:2", "other nodes cannot reach this address");
        check(
            "controller.quorum.voters=1@a:1,3@c:3",
            "node.id=2 is not among controller.quorum.voters=1@a:1,3@c:3",
        );
        let voters = "controller.quorum.voters=1@a:1,2@b:2\n";
        check(&format!("{voters}process.roles=broker"), "nodes with one role are not served yet");
        check(&format!("{voters}listeners=PLAINTEXT://:9092"), "there is no listener for them");
        check("controller.quorum.bootstrap.servers=a:1,b:2", "name all nodes in controller.quorum.voters");
        let many: Vec<_> = (1..=16).map(|id| format!("{id}@h:{id}")).collect();
        check(&format!("controller.quorum.voters={}", many.join(",")), "at most 15 nodes");
    }
}
