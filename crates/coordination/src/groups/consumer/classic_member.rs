//! Members of the classic protocol in a consumer group (KIP-848). Their JoinGroup, SyncGroup, Heartbeat and LeaveGroup are translated to
//! the steps of the consumer protocol's heartbeat. The member epoch is the generation.

use std::sync::Arc;

use mainstem_wire::ErrorCode;
use mainstem_wire::messages::heartbeat_request::HeartbeatRequest;
use mainstem_wire::messages::join_group_response::JoinGroupResponse;
use mainstem_wire::messages::leave_group_request::LeaveGroupRequest;
use mainstem_wire::messages::sync_group_request::SyncGroupRequest;

use super::super::api::Reply;
use super::super::group::{Group, Protocol};
use super::super::io::Io;
use super::super::join::{Join, MEMBER_ID_REQUIRED_SINCE};
use super::super::member::{JoinWaiter, MemberId};
use super::super::token::Token;
use super::super::{leave, memory, rebalance, refused};
use super::group::ConsumerGroup;
use super::heartbeat::{Before, dynamic_member, reconcile, refuse_if_full, static_member};
use super::member::{ClassicMember, Member, MemberState, Profile, topic_names};
use super::migration::{self, Downgrade};
use super::partitions::Assignment;
use super::patterns::MatchedPatterns;
use super::refusal::Refusal;
use super::subscription::Matching;
use super::turn::{Outcome, Turn};
use super::{append, change::Change, embedded, fence, subscription, target, timers};
use mainstem_wire::Uuid;

/// Serves a JoinGroup.
pub(crate) fn join(group: &mut Group, io: &mut Io<'_>, join: &Join<'_>) {
    let (waiter, id) = (join.waiter, &*join.request.member_id);
    let Protocol::Consumer(consumer) = &mut group.protocol else { return };
    if consumer.dead {
        return io.refuse_join(waiter, id, ErrorCode::COORDINATOR_NOT_AVAILABLE);
    }
    if consumer.members().is_empty() {
        return migration::make_empty_classic(group, io, waiter, id);
    }
    let new_id: MemberId = if id.is_empty() { Uuid(join.random).to_string().into() } else { id.into() };
    let mut turn = Turn::new(consumer, io);
    if let Err(refusal) = accept(&turn, io, join) {
        return io.refuse_join(waiter, id, refusal.error);
    }
    if id.is_empty() && join.instance_id().is_none() && waiter.api_version >= MEMBER_ID_REQUIRED_SINCE {
        return io.refuse_join(waiter, &new_id, ErrorCode::MEMBER_ID_REQUIRED);
    }
    match enter(&mut turn, io, join, &new_id) {
        Err(refusal) => {
            turn.abort(io);
            io.refuse_join(waiter, id, refusal.error);
        }
        Ok(downgrade) => {
            let reply = joined(&turn, &new_id);
            let rebalance = turn.group.assignment_epoch() < turn.group.epoch();
            let outcome = turn.finish(io);
            timers::cancel_rebalance(consumer, io, &new_id);
            timers::restart_session(consumer, io, &new_id);
            timers::await_sync(consumer, io, &new_id);
            finish_join(group, io, outcome, (waiter, reply), downgrade.then_some(rebalance));
        }
    }
}

/// Ends a join: the group stays as it is, or becomes a classic one (and perhaps rebalances).
fn finish_join(
    group: &mut Group,
    io: &mut Io<'_>,
    outcome: Outcome,
    (waiter, reply): (JoinWaiter, JoinGroupResponse<'static>),
    downgrade: Option<bool>,
) {
    let answer = Some((waiter.token, Reply::JoinGroup(reply)));
    let Outcome { records, undo } = outcome;
    if let Some(rebalance) = downgrade {
        let downgrade = Downgrade { leaving: &[], rebalance, records: records.clone(), undo: undo.clone() };
        if migration::downgrade_after(group, io, downgrade, answer.clone()) {
            return;
        }
    }
    if let Protocol::Consumer(consumer) = &mut group.protocol {
        append::write(consumer, io, Outcome { records, undo }, answer);
    }
}

/// Refuses a member that shares no protocol with the others, or that exceeds the limits.
fn accept(turn: &Turn<'_>, io: &Io<'_>, join: &Join<'_>) -> Result<(), Refusal> {
    let request = join.request;
    refuse_if_full(turn, &request.member_id)?;
    let counts = turn.group.counts();
    let is_common = |name: &str| counts.classic_protocols.get(name).copied().unwrap_or(0) == counts.classic;
    let fits = request.protocol_type == embedded::CONSUMER
        && join.protocols.iter().any(|protocol| is_common(&protocol.name));
    if !fits {
        return Err(Refusal::new(ErrorCode::INCONSISTENT_GROUP_PROTOCOL, "The group is one of consumers."));
    }
    let is_new = turn.group.member(&request.member_id).is_none();
    let growth = memory::MEMBER + memory::protocols(&join.protocols);
    if is_new && (io.usage.members >= io.config.members_max || !io.has_memory_for(growth)) {
        return Err(Refusal::new(
            ErrorCode::GROUP_MAX_SIZE_REACHED,
            "The coordinator has no memory for another member.",
        ));
    }
    Ok(())
}

/// Adds the member to the group and reconciles it as far as possible. Returns true if the group is to become a classic one.
fn enter(turn: &mut Turn<'_>, io: &Io<'_>, join: &Join<'_>, id: &MemberId) -> Result<bool, Refusal> {
    let malformed = || Refusal::new(ErrorCode::INCONSISTENT_GROUP_PROTOCOL, "The subscription is malformed.");
    let metadata = join.protocols.first().map(|first| first.metadata.clone()).ok_or_else(malformed)?;
    let subscription = embedded::subscription(&metadata).ok_or_else(malformed)?;
    let holder = join.instance_id().and_then(|instance| turn.group.static_member(instance));
    let downgrade = holder.is_some_and(|holder| migration::may_downgrade_with(turn.group, io, &holder.id));
    let before = match join.instance_id() {
        None => dynamic_member(turn, id, true)?,
        Some(instance) => static_member(turn, id, instance, join.request.member_id.is_empty(), true)?,
    };
    let profile = Profile {
        instance_id: join.instance_id().map(Into::into).or_else(|| before.profile.instance_id.clone()),
        rack_id: subscription.rack_id.as_deref().filter(|rack| !rack.is_empty()).map(Into::into),
        client_id: join.context.client_id.into(),
        client_host: join.context.client_host.into(),
        topics: topic_names(subscription.topics.iter().map(|topic| &**topic)),
        regex: None,
        rebalance_timeout_ms: join.rebalance_timeout_ms,
        server_assignor: before.profile.server_assignor.clone(),
        classic: Some(Box::new(ClassicMember {
            session_timeout_ms: join.request.session_timeout_ms,
            protocols: join.protocols.clone(),
        })),
    };
    if turn.group.member(id).is_none_or(|member| member.profile != profile) {
        turn.put(Change::Profile(id.clone(), Some(profile.clone())));
    }
    let owned = embedded::owned(&subscription, turn.topics);
    reconcile_joined(turn, id, (&before, &profile), &owned, downgrade)?;
    Ok(downgrade)
}

fn reconcile_joined(
    turn: &mut Turn<'_>,
    id: &MemberId,
    (before, profile): (&Before, &Profile),
    owned: &Assignment,
    downgrade: bool,
) -> Result<(), Refusal> {
    // It has no pattern; those of others are matched with their heartbeats.
    let nothing = MatchedPatterns::default();
    let subscribed = subscription::update(turn, &before.profile, profile, Matching::Ahead(&nothing))?;
    target::update_epoch(turn, subscribed.bump);
    if !downgrade {
        target::update_target(turn);
    }
    // A group that becomes a classic one and has to rebalance anyway leaves its members as they are.
    let stale = turn.group.assignment_epoch() < turn.group.epoch();
    if downgrade && stale { Ok(()) } else { reconcile(turn, id, subscribed, Some(owned)) }
}

fn joined(turn: &Turn<'_>, id: &MemberId) -> JoinGroupResponse<'static> {
    let member = turn.group.member(id).expect("it was put there");
    JoinGroupResponse {
        member_id: id.to_string().into(),
        generation_id: member.current.epoch,
        protocol_type: Some(embedded::CONSUMER.into()),
        protocol_name: protocol(member).map(|name| name.to_owned().into()),
        ..Default::default()
    }
}

/// The protocol that a classic member uses: its first choice. Only this one's metadata are read.
fn protocol(member: &Member) -> Option<&str> {
    member.profile.classic.as_ref()?.protocols.first().map(|protocol| &*protocol.name)
}

/// The member of a request of the classic protocol.
fn find<'g>(group: &'g ConsumerGroup, id: &str, instance: Option<&str>) -> Result<&'g Member, ErrorCode> {
    let found = match instance {
        None => group.member(id),
        Some(instance) => group.static_member(instance),
    };
    let member = found.ok_or(ErrorCode::UNKNOWN_MEMBER_ID)?;
    if *member.id != *id {
        Err(ErrorCode::FENCED_INSTANCE_ID)
    } else if !member.uses_classic_protocol() {
        Err(ErrorCode::UNKNOWN_MEMBER_ID)
    } else {
        Ok(member)
    }
}

/// Serves a SyncGroup: the member gets its assignment.
pub(crate) fn sync(group: &mut ConsumerGroup, io: &mut Io<'_>, token: Token, request: &SyncGroupRequest<'_>) {
    let id: MemberId = (&*request.member_id).into();
    let member = match find(group, &id, request.group_instance_id.as_deref()) {
        Ok(member) => member,
        Err(error) => return io.refuse_sync(token, error),
    };
    let differs = |given: Option<&str>, ours: Option<&str>| given.is_some() && given != ours;
    if member.current.epoch != request.generation_id {
        return io.refuse_sync(token, ErrorCode::ILLEGAL_GENERATION);
    }
    if differs(request.protocol_type.as_deref(), Some(embedded::CONSUMER))
        || differs(request.protocol_name.as_deref(), protocol(member))
    {
        return io.refuse_sync(token, ErrorCode::INCONSISTENT_GROUP_PROTOCOL);
    }
    // A member that has to revoke partitions gets the rest first.
    let is_behind = group.assignment_epoch() > member.current.epoch;
    if is_behind && member.current.state != MemberState::UnrevokedPartitions {
        timers::await_rejoin(group, io, &id);
        return io.refuse_sync(token, ErrorCode::REBALANCE_IN_PROGRESS);
    }
    let partitions = member.current.assigned.by_topic().map(|(topic, partitions, _)| (topic, partitions));
    let metadata = member.profile.classic.as_ref().and_then(|classic| classic.protocols.first());
    let version = metadata.and_then(|protocol| embedded::version(&protocol.metadata)).unwrap_or(0);
    let assignment = embedded::assignment(partitions, version, io.cluster);
    let text = |text: &Option<_>| text.as_deref().map(str::to_owned);
    let (kind, name) = (text(&request.protocol_type), text(&request.protocol_name));
    let reply = rebalance::assigned(kind.as_deref(), name.as_deref(), &assignment);
    timers::cancel_sync(group, io, &id);
    timers::restart_session(group, io, &id);
    let nothing = Outcome { records: Vec::new(), undo: Vec::new() };
    append::write(group, io, nothing, Some((token, Reply::SyncGroup(reply))));
}

/// Serves a Heartbeat: it keeps the session alive, and the answer says whether the member has to rejoin.
pub(crate) fn heartbeat(
    group: &mut ConsumerGroup,
    io: &mut Io<'_>,
    request: &HeartbeatRequest<'_>,
) -> Result<(), ErrorCode> {
    let member = find(group, &request.member_id, request.group_instance_id.as_deref())?;
    if member.current.epoch != request.generation_id {
        return Err(ErrorCode::ILLEGAL_GENERATION);
    }
    let id: MemberId = Arc::clone(&member.id);
    let has_to_rejoin = match member.current.state {
        _ if member.current.epoch < group.assignment_epoch() => true,
        MemberState::UnrevokedPartitions => true,
        MemberState::UnreleasedPartitions => !waits_for_others(group, member),
        MemberState::Stable | MemberState::Unknown => false,
    };
    timers::restart_session(group, io, &id);
    if !has_to_rejoin {
        return Ok(());
    }
    timers::await_rejoin(group, io, &id);
    Err(ErrorCode::REBALANCE_IN_PROGRESS)
}

/// Returns true if another member holds a partition of this member's target.
fn waits_for_others(group: &ConsumerGroup, member: &Member) -> bool {
    let target = group.target(&member.id).into_iter().flat_map(Assignment::iter);
    target.into_iter().any(|at| !member.current.assigned.contains(at) && group.is_owned(at))
}

/// Serves a LeaveGroup: members of either protocol go.
pub(crate) fn leave(
    group: &mut Group,
    io: &mut Io<'_>,
    token: Token,
    api_version: i16,
    request: &LeaveGroupRequest<'_>,
) {
    let Protocol::Consumer(consumer) = &group.protocol else { return };
    let (mut members, mut leaving) = (Vec::new(), Vec::<MemberId>::new());
    for member in leave::identities(request, api_version).iter() {
        let found = fence::find_leaving(consumer, &member.member_id, member.group_instance_id.as_deref());
        members.push(leave::answer(member, found.as_ref().map(drop).map_err(|error| *error)));
        leaving.extend(found.ok());
    }
    leaving.sort_unstable();
    leaving.dedup();
    let reply = leave::left(api_version, members);
    if leaving.is_empty() {
        io.reply(token, reply);
    } else {
        fence::fence(group, io, leaving, Some((token, reply)));
    }
}

/// The answer to a JoinGroup that comes while the group changes its protocol.
pub(crate) fn not_now(io: &mut Io<'_>, waiter: JoinWaiter, id: &str) {
    io.reply(waiter.token, refused::join(id, ErrorCode::COORDINATOR_LOAD_IN_PROGRESS));
}
