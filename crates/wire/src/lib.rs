//! Kafka 4.3 messages, generated from a compact table of facts: frames, primitive types, every version byte for byte.
