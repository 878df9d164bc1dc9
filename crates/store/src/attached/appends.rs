//! Appends that have to wait for a local writer: they are made by a thread of the queue's own, one after another, so that a
//! writer that was stopped delays no other topic.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use mainstem_log::{Origin, prepare};
use mainstem_queue::{Appender, QueueError};
use mainstem_runtime::sync::Thread;
use mainstem_wire::ErrorCode;
use parking_lot::{Condvar, Mutex};

use super::{Attached, QueueRefusal};
use crate::partition::{AppendOutcome, Refused};
use crate::scratch::with_scratch;
use crate::settings::TopicSettings;
use mainstem_runtime::supervised;

/// Bytes of batches that wait for one queue.
const WAITING_BYTES_MAX: usize = 32 << 20;

/// Callback with the result of an append that has waited. Called once, on the thread that appended.
pub(crate) type OnAppended = Box<dyn FnOnce(Result<AppendOutcome, Refused>) + Send>;

/// An append that waits.
struct Waiting {
    records: Vec<u8>,
    settings: Arc<TopicSettings>,
    deadline: Instant,
    done: OnAppended,
}

/// Appends that wait, in their order.
#[derive(Default)]
pub(super) struct Appends {
    state: Mutex<State>,
    changed: Condvar,
    /// Number of appends that are not done.
    pending: AtomicUsize,
}

#[derive(Default)]
struct State {
    waiting: VecDeque<Waiting>,
    bytes: usize,
    stopped: bool,
    thread: Option<Thread>,
}

impl Appends {
    /// Returns true if an append has to go behind others.
    pub(super) fn any(&self) -> bool {
        self.pending.load(Ordering::Acquire) > 0
    }
}

impl Attached {
    /// Appends a batch when it is its turn, and the lock can be had; until `deadline`.
    pub fn append_later(
        self: &Arc<Self>,
        records: &[u8],
        settings: Arc<TopicSettings>,
        deadline: Instant,
        done: OnAppended,
    ) {
        let mut state = self.appends.state.lock();
        let refusal = match () {
            () if state.stopped => Some(QueueRefusal::Gone),
            () if state.bytes + records.len() > WAITING_BYTES_MAX => Some(QueueRefusal::Busy(
                "too many bytes wait for a local writer that holds the lock of the queue".to_owned(),
            )),
            () => self.ensure_thread(&mut state).err(),
        };
        if let Some(refusal) = refusal {
            drop(state);
            return done(Err(refusal.into()));
        }
        state.bytes += records.len();
        state.waiting.push_back(Waiting { records: records.to_vec(), settings, deadline, done });
        self.appends.pending.fetch_add(1, Ordering::AcqRel);
        drop(state);
        self.appends.changed.notify_one();
    }

    fn ensure_thread(self: &Arc<Self>, state: &mut State) -> Result<(), QueueRefusal> {
        if state.thread.is_none() {
            let own = self.clone();
            let why = "appends to an attached queue would wait for ever";
            let spawned = supervised::spawn_vital("attached-append", why, move || own.make_appends());
            state.thread = Some(spawned.map_err(|error| QueueRefusal::Busy(error.to_string()))?);
        }
        Ok(())
    }

    /// Refuses what waits, and what comes.
    pub(super) fn stop_appends(&self) {
        let thread = {
            let mut state = self.appends.state.lock();
            state.stopped = true;
            state.thread.take()
        };
        self.appends.changed.notify_all();
        thread.into_iter().for_each(|thread| drop(thread.join()));
    }

    fn make_appends(&self) {
        let mut appender = None;
        while let Some(next) = self.next_append() {
            let made = self.append_waiting(&mut appender, &next);
            match made {
                None => self.put_back(next),
                Some(outcome) => self.finish_append(next, outcome),
            }
        }
    }

    /// The first one that waits; `None` when all is over.
    fn next_append(&self) -> Option<Waiting> {
        let mut state = self.appends.state.lock();
        loop {
            if state.stopped {
                let rest = std::mem::take(&mut state.waiting);
                drop(state);
                rest.into_iter()
                    .for_each(|waiting| self.finish_append(waiting, Err(QueueRefusal::Gone.into())));
                return None;
            }
            if let Some(next) = state.waiting.pop_front() {
                return Some(next);
            }
            self.appends.changed.wait(&mut state);
        }
    }

    fn put_back(&self, waiting: Waiting) {
        self.appends.state.lock().waiting.push_front(waiting);
    }

    fn finish_append(&self, waiting: Waiting, outcome: Result<AppendOutcome, Refused>) {
        let mut state = self.appends.state.lock();
        state.bytes = state.bytes.saturating_sub(waiting.records.len());
        drop(state);
        self.appends.pending.fetch_sub(1, Ordering::AcqRel);
        (waiting.done)(outcome);
    }

    /// `None`: a living process has the lock still.
    fn append_waiting(
        &self,
        appender: &mut Option<Appender>,
        waiting: &Waiting,
    ) -> Option<Result<AppendOutcome, Refused>> {
        if waiting.deadline <= self.clock.instant() {
            let why = "a local writer holds the lock of the queue and does not go on".to_owned();
            return Some(Err(QueueRefusal::Busy(why).into()));
        }
        let locked = match appender {
            Some(appender) => appender.lock(),
            None => match self.serving().queue().appender() {
                Ok(made) => appender.insert(made).lock(),
                Err(error) => Err(error),
            },
        };
        let mut locked = match locked {
            Ok(locked) => locked,
            Err(QueueError::WriterBlocked { .. }) => return None,
            Err(error) => return Some(Err(QueueRefusal::of(error).into())),
        };
        let (mut rewritten, settings) = (Vec::new(), &waiting.settings.log);
        let appended = with_scratch(|scratch| {
            let prepared = prepare(
                &waiting.records,
                settings,
                self.clock.wall_ms(),
                Origin::Client,
                scratch,
                &mut rewritten,
            )?;
            self.append_locked(&mut locked, &prepared)
        });
        drop(locked);
        self.look();
        Some(appended)
    }
}

/// An append whose place is known later.
#[derive(Default)]
pub struct PendingAppend(Mutex<Placement>);

#[derive(Default)]
enum Placement {
    #[default]
    Waiting,
    /// Callback for the outcome.
    Awaited(Box<dyn FnOnce(Result<i64, ErrorCode>) + Send>),
    Known(Result<AppendOutcome, Refused>),
}

impl PendingAppend {
    /// Sets the outcome, and calls the callback.
    pub fn set(&self, outcome: Result<AppendOutcome, Refused>) {
        let end = outcome.as_ref().map(|outcome| outcome.appended.last_offset + 1).map_err(Refused::code);
        let before = std::mem::replace(&mut *self.0.lock(), Placement::Known(outcome));
        if let Placement::Awaited(call) = before {
            call(end);
        }
    }

    /// Calls back, now or later, with the offset behind the batch.
    pub fn when_known(&self, call: Box<dyn FnOnce(Result<i64, ErrorCode>) + Send>) {
        let mut placement = self.0.lock();
        let end = match &*placement {
            Placement::Known(Ok(outcome)) => Ok(outcome.appended.last_offset + 1),
            Placement::Known(Err(refused)) => Err(refused.code()),
            Placement::Waiting | Placement::Awaited(_) => {
                *placement = Placement::Awaited(call);
                return;
            }
        };
        drop(placement);
        call(end);
    }

    /// Takes the outcome; `None`: not known yet.
    pub fn take(&self) -> Option<Result<AppendOutcome, Refused>> {
        match std::mem::take(&mut *self.0.lock()) {
            Placement::Known(outcome) => Some(outcome),
            Placement::Waiting | Placement::Awaited(_) => None,
        }
    }
}

/// Longest wait of an append without an answer (acks=0).
pub const UNANSWERED_TIME_MAX: Duration = Duration::from_secs(30);
