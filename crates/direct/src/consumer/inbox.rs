//! Frames that have arrived and frames to send, between the connection and the application.

use std::sync::Arc;

use futures_util::Stream;
use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::Instant;

use super::{ConsumerConfig, ConsumerEvent};
use crate::error::{DirectError, Refused, Result};
use crate::proto::{self, FromConsumer, from_consumer, from_publisher};
use crate::resume::JournalView;
use crate::session::ALIVE_EVERY;
use crate::slices::Done;
use state::State;

mod state;

/// The cause of a connection's end.
#[derive(Debug)]
pub(crate) enum Fault {
    /// Another connection may succeed.
    Lost { was_opened: bool, reason: String },
    /// Another connection may succeed after a change of certificates or of the address.
    Tls(DirectError),
    /// No further connection can succeed.
    Fatal(DirectError),
}

/// The reason to reject a frame of the publisher; the connection ends.
#[derive(Debug)]
pub(crate) enum Rejected {
    /// The frame breaks the protocol; another connection may be better.
    Protocol(String),
    /// The journal does not have what was received: no further connection can succeed.
    Refused(Refused),
}

#[derive(Debug)]
pub(crate) struct Inbox {
    state: Mutex<State>,
    /// Notified when something has arrived.
    arrived: Notify,
    /// Notified when something is to be sent.
    to_send: Notify,
    left: Notify,
}

impl Inbox {
    /// Makes an inbox with the credit to give, and a number that no other process has.
    pub(crate) fn new(credit_bytes: u64, process: u64) -> Inbox {
        Inbox {
            state: Mutex::new(State::new(credit_bytes, process)),
            arrived: Notify::new(),
            to_send: Notify::new(),
            left: Notify::new(),
        }
    }

    pub(crate) async fn next(&self) -> Result<ConsumerEvent> {
        loop {
            // Registered before the look, so that no arrival is missed.
            let arrived = self.arrived.notified();
            if let Some(next) = self.look() {
                return next;
            }
            arrived.await;
        }
    }

    /// Returns the next event that is due, if one is.
    pub(crate) fn look(&self) -> Option<Result<ConsumerEvent>> {
        let mut state = self.state.lock();
        let next = state.look();
        if next.is_some() && state.is_credit_worth_sending() {
            self.to_send.notify_one();
        }
        next
    }

    pub(crate) fn hold(&self, is_held: bool) {
        self.state.lock().hold(is_held);
        self.arrived.notify_one();
    }

    /// The journal, as the publisher described it last.
    pub(crate) fn journal(&self) -> Option<JournalView> {
        self.state.lock().journal().cloned()
    }

    /// Notes the end of the publisher's journal; 0 means that the publisher did not say it.
    pub(crate) fn note_end(&self, end: i64) {
        if end > 0 {
            self.state.lock().note_end(end);
        }
    }

    pub(crate) fn end(&self) -> Option<i64> {
        self.state.lock().end()
    }

    pub(crate) fn assignment(&self) -> Option<u64> {
        self.state.lock().assignment()
    }

    pub(crate) fn done(&self, done: Done) {
        if self.state.lock().done(done) {
            self.to_send.notify_one();
        }
    }

    pub(crate) fn release(&self, done: Done) {
        self.state.lock().release(done);
        self.arrived.notify_one();
        self.to_send.notify_one();
    }

    pub(crate) fn keep_filter(&self, filter: proto::Filter) {
        self.state.lock().keep_filter(filter);
        self.to_send.notify_one();
    }

    pub(crate) fn leave(&self) {
        self.state.lock().leave();
        self.to_send.notify_one();
        self.left.notify_one();
    }

    pub(crate) fn is_leaving(&self) -> bool {
        self.state.lock().is_leaving()
    }

    /// Returns true if the instance leaves and the publisher has received everything of it.
    pub(crate) fn has_left(&self) -> bool {
        self.state.lock().has_left()
    }

    /// Waits until the instance leaves.
    pub(crate) async fn left(&self) {
        while !self.is_leaving() {
            self.left.notified().await;
        }
    }

    pub(crate) fn fail(&self, error: DirectError) {
        self.state.lock().fail(error);
        self.arrived.notify_one();
    }

    /// The first frame of a connection: what was read and done before it.
    pub(crate) fn open(&self, config: &ConsumerConfig) -> proto::Open {
        self.state.lock().open(config)
    }

    /// The next frame that is due, if one is.
    pub(crate) fn to_be_sent(&self) -> Option<from_consumer::Frame> {
        self.state.lock().frame()
    }

    /// The frames that a connection sends, each made when the connection can take it.
    pub(crate) fn outbound(self: Arc<Inbox>, open: proto::Open) -> impl Stream<Item = FromConsumer> + Send {
        let first = FromConsumer { frame: Some(from_consumer::Frame::Open(open)) };
        futures_util::stream::unfold((self, Some(first)), |(inbox, mut first)| async move {
            if let Some(first) = first.take() {
                return Some((first, (inbox, None)));
            }
            let alive_at = Instant::now() + ALIVE_EVERY;
            let frame = loop {
                let to_send = inbox.to_send.notified();
                let (frame, is_leaving) = (inbox.to_be_sent(), inbox.is_leaving());
                match frame {
                    Some(frame) => break frame,
                    None if is_leaving => return None,
                    None => {}
                }
                if tokio::time::timeout_at(alive_at, to_send).await.is_err() {
                    break from_consumer::Frame::Alive(proto::Alive {});
                }
            };
            Some((FromConsumer { frame: Some(frame) }, (inbox, None)))
        })
    }

    /// Takes a frame of the publisher.
    ///
    /// # Errors
    /// The reason why the connection ends.
    pub(crate) fn take(&self, frame: from_publisher::Frame) -> Result<(), Rejected> {
        let mut state = self.state.lock();
        if let from_publisher::Frame::Opened(opened) = &frame {
            state.check_opened(opened).map_err(Rejected::Refused)?;
        }
        let is_assign = matches!(frame, from_publisher::Frame::Assign(_));
        let taken = state.take(frame);
        self.arrived.notify_one();
        if is_assign {
            self.to_send.notify_one();
        }
        taken.map_err(Rejected::Protocol)
    }
}

#[cfg(test)]
mod tests;
