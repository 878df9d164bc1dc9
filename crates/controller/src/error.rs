//! Errors of requests, which are answered, and of records, which are not.

use mainstem_security::scram::ScramMechanism;
use mainstem_wire::{DecodeError, ErrorCode, Uuid};

use mainstem_config::alter::AlterError;

/// An error of a part of a request, as it is answered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ApiError {
    /// Kafka's code.
    pub code: ErrorCode,
    /// For people; most tools print it.
    pub message: String,
}

impl ApiError {
    pub(super) fn new(code: ErrorCode, message: impl Into<String>) -> ApiError {
        ApiError { code, message: message.into() }
    }

    /// The client has created and deleted more partitions than its quota allows.
    pub(super) fn quota_exceeded() -> ApiError {
        ApiError::new(ErrorCode::THROTTLING_QUOTA_EXCEEDED, "The throttling quota has been exceeded.")
    }
}

impl From<AlterError> for ApiError {
    fn from(error: AlterError) -> ApiError {
        let code = match error {
            AlterError::InvalidConfig(_) => ErrorCode::INVALID_CONFIG,
            AlterError::InvalidRequest(_) => ErrorCode::INVALID_REQUEST,
        };
        ApiError::new(code, error.to_string())
    }
}

/// A record of the metadata log that cannot be applied: the log is damaged or was not written by this program.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ReplayError {
    /// Its bytes are no metadata record.
    #[error("metadata record at offset {offset}: {error}")]
    Malformed {
        /// The record's offset.
        offset: i64,
        /// The cause.
        error: DecodeError,
    },
    /// Its offset is below the next one.
    #[error("metadata record at offset {offset}: offset {expected} or above was expected")]
    OutOfOrder {
        /// The record's.
        offset: i64,
        /// The next one.
        expected: i64,
    },
    /// It contradicts the records before it.
    #[error("metadata record at offset {offset}: {problem}")]
    Inconsistent {
        /// The record's offset.
        offset: i64,
        /// The contradiction.
        problem: Inconsistency,
    },
}

/// A contradiction between a record and those before it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Inconsistency {
    /// It names a topic id that no topic has.
    #[error("no topic has the id {0}")]
    UnknownTopicId(Uuid),
    /// It names a topic that does not exist.
    #[error("no topic has the name {0}")]
    UnknownTopicName(String),
    /// It begins a transaction within another one, or ends one that did not begin (KIP-868).
    #[error("a {0} does not belong here: a transaction begins once and ends once")]
    Transaction(&'static str),
    /// The cluster was migrating from ZooKeeper when this was written.
    #[error("the migration from ZooKeeper is not finished; finish it with Apache Kafka 3.9 first")]
    ZkMigration,
    /// It makes a topic whose name or id is taken, or reserved.
    #[error("topic {name} with id {id} exists or cannot exist")]
    Topic {
        /// The name.
        name: String,
        /// The id.
        id: Uuid,
    },
    /// It names a partition that the topic does not have, or would leave a gap.
    #[error("partition {partition} does not follow the {count} partitions of topic id {id}")]
    Partition {
        /// The topic.
        id: Uuid,
        /// The partition.
        partition: i32,
        /// The number of partitions that the topic has.
        count: usize,
    },
    /// The group of the partition's replicas cannot be.
    #[error("the group of partition {partition} of topic id {id} cannot be: {what}")]
    Group {
        /// The topic.
        id: Uuid,
        /// The partition.
        partition: i32,
        /// The fault of the group.
        what: &'static str,
    },
    /// It names a broker that is not registered, or with another epoch.
    #[error("broker {0} is not registered with this epoch")]
    Broker(i32),
    /// The place of a node in the group of the metadata log cannot be.
    #[error("the place of node {id} in the group of the metadata log cannot be: {what}")]
    Controller {
        /// The node.
        id: i32,
        /// The fault.
        what: &'static str,
    },
    /// It hands out producer ids that were handed out before.
    #[error("producer ids up to {0} were handed out before")]
    ProducerIds(i64),
    /// It sets a quota of an unknown kind, or for an entity that can have none.
    #[error("a client quota has no valid entity or value")]
    Quota,
    /// An access control entry with a code that this program does not know.
    #[error("an access control entry has the unknown {what} {code}")]
    AclCode {
        /// The part of the entry.
        what: &'static str,
        /// The code.
        code: i8,
    },
    /// It makes an access control entry whose id is taken.
    #[error("an access control entry has the id {0} already")]
    AclExists(Uuid),
    /// It removes an access control entry that does not exist.
    #[error("no access control entry has the id {0}")]
    UnknownAcl(Uuid),
    /// A SCRAM mechanism that this program does not know.
    #[error("SCRAM mechanism {0} is not supported")]
    ScramMechanism(i8),
    /// A SCRAM credential with an invalid number of iterations.
    #[error("the SCRAM credential of {user} has {iterations} iterations")]
    ScramIterations {
        /// Whose.
        user: String,
        /// The number of iterations in the record.
        iterations: i32,
    },
    /// It removes a SCRAM credential that does not exist.
    #[error("{user} has no {mechanism} credential")]
    UnknownScram {
        /// Whose.
        user: String,
        /// For which mechanism.
        mechanism: ScramMechanism,
    },
    /// A counter cannot rise any further.
    #[error("an epoch has reached its end")]
    EpochOverflow,
    /// A kind of record that this program does not support.
    #[error("{0} is not supported")]
    Unsupported(&'static str),
    /// A kind of resource that this program does not know.
    #[error("configurations of resource type {0} are not supported")]
    ResourceType(i8),
}
