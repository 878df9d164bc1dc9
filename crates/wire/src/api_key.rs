//! The APIs: one table gives ApiVersions, dispatch and the versions of headers.

use std::ops::RangeInclusive;

use thiserror::Error;

include!(concat!(env!("OUT_DIR"), "/api_key.rs"));

/// The table's entry for one API.
struct Facts {
    name: &'static str,
    oldest: i16,
    newest: i16,
    /// The first flexible version.
    flexible: i16,
}

/// A key that is not in the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("there is no API {0}")]
pub struct UnknownApiKey(pub i16);

impl ApiKey {
    /// The name in Kafka's schema, as in `Produce`.
    pub const fn name(self) -> &'static str {
        self.facts().name
    }

    /// The key as a number.
    pub const fn key(self) -> i16 {
        self as i16
    }

    /// The stable versions: those that can be decoded and encoded.
    pub const fn versions(self) -> RangeInclusive<i16> {
        self.facts().oldest..=self.facts().newest
    }

    /// The versions to name in an ApiVersions response. Produce claims 0 to 2 too, because librdkafka takes their
    /// absence as a broker without compression (KAFKA-18659); a request in them is refused.
    pub const fn advertised_versions(self) -> RangeInclusive<i16> {
        match self {
            ApiKey::Produce => 0..=self.facts().newest,
            _ => self.versions(),
        }
    }

    /// Returns true if the version can be decoded.
    pub const fn has_version(self, version: i16) -> bool {
        self.facts().oldest <= version && version <= self.facts().newest
    }

    /// The version of the header of a request; also of one that is newer than those known.
    pub const fn request_header_version(self, version: i16) -> i16 {
        if version >= self.facts().flexible { 2 } else { 1 }
    }

    /// The version of the header of a response. ApiVersions always has 0, because a client that reads it does not know
    /// yet what the broker speaks (KIP-511).
    pub const fn response_header_version(self, version: i16) -> i16 {
        match self {
            ApiKey::ApiVersions => 0,
            _ => (version >= self.facts().flexible) as i16,
        }
    }
}
