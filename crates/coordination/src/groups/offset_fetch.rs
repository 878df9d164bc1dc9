//! OffsetFetch (9), v1-10: the durable offsets of groups.
//!
//! The coordinator serves one group at a time. [`groups_of`] and [`response`] are for the driver, which authorises
//! groups and topics and resolves topic ids in between.

use std::collections::HashSet;

use mainstem_wire::messages::offset_fetch_request::{
    OffsetFetchRequest, OffsetFetchRequestGroup, OffsetFetchRequestTopics,
};
use mainstem_wire::messages::offset_fetch_response::{
    OffsetFetchResponse, OffsetFetchResponseGroup, OffsetFetchResponsePartition,
    OffsetFetchResponsePartitions, OffsetFetchResponseTopic, OffsetFetchResponseTopics,
};
use mainstem_wire::{ErrorCode, Uuid};

use super::committed_offset::CommittedOffset;
use super::consumer::commit::may_fetch;
use super::group::{Group, Groups, Protocol};
use super::offsets::{Offsets, Reading, TopicNames};
use super::open_offsets::OpenOffsets;
use super::shared_map::SharedMap;

/// The offset in the answer for a partition without a committed offset.
const INVALID_OFFSET: i64 = -1;
/// Before this version a request has one group, without a list.
pub const SEVERAL_GROUPS_SINCE: i16 = 8;
/// Before this version only partitions have errors.
const GROUP_ERROR_SINCE: i16 = 2;

/// One group's request, kept until it is answered.
pub type Fetch = OffsetFetchRequestGroup<'static>;

/// The groups of a request of any version, in the form that v8 and later have.
///
/// A group counts once, as does a partition of it, however often they are named: an answer is no larger than what is
/// stored.
pub fn groups_of<'a>(request: OffsetFetchRequest<'a>, api_version: i16) -> Vec<OffsetFetchRequestGroup<'a>> {
    let mut groups = named_groups(request, api_version);
    let mut seen = HashSet::new();
    groups.retain(|group| seen.insert(group.group_id.clone()));
    for topics in groups.iter_mut().filter_map(|group| group.topics.as_mut()) {
        let mut seen = HashSet::new();
        topics.retain_mut(|topic| {
            let (name, id, is_empty) =
                (topic.name.clone(), topic.topic_id, topic.partition_indexes.is_empty());
            topic.partition_indexes.retain(|index| seen.insert((name.clone(), id, *index)));
            is_empty || !topic.partition_indexes.is_empty()
        });
    }
    groups
}

fn named_groups<'a>(request: OffsetFetchRequest<'a>, api_version: i16) -> Vec<OffsetFetchRequestGroup<'a>> {
    if api_version >= SEVERAL_GROUPS_SINCE {
        return request.groups;
    }
    let topics = request.topics.map(|topics| {
        let topic = topics.into_iter().map(|topic| OffsetFetchRequestTopics {
            name: topic.name,
            partition_indexes: topic.partition_indexes,
            ..Default::default()
        });
        topic.collect()
    });
    vec![OffsetFetchRequestGroup { group_id: request.group_id, topics, ..Default::default() }]
}

/// The response of any version to a request whose groups got these answers.
pub fn response<'a>(
    mut groups: Vec<OffsetFetchResponseGroup<'a>>,
    api_version: i16,
) -> OffsetFetchResponse<'a> {
    if api_version >= SEVERAL_GROUPS_SINCE {
        return OffsetFetchResponse { groups, ..Default::default() };
    }
    let Some(group) = groups.pop() else { return OffsetFetchResponse::default() };
    let partition = |partition: OffsetFetchResponsePartitions<'a>| OffsetFetchResponsePartition {
        partition_index: partition.partition_index,
        committed_offset: partition.committed_offset,
        committed_leader_epoch: partition.committed_leader_epoch,
        metadata: partition.metadata,
        error_code: partition.error_code,
        ..Default::default()
    };
    let topics = group.topics.into_iter().map(|topic| OffsetFetchResponseTopic {
        name: topic.name,
        partitions: topic.partitions.into_iter().map(partition).collect(),
        ..Default::default()
    });
    let error_code = if api_version >= GROUP_ERROR_SINCE { group.error_code } else { ErrorCode::NONE.0 };
    OffsetFetchResponse { topics: topics.collect(), error_code, ..Default::default() }
}

/// The answer with an error for the group; before v2 each partition has it.
pub fn refused(
    fetch: &OffsetFetchRequestGroup<'_>,
    error: ErrorCode,
    api_version: i16,
) -> OffsetFetchResponseGroup<'static> {
    let topics = match &fetch.topics {
        Some(topics) if api_version < GROUP_ERROR_SINCE => {
            topics.iter().map(|topic| named(topic, |index| absent(index, error))).collect()
        }
        _ => Vec::new(),
    };
    let group_id = fetch.group_id.to_string().into();
    OffsetFetchResponseGroup { group_id, topics, error_code: error.0, ..Default::default() }
}

/// The answer to one group's request: its offsets as they were at one moment. They are shared with the coordinator, so their number does
/// not hold it up: [`response`](Fetched::response) reads them without it.
#[derive(Debug, Clone, PartialEq)]
pub struct Fetched {
    fetch: Fetch,
    api_version: i16,
    found: Result<Found, ErrorCode>,
}

#[derive(Debug, Clone, Default, PartialEq)]
struct Found {
    offsets: Offsets,
    /// With `require_stable` (KIP-447): the offset of a partition that is in here is UNSTABLE_OFFSET_COMMIT.
    open: OpenOffsets,
    // The last field is dropped last.
    _reading: Reading,
}

impl Fetched {
    /// An answer that is an error.
    pub fn refused(fetch: Fetch, error: ErrorCode, api_version: i16) -> Self {
        Self { fetch, api_version, found: Err(error) }
    }

    /// The group's part of the response.
    pub fn response(&self) -> OffsetFetchResponseGroup<'static> {
        let found = match &self.found {
            Ok(found) => found,
            Err(error) => return refused(&self.fetch, *error, self.api_version),
        };
        let topics = match &self.fetch.topics {
            Some(topics) => topics.iter().map(|topic| found.topic(topic)).collect(),
            None => found.all_topics(),
        };
        OffsetFetchResponseGroup {
            group_id: self.fetch.group_id.to_string().into(),
            topics,
            ..Default::default()
        }
    }
}

/// Reads the durable offsets as they are now.
pub(crate) fn fetch(groups: &Groups, names: &TopicNames, fetch: Fetch, require_stable: bool) -> Fetched {
    let group = groups.get(&*fetch.group_id);
    if let Some(Group { protocol: Protocol::Consumer(consumer), .. }) = group
        && let Err(error) = may_fetch(consumer, fetch.member_id.as_deref(), fetch.member_epoch)
    {
        // Only versions with errors for groups carry members.
        return Fetched::refused(fetch, error, i16::MAX);
    }
    let found = group.map_or_else(Found::default, |group| Found {
        offsets: group.offsets.clone(),
        open: if require_stable { group.open_offsets.clone() } else { OpenOffsets::default() },
        _reading: names.reading(),
    });
    Fetched { fetch, api_version: i16::MAX, found: Ok(found) }
}

impl Found {
    fn topic(&self, topic: &OffsetFetchRequestTopics<'_>) -> OffsetFetchResponseTopics<'static> {
        let same_topic = |offset: &&CommittedOffset| is_same_topic(offset.topic_id, topic.topic_id);
        named(topic, |index| {
            if self.open.contains(&topic.name, index) {
                return absent(index, ErrorCode::UNSTABLE_OFFSET_COMMIT);
            }
            let offset = self.offsets.get(&topic.name, index);
            offset
                .filter(same_topic)
                .map_or_else(|| absent(index, ErrorCode::NONE), |offset| present(index, offset))
        })
    }

    /// Every partition that has an offset, except those that only an open transaction has written, as in Kafka.
    fn all_topics(&self) -> Vec<OffsetFetchResponseTopics<'static>> {
        let partition =
            |topic: &str, index: i32, offset: &CommittedOffset| match self.open.contains(topic, index) {
                true => absent(index, ErrorCode::UNSTABLE_OFFSET_COMMIT),
                false => present(index, offset),
            };
        let partitions = |topic: &str, offsets: &SharedMap<i32, CommittedOffset>| {
            offsets.iter().map(|(index, offset)| partition(topic, *index, offset)).collect()
        };
        let topics = self.offsets.iter().map(|(topic, offsets)| OffsetFetchResponseTopics {
            name: topic.to_string().into(),
            partitions: partitions(topic, offsets),
            ..Default::default()
        });
        topics.collect()
    }
}

/// Returns true if an offset belongs to the topic that is asked for, and not to an earlier one of the same name.
fn is_same_topic(committed: Uuid, asked: Uuid) -> bool {
    committed.is_zero() || asked.is_zero() || committed == asked
}

fn named(
    topic: &OffsetFetchRequestTopics<'_>,
    partition: impl Fn(i32) -> OffsetFetchResponsePartitions<'static>,
) -> OffsetFetchResponseTopics<'static> {
    OffsetFetchResponseTopics {
        name: topic.name.to_string().into(),
        topic_id: topic.topic_id,
        partitions: topic.partition_indexes.iter().map(|index| partition(*index)).collect(),
        ..Default::default()
    }
}

fn present(partition_index: i32, offset: &CommittedOffset) -> OffsetFetchResponsePartitions<'static> {
    OffsetFetchResponsePartitions {
        partition_index,
        committed_offset: offset.offset,
        committed_leader_epoch: offset.leader_epoch,
        metadata: Some(offset.metadata().to_string().into()),
        ..Default::default()
    }
}

fn absent(partition_index: i32, error: ErrorCode) -> OffsetFetchResponsePartitions<'static> {
    OffsetFetchResponsePartitions {
        partition_index,
        committed_offset: INVALID_OFFSET,
        committed_leader_epoch: -1,
        metadata: Some("".into()),
        error_code: error.0,
        ..Default::default()
    }
}

/// A copy that outlives the frame, as the coordinator takes it.
pub fn owned(fetch: &OffsetFetchRequestGroup<'_>) -> Fetch {
    let topic = |topic: &OffsetFetchRequestTopics<'_>| OffsetFetchRequestTopics {
        name: topic.name.to_string().into(),
        topic_id: topic.topic_id,
        partition_indexes: topic.partition_indexes.clone(),
        ..Default::default()
    };
    OffsetFetchRequestGroup {
        group_id: fetch.group_id.to_string().into(),
        member_id: fetch.member_id.as_ref().map(|id| id.to_string().into()),
        member_epoch: fetch.member_epoch,
        topics: fetch.topics.as_ref().map(|topics| topics.iter().map(topic).collect()),
        ..Default::default()
    }
}
