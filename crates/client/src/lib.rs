//! A native client for Mainstem and Apache Kafka.
//!
//! Async on tokio, with no C in the protocol. [`Producer`] writes records to topics; [`ClientConfig`] says where the
//! brokers are and how long to try. Versions are negotiated for each request with each broker.
//!
//! Architecture invariant: what decides about records (order, sequence numbers, retries, partitions) is a plain struct
//! that is given the time; the tasks around it only move bytes.

mod backoff;
mod cluster;
mod config;
mod connection;
mod error;
mod producer;
mod reply;
mod retry;

pub use cluster::{Partition, Topic};
pub use config::ClientConfig;
pub use error::{Error, ErrorClass};
pub use mainstem_records::Compression;
pub use mainstem_wire::{ErrorCode, Uuid};
pub use producer::{Acks, Delivered, Delivery, Producer, ProducerConfig, Record};
