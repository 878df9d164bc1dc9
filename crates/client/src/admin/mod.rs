//! What administrators ask of a cluster: topics, partitions, settings, quotas, groups, room on the disks, the cluster.

mod cluster;
mod configs;
mod groups;
mod log_dirs;
mod partitions;
mod quotas;
#[cfg(test)]
mod tests;
mod topics;

pub use cluster::{BrokerDescription, ClusterDescription, Feature, FeatureUpgrade, Quorum, QuorumReplica};
pub use configs::{ConfigChange, ConfigEntry, ConfigResource, ConfigSource};
pub use groups::{GroupDescription, GroupListing, GroupMember};
pub use log_dirs::{LogDir, LogDirReplica};
pub use partitions::{ActiveProducer, Election, Reassignment};
pub use quotas::{QuotaEntity, QuotaFilter};
pub use topics::NewTopic;

use std::future::Future;

use mainstem_wire::Request;

use crate::cluster::Cluster;
use crate::config::ClientConfig;
use crate::connection::Connection;
use crate::error::Error;
use crate::reply::Reply;
use crate::retry::retrying;

/// Administers a cluster. Cheap to clone.
///
/// Each call is tried again until [`ClientConfig::operation_timeout`] if it failed for a reason that may pass. After a lost
/// connection that can mean that it was executed twice: that a topic exists already may be this call's own doing.
///
/// ```
/// use mainstem_client::{Admin, ClientConfig, ConfigResource, NewTopic};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), mainstem_client::Error> {
/// # let broker = mainstem_broker::EmbeddedBroker::start(&[]);
/// # let address = broker.address();
/// let admin = Admin::new(ClientConfig::new(address)?);
/// admin.create_topic(&NewTopic::new("orders").partitions(3).config("retention.ms", "3600000")).await?;
/// assert_eq!(admin.topic("orders").await?.partitions.len(), 3);
/// let configs = admin.configs(&ConfigResource::Topic("orders".into())).await?;
/// let retention = configs.iter().find(|config| config.name == "retention.ms");
/// assert_eq!(retention.and_then(|config| config.value.as_deref()), Some("3600000"));
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct Admin {
    cluster: Cluster,
}

impl Admin {
    /// An administrator's client. It connects with the first call.
    pub fn new(config: ClientConfig) -> Admin {
        Admin { cluster: Cluster::new(config) }
    }

    /// Tries until it succeeds, fails for good, or the time is over.
    async fn retried<T, F: Future<Output = Result<T, Error>>>(
        &self,
        what: &str,
        attempt: impl FnMut() -> F,
    ) -> Result<T, Error> {
        let config = self.cluster.config();
        retrying(config, config.operation_timeout, what, attempt).await
    }

    /// The same with a call to the coordinator of a group, which may have moved.
    async fn of_group<T, F: Future<Output = Result<T, Error>>>(
        &self,
        group: &str,
        what: &str,
        attempt: impl Fn(Connection) -> F,
    ) -> Result<T, Error> {
        self.retried(what, || async {
            let asked = async { attempt(self.cluster.coordinator(group).await?).await };
            asked.await.inspect_err(|error| {
                if error.is_retriable() {
                    self.cluster.forget_coordinator(group);
                }
            })
        })
        .await
    }
}

/// How long a broker may take to carry out what it is asked for: as long as it may take to answer.
fn timeout_ms(config: &ClientConfig) -> i32 {
    i32::try_from(config.request_timeout.as_millis()).unwrap_or(i32::MAX)
}

/// The error of an answer that is about one thing and leaves it out.
fn left_out<'q, R: Request<'q>>(reply: &Reply<R>, what: &str) -> Error {
    let reason = format!("it says nothing of {what}");
    Error::Malformed { broker: reply.broker().to_string(), api: R::KEY.name(), reason }
}
