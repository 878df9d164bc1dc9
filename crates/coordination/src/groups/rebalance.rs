//! The rebalance of a classic group, from the first (re)join to the next generation, and its time-outs.

use std::sync::Arc;

use mainstem_wire::ErrorCode;
use mainstem_wire::messages::join_group_response::JoinGroupResponse;
use mainstem_wire::messages::sync_group_response::SyncGroupResponse;

use super::api::Reply;
use super::classic::{ClassicGroup, JoinPhase, State};
use super::completion::{Completion, Held};
use super::deadlines::{Fired, Key, Timer};
use super::io::Io;
use super::member::{Member, MemberId};
use super::records;

/// Begins a rebalance if the state allows one, or ends the running one if all members are there.
pub(crate) fn prepare_or_complete(group: &mut ClassicGroup, io: &mut Io<'_>) {
    if group.can_rebalance() {
        prepare(group, io);
    } else {
        complete_if_all_joined(group, io, None);
    }
}

/// The same for a LeaveGroup, whose answer waits for the record that an empty group writes.
pub(crate) fn leave(group: &mut ClassicGroup, io: &mut Io<'_>, held: Held) {
    match group.state {
        State::Stable | State::CompletingRebalance => prepare_holding(group, io, held),
        State::PreparingRebalance => complete_if_all_joined(group, io, held),
        State::Empty | State::Dead => release(io, held),
    }
}

/// Begins a rebalance: members that wait for an assignment are asked to rejoin, and the group waits for its members.
pub(crate) fn prepare(group: &mut ClassicGroup, io: &mut Io<'_>) {
    prepare_holding(group, io, None);
}

fn prepare_holding(group: &mut ClassicGroup, io: &mut Io<'_>, held: Held) {
    if group.state == State::CompletingRebalance {
        fail_assignment(group, io, ErrorCode::REBALANCE_IN_PROGRESS);
    }
    group.pending_syncs.clear();
    io.cancel_sync_timer(group);
    let initial = group.state == State::Empty;
    group.transition_to(State::PreparingRebalance, io.now.wall_ms);
    if initial {
        let delay_ms = io.config.group_initial_rebalance_delay_ms;
        let remaining_ms = (group.rebalance_timeout_ms() - delay_ms).max(0);
        group.phase = JoinPhase::Initial { delay_ms, remaining_ms };
        io.set_join_timer(group, delay_ms);
        return release(io, held);
    }
    group.phase = JoinPhase::Rebalance;
    if group.all_have_joined() {
        return complete(group, io, held);
    }
    io.set_join_timer(group, group.rebalance_timeout_ms());
    release(io, held);
}

/// Ends the phase if all members have joined. The first rebalance of an empty group ends by time alone.
pub(crate) fn complete_if_all_joined(group: &mut ClassicGroup, io: &mut Io<'_>, held: Held) {
    let by_time = matches!(group.phase, JoinPhase::Initial { .. });
    if group.state == State::PreparingRebalance && !by_time && group.all_have_joined() {
        complete(group, io, held);
    } else {
        release(io, held);
    }
}

/// Ends the phase: dynamic members that have not rejoined are removed, and the rest is the next generation.
fn complete(group: &mut ClassicGroup, io: &mut Io<'_>, held: Held) {
    io.cancel_join_timer(group);
    let gone: Vec<MemberId> = group
        .members
        .values()
        .filter(|member| member.awaiting_join.is_none() && member.instance_id.is_none())
        .map(|member| member.id.clone())
        .collect();
    for id in gone {
        remove_member(group, io, &id, ErrorCode::UNKNOWN_MEMBER_ID);
    }
    if !group.elect_joined_leader() && !group.members.is_empty() {
        // Only static members are left and none has rejoined: the group waits for them until their sessions end.
        group.phase = JoinPhase::Rebalance;
        io.set_join_timer(group, group.rebalance_timeout_ms());
        return release(io, held);
    }
    group.phase = JoinPhase::Rebalance;
    group.new_member_added = false;
    io.recount(group);
    group.next_generation(io.now.wall_ms, io.free_bytes());
    if group.state == State::Empty {
        group.pending_writes += 1;
        let record = records::group_metadata(group, |_| Arc::from([]));
        io.append(vec![record], Completion::Emptied { group: group.id.clone(), held });
    } else {
        answer_joins(group, io);
        io.set_sync_timer(group, group.rebalance_timeout_ms());
        release(io, held);
    }
}

/// Answers every member that waits with the new generation; the leader gets the list of members.
fn answer_joins(group: &mut ClassicGroup, io: &mut Io<'_>) {
    let ids: Vec<MemberId> = group.members.keys().cloned().collect();
    for id in ids {
        let response = joined(group, &id);
        let member = group.members.get_mut(&id).expect("the id was read from the members");
        if let Some(waiter) = member.awaiting_join.take() {
            io.reply_join(waiter, response);
        }
        member.is_new = false;
        io.restart_session(&group.id, member, None);
        group.pending_syncs.insert(id);
    }
}

/// The answer to JoinGroup for a member of the current generation.
pub(crate) fn joined(group: &ClassicGroup, id: &str) -> JoinGroupResponse<'static> {
    let protocol = group.protocol_name.as_deref().unwrap_or_default();
    let members = if group.is_leader(id) {
        group.members.values().map(|member| member.as_joined(protocol)).collect()
    } else {
        Vec::new()
    };
    JoinGroupResponse {
        generation_id: group.generation,
        protocol_type: group.protocol_type.as_ref().map(|name| name.to_string().into()),
        protocol_name: group.protocol_name.as_ref().map(|name| name.to_string().into()),
        leader: group.leader.as_deref().unwrap_or_default().to_string().into(),
        member_id: id.to_string().into(),
        members,
        ..Default::default()
    }
}

/// Removes a member and answers its waiting requests.
pub(crate) fn remove_member(group: &mut ClassicGroup, io: &mut Io<'_>, id: &str, error: ErrorCode) {
    let Some(mut member) = group.remove(id) else { return };
    io.usage.members -= 1;
    io.cancel_session(&group.id, &member.id, &mut member.session);
    if let Some(waiter) = member.awaiting_join.take() {
        io.refuse_join(waiter, "", error);
    }
    if let Some(token) = member.awaiting_sync.take() {
        io.refuse_sync(token, error);
    }
}

/// Removes a pending join of a client that was given its id. Returns true if there was one.
pub(crate) fn remove_pending(group: &mut ClassicGroup, io: &mut Io<'_>, id: &str) -> bool {
    let Some((id, mut slot)) = group.remove_pending_join(id) else { return false };
    io.usage.members -= 1;
    io.cancel_session(&group.id, &id, &mut slot);
    true
}

/// Fails the assignment of this generation: members that wait for theirs get `error`.
pub(crate) fn fail_assignment(group: &mut ClassicGroup, io: &mut Io<'_>, error: ErrorCode) {
    group.assignment_pending = false;
    group.clear_assignments();
    for member in group.members.values_mut() {
        answer_sync(&group.id, member, io, || SyncGroupResponse {
            error_code: error.0,
            ..Default::default()
        });
    }
}

/// Applies the leader's assignment, which is durable: members have it from now on, and those that wait are answered.
pub(crate) fn propagate(group: &mut ClassicGroup, io: &mut Io<'_>, assignments: &[(MemberId, Arc<[u8]>)]) {
    group.transition_to(State::Stable, io.now.wall_ms);
    for (id, assignment) in assignments {
        group.assign(id, assignment.clone());
    }
    let (protocol_type, protocol_name) = (group.protocol_type.clone(), group.protocol_name.clone());
    for member in group.members.values_mut() {
        let assignment = member.assignment.clone();
        answer_sync(&group.id, member, io, || {
            assigned(protocol_type.as_deref(), protocol_name.as_deref(), &assignment)
        });
    }
}

/// The answer to SyncGroup with an assignment (KIP-559: with the protocol).
pub(crate) fn assigned(
    protocol_type: Option<&str>,
    protocol_name: Option<&str>,
    assignment: &[u8],
) -> SyncGroupResponse<'static> {
    SyncGroupResponse {
        protocol_type: protocol_type.map(|name| name.to_string().into()),
        protocol_name: protocol_name.map(|name| name.to_string().into()),
        assignment: assignment.to_vec().into(),
        ..Default::default()
    }
}

/// Answers a waiting SyncGroup, and restarts the session, which was suspended while the member waited.
fn answer_sync(
    group: &Arc<str>,
    member: &mut Member,
    io: &mut Io<'_>,
    response: impl FnOnce() -> SyncGroupResponse<'static>,
) {
    if let Some(token) = member.awaiting_sync.take() {
        io.reply(token, Reply::SyncGroup(response()));
        io.restart_session(group, member, None);
    }
}

/// Handles the end of the time for members to join.
pub(crate) fn join_phase_over(group: &mut ClassicGroup, io: &mut Io<'_>) {
    if group.state != State::PreparingRebalance {
        return;
    }
    match group.phase {
        JoinPhase::Initial { delay_ms, remaining_ms } if group.new_member_added && remaining_ms > 0 => {
            group.new_member_added = false;
            let next_ms = io.config.group_initial_rebalance_delay_ms.min(remaining_ms);
            let remaining_ms = (remaining_ms - delay_ms).max(0);
            group.phase = JoinPhase::Initial { delay_ms: next_ms, remaining_ms };
            io.set_join_timer(group, next_ms);
        }
        _ => complete(group, io, None),
    }
}

/// Handles the end of the time for members to sync: those that have not are removed.
pub(crate) fn sync_phase_over(group: &mut ClassicGroup, io: &mut Io<'_>) {
    if !matches!(group.state, State::CompletingRebalance | State::Stable) || group.pending_syncs.is_empty() {
        return;
    }
    for id in std::mem::take(&mut group.pending_syncs) {
        remove_member(group, io, &id, ErrorCode::UNKNOWN_MEMBER_ID);
    }
    prepare(group, io);
}

/// Handles the end of a session: the member is removed, unless it waits for an answer of the coordinator.
pub(crate) fn session_over(group: &mut ClassicGroup, io: &mut Io<'_>, id: &str) {
    if group.members.get(id).is_none_or(Member::is_excused) {
        return;
    }
    remove_member(group, io, id, ErrorCode::UNKNOWN_MEMBER_ID);
    match group.state {
        State::Stable | State::CompletingRebalance => prepare(group, io),
        State::PreparingRebalance if group.all_have_joined() => complete(group, io, None),
        _ => {}
    }
}

/// Handles a pending join that has timed out.
pub(crate) fn pending_over(group: &mut ClassicGroup, io: &mut Io<'_>, id: &str) {
    if remove_pending(group, io, id) && group.state == State::PreparingRebalance && group.all_have_joined() {
        complete(group, io, None);
    }
}

/// Handles a time-out of the group that has come up. It may have been moved, and a member may be gone.
pub(crate) fn fire(group: &mut ClassicGroup, io: &mut Io<'_>, at: u64, key: &Key) {
    let now_ms = io.now.mono_ms;
    let mut over = |slot: &mut Option<Timer>| io.deadlines.fire(slot, (at, key), now_ms) == Fired::Now;
    match key {
        Key::Session { member, .. } => {
            if let Some(slot) = group.pending_joins.get_mut(member) {
                if over(slot) {
                    pending_over(group, io, member);
                }
            } else if let Some(found) = group.members.get_mut(member)
                && over(&mut found.session)
            {
                session_over(group, io, member);
            }
        }
        Key::Join { .. } if over(&mut group.join_timer) => join_phase_over(group, io),
        Key::Sync { .. } if over(&mut group.sync_timer) => sync_phase_over(group, io),
        Key::Join { .. }
        | Key::Sync { .. }
        | Key::Rebalance { .. }
        | Key::MemberSync { .. }
        | Key::Expiry { .. }
        | Key::Append { .. } => {}
    }
}

/// Answers all waiting requests with `error`, and cancels all time-outs: another node coordinates the group.
pub(crate) fn end_waits(group: &mut ClassicGroup, io: &mut Io<'_>, error: ErrorCode) {
    io.cancel_join_timer(group);
    io.cancel_sync_timer(group);
    let pending: Vec<MemberId> = group.pending_joins.keys().cloned().collect();
    for id in pending {
        remove_pending(group, io, &id);
    }
    let members: Vec<MemberId> = group.members.keys().cloned().collect();
    for id in members {
        remove_member(group, io, &id, error);
    }
}

/// Sends an answer that waits for no record.
fn release(io: &mut Io<'_>, held: Held) {
    if let Some((token, reply)) = held {
        io.reply(token, reply);
    }
}
