//! OffsetCommit (8) and OffsetFetch (9) of one group, with topics by their names; commits also by their ids.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use mainstem_wire::messages::offset_commit_request::{
    OffsetCommitRequest, OffsetCommitRequestPartition, OffsetCommitRequestTopic,
};
use mainstem_wire::messages::offset_commit_response::OffsetCommitResponseTopic;
use mainstem_wire::messages::offset_fetch_request::{OffsetFetchRequest, OffsetFetchRequestTopic};
use mainstem_wire::{ErrorCode, Uuid};

use crate::error::Error;
use crate::reply::Reply;
use crate::topic_partition::{TopicPartition, by_topic};

/// The committed offset of a group in a partition, with the metadata beside it.
///
/// ```
/// use mainstem_client::CommittedOffset;
///
/// let committed = CommittedOffset { metadata: "checked".into(), ..CommittedOffset::from(42) };
/// assert_eq!((committed.offset, committed.leader_epoch), (42, None));
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CommittedOffset {
    /// The offset of the next record to be read.
    pub offset: i64,
    /// The epoch of the leader that wrote the record before it, if known. A consumer that continues there can tell that this
    /// record is another one under a new leader (KIP-320).
    pub leader_epoch: Option<i32>,
    /// Text of the committer, which brokers keep as it is, up to `offset.metadata.max.bytes` (4,096 by default).
    pub metadata: String,
    /// The id of the topic that the offset belongs to, if known: the offset is not committed if another topic has that name by
    /// now. It is for commits; none is read back.
    pub topic_id: Option<Uuid>,
}

impl From<i64> for CommittedOffset {
    fn from(offset: i64) -> CommittedOffset {
        CommittedOffset { offset, leader_epoch: None, metadata: String::new(), topic_id: None }
    }
}

/// Committed offsets of partitions; partitions without one are not in it.
pub(crate) type CommittedOffsets = BTreeMap<TopicPartition, CommittedOffset>;

/// An epoch that is not known.
const UNKNOWN_EPOCH: i32 = -1;

impl CommittedOffset {
    /// The epoch as requests have it.
    pub(crate) fn wire_epoch(&self) -> i32 {
        self.leader_epoch.unwrap_or(UNKNOWN_EPOCH)
    }
}

/// The last version of OffsetCommit with names of topics.
pub(crate) const COMMIT_NAMES_UNTIL: i16 = 9;
/// The first one with their ids instead.
pub(crate) const COMMIT_IDS_SINCE: i16 = 10;
/// The last version of OffsetFetch with one group and names of topics.
pub(crate) const FETCH_NAMES_UNTIL: i16 = 7;

/// The request that commits offsets from outside of the group; a member adds its name. Topics have their names and their
/// ids, of which its version takes one.
pub(crate) fn commit_request<'a>(
    group: &'a str,
    offsets: impl IntoIterator<Item = (&'a TopicPartition, &'a CommittedOffset)>,
) -> OffsetCommitRequest<'a> {
    let mut topics: BTreeMap<(&str, Option<Uuid>), OffsetCommitRequestTopic<'_>> = BTreeMap::new();
    for (key, committed) in offsets {
        let entry = topics.entry((&*key.topic, committed.topic_id));
        let topic = entry.or_insert_with(|| OffsetCommitRequestTopic {
            name: Cow::Borrowed(&*key.topic),
            topic_id: committed.topic_id.unwrap_or(Uuid::ZERO),
            ..Default::default()
        });
        topic.partitions.push(OffsetCommitRequestPartition {
            partition_index: key.partition,
            committed_offset: committed.offset,
            committed_leader_epoch: committed.wire_epoch(),
            committed_metadata: Some(Cow::Borrowed(&committed.metadata)),
            ..Default::default()
        });
    }
    OffsetCommitRequest {
        group_id: Cow::Borrowed(group),
        topics: topics.into_values().collect(),
        ..Default::default()
    }
}

/// Partitions that were left out, as their topic does not exist or is another one by now, each with its error.
pub(crate) type Missing = BTreeMap<TopicPartition, Error>;

/// The partitions of a commit that were left out as their topic does not exist; an error if anything else is wrong.
pub(crate) fn missing_of_commit(
    reply: &Reply<OffsetCommitRequest<'_>>,
    group: &str,
    names: &BTreeMap<Uuid, Arc<str>>,
) -> Result<Missing, Error> {
    let response = reply.read()?;
    let name = |topic: &OffsetCommitResponseTopic<'_>| match names.get(&topic.topic_id) {
        Some(name) => name.clone(),
        None => Arc::from(&*topic.name),
    };
    let mut missing = Missing::new();
    for topic in &response.topics {
        let name = name(topic);
        for one in &topic.partitions {
            let key = TopicPartition::new(name.clone(), one.partition_index);
            let what = || format!("cannot set the offset of group {group} in {key}");
            match reply.check(one.error_code, None, what) {
                Err(error) if is_missing(&error) => drop(missing.insert(key, error)),
                checked => checked?,
            }
        }
    }
    Ok(missing)
}

/// Checks that all of a commit is done. The error of a missing topic is returned only if nothing else is wrong: then all other
/// offsets were committed.
pub(crate) fn check_commit(reply: &Reply<OffsetCommitRequest<'_>>, group: &str) -> Result<(), Error> {
    let missing = missing_of_commit(reply, group, &BTreeMap::new())?;
    missing.into_values().next().map_or(Ok(()), Err)
}

/// Returns true if an offset was not committed as its topic does not exist.
pub(crate) fn is_missing(error: &Error) -> bool {
    matches!(error.code(), Some(ErrorCode::UNKNOWN_TOPIC_OR_PARTITION | ErrorCode::UNKNOWN_TOPIC_ID))
}

/// The request for the offsets of some partitions, or of all that the group has. With partitions, it waits for offsets that a running
/// transaction is about to commit (KIP-447).
pub(crate) fn fetch_request<'a>(
    group: &'a str,
    keys: Option<&'a BTreeSet<TopicPartition>>,
) -> OffsetFetchRequest<'a> {
    let topic = |(name, partition_indexes): (&'a str, Vec<i32>)| OffsetFetchRequestTopic {
        name: Cow::Borrowed(name),
        partition_indexes,
        ..Default::default()
    };
    OffsetFetchRequest {
        group_id: Cow::Borrowed(group),
        topics: keys.map(|keys| by_topic(keys).into_iter().map(topic).collect()),
        require_stable: keys.is_some(),
        ..Default::default()
    }
}

/// The committed offsets in a response.
pub(crate) fn read_committed(
    reply: &Reply<OffsetFetchRequest<'_>>,
    group: &str,
) -> Result<CommittedOffsets, Error> {
    let response = reply.read()?;
    let refused = || format!("cannot read the offsets of group {group}");
    reply.check(response.error_code, None, refused)?;
    let mut committed = BTreeMap::new();
    for topic in &response.topics {
        for one in &topic.partitions {
            reply.check(one.error_code, None, refused)?;
            let key = TopicPartition::new(&*topic.name, one.partition_index);
            let found = CommittedOffset {
                offset: one.committed_offset,
                leader_epoch: Some(one.committed_leader_epoch).filter(|epoch| *epoch >= 0),
                metadata: one.metadata.as_deref().unwrap_or_default().to_owned(),
                topic_id: None,
            };
            committed.extend((found.offset >= 0).then_some((key, found)));
        }
    }
    Ok(committed)
}
