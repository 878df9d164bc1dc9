//! A native client for Mainstem and Apache Kafka.
//!
//! Async on tokio, with no C in the protocol. [`Producer`] writes records to topics, also in transactions.
//! [`Consumer`] reads partitions, [`GroupConsumer`] those that its group assigns to it, and [`Admin`] administers.
//! [`ClientConfig`] has the addresses of brokers and the time limits. Versions are negotiated for each request with each
//! broker. [`Error`] is the one error of all, and [`ErrorClass`] the choice that a caller has after it.
//!
//! # Brokers that it is tested with
//!
//! The same tests run against this repository's broker and against two releases of Apache Kafka, one
//! broker of each. Nothing is claimed of others. A broker before 3.9 is refused with [`Error::Unsupported`], which says so.
//!
//! | Apache Kafka | what is not tested, as the release does not have it |
//! |---|---|
//! | 4.3.0 | |
//! | 3.9.2 (KRaft) | patterns of the consumer protocol, settings of groups, [`Admin::config_resources`]; groups of the consumer protocol are tested with the preview that `group.coordinator.rebalance.protocols=classic,consumer` turns on |
//!
//! A feature that a broker lacks is refused with [`Error::Unsupported`], which names it; nothing is done half instead.
//!
//! Architecture invariant: a plain struct, which is given the time, decides about records (order, sequence numbers, retries,
//! partitions); the tasks around it only move bytes.

mod admin;
mod backoff;
mod cluster;
mod config;
mod connection;
mod consumer;
mod epochs;
mod error;
mod group;
mod offsets;
#[cfg(test)]
mod older_brokers;
mod producer;
mod questions;
mod reply;
mod retry;
mod sasl;
#[cfg(test)]
mod secured_brokers;
#[cfg(test)]
mod testing;
mod tls;
mod topic_partition;

pub use admin::{
    AclFilter, ActiveProducer, Admin, BrokerDescription, ClusterDescription, ConfigChange, ConfigEntry,
    ConfigResource, ConfigSource, CreatedTopic, Election, Feature, FeatureUpgrade, GroupDescription,
    GroupFilter, GroupListing, GroupMember, HangingTransaction, LogDir, LogDirReplica, NewTopic,
    PartitionReplicas, Quorum, QuorumReplica, QuotaEntity, QuotaFilter, Reassignment, ScramCredential,
    ScramMechanism, TransactionDescription, TransactionFilter, TransactionListing,
};
pub use cluster::{Partition, Topic};
pub use config::ClientConfig;
pub use consumer::{
    Consumer, ConsumerConfig, FetchedBatch, FetchedRecords, Isolation, OutOfRange, OwnedRecord, Position,
    Positions, RecordRange, RecordStream, SharedRecords,
};
pub use error::{Error, ErrorClass};
pub use group::{
    CommittedOffset, GroupConfig, GroupConsumer, GroupEvent, GroupOffsets, GroupProtocol, HookFuture,
    PendingCommit, RebalanceHooks, Revoking, Subscription,
};
pub use mainstem_records::{Compression, Header, Headers, Record as FetchedRecord};
pub use mainstem_security::acl;
pub use mainstem_wire::{ErrorCode, Uuid};
pub use producer::{Acks, Delivered, Delivery, Producer, ProducerConfig, Record, partition_of_key};
pub use sasl::Sasl;
pub use tls::Tls;
pub use topic_partition::TopicPartition;
