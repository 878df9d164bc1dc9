//! Serves a heartbeat to its group, which it may create or turn into a consumer group.

use std::sync::Arc;

use mainstem_wire::ErrorCode;
use mainstem_wire::messages::consumer_group_heartbeat_response::ConsumerGroupHeartbeatResponse;

use super::super::api::Reply;
use super::super::group::{Group, Groups, Protocol};
use super::super::io::Io;
use super::super::lifetime::drop_if_nothing;
use super::super::member::MemberId;
use super::super::memory;
use super::super::token::Token;
use super::append::{write, write_conversion};
use super::group::ConsumerGroup;
use super::heartbeat::{Beat, JOIN, beat};
use super::member::{Profile, profile_bytes};
use super::migration::{self, Upgraded};
use super::refusal::{Refusal, refused};
use super::turn::{Outcome, Turn};
use super::write::Conversion;
use super::{appended, fence, timers};

/// Serves a ConsumerGroupHeartbeat whose form is right.
pub(crate) fn heartbeat(groups: &mut Groups, io: &mut Io<'_>, token: Token, request: &Beat<'_>) {
    let id = &*request.request.group_id;
    let outcome = if request.is_leaving() {
        existing(groups, id).and_then(|group| fence::leave(group, io, token, request))
    } else {
        stay(groups, io, token, request)
    };
    if let Err(refusal) = outcome {
        io.reply(token, refused(refusal));
    }
    drop_if_nothing(groups, io, id);
}

/// Returns an existing consumer group.
fn existing<'g>(groups: &'g mut Groups, id: &str) -> Result<&'g mut Group, Refusal> {
    let group = groups.get_mut(id).ok_or_else(|| not_found(id))?;
    serving(group)?;
    if matches!(group.protocol, Protocol::Classic(_)) { Err(not_found(id)) } else { Ok(group) }
}

/// Refuses a group that is being deleted, or that changes its protocol.
fn serving(group: &Group) -> Result<(), Refusal> {
    if group.converting {
        let message = "The group changes its protocol: try again.";
        return Err(Refusal::new(ErrorCode::COORDINATOR_LOAD_IN_PROGRESS, message));
    }
    match &group.protocol {
        Protocol::Consumer(consumer) if consumer.dead => {
            Err(Refusal::new(ErrorCode::COORDINATOR_NOT_AVAILABLE, "The group is being deleted: try again."))
        }
        _ => Ok(()),
    }
}

fn not_found(id: &str) -> Refusal {
    Refusal::new(ErrorCode::GROUP_ID_NOT_FOUND, format!("There is no consumer group {id}: join it first."))
}

/// Serves a member that joins or stays.
fn stay(groups: &mut Groups, io: &mut Io<'_>, token: Token, request: &Beat<'_>) -> Result<(), Refusal> {
    let id = &*request.request.group_id;
    if request.request.member_epoch != JOIN {
        let group = existing(groups, id)?;
        return run(group, io, token, request, None);
    }
    if !groups.contains_key(id) {
        if io.usage.groups >= io.config.groups_max || !io.has_memory_for(memory::GROUP + id.len()) {
            let message = "The coordinator holds as many groups as it may: delete some.";
            return Err(Refusal::new(ErrorCode::COORDINATOR_NOT_AVAILABLE, message));
        }
        let id: Arc<str> = id.into();
        groups.insert(id.clone(), Group::consumer(id.clone()));
        io.usage.groups += 1;
        if let Some(Group { protocol: Protocol::Consumer(group), .. }) = groups.get_mut(&id) {
            io.recount_consumer(group);
        }
    }
    let group = groups.get_mut(id).expect("it was there or put there");
    serving(group)?;
    check_limits(group, io, request)?;
    let upgraded = match group.protocol {
        Protocol::Classic(_) => Some(migration::upgrade(group, io)?),
        Protocol::Consumer(_) => None,
    };
    run(group, io, token, request, upgraded)
}

/// Checks the limits for a member that is new, or whose description grows.
fn check_limits(group: &Group, io: &Io<'_>, request: &Beat<'_>) -> Result<(), Refusal> {
    let id = &*request.request.member_id;
    let known = match &group.protocol {
        Protocol::Consumer(group) => group.member(id),
        Protocol::Classic(_) => None,
    };
    let profile = request.update(known.map_or(&Profile::default(), |member| &member.profile));
    let before = known.map_or(0, |member| profile_bytes(id, &member.profile));
    let growth = profile_bytes(id, &profile).saturating_sub(before);
    if (known.is_some() || io.usage.members < io.config.members_max) && io.has_memory_for(growth) {
        return Ok(());
    }
    let message = "The coordinator holds as many members or bytes as it may: it cannot take this member.";
    Err(Refusal::new(ErrorCode::GROUP_MAX_SIZE_REACHED, message))
}

/// Runs the member's turn, after that of a change of protocol if there is one.
fn run(
    group: &mut Group,
    io: &mut Io<'_>,
    token: Token,
    request: &Beat<'_>,
    upgraded: Option<Upgraded>,
) -> Result<(), Refusal> {
    let Protocol::Consumer(consumer) = &mut group.protocol else { return Ok(()) };
    let mut turn = Turn::new(consumer, io);
    let response = match beat(&mut turn, request) {
        Ok(response) => response,
        Err(refusal) => {
            turn.abort(io);
            if let Some(upgraded) = upgraded {
                put_back(group, io, upgraded);
            }
            return Err(refusal);
        }
    };
    let outcome = turn.finish(io);
    match upgraded {
        None => finish(consumer, io, outcome, token, response),
        Some(Upgraded { mut records, before }) => {
            records.extend(outcome.records);
            let answer = Some((token, Reply::ConsumerGroupHeartbeat(response)));
            let conversion = Conversion { before, rebalance: false };
            write_conversion(group, io, records, outcome.undo, conversion, answer);
        }
    }
    Ok(())
}

/// Ends the turn of a member that stays.
fn finish(
    group: &mut ConsumerGroup,
    io: &mut Io<'_>,
    outcome: Outcome,
    token: Token,
    response: ConsumerGroupHeartbeatResponse<'static>,
) {
    let id: MemberId = response.member_id.as_deref().unwrap_or_default().into();
    timers::restart_session(group, io, &id);
    // The time to revoke partitions runs from this answer.
    if outcome.moves(&id) {
        timers::await_revocation(group, io, &id);
    }
    write(group, io, outcome, Some((token, Reply::ConsumerGroupHeartbeat(response))));
}

/// Undoes the upgrade of a classic group whose joining member is refused.
fn put_back(group: &mut Group, io: &mut Io<'_>, upgraded: Upgraded) {
    io.exchange(group, *upgraded.before);
    if let Protocol::Classic(classic) = &mut group.protocol {
        appended::resume(classic, io, !classic.members.is_empty());
    }
}
