//! The outcome of a record: one shared outcome per batch, so that a record costs no allocation of its own.

use std::future::{Future, IntoFuture};
use std::pin::Pin;
use std::sync::{Arc, OnceLock};

use tokio::sync::Notify;

use crate::error::Error;

/// The place at which a record was written.
///
/// ```
/// use mainstem_client::{ClientConfig, Producer, ProducerConfig, Record};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), mainstem_client::Error> {
/// # let broker = mainstem_broker::EmbeddedBroker::start(&[]);
/// # let address = broker.address();
/// let producer = Producer::new(ProducerConfig::new(ClientConfig::new(address)?))?;
/// let delivered = producer.send(Record::new("orders", "one")).await?.await?;
/// assert_eq!((&*delivered.topic, delivered.partition, delivered.offset), ("orders", 0, Some(0)));
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Delivered {
    /// Name of the topic.
    pub topic: Arc<str>,
    /// The partition.
    pub partition: i32,
    /// The record's offset; none with acks=0, or if the broker only says that it has the record already.
    pub offset: Option<i64>,
    /// The time that the broker gave the record, in a topic with LogAppendTime.
    pub append_time_ms: Option<i64>,
}

/// The outcome of a batch, set once.
#[derive(Debug)]
pub(crate) struct Promise {
    topic: Arc<str>,
    partition: i32,
    outcome: OnceLock<Outcome>,
    done: Notify,
}

#[derive(Debug)]
pub(crate) enum Outcome {
    /// Offset of the first record, and the broker's time.
    Done {
        base_offset: Option<i64>,
        append_time_ms: Option<i64>,
    },
    Failed(Error),
    /// The batch was too large and became several: the index of the first record in each, ascending, and its promise.
    Split(Vec<(u32, Arc<Promise>)>),
}

impl Promise {
    pub(crate) fn new(topic: Arc<str>, partition: i32) -> Arc<Promise> {
        Arc::new(Promise { topic, partition, outcome: OnceLock::new(), done: Notify::new() })
    }

    /// A promise for another batch of the same partition.
    pub(crate) fn sibling(&self) -> Arc<Promise> {
        Promise::new(self.topic.clone(), self.partition)
    }

    /// Sets the outcome; a later one is ignored.
    pub(crate) fn resolve(&self, outcome: Outcome) {
        if self.outcome.set(outcome).is_ok() {
            self.done.notify_waiters();
        }
    }

    pub(crate) fn is_resolved(&self) -> bool {
        self.outcome.get().is_some()
    }

    /// Waits until this, and the parts that it was split into, have an outcome.
    pub(crate) async fn settled(self: Arc<Self>) {
        let mut open = vec![self];
        while let Some(next) = open.pop() {
            if let Outcome::Split(parts) = next.wait().await {
                open.extend(parts.iter().map(|(_, part)| part.clone()));
            }
        }
    }

    async fn wait(&self) -> &Outcome {
        loop {
            let notified = self.done.notified();
            let mut notified = std::pin::pin!(notified);
            // Registered before the look, so that what is set between the two is not missed.
            notified.as_mut().enable();
            if let Some(outcome) = self.outcome.get() {
                return outcome;
            }
            notified.await;
        }
    }
}

/// The delivery of one record: await it for the outcome, or drop it.
///
/// Many records are sent first. Their deliveries, of which those of one batch share an outcome, are awaited together:
///
/// ```
/// use mainstem_client::{ClientConfig, Producer, ProducerConfig, Record};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), mainstem_client::Error> {
/// # let broker = mainstem_broker::EmbeddedBroker::start(&[]);
/// # let address = broker.address();
/// let producer = Producer::new(ProducerConfig::new(ClientConfig::new(address)?))?;
/// let mut deliveries = Vec::new();
/// for number in 0..100 {
///     deliveries.push(producer.send(Record::new("orders", number.to_string())).await?);
/// }
/// for (number, delivery) in deliveries.into_iter().enumerate() {
///     assert_eq!(delivery.await?.offset, Some(number as i64));
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
#[must_use = "whether the record was written is known only by awaiting this; drop it explicitly if that does not matter"]
pub struct Delivery {
    promise: Arc<Promise>,
    index: u32,
}

impl Delivery {
    pub(crate) fn new(promise: Arc<Promise>, index: u32) -> Delivery {
        Delivery { promise, index }
    }

    /// The outcome, if there is one yet.
    pub fn poll_outcome(&self) -> Option<Result<Delivered, Error>> {
        let (mut promise, mut index) = (&self.promise, self.index);
        loop {
            match promise.outcome.get()? {
                Outcome::Split(parts) => (promise, index) = part(parts, index),
                outcome => return Some(delivered(promise, outcome, index)),
            }
        }
    }

    /// Waits for the outcome.
    pub async fn outcome(&self) -> Result<Delivered, Error> {
        let (mut promise, mut index) = (&self.promise, self.index);
        loop {
            match promise.wait().await {
                Outcome::Split(parts) => (promise, index) = part(parts, index),
                outcome => return delivered(promise, outcome, index),
            }
        }
    }
}

impl IntoFuture for Delivery {
    type Output = Result<Delivered, Error>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(async move { self.outcome().await })
    }
}

/// The part with a record, and the record's index in it.
fn part(parts: &[(u32, Arc<Promise>)], index: u32) -> (&Arc<Promise>, u32) {
    let at = parts.partition_point(|(first, _)| *first <= index).saturating_sub(1);
    let (first, promise) = &parts[at];
    (promise, index - first)
}

fn delivered(promise: &Promise, outcome: &Outcome, index: u32) -> Result<Delivered, Error> {
    match outcome {
        Outcome::Done { base_offset, append_time_ms } => Ok(Delivered {
            topic: promise.topic.clone(),
            partition: promise.partition,
            offset: base_offset.map(|base| base.saturating_add(i64::from(index))),
            append_time_ms: *append_time_ms,
        }),
        Outcome::Failed(error) => Err(error.clone()),
        Outcome::Split(_) => unreachable!("the caller follows splits"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_of_a_split_batch_find_their_part() {
        let promise = || Promise::new("t".into(), 3);
        let (whole, first, second) = (promise(), promise(), promise());
        let deliveries: Vec<Delivery> = (0..5).map(|index| Delivery::new(whole.clone(), index)).collect();
        assert!(deliveries[0].poll_outcome().is_none());
        whole.resolve(Outcome::Split(vec![(0, first.clone()), (3, second.clone())]));
        first.resolve(Outcome::Done { base_offset: Some(10), append_time_ms: None });
        second.resolve(Outcome::Failed(Error::Closed));
        let offset = |at: usize| deliveries[at].poll_outcome().map(|outcome| outcome.map(|done| done.offset));
        assert_eq!(offset(2), Some(Ok(Some(12))));
        assert_eq!(offset(3), Some(Err(Error::Closed)));
    }
}
