//! A connection: what is under way on it, and what of its ends is there.

use std::collections::VecDeque;
use std::time::Duration;

use tonic::Status;

use super::EventId;
use crate::member::Member;
use crate::proto::{from_consumer, from_publisher::Frame};
use crate::slices::SliceRange;

/// On the way to the publisher.
#[derive(Debug)]
#[allow(clippy::large_enum_variant, reason = "nearly all of them are frames")]
pub(super) enum Up {
    Frame(from_consumer::Frame),
    /// Nothing more is sent.
    End,
    Broken,
}

/// On the way to the consumer.
#[derive(Debug)]
pub(super) enum Down {
    /// With the last event that the instance has received then.
    Frame(Frame, Option<EventId>),
    End(Option<Status>),
    Broken,
}

/// The publisher's end of a connection.
#[derive(Debug)]
pub(super) enum PublisherEnd {
    /// `Open` has not come.
    Accepting,
    Open(Box<Seat>),
    Gone,
}

#[derive(Debug)]
pub(super) struct Seat {
    pub(super) member: Member,
    pub(super) began_ms: u64,
    /// Which of all that came to publishers it is.
    pub(super) number: usize,
    pub(super) slices: Option<SliceRange>,
    pub(super) is_revoked: bool,
}

impl Seat {
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
    /// The consumer's end is there.
    pub(super) is_consumer_there: bool,
    /// It has ended, and not both ends have noticed.
    pub(super) is_cut: bool,
    /// Nothing arrives any more, and neither end notices.
    pub(super) is_silent: bool,
    /// Where the journal had left what the instance has received, when the publisher accepted it; none if it has received nothing.
    pub(super) left_at: Option<[i64; 2]>,
    /// That was before its end.
    pub(super) is_left: bool,
    pub(super) was_opened: bool,
    pub(super) has_said_all: bool,
    pub(super) heard_ms: u64,
    pub(super) said_ms: u64,
}
