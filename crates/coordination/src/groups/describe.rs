//! ListGroups (16), v0-5, and DescribeGroups (15), v0-6: what administrators see.

use std::borrow::Cow;

use mainstem_wire::ErrorCode;
use mainstem_wire::messages::describe_groups_response::DescribedGroup;
use mainstem_wire::messages::list_groups_request::ListGroupsRequest;
use mainstem_wire::messages::list_groups_response::ListedGroup;

use super::classic::{ClassicGroup, State};
use super::group::{Group, Groups, Protocol};

/// KIP-1043: from this version on a group that is not there is an error and not a dead group.
const GROUP_ID_NOT_FOUND_SINCE: i16 = 6;
/// The type of classic groups (KIP-848).
const CLASSIC: &str = "classic";
/// The type of consumer groups.
const CONSUMER: &str = "consumer";
/// What consumer groups have for a protocol type.
const CONSUMER_PROTOCOL_TYPE: &str = "consumer";

/// The groups that pass the filters; an empty filter lets all pass, and letters' case does not matter.
pub(crate) fn list(groups: &Groups, request: &ListGroupsRequest<'_>, listed: &mut Vec<ListedGroup<'static>>) {
    let passes = |filter: &[Cow<'_, str>], value: &str| {
        filter.is_empty() || filter.iter().any(|wanted| wanted.eq_ignore_ascii_case(value))
    };
    for (id, group) in groups.iter().filter(|(_, group)| group.is_stored()) {
        let (kind, state, protocol_type) = match &group.protocol {
            Protocol::Classic(group) => {
                (CLASSIC, group.state.name(), group.protocol_type.as_deref().unwrap_or_default())
            }
            Protocol::Consumer(group) => (CONSUMER, group.state().name(), CONSUMER_PROTOCOL_TYPE),
        };
        if !passes(&request.states_filter, state) || !passes(&request.types_filter, kind) {
            continue;
        }
        listed.push(ListedGroup {
            group_id: id.to_string().into(),
            protocol_type: protocol_type.to_owned().into(),
            group_state: state.into(),
            group_type: kind.into(),
            ..Default::default()
        });
    }
}

/// One group with its members.
pub(crate) fn describe(groups: &Groups, id: &str, api_version: i16) -> DescribedGroup<'static> {
    let group = groups.get(id).filter(|group| group.is_stored());
    match group {
        Some(Group { protocol: Protocol::Classic(classic), .. }) if classic.state != State::Dead => {
            described(classic)
        }
        Some(Group { protocol: Protocol::Consumer(_), .. }) => {
            not_found(id, api_version, "is not a classic group")
        }
        _ => not_found(id, api_version, "not found"),
    }
}

fn described(group: &ClassicGroup) -> DescribedGroup<'static> {
    let protocol = group.protocol_name.as_deref().unwrap_or_default();
    let stable = (group.state == State::Stable).then_some(protocol);
    DescribedGroup {
        group_id: group.id.to_string().into(),
        group_state: group.state.name().into(),
        protocol_type: group.protocol_type.as_deref().unwrap_or_default().to_string().into(),
        protocol_data: stable.unwrap_or_default().to_string().into(),
        members: group.members.values().map(|member| member.as_described(stable)).collect(),
        ..Default::default()
    }
}

fn not_found(id: &str, api_version: i16, what: &str) -> DescribedGroup<'static> {
    let mut group = DescribedGroup {
        group_id: id.to_string().into(),
        group_state: State::Dead.name().into(),
        ..Default::default()
    };
    if api_version >= GROUP_ID_NOT_FOUND_SINCE {
        group.error_code = ErrorCode::GROUP_ID_NOT_FOUND.0;
        group.error_message = Some(format!("Group {id} {what}.").into());
    }
    group
}

/// The answer for a group that cannot be looked at here.
pub(crate) fn refused(id: &str, error: ErrorCode) -> DescribedGroup<'static> {
    DescribedGroup { group_id: id.to_string().into(), error_code: error.0, ..Default::default() }
}
