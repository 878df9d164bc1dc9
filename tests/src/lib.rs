//! What crosses crates: shared pieces of the integration tests.
