//! What an instance is sent, and when: how far its assignment was read, how far frames have said that it is, through which filters
//! events go, how many bytes may follow.
//!
//! ```text
//!   done            sent_to              position                      end
//! ───┴─────────────────┴────────────────────┴───────────────────────────┴──
//!     frames said so    read and left out:     visible, to be read
//!                       in the next `Skip`
//! ```
//!
//! Frames that are decided wait in `outgoing`, in their order; events are read when none does, so that what was decided before
//! them is said before them.
//!
//! Architecture invariant: no clock and no I/O. Time, the journal's end and chunks of it go in; frames come out, with what is to be
//! read or waited for.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use tonic::Status;

use crate::chunk::{Chunk, Counters, Lens, Share, first_batches};
use crate::credit::Credit;
use crate::error::Refused;
use crate::journal::FRAME_BYTES_MAX;
use crate::proto::{self, from_consumer, from_publisher::Frame};
use crate::slices::Done;
use crate::subscription::Control;

/// When nothing else is sent, so often something is.
pub(crate) const ALIVE_EVERY: Duration = Duration::from_secs(5);
/// Who is not heard of for so long is gone.
pub(crate) const DEAD_AFTER: Duration = Duration::from_secs(15);
/// Skipped offsets alone are sent so often at most while nothing else is to be read.
const SKIP_EVERY: Duration = Duration::from_millis(100);
/// Of a long stretch that is filtered out, an instance hears after so many chunks.
const CHUNKS_UNSAID_MAX: usize = 64;

/// What a cursor goes by, as it is now.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Now {
    /// Since the session began.
    pub(crate) time: Duration,
    /// The offset behind the last visible event.
    pub(crate) end: i64,
    /// The publisher stops.
    pub(crate) is_stopping: bool,
}

/// What is to be done for an instance.
#[derive(Debug)]
pub(crate) enum Next {
    /// This is to be sent.
    Frame(Frame),
    /// The chunk with this offset is to be read; [`Cursor::read`] takes it.
    Read(i64),
    /// Nothing before `until`, unless a frame or a control comes, or, if `for_events`, the journal's end moves.
    Wait {
        /// Since the session began.
        until: Duration,
        for_events: bool,
    },
    /// The instance has gone, and has said so.
    Left,
}

/// What a frame of an instance changes for its consumer.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Change {
    Done(Done),
    Released(Done),
    Filter(proto::Filter),
}

/// What events pass through, by their offsets.
#[derive(Debug)]
pub(crate) struct Lenses {
    /// Until which offset each of before holds, ascending.
    pub(crate) earlier: Vec<(i64, Arc<Lens>)>,
    pub(crate) now: Arc<Lens>,
    /// From where on `now` holds, as it is said to instances.
    pub(crate) from: i64,
    /// Which change of the consumer's filter it is.
    pub(crate) version: u64,
}

impl Lenses {
    /// What an event passes through, and until which offset others do too.
    fn at(&self, offset: i64) -> (&Lens, i64) {
        let earlier = self.earlier.iter().find(|(until, _)| offset < *until);
        earlier.map_or((&*self.now, i64::MAX), |(until, lens)| (&**lens, *until))
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
    /// What is read next.
    position: i64,
    /// What the instance was sent of it: up to where frames say.
    sent_to: i64,
    is_revoked: bool,
}

/// What is sent to one instance of a consumer.
#[derive(Debug)]
pub(crate) struct Cursor {
    assigned: Option<Assigned>,
    credit: Credit,
    lenses: Lenses,
    is_paused: bool,
    /// The consumer's settings are to be looked at: others than `lenses` were made of may hold.
    is_outdated: bool,
    /// The instance has sent a filter, and was not answered.
    owes_filtered_from: bool,
    outgoing: VecDeque<Frame>,
    chunks_unsaid: usize,
    skip_at: Duration,
    heard: Duration,
    said: Duration,
    has_left: bool,
}

impl Cursor {
    /// Begins with what answers `Open`, and with the credit that came with it.
    pub(crate) fn new(opened: proto::Opened, credit_bytes: u64, lenses: Lenses, is_paused: bool) -> Cursor {
        let mut outgoing = VecDeque::from([Frame::Opened(opened)]);
        // Events that are not done may go through a filter of before.
        outgoing.extend((!lenses.earlier.is_empty()).then(|| lenses.filtered_from()));
        Cursor {
            assigned: None,
            credit: Credit::new(credit_bytes),
            lenses,
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

    /// The instance has said that it goes, so that it will not come back for what it had.
    pub(crate) fn has_left(&self) -> bool {
        self.has_left
    }

    /// The consumer's settings are to be looked at, and given to [`Cursor::follow`].
    pub(crate) fn is_outdated(&self) -> bool {
        self.is_outdated
    }

    /// The consumer's settings may be others.
    pub(crate) fn outdate(&mut self) {
        self.is_outdated = true;
    }

    /// The settings of the consumer are these. Where its filter is another one, the instance hears from where on it holds.
    pub(crate) fn follow(&mut self, lenses: Lenses, is_paused: bool) {
        let is_other = lenses.version != self.lenses.version;
        (self.lenses, self.is_paused, self.is_outdated) = (lenses, is_paused, false);
        if std::mem::take(&mut self.owes_filtered_from) || is_other {
            self.outgoing.push_back(self.lenses.filtered_from());
        }
    }

    /// Takes a frame of the instance: what it changes for the consumer. `None` is its end, after which nothing comes.
    ///
    /// # Errors
    /// What of it makes no sense; the session ends.
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

    /// What was done, if it is of the present assignment.
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

    /// Does what the consumer's hand-over has decided for the instance.
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

    /// What is to be done now.
    ///
    /// # Errors
    /// Why the session ends.
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

    /// Takes the chunk with the offset that was to be read: the events of it that are the instance's, if there are any.
    /// `may_send` is asked whether events before an offset may be sent through the filters of a version; where not, the
    /// settings are outdated.
    ///
    /// # Errors
    /// What cannot be sent; the session ends.
    pub(crate) fn read(
        &mut self,
        chunk: &Chunk,
        counters: &Counters,
        time: Duration,
        may_send: impl FnOnce(i64, u64) -> bool,
    ) -> Result<Option<Frame>, Status> {
        let Some(assigned) = &mut self.assigned else { return Ok(None) };
        let (lens, until) = self.lenses.at(assigned.position);
        let seen = chunk.seen_through(lens, counters);
        let own = seen.and_then(|seen| assigned.share.of(&seen, assigned.position, until));
        let batches = own.map_err(|reason| {
            let offset = assigned.position;
            Status::data_loss(format!("events from offset {offset} on cannot be read: {reason}"))
        })?;
        let (batches, next) = match batches.len() <= FRAME_BYTES_MAX {
            true => (batches, chunk.next.min(until)),
            // The rest is found again, from where this ends.
            false => first_batches(&batches, FRAME_BYTES_MAX).map_err(|next| {
                Status::out_of_range(format!(
                    "the batch before offset {next}, from {} on, has more than a frame may have ({FRAME_BYTES_MAX} bytes); go on \
                     behind it by `mainstem direct reset --to-offset {next} --execute`",
                    assigned.position
                ))
            })?,
        };
        if !may_send(next, self.lenses.version) {
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
        self.assigned.as_ref().is_some_and(|one| !one.is_revoked) && self.credit.has_room() && !self.is_paused
    }

    /// Returns true if more was read than frames have said.
    fn has_unsaid(&self) -> bool {
        self.assigned.as_ref().is_some_and(|one| one.position > one.sent_to && !one.is_revoked)
    }

    /// Says that what was read and left out is nothing for this instance, if it is time for that.
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
