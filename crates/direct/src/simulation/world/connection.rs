//! A connection: the messages under way, and the state of its ends.

use std::collections::VecDeque;
use std::time::Duration;

use tonic::Status;

use super::EventId;
use crate::member::Member;
use crate::proto::{from_consumer, from_publisher::Frame};
use crate::slices::SliceRange;

/// A message to the publisher.
#[derive(Debug)]
#[allow(clippy::large_enum_variant, reason = "nearly all of them are frames")]
pub(super) enum Up {
    Frame(from_consumer::Frame),
    /// The end of the consumer's frames.
    End,
    Broken,
}

/// A message to the consumer.
#[derive(Debug)]
pub(super) enum Down {
    /// A frame, with the last event that the instance has received with it.
    Frame(Frame, Option<EventId>),
    End(Option<Status>),
    Broken,
}

/// The publisher's end of a connection.
#[derive(Debug)]
pub(super) enum PublisherEnd {
    /// `Open` has not come.
    Accepting,
    Open(Box<Session>),
    Gone,
}

#[derive(Debug)]
pub(super) struct Session {
    pub(super) member: Member,
    pub(super) began_ms: u64,
    /// Its number among the sessions of all publishers.
    pub(super) number: usize,
    pub(super) slices: Option<SliceRange>,
    pub(super) is_revoked: bool,
}

impl Session {
    pub(super) fn time(&self, now_ms: u64) -> Duration {
        Duration::from_millis(now_ms - self.began_ms)
    }
}

#[derive(Debug)]
pub(super) struct Connection {
    pub(super) number: usize,
    pub(super) instance: usize,
    pub(super) up: VecDeque<Up>,
    pub(super) down: VecDeque<Down>,
    pub(super) publisher_end: PublisherEnd,
    /// The consumer has not left it.
    pub(super) is_consumer_there: bool,
    /// It has ended, and not both ends have noticed.
    pub(super) is_cut: bool,
    /// Nothing arrives any more, and neither end notices.
    pub(super) is_silent: bool,
    /// The offsets at which the journal and what the instance had received differed when the publisher accepted it; none if it had
    /// received nothing.
    pub(super) left_at: Option<[i64; 2]>,
    /// They differed before the end of what it had received.
    pub(super) is_left: bool,
    pub(super) was_opened: bool,
    pub(super) has_said_all: bool,
    pub(super) heard_ms: u64,
    pub(super) said_ms: u64,
}
