//! The Kafka record batch (format v2): build, borrow, validate, compress.
