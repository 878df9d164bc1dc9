//! SyncGroup (14), v0-5: the leader sends the assignment, and each member gets its part.

use std::collections::HashMap;
use std::sync::Arc;

use mainstem_wire::ErrorCode;
use mainstem_wire::messages::sync_group_request::SyncGroupRequest;

use super::api::Reply;
use super::classic::{ClassicGroup, State};
use super::completion::Completion;
use super::io::Io;
use super::member::MemberId;
use super::rebalance::{assigned, fail_assignment, prepare_or_complete, propagate};
use super::records;
use super::token::Token;

/// Serves a SyncGroup to its group.
pub(crate) fn sync(group: &mut ClassicGroup, io: &mut Io<'_>, token: Token, request: &SyncGroupRequest<'_>) {
    if let Err(error) = validate(group, request) {
        return io.refuse_sync(token, error);
    }
    match group.state {
        State::PreparingRebalance => io.refuse_sync(token, ErrorCode::REBALANCE_IN_PROGRESS),
        State::CompletingRebalance => wait_for_assignment(group, io, token, request),
        State::Stable => {
            has_synced(group, io, &request.member_id);
            let member = group.members.get(&request.member_id).expect("validate found the member");
            let response =
                assigned(group.protocol_type.as_deref(), group.protocol_name.as_deref(), &member.assignment);
            io.reply(token, Reply::SyncGroup(response));
        }
        State::Empty | State::Dead => unreachable!("validate lets no member of {:?} through", group.state),
    }
}

fn validate(group: &ClassicGroup, request: &SyncGroupRequest<'_>) -> Result<(), ErrorCode> {
    if group.state == State::Dead {
        return Err(ErrorCode::COORDINATOR_NOT_AVAILABLE);
    }
    group.validate_member(&request.member_id, request.group_instance_id.as_deref())?;
    let differs = |given: &Option<_>, ours: &Option<Box<str>>| {
        given.as_deref().is_some_and(|given: &str| Some(given) != ours.as_deref())
    };
    if request.generation_id != group.generation {
        Err(ErrorCode::ILLEGAL_GENERATION)
    } else if differs(&request.protocol_type, &group.protocol_type)
        || differs(&request.protocol_name, &group.protocol_name)
    {
        // KIP-559: a member with another protocol must not read this assignment.
        Err(ErrorCode::INCONSISTENT_GROUP_PROTOCOL)
    } else {
        Ok(())
    }
}

/// Lets the member wait; the leader's request begins the write that ends the wait.
fn wait_for_assignment(
    group: &mut ClassicGroup,
    io: &mut Io<'_>,
    token: Token,
    request: &SyncGroupRequest<'_>,
) {
    let assigns = group.is_leader(&request.member_id) && !group.assignment_pending;
    if assigns && !io.has_memory_for(growth(group, request)) {
        // The leader tries again; its time to sync still runs.
        return io.refuse_sync(token, ErrorCode::COORDINATOR_NOT_AVAILABLE);
    }
    let member = group.members.get_mut(&request.member_id).expect("validate found the member");
    if let Some(earlier) = member.awaiting_sync.replace(token) {
        // Kafka never answers the earlier one; here every request gets an answer, and this one means "join again".
        io.refuse_sync(earlier, ErrorCode::REBALANCE_IN_PROGRESS);
    }
    has_synced(group, io, &request.member_id);
    if assigns {
        write_assignment(group, io, request);
    }
}

/// Bytes that an assignment takes beyond those of the one before.
fn growth(group: &ClassicGroup, request: &SyncGroupRequest<'_>) -> usize {
    let given: usize = request.assignments.iter().map(|assignment| assignment.assignment.len()).sum();
    let held: usize = group.members.values().map(|member| member.assignment.len()).sum();
    given.saturating_sub(held)
}

fn write_assignment(group: &mut ClassicGroup, io: &mut Io<'_>, request: &SyncGroupRequest<'_>) {
    let mut given: HashMap<&str, Arc<[u8]>> = HashMap::with_capacity(request.assignments.len());
    for assignment in &request.assignments {
        given.insert(&assignment.member_id, Arc::from(&*assignment.assignment));
    }
    let share = |id: &MemberId| given.get(&**id).cloned().unwrap_or_else(|| Arc::from([]));
    let assignments = group.members.keys().map(|id| (id.clone(), share(id))).collect();
    group.pending_writes += 1;
    group.assignment_pending = true;
    let record = records::group_metadata(group, |member| share(&member.id));
    let (group, generation) = (group.id.clone(), group.generation);
    io.append(vec![record], Completion::Assignment { group, generation, assignments, awaited: true });
}

/// Ends the wait for members to sync when the last one has.
fn has_synced(group: &mut ClassicGroup, io: &mut Io<'_>, member: &str) {
    group.pending_syncs.remove(member);
    if group.pending_syncs.is_empty() {
        io.cancel_sync_timer(group);
    }
}

/// Handles the outcome of an assignment's write. It is ignored if the group has another generation by then.
pub(crate) fn assignment_written(
    group: &mut ClassicGroup,
    io: &mut Io<'_>,
    generation: i32,
    assignments: &[(MemberId, Arc<[u8]>)],
    outcome: Result<(), ErrorCode>,
) {
    if group.state != State::CompletingRebalance || group.generation != generation {
        return;
    }
    match outcome {
        Ok(()) => propagate(group, io, assignments),
        Err(error) => {
            fail_assignment(group, io, error);
            prepare_or_complete(group, io);
        }
    }
}
