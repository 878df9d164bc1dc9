//! The connection of an instance at the publisher: takes its frames, and makes those that are sent to it.
//!
//! It is the response stream itself: it runs when the connection can take the next frame, and ends with the connection. The
//! instance's [`Member`] decides what is sent. The session waits: for frames, for events, for time.

use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt as _;
use mainstem_lines::{OneLine, Sentence};
use tokio::sync::watch;
use tokio::time::Instant;
use tonic::{Status, Streaming};

use crate::chunk::Found;
pub(crate) use crate::cursor::{ALIVE_EVERY, DEAD_AFTER};
use crate::cursor::{Next, Now};
use crate::journal::OlderReader;
use crate::member::{Granted, Member, Opening};
use crate::peer_lines::PeerLines;
use crate::proto::{self, from_publisher::Frame};
use crate::stream::Stream;

/// The most frames of the consumer that are taken before one is made for it.
const FRAMES_TAKEN_MAX: usize = 64;

/// A connected instance.
#[derive(Debug)]
pub(crate) struct Session {
    stream: Arc<Stream>,
    consumer: String,
    instance: String,
    member: Member,
    inbound: Streaming<proto::FromConsumer>,
    ends: watch::Receiver<i64>,
    stops: watch::Receiver<bool>,
    lines: Arc<PeerLines>,
    /// Reads what the ring does not have any more.
    older: OlderReader,
    began: Instant,
    is_over: bool,
}

impl Session {
    /// Begins with the frame `Open`.
    pub(crate) fn open(
        stream: Arc<Stream>,
        open: proto::Open,
        inbound: Streaming<proto::FromConsumer>,
        granted: Granted,
        stops: watch::Receiver<bool>,
        lines: Arc<PeerLines>,
    ) -> Result<Session, Status> {
        let opening = Opening::of(open, granted)?;
        let view = stream.journal().view();
        // Refused before a consumer or an instance is made.
        opening.check(&view, stream.pipelines())?;
        let ends = stream.journal().ring().watch();
        let subscription = stream.subscription(&opening.consumer, opening.start)?;
        let (consumer, instance) = (opening.consumer.clone(), opening.instance.clone());
        let member = Member::join(subscription, stream.pipelines().clone(), opening, &view)?;
        let older = OlderReader::new(stream.journal().clone(), stream.past().clone());
        tracing::debug!(
            "instance {} of consumer {} reads stream {}",
            OneLine(&instance),
            OneLine(&consumer),
            OneLine(stream.name())
        );
        Ok(Session {
            stream,
            consumer,
            instance,
            member,
            inbound,
            ends,
            stops,
            lines,
            older,
            began: Instant::now(),
            is_over: false,
        })
    }

    /// Returns the next frame; `None` when the instance has left, or after an error.
    pub(crate) async fn next_frame(&mut self) -> Option<Result<proto::FromPublisher, Status>> {
        if self.is_over {
            return None;
        }
        match self.next().await {
            Ok(Some(frame)) => {
                let end = *self.ends.borrow();
                Some(Ok(proto::FromPublisher { frame: Some(frame), end }))
            }
            Ok(None) => {
                self.is_over = true;
                None
            }
            Err(status) => {
                self.is_over = true;
                self.lines.info(format_args!(
                    "instance {} of consumer {} of stream {} ends: {}",
                    OneLine(&self.instance),
                    OneLine(&self.consumer),
                    OneLine(self.stream.name()),
                    Sentence(status.message())
                ));
                Some(Err(status))
            }
        }
    }

    async fn next(&mut self) -> Result<Option<Frame>, Status> {
        loop {
            self.take_what_is_there()?;
            // Before the decision, so that what comes after it wakes the session.
            let end = *self.ends.borrow_and_update();
            let is_stopping = *self.stops.borrow_and_update() || self.stops.has_changed().is_err();
            match self.member.next(Now { time: self.time(), end, is_stopping })? {
                Next::Left => return Ok(None),
                Next::Frame(frame) => return Ok(Some(frame)),
                Next::Read(offset) => {
                    if let Some(frame) = self.read(offset).await? {
                        return Ok(Some(frame));
                    }
                }
                Next::Wait { until, for_events } => self.wait(until, for_events).await?,
            }
        }
    }

    /// The time since the session began.
    fn time(&self) -> Duration {
        self.began.elapsed()
    }

    async fn wait(&mut self, until: Duration, for_events: bool) -> Result<(), Status> {
        let until = self.began + until;
        tokio::select! {
            changed = self.member.changed() => changed,
            message = self.inbound.message() => {
                let time = self.began.elapsed();
                self.member.take(message?, time)
            }
            _ = self.ends.changed(), if for_events => Ok(()),
            _ = self.stops.changed() => Ok(()),
            () = tokio::time::sleep_until(until) => Ok(()),
        }
    }

    /// Takes frames that have arrived, so that an instance that reads fast is not taken for lost while events are sent
    /// to it.
    fn take_what_is_there(&mut self) -> Result<(), Status> {
        for _ in 0..FRAMES_TAKEN_MAX {
            let Some(message) = self.inbound.message().now_or_never() else { break };
            let time = self.time();
            self.member.take(message?, time)?;
            if self.member.has_left() {
                break;
            }
        }
        Ok(())
    }

    /// Reads the chunk at an offset; returns a frame with the instance's events of it, if there are any.
    async fn read(&mut self, offset: i64) -> Result<Option<Frame>, Status> {
        let chunk = match self.stream.journal().ring().find(offset) {
            // The end does not go back.
            Found::End => return Ok(None),
            Found::Chunk(chunk) => {
                self.older.close();
                self.stream.past().sends_live();
                chunk
            }
            Found::Older => Arc::new(self.older.read(offset).await?),
        };
        let (began, time) = (Instant::now(), self.time());
        let frame = self.member.read(&chunk, self.stream.journal().counters(), time)?;
        self.older.end_turn(began.elapsed(), bytes_of(frame.as_ref()));
        Ok(frame)
    }
}

/// Returns the bytes of events in a frame.
fn bytes_of(frame: Option<&Frame>) -> usize {
    match frame {
        Some(Frame::Records(records)) => records.batches.len(),
        _ => 0,
    }
}
