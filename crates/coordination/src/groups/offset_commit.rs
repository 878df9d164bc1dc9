//! OffsetCommit (8), v2-10: an offset is readable, and its commit answered, once its record is durable.

use mainstem_records::Producer;
use mainstem_wire::messages::offset_commit_request::{
    OffsetCommitRequest, OffsetCommitRequestPartition, OffsetCommitRequestTopic,
};
use mainstem_wire::messages::offset_commit_response::{
    OffsetCommitResponse, OffsetCommitResponsePartition, OffsetCommitResponseTopic,
};
use mainstem_wire::{ErrorCode, Uuid};

use super::api::Reply;
use super::classic::{ClassicGroup, State};
use super::committed_offset::{CommittedOffset, PendingOffset, TopicPartition};
use super::completion::Completion;
use super::consumer::commit::committer;
use super::consumer::group::ConsumerGroup;
use super::durable_offsets::release;
use super::group::{Group, Groups, Protocol};
use super::heartbeat::keep_alive;
use super::io::Io;
use super::token::Token;
use super::{memory, records, refused};

/// From this version on the error for an unknown group is GROUP_ID_NOT_FOUND; before, clients only know ILLEGAL_GENERATION.
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
    let (response, offsets) = checked_offsets(io, request);
    let answer = Reply::OffsetCommit(response);
    write(groups, io, Commit { group: &request.group_id, producer: None, offsets, token, answer });
}

/// Offsets that may be committed, and the answer to the commit.
pub(crate) struct Commit<'r> {
    pub(crate) group: &'r str,
    /// The producer whose transaction they are a part of.
    pub(crate) producer: Option<Producer>,
    pub(crate) offsets: Vec<PendingOffset>,
    pub(crate) token: Token,
    pub(crate) answer: Reply,
}

/// Writes offsets if they fit into the limits; the answer waits for that.
pub(crate) fn write(groups: &Groups, io: &mut Io<'_>, commit: Commit<'_>) {
    if !commit.offsets.is_empty() && !fits_limits(groups.get(commit.group), io, &commit) {
        release(io, commit.offsets);
        let refused = refused::with_error(commit.answer, ErrorCode::INVALID_COMMIT_OFFSET_SIZE);
        return io.reply(commit.token, refused);
    }
    let Commit { group, producer, offsets, token, answer } = commit;
    if offsets.is_empty() {
        return io.reply(token, answer);
    }
    let record = |PendingOffset { at, offset }: &PendingOffset| {
        records::offset_commit(group, &at.topic, at.partition, offset)
    };
    let records = offsets.iter().map(record).collect();
    let producer_id = producer.map(|producer| producer.id);
    let held = Some((token, answer));
    io.append_for(producer, records, Completion::Commit { group: group.into(), producer_id, offsets, held });
}

/// Returns true if the offsets of a commit fit into the limits. Offsets of a transaction are kept beside the committed ones until it ends.
fn fits_limits(group: Option<&Group>, io: &Io<'_>, commit: &Commit<'_>) -> bool {
    let (mut added, mut growth) = (0, 0);
    if group.is_none() {
        growth += memory::GROUP + commit.group.len();
    }
    let kept = if commit.producer.is_some() { memory::open_offset } else { memory::offset };
    for PendingOffset { at, offset } in &commit.offsets {
        let known = group.and_then(|group| match commit.producer {
            Some(producer) => group.open_offsets.get(&at.topic, at.partition, producer.id),
            None => group.offsets.get(&at.topic, at.partition),
        });
        added += usize::from(known.is_none());
        growth += kept(offset).saturating_sub(known.map_or(0, kept));
    }
    let offsets = io.usage.offsets.saturating_add(io.usage.pending_offsets).saturating_add(added);
    (added == 0 || offsets <= io.config.offsets_max) && io.has_memory_for_offsets(growth)
}

/// Checks who commits: a member of the current generation, or, in a group without members, a client that claims no membership (an
/// administrator, or a consumer that assigns its partitions itself). A commit keeps a member's session alive.
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
    may_create(io)
}

/// Refuses one more group if `groups_max` is reached.
pub(crate) fn may_create(io: &Io<'_>) -> Result<(), ErrorCode> {
    let is_allowed = io.usage.groups < io.config.groups_max;
    if is_allowed { Ok(()) } else { Err(ErrorCode::COORDINATOR_NOT_AVAILABLE) }
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

/// Separates the offsets that can be written from those that cannot; the response has the errors.
fn checked_offsets(
    io: &mut Io<'_>,
    request: &OffsetCommitRequest<'_>,
) -> (OffsetCommitResponse<'static>, Vec<PendingOffset>) {
    let mut offsets = Vec::new();
    let response = answer(request, |topic, partition| {
        let expire = (request.retention_time_ms != -1)
            .then(|| io.now.wall_ms.saturating_add(request.retention_time_ms));
        let metadata = partition.committed_metadata.as_deref().unwrap_or_default();
        let given = Given { topic: &topic.name, partition: partition.partition_index, metadata };
        let at = match given.place(io) {
            Ok(at) => at,
            Err(error) => return error,
        };
        let offset = committed(topic, partition, io.now.wall_ms, expire).with(metadata, expire);
        offsets.push(PendingOffset { at, offset });
        ErrorCode::NONE
    });
    (response, offsets)
}

/// The fields of an offset in a request that are validated.
pub(crate) struct Given<'r> {
    pub(crate) topic: &'r str,
    pub(crate) partition: i32,
    pub(crate) metadata: &'r str,
}

impl Given<'_> {
    /// The partition, if an offset of it can be written.
    ///
    /// # Errors
    /// INVALID_TOPIC_EXCEPTION, OFFSET_METADATA_TOO_LARGE.
    pub(crate) fn place(&self, io: &mut Io<'_>) -> Result<TopicPartition, ErrorCode> {
        if !records::fits(self.topic) {
            return Err(ErrorCode::INVALID_TOPIC_EXCEPTION);
        }
        if is_too_large(self.metadata, io.config.offset_metadata_max_bytes) {
            return Err(ErrorCode::OFFSET_METADATA_TOO_LARGE);
        }
        Ok(TopicPartition { topic: io.topics.intern(self.topic), partition: self.partition })
    }
}

/// The offset as in its record: the one version with an expiry has neither leader epoch nor topic id.
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
