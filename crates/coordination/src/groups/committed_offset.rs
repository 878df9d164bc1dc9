//! One committed offset, and its place.

use std::sync::Arc;

use mainstem_wire::Uuid;

/// One committed offset as `__consumer_offsets` has it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct CommittedOffset {
    /// The next offset that the group reads.
    pub(crate) offset: i64,
    /// The time of the commit, wall clock milliseconds.
    pub(crate) commit_timestamp_ms: i64,
    /// The leader epoch of the last consumed record, -1 if not given.
    pub(crate) leader_epoch: i32,
    /// The topic's id at the commit, zero if not given.
    pub(crate) topic_id: Uuid,
    /// Fields that few offsets have.
    extra: Option<Arc<Extra>>,
}

/// The rare part of an offset, kept out of line so that the common one stays small.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Extra {
    metadata: Box<str>,
    expire_timestamp_ms: Option<i64>,
}

impl CommittedOffset {
    /// An offset with no metadata and no expiry of its own.
    pub(crate) fn new(offset: i64, leader_epoch: i32, commit_timestamp_ms: i64, topic_id: Uuid) -> Self {
        Self { offset, commit_timestamp_ms, leader_epoch, topic_id, extra: None }
    }

    /// The same with the client's metadata, and its own time to expire (OffsetCommit v2-4).
    pub(crate) fn with(mut self, metadata: &str, expire_timestamp_ms: Option<i64>) -> Self {
        self.extra = (!metadata.is_empty() || expire_timestamp_ms.is_some())
            .then(|| Arc::new(Extra { metadata: metadata.into(), expire_timestamp_ms }));
        self
    }

    pub(crate) fn metadata(&self) -> &str {
        self.extra.as_ref().map_or("", |extra| &extra.metadata)
    }

    pub(crate) fn expire_timestamp_ms(&self) -> Option<i64> {
        self.extra.as_ref().and_then(|extra| extra.expire_timestamp_ms)
    }
}

/// A partition of a topic by name.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct TopicPartition {
    pub(crate) topic: Arc<str>,
    pub(crate) partition: i32,
}

/// An offset on its way into the log.
#[derive(Debug, PartialEq)]
pub(crate) struct PendingOffset {
    pub(crate) at: TopicPartition,
    pub(crate) offset: CommittedOffset,
}
