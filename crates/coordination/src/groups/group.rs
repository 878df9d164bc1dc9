//! A group as the coordinator holds it: its protocol's state and its offsets.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::classic::{ClassicGroup, State};
use super::offsets::Offsets;

/// The protocol that a group's members speak, with its state.
#[derive(Debug)]
pub(crate) enum Protocol {
    /// The classic protocol; also a group that only stores offsets.
    Classic(ClassicGroup),
}

/// A group.
#[derive(Debug)]
pub(crate) struct Group {
    pub(crate) protocol: Protocol,
    /// What is durable. Commits on their way are with the pending appends.
    pub(crate) offsets: Offsets,
}

/// The groups of one partition of `__consumer_offsets`, in an order that makes effects the same in every run.
pub(crate) type Groups = BTreeMap<Arc<str>, Group>;

impl Group {
    /// A group without members and offsets.
    pub(crate) fn new(id: Arc<str>, wall_ms: i64) -> Self {
        Self { protocol: Protocol::Classic(ClassicGroup::new(id, wall_ms)), offsets: Offsets::default() }
    }

    /// Whether a durable record says that the group exists.
    pub(crate) fn is_stored(&self) -> bool {
        let Protocol::Classic(group) = &self.protocol;
        group.stored || !self.offsets.is_empty()
    }

    /// Whether nothing would be lost if the group were forgotten: it has no members, no offsets, no record, and none
    /// of them is on its way.
    pub(crate) fn is_nothing(&self) -> bool {
        let Protocol::Classic(group) = &self.protocol;
        !self.is_stored()
            && group.state == State::Empty
            && group.pending_writes == 0
            && group.pending_joins.is_empty()
    }
}
