//! TxnOffsetCommit (28), v0-5: offsets that are committed or aborted with a transaction's records (KIP-98, KIP-447).
//!
//! The request is answered when its records are durable. They belong to the producer's transaction, and take effect with its marker: see
//! [`transaction_offsets`](super::transaction_offsets).

use mainstem_records::{Producer, ProducerEpoch, ProducerId};
use mainstem_wire::messages::txn_offset_commit_request::{
    TxnOffsetCommitRequest, TxnOffsetCommitRequestPartition, TxnOffsetCommitRequestTopic,
};
use mainstem_wire::messages::txn_offset_commit_response::{
    TxnOffsetCommitResponse, TxnOffsetCommitResponsePartition, TxnOffsetCommitResponseTopic,
};
use mainstem_wire::{ErrorCode, Uuid};

use super::api::{Reply, append_error};
use super::classic::{ClassicGroup, State};
use super::committed_offset::{CommittedOffset, PendingOffset};
use super::consumer::commit::transactional_committer;
use super::consumer::group::ConsumerGroup;
use super::group::{Groups, Protocol};
use super::io::Io;
use super::offset_commit::{self, Commit, Given, may_create};
use super::records;
use super::token::Token;

/// Producers before this version take COORDINATOR_LOAD_IN_PROGRESS for fatal.
const LOAD_IN_PROGRESS_SINCE: i16 = 2;

/// Serves a TxnOffsetCommit.
pub(crate) fn commit(
    groups: &mut Groups,
    io: &mut Io<'_>,
    token: Token,
    api_version: i16,
    request: &TxnOffsetCommitRequest<'_>,
) {
    if let Err(error) = validate(groups, io, request) {
        return io.reply(token, Reply::TxnOffsetCommit(refused(request, error, api_version)));
    }
    let (response, offsets) = checked_offsets(io, request);
    let epoch = ProducerEpoch::new(request.producer_epoch);
    let producer = Producer { id: ProducerId::new(request.producer_id), epoch };
    let commit = Commit {
        group: &request.group_id,
        producer: Some(producer),
        offsets,
        token,
        answer: Reply::TxnOffsetCommit(response),
    };
    offset_commit::write(groups, io, commit);
}

/// Checks who commits: a member of the current generation, a client that names no member, or, in a group without members, a client that
/// claims no membership. Producers do not keep a member's session alive.
fn validate(groups: &Groups, io: &Io<'_>, request: &TxnOffsetCommitRequest<'_>) -> Result<(), ErrorCode> {
    if !records::fits(&request.group_id) {
        return Err(ErrorCode::INVALID_GROUP_ID);
    }
    match groups.get(&*request.group_id).map(|group| &group.protocol) {
        None if request.generation_id >= 0 => Err(ErrorCode::ILLEGAL_GENERATION),
        None => may_create(io),
        Some(Protocol::Classic(group)) => validate_member(group, request),
        Some(Protocol::Consumer(group)) => {
            validate_consumer(group, io, request).map_err(|error| match error {
                // Producers do not know that error.
                ErrorCode::STALE_MEMBER_EPOCH => ErrorCode::ILLEGAL_GENERATION,
                other => other,
            })
        }
    }
}

fn validate_member(group: &ClassicGroup, request: &TxnOffsetCommitRequest<'_>) -> Result<(), ErrorCode> {
    let instance = request.group_instance_id.as_deref();
    let says_nothing = request.member_id.is_empty() && instance.is_none();
    if group.state == State::Dead {
        return Err(ErrorCode::COORDINATOR_NOT_AVAILABLE);
    }
    if request.generation_id < 0 && (says_nothing || group.state == State::Empty) {
        return Ok(());
    }
    group.validate_member(&request.member_id, instance)?;
    // Before the generation has its assignment too: producers do not know REBALANCE_IN_PROGRESS.
    if request.generation_id == group.generation { Ok(()) } else { Err(ErrorCode::ILLEGAL_GENERATION) }
}

/// One partition that the member may not commit is enough to refuse all, as in Kafka.
fn validate_consumer(
    group: &ConsumerGroup,
    io: &Io<'_>,
    request: &TxnOffsetCommitRequest<'_>,
) -> Result<(), ErrorCode> {
    let instance = request.group_instance_id.as_deref();
    let committer = transactional_committer(group, &request.member_id, instance, request.generation_id)?;
    for topic in &request.topics {
        let id = io.cluster.get(&topic.name).map_or(Uuid::ZERO, |known| known.id);
        for partition in &topic.partitions {
            committer.check(&(id, partition.partition_index))?;
        }
    }
    Ok(())
}

/// Separates the offsets that can be written from those that cannot; the response has the errors.
fn checked_offsets(
    io: &mut Io<'_>,
    request: &TxnOffsetCommitRequest<'_>,
) -> (TxnOffsetCommitResponse<'static>, Vec<PendingOffset>) {
    let mut offsets = Vec::new();
    let response = answer(request, |topic, partition| {
        let metadata = partition.committed_metadata.as_deref().unwrap_or_default();
        let given = Given { topic: &topic.name, partition: partition.partition_index, metadata };
        let at = match given.place(io) {
            Ok(at) => at,
            Err(error) => return error,
        };
        let (offset, epoch) = (partition.committed_offset, partition.committed_leader_epoch);
        let offset = CommittedOffset::new(offset, epoch, io.now.wall_ms, Uuid::ZERO).with(metadata, None);
        offsets.push(PendingOffset { at, offset });
        ErrorCode::NONE
    });
    (response, offsets)
}

/// The answer that names every partition of the request, with the error that `error` gives it.
fn answer(
    request: &TxnOffsetCommitRequest<'_>,
    mut error: impl FnMut(&TxnOffsetCommitRequestTopic<'_>, &TxnOffsetCommitRequestPartition<'_>) -> ErrorCode,
) -> TxnOffsetCommitResponse<'static> {
    let mut topics = Vec::with_capacity(request.topics.len());
    for topic in &request.topics {
        let partitions = topic.partitions.iter().map(|partition| TxnOffsetCommitResponsePartition {
            partition_index: partition.partition_index,
            error_code: error(topic, partition).0,
            ..Default::default()
        });
        let partitions = partitions.collect();
        let name = topic.name.to_string().into();
        topics.push(TxnOffsetCommitResponseTopic { name, partitions, ..Default::default() });
    }
    TxnOffsetCommitResponse { topics, ..Default::default() }
}

/// The answer with one error for everything: the error of the group's coordinator, of the transaction's, or of the log, as a producer of
/// this version understands it.
pub fn refused(
    request: &TxnOffsetCommitRequest<'_>,
    error: ErrorCode,
    api_version: i16,
) -> TxnOffsetCommitResponse<'static> {
    let error = match error {
        // The transaction's coordinator could not be reached (KIP-890): the producer has to try again, here.
        ErrorCode::NETWORK_EXCEPTION => ErrorCode::COORDINATOR_LOAD_IN_PROGRESS,
        other => append_error(other),
    };
    let error = match error {
        ErrorCode::COORDINATOR_LOAD_IN_PROGRESS if api_version < LOAD_IN_PROGRESS_SINCE => {
            ErrorCode::COORDINATOR_NOT_AVAILABLE
        }
        other => other,
    };
    answer(request, |_, _| error)
}
