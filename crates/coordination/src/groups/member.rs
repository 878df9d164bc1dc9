//! One member of a classic group.

use std::collections::HashSet;
use std::sync::Arc;

use mainstem_wire::messages::describe_groups_response::DescribedGroupMember;
use mainstem_wire::messages::join_group_request::JoinGroupRequestProtocol;
use mainstem_wire::messages::join_group_response::JoinGroupResponseMember;

use super::deadlines::Timer;
use super::token::Token;

/// The id that the coordinator gave a member.
pub(crate) type MemberId = Arc<str>;

/// A protocol (assignor) that a member offers, with the metadata for the leader.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Protocol {
    pub(crate) name: Box<str>,
    pub(crate) metadata: Arc<[u8]>,
}

/// The protocols of a request in the client's order of preference; a name that comes twice counts once.
pub(crate) fn protocols(offered: &[JoinGroupRequestProtocol<'_>]) -> Vec<Protocol> {
    let mut protocols: Vec<Protocol> = Vec::with_capacity(offered.len());
    let mut known = HashSet::with_capacity(offered.len());
    for protocol in offered {
        if known.insert(&*protocol.name) {
            protocols.push(Protocol { name: (*protocol.name).into(), metadata: (*protocol.metadata).into() });
        }
    }
    protocols
}

/// A JoinGroup that waits for the end of the phase.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct JoinWaiter {
    pub(crate) token: Token,
    pub(crate) api_version: i16,
}

/// A member of a group: its JoinGroup, its assignment, and the requests in which it waits.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Member {
    pub(crate) id: MemberId,
    /// KIP-345: set for a static member.
    pub(crate) instance_id: Option<Arc<str>>,
    pub(crate) client_id: Box<str>,
    pub(crate) client_host: Box<str>,
    pub(crate) rebalance_timeout_ms: i32,
    pub(crate) session_timeout_ms: i32,
    pub(crate) protocols: Vec<Protocol>,
    /// Empty until the leader has assigned something.
    pub(crate) assignment: Arc<[u8]>,
    pub(crate) awaiting_join: Option<JoinWaiter>,
    pub(crate) awaiting_sync: Option<Token>,
    /// It has never got an answer to JoinGroup: it cannot send heartbeats, and is dropped if it waits too long.
    pub(crate) is_new: bool,
    pub(crate) session: Option<Timer>,
}

impl Member {
    /// Returns true if the member's session may not end now: it waits in a request, so it is the coordinator's turn.
    pub(crate) fn is_excused(&self) -> bool {
        !self.is_new && (self.awaiting_join.is_some() || self.awaiting_sync.is_some())
    }

    /// Returns true if this JoinGroup of the member waits.
    pub(crate) fn awaits_join(&self, token: Token) -> bool {
        self.awaiting_join.is_some_and(|waiter| waiter.token == token)
    }

    /// Returns true if the member offers exactly these protocols, in this order.
    pub(crate) fn offers(&self, protocols: &[Protocol]) -> bool {
        self.protocols == protocols
    }

    /// The member's metadata for the group's protocol; empty if it does not offer it.
    pub(crate) fn metadata(&self, protocol: &str) -> Arc<[u8]> {
        let offered = self.protocols.iter().find(|offered| *offered.name == *protocol);
        offered.map_or_else(|| Arc::from([]), |offered| offered.metadata.clone())
    }

    /// The member in the answer to the leader.
    pub(crate) fn as_joined(&self, protocol: &str) -> JoinGroupResponseMember<'static> {
        JoinGroupResponseMember {
            member_id: self.id.to_string().into(),
            group_instance_id: self.instance_id.as_ref().map(|id| id.to_string().into()),
            metadata: self.metadata(protocol).to_vec().into(),
            ..Default::default()
        }
    }

    /// The member in the answer of DescribeGroups; metadata and assignment only while they belong together (`protocol` is given).
    pub(crate) fn as_described(&self, protocol: Option<&str>) -> DescribedGroupMember<'static> {
        let bytes = |bytes: Arc<[u8]>| bytes.to_vec().into();
        DescribedGroupMember {
            member_id: self.id.to_string().into(),
            group_instance_id: self.instance_id.as_ref().map(|id| id.to_string().into()),
            client_id: self.client_id.to_string().into(),
            client_host: self.client_host.to_string().into(),
            member_metadata: protocol.map(|name| bytes(self.metadata(name))).unwrap_or_default(),
            member_assignment: protocol.map(|_| bytes(self.assignment.clone())).unwrap_or_default(),
            ..Default::default()
        }
    }
}
