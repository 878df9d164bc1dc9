//! Records that a message's outcome depends on: its outputs, or its dead letter.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use mainstem_client::{Error, ErrorClass, ErrorCode, Record, TopicPartition};

use super::Partition;
use mainstem_lines::{OneLine, Sentence};

use crate::FaultClass;
use crate::attempt::Failure;
use crate::fault::Fault;
use crate::letter::{self, Extent, Reason};
use crate::message::Received;
use crate::route::RouteState;
use crate::transport::{BoxFuture, Sink};

const RETRY_FIRST: Duration = Duration::from_millis(200);
const RETRY_MAX: Duration = Duration::from_secs(30);

/// The state of a partition's writes: the number under way, and whether more may begin.
#[derive(Debug, Default)]
pub(super) struct Writes {
    under_way: AtomicUsize,
    have_ended: AtomicBool,
}

impl Writes {
    /// Lets nothing more be written; returns true the first time. Writes under way continue.
    pub(super) fn end(&self) -> bool {
        !self.have_ended.swap(true, Ordering::Relaxed)
    }

    /// Returns true after [`Writes::end`].
    pub(super) fn have_ended(&self) -> bool {
        self.have_ended.load(Ordering::Relaxed)
    }

    /// Returns true if the sink has records whose outcome is not known.
    pub(super) fn are_under_way(&self) -> bool {
        self.under_way.load(Ordering::Relaxed) > 0
    }

    /// Begins a write and waits for it. If nothing more may be written, it never ends.
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

/// The outcome of writing the records of the message in a slot.
pub(super) enum Written {
    Outputs(u16, Result<(), Fault>),
    /// Its only errors are those that end the application.
    Letter(u16, Result<(), Fault>),
}

/// Records that a message sends.
pub(super) struct Outputs {
    pub(super) records: Vec<Record>,
    /// The indexes of records whose last header is the trace of the message, which its handler has not set.
    pub(super) traced: Vec<usize>,
}

/// Writes the records that a message sends. A write that may succeed later is retried here; the handler does not run again for that.
pub(super) fn write_outputs(
    sink: Arc<dyn Sink>,
    writes: Arc<Writes>,
    slot: u16,
    Outputs { mut records, mut traced }: Outputs,
) -> BoxFuture<'static, Written> {
    Box::pin(async move {
        let mut wait = RETRY_FIRST;
        loop {
            match writes.write(|| sink.write(records.clone())).await {
                Ok(()) => return Written::Outputs(slot, Ok(())),
                Err(error) if may_be_too_large(&error) && !traced.is_empty() => {
                    tracing::warn!(
                        "what a handler sends is written without the trace of its message: {error}"
                    );
                    for index in traced.drain(..) {
                        records[index].headers.pop();
                    }
                }
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
        "{source} at offset {} is set aside to {}: {}",
        received.offset(),
        OneLine(&topic),
        Sentence(failure.cause.lines().next().unwrap_or_default())
    );
    Addressed { letter, topic, source, offset: received.offset() }
}

/// Writes a dead letter, with retries for as long as that takes: its message is unfinished until then. If the topic refuses a letter of
/// that size, less of the message is written, so that no message is too large to be set aside.
pub(super) fn write_letter(
    sink: Arc<dyn Sink>,
    writes: Arc<Writes>,
    route: Arc<RouteState>,
    slot: u16,
    addressed: Addressed,
) -> BoxFuture<'static, Written> {
    Box::pin(async move {
        let mut wait = RETRY_FIRST;
        loop {
            let error = match writes.write(|| write_what_fits(&*sink, &addressed)).await {
                Ok(None) => return Written::Letter(slot, Ok(())),
                Ok(Some((extent, error))) => {
                    warn_of_cut(&addressed, extent, &error);
                    route.metrics.cut_letters.add(1);
                    return Written::Letter(slot, Ok(()));
                }
                Err(error) if error.class() == ErrorClass::Fatal => {
                    return Written::Letter(slot, Err(Fault::from(error)));
                }
                Err(error) => error,
            };
            let Addressed { topic, source, offset, .. } = &addressed;
            tracing::error!(
                "the dead letter of {source} at offset {offset} cannot be written to {}: {error}; {}its position waits, \
                 and it is tried again in {wait:?}",
                OneLine(topic),
                advice(&error)
            );
            tokio::time::sleep(wait).await;
            wait = (wait * 2).min(RETRY_MAX);
        }
    })
}

/// Writes as much of a letter as its topic takes. Returns how much that was, and why not more, if it was not all.
///
/// # Errors
/// The reason why not even the least could be written, or an error that is not about the size.
async fn write_what_fits(sink: &dyn Sink, addressed: &Addressed) -> Result<Option<(Extent, Error)>, Error> {
    let mut refused = None;
    for extent in Extent::ALL {
        match try_write(sink, addressed, extent).await {
            Ok(()) => return Ok(refused.map(|error| (extent, error))),
            Err(error) if may_be_too_large(&error) => drop(refused.get_or_insert(error)),
            Err(error) => return Err(error),
        }
    }
    Err(refused.expect("there is an extent, and it was refused"))
}

async fn try_write(sink: &dyn Sink, addressed: &Addressed, extent: Extent) -> Result<(), Error> {
    let Addressed { letter, topic, source, .. } = addressed;
    let partitions = sink.letter_partitions(topic.clone(), source.topic.clone()).await?;
    let letter = letter.reduced(extent);
    let mut record = Record::new(topic.as_str(), bytes::Bytes::new());
    record = record.partition(letter::partition(source.partition, partitions));
    (record.key, record.value, record.headers) = (letter.key, letter.value, letter.headers);
    sink.write(vec![record]).await
}

/// Tells where the rest of a message is.
fn warn_of_cut(addressed: &Addressed, extent: Extent, error: &Error) {
    let Addressed { topic, source, offset, .. } = addressed;
    let less = match extent {
        Extent::Whole => "all of it",
        Extent::ShortCause => "the beginning of its cause",
        Extent::WithoutValue => "no value",
        Extent::Reason => "the reason alone",
    };
    tracing::warn!(
        "the dead letter of {source} at offset {offset} is too large for {}, and was written with {less}: {error}; {}the \
         message is where it was for as long as {} keeps it",
        OneLine(topic),
        advice(error),
        OneLine(&source.topic)
    );
}

/// Returns true for an error that a smaller record may not meet: a broker's limit, or the producer's own.
fn may_be_too_large(error: &Error) -> bool {
    matches!(error.code(), Some(ErrorCode::MESSAGE_TOO_LARGE | ErrorCode::RECORD_LIST_TOO_LARGE))
        || matches!(error, Error::Invalid(_))
}

/// The thing to do about an error, for people.
fn advice(error: &Error) -> &'static str {
    match error.code() {
        Some(ErrorCode::MESSAGE_TOO_LARGE | ErrorCode::RECORD_LIST_TOO_LARGE) => {
            "raise max.message.bytes of that topic above that of the source; "
        }
        _ => "",
    }
}
