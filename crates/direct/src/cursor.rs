//! The state machine that decides what an instance is sent and when. It knows how far its assignment was read and said, through
//! which filters events go, and how many bytes may follow.
//!
//! ```text
//!   done            sent_to              position                      end
//! ───┴─────────────────┴────────────────────┴───────────────────────────┴──
//!     frames said so    read and left out:     visible, to be read
//!                       in the next `Skip`
//! ```
//!
//! Frames that are decided wait in `outgoing`, in their order. Events are read when none waits, so that they come after what was
//! decided before them.
//!
//! Architecture invariant: no clock and no I/O. The time, the journal's end and its chunks go in. Frames come out, with what is to
//! be read or waited for.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use tonic::Status;

use crate::chunk::{Chunk, Counters, FilterPipeline, Share, first_batches};
use crate::credit::Credit;
use crate::error::Refused;
use crate::journal::FRAME_BYTES_MAX;
use crate::proto::{self, from_consumer, from_publisher::Frame};
use crate::slices::Done;
use crate::subscription::Control;

/// The interval of keep-alives while nothing else is sent.
pub(crate) const ALIVE_EVERY: Duration = Duration::from_secs(5);
/// A peer of which nothing comes for so long is gone.
pub(crate) const DEAD_AFTER: Duration = Duration::from_secs(15);
/// The least time between frames that only skip offsets, while nothing else is to be read.
const SKIP_EVERY: Duration = Duration::from_millis(100);
/// The most chunks without an event for an instance before a `Skip` says so.
const CHUNKS_UNSAID_MAX: usize = 64;

/// The inputs of a decision.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Now {
    /// The time since the session began.
    pub(crate) time: Duration,
    /// The offset behind the last visible event.
    pub(crate) end: i64,
    /// The publisher stops.
    pub(crate) is_stopping: bool,
}

/// A decision of the cursor.
#[derive(Debug)]
pub(crate) enum Next {
    /// Send this frame.
    Frame(Frame),
    /// Read the chunk with this offset, and give it to [`Cursor::read`].
    Read(i64),
    /// Wait until `until`, for a frame, for a control, or, if `for_events`, for the journal's end to move.
    Wait {
        /// The time since the session began.
        until: Duration,
        for_events: bool,
    },
    /// The instance has left, and has said so.
    Left,
}

/// A change of the consumer that a frame of its instance asks for.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Change {
    Done(Done),
    Released(Done),
    Filter(proto::Filter),
}

/// The pipelines of a consumer, by the offsets of events.
#[derive(Debug)]
pub(crate) struct Pipelines {
    /// Pipelines of earlier filters, each with the offset at which it ends, ascending.
    pub(crate) earlier: Vec<(i64, Arc<FilterPipeline>)>,
    pub(crate) now: Arc<FilterPipeline>,
    /// The offset from which `now` holds, as instances receive it.
    pub(crate) from: i64,
    /// The version of the consumer's filter.
    pub(crate) version: u64,
}

impl Pipelines {
    /// Returns the pipeline of an event, and the offset at which that ends.
    fn at(&self, offset: i64) -> (&FilterPipeline, i64) {
        let earlier = self.earlier.iter().find(|(until, _)| offset < *until);
        earlier.map_or((&*self.now, i64::MAX), |(until, pipeline)| (&**pipeline, *until))
    }

    fn filtered_from(&self) -> Frame {
        Frame::FilteredFrom(proto::FilteredFrom { offset: self.from })
    }
}

/// An assignment as it is being sent.
#[derive(Debug)]
struct Assigned {
    assignment: u64,
    share: Share,
    /// The offset to read next.
    position: i64,
    /// The offset behind what frames have said of the assignment.
    sent_to: i64,
    is_revoked: bool,
}

/// The state of what one instance is sent.
#[derive(Debug)]
pub(crate) struct Cursor {
    assigned: Option<Assigned>,
    credit: Credit,
    pipelines: Pipelines,
    is_paused: bool,
    /// The consumer's settings may have changed since `pipelines` was made.
    is_outdated: bool,
    /// The instance has sent a filter, and has no answer yet.
    owes_filtered_from: bool,
    outgoing: VecDeque<Frame>,
    chunks_unsaid: usize,
    skip_at: Duration,
    heard: Duration,
    said: Duration,
    has_left: bool,
}

impl Cursor {
    /// Begins with the answer to `Open`, and with the credit that came with it.
    pub(crate) fn new(
        opened: proto::Opened,
        credit_bytes: u64,
        pipelines: Pipelines,
        is_paused: bool,
    ) -> Cursor {
        let mut outgoing = VecDeque::from([Frame::Opened(opened)]);
        // Events that are not done may go through an earlier filter.
        outgoing.extend((!pipelines.earlier.is_empty()).then(|| pipelines.filtered_from()));
        Cursor {
            assigned: None,
            credit: Credit::new(credit_bytes),
            pipelines,
            is_paused,
            is_outdated: false,
            owes_filtered_from: false,
            outgoing,
            chunks_unsaid: 0,
            skip_at: Duration::ZERO,
            heard: Duration::ZERO,
            said: Duration::ZERO,
            has_left: false,
        }
    }

    /// Returns true if the instance has said that it leaves; it does not come back for its slices.
    pub(crate) fn has_left(&self) -> bool {
        self.has_left
    }

    /// Returns true if the consumer's settings have to be given to [`Cursor::follow`].
    pub(crate) fn is_outdated(&self) -> bool {
        self.is_outdated
    }

    /// Notes that the consumer's settings may have changed.
    pub(crate) fn outdate(&mut self) {
        self.is_outdated = true;
    }

    /// Takes the consumer's settings. If the filter is another one, the instance receives the offset from which it holds.
    pub(crate) fn follow(&mut self, pipelines: Pipelines, is_paused: bool) {
        let is_other = pipelines.version != self.pipelines.version;
        (self.pipelines, self.is_paused, self.is_outdated) = (pipelines, is_paused, false);
        if std::mem::take(&mut self.owes_filtered_from) || is_other {
            self.outgoing.push_back(self.pipelines.filtered_from());
        }
    }

    /// Takes a frame of the instance; returns what it changes for the consumer. `None` is the end of its frames.
    ///
    /// # Errors
    /// The frame makes no sense; the session ends.
    pub(crate) fn take(
        &mut self,
        frame: Option<from_consumer::Frame>,
        time: Duration,
    ) -> Result<Option<Change>, Status> {
        use from_consumer::Frame;
        self.heard = time;
        let Some(frame) = frame else {
            self.has_left = true;
            return Ok(None);
        };
        match frame {
            Frame::Credit(credit) => self.credit.give(credit.bytes),
            Frame::Done(done) => return Ok(self.own(&done)?.map(Change::Done)),
            Frame::Released(released) => {
                let done = self.own(&released.done.unwrap_or_default())?;
                if done.is_some() {
                    self.assigned = None;
                }
                return Ok(done.map(Change::Released));
            }
            Frame::Filter(filter) => {
                (self.is_outdated, self.owes_filtered_from) = (true, true);
                return Ok(Some(Change::Filter(filter)));
            }
            Frame::Alive(_) => {}
            Frame::Open(_) => return Err(Status::invalid_argument("Open comes first, and once")),
        }
        Ok(None)
    }

    /// Returns what was done, if it is of the present assignment.
    fn own(&self, done: &proto::Done) -> Result<Option<Done>, Status> {
        let done = Done::of_proto(done);
        let Some(assigned) = self.assigned.as_ref().filter(|one| one.assignment == done.assignment) else {
            return Ok(None);
        };
        if done.end() > assigned.sent_to {
            let reason =
                format!("offset {} cannot be done: events before {} were sent", done.end(), assigned.sent_to);
            return Err(Status::invalid_argument(reason));
        }
        Ok(Some(done))
    }

    /// Carries out a decision of the consumer's hand-over for the instance.
    ///
    /// # Errors
    /// [`Refused::Fenced`].
    pub(crate) fn obey(&mut self, control: Control) -> Result<(), Status> {
        match control {
            Control::Assign { assignment, slices, offset, is_resumed, parts } => {
                let share = Share::new(slices, parts);
                let (position, sent_to) = (offset, offset);
                self.assigned = Some(Assigned { assignment, share, position, sent_to, is_revoked: false });
                self.chunks_unsaid = 0;
                let slices = Some(slices.to_proto());
                self.outgoing.push_back(Frame::Assign(proto::Assign {
                    assignment,
                    slices,
                    offset,
                    resumed: is_resumed,
                }));
            }
            Control::Revoke { assignment, is_lost } => {
                match is_lost {
                    true => self.assigned = None,
                    false => self.assigned.iter_mut().for_each(|one| one.is_revoked = true),
                }
                self.outgoing.push_back(Frame::Revoke(proto::Revoke { assignment, lost: is_lost }));
            }
            Control::Fence => return Err(Refused::Fenced.to_status()),
        }
        Ok(())
    }

    /// Decides what to do now.
    ///
    /// # Errors
    /// The reason why the session ends.
    pub(crate) fn next(&mut self, now: Now) -> Result<Next, Status> {
        if self.has_left {
            return Ok(Next::Left);
        }
        if now.is_stopping {
            return Err(Status::unavailable("the publisher stops"));
        }
        if let Some(frame) = self.outgoing.pop_front() {
            return Ok(self.say(frame, now.time));
        }
        let for_events = self.can_send();
        if let Some(assigned) = self.assigned.as_ref().filter(|one| for_events && one.position < now.end) {
            match self.chunks_unsaid < CHUNKS_UNSAID_MAX {
                true => return Ok(Next::Read(assigned.position)),
                false => self.skip_at = now.time,
            }
        }
        let mut until = (self.said + ALIVE_EVERY).min(self.heard + DEAD_AFTER);
        if self.has_unsaid() {
            if let Some(skip) = self.skip(now.time) {
                return Ok(self.say(skip, now.time));
            }
            until = until.min(self.skip_at);
        }
        if self.said + ALIVE_EVERY <= now.time {
            return Ok(self.say(Frame::Alive(proto::Alive {}), now.time));
        }
        if self.heard + DEAD_AFTER <= now.time {
            return Err(Status::deadline_exceeded("the instance was not heard of for 15 s"));
        }
        Ok(Next::Wait { until, for_events })
    }

    /// Takes the chunk that was to be read; returns a frame with the events of it that are the instance's, if there are
    /// any. `may_send` is asked whether events before an offset may still be sent through the filters of a version. If
    /// not, the settings are outdated.
    ///
    /// # Errors
    /// Events that cannot be sent; the session ends.
    pub(crate) fn read(
        &mut self,
        chunk: &Chunk,
        counters: &Counters,
        time: Duration,
        may_send: impl FnOnce(i64, u64) -> bool,
    ) -> Result<Option<Frame>, Status> {
        let Some(assigned) = &mut self.assigned else { return Ok(None) };
        let (pipeline, until) = self.pipelines.at(assigned.position);
        let seen = chunk.passed_through(pipeline, counters);
        let own = seen.and_then(|seen| assigned.share.of(&seen, assigned.position, until));
        let batches = own.map_err(|reason| {
            let offset = assigned.position;
            Status::data_loss(format!("events from offset {offset} on cannot be read: {reason}"))
        })?;
        let (batches, next) = match batches.len() <= FRAME_BYTES_MAX {
            true => (batches, chunk.next.min(until)),
            // The rest is read again, from the end of these batches on.
            false => first_batches(&batches, FRAME_BYTES_MAX).map_err(|next| {
                Status::out_of_range(format!(
                    "the batch before offset {next}, from {} on, has more than a frame may have ({FRAME_BYTES_MAX} bytes); go on \
                     behind it by `mainstem direct reset --to-offset {next} --execute`",
                    assigned.position
                ))
            })?,
        };
        if !may_send(next, self.pipelines.version) {
            self.is_outdated = true;
            return Ok(None);
        }
        assigned.position = next;
        if batches.is_empty() {
            self.chunks_unsaid += 1;
            return Ok(None);
        }
        self.credit.take(batches.len());
        let from = std::mem::replace(&mut assigned.sent_to, next);
        (self.said, self.chunks_unsaid) = (time, 0);
        Ok(Some(Frame::Records(proto::Records { from, next, batches })))
    }

    fn can_send(&self) -> bool {
        self.assigned.as_ref().is_some_and(|one| !one.is_revoked)
            && self.credit.is_available()
            && !self.is_paused
    }

    /// Returns true if more was read than frames have said.
    fn has_unsaid(&self) -> bool {
        self.assigned.as_ref().is_some_and(|one| one.position > one.sent_to && !one.is_revoked)
    }

    /// Makes a frame that skips what was read and left out, if it is time for one.
    fn skip(&mut self, time: Duration) -> Option<Frame> {
        let assigned = self.assigned.as_mut().filter(|_| self.skip_at <= time)?;
        let from = std::mem::replace(&mut assigned.sent_to, assigned.position);
        (self.skip_at, self.chunks_unsaid) = (time + SKIP_EVERY, 0);
        Some(Frame::Skip(proto::Skip { from, next: assigned.position }))
    }

    fn say(&mut self, frame: Frame, time: Duration) -> Next {
        self.said = time;
        Next::Frame(frame)
    }
}

#[cfg(test)]
mod tests;
