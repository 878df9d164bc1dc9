//! Heartbeat (12), v0-4: it keeps a member's session alive, and the answer says whether the member has to rejoin.

use mainstem_wire::ErrorCode;
use mainstem_wire::messages::heartbeat_request::HeartbeatRequest;

use super::classic::{ClassicGroup, State};
use super::io::Io;

/// Serves a Heartbeat to its group.
pub(crate) fn heartbeat(
    group: &mut ClassicGroup,
    io: &mut Io<'_>,
    request: &HeartbeatRequest<'_>,
) -> Result<(), ErrorCode> {
    if group.state == State::Dead {
        return Err(ErrorCode::COORDINATOR_NOT_AVAILABLE);
    }
    group.validate_member(&request.member_id, request.group_instance_id.as_deref())?;
    if request.generation_id != group.generation {
        return Err(ErrorCode::ILLEGAL_GENERATION);
    }
    keep_alive(group, io, &request.member_id);
    if group.state == State::PreparingRebalance { Err(ErrorCode::REBALANCE_IN_PROGRESS) } else { Ok(()) }
}

/// Restarts the session of a member.
pub(crate) fn keep_alive(group: &mut ClassicGroup, io: &mut Io<'_>, member: &str) {
    if let Some(member) = group.members.get_mut(member) {
        io.restart_session(&group.id, member, None);
    }
}
