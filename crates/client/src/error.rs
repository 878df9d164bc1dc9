//! Errors of the client, and what a caller can do about them.

use std::time::Duration;

use mainstem_lines::{OneLine, Sentence};
use mainstem_wire::ErrorCode;

use crate::topic_partition::TopicPartition;

/// A failure of the client: what happened, to what, and of whom it was asked.
///
/// Errors can be cloned, for one failure may concern every record of a batch.
///
/// ```
/// use mainstem_client::{Admin, ClientConfig, Error, ErrorCode, NewTopic};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), mainstem_client::Error> {
/// # let broker = mainstem_broker::EmbeddedBroker::start(&[]);
/// # let address = broker.address();
/// let admin = Admin::new(ClientConfig::new(address)?);
/// admin.create_topic(&NewTopic::new("orders")).await?;
/// match admin.create_topic(&NewTopic::new("orders")).await {
///     Err(Error::Broker { code: ErrorCode::TOPIC_ALREADY_EXISTS, broker, .. }) => assert_eq!(broker, address),
///     outcome => panic!("{outcome:?}"),
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A broker answered with an error code.
    #[error("{}: {} ({}, from {})", Sentence(what), Sentence(message), code.name(), OneLine(broker))]
    Broker {
        /// Kafka's code.
        code: ErrorCode,
        /// The broker's words if it has any, or what the code means.
        message: String,
        /// The operation that failed.
        what: String,
        /// Address of the broker that answered.
        broker: String,
    },
    /// No connection could be made.
    #[error("cannot connect to {}: {}", OneLine(broker), Sentence(reason))]
    Connect {
        /// Address as configured or as the cluster names it.
        broker: String,
        /// The operating system's reason.
        reason: String,
    },
    /// The broker could not be authenticated: it does not know the credentials, or its answer makes no sense. (A broker
    /// that refuses the client's credentials does so by [`Error::Broker`].)
    #[error("cannot authenticate by {} at {}: {}", Sentence(what), OneLine(broker), Sentence(reason))]
    NotAuthenticated {
        /// Address of the broker.
        broker: String,
        /// Mechanism and user.
        what: String,
        /// The cause, and what to do.
        reason: String,
    },
    /// A connection ended before the answer to a request; whether the request was executed is not known.
    #[error("{} did not answer {api}, as the connection was lost: {}", OneLine(broker), Sentence(reason))]
    ConnectionLost {
        /// Address of the broker.
        broker: String,
        /// Name of the request.
        api: &'static str,
        /// The reason for its end.
        reason: String,
    },
    /// A broker took longer than the time-out of requests.
    #[error("{} did not answer {api} within {after:?}", OneLine(broker))]
    RequestTimedOut {
        /// Address of the broker.
        broker: String,
        /// Name of the request.
        api: &'static str,
        /// The time that it had.
        after: Duration,
    },
    /// An operation, with all of its retries, took longer than its limit. It may have been carried out all the same: a record
    /// that is sent again may be written twice.
    #[error("{} was not done within {after:?}{}", Sentence(what), last.as_ref().map(|last| format!("; last: {last}")).unwrap_or_default())]
    TimedOut {
        /// The operation.
        what: String,
        /// The time that it had.
        after: Duration,
        /// The error of the last attempt, if one failed.
        last: Option<Box<Error>>,
    },
    /// Broker and client have no version of a request in common, a field that is needed is not in it, or the broker is older than
    /// Kafka 3.9.
    #[error("the broker at {} does not serve {}", OneLine(broker), Sentence(reason))]
    Unsupported {
        /// Address of the broker.
        broker: String,
        /// The request, version or field that is missing.
        reason: String,
    },
    /// A broker's bytes are not what the protocol says.
    #[error("the answer of {} to {api} is malformed: {}", OneLine(broker), Sentence(reason))]
    Malformed {
        /// Address of the broker.
        broker: String,
        /// Name of the request.
        api: &'static str,
        /// The mistake in it.
        reason: String,
    },
    /// Records do not match the format, or have changed since they were written.
    #[error("{partition} cannot be read from offset {offset} on: {}; seek {} to go on", Sentence(reason), next_offset.map_or("behind that".to_owned(), |next| format!("to offset {next}")))]
    Damaged {
        /// The partition.
        partition: TopicPartition,
        /// The offset at which the records begin.
        offset: i64,
        /// The offset at which to continue: that of the next batch, or the end that this batch names if no other came with it.
        /// None if the bytes are not even a batch.
        next_offset: Option<i64>,
        /// The mistake in them.
        reason: String,
    },
    /// The offset to read does not exist, any more or yet.
    #[error("cannot read {partition} at offset {offset}: it is not there any more, or not yet ({}, from {}); seek to go on", ErrorCode::OFFSET_OUT_OF_RANGE.name(), OneLine(broker))]
    OutOfRange {
        /// The partition.
        partition: TopicPartition,
        /// The offset that was to be read.
        offset: i64,
        /// Address of its leader.
        broker: String,
    },
    /// The topic was deleted and created again while it was read: offsets that were read say nothing about the new one.
    #[error(
        "{partition}, which was read up to offset {offset}, was deleted with its topic, and created again; seek to continue"
    )]
    TopicRecreated {
        /// The partition.
        partition: TopicPartition,
        /// The offset up to which it was read.
        offset: i64,
    },
    /// Records that were read are gone, since the partition's new leader did not have them when it was elected (KIP-320).
    #[error("records of {partition} before offset {offset}, which were read, are not those of its leader any more{}; seek to go on", diverges_at.map(|at| format!(" from offset {at} on")).unwrap_or_default())]
    Truncated {
        /// The partition.
        partition: TopicPartition,
        /// The offset up to which it was read.
        offset: i64,
        /// The first offset with another record, if the leader can tell.
        diverges_at: Option<i64>,
    },
    /// A part of a transaction has failed for good, so that it can only be aborted.
    #[error("the transaction has to be aborted: {reason}")]
    TransactionFailed {
        /// The failure.
        reason: Box<Error>,
    },
    /// The transactions of a producer can neither continue nor be aborted: close it and make a new one.
    #[error("the producer can go on no more: {reason}")]
    ProducerFailed {
        /// The failure.
        reason: Box<Error>,
    },
    /// A record was not sent, as its transaction was aborted.
    #[error("the transaction was aborted before the record was sent")]
    Aborted,
    /// A partition has no leader at present.
    #[error("{partition} has no leader at present, so that nothing can be written to it or read from it")]
    NoLeader {
        /// The partition.
        partition: TopicPartition,
    },
    /// The cluster does not name what was asked for.
    #[error("{}", Sentence(.0))]
    Unknown(String),
    /// The arguments or the configuration make no sense.
    #[error("{}", Sentence(.0))]
    Invalid(String),
    /// Offsets were not committed, as one of their partitions is not this member's, or was revoked meanwhile. Another member may
    /// have committed later offsets by now, and this commit would take it back.
    #[error(
        "the offsets of group {} were not committed: {partition} is not this member's, or was revoked meanwhile; its new owner continues from the last committed offset",
        OneLine(group)
    )]
    CommitFailed {
        /// Name of the group.
        group: String,
        /// The partition.
        partition: TopicPartition,
    },
    /// Only a member of a group can commit its offsets, and the consumer is none: it has not joined yet, or was thrown out and
    /// joins again.
    #[error(
        "offsets of group {} can be committed when this member is in it; it has not joined yet, or was thrown out",
        OneLine(group)
    )]
    NotAMember {
        /// Name of the group.
        group: String,
    },
    /// Bytes of another member of a group do not match the protocol.
    #[error(
        "the {what} of group {} is not what the protocol says: {}; all members have to speak it",
        OneLine(group),
        Sentence(reason)
    )]
    MalformedByMember {
        /// Name of the group.
        group: String,
        /// The part of the protocol that was sent.
        what: String,
        /// The mistake in it.
        reason: String,
    },
    /// A task of the client has panicked, which is a fault of the client. Calls that wait for that task fail with this.
    #[error(
        "{what} has panicked, which is a fault of this client: close it, make a new one, and report what the panic said"
    )]
    Panicked {
        /// The task.
        what: String,
    },
    /// The producer, consumer or admin was closed.
    #[error("the client is closed")]
    Closed,
}

/// The choice that a caller has after an error.
///
/// ```
/// use mainstem_client::{Error, ErrorClass};
///
/// /// Whether a record that was not written is worth another try.
/// fn is_worth_another_try(error: &Error) -> bool {
///     match error.class() {
///         ErrorClass::Retriable => true,
///         ErrorClass::Permanent | ErrorClass::Abortable | ErrorClass::Fatal => false,
///     }
/// }
/// assert!(!is_worth_another_try(&Error::Closed));
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ErrorClass {
    /// The same request may succeed later; the client itself retries until its time-outs.
    Retriable,
    /// The running transaction has to be aborted; then the producer can continue.
    Abortable,
    /// The producer or consumer cannot continue: make a new one, or repair the cause.
    Fatal,
    /// This request failed and would fail again; others may succeed.
    Permanent,
}

impl Error {
    /// The error for callers of a task that is being dropped: it has panicked, or its runtime or its owner has ended it.
    pub(crate) fn of_ended_task(what: &str) -> Error {
        match std::thread::panicking() {
            true => Error::Panicked { what: what.to_owned() },
            false => Error::Closed,
        }
    }

    /// The choice that a caller has after this error.
    pub fn class(&self) -> ErrorClass {
        match self {
            Error::Broker { code, .. } => class_of(*code),
            Error::Connect { .. }
            | Error::ConnectionLost { .. }
            | Error::RequestTimedOut { .. }
            | Error::TimedOut { .. }
            | Error::NoLeader { .. } => ErrorClass::Retriable,
            Error::Closed
            | Error::Panicked { .. }
            | Error::ProducerFailed { .. }
            | Error::NotAuthenticated { .. } => ErrorClass::Fatal,
            Error::TransactionFailed { .. } => ErrorClass::Abortable,
            _ => ErrorClass::Permanent,
        }
    }

    /// Returns true if the same request may succeed later.
    pub fn is_retriable(&self) -> bool {
        self.class() == ErrorClass::Retriable
    }

    /// Returns true if another attempt would fail alike. An UNKNOWN_SERVER_ERROR may pass.
    pub(crate) fn would_repeat(&self) -> bool {
        !self.is_retriable() && self.code() != Some(ErrorCode::UNKNOWN_SERVER_ERROR)
    }

    /// The broker's code, if a broker refused.
    pub fn code(&self) -> Option<ErrorCode> {
        match self {
            Error::Broker { code, .. } => Some(*code),
            Error::TimedOut { last: Some(last), .. } => last.code(),
            Error::TransactionFailed { reason } | Error::ProducerFailed { reason } => reason.code(),
            Error::OutOfRange { .. } => Some(ErrorCode::OFFSET_OUT_OF_RANGE),
            _ => None,
        }
    }

    /// The address of the broker that was asked, if it is about one.
    ///
    /// ```
    /// use mainstem_client::{Admin, ClientConfig};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), mainstem_client::Error> {
    /// let refused = Admin::connect(ClientConfig::new("127.0.0.1:1")?).await.unwrap_err();
    /// assert_eq!(refused.broker(), Some("127.0.0.1:1"));
    /// # Ok(())
    /// # }
    /// ```
    pub fn broker(&self) -> Option<&str> {
        match self {
            Error::Broker { broker, .. }
            | Error::Connect { broker, .. }
            | Error::NotAuthenticated { broker, .. }
            | Error::ConnectionLost { broker, .. }
            | Error::RequestTimedOut { broker, .. }
            | Error::Unsupported { broker, .. }
            | Error::Malformed { broker, .. }
            | Error::OutOfRange { broker, .. } => Some(broker),
            Error::TimedOut { last: Some(last), .. } => last.broker(),
            Error::TransactionFailed { reason } | Error::ProducerFailed { reason } => reason.broker(),
            _ => None,
        }
    }
}

fn class_of(code: ErrorCode) -> ErrorClass {
    match code {
        ErrorCode::INVALID_PRODUCER_EPOCH
        | ErrorCode::PRODUCER_FENCED
        | ErrorCode::INVALID_PRODUCER_ID_MAPPING
        | ErrorCode::TRANSACTIONAL_ID_AUTHORIZATION_FAILED
        | ErrorCode::CLUSTER_AUTHORIZATION_FAILED
        | ErrorCode::FENCED_INSTANCE_ID
        | ErrorCode::SASL_AUTHENTICATION_FAILED => ErrorClass::Fatal,
        ErrorCode::TRANSACTION_ABORTABLE | ErrorCode::OUT_OF_ORDER_SEQUENCE_NUMBER => ErrorClass::Abortable,
        // Kafka calls them final, as its consumer has to poll before it continues. Here the member does so by itself, and has its
        // new epoch with the next heartbeat (KIP-848).
        ErrorCode::REBALANCE_IN_PROGRESS | ErrorCode::STALE_MEMBER_EPOCH => ErrorClass::Retriable,
        // The coordinator still ends the transaction before.
        ErrorCode::CONCURRENT_TRANSACTIONS => ErrorClass::Retriable,
        code if code.is_retriable() => ErrorClass::Retriable,
        _ => ErrorClass::Permanent,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_have_their_class() {
        for (code, class) in [
            (ErrorCode::NOT_LEADER_OR_FOLLOWER, ErrorClass::Retriable),
            (ErrorCode::REBALANCE_IN_PROGRESS, ErrorClass::Retriable),
            (ErrorCode::PRODUCER_FENCED, ErrorClass::Fatal),
            (ErrorCode::TRANSACTION_ABORTABLE, ErrorClass::Abortable),
            (ErrorCode::MESSAGE_TOO_LARGE, ErrorClass::Permanent),
        ] {
            assert_eq!(class_of(code), class, "{}", code.name());
        }
    }

    /// The class is the same if the broker refuses the version, and if the client finds that out before it asks.
    #[test]
    fn what_is_not_served_is_of_one_class() {
        let found_out = Error::Unsupported { broker: "b:9092".into(), reason: "ListGroups".into() };
        assert_eq!(found_out.class(), ErrorClass::Permanent);
        assert_eq!(class_of(ErrorCode::UNSUPPORTED_VERSION), ErrorClass::Permanent);
    }

    #[test]
    fn a_connection_that_is_lost_is_reported_with_what_was_asked() {
        let lost = Error::ConnectionLost { broker: "b:9092".into(), api: "Fetch", reason: "reset".into() };
        assert_eq!(lost.to_string(), "b:9092 did not answer Fetch, as the connection was lost: reset");
        assert_eq!(lost.broker(), Some("b:9092"));
    }

    #[test]
    fn messages_say_what_happened_to_what_and_where() {
        let refused = Error::Broker {
            code: ErrorCode::TOPIC_ALREADY_EXISTS,
            message: "Topic 'a' already exists".into(),
            what: "cannot create topic a".into(),
            broker: "b:9092".into(),
        };
        let text = "cannot create topic a: Topic 'a' already exists (TOPIC_ALREADY_EXISTS, from b:9092)";
        assert_eq!(refused.to_string(), text);
        let late = Error::TimedOut {
            what: "the topic's creation".into(),
            after: Duration::from_secs(1),
            last: Some(Box::new(refused)),
        };
        assert_eq!(late.to_string(), format!("the topic's creation was not done within 1s; last: {text}"));
        assert_eq!(late.code(), Some(ErrorCode::TOPIC_ALREADY_EXISTS));
        assert!(late.is_retriable(), "as Kafka's TimeoutException");
    }
}
