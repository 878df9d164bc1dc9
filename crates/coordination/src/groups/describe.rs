//! ListGroups (16), v0-5, and DescribeGroups (15), v0-6.

use std::borrow::Cow;
use std::ops::Bound;
use std::sync::Arc;

use mainstem_wire::ErrorCode;
use mainstem_wire::messages::describe_groups_response::DescribedGroup;
use mainstem_wire::messages::list_groups_request::ListGroupsRequest;
use mainstem_wire::messages::list_groups_response::{ListGroupsResponse, ListedGroup};

use super::classic::State;
use super::group::{Group, Groups, Protocol};
use super::member::Member;
use super::members::Members;

/// KIP-1043: from this version on a group that does not exist is an error and not a dead group.
const GROUP_ID_NOT_FOUND_SINCE: i16 = 6;
/// The type of classic groups (KIP-848).
const CLASSIC: &str = "classic";
/// The type of consumer groups.
const CONSUMER: &str = "consumer";
/// The protocol type that consumer groups are shown with.
const CONSUMER_PROTOCOL_TYPE: &str = "consumer";

/// The states that a group of either type may be in.
const STATES: [&str; 7] =
    ["Assigning", "CompletingRebalance", "Dead", "Empty", "PreparingRebalance", "Reconciling", "Stable"];

/// Groups that are looked at for one part of a list, while the coordinator serves nothing else.
pub const LISTED_AT_ONCE: usize = 500;

/// The filters of ListGroups. They are parsed once, so that a look at a group costs the same whatever the request names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ListFilter {
    states: Vec<&'static str>,
    types: Vec<&'static str>,
}

impl ListFilter {
    /// Parses the filters of a request. An empty one lets all groups pass, and case does not matter.
    pub fn of(request: &ListGroupsRequest<'_>) -> Self {
        Self {
            states: passing(&request.states_filter, &STATES),
            types: passing(&request.types_filter, &[CLASSIC, CONSUMER]),
        }
    }
}

fn passing(filter: &[Cow<'_, str>], all: &[&'static str]) -> Vec<&'static str> {
    let passes =
        |value: &&str| filter.is_empty() || filter.iter().any(|wanted| wanted.eq_ignore_ascii_case(value));
    all.iter().copied().filter(passes).collect()
}

/// A position in a list: the partition of `__consumer_offsets`, and the last of its groups that was looked at.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ListPosition {
    pub(crate) partition: i32,
    pub(crate) group: Arc<str>,
}

/// A part of the list of groups.
#[derive(Debug, Clone, PartialEq)]
pub struct ListPart {
    /// The groups that pass, or an error for the whole list.
    pub response: ListGroupsResponse<'static>,
    /// Groups that were looked at, at most [`LISTED_AT_ONCE`].
    pub looked_at: usize,
    /// The position of the next part; none after the last part.
    pub next: Option<ListPosition>,
}

/// Lists groups of one partition, from the one after `after` on, until `part` has looked at as many as it may. Returns the last group
/// that was looked at if there may be more.
pub(crate) fn list(
    groups: &Groups,
    filter: &ListFilter,
    after: Option<&Arc<str>>,
    part: &mut ListPart,
) -> Option<Arc<str>> {
    let from = after.map_or(Bound::Unbounded, |after| Bound::Excluded(after.clone()));
    for (id, group) in groups.range((from, Bound::Unbounded)) {
        part.looked_at += 1;
        part.response.groups.extend(listed(id, group, filter));
        if part.looked_at == LISTED_AT_ONCE {
            return Some(id.clone());
        }
    }
    None
}

fn listed(id: &Arc<str>, group: &Group, filter: &ListFilter) -> Option<ListedGroup<'static>> {
    let kind = if let Protocol::Classic(_) = group.protocol { CLASSIC } else { CONSUMER };
    let state = group.state_name();
    let passes = group.is_stored() && filter.states.contains(&state) && filter.types.contains(&kind);
    let protocol_type = match &group.protocol {
        Protocol::Classic(group) => group.protocol_type.as_deref().unwrap_or_default(),
        Protocol::Consumer(_) => CONSUMER_PROTOCOL_TYPE,
    };
    passes.then(|| ListedGroup {
        group_id: id.to_string().into(),
        protocol_type: protocol_type.to_owned().into(),
        group_state: state.into(),
        group_type: kind.into(),
        ..Default::default()
    })
}

/// A group as DescribeGroups shows it, at one moment. Its members are shared with the coordinator, so their number does not hold it up:
/// [`response`](ClassicDescription::response) reads them without it.
#[derive(Debug, Clone, PartialEq)]
pub struct ClassicDescription(Description);

#[derive(Debug, Clone, PartialEq)]
enum Description {
    Group {
        id: Arc<str>,
        state: State,
        protocol_type: Option<Box<str>>,
        protocol_name: Option<Box<str>>,
        members: Members<Member>,
    },
    /// The answer if no classic group can be shown.
    Other(DescribedGroup<'static>),
}

/// One group with its members.
pub(crate) fn describe(groups: &Groups, id: &str, api_version: i16) -> ClassicDescription {
    let group = groups.get(id).filter(|group| group.is_stored());
    ClassicDescription(match group {
        Some(Group { protocol: Protocol::Classic(classic), .. }) if classic.state != State::Dead => {
            Description::Group {
                id: classic.id.clone(),
                state: classic.state,
                protocol_type: classic.protocol_type.clone(),
                protocol_name: classic.protocol_name.clone(),
                members: classic.members.clone(),
            }
        }
        Some(Group { protocol: Protocol::Consumer(_), .. }) => {
            Description::Other(not_found(id, api_version, "is not a classic group"))
        }
        _ => Description::Other(not_found(id, api_version, "not found")),
    })
}

impl ClassicDescription {
    /// The group's part of the response.
    pub fn response(&self) -> DescribedGroup<'static> {
        let (id, state, protocol_type, protocol_name, members) = match &self.0 {
            Description::Group { id, state, protocol_type, protocol_name, members } => {
                (id, state, protocol_type, protocol_name, members)
            }
            Description::Other(answer) => return answer.clone(),
        };
        let protocol = protocol_name.as_deref().unwrap_or_default();
        let stable = (*state == State::Stable).then_some(protocol);
        DescribedGroup {
            group_id: id.to_string().into(),
            group_state: state.name().into(),
            protocol_type: protocol_type.as_deref().unwrap_or_default().to_string().into(),
            protocol_data: stable.unwrap_or_default().to_string().into(),
            members: members.values().map(|member| member.as_described(stable)).collect(),
            ..Default::default()
        }
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
pub(crate) fn refused(id: &str, error: ErrorCode) -> ClassicDescription {
    let group_id = id.to_string().into();
    ClassicDescription(Description::Other(DescribedGroup {
        group_id,
        error_code: error.0,
        ..Default::default()
    }))
}
