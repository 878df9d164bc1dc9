//! A cluster seen from outside: which node leads what, one connection per node, retries with bounded back-off.

use std::collections::{BTreeMap, HashMap};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use mainstem_wire::messages::find_coordinator_request::FindCoordinatorRequest;
use mainstem_wire::messages::metadata_request::{MetadataRequest, MetadataRequestTopic};
use mainstem_wire::messages::metadata_response::{MetadataResponsePartition, MetadataResponseTopic};
use mainstem_wire::{ErrorCode, Uuid};

use crate::backoff::Backoff;
use crate::client::{Client, check, check_message, code_of, is_retriable};

/// `key_type` of FindCoordinator for groups.
const GROUP_KEY: i8 = 0;

/// A topic as the metadata describes it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Topic {
    pub(crate) name: String,
    pub(crate) id: Uuid,
    pub(crate) is_internal: bool,
    /// By number.
    pub(crate) partitions: Vec<Partition>,
}

/// A partition as the metadata describes it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Partition {
    pub(crate) index: i32,
    /// None while there is none.
    pub(crate) leader: Option<i32>,
    pub(crate) leader_epoch: i32,
    pub(crate) replicas: Vec<i32>,
    pub(crate) isr: Vec<i32>,
}

/// The nodes of a cluster, as far as they are known.
#[derive(Debug)]
pub(crate) struct Cluster {
    bootstrap: Vec<String>,
    retry_for: Duration,
    nodes: BTreeMap<i32, String>,
    /// By address.
    connections: HashMap<String, Client>,
}

impl Cluster {
    /// Connects to the first of the comma-separated addresses that answers.
    pub(crate) fn connect(bootstrap: &str, retry_for: Duration) -> Result<Self> {
        let addresses: Vec<String> =
            bootstrap.split(',').map(str::trim).filter(|a| !a.is_empty()).map(str::to_owned).collect();
        for address in &addresses {
            if address.rsplit_once(':').is_none_or(|(_, port)| port.parse::<u16>().is_err()) {
                bail!("--bootstrap takes HOST:PORT, such as 127.0.0.1:9092, not {address:?}");
            }
        }
        let mut cluster =
            Cluster { bootstrap: addresses, retry_for, nodes: BTreeMap::new(), connections: HashMap::new() };
        cluster.any()?;
        Ok(cluster)
    }

    /// A connection to any broker. In KRaft each passes on what only the controller does.
    pub(crate) fn any(&mut self) -> Result<&mut Client> {
        let mut candidates = self.bootstrap.clone();
        candidates.extend(self.nodes.values().cloned());
        let mut first_error = None;
        for address in candidates {
            match self.ensure_connected(&address) {
                Ok(()) => return self.connected(&address),
                Err(error) => first_error = first_error.or(Some(error)),
            }
        }
        Err(first_error.unwrap_or_else(|| anyhow::anyhow!("--bootstrap names no broker")))
    }

    /// A connection to a node that some metadata named.
    pub(crate) fn node(&mut self, id: i32) -> Result<&mut Client> {
        if !self.nodes.contains_key(&id) {
            self.refresh_nodes()?;
        }
        let address = self.nodes.get(&id).with_context(|| format!("the cluster has no node {id}"))?.clone();
        self.ensure_connected(&address)?;
        self.connected(&address)
    }

    /// Tries until it succeeds, fails for good, or the time for retries is over.
    pub(crate) fn retrying<T>(&mut self, mut attempt: impl FnMut(&mut Self) -> Result<T>) -> Result<T> {
        let mut backoff = Backoff::new(self.retry_for);
        loop {
            let error = match attempt(self) {
                Err(error) if is_retriable(&error) => error,
                done => return done,
            };
            match backoff.next() {
                Some(wait) => thread::sleep(wait),
                None => {
                    return Err(error.context(format!(
                        "gave up after {} s of retries (--timeout)",
                        self.retry_for.as_secs()
                    )));
                }
            }
        }
    }

    /// A topic that must exist.
    pub(crate) fn topic(&mut self, name: &str) -> Result<Topic> {
        match self.find_topic(name)? {
            Some(topic) => Ok(topic),
            None => bail!(
                "there is no topic {name}; create it with `mainstem topic create {name}`, or see \
                 `mainstem topic list`"
            ),
        }
    }

    /// A topic, if it exists.
    pub(crate) fn find_topic(&mut self, name: &str) -> Result<Option<Topic>> {
        let found = self.retrying(|cluster| match cluster.fetch_topics(Some(&[name.to_owned()]), false) {
            Ok(mut topics) => Ok(topics.pop()),
            Err(error) if code_of(&error) == Some(ErrorCode::UNKNOWN_TOPIC_OR_PARTITION) => Ok(None),
            Err(error) => Err(error),
        })?;
        Ok(found)
    }

    /// A topic that the broker creates by its defaults if it does not exist and automatic creation is on.
    pub(crate) fn find_or_create_topic(&mut self, name: &str) -> Result<Topic> {
        // Until it is there the answer is a retriable error.
        let topics = self.retrying(|cluster| cluster.fetch_topics(Some(&[name.to_owned()]), true))?;
        topics.into_iter().next().with_context(|| format!("the broker left out topic {name}"))
    }

    fn fetch_topics(&mut self, names: Option<&[String]>, auto_create: bool) -> Result<Vec<Topic>> {
        let topic =
            |name: &String| MetadataRequestTopic { name: Some(name.clone().into()), ..Default::default() };
        let request = MetadataRequest {
            topics: names.map(|names| names.iter().map(topic).collect()),
            allow_auto_topic_creation: auto_create,
            ..Default::default()
        };
        let response = self.any()?.call(&request)?;
        check(response.error_code, || "the metadata".to_owned())?;
        let nodes = response.brokers.iter().map(|node| (node.node_id, address(&node.host, node.port)));
        let nodes = nodes.collect();
        let topics = response.topics.into_iter().map(Topic::from_response).collect();
        self.nodes = nodes;
        topics
    }

    fn refresh_nodes(&mut self) -> Result<()> {
        self.fetch_topics(Some(&[]), false).map(|_| ())
    }

    /// The node that coordinates a group.
    pub(crate) fn find_coordinator(&mut self, group: &str) -> Result<i32> {
        self.retrying(|cluster| cluster.fetch_coordinator(group))
    }

    fn fetch_coordinator(&mut self, group: &str) -> Result<i32> {
        let about = || format!("the coordinator of group {group}");
        let mut request = FindCoordinatorRequest { key_type: GROUP_KEY, ..Default::default() };
        let client = self.any()?;
        // Version 4 asks for several at once.
        if client.serves_version::<FindCoordinatorRequest<'_>>(4) {
            request.coordinator_keys = vec![group.to_owned().into()];
        } else {
            request.key = group.to_owned().into();
        }
        let response = client.call(&request)?;
        let (code, message, node, at) = match response.coordinators.first() {
            Some(found) => {
                (found.error_code, &found.error_message, found.node_id, address(&found.host, found.port))
            }
            None => {
                let at = address(&response.host, response.port);
                (response.error_code, &response.error_message, response.node_id, at)
            }
        };
        check_message(code, message.as_deref(), about)?;
        self.nodes.insert(node, at);
        Ok(node)
    }

    fn ensure_connected(&mut self, address: &str) -> Result<()> {
        if self.connections.get(address).is_none_or(Client::is_broken) {
            self.connections.remove(address);
            let client = Client::connect(address)?;
            self.connections.insert(address.to_owned(), client);
        }
        Ok(())
    }

    fn connected(&mut self, address: &str) -> Result<&mut Client> {
        self.connections.get_mut(address).with_context(|| format!("no connection to {address}"))
    }
}

fn address(host: &str, port: i32) -> String {
    if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") }
}

impl Topic {
    fn from_response(response: MetadataResponseTopic<'_>) -> Result<Topic> {
        let name = response.name.unwrap_or_default().into_owned();
        check(response.error_code, || format!("topic {name}"))?;
        let mut partitions: Vec<_> = response.partitions.iter().map(Partition::from_response).collect();
        partitions.sort_by_key(|partition| partition.index);
        Ok(Topic { name, id: response.topic_id, is_internal: response.is_internal, partitions })
    }

    /// A partition by its number.
    pub(crate) fn partition(&self, index: i32) -> Result<&Partition> {
        self.partitions.iter().find(|partition| partition.index == index).with_context(|| {
            format!("topic {} has no partition {index}; it has {}", self.name, self.partitions.len())
        })
    }
}

impl Partition {
    fn from_response(response: &MetadataResponsePartition) -> Partition {
        Partition {
            index: response.partition_index,
            leader: (response.leader_id >= 0).then_some(response.leader_id),
            leader_epoch: response.leader_epoch,
            replicas: response.replica_nodes.clone(),
            isr: response.isr_nodes.clone(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bootstrap_names_a_port() {
        for wrong in ["localhost", "localhost:", "localhost:http", "a:1,b"] {
            let error = Cluster::connect(wrong, Duration::ZERO).expect_err(wrong).to_string();
            assert!(error.contains("--bootstrap takes HOST:PORT"), "{wrong}: {error}");
        }
    }

    #[test]
    fn addresses_of_version_6_have_brackets() {
        assert_eq!(address("::1", 9092), "[::1]:9092");
        assert_eq!(address("broker.example", 9092), "broker.example:9092");
    }
}
