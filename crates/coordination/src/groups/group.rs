//! A group as the coordinator holds it: its protocol's state and its offsets.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::classic::{ClassicGroup, State};
use super::consumer::group::{ConsumerGroup, State as ConsumerState};
use super::offsets::Offsets;
use super::open_offsets::OpenOffsets;

/// The protocol that a group's members speak, with its state.
#[derive(Debug)]
pub(crate) enum Protocol {
    /// The classic protocol; also a group that only stores offsets.
    Classic(ClassicGroup),
    /// The consumer protocol (KIP-848).
    Consumer(ConsumerGroup),
}

/// A group of either protocol, with its offsets.
#[derive(Debug)]
pub(crate) struct Group {
    pub(crate) protocol: Protocol,
    /// The record with which the group changes its protocol is being written: the group is not served until then.
    pub(crate) converting: bool,
    /// Durable offsets. Commits in flight are with the pending appends.
    pub(crate) offsets: Offsets,
    /// Offsets that open transactions have written.
    pub(crate) open_offsets: OpenOffsets,
}

/// The groups of one partition of `__consumer_offsets`, in an order that makes effects the same in every run.
pub(crate) type Groups = BTreeMap<Arc<str>, Group>;

impl Group {
    /// A group without members and offsets.
    pub(crate) fn new(id: Arc<str>, wall_ms: i64) -> Self {
        Self::of(Protocol::Classic(ClassicGroup::new(id, wall_ms)))
    }

    /// A consumer group without members and offsets.
    pub(crate) fn consumer(id: Arc<str>) -> Self {
        Self::of(Protocol::Consumer(ConsumerGroup::new(id)))
    }

    fn of(protocol: Protocol) -> Self {
        Self {
            protocol,
            converting: false,
            offsets: Offsets::default(),
            open_offsets: OpenOffsets::default(),
        }
    }

    pub(crate) fn id(&self) -> &Arc<str> {
        match &self.protocol {
            Protocol::Classic(group) => &group.id,
            Protocol::Consumer(group) => &group.id,
        }
    }

    /// The classic group, if it is one.
    pub(crate) fn classic(&mut self) -> Option<&mut ClassicGroup> {
        match &mut self.protocol {
            Protocol::Classic(group) => Some(group),
            Protocol::Consumer(_) => None,
        }
    }

    /// Its state, as the APIs spell it.
    pub(crate) fn state_name(&self) -> &'static str {
        match &self.protocol {
            Protocol::Classic(group) => group.state.name(),
            Protocol::Consumer(group) => group.state().name(),
        }
    }

    /// Returns true if a durable record says that the group exists.
    pub(crate) fn is_stored(&self) -> bool {
        let stored = match &self.protocol {
            Protocol::Classic(group) => group.stored,
            Protocol::Consumer(group) => group.stored,
        };
        stored || !self.offsets.is_empty() || !self.open_offsets.is_empty()
    }

    /// Returns true if nothing is lost when the group is dropped: it has no members, no offsets and no record, and none of them is in
    /// flight.
    pub(crate) fn is_nothing(&self) -> bool {
        let is_idle = match &self.protocol {
            Protocol::Classic(group) => {
                group.state == State::Empty && group.pending_writes == 0 && group.pending_joins.is_empty()
            }
            Protocol::Consumer(group) => !group.has_records() && group.pending_writes == 0,
        };
        !self.is_stored() && is_idle && !self.converting
    }

    /// Returns true while records of the group itself, not of its offsets, are being written.
    pub(crate) fn has_pending_writes(&self) -> bool {
        match &self.protocol {
            Protocol::Classic(group) => group.pending_writes > 0,
            Protocol::Consumer(group) => group.pending_writes > 0,
        }
    }

    /// Returns true if members may be reading this topic.
    pub(crate) fn is_subscribed_to(&self, topic: &str) -> bool {
        match &self.protocol {
            Protocol::Classic(group) => group.is_subscribed_to(topic),
            Protocol::Consumer(group) => group.is_subscribed_to(topic),
        }
    }

    /// Returns the occupancy, which decides whether the group or its offsets may be deleted.
    pub(crate) fn occupancy(&self) -> Occupancy {
        match &self.protocol {
            _ if self.converting => Occupancy::Changing,
            Protocol::Classic(group) => match group.state {
                State::Dead => Occupancy::Dead,
                State::Empty => Occupancy::Empty,
                _ if group.uses_consumer_protocol() => Occupancy::Consumers,
                _ => Occupancy::Others,
            },
            Protocol::Consumer(group) => match group.state() {
                ConsumerState::Dead => Occupancy::Dead,
                ConsumerState::Empty => Occupancy::Empty,
                _ => Occupancy::Consumers,
            },
        }
    }

    /// Marks the group as one whose tombstones are being written, or unmarks it.
    pub(crate) fn set_dead(&mut self, dead: bool) {
        match &mut self.protocol {
            Protocol::Classic(group) if dead => group.state = State::Dead,
            Protocol::Classic(group) if group.state == State::Dead => group.state = State::Empty,
            Protocol::Classic(_) => {}
            Protocol::Consumer(group) => group.dead = dead,
        }
    }
}

/// The occupancy of a group: the kind of its members, if it has any.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Occupancy {
    /// Its tombstones are being written.
    Dead,
    /// It changes its protocol at the moment.
    Changing,
    /// No member.
    Empty,
    /// Members whose subscriptions are known, or count as all topics.
    Consumers,
    /// Members of another protocol type.
    Others,
}
