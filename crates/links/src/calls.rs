//! Requests of a node to another, beside what groups say.

use std::collections::VecDeque;
use std::io::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use mainstem_replication::link;
use mainstem_runtime::sync::Condvar;
use parking_lot::Mutex;

use super::BODY_BYTES_MAX;
use super::channel::ChannelWriter;

/// Requests that wait for their answers, for each peer; and those of a peer that are served at the same time, each on a thread.
pub(super) const IN_FLIGHT_MAX: usize = 1_024;
/// Limit of the length of a request or an answer, in bytes.
pub(super) const CALL_BYTES_MAX: usize = 64 << 20;
const _: () = assert!(CALL_BYTES_MAX <= BODY_BYTES_MAX);
/// Limit of the time for an answer, in milliseconds, like `request.timeout.ms` of Kafka's nodes. A peer whose link is connected may
/// never answer, for example if its disk hangs. Callers may have shorter limits of their own.
pub(super) const CALL_TIME_MAX_MS: u64 = 30_000;
/// Limit of the bytes of all requests of one peer that are being served. A single larger one is served alone.
const SERVED_BYTES_MAX: usize = 128 << 20;

/// The status of an answer.
pub(super) const SERVED: u8 = 0;
pub(super) const REFUSED: u8 = 1;

/// Kind of a request; its handler gives the number its meaning.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CallKind(pub u8);

/// Why a request has no answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum CallError {
    /// There is no link to the node: it was not asked.
    #[error("there is no link to the node")]
    NotConnected,
    /// The link ended before the answer came. It is not known whether the request was served.
    #[error("the link ended before the answer came")]
    Disconnected,
    /// Too many requests wait already, or this one is too long.
    #[error("too many requests wait for the node, or this one is too long")]
    TooMany,
    /// There was no answer in time. It is not known whether the request was served.
    #[error("the node did not answer in time")]
    TimedOut,
    /// The node does not serve such a request, not yet, or has failed to.
    #[error("the node did not serve the request")]
    Refused,
}

/// Callback that gets the answer.
pub(crate) type OnAnswer = Box<dyn FnOnce(Result<Vec<u8>, CallError>) + Send>;

/// Serves the requests of other nodes. Called on one of a few threads that may block for a moment, not for another
/// node's answer to a request that it serves on such a thread.
pub trait CallHandler: Send + Sync {
    /// Serves a request, now or later.
    fn call(&self, from: i32, kind: CallKind, body: Vec<u8>, reply: CallReply);
}

/// The requests of one peer that are being served, those of its earlier links included.
#[derive(Debug, Default)]
pub(super) struct Serving {
    requests: AtomicUsize,
    bytes: AtomicUsize,
}

/// Writer of the answers to one peer's requests.
pub(super) struct Answers {
    writer: Mutex<Box<dyn AnswerWriter>>,
    serving: Arc<Serving>,
}

/// A connection on which answers are written.
pub(super) trait AnswerWriter: Write + Send {
    /// Ends both directions.
    fn shut_down(&self);
}

impl AnswerWriter for ChannelWriter {
    fn shut_down(&self) {
        ChannelWriter::shut_down(self);
    }
}

impl Answers {
    pub(super) fn new(writer: Box<dyn AnswerWriter>, serving: Arc<Serving>) -> Arc<Answers> {
        Arc::new(Answers { writer: Mutex::new(writer), serving })
    }

    /// Counts a request; `None`: there are too many, in number or in bytes.
    pub(super) fn begin(self: &Arc<Self>, id: u64, bytes: usize) -> Option<CallReply> {
        let requests = self.serving.requests.fetch_add(1, Ordering::AcqRel);
        let before = self.serving.bytes.fetch_add(bytes, Ordering::AcqRel);
        let reply = CallReply { answers: self.clone(), id, bytes, is_answered: false };
        let is_small = requests == 0 || before + bytes <= SERVED_BYTES_MAX;
        // It counts back when it is dropped, and refuses.
        (requests < IN_FLIGHT_MAX && is_small).then_some(reply)
    }

    fn send(&self, id: u64, status: u8, body: &[u8]) {
        let mut frame = Vec::with_capacity(body.len() + 16);
        link::answer(id, status, body, &mut frame);
        let mut writer = self.writer.lock();
        if writer.write_all(&frame).is_err() {
            // The peer finds out by the end of its link.
            writer.shut_down();
        }
    }
}

/// The answer to one request; one that is dropped refuses it.
pub struct CallReply {
    answers: Arc<Answers>,
    id: u64,
    bytes: usize,
    is_answered: bool,
}

impl CallReply {
    /// Answers. May block while the peer reads slowly.
    pub fn answer(mut self, body: &[u8]) {
        self.is_answered = true;
        // The peer may ask the next one as soon as it has the answer.
        self.answers.serving.requests.fetch_sub(1, Ordering::AcqRel);
        match body.len() <= CALL_BYTES_MAX {
            true => self.answers.send(self.id, SERVED, body),
            false => self.answers.send(self.id, REFUSED, &[]),
        }
    }
}

impl Drop for CallReply {
    fn drop(&mut self) {
        let serving = &self.answers.serving;
        serving.bytes.fetch_sub(self.bytes, Ordering::AcqRel);
        if !self.is_answered {
            serving.requests.fetch_sub(1, Ordering::AcqRel);
            self.answers.send(self.id, REFUSED, &[]);
        }
    }
}

/// Threads that serve requests.
#[derive(Default)]
pub(super) struct Callers {
    queue: Mutex<CallQueue>,
    wake: Condvar,
}

type Job = Box<dyn FnOnce() + Send>;

#[derive(Default)]
struct CallQueue {
    jobs: VecDeque<Job>,
    is_stopped: bool,
}

impl Callers {
    /// Has a request served. There are as many as the bounds of each peer allow.
    pub(super) fn push(&self, job: Job) {
        let mut queue = self.queue.lock();
        if !queue.is_stopped {
            queue.jobs.push_back(job);
            drop(queue);
            self.wake.notify_one();
        }
    }

    /// Serves requests until the links are stopped.
    pub(super) fn run(&self) {
        let mut queue = self.queue.lock();
        loop {
            if let Some(job) = queue.jobs.pop_front() {
                drop(queue);
                job();
                queue = self.queue.lock();
            } else if queue.is_stopped {
                return;
            } else {
                self.wake.wait(&mut queue);
            }
        }
    }

    pub(super) fn stop(&self) {
        let mut queue = self.queue.lock();
        queue.is_stopped = true;
        let left = std::mem::take(&mut queue.jobs);
        drop(queue);
        drop(left);
        self.wake.notify_all();
    }
}
