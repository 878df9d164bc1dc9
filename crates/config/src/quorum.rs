//! The nodes that are a cluster (`controller.quorum.voters`), or by which a node finds the one that it joins
//! (`controller.quorum.bootstrap.servers`).

use std::fmt;

use super::listeners::{HostPort, Listeners};
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
        write!(f, "{}@{}", self.id, HostPort(&self.host, self.port))
    }
}

/// An address of the listener for controllers of some node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct QuorumServer {
    /// A name or address without brackets.
    pub host: String,
    /// The port.
    pub port: u16,
}

impl fmt::Display for QuorumServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        HostPort(&self.host, self.port).fmt(f)
    }
}

/// A node that joins a cluster, and the way to it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Joining {
    /// This node, as the others reach it.
    pub own: Voter,
    /// Nodes that may be of the cluster.
    pub servers: Vec<QuorumServer>,
}

/// The nodes of a cluster.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Quorum {
    /// By id, ascending; each id and each address once. None of a node that joins a cluster.
    pub voters: Vec<Voter>,
    /// The way of this node to the cluster that it joins; `None` where the voters are named.
    pub joining: Option<Joining>,
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
        Ok(Quorum { voters, joining: None })
    }

    /// The quorum of a node that joins the cluster which is found at these addresses. `advertised`: `advertised.listeners`.
    pub(super) fn to_join(
        own: i32,
        servers: &[String],
        (roles, listeners, advertised): (&[String], &Listeners, &[String]),
    ) -> Result<Quorum, Problem> {
        check_roles("controller.quorum.bootstrap.servers", roles, listeners)?;
        let parsed = servers.iter().map(|text| parse_server(text)).collect::<Option<Vec<_>>>();
        let servers = parsed.ok_or_else(|| {
            Problem::new(format!(
                "Invalid value {} for configuration controller.quorum.bootstrap.servers: each server is HOST:PORT, such as 127.0.0.1:9093",
                servers.join(",")
            ))
        })?;
        let own = own_address(own, listeners, advertised)?;
        Ok(Quorum { voters: Vec::new(), joining: Some(Joining { own, servers }) })
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
        check_roles("controller.quorum.voters", roles, listeners)?;
        Ok(Some(self))
    }
}

/// Refuses a node among others that has not both roles, or no listener for them. `key` names the others.
fn check_roles(key: &str, roles: &[String], listeners: &Listeners) -> Result<(), Problem> {
    if roles.len() < 2 {
        return Err(Problem::new(format!(
            "process.roles={} with other nodes in {key}: nodes with one role are not served yet; set \
             process.roles=broker,controller",
            roles.join(",")
        )));
    }
    if listeners.controller.is_none() {
        return Err(Problem::new(format!(
            "{key} names other nodes, and there is no listener for them: name one in controller.listener.names, and its address in \
             listeners (CONTROLLER://HOST:PORT)"
        )));
    }
    Ok(())
}

/// The address of this node's listener for controllers, as other nodes reach it.
fn own_address(own: i32, listeners: &Listeners, advertised: &[String]) -> Result<Voter, Problem> {
    let controller = listeners.controller.as_ref().expect("it was checked");
    let prefix = format!("{}://", controller.listener);
    let named = advertised.iter().find_map(|text| text.trim().strip_prefix(&prefix));
    let server = match named {
        Some(address) => parse_server(address),
        None => Some(QuorumServer { host: controller.host.clone(), port: controller.port }),
    };
    let reachable = server.filter(|server| !["", "0.0.0.0", "::"].contains(&server.host.as_str()));
    let QuorumServer { host, port } = reachable.ok_or_else(|| {
        Problem::new(format!(
            "other nodes cannot reach the controller's listener {controller}: name its host in listeners, or in \
             advertised.listeners as {prefix}HOST:PORT"
        ))
    })?;
    Ok(Voter { id: own, host, port })
}

fn parse_server(text: &str) -> Option<QuorumServer> {
    let (host, port) = text.trim().rsplit_once(':')?;
    let host = host.strip_prefix('[').map_or(Some(host), |inner| inner.strip_suffix(']'))?;
    let port = port.parse().ok().filter(|port: &u16| *port > 0)?;
    (!host.is_empty()).then(|| QuorumServer { host: host.to_owned(), port })
}

fn parse_voter(text: &str) -> Result<Voter, Problem> {
    let refused = || invalid(&[text.to_string()], "each voter is ID@HOST:PORT, such as 1@127.0.0.1:9093");
    let (id, address) = text.trim().split_once('@').ok_or_else(refused)?;
    let id = id.parse().ok().filter(|id: &i32| *id >= 0).ok_or_else(refused)?;
    let QuorumServer { host, port } = parse_server(address).ok_or_else(refused)?;
    if host == "0.0.0.0" || host == "::" {
        return Err(invalid(&[text.to_string()], "other nodes cannot reach this address"));
    }
    Ok(Voter { id, host, port })
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
    fn a_node_joins_the_cluster_that_it_finds_at_other_addresses() {
        let joining =
            |lines: &str| build(lines).map(|config| config.quorum.and_then(|quorum| quorum.joining));
        let servers = "controller.quorum.bootstrap.servers=a:1,127.0.0.1:9093,[::1]:2";
        let found = joining(servers).expect("valid").expect("it joins");
        assert_eq!(found.own.to_string(), "2@127.0.0.1:9093");
        let shown: Vec<_> = found.servers.iter().map(ToString::to_string).collect();
        assert_eq!(shown, ["a:1", "127.0.0.1:9093", "[::1]:2"]);
        let advertised = "advertised.listeners=PLAINTEXT://b:1,CONTROLLER://b:2\n";
        let found = joining(&format!("{advertised}{servers}")).expect("valid").expect("it joins");
        assert_eq!(found.own.to_string(), "2@b:2");
        let both = joining(&format!("controller.quorum.voters=1@a:1,2@b:2\n{servers}")).expect("valid");
        assert_eq!(both, None, "the voters are named");
        check("controller.quorum.bootstrap.servers=a:1,b", "each server is HOST:PORT");
        check(&format!("{servers}\nprocess.roles=broker"), "nodes with one role are not served yet");
        check(&format!("{servers}\nlisteners=PLAINTEXT://:9092"), "there is no listener for them");
        check(
            &format!(
                "{servers}\nlisteners=PLAINTEXT://:9092,CONTROLLER://:9093\nmainstem.unauthenticated.nodes=true"
            ),
            "CONTROLLER://HOST:PORT",
        );
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
        let many: Vec<_> = (1..=16).map(|id| format!("{id}@h:{id}")).collect();
        check(&format!("controller.quorum.voters={}", many.join(",")), "at most 15 nodes");
    }
}
