//! LeaveGroup (13), v0-5: a member leaves, or an administrator removes several (KIP-345).

use std::borrow::Cow;

use mainstem_wire::ErrorCode;
use mainstem_wire::messages::leave_group_request::{LeaveGroupRequest, MemberIdentity};
use mainstem_wire::messages::leave_group_response::{LeaveGroupResponse, MemberResponse};

use super::api::Reply;
use super::classic::{ClassicGroup, State};
use super::io::Io;
use super::rebalance::{self, remove_member, remove_pending};
use super::refused;
use super::token::Token;

/// Before this version a request names one member, and the response has one error.
const SEVERAL_MEMBERS_SINCE: i16 = 3;

/// Serves a LeaveGroup. If the group becomes empty, the answer waits for its record.
pub(crate) fn leave(
    group: &mut ClassicGroup,
    io: &mut Io<'_>,
    token: Token,
    api_version: i16,
    request: &LeaveGroupRequest<'_>,
) {
    if group.state == State::Dead {
        return io.reply(token, refused::leave(ErrorCode::COORDINATOR_NOT_AVAILABLE));
    }
    let members: Vec<MemberResponse<'static>> = identities(request, api_version)
        .iter()
        .map(|member| answer(member, remove(group, io, member)))
        .collect();
    let any_left = members.iter().any(|member| member.error_code == ErrorCode::NONE.0);
    let held = (token, left(api_version, members));
    if any_left {
        rebalance::leave(group, io, Some(held));
    } else {
        io.reply(held.0, held.1);
    }
}

/// The answer for an unknown group: none of the members is known.
pub(crate) fn unknown_group(api_version: i16, request: &LeaveGroupRequest<'_>) -> Reply {
    let unknown = |member: &MemberIdentity<'_>| answer(member, Err(ErrorCode::UNKNOWN_MEMBER_ID));
    left(api_version, identities(request, api_version).iter().map(unknown).collect())
}

/// Returns the members that leave, in the form of versions 3 and later.
pub(crate) fn identities<'a>(
    request: &'a LeaveGroupRequest<'a>,
    api_version: i16,
) -> Cow<'a, [MemberIdentity<'a>]> {
    if api_version >= SEVERAL_MEMBERS_SINCE {
        return Cow::Borrowed(&request.members);
    }
    let member_id = Cow::Borrowed(&*request.member_id);
    Cow::Owned(vec![MemberIdentity { member_id, ..Default::default() }])
}

/// Removes one member. An administrator names a static one by its instance id alone.
fn remove(group: &mut ClassicGroup, io: &mut Io<'_>, member: &MemberIdentity<'_>) -> Result<(), ErrorCode> {
    let instance = member.group_instance_id.as_deref();
    if member.member_id.is_empty() {
        let id = instance.and_then(|instance| group.static_members.get(instance).cloned());
        let id = id.ok_or(ErrorCode::UNKNOWN_MEMBER_ID)?;
        remove_member(group, io, &id, ErrorCode::UNKNOWN_MEMBER_ID);
        return Ok(());
    }
    if remove_pending(group, io, &member.member_id) {
        return Ok(());
    }
    group.validate_member(&member.member_id, instance)?;
    remove_member(group, io, &member.member_id, ErrorCode::UNKNOWN_MEMBER_ID);
    Ok(())
}

pub(crate) fn answer(member: &MemberIdentity<'_>, outcome: Result<(), ErrorCode>) -> MemberResponse<'static> {
    MemberResponse {
        member_id: member.member_id.to_string().into(),
        group_instance_id: member.group_instance_id.as_ref().map(|id| id.to_string().into()),
        error_code: outcome.err().unwrap_or(ErrorCode::NONE).0,
        ..Default::default()
    }
}

pub(crate) fn left(api_version: i16, members: Vec<MemberResponse<'static>>) -> Reply {
    let response = if api_version >= SEVERAL_MEMBERS_SINCE {
        LeaveGroupResponse { members, ..Default::default() }
    } else {
        let error_code = members.first().map_or(ErrorCode::NONE.0, |member| member.error_code);
        LeaveGroupResponse { error_code, ..Default::default() }
    };
    Reply::LeaveGroup(response)
}
