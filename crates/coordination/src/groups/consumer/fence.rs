//! Removal of members: they leave, an administrator removes them, or their session ends.

use std::sync::Arc;

use mainstem_wire::ErrorCode;
use mainstem_wire::messages::consumer_group_heartbeat_response::ConsumerGroupHeartbeatResponse;

use super::super::api::Reply;
use super::super::group::{Group, Protocol};
use super::super::io::Io;
use super::super::member::MemberId;
use super::super::token::Token;
use super::change::Change;
use super::group::ConsumerGroup;
use super::heartbeat::{Beat, LEAVE_STATIC, dynamic_member, remove, static_member};
use super::member::Current;
use super::partitions::Owned;
use super::refusal::Refusal;
use super::subscription::forget_unused;
use super::target::update_epoch;
use super::turn::Turn;
use super::write::Answer;
use super::{append, migration};

/// Serves the heartbeat of a member that leaves.
///
/// # Errors
/// UNKNOWN_MEMBER_ID, FENCED_INSTANCE_ID.
pub(crate) fn leave(
    group: &mut Group,
    io: &mut Io<'_>,
    token: Token,
    beat: &Beat<'_>,
) -> Result<(), Refusal> {
    let Protocol::Consumer(consumer) = &mut group.protocol else { return Ok(()) };
    let request = beat.request;
    let id: MemberId = (&*request.member_id).into();
    let mut turn = Turn::new(consumer, io);
    let found = match request.instance_id.as_deref() {
        None => dynamic_member(&turn, &id, false)?,
        Some(instance) => static_member(&mut turn, &id, instance, false, false)?,
    };
    let response = ConsumerGroupHeartbeatResponse {
        member_id: Some(id.to_string().into()),
        member_epoch: request.member_epoch,
        ..Default::default()
    };
    let answer = Some((token, Reply::ConsumerGroupHeartbeat(response)));
    if request.member_epoch != LEAVE_STATIC {
        fence(group, io, vec![id], answer);
        return Ok(());
    }
    // It keeps its place and its partitions: the next member with the instance id gets both.
    let assigned: Owned = found.current.assigned.partitions().map(|at| (*at, 0)).collect();
    let left = Current { epoch: LEAVE_STATIC, assigned, revoking: Owned::default(), ..found.current };
    turn.put(Change::Current(id, Some(left)));
    let outcome = turn.finish(io);
    append::write(consumer, io, outcome, answer);
    Ok(())
}

/// Removes members. If only members of the classic protocol remain, the group becomes a classic one.
pub(crate) fn fence(group: &mut Group, io: &mut Io<'_>, ids: Vec<MemberId>, answer: Option<Answer>) {
    let Protocol::Consumer(consumer) = &mut group.protocol else { return };
    if migration::may_downgrade_without(consumer, io, &ids)
        && migration::downgrade(group, io, &ids, answer.clone())
    {
        return;
    }
    let Protocol::Consumer(consumer) = &mut group.protocol else { return };
    let mut turn = Turn::new(consumer, io);
    for id in &ids {
        take_out(&mut turn, id);
    }
    update_epoch(&mut turn, true);
    let outcome = turn.finish(io);
    append::write(consumer, io, outcome, answer);
}

fn take_out(turn: &mut Turn<'_>, id: &MemberId) {
    let regex = turn.group.member(id).and_then(|member| member.profile.regex.clone());
    remove(turn, id);
    if let Some(regex) = regex {
        forget_unused(turn, &regex);
    }
}

/// The members of a LeaveGroup that are in the group, with the error of each that is not.
pub(crate) fn find_leaving(
    group: &ConsumerGroup,
    member_id: &str,
    instance: Option<&str>,
) -> Result<MemberId, ErrorCode> {
    let found = match instance {
        None => group.member(member_id),
        Some(instance) => group.static_member(instance),
    };
    let found = found.ok_or(ErrorCode::UNKNOWN_MEMBER_ID)?;
    // An administrator names a static member by its instance id alone.
    if instance.is_some() && !member_id.is_empty() && *found.id != *member_id {
        return Err(ErrorCode::FENCED_INSTANCE_ID);
    }
    Ok(Arc::clone(&found.id))
}
