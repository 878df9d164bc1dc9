//! Administrative calls to a cluster: topics, partitions, settings, quotas, groups, transactions, disk usage, the cluster.

mod acls;
mod cluster;
mod configs;
mod credentials;
mod groups;
mod log_dirs;
mod partitions;
mod quotas;
mod replicas;
#[cfg(test)]
mod tests;
mod topics;
mod transactions;

pub use acls::AclFilter;
pub use cluster::{BrokerDescription, ClusterDescription, Feature, FeatureUpgrade, Quorum, QuorumReplica};
pub use configs::{ConfigChange, ConfigEntry, ConfigResource, ConfigSource};
pub use credentials::{ScramCredential, ScramMechanism};
pub use groups::{GroupDescription, GroupFilter, GroupListing, GroupMember};
pub use log_dirs::{LogDir, LogDirReplica};
pub use partitions::{ActiveProducer, Election, Reassignment};
pub use quotas::{QuotaEntity, QuotaFilter};
pub use replicas::PartitionReplicas;
pub use topics::{CreatedTopic, NewTopic};
pub use transactions::{HangingTransaction, TransactionDescription, TransactionFilter, TransactionListing};

use std::future::Future;
use std::sync::atomic::{AtomicBool, Ordering};

use mainstem_wire::{ErrorCode, Request};

use crate::cluster::Cluster;
use crate::config::ClientConfig;
use crate::connection::Connection;
use crate::error::Error;
use crate::reply::Reply;
use crate::retry::retrying;

/// Administers a cluster. Cheap to clone.
///
/// A call that failed for a reason that may pass is tried again until [`ClientConfig::operation_timeout`]. After a lost answer
/// the cluster may execute it twice: if a topic exists already, this call may have created it. A topic or a group that is
/// to be deleted, and is gone at the second attempt, counts as deleted.
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

    /// An administrator's client that is connected to one of the brokers. Each is tried once.
    ///
    /// # Errors
    /// Why the first of them cannot be connected to, such as [`Error::Connect`].
    pub async fn connect(config: ClientConfig) -> Result<Admin, Error> {
        let admin = Admin::new(config);
        admin.cluster.any().await?;
        Ok(admin)
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

    /// Deletes something for which brokers answer with `missing` if it does not exist. That answer is final, as for Kafka's own
    /// client, although elsewhere it may pass. After an attempt whose answer was lost it means that this attempt deleted it.
    async fn deleting<F: Future<Output = Result<(), Error>>>(
        &self,
        what: &str,
        missing: ErrorCode,
        attempt: impl Fn() -> F,
    ) -> Result<Result<(), Error>, Error> {
        let may_be_done = AtomicBool::new(false);
        self.retried(what, || async {
            match attempt().await {
                Err(error) if error.code() == Some(missing) => {
                    Ok(if may_be_done.load(Ordering::Relaxed) { Ok(()) } else { Err(error) })
                }
                outcome => {
                    let is_ambiguous = outcome.as_ref().is_err_and(may_have_succeeded);
                    may_be_done.fetch_or(is_ambiguous, Ordering::Relaxed);
                    outcome.map(Ok)
                }
            }
        })
        .await
    }

    /// Deletes as [`Admin::deleting`] does, and returns true if it existed.
    async fn if_exists<F: Future<Output = Result<(), Error>>>(
        &self,
        what: &str,
        missing: ErrorCode,
        attempt: impl Fn() -> F,
    ) -> Result<bool, Error> {
        Ok(self.deleting(what, missing, attempt).await?.is_ok())
    }

    /// The same with a call to the coordinator of a group, which may have moved.
    async fn of_group<T, F: Future<Output = Result<T, Error>>>(
        &self,
        group: &str,
        what: &str,
        attempt: impl Fn(Connection) -> F,
    ) -> Result<T, Error> {
        self.retried(what, || self.at_coordinator(group, &attempt)).await
    }

    /// One attempt of it.
    async fn at_coordinator<T, F: Future<Output = Result<T, Error>>>(
        &self,
        group: &str,
        attempt: impl FnOnce(Connection) -> F,
    ) -> Result<T, Error> {
        let asked = async { attempt(self.cluster.coordinator(group).await?).await };
        asked.await.inspect_err(|error| {
            if error.is_retriable() {
                self.cluster.forget_coordinator(group);
            }
        })
    }
}

/// Returns true if an attempt with this error may have been carried out: no answer came, or the broker answered before the end.
fn may_have_succeeded(error: &Error) -> bool {
    matches!(error, Error::ConnectionLost { .. } | Error::RequestTimedOut { .. })
        || error.code() == Some(ErrorCode::REQUEST_TIMED_OUT)
}

/// Takes UNKNOWN_TOPIC_OR_PARTITION as final, although elsewhere it may pass: an administrator wants this answer at once, as
/// from Kafka's own client.
fn settled<T>(outcome: Result<T, Error>) -> Result<Result<T, Error>, Error> {
    match outcome {
        Err(error) if error.code() == Some(ErrorCode::UNKNOWN_TOPIC_OR_PARTITION) => Ok(Err(error)),
        outcome => outcome.map(Ok),
    }
}

/// The time that a broker has to carry out a request, in milliseconds: as long as it may take to answer.
fn timeout_ms(config: &ClientConfig) -> i32 {
    i32::try_from(config.request_timeout.as_millis()).unwrap_or(i32::MAX)
}

/// The error of an answer that is about one thing and leaves it out.
fn left_out<'q, R: Request<'q>>(reply: &Reply<R>, what: &str) -> Error {
    let reason = format!("it says nothing of {what}");
    Error::Malformed { broker: reply.broker().to_string(), api: R::KEY.name(), reason }
}
