//! An instance at the publisher, between its connection and its consumer. Its frames go to the consumer's subscription, whose
//! decisions go to the instance's cursor.
//!
//! Architecture invariant: no clock and no connection. Its one async function waits, and loses nothing when it is dropped.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{mpsc, watch};
use tonic::Status;

use crate::chunk::{Chunk, Counters};
use crate::cursor::{Change, Cursor, Next, Now, Pipelines};
use crate::handover::{Attempt, Connection, Held, JoinError, Joining};
use crate::pipeline_cache::PipelineCache;
use crate::proto::{self, from_consumer, from_publisher::Frame};
use crate::resume::{Epoch, JournalId, JournalView, RUNS_MAX, Received};
use crate::slices::{Done, SliceRange};
use crate::stream::check_name;
use crate::subscription::{Control, Settings, Subscription};

/// The rights of an instance, and its address.
#[derive(Default)]
pub(crate) struct Granted {
    /// The instance's address; none in this process.
    pub(crate) peer: Option<IpAddr>,
    /// The events that it may see; none for all.
    pub(crate) filter: Option<proto::Filter>,
    /// Checks the right to change the consumer's filter, at the time of the change; none if all may.
    pub(crate) manage: Option<Box<AskManage>>,
}

/// Returns the reason why a consumer may not be changed.
pub(crate) type AskManage = dyn Fn() -> Result<(), Status> + Send + Sync;

impl Granted {
    fn check_manage(&self) -> Result<(), Status> {
        let Some(ask) = &self.manage else { return Ok(()) };
        ask().map_err(|refused| {
            let words = refused.message();
            Status::new(refused.code(), format!("the filter is not changed for all instances: {words}"))
        })
    }
}

impl std::fmt::Debug for Granted {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Granted").field("filter", &self.filter).finish_non_exhaustive()
    }
}

/// The request of an instance that connects.
#[derive(Debug)]
pub(crate) struct Opening {
    pub(crate) consumer: String,
    pub(crate) instance: String,
    pub(crate) start: proto::Start,
    attempt: Option<Attempt>,
    granted: Granted,
    /// The granted filter and the instance's own, beside the one that is stored for the consumer.
    filters: Vec<proto::Filter>,
    pinned: Option<SliceRange>,
    received: Option<Received>,
    held: Option<Held>,
    credit_bytes: u64,
}

impl Opening {
    /// Reads `Open`, with what the instance was granted.
    ///
    /// # Errors
    /// A field makes no sense.
    pub(crate) fn of(open: proto::Open, granted: Granted) -> Result<Opening, Status> {
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
        let (pinned, received, held) = (pinned.transpose()?, received_of(&open)?, held_of(&open)?);
        Ok(Opening {
            consumer: open.consumer,
            instance: open.instance,
            start,
            attempt: open.attempt.as_ref().map(attempt_of),
            filters: granted.filter.clone().into_iter().chain(open.filter).collect(),
            granted,
            pinned,
            received,
            held,
            credit_bytes: open.credit_bytes,
        })
    }

    /// Refuses an instance that cannot read this journal, or whose filters cannot be used.
    ///
    /// # Errors
    /// [`Refused`](crate::Refused), or the fault of a filter.
    pub(crate) fn check(&self, view: &JournalView, pipelines: &PipelineCache) -> Result<(), Status> {
        pipelines.pipeline(&self.filters, None, self.granted.peer).map_err(|error| error.to_status())?;
        let checked = self.received.as_ref().map_or(Ok(()), |received| view.check_received(received));
        checked.map_err(|refused| refused.to_status())
    }
}

fn received_of(open: &proto::Open) -> Result<Option<Received>, Status> {
    if open.journal_id.is_empty() {
        return Ok(None);
    }
    let id = <[u8; 16]>::try_from(&open.journal_id[..])
        .map_err(|_| Status::invalid_argument("a journal's id has 16 bytes"))?;
    if open.epochs.len() > RUNS_MAX {
        return Err(Status::invalid_argument(format!("more than {RUNS_MAX} runs of a journal are named")));
    }
    let runs = open.epochs.iter().map(Epoch::of_proto).collect();
    Ok(Some(Received { journal: JournalId(id), epoch: open.epoch, offset: open.offset, runs }))
}

pub(crate) fn attempt_of(attempt: &proto::Attempt) -> Attempt {
    Attempt { process: attempt.process, number: attempt.number }
}

/// Reads the assignment that an instance claims.
pub(crate) fn held_of(open: &proto::Open) -> Result<Option<Held>, Status> {
    let Some(held) = &open.held else { return Ok(None) };
    let done = held.done.as_ref().map(Done::of_proto).unwrap_or_default();
    let slices = held.slices.as_ref().and_then(SliceRange::of_proto);
    if open.journal_id.is_empty() || done.end() > open.offset {
        return Err(Status::invalid_argument("more was done than was received, or of no journal"));
    }
    Ok(Some(Held { done, slices, sent_to: open.offset }))
}

/// An instance that has joined. It leaves when this is dropped.
#[derive(Debug)]
pub(crate) struct Member {
    subscription: Arc<Subscription>,
    connection: Connection,
    mailbox: mpsc::UnboundedReceiver<Control>,
    settings: watch::Receiver<Settings>,
    pipelines: Arc<PipelineCache>,
    granted: Granted,
    filters: Vec<proto::Filter>,
    cursor: Cursor,
}

impl Member {
    /// Joins a consumer of the journal of this view.
    ///
    /// # Errors
    /// The reason why it may not.
    pub(crate) fn join(
        subscription: Arc<Subscription>,
        pipelines: Arc<PipelineCache>,
        opening: Opening,
        view: &JournalView,
    ) -> Result<Member, Status> {
        subscription.check(view).map_err(|refused| refused.to_status())?;
        let Opening { instance, attempt, granted, filters, pinned, held, credit_bytes, .. } = opening;
        let mut settings = subscription.settings();
        let (passed_through, is_paused) = {
            let settings = settings.borrow_and_update();
            (pipelines_of(&pipelines, (&filters, granted.peer), &settings)?, settings.is_paused)
        };
        let joined = subscription.join(Joining { connection: 0, name: instance, attempt, pinned, held });
        let joined = joined.map_err(|error| match error {
            JoinError::Mixed => Status::failed_precondition(error.to_string()),
            JoinError::TooMany => Status::resource_exhausted(error.to_string()),
            JoinError::Overtaken => Status::aborted(error.to_string()),
        })?;
        let (connection, mut mailbox) = (joined.connection, joined.mailbox);
        let first = mailbox.try_recv().ok();
        let opened = proto::Opened {
            journal_id: view.id.0.to_vec().into(),
            epochs: view.epochs.iter().map(|one| one.to_proto()).collect(),
            start: view.start,
            end: view.end,
            resumed: matches!(first, Some(Control::Assign { is_resumed: true, .. })),
        };
        let cursor = Cursor::new(opened, credit_bytes, passed_through, is_paused);
        let mut member =
            Member { subscription, connection, mailbox, settings, pipelines, granted, filters, cursor };
        if let Some(first) = first {
            member.cursor.obey(first)?;
        }
        Ok(member)
    }

    /// Takes a frame of the instance; `None` is the end of its frames. Times are since it joined.
    ///
    /// # Errors
    /// The reason why its session ends.
    pub(crate) fn take(
        &mut self,
        message: Option<proto::FromConsumer>,
        time: Duration,
    ) -> Result<(), Status> {
        let frame = match message {
            // A frame of a later version of the protocol. It shows that the instance is alive.
            Some(proto::FromConsumer { frame: None }) => Some(from_consumer::Frame::Alive(proto::Alive {})),
            Some(proto::FromConsumer { frame }) => frame,
            None => None,
        };
        match self.cursor.take(frame, time)? {
            Some(Change::Done(done)) => self.subscription.done(self.connection, &done),
            Some(Change::Released(done)) => self.subscription.released(self.connection, &done),
            Some(Change::Filter(filter)) => {
                self.granted.check_manage()?;
                self.subscription.keep_filter(&filter)?;
            }
            None => {}
        }
        Ok(())
    }

    /// Returns true if the instance has said that it leaves.
    pub(crate) fn has_left(&self) -> bool {
        self.cursor.has_left()
    }

    /// Decides what to do for the instance.
    ///
    /// # Errors
    /// The reason why its session ends.
    pub(crate) fn next(&mut self, now: Now) -> Result<Next, Status> {
        if self.cursor.is_outdated() || self.settings.has_changed().unwrap_or(false) {
            let settings = self.settings.borrow_and_update();
            let pipelines = pipelines_of(&self.pipelines, (&self.filters, self.granted.peer), &settings)?;
            self.cursor.follow(pipelines, settings.is_paused);
        }
        while let Ok(control) = self.mailbox.try_recv() {
            self.cursor.obey(control)?;
        }
        self.cursor.next(now)
    }

    /// Takes the chunk that [`Next::Read`] has asked for; returns a frame with the instance's events of it.
    ///
    /// # Errors
    /// Events that cannot be sent.
    pub(crate) fn read(
        &mut self,
        chunk: &Chunk,
        counters: &Counters,
        time: Duration,
    ) -> Result<Option<Frame>, Status> {
        let subscription = &self.subscription;
        self.cursor.read(chunk, counters, time, |to, version| subscription.send(to, version))
    }

    /// Waits until the consumer has a decision for the instance. Then [`Member::next`] is due.
    ///
    /// # Errors
    /// The reason why its session ends.
    pub(crate) async fn changed(&mut self) -> Result<(), Status> {
        tokio::select! {
            control = self.mailbox.recv() => match control {
                Some(control) => self.cursor.obey(control),
                None => Err(Status::unavailable("the consumer was forgotten")),
            },
            // The sender lives as long as the subscription.
            _ = self.settings.changed() => {
                self.cursor.outdate();
                Ok(())
            }
        }
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        self.subscription.leave(self.connection, !self.cursor.has_left());
    }
}

/// Returns the pipelines of an instance with these filters, at an address.
fn pipelines_of(
    cache: &PipelineCache,
    (filters, peer): (&[proto::Filter], Option<IpAddr>),
    settings: &Settings,
) -> Result<Pipelines, Status> {
    let pipeline = |kept: &Option<proto::Filter>| {
        cache.pipeline(filters, kept.as_ref(), peer).map_err(|error| error.to_status())
    };
    let earlier = settings.earlier.iter().map(|one| Ok((one.until, pipeline(&one.filter)?)));
    let earlier = earlier.collect::<Result<_, Status>>()?;
    Ok(Pipelines {
        earlier,
        now: pipeline(&settings.filter)?,
        from: settings.filtered_from,
        version: settings.version,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cursor::DEAD_AFTER;

    #[test]
    fn an_instance_of_a_later_version_is_alive_by_frames_that_are_not_known() {
        let dir = tempfile::tempdir().unwrap();
        let queue = mainstem_queue::Queue::open(dir.path()).unwrap();
        let epochs = [Epoch { epoch: 0, start: 0, run: 1 }].into();
        let view = JournalView { id: JournalId([1; 16]), epochs, start: 0, end: 0 };
        let subscription = Arc::new(Subscription::open(&queue, &view, "analytics", 0).unwrap());
        let open = proto::Open { instance: "one".to_owned(), ..proto::Open::default() };
        let opening = Opening::of(open, Granted::default()).unwrap();
        let mut member = Member::join(subscription, Arc::default(), opening, &view).unwrap();
        let mut until_silence = |time| loop {
            match member.next(Now { time, end: 0, is_stopping: false }) {
                Ok(Next::Frame(_)) => {}
                other => break other.map(drop),
            }
        };
        assert!(until_silence(DEAD_AFTER - Duration::from_millis(1)).is_ok());
        let silent = until_silence(DEAD_AFTER).unwrap_err();
        assert!(silent.message().contains("was not heard of"), "{silent:?}");
        member.take(Some(proto::FromConsumer { frame: None }), DEAD_AFTER).unwrap();
        let is_alive = member.next(Now { time: DEAD_AFTER, end: 0, is_stopping: false });
        assert!(is_alive.is_ok(), "{is_alive:?}");
    }
}
