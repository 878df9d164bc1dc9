//! JoinGroup (11), v0-9: a member joins, rejoins, or changes its protocols.

use std::sync::Arc;

use mainstem_wire::ErrorCode;
use mainstem_wire::messages::join_group_request::JoinGroupRequest;

use super::classic::{ClassicGroup, JoinPhase, State};
use super::completion::{Completion, Replacement};
use super::config::GroupConfig;
use super::io::Io;
use super::member::{self, JoinWaiter, Member, MemberId, Protocol};
use super::rebalance::{
    complete_if_all_joined, joined, prepare, prepare_or_complete, remove_member, remove_pending,
};
use super::request_context::RequestContext;
use super::token::Token;
use super::{memory, records};

/// KIP-394: from this version on a new dynamic member is given its id first and must rejoin with it.
pub(crate) const MEMBER_ID_REQUIRED_SINCE: i16 = 4;
/// KIP-814: from this version on a static leader that rejoins is asked not to assign again.
const SKIP_ASSIGNMENT_SINCE: i16 = 9;

/// A JoinGroup with the parts that are used more than once.
pub(crate) struct Join<'a> {
    pub(crate) waiter: JoinWaiter,
    pub(crate) context: RequestContext<'a>,
    pub(crate) request: &'a JoinGroupRequest<'a>,
    pub(crate) random: [u8; 16],
    pub(crate) protocols: Vec<Protocol>,
    pub(crate) rebalance_timeout_ms: i32,
}

impl<'a> Join<'a> {
    /// Takes a request apart; v0 has no rebalance time-out of its own.
    pub(crate) fn new(
        token: Token,
        context: RequestContext<'a>,
        request: &'a JoinGroupRequest<'a>,
        random: [u8; 16],
    ) -> Self {
        let rebalance_timeout_ms =
            if context.api_version == 0 { request.session_timeout_ms } else { request.rebalance_timeout_ms };
        Self {
            waiter: JoinWaiter { token, api_version: context.api_version },
            context,
            request,
            random,
            protocols: member::protocols(&request.protocols),
            rebalance_timeout_ms,
        }
    }

    pub(crate) fn instance_id(&self) -> Option<&str> {
        self.request.group_instance_id.as_deref()
    }
}

/// Checks a request as far as that is possible without its group.
pub(crate) fn validate(join: &Join<'_>, config: &GroupConfig) -> Result<(), ErrorCode> {
    let request = join.request;
    let names =
        [&*request.group_id, &request.protocol_type, join.context.client_id, join.context.client_host];
    let timeouts = config.group_min_session_timeout_ms..=config.group_max_session_timeout_ms;
    let protocol_bytes: usize =
        join.protocols.iter().map(|protocol| protocol.name.len() + protocol.metadata.len()).sum();
    if request.group_id.is_empty() {
        Err(ErrorCode::INVALID_GROUP_ID)
    } else if !timeouts.contains(&request.session_timeout_ms) {
        Err(ErrorCode::INVALID_SESSION_TIMEOUT)
    } else if !names.into_iter().chain(join.instance_id()).all(records::fits)
        || !join.protocols.iter().all(|protocol| records::fits(&protocol.name))
        || protocol_bytes > config.member_protocol_bytes_max
    {
        Err(ErrorCode::INVALID_REQUEST)
    } else {
        Ok(())
    }
}

/// Refuses to create a group if `groups_max` is reached, or for a member that has an id: its group was removed.
pub(crate) fn may_create(io: &Io<'_>, member_id: &str) -> Result<(), ErrorCode> {
    if !member_id.is_empty() {
        Err(ErrorCode::UNKNOWN_MEMBER_ID)
    } else if io.usage.groups >= io.config.groups_max {
        Err(ErrorCode::COORDINATOR_NOT_AVAILABLE)
    } else {
        Ok(())
    }
}

/// Serves a JoinGroup to its group.
pub(crate) fn join(group: &mut ClassicGroup, io: &mut Io<'_>, join: Join<'_>) {
    let member_id = &*join.request.member_id;
    if !io.has_memory_for(growth(group, &join)) {
        return io.refuse_join(join.waiter, "", ErrorCode::GROUP_MAX_SIZE_REACHED);
    }
    if !accepts(group, io, member_id) {
        remove_pending(group, io, member_id);
        remove_member(group, io, member_id, ErrorCode::GROUP_MAX_SIZE_REACHED);
        io.refuse_join(join.waiter, "", ErrorCode::GROUP_MAX_SIZE_REACHED);
        // Kafka lets the others wait for the end of the phase although no other can come.
        complete_if_all_joined(group, io, None);
    } else if member_id.is_empty() {
        join_new(group, io, join);
    } else {
        join_known(group, io, join);
    }
}

/// Bytes that the request adds to those that the coordinator keeps. A pending join takes less, but needs the rest as soon as it rejoins.
fn growth(group: &ClassicGroup, join: &Join<'_>) -> usize {
    let request = join.request;
    let protocols = memory::protocols(&join.protocols);
    let instance = join.instance_id().and_then(|instance| group.static_members.get(instance));
    let known =
        if request.member_id.is_empty() { instance.map(|id| &**id) } else { Some(&*request.member_id) };
    if let Some(member) = known.and_then(|id| group.members.get(id)) {
        return protocols.saturating_sub(memory::protocols(&member.protocols));
    }
    let names =
        [join.context.client_id, join.context.client_host, &request.protocol_type, &request.member_id];
    let names = names.into_iter().chain(join.instance_id());
    let group = group.bytes() - group.counted;
    group + memory::MEMBER + protocols + names.map(str::len).sum::<usize>()
}

/// Writes a group that a JoinGroup has just created, so that its next coordinator knows it. Returns false if the request left no member in
/// it: then it need not be kept.
pub(crate) fn write_created(group: &mut ClassicGroup, io: &mut Io<'_>, creator: Token) -> bool {
    if group.members.is_empty() && group.pending_joins.is_empty() {
        return false;
    }
    group.pending_writes += 1;
    let record = records::created_group(group);
    let waiting = group.members.values().any(|member| member.awaits_join(creator)).then_some(creator);
    io.append(vec![record], Completion::Created { group: group.id.clone(), waiting });
    true
}

/// Handles a record of a new group that takes too long: its member is asked to try again. The next generation does not wait for it.
pub(crate) fn created_too_slowly(
    group: &mut ClassicGroup,
    io: &mut Io<'_>,
    creator: Token,
    error: ErrorCode,
) {
    let creator = group.members.values_mut().find(|member| member.awaits_join(creator));
    if let Some(waiter) = creator.and_then(|member| member.awaiting_join.take()) {
        io.refuse_join(waiter, "", error);
    }
}

/// Checks `group.max.size`, and the bound on members of all groups. During a rebalance, members that have rejoined count, so that the last
/// ones of a group that is too large are left out.
fn accepts(group: &ClassicGroup, io: &Io<'_>, member_id: &str) -> bool {
    let max = usize::try_from(io.config.group_max_size).unwrap_or(0);
    let known = group.members.get(member_id);
    let newcomer = known.is_none() && !group.pending_joins.contains_key(member_id);
    if newcomer && io.usage.members >= io.config.members_max {
        return false;
    }
    match group.state {
        State::Empty | State::Dead => true,
        State::PreparingRebalance => {
            known.is_some_and(|member| member.awaiting_join.is_some())
                || group.members.len() < max
                || group.awaiting_join() < max
        }
        State::CompletingRebalance | State::Stable => known.is_some() || group.members.len() < max,
    }
}

/// Serves a member without an id.
fn join_new(group: &mut ClassicGroup, io: &mut Io<'_>, join: Join<'_>) {
    if group.state == State::Dead {
        return io.refuse_join(join.waiter, "", ErrorCode::COORDINATOR_NOT_AVAILABLE);
    }
    if !group.supports(&join.request.protocol_type, &join.protocols) {
        return io.refuse_join(join.waiter, "", ErrorCode::INCONSISTENT_GROUP_PROTOCOL);
    }
    let name = join.instance_id().unwrap_or(join.context.client_id);
    let id: MemberId = format!("{name}-{}", uuid(join.random)).into();
    let known = join.instance_id().and_then(|instance| group.static_members.get(instance).cloned());
    match known {
        Some(old) => replace_static(group, io, join, &old, id),
        None if join.instance_id().is_none() && join.context.api_version >= MEMBER_ID_REQUIRED_SINCE => {
            tell_id(group, io, &join, id);
        }
        None => add(group, io, join, id),
    }
}

/// KIP-394: gives the member its id; it has a session time-out to rejoin with it.
fn tell_id(group: &mut ClassicGroup, io: &mut Io<'_>, join: &Join<'_>, id: MemberId) {
    // The source of the random part may have made it before.
    remove_pending(group, io, &id);
    let (mut slot, due) = (None, io.after(join.request.session_timeout_ms));
    io.deadlines.set(&mut slot, due, || super::io::session_key(io.partition, &group.id, &id));
    group.add_pending_join(id.clone(), slot);
    io.usage.members += 1;
    io.refuse_join(join.waiter, &id, ErrorCode::MEMBER_ID_REQUIRED);
}

/// Adds a member, which waits for the end of the phase.
fn add(group: &mut ClassicGroup, io: &mut Io<'_>, join: Join<'_>, id: MemberId) {
    // The pending join ends here; the member has a session from now on.
    remove_pending(group, io, &id);
    if group.state == State::PreparingRebalance && matches!(group.phase, JoinPhase::Initial { .. }) {
        group.new_member_added = true;
    }
    let mut member = Member {
        id,
        instance_id: join.instance_id().map(Arc::from),
        client_id: join.context.client_id.into(),
        client_host: join.context.client_host.into(),
        rebalance_timeout_ms: join.rebalance_timeout_ms,
        session_timeout_ms: join.request.session_timeout_ms,
        protocols: join.protocols,
        assignment: Arc::from([]),
        awaiting_join: Some(join.waiter),
        awaiting_sync: None,
        is_new: true,
        session: None,
    };
    // A new member cannot send heartbeats while it waits. A client that stops waiting and joins again leaves it behind, so the wait itself
    // has a time-out.
    io.restart_session(&group.id, &mut member, Some(io.config.new_member_join_timeout_ms));
    io.usage.members += 1;
    group.add(&join.request.protocol_type, member);
    prepare_or_complete(group, io);
}

/// Serves a member with an id.
fn join_known(group: &mut ClassicGroup, io: &mut Io<'_>, join: Join<'_>) {
    let id = &*join.request.member_id;
    if group.state == State::Dead {
        return io.refuse_join(join.waiter, id, ErrorCode::COORDINATOR_NOT_AVAILABLE);
    }
    if !group.supports(&join.request.protocol_type, &join.protocols) {
        return io.refuse_join(join.waiter, id, ErrorCode::INCONSISTENT_GROUP_PROTOCOL);
    }
    if let Some((id, _)) = group.pending_joins.get_key_value(id) {
        let id = id.clone();
        if join.instance_id().is_some() {
            // Only dynamic members are given their id first.
            return io.refuse_join(join.waiter, &id, ErrorCode::INVALID_REQUEST);
        }
        return add(group, io, join, id);
    }
    if let Err(error) = group.validate_member(id, join.instance_id()) {
        return io.refuse_join(join.waiter, id, error);
    }
    rejoin(group, io, join);
}

/// Serves a member that rejoins. It begins a rebalance unless nothing has changed for it.
fn rejoin(group: &mut ClassicGroup, io: &mut Io<'_>, join: Join<'_>) {
    let id = &*join.request.member_id;
    let same = group.members.get(id).is_some_and(|member| member.offers(&join.protocols));
    match group.state {
        // It may have lost the answer to its JoinGroup: it gets that again.
        State::CompletingRebalance if same => io.reply_join(join.waiter, joined(group, id)),
        // A leader may ask for a rebalance for reasons of its own, such as changes of topics.
        State::Stable if same && !group.is_leader(id) => io.reply_join(join.waiter, joined(group, id)),
        State::PreparingRebalance | State::CompletingRebalance | State::Stable => {
            let id = join.request.member_id.to_string();
            update(group, io, join, &id);
            prepare_or_complete(group, io);
        }
        State::Empty | State::Dead => io.refuse_join(join.waiter, id, ErrorCode::UNKNOWN_MEMBER_ID),
    }
}

/// Replaces the protocols of a member, which then waits for the end of the phase.
fn update(group: &mut ClassicGroup, io: &mut Io<'_>, join: Join<'_>, id: &str) {
    group.set_protocols(id, join.protocols);
    let member = group.members.get_mut(id).expect("set_protocols found it");
    member.rebalance_timeout_ms = join.rebalance_timeout_ms;
    member.session_timeout_ms = join.request.session_timeout_ms;
    if let Some(earlier) = member.awaiting_join.replace(join.waiter) {
        // Kafka never answers the earlier one; here every request gets an answer, and this one means "join again".
        io.refuse_join(earlier, id, ErrorCode::REBALANCE_IN_PROGRESS);
    }
}

/// KIP-345: a static member rejoins without its id. It gets a new one, and the member with the old one is fenced.
fn replace_static(group: &mut ClassicGroup, io: &mut Io<'_>, join: Join<'_>, old: &MemberId, new: MemberId) {
    let leader = group.leader.clone();
    fence(group, io, old, &new);
    let member = group.members.get(&new).expect("fence renamed it");
    let undo = Replacement {
        old: old.clone(),
        new: new.clone(),
        old_protocols: member.protocols.clone(),
        old_rebalance_timeout_ms: member.rebalance_timeout_ms,
        old_session_timeout_ms: member.session_timeout_ms,
        old_leader: leader,
    };
    update(group, io, join, &new);
    match group.state {
        State::Stable if group.select_protocol() == group.protocol_name => {
            // The assignment stays as it is, so there is nothing to rebalance; only the id must get into the log.
            group.pending_writes += 1;
            let record = records::group_metadata(group, |member| member.assignment.clone());
            let group = group.id.clone();
            io.append(vec![record], Completion::Replaced { group, replacement: Some(undo) });
        }
        State::Stable => prepare_or_complete(group, io),
        // The leader may be assigning to the old id at this moment.
        State::CompletingRebalance => prepare(group, io),
        _ => complete_if_all_joined(group, io, None),
    }
}

/// Gives a static member another id. Requests that wait under the old one are fenced, and the session restarts.
fn fence(group: &mut ClassicGroup, io: &mut Io<'_>, old: &MemberId, new: &MemberId) {
    let member = group.members.get_mut(old).expect("static members are members");
    if let Some(waiter) = member.awaiting_join.take() {
        io.refuse_join(waiter, old, ErrorCode::FENCED_INSTANCE_ID);
    }
    if let Some(token) = member.awaiting_sync.take() {
        io.refuse_sync(token, ErrorCode::FENCED_INSTANCE_ID);
    }
    io.cancel_session(&group.id, old, &mut member.session);
    member.is_new = false;
    group.rename(old, new);
    let member = group.members.get_mut(new).expect("rename put it there");
    io.restart_session(&group.id, member, None);
}

/// The new id of a static member is durable: the member joins the current generation under it.
pub(crate) fn replaced(group: &mut ClassicGroup, io: &mut Io<'_>, replacement: &Replacement) {
    let Some(member) = group.members.get_mut(&replacement.new) else { return };
    if group.state != State::Stable {
        // A rebalance has begun meanwhile; its end answers the member.
        return;
    }
    let Some(waiter) = member.awaiting_join.take() else { return };
    // Its session does not run out while it waits here, however long the write takes; from now on it counts.
    io.restart_session(&group.id, member, None);
    let mut response = joined(group, &replacement.new);
    if waiter.api_version >= SKIP_ASSIGNMENT_SINCE {
        response.skip_assignment = group.is_leader(&replacement.new);
    } else {
        // Before KIP-814 the leader's old id is the trick that keeps a returning leader from assigning again.
        response.members.clear();
        response.leader = replacement.old_leader.as_deref().unwrap_or_default().to_string().into();
    }
    io.reply_join(waiter, response);
}

/// Undoes a new id that could not be written. If a later record of the group is in flight, that one has the new id: then nothing can be
/// undone, and a new generation makes group and log agree.
pub(crate) fn not_replaced(group: &mut ClassicGroup, io: &mut Io<'_>, undo: Replacement, error: ErrorCode) {
    if group.state != State::Stable {
        return;
    }
    let waiter = group.members.get_mut(&undo.new).and_then(|member| member.awaiting_join.take());
    if let Some(waiter) = waiter {
        io.refuse_join(waiter, "", error);
    }
    if group.pending_writes > 0 {
        return prepare(group, io);
    }
    let Some(member) = group.members.get_mut(&undo.new) else { return };
    member.rebalance_timeout_ms = undo.old_rebalance_timeout_ms;
    member.session_timeout_ms = undo.old_session_timeout_ms;
    group.set_protocols(&undo.new, undo.old_protocols);
    fence(group, io, &undo.new, &undo.old);
}

/// Random bytes as a UUID of version 4, as Kafka's member ids end.
fn uuid(mut random: [u8; 16]) -> String {
    random[6] = random[6] & 0x0f | 0x40;
    random[8] = random[8] & 0x3f | 0x80;
    let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    [&random[..4], &random[4..6], &random[6..8], &random[8..10], &random[10..]].map(hex).join("-")
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_member_id_ends_in_a_version_4_uuid() {
        assert_eq!(super::uuid([0xff; 16]), "ffffffff-ffff-4fff-bfff-ffffffffffff");
        assert_eq!(super::uuid([0; 16]), "00000000-0000-4000-8000-000000000000");
    }
}
