//! One instance of a consumer at the publisher: takes its frames, and makes those that are sent to it.
//!
//! It is the stream of the answer itself: it runs when the connection has room for the next frame, and ends with the connection.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt as _;
use mainstem_queue::{QueueError, Tailer};
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;
use tonic::{Status, Streaming};

use crate::chunk::{Chunk, Found, Lens, Share, first_batches};
use crate::credit::Credit;
use crate::error::{DirectError, Refused};
use crate::handover::{Connection, Held, JoinError, Joining};
use crate::journal::FRAME_BYTES_MAX;
use crate::proto::{self, from_consumer, from_publisher::Frame};
use crate::resume::{Epoch, JournalId, RUNS_MAX, Received};
use crate::slices::{Done, SliceRange};
use crate::stream::{Stream, check_name};
use crate::subscription::{Control, Settings, Subscription};

/// When nothing else is sent, so often something is.
pub(crate) const ALIVE_EVERY: Duration = Duration::from_secs(5);
/// Who is not heard of for so long is gone.
pub(crate) const DEAD_AFTER: Duration = Duration::from_secs(15);
/// Skipped offsets alone are sent so often at most.
const SKIP_EVERY: Duration = Duration::from_millis(100);
/// Frames of the consumer that are taken before one is made for it.
const FRAMES_TAKEN_MAX: usize = 64;

/// An assignment as it is being sent.
#[derive(Debug)]
struct Assigned {
    assignment: u64,
    share: Share,
    /// What is read next.
    position: i64,
    /// What the consumer was sent of it: up to where frames say.
    sent_to: i64,
    is_revoked: bool,
}

/// An instance that is connected.
#[derive(Debug)]
pub(crate) struct Session {
    stream: Arc<Stream>,
    subscription: Arc<Subscription>,
    instance: String,
    connection: Connection,
    inbound: Streaming<proto::FromConsumer>,
    mailbox: mpsc::UnboundedReceiver<Control>,
    settings: watch::Receiver<Settings>,
    /// They were noticed, and not followed yet.
    has_new_settings: bool,
    /// The instance has sent a filter, and was not answered.
    owes_filtered_from: bool,
    ends: watch::Receiver<i64>,
    stops: watch::Receiver<bool>,
    credit: Credit,
    /// Beside the one that is kept: what the instance wants, and what it was granted.
    filters: Vec<proto::Filter>,
    lenses: Lenses,
    assigned: Option<Assigned>,
    /// Reads what the ring has no more.
    older: Option<Tailer>,
    outgoing: VecDeque<Frame>,
    skip_at: Instant,
    heard: Instant,
    said: Instant,
    /// The instance has said that it goes, so that it will not come back for what it had.
    has_left: bool,
    is_over: bool,
}

impl Session {
    /// Begins with the frame `Open`, which was read.
    pub(crate) fn open(
        stream: Arc<Stream>,
        open: proto::Open,
        inbound: Streaming<proto::FromConsumer>,
        granted: Option<proto::Filter>,
        stops: watch::Receiver<bool>,
    ) -> Result<Session, Status> {
        check_name("instance", &open.instance)?;
        let start = proto::Start::try_from(open.start)
            .map_err(|_| Status::invalid_argument("the start is of a later version of the protocol"))?;
        let pinned = open.pinned.as_ref().map(|slices| {
            SliceRange::of_proto(slices).ok_or_else(|| {
                let (from, to) = (slices.from, slices.to);
                Status::invalid_argument(format!(
                    "the slices {from} to {to} are none; they go from 0 to 1,024"
                ))
            })
        });
        let pinned = pinned.transpose()?;
        let filters: Vec<proto::Filter> = granted.into_iter().chain(open.filter.clone()).collect();
        // Refused before anything comes to be.
        stream.lens(&filters).map_err(|error| Status::invalid_argument(error.to_string()))?;
        let view = stream.journal().view();
        if !open.journal_id.is_empty() {
            let id = <[u8; 16]>::try_from(&open.journal_id[..])
                .map_err(|_| Status::invalid_argument("a journal's id has 16 bytes"))?;
            if open.epochs.len() > RUNS_MAX {
                return Err(Status::invalid_argument(format!(
                    "more than {RUNS_MAX} runs of a journal are named"
                )));
            }
            let runs = open.epochs.iter().map(Epoch::of_proto).collect();
            let (journal, epoch, offset) = (JournalId(id), open.epoch, open.offset);
            let received = Received { journal, epoch, offset, runs };
            view.check_received(&received).map_err(|refused| refused.to_status())?;
        }
        let held = held_of(&open)?;
        let ends = stream.journal().ring().watch();
        let subscription = stream.subscription(&open.consumer, start)?;
        let is_there = subscription.check(&view);
        is_there.map_err(|refused| refused.to_status())?;
        let mut settings = subscription.settings();
        let lenses = Lenses::of(&stream, &filters, &settings.borrow_and_update())?;
        let joining = Joining { connection: 0, name: open.instance.clone(), pinned, held };
        let joined = subscription.join(joining).map_err(|error| match error {
            JoinError::Mixed => Status::failed_precondition(error.to_string()),
            JoinError::TooMany => Status::resource_exhausted(error.to_string()),
        })?;
        let mut mailbox = joined.mailbox;
        let first = mailbox.try_recv().ok();
        let resumed = matches!(first, Some(Control::Assign { is_resumed: true, .. }));
        tracing::debug!(
            "instance {} of consumer {} reads stream {}",
            open.instance,
            open.consumer,
            stream.name()
        );
        let opened = proto::Opened {
            journal_id: view.id.0.to_vec().into(),
            epochs: view.epochs.iter().map(|one| one.to_proto()).collect(),
            start: view.start,
            end: view.end,
            resumed,
        };
        let mut outgoing = VecDeque::from([Frame::Opened(opened)]);
        outgoing.extend(lenses.earlier.last().map(|_| lenses.filtered_from()));
        let now = Instant::now();
        let mut session = Session {
            stream,
            subscription,
            instance: open.instance,
            connection: joined.connection,
            inbound,
            mailbox,
            settings,
            has_new_settings: false,
            owes_filtered_from: false,
            ends,
            stops,
            credit: Credit::new(open.credit_bytes),
            filters,
            lenses,
            assigned: None,
            older: None,
            outgoing,
            skip_at: now,
            heard: now,
            said: now,
            has_left: false,
            is_over: false,
        };
        if let Some(first) = first {
            session.obey(first)?;
        }
        Ok(session)
    }

    /// The next frame; none when the instance has gone, or after an error.
    pub(crate) async fn next_frame(&mut self) -> Option<Result<proto::FromPublisher, Status>> {
        if self.is_over {
            return None;
        }
        match self.next().await {
            Ok(Some(frame)) => {
                self.said = Instant::now();
                Some(Ok(proto::FromPublisher { frame: Some(frame) }))
            }
            Ok(None) => {
                self.is_over = true;
                None
            }
            Err(status) => {
                self.is_over = true;
                tracing::info!(
                    "instance {} of consumer {} of stream {} ends: {}",
                    self.instance,
                    self.subscription.name(),
                    self.stream.name(),
                    status.message()
                );
                Some(Err(status))
            }
        }
    }

    async fn next(&mut self) -> Result<Option<Frame>, Status> {
        loop {
            self.follow_settings()?;
            self.take_what_is_there()?;
            while let Ok(control) = self.mailbox.try_recv() {
                self.obey(control)?;
            }
            if self.has_left {
                return Ok(None);
            }
            if *self.stops.borrow_and_update() || self.stops.has_changed().is_err() {
                return Err(Status::unavailable("the publisher stops"));
            }
            if let Some(frame) = self.outgoing.pop_front() {
                return Ok(Some(frame));
            }
            // Before the look: what comes after it wakes.
            self.ends.mark_unchanged();
            if let Some(frame) = self.read().await? {
                return Ok(Some(frame));
            }
            let now = Instant::now();
            let skips =
                self.assigned.as_ref().is_some_and(|one| one.position > one.sent_to && !one.is_revoked);
            if skips && self.skip_at <= now {
                self.skip();
                continue;
            }
            if self.said + ALIVE_EVERY <= now {
                return Ok(Some(Frame::Alive(proto::Alive {})));
            }
            if self.heard + DEAD_AFTER <= now {
                return Err(Status::deadline_exceeded("the instance was not heard of for 15 s"));
            }
            let reads = self.can_send();
            let mut due = (self.said + ALIVE_EVERY).min(self.heard + DEAD_AFTER);
            if skips {
                due = due.min(self.skip_at);
            }
            tokio::select! {
                control = self.mailbox.recv() => match control {
                    Some(control) => self.obey(control)?,
                    None => return Err(Status::unavailable("the consumer was forgotten")),
                },
                message = self.inbound.message() => self.take(message)?,
                // The sender lives as long as the subscription.
                _ = self.settings.changed() => self.has_new_settings = true,
                _ = self.ends.changed(), if reads => {}
                _ = self.stops.changed() => {}
                () = tokio::time::sleep_until(due) => {}
            }
        }
    }

    /// Takes frames that have arrived, so that a fast reader is heard while it is sent to.
    fn take_what_is_there(&mut self) -> Result<(), Status> {
        for _ in 0..FRAMES_TAKEN_MAX {
            match self.inbound.message().now_or_never() {
                Some(message) => self.take(message)?,
                None => break,
            }
            if self.has_left {
                break;
            }
        }
        Ok(())
    }

    fn take(&mut self, message: Result<Option<proto::FromConsumer>, Status>) -> Result<(), Status> {
        use from_consumer::Frame;
        self.heard = Instant::now();
        let Some(message) = message? else {
            self.has_left = true;
            return Ok(());
        };
        match message.frame {
            Some(Frame::Credit(credit)) => self.credit.give(credit.bytes),
            Some(Frame::Done(done)) => {
                if let Some(done) = self.own(&done)? {
                    self.subscription.done(self.connection, &done);
                }
            }
            Some(Frame::Released(released)) => {
                let done = released.done.unwrap_or_default();
                if let Some(done) = self.own(&done)? {
                    self.assigned = None;
                    self.subscription.released(self.connection, &done);
                }
            }
            Some(Frame::Filter(filter)) => {
                self.stream.keep_filter(&self.subscription, &filter)?;
                (self.has_new_settings, self.owes_filtered_from) = (true, true);
            }
            // A later version of the protocol may say more.
            Some(Frame::Alive(_)) | None => {}
            Some(Frame::Open(_)) => return Err(Status::invalid_argument("Open comes first, and once")),
        }
        Ok(())
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

    fn obey(&mut self, control: Control) -> Result<(), Status> {
        match control {
            Control::Assign { assignment, slices, offset, is_resumed, parts } => {
                let share = Share::new(slices, parts);
                let (position, sent_to) = (offset, offset);
                self.assigned = Some(Assigned { assignment, share, position, sent_to, is_revoked: false });
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

    /// Another filter holds, from an offset on that is the same for all instances.
    fn follow_settings(&mut self) -> Result<(), Status> {
        if !std::mem::take(&mut self.has_new_settings) && !self.settings.has_changed().unwrap_or(false) {
            return Ok(());
        }
        let lenses = Lenses::of(&self.stream, &self.filters, &self.settings.borrow_and_update())?;
        let is_other = lenses.version != self.lenses.version;
        self.lenses = lenses;
        if is_other || std::mem::take(&mut self.owes_filtered_from) {
            self.owes_filtered_from = false;
            self.outgoing.push_back(self.lenses.filtered_from());
        }
        Ok(())
    }

    fn can_send(&self) -> bool {
        let is_paused = self.settings.borrow().is_paused;
        self.assigned.as_ref().is_some_and(|one| !one.is_revoked) && self.credit.has_room() && !is_paused
    }

    /// Events of the assignment, if there are any and they may be sent.
    async fn read(&mut self) -> Result<Option<Frame>, Status> {
        // A long stretch that is filtered out does not keep the rest waiting.
        for _ in 0..FRAMES_TAKEN_MAX {
            if !self.can_send() {
                return Ok(None);
            }
            let Some(position) = self.assigned.as_ref().map(|one| one.position) else { return Ok(None) };
            let chunk = match self.stream.journal().ring().find(position) {
                Found::End => return Ok(None),
                Found::Chunk(chunk) => {
                    self.older = None;
                    chunk
                }
                Found::Older => Arc::new(self.read_older(position).await?),
            };
            if let Some(records) = self.records(&chunk)? {
                return Ok(Some(Frame::Records(records)));
            }
            if self.has_new_settings {
                self.follow_settings()?;
                // It is said before the first event that it holds for.
                if let Some(frame) = self.outgoing.pop_front() {
                    return Ok(Some(frame));
                }
            }
        }
        self.skip();
        Ok(self.outgoing.pop_front())
    }

    async fn read_older(&mut self, position: i64) -> Result<Chunk, Status> {
        let (journal, mut older) = (self.stream.journal().clone(), self.older.take());
        let read = tokio::task::spawn_blocking(move || {
            let chunk = journal.read_older(&mut older, position);
            (chunk, older)
        });
        let (chunk, older) = read.await.map_err(|error| Status::internal(error.to_string()))?;
        self.older = older;
        chunk.map_err(|error| match error {
            DirectError::Queue(QueueError::OutOfRange { offset, start, end }) => {
                Refused::OutOfRange { offset, start, end }.to_status()
            }
            other => crate::stream::internal(other),
        })
    }

    fn records(&mut self, chunk: &Chunk) -> Result<Option<proto::Records>, Status> {
        let Some(assigned) = &mut self.assigned else { return Ok(None) };
        let (lens, until) = self.lenses.at(assigned.position);
        let seen = chunk.seen_through(lens, self.stream.journal().counters());
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
                     behind it by `mainstem direct reset --to-offset {next}`",
                    assigned.position
                ))
            })?,
        };
        if !self.subscription.send(next, self.lenses.version) {
            // Through which filters these have to go is known again at the next look.
            self.has_new_settings = true;
            return Ok(None);
        }
        assigned.position = next;
        if batches.is_empty() {
            return Ok(None);
        }
        self.credit.take(batches.len());
        let from = std::mem::replace(&mut assigned.sent_to, next);
        Ok(Some(proto::Records { from, next, batches }))
    }

    /// Says that what was read and left out is nothing for this instance.
    fn skip(&mut self) {
        if let Some(assigned) = self.assigned.as_mut().filter(|one| one.position > one.sent_to) {
            let from = std::mem::replace(&mut assigned.sent_to, assigned.position);
            self.outgoing.push_back(Frame::Skip(proto::Skip { from, next: assigned.position }));
            self.skip_at = Instant::now() + SKIP_EVERY;
        }
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        self.subscription.leave(self.connection, !self.has_left);
    }
}

/// What events pass through, by their offsets.
#[derive(Debug)]
struct Lenses {
    /// Until which offset each of before holds, ascending.
    earlier: Vec<(i64, Arc<Lens>)>,
    now: Arc<Lens>,
    from: i64,
    version: u64,
}

impl Lenses {
    fn of(stream: &Stream, filters: &[proto::Filter], settings: &Settings) -> Result<Lenses, Status> {
        let lens = |kept: &Option<proto::Filter>| {
            let lens = stream.lens(filters.iter().chain(kept));
            lens.map_err(|error| Status::invalid_argument(error.to_string()))
        };
        let earlier = settings.earlier.iter().map(|one| Ok((one.until, lens(&one.filter)?)));
        let earlier = earlier.collect::<Result<_, Status>>()?;
        let (from, version) = (settings.filtered_from, settings.version);
        Ok(Lenses { earlier, now: lens(&settings.filter)?, from, version })
    }

    /// What an event passes through, and until which offset others do too.
    fn at(&self, offset: i64) -> (&Lens, i64) {
        let earlier = self.earlier.iter().find(|(until, _)| offset < *until);
        earlier.map_or((&*self.now, i64::MAX), |(until, lens)| (&**lens, *until))
    }

    fn filtered_from(&self) -> Frame {
        Frame::FilteredFrom(proto::FilteredFrom { offset: self.from })
    }
}

/// What an instance says that it had.
pub(crate) fn held_of(open: &proto::Open) -> Result<Option<Held>, Status> {
    let Some(held) = &open.held else { return Ok(None) };
    let done = held.done.as_ref().map(Done::of_proto).unwrap_or_default();
    let slices = held.slices.as_ref().and_then(SliceRange::of_proto);
    if open.journal_id.is_empty() || done.end() > open.offset {
        return Err(Status::invalid_argument("more was done than was received, or of no journal"));
    }
    Ok(Some(Held { done, slices, sent_to: open.offset }))
}
