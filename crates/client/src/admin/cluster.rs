//! The cluster as a whole: its nodes, features and metadata quorum.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;

use mainstem_wire::messages::api_versions_request::ApiVersionsRequest;
use mainstem_wire::messages::describe_cluster_request::DescribeClusterRequest;
use mainstem_wire::messages::describe_cluster_response::DescribeClusterBroker;
use mainstem_wire::messages::describe_quorum_request::{
    DescribeQuorumRequest, PartitionData as QuorumPartition, TopicData as QuorumTopic,
};
use mainstem_wire::messages::describe_quorum_response::ReplicaState;
use mainstem_wire::messages::unregister_broker_request::UnregisterBrokerRequest;
use mainstem_wire::messages::update_features_request::{FeatureUpdateKey, UpdateFeaturesRequest};

use super::{Admin, left_out, timeout_ms};
use crate::connection::Connection;
use crate::error::Error;

/// The one partition of the metadata's log.
const METADATA_TOPIC: &str = "__cluster_metadata";
/// The first version of DescribeCluster that says which brokers are fenced (KIP-1073).
const TELLS_FENCED: i16 = 2;
/// The type of endpoints in DescribeCluster: those of brokers.
const BROKERS: i8 = 1;

/// A cluster, as one of its brokers describes it.
///
/// ```
/// use mainstem_client::{Admin, ClientConfig};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), mainstem_client::Error> {
/// # let broker = mainstem_broker::EmbeddedBroker::start(&[]);
/// # let address = broker.address();
/// let admin = Admin::new(ClientConfig::new(address)?);
/// let cluster = admin.cluster().await?;
/// assert!(cluster.controller.is_some_and(|node| cluster.brokers.contains_key(&node)));
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClusterDescription {
    /// The cluster's id.
    pub cluster_id: String,
    /// The node that requests for a controller may go to; none while there is none.
    pub controller: Option<i32>,
    /// The brokers, by id.
    pub brokers: BTreeMap<i32, BrokerDescription>,
}

/// A broker of a [`ClusterDescription`].
///
/// ```
/// use mainstem_client::{Admin, ClientConfig};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), mainstem_client::Error> {
/// # let broker = mainstem_broker::EmbeddedBroker::start(&[]);
/// # let address = broker.address();
/// let admin = Admin::new(ClientConfig::new(address)?);
/// let cluster = admin.cluster().await?;
/// let first = cluster.brokers.values().next().expect("one has answered");
/// assert_eq!(format!("{}:{}", first.host, first.port), address);
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BrokerDescription {
    /// The host at which clients reach it.
    pub host: String,
    /// The port at which clients reach it.
    pub port: i32,
    /// Its rack.
    pub rack: Option<String>,
    /// True if it is registered but takes no part: it has sent no heartbeat lately, or it starts or stops. None if the asked
    /// broker does not say (before Kafka 4.0, KIP-1073).
    pub is_fenced: Option<bool>,
}

impl BrokerDescription {
    fn new(host: &str, port: i32, rack: Option<&str>, is_fenced: Option<bool>) -> BrokerDescription {
        BrokerDescription { host: host.to_owned(), port, rack: rack.map(str::to_owned), is_fenced }
    }
}

/// A feature of a cluster (KIP-584).
///
/// ```
/// use mainstem_client::{Admin, ClientConfig};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), mainstem_client::Error> {
/// # let broker = mainstem_broker::EmbeddedBroker::start(&[]);
/// # let address = broker.address();
/// let admin = Admin::new(ClientConfig::new(address)?);
/// let features = admin.features().await?;
/// let version = &features["metadata.version"];
/// assert!(version.supported.contains(&version.level));
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Feature {
    /// Levels that the asked broker can have.
    pub supported: RangeInclusive<i16>,
    /// The level that the cluster has; 0 is off.
    pub level: i16,
}

/// The changes of a feature's level that are allowed.
///
/// ```
/// use mainstem_client::{Admin, ClientConfig, FeatureUpgrade};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), mainstem_client::Error> {
/// # let broker = mainstem_broker::EmbeddedBroker::start(&[]);
/// # let address = broker.address();
/// let admin = Admin::new(ClientConfig::new(address)?);
/// let level = admin.features().await?["metadata.version"].level;
/// // Nothing lowers it by mistake.
/// assert!(admin.update_feature("metadata.version", level - 1, FeatureUpgrade::Upgrade, true).await.is_err());
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FeatureUpgrade {
    /// It only grows.
    Upgrade,
    /// It may be lowered if nothing is lost by that.
    SafeDowngrade,
    /// It may be lowered even so.
    UnsafeDowngrade,
}

/// The nodes that keep a cluster's metadata (KIP-595).
///
/// ```
/// use mainstem_client::{Admin, ClientConfig};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), mainstem_client::Error> {
/// # let broker = mainstem_broker::EmbeddedBroker::start(&[]);
/// # let address = broker.address();
/// let admin = Admin::new(ClientConfig::new(address)?);
/// let quorum = admin.quorum().await?;
/// assert!(quorum.voters.iter().any(|voter| voter.node == quorum.leader));
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Quorum {
    /// The node that leads.
    pub leader: i32,
    /// Counts the changes of the leader.
    pub leader_epoch: i32,
    /// The offset behind what is committed.
    pub high_watermark: i64,
    /// The nodes that vote.
    pub voters: Vec<QuorumReplica>,
    /// The nodes that only follow.
    pub observers: Vec<QuorumReplica>,
}

/// A node's copy of the metadata.
///
/// ```
/// use mainstem_client::{Admin, ClientConfig};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), mainstem_client::Error> {
/// # let broker = mainstem_broker::EmbeddedBroker::start(&[]);
/// # let address = broker.address();
/// let admin = Admin::new(ClientConfig::new(address)?);
/// let quorum = admin.quorum().await?;
/// let voter = &quorum.voters[0];
/// assert!(voter.log_end_offset.is_some_and(|end| end >= quorum.high_watermark));
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct QuorumReplica {
    /// The node.
    pub node: i32,
    /// The offset behind its last record, as the leader knows it.
    pub log_end_offset: Option<i64>,
    /// The time of its last fetch by the leader's clock, in milliseconds since 1970; for the leader itself, that of the answer.
    /// None if it has not fetched (KIP-836).
    pub last_fetch_ms: Option<i64>,
    /// The time when it last had all that the leader had, in milliseconds since 1970.
    pub last_caught_up_ms: Option<i64>,
}

impl QuorumReplica {
    fn from_response(state: &ReplicaState<'_>) -> QuorumReplica {
        let known = |number: i64| (number >= 0).then_some(number);
        QuorumReplica {
            node: state.replica_id,
            log_end_offset: known(state.log_end_offset),
            last_fetch_ms: known(state.last_fetch_timestamp),
            last_caught_up_ms: known(state.last_caught_up_timestamp),
        }
    }
}

impl Admin {
    /// The cluster's id and its brokers: those that take part.
    ///
    /// # Errors
    /// [`Error::TimedOut`], or why the cluster refuses.
    pub async fn cluster(&self) -> Result<ClusterDescription, Error> {
        self.describe_cluster(false).await
    }

    /// The same with brokers that are registered and take no part (KIP-1073), by [`BrokerDescription::is_fenced`]. They are left
    /// out if the asked broker does not report them.
    ///
    /// # Errors
    /// [`Error::TimedOut`], or why the cluster refuses.
    pub async fn cluster_with_fenced(&self) -> Result<ClusterDescription, Error> {
        self.describe_cluster(true).await
    }

    async fn describe_cluster(&self, with_fenced: bool) -> Result<ClusterDescription, Error> {
        self.retried("describing the cluster", || async {
            let connection = self.cluster.any().await?;
            describe_cluster(&connection, with_fenced).await
        })
        .await
    }

    /// The features of the cluster by name, as one broker reports them.
    ///
    /// # Errors
    /// [`Error::TimedOut`], or why the broker refuses.
    pub async fn features(&self) -> Result<BTreeMap<String, Feature>, Error> {
        self.retried("describing the features", || async {
            let connection = self.cluster.any().await?;
            describe_features(&connection).await
        })
        .await
    }

    /// The features of the cluster by name, as a certain broker reports them: their levels of support are its own.
    ///
    /// # Errors
    /// [`Error::TimedOut`], also if the broker is not there, or why it refuses.
    pub async fn features_of(&self, node: i32) -> Result<BTreeMap<String, Feature>, Error> {
        self.retried(&format!("describing the features of node {node}"), || async {
            let connection = self.cluster.node(node).await?;
            describe_features(&connection).await
        })
        .await
    }

    /// Sets the level of a feature for the whole cluster; with `validate_only` it only checks if that could be done.
    ///
    /// # Errors
    /// [`Error::TimedOut`], or why the cluster refuses, such as INVALID_UPDATE_VERSION.
    pub async fn update_feature(
        &self,
        feature: &str,
        level: i16,
        upgrade: FeatureUpgrade,
        validate_only: bool,
    ) -> Result<(), Error> {
        self.retried(&format!("changing the level of feature {feature}"), || async {
            let upgrade_type = match upgrade {
                FeatureUpgrade::Upgrade => 1,
                FeatureUpgrade::SafeDowngrade => 2,
                FeatureUpgrade::UnsafeDowngrade => 3,
            };
            let update = FeatureUpdateKey {
                feature: feature.into(),
                max_version_level: level,
                allow_downgrade: upgrade != FeatureUpgrade::Upgrade,
                upgrade_type,
                ..Default::default()
            };
            let timeout_ms = timeout_ms(self.cluster.config());
            let feature_updates = vec![update];
            let request =
                UpdateFeaturesRequest { timeout_ms, feature_updates, validate_only, ..Default::default() };
            let reply = self.cluster.call_controller(&request).await?;
            let response = reply.read()?;
            let refused = || format!("cannot change the level of feature {feature}");
            reply.check(response.error_code, response.error_message.as_deref(), refused)?;
            // Since version 2 an error is that of the whole request.
            let mut results = response.results.iter();
            results.try_for_each(|one| reply.check(one.error_code, one.error_message.as_deref(), refused))
        })
        .await
    }

    /// Forgets a node that is stopped and will not come back (KIP-631): the cluster remembers each until then.
    ///
    /// # Errors
    /// [`Error::TimedOut`], or why the cluster refuses, such as BROKER_ID_NOT_REGISTERED.
    pub async fn unregister_broker(&self, node: i32) -> Result<(), Error> {
        self.retried(&format!("unregistering node {node}"), || async {
            let request = UnregisterBrokerRequest { broker_id: node, ..Default::default() };
            let reply = self.cluster.call_controller(&request).await?;
            let response = reply.read()?;
            let refused = || format!("cannot unregister node {node}");
            reply.check(response.error_code, response.error_message.as_deref(), refused)
        })
        .await
    }

    /// The nodes that keep the metadata, with the log end offset of each.
    ///
    /// # Errors
    /// [`Error::TimedOut`], or why the cluster refuses.
    pub async fn quorum(&self) -> Result<Quorum, Error> {
        self.retried("describing the metadata quorum", || async {
            let partitions = vec![QuorumPartition { partition_index: 0, ..Default::default() }];
            let topic = QuorumTopic { topic_name: METADATA_TOPIC.into(), partitions, ..Default::default() };
            let request = DescribeQuorumRequest { topics: vec![topic], ..Default::default() };
            let reply = self.cluster.call_any(&request).await?;
            let response = reply.read()?;
            let what = || "cannot describe the metadata quorum".to_owned();
            reply.check(response.error_code, response.error_message.as_deref(), what)?;
            let found = response.topics.first().and_then(|topic| topic.partitions.first());
            let found = found.ok_or_else(|| left_out(&reply, METADATA_TOPIC))?;
            reply.check(found.error_code, found.error_message.as_deref(), what)?;
            Ok(Quorum {
                leader: found.leader_id,
                leader_epoch: found.leader_epoch,
                high_watermark: found.high_watermark,
                voters: found.current_voters.iter().map(QuorumReplica::from_response).collect(),
                observers: found.observers.iter().map(QuorumReplica::from_response).collect(),
            })
        })
        .await
    }
}

/// The features that a broker reports.
async fn describe_features(connection: &Connection) -> Result<BTreeMap<String, Feature>, Error> {
    let request = ApiVersionsRequest {
        client_software_name: "mainstem-client".into(),
        client_software_version: env!("CARGO_PKG_VERSION").into(),
        ..Default::default()
    };
    let reply = connection.call(&request).await?;
    let response = reply.read()?;
    reply.check(response.error_code, None, || "cannot describe the features".to_owned())?;
    let level = |name: &str| {
        let found = response.finalized_features.iter().find(|one| one.name == name);
        found.map_or(0, |one| one.max_version_level)
    };
    let features = response.supported_features.iter().map(|one| {
        let supported = one.min_version..=one.max_version;
        (one.name.to_string(), Feature { supported, level: level(&one.name) })
    });
    Ok(features.collect())
}

/// DescribeCluster (60), of KIP-700.
async fn describe_cluster(connection: &Connection, with_fenced: bool) -> Result<ClusterDescription, Error> {
    let tells_fenced = connection.version::<DescribeClusterRequest<'_>>()? >= TELLS_FENCED;
    let include_fenced_brokers = with_fenced && tells_fenced;
    let request =
        DescribeClusterRequest { endpoint_type: BROKERS, include_fenced_brokers, ..Default::default() };
    let reply = connection.call(&request).await?;
    let response = reply.read()?;
    let message = response.error_message.as_deref();
    reply.check(response.error_code, message, || "cannot describe the cluster".to_owned())?;
    let broker = |one: &DescribeClusterBroker<'_>| {
        let is_fenced = tells_fenced.then_some(one.is_fenced);
        (one.broker_id, BrokerDescription::new(&one.host, one.port, one.rack.as_deref(), is_fenced))
    };
    let brokers = response.brokers.iter().map(broker);
    Ok(ClusterDescription {
        cluster_id: response.cluster_id.to_string(),
        controller: (response.controller_id >= 0).then_some(response.controller_id),
        brokers: brokers.collect(),
    })
}
