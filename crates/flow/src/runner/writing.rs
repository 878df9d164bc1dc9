//! Records that a message's outcome depends on: its outputs, or its dead letter.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use mainstem_client::{Error, ErrorClass, ErrorCode, Record, TopicPartition};

use super::Partition;
use crate::FaultClass;
use crate::attempt::Failure;
use crate::fault::Fault;
use crate::letter::{self, Reason};
use crate::message::Received;
use crate::transport::{BoxFuture, Sink};

const RETRY_FIRST: Duration = Duration::from_millis(200);
const RETRY_MAX: Duration = Duration::from_secs(30);

/// Whether something of a partition is being written, and may be.
#[derive(Debug, Default)]
pub(super) struct Writes {
    under_way: AtomicUsize,
    have_ended: AtomicBool,
}

impl Writes {
    /// Lets nothing more be written; returns true the first time. What is under way goes on.
    pub(super) fn end(&self) -> bool {
        !self.have_ended.swap(true, Ordering::Relaxed)
    }

    /// Returns true after [`Writes::end`].
    pub(super) fn have_ended(&self) -> bool {
        self.have_ended.load(Ordering::Relaxed)
    }

    /// Returns true if the sink has something of which the outcome is not known.
    pub(super) fn are_under_way(&self) -> bool {
        self.under_way.load(Ordering::Relaxed) > 0
    }

    /// Begins a write and waits for it, unless nothing more may be written: this never ends then.
    async fn write<F: Future>(&self, write: impl FnOnce() -> F) -> F::Output {
        if self.have_ended() {
            return std::future::pending().await;
        }
        self.under_way.fetch_add(1, Ordering::Relaxed);
        let _under_way = UnderWay(self);
        write().await
    }
}

/// A write that has begun.
struct UnderWay<'a>(&'a Writes);

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        self.0.under_way.fetch_sub(1, Ordering::Relaxed);
    }
}

/// What has been written of the message in a slot.
pub(super) enum Written {
    Outputs(u16, Result<(), Fault>),
    /// It fails only by what the application cannot go on after.
    Letter(u16, Result<(), Fault>),
}

/// Writes what a message sends. What could be written later is tried again there; the handler does not run again for that.
pub(super) fn write_outputs(
    sink: Arc<dyn Sink>,
    writes: Arc<Writes>,
    slot: u16,
    records: Vec<Record>,
) -> BoxFuture<'static, Written> {
    Box::pin(async move {
        let mut wait = RETRY_FIRST;
        loop {
            match writes.write(|| sink.write(records.clone())).await {
                Ok(()) => return Written::Outputs(slot, Ok(())),
                Err(error) if error.is_retriable() => {
                    tracing::warn!("what a handler sends cannot be written yet: {error}; again in {wait:?}");
                    tokio::time::sleep(wait).await;
                    wait = (wait * 2).min(RETRY_MAX);
                }
                Err(error) => return Written::Outputs(slot, Err(Fault::from(error))),
            }
        }
    })
}

/// A dead letter, and where it goes.
pub(super) struct Addressed {
    letter: letter::Letter,
    topic: String,
    source: TopicPartition,
    offset: i64,
}

/// The dead letter of a message.
pub(super) fn letter_of(
    partition: &Partition,
    received: &Received,
    failure: &Failure,
    deliveries: u32,
    first_failed_ms: i64,
) -> Addressed {
    let group = &partition.app.name;
    let source = received.partition().clone();
    let first_failed_ms = if first_failed_ms == 0 { partition.app.wall_ms() } else { first_failed_ms };
    let reason = Reason {
        group,
        stage: failure.stage,
        is_poison: failure.class == FaultClass::Poison,
        deliveries: deliveries.max(1),
        first_failed_ms,
        cause: &failure.cause,
    };
    let letter = letter::letter(received.to_source(), &reason);
    let topic = partition.route.letters(group, &source.topic);
    tracing::warn!(
        "{source} at offset {} is set aside to {topic}: {}",
        received.offset(),
        failure.cause.lines().next().unwrap_or_default()
    );
    Addressed { letter, topic, source, offset: received.offset() }
}

/// Writes a dead letter, however long that takes: its message is unfinished until then.
pub(super) fn write_letter(
    sink: Arc<dyn Sink>,
    writes: Arc<Writes>,
    slot: u16,
    addressed: Addressed,
) -> BoxFuture<'static, Written> {
    Box::pin(async move {
        let mut wait = RETRY_FIRST;
        while let Err(error) = writes.write(|| try_write(&*sink, &addressed)).await {
            let Addressed { topic, source, offset, .. } = &addressed;
            if error.class() == ErrorClass::Fatal {
                return Written::Letter(slot, Err(Fault::from(error)));
            }
            tracing::error!(
                "the dead letter of {source} at offset {offset} cannot be written to {topic}: {error}; {}its position waits, \
                 and it is tried again in {wait:?}",
                advice(&error)
            );
            tokio::time::sleep(wait).await;
            wait = (wait * 2).min(RETRY_MAX);
        }
        Written::Letter(slot, Ok(()))
    })
}

async fn try_write(sink: &dyn Sink, addressed: &Addressed) -> Result<(), Error> {
    let Addressed { letter, topic, source, .. } = addressed;
    let partitions = sink.letter_partitions(topic.clone(), source.topic.clone()).await?;
    let mut record = Record::new(topic.as_str(), bytes::Bytes::new());
    record = record.partition(letter::partition(source.partition, partitions));
    (record.key, record.value, record.headers) =
        (letter.key.clone(), letter.value.clone(), letter.headers.clone());
    sink.write(vec![record]).await
}

/// What a person can do about it.
fn advice(error: &Error) -> &'static str {
    let is_too_large =
        matches!(error.code(), Some(ErrorCode::MESSAGE_TOO_LARGE | ErrorCode::RECORD_LIST_TOO_LARGE));
    match is_too_large {
        true => "raise max.message.bytes of that topic above that of the source; ",
        false => "",
    }
}
