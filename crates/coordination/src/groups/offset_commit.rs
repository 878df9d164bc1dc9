//! OffsetCommit (8), v2-10: an offset is readable, and its commit answered, once its record is durable.

use std::sync::Arc;

use mainstem_wire::messages::offset_commit_request::{
    OffsetCommitRequest, OffsetCommitRequestPartition, OffsetCommitRequestTopic,
};
use mainstem_wire::messages::offset_commit_response::{
    OffsetCommitResponse, OffsetCommitResponsePartition, OffsetCommitResponseTopic,
};
use mainstem_wire::{ErrorCode, Uuid};

use super::api::{Reply, Token};
use super::appends::{Completion, PendingOffset};
use super::classic::{ClassicGroup, State};
use super::consumer::commit::committer;
use super::consumer::group::ConsumerGroup;
use super::group::{Group, Groups, Protocol};
use super::heartbeat::keep_alive;
use super::io::Io;
use super::offsets::{CommittedOffset, TopicPartition};
use super::{memory, records};

/// From this version on an unknown group is called so; before, clients only know ILLEGAL_GENERATION.
const GROUP_ID_NOT_FOUND_SINCE: i16 = 9;

/// Serves an OffsetCommit.
pub(crate) fn commit(
    groups: &mut Groups,
    io: &mut Io<'_>,
    token: Token,
    api_version: i16,
    request: &OffsetCommitRequest<'_>,
) {
    if let Err(error) = validate(groups, io, api_version, request) {
        return io.reply(token, refused(request, error));
    }
    let (response, offsets) = sift(io, request);
    if offsets.is_empty() {
        return io.reply(token, Reply::OffsetCommit(response));
    }
    if !have_room(groups.get(&*request.group_id), io, &request.group_id, &offsets) {
        release(io, offsets);
        return io.reply(token, refused(request, ErrorCode::INVALID_COMMIT_OFFSET_SIZE));
    }
    let records = offsets
        .iter()
        .map(|PendingOffset { at, offset }| {
            records::offset_commit(&request.group_id, &at.topic, at.partition, offset)
        })
        .collect();
    let group = Arc::from(&*request.group_id);
    io.append(records, Completion::Commit { group, offsets, waiting: Some((token, response)) });
}

/// Whether what the offsets add to those of their group may be kept.
fn have_room(group: Option<&Group>, io: &Io<'_>, id: &str, offsets: &[PendingOffset]) -> bool {
    let (mut added, mut growth) = (0, 0);
    if group.is_none() {
        growth += memory::GROUP + id.len();
    }
    for PendingOffset { at, offset } in offsets {
        let known = group.and_then(|group| group.offsets.get(&at.topic, at.partition));
        added += usize::from(known.is_none());
        growth += memory::offset(offset).saturating_sub(known.map_or(0, memory::offset));
    }
    (added == 0 || io.usage.offsets.saturating_add(added) <= io.config.offsets_max) && io.has_room(growth)
}

/// Who may commit: a member of the current generation, or, to a group without members, anybody who claims to be none
/// (an administrator, or a consumer that assigns its partitions itself). A commit keeps a member's session alive.
fn validate(
    groups: &mut Groups,
    io: &mut Io<'_>,
    api_version: i16,
    request: &OffsetCommitRequest<'_>,
) -> Result<(), ErrorCode> {
    if !records::fits(&request.group_id) {
        return Err(ErrorCode::INVALID_GROUP_ID);
    }
    let Some(group) = groups.get_mut(&*request.group_id) else {
        return validate_unknown(io, api_version, request.generation_id_or_member_epoch);
    };
    let group = match &mut group.protocol {
        Protocol::Classic(group) => group,
        Protocol::Consumer(group) => return validate_consumer(group, io, api_version, request),
    };
    validate_member(group, request)?;
    if matches!(group.state, State::Stable | State::PreparingRebalance) {
        keep_alive(group, io, &request.member_id);
    }
    Ok(())
}

/// One partition that the member may not commit is enough to refuse all, as in Kafka.
fn validate_consumer(
    group: &ConsumerGroup,
    io: &Io<'_>,
    api_version: i16,
    request: &OffsetCommitRequest<'_>,
) -> Result<(), ErrorCode> {
    let epoch = request.generation_id_or_member_epoch;
    let committer = committer(group, api_version, &request.member_id, epoch)?;
    for topic in &request.topics {
        let known = io.cluster.get(&topic.name).map_or(Uuid::ZERO, |known| known.id);
        let id = if topic.topic_id.is_zero() { known } else { topic.topic_id };
        for partition in &topic.partitions {
            committer.check(&(id, partition.partition_index))?;
        }
    }
    Ok(())
}

fn validate_unknown(io: &Io<'_>, api_version: i16, generation: i32) -> Result<(), ErrorCode> {
    if generation >= 0 {
        let known = api_version >= GROUP_ID_NOT_FOUND_SINCE;
        return Err(if known { ErrorCode::GROUP_ID_NOT_FOUND } else { ErrorCode::ILLEGAL_GENERATION });
    }
    let room = io.usage.groups < io.config.groups_max;
    if room { Ok(()) } else { Err(ErrorCode::COORDINATOR_NOT_AVAILABLE) }
}

fn validate_member(group: &ClassicGroup, request: &OffsetCommitRequest<'_>) -> Result<(), ErrorCode> {
    let generation = request.generation_id_or_member_epoch;
    let instance = request.group_instance_id.as_deref();
    if group.state == State::Dead {
        return Err(ErrorCode::COORDINATOR_NOT_AVAILABLE);
    }
    if generation < 0 && group.state == State::Empty {
        return Ok(());
    }
    if generation < 0 && request.member_id.is_empty() && instance.is_none() {
        return if group.state == State::Empty { Ok(()) } else { Err(ErrorCode::UNKNOWN_MEMBER_ID) };
    }
    group.validate_member(&request.member_id, instance)?;
    if generation != group.generation {
        Err(ErrorCode::ILLEGAL_GENERATION)
    } else if group.state == State::CompletingRebalance {
        // The member knows of the new generation but has no assignment in it yet.
        Err(ErrorCode::REBALANCE_IN_PROGRESS)
    } else {
        Ok(())
    }
}

/// Parts the offsets that can be written from those that cannot; the response says which.
fn sift(
    io: &mut Io<'_>,
    request: &OffsetCommitRequest<'_>,
) -> (OffsetCommitResponse<'static>, Vec<PendingOffset>) {
    let mut offsets = Vec::new();
    let response = answer(request, |topic, partition| {
        let expire = (request.retention_time_ms != -1)
            .then(|| io.now.wall_ms.saturating_add(request.retention_time_ms));
        let metadata = partition.committed_metadata.as_deref().unwrap_or_default();
        if !records::fits(&topic.name) {
            return ErrorCode::INVALID_TOPIC_EXCEPTION;
        }
        if is_too_large(metadata, io.config.offset_metadata_max_bytes) {
            return ErrorCode::OFFSET_METADATA_TOO_LARGE;
        }
        let at =
            TopicPartition { topic: io.topics.intern(&topic.name), partition: partition.partition_index };
        let offset = committed(topic, partition, io.now.wall_ms, expire).with(metadata, expire);
        offsets.push(PendingOffset { at, offset });
        ErrorCode::NONE
    });
    (response, offsets)
}

/// The offset as its record will say it: the one version with an expiry has neither leader epoch nor topic id.
fn committed(
    topic: &OffsetCommitRequestTopic<'_>,
    partition: &OffsetCommitRequestPartition<'_>,
    wall_ms: i64,
    expire: Option<i64>,
) -> CommittedOffset {
    let offset = partition.committed_offset;
    match expire {
        Some(_) => CommittedOffset::new(offset, -1, wall_ms, Uuid::ZERO),
        None => CommittedOffset::new(offset, partition.committed_leader_epoch, wall_ms, topic.topic_id),
    }
}

/// Kafka compares `offset.metadata.max.bytes` with the length in UTF-16 units. Beyond 16 bits it could not be written.
fn is_too_large(metadata: &str, max: i32) -> bool {
    let max = usize::try_from(max).unwrap_or(0);
    !records::fits(metadata) || (metadata.len() > max && metadata.encode_utf16().count() > max)
}

/// The answer that names every partition of the request, with the error that `error` gives it.
fn answer(
    request: &OffsetCommitRequest<'_>,
    mut error: impl FnMut(&OffsetCommitRequestTopic<'_>, &OffsetCommitRequestPartition<'_>) -> ErrorCode,
) -> OffsetCommitResponse<'static> {
    let mut topics = Vec::with_capacity(request.topics.len());
    for topic in &request.topics {
        let partitions = topic.partitions.iter().map(|partition| OffsetCommitResponsePartition {
            partition_index: partition.partition_index,
            error_code: error(topic, partition).0,
            ..Default::default()
        });
        topics.push(OffsetCommitResponseTopic {
            partitions: partitions.collect(),
            name: topic.name.to_string().into(),
            topic_id: topic.topic_id,
            ..Default::default()
        });
    }
    OffsetCommitResponse { topics, ..Default::default() }
}

/// The answer with one error for everything.
pub(crate) fn refused(request: &OffsetCommitRequest<'_>, error: ErrorCode) -> Reply {
    Reply::OffsetCommit(answer(request, |_, _| error))
}

/// The outcome of a commit's append.
pub(crate) fn committed_offsets(
    groups: &mut Groups,
    io: &mut Io<'_>,
    group: &Arc<str>,
    offsets: Vec<PendingOffset>,
) {
    for PendingOffset { at, offset } in offsets {
        insert(groups, io, group, at, offset);
    }
}

/// Makes a durable offset readable. A group that was unknown until now only stores offsets.
pub(crate) fn insert(
    groups: &mut Groups,
    io: &mut Io<'_>,
    group: &Arc<str>,
    at: TopicPartition,
    offset: CommittedOffset,
) {
    let entry = groups.entry(group.clone()).or_insert_with(|| {
        io.usage.groups += 1;
        let mut group = Group::new(group.clone(), io.now.wall_ms);
        if let Some(classic) = group.classic() {
            io.recount(classic);
        }
        group
    });
    io.usage.bytes += memory::offset(&offset);
    match entry.offsets.insert(&at.topic, at.partition, offset) {
        Some(replaced) => io.usage.bytes -= memory::offset(&replaced),
        None => io.usage.offsets += 1,
    }
    io.topics.release(at.topic);
}

/// The answer to a commit whose append failed, or took too long.
pub(crate) fn not_committed(mut response: OffsetCommitResponse<'static>, error: ErrorCode) -> Reply {
    for partition in response.topics.iter_mut().flat_map(|topic| &mut topic.partitions) {
        partition.error_code = error.0;
    }
    Reply::OffsetCommit(response)
}

/// Gives up offsets that will not be written.
pub(crate) fn release(io: &mut Io<'_>, offsets: Vec<PendingOffset>) {
    for pending in offsets {
        io.topics.release(pending.at.topic);
    }
}
