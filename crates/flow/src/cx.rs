//! The context of a handler, for all that it can do besides its own work.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering, fence};
use std::time::Duration;

use bytes::Bytes;
use mainstem_client::{Record, TopicPartition};
use parking_lot::Mutex;

use crate::fault::Fault;
use crate::payload::Encode;

/// The context of one attempt to handle a message: what is sent with it leaves only if the attempt returns `Ok`. A clone is
/// of the same attempt.
#[derive(Clone)]
pub struct Cx(Arc<Attempt>);

/// State that the clones of a context share. Attempts that ask for nothing use it one after another.
#[derive(Debug)]
struct Attempt {
    partition: Arc<PartitionCx>,
    /// Something was asked for.
    has_asked: AtomicBool,
    asked: Mutex<Asked>,
}

/// State that the attempts of a partition share.
#[derive(Debug)]
pub(crate) struct PartitionCx {
    pub(crate) app: Arc<str>,
    pub(crate) partition: TopicPartition,
    pub(crate) is_revoked: AtomicBool,
}

/// Requests of an attempt.
#[derive(Debug, Default)]
pub(crate) struct Asked {
    pub(crate) records: Vec<Record>,
    pub(crate) seek: Option<i64>,
    pub(crate) pause: Option<Duration>,
    /// The attempt has ended: later requests of a clone are refused.
    is_closed: bool,
}

impl Cx {
    pub(crate) fn new(partition: Arc<PartitionCx>) -> Cx {
        Cx(Arc::new(Attempt { partition, has_asked: AtomicBool::new(false), asked: Mutex::default() }))
    }

    /// Returns true if its attempt, which has ended, has asked for nothing, and can ask for nothing more: it can be another's.
    #[inline]
    pub(crate) fn is_unused(&self) -> bool {
        if Arc::strong_count(&self.0) > 1 {
            return false;
        }
        // A clone that another thread has dropped was used before that.
        fence(Ordering::Acquire);
        !self.0.has_asked.load(Ordering::Relaxed)
    }

    /// Returns the requests of its attempt; nothing more can be asked.
    pub(crate) fn close(&self) -> Asked {
        let closed = Asked { is_closed: true, ..Asked::default() };
        std::mem::replace(&mut *self.0.asked.lock(), closed)
    }

    /// Tells contexts of different attempts apart.
    #[inline]
    pub(crate) fn address(&self) -> usize {
        Arc::as_ptr(&self.0).addr()
    }

    /// Name of the application.
    pub fn app(&self) -> &str {
        &self.0.partition.app
    }

    /// The partition of the message.
    pub fn partition(&self) -> &TopicPartition {
        &self.0.partition.partition
    }

    /// Sends a record when this attempt has returned `Ok`; the message is finished when it is acknowledged. Records of one
    /// message to one partition keep their order.
    ///
    /// # Errors
    /// [`Fault::poison`] if the payload cannot be encoded; [`Fault::failed`] after the end of the attempt.
    pub fn send<P: Encode + ?Sized>(
        &self,
        topic: &str,
        key: Option<&[u8]>,
        payload: &P,
    ) -> Result<(), Fault> {
        let value = payload.encode().map_err(|error| {
            Fault::poison(format_args!("what is sent to {topic} cannot be encoded: {error}"))
        })?;
        let mut record = Record::new(topic, Bytes::new());
        record.value = value;
        record.key = key.map(Bytes::copy_from_slice);
        if let Some(event_type) = payload.event_type() {
            record = record.header("type", event_type.to_owned());
        }
        self.send_record(record)
    }

    /// The same with all that a record has.
    ///
    /// # Errors
    /// [`Fault::failed`] after the end of the attempt.
    pub fn send_record(&self, record: Record) -> Result<(), Fault> {
        self.ask("send", |asked| asked.records.push(record))
    }

    /// Moves to another offset of this partition when this attempt has returned `Ok`: all other messages that were read count as unread,
    /// and the committed offset follows.
    ///
    /// For a stream of a publisher (`grpc://`) this resets the consumer, as `mainstem direct reset` does: all of its instances continue
    /// there. No message of the partition is handled until the publisher has done it, however long it is away. If the publisher refuses,
    /// for example because the offset does not exist, the application ends.
    ///
    /// # Errors
    /// [`Fault::failed`] after the end of the attempt.
    pub fn seek(&self, offset: i64) -> Result<(), Fault> {
        self.ask("seek", |asked| asked.seek = Some(offset))
    }

    /// Starts no message of this partition for some time when this attempt has returned `Ok`. [`Duration::ZERO`] ends a
    /// pause.
    ///
    /// # Errors
    /// [`Fault::failed`] after the end of the attempt.
    pub fn pause(&self, time: Duration) -> Result<(), Fault> {
        self.ask("pause", |asked| asked.pause = Some(time))
    }

    fn ask(&self, what: &str, ask: impl FnOnce(&mut Asked)) -> Result<(), Fault> {
        let mut asked = self.0.asked.lock();
        if asked.is_closed {
            return Err(Fault::failed(format_args!("{what} was called after the handler had returned")));
        }
        self.0.has_asked.store(true, Ordering::Relaxed);
        ask(&mut asked);
        Ok(())
    }

    /// Returns true if the partition is being revoked, or the application stops: a handler that takes long should end. It is dropped when
    /// its time is over, and the message is handled again elsewhere.
    pub fn revoked(&self) -> bool {
        self.0.partition.is_revoked.load(Ordering::Relaxed)
    }
}

impl fmt::Debug for Cx {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Cx").field(self.partition()).finish()
    }
}
