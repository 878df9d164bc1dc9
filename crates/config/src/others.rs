//! Signs that other nodes exist, in the configuration of a node that would begin a cluster of its own.
//!
//! Such a node would take writes that the cluster never sees. So it does not start if there is any sign of others, unless its
//! configuration names the nodes of the cluster.

use super::broker_values::BrokerValues;
use super::listeners::{Endpoint, Listeners, is_loopback};
use super::problem::Problem;

/// The key of Kafka before 4.0.
pub(super) const ZOOKEEPER: &str = "zookeeper.connect";
const BOOTSTRAP: &str = "controller.quorum.bootstrap.servers";
const ROLES: &str = "process.roles";
/// The setting for one node alone: completes a message.
const ALONE: &str = "for one node by itself set process.roles=broker,controller";
const TOGETHER: &str = "for a node of a new cluster name all nodes in controller.quorum.voters=ID@HOST:PORT,..., the same on each of \
                        them, and for one that joins a cluster some of its nodes in controller.quorum.bootstrap.servers";

/// One problem for each sign, of a node without `controller.quorum.voters`, or of which these name itself alone.
pub(super) fn signs(values: &BrokerValues) -> Vec<Problem> {
    [zookeeper(values), roles(values)].into_iter().flatten().collect()
}

/// The text of a key, if it is set and not empty.
fn text<'v>(values: &'v BrokerValues, key: &str) -> Option<&'v str> {
    values.lookup(key).map(|(text, _)| text.trim()).filter(|text| !text.is_empty())
}

fn problem(values: &BrokerValues, key: &str, message: String) -> Problem {
    Problem { origin: values.origin(key), message }
}

fn zookeeper(values: &BrokerValues) -> Option<Problem> {
    let servers = text(values, ZOOKEEPER)?;
    let message = format!(
        "{ZOOKEEPER}={servers} says that this is a broker of a cluster that ZooKeeper holds together, which is not served: this node \
         would be another cluster. Remove the key; {ALONE}, {TOGETHER}"
    );
    Some(problem(values, ZOOKEEPER, message))
}

/// A broker without the role of a controller has its controller on another node.
fn roles(values: &BrokerValues) -> Option<Problem> {
    let roles = text(values, ROLES).filter(|roles| *roles == "broker")?;
    let message = format!(
        "{ROLES}={roles} says that the controller is another node, and no other node is named: {ALONE}, {TOGETHER}"
    );
    Some(problem(values, ROLES, message))
}

/// The value of `controller.quorum.bootstrap.servers` where it names another node than this one, and no voters are named. Kafka's own file
/// for one node names that node there.
pub(super) fn servers_of_others<'v>(values: &'v BrokerValues, listeners: &Listeners) -> Option<&'v str> {
    if text(values, "controller.quorum.voters").is_some() {
        return None;
    }
    let servers = text(values, BOOTSTRAP)?;
    // The advertised address for controllers is no address for clients, and not among the listeners.
    let advertised = text(values, "advertised.listeners").unwrap_or_default();
    let is_advertised =
        |server: &str| advertised.split(',').any(|one| one.trim().ends_with(&format!("://{server}")));
    let is_this_node = |server: &str| is_own(server, listeners) || is_advertised(server);
    servers.split(',').map(str::trim).any(|server| !is_this_node(server)).then_some(servers)
}

/// Returns true if HOST:PORT is the listener for controllers of this node, as far as its listeners say.
fn is_own(server: &str, listeners: &Listeners) -> bool {
    let Some((host, port)) = server.rsplit_once(':') else { return false };
    let host = host.trim_start_matches('[').trim_end_matches(']');
    let Some(controller) = &listeners.controller else { return false };
    let is_host = |endpoint: &Endpoint| endpoint.host.eq_ignore_ascii_case(host);
    port.parse() == Ok(controller.port)
        && (is_loopback(host) || is_host(controller) || listeners.advertised.iter().any(is_host))
}

#[cfg(test)]
mod tests {
    use super::super::broker::BrokerConfig;
    use super::super::properties::Properties;
    use super::super::sources::Sources;

    const CONTROLLER: &str = "process.roles=broker,controller\ncontroller.listener.names=CONTROLLER\n\
                              listeners=PLAINTEXT://:9092,CONTROLLER://:9093\n";

    /// Checks that the configuration is refused with this text, or accepted if there is none.
    #[track_caller]
    fn check(lines: &str, refused: Option<&str>) {
        let file = Properties::parse(lines.as_bytes()).expect("it is well formed");
        let config = BrokerConfig::from_sources(Sources { file: Some(&file), ..Sources::default() });
        match (config, refused) {
            (Ok(config), None) => assert_eq!(config.quorum, None),
            (Err(error), Some(text)) => assert!(error.to_string().contains(text), "{error}"),
            (Ok(_), Some(text)) => panic!("{lines} is taken, and should be refused: {text}"),
            (Err(error), None) => panic!("{lines} is refused: {error}"),
        }
    }

    #[test]
    fn a_node_that_others_are_named_to_does_not_begin_a_cluster() {
        check(
            "process.roles=broker\n",
            Some("file line 1: process.roles=broker says that the controller is another"),
        );
        check("zookeeper.connect=zk1:2181,zk2:2181/kafka\n", Some("file line 1: zookeeper.connect=zk1"));
        check("broker.id=0\nzookeeper.connect=localhost:2181\n", Some("another cluster"));
        for server in ["10.0.0.7:9093", "localhost:9094", "[2001:db8::1]:9093"] {
            let lines = format!("{CONTROLLER}controller.quorum.bootstrap.servers={server}\n");
            check(&lines, Some("other nodes cannot reach the controller's listener"));
        }
        let lines = "process.roles=broker,controller\ncontroller.quorum.bootstrap.servers=localhost:9093\n";
        check(lines, Some("there is no listener for them"));
    }

    #[test]
    fn what_names_this_node_alone_is_no_sign_of_others() {
        check("", None);
        check("zookeeper.connect=\n", None);
        check("process.roles=broker,controller\n", None);
        let own = ["localhost:9093", "127.0.0.1:9093", "[::1]:9093", "LOCALHOST:9093"];
        for server in own {
            check(&format!("{CONTROLLER}controller.quorum.bootstrap.servers={server}\n"), None);
        }
        let advertised = "advertised.listeners=PLAINTEXT://Kafka.example:9092\n";
        check(
            &format!("{CONTROLLER}{advertised}controller.quorum.bootstrap.servers=kafka.example:9093\n"),
            None,
        );
        let advertised = "advertised.listeners=PLAINTEXT://public:9092,CONTROLLER://kafka1:9093\n";
        check(&format!("{CONTROLLER}{advertised}controller.quorum.bootstrap.servers=kafka1:9093\n"), None);
        let voter = "node.id=4\ncontroller.quorum.voters=4@kafka.example:9093\n";
        check(&format!("{CONTROLLER}{voter}controller.quorum.bootstrap.servers=kafka.example:9093\n"), None);
    }
}
