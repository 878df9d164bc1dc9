//! Messages straight from the services that publish them: `grpc://`, over `mainstem-direct`.
//!
//! A publisher's stream is a topic, and each publisher is a partition of it. An instance has a range of the stream's slices at a
//! time, so that a partition comes and goes as those do.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use mainstem_client::{
    CommittedOffset, Error as ClientError, FetchedBatch, Position, Record, TopicPartition,
};
use mainstem_direct::proto::{self, manage_request::Action, reset::To};
use mainstem_direct::{
    Address, Admin, Consumer, ConsumerConfig, ConsumerEvent, DECOMPRESSED_BYTES_MAX, DirectError, Done,
    Positions, ToEvent,
};
use mainstem_queue::{Header, Queue};
use mainstem_records::{Batch, BatchBuilder, BatchOptions, empty_batch};
use parking_lot::Mutex;

use crate::error::{Error, Result};
use crate::metadata;
use crate::payload::{Encode as _, Json, Raw, Text};
use crate::transport::{BoxFuture, Commit, Event, Sink, Source};

/// Positions go to the publisher so often.
pub(crate) const COMMIT_EVERY: Duration = Duration::from_millis(100);
/// A seek that its publisher could not take is tried again so long later.
const SEEK_AGAIN: Duration = Duration::from_secs(1);
/// When the application ends, a seek has so long.
const SEEK_AT_END_WITHIN: Duration = Duration::from_secs(5);
/// Why a partition is lost.
const LOST: &str =
    "its publisher has received nothing from this process for too long, and may have given them to others";
const RESET: &str = "the consumer was reset, and they start again at its new position";
const SOUGHT: &str = "a handler has moved to another offset, and they start again there";

/// Changes how an application reads its streams.
pub(crate) type ChangeConfig = Arc<dyn Fn(ConsumerConfig) -> ConsumerConfig + Send + Sync>;

/// Addresses of publishers.
#[derive(Clone)]
pub(crate) struct Publishers {
    addresses: Vec<Address>,
    pub(crate) change: Option<ChangeConfig>,
    /// Target of outputs and dead letters.
    pub(crate) outputs: Option<String>,
}

impl Publishers {
    /// Those of `grpc://HOST:PORT`, or several separated by commas; none if it is another URL.
    pub(crate) fn of_url(url: &str) -> Result<Option<Publishers>> {
        let Some(list) = url.strip_prefix("grpc://") else { return Ok(None) };
        let addresses = list.split(',').map(Address::new).collect::<Result<Vec<_>, DirectError>>()?;
        Ok(Some(Publishers { addresses, change: None, outputs: None }))
    }

    pub(crate) fn change_addresses(&mut self, change: impl Fn(Address) -> Address) {
        self.addresses = std::mem::take(&mut self.addresses).into_iter().map(change).collect();
    }
}

/// State of a partition that this instance has.
#[derive(Debug)]
struct Current {
    positions: Positions,
    /// The progress that was committed last.
    done: Done,
    /// The offset behind what was handed on.
    handed_to: i64,
}

type Currents = Arc<Mutex<HashMap<TopicPartition, Current>>>;

/// A stream of a publisher.
struct Reading {
    partition: TopicPartition,
    address: Address,
    config: ConsumerConfig,
    /// None while its position is being moved.
    consumer: Option<Consumer>,
    /// Moves the consumer's position. A connection that is made afterwards receives no event from before the move.
    seek: Option<BoxFuture<'static, Result>>,
    /// The received frame, without the batches that were already handed on.
    frame: Frame,
    is_held: bool,
    /// It is being revoked: the next assignment waits until that is done.
    is_revoking: bool,
    next_assigned: Option<Queued>,
}

impl Reading {
    /// Returns its next event. The future may be dropped at any time, and loses nothing.
    async fn next(&mut self) -> Result<ConsumerEvent> {
        if let Some(seek) = &mut self.seek {
            let sought = seek.await;
            self.seek = None;
            sought?;
            self.consumer = Some(Consumer::new(self.config.clone()));
        }
        match &mut self.consumer {
            Some(consumer) => Ok(consumer.next().await?),
            // Its seek has failed, and the application ends because of that.
            None => std::future::pending().await,
        }
    }

    fn hold(&mut self, is_held: bool) {
        self.is_held = is_held;
        match &mut self.consumer {
            Some(consumer) if is_held => consumer.hold(),
            Some(consumer) => consumer.resume(),
            None => {}
        }
    }

    /// Continues at an offset, under the name that this instance has.
    fn seek(&mut self, consumer: &str, offset: i64) {
        (self.frame, self.is_held) = (Frame::default(), false);
        (self.is_revoking, self.next_assigned) = (false, None);
        self.consumer = None;
        let (address, partition) = (self.address.clone(), self.partition.clone());
        self.seek = Some(Box::pin(reset(address, partition, consumer.to_owned(), offset)));
    }

    async fn leave(self) {
        if let Some(seek) = self.seek {
            match tokio::time::timeout(SEEK_AT_END_WITHIN, seek).await {
                Ok(Ok(())) => {}
                Ok(Err(error)) => tracing::error!("{error}"),
                Err(_) => tracing::warn!(
                    "{}: its publisher is away, so its position is not moved to where a handler has asked to go",
                    self.partition
                ),
            }
        }
        if let Some(consumer) = self.consumer {
            consumer.leave().await;
        }
    }

    /// The next batch that may be handed on.
    fn batch(&mut self) -> Option<Result<FetchedBatch>> {
        match self.is_held {
            true => None,
            false => self.frame.take(&self.partition),
        }
    }
}

/// Moves the position of a consumer at its publisher, however long that is away.
async fn reset(address: Address, partition: TopicPartition, consumer: String, offset: i64) -> Result {
    loop {
        let done = async {
            let to = Action::Reset(proto::Reset { to: Some(To::Offset(offset)) });
            Admin::connect(address.clone()).await?.manage(&partition.topic, &consumer, to).await
        };
        match done.await {
            Ok(_) => return Ok(()),
            Err(error) if error.may_pass() => tracing::warn!(
                "{partition} does not continue at offset {offset} yet: {error}; again in {} ms",
                SEEK_AGAIN.as_millis()
            ),
            Err(source) => return Err(Error::Seek { partition, offset, source }),
        }
        tokio::time::sleep(SEEK_AGAIN).await;
    }
}

/// The batches of one received frame. A batch is opened when it is handed on: a compressed one may become very much larger by that, and a
/// frame may have many.
#[derive(Default)]
struct Frame {
    batches: Bytes,
    /// Those that were not handed on.
    ranges: std::vec::IntoIter<Range<usize>>,
    /// The offset behind what was handed on.
    behind: i64,
    /// The offset where the frame ends.
    next: i64,
}

impl Frame {
    /// The next batch; behind the last one, that there is nothing up to the frame's end.
    fn take(&mut self, partition: &TopicPartition) -> Option<Result<FetchedBatch>> {
        if let Some(range) = self.ranges.next() {
            let (bytes, bytes_max) = (self.batches.slice(range), DECOMPRESSED_BYTES_MAX);
            let batch = FetchedBatch::from_bytes_within(partition.clone(), bytes, bytes_max);
            self.behind = batch.as_ref().map_or(self.next, FetchedBatch::next_offset);
            return Some(batch.map_err(Error::from));
        }
        let Frame { behind, next, .. } = std::mem::take(self);
        (behind < next).then(|| nothing(partition, behind, next))
    }

    fn is_empty(&self) -> bool {
        self.behind >= self.next
    }
}

/// An item that is handed on before further batches.
enum Queued {
    Event(Event),
    /// Positions count from when the driver learns of it. Until then they would be those of the previous assignment.
    Assigned(Current, CommittedOffset),
}

/// An instance of a consumer of all streams of an application.
pub(crate) struct DirectSource {
    /// The name of the consumer.
    name: String,
    readings: Vec<Reading>,
    /// The index of the reading that was asked first last time.
    turn: usize,
    /// Events that are handed on before batches.
    events: VecDeque<(TopicPartition, Queued)>,
    revoking: HashMap<u64, usize>,
    revocations: u64,
    current: Currents,
}

impl DirectSource {
    pub(crate) fn new(
        name: &str,
        publishers: &Publishers,
        streams: &[String],
        start: Position,
    ) -> Result<DirectSource> {
        let start = match start {
            Position::Beginning => proto::Start::Earliest,
            Position::End => proto::Start::Latest,
            _ => {
                let reason = "a consumer of a publisher starts at the beginning or the end; go elsewhere by \
                              `mainstem direct reset`";
                return Err(Error::Invalid(reason.to_owned()));
            }
        };
        let mut readings = Vec::new();
        for stream in streams {
            for (address, number) in publishers.addresses.iter().zip(0..) {
                let config = ConsumerConfig::new(address.clone(), stream.as_str(), name).start(start);
                let config = publishers
                    .change
                    .as_ref()
                    .map_or_else(|| config.clone(), |change| change(config.clone()));
                readings.push(Reading {
                    partition: TopicPartition::new(stream.as_str(), number),
                    address: address.clone(),
                    consumer: Some(Consumer::new(config.clone())),
                    config,
                    seek: None,
                    frame: Frame::default(),
                    is_held: false,
                    is_revoking: false,
                    next_assigned: None,
                });
            }
        }
        Ok(DirectSource {
            name: name.to_owned(),
            readings,
            turn: 0,
            events: VecDeque::new(),
            revoking: HashMap::new(),
            revocations: 0,
            current: Currents::default(),
        })
    }

    /// Returns the next event of those that were received.
    fn ready(&mut self) -> Result<Option<Event>> {
        match self.events.pop_front() {
            Some((_, Queued::Event(event))) => return Ok(Some(event)),
            Some((partition, Queued::Assigned(current, committed))) => {
                self.current.lock().insert(partition.clone(), current);
                return Ok(Some(Event::Assigned(BTreeMap::from([(partition, Some(committed))]))));
            }
            None => {}
        }
        let (before, after) = self.readings.split_at_mut(self.turn);
        let Some(batch) = after.iter_mut().chain(before).find_map(Reading::batch).transpose()? else {
            return Ok(None);
        };
        if let Some(current) = self.current.lock().get_mut(batch.partition()) {
            current.handed_to = batch.next_offset();
        }
        Ok(Some(Event::Batch(batch)))
    }

    fn take(&mut self, index: usize, event: ConsumerEvent) {
        let reading = &mut self.readings[index];
        let partition = reading.partition.clone();
        match event {
            ConsumerEvent::Assigned { assignment, slices, offset, epoch } => {
                tracing::info!("slices {slices} of {partition} are this instance's");
                // The event came from it.
                let Some(consumer) = &reading.consumer else { return };
                let (positions, done) =
                    (consumer.positions(), Done { assignment, offset, finished: Vec::new() });
                let committed =
                    CommittedOffset { leader_epoch: Some(epoch), ..CommittedOffset::from(offset) };
                let assigned = Queued::Assigned(Current { positions, done, handed_to: offset }, committed);
                // A hold belongs to the previous assignment.
                reading.hold(false);
                match reading.is_revoking {
                    true => reading.next_assigned = Some(assigned),
                    false => self.events.push_back((partition, assigned)),
                }
            }
            ConsumerEvent::Records { from, next, batches, ranges, .. } => {
                assert!(reading.frame.is_empty(), "{partition}: a frame comes while one waits");
                reading.frame = Frame { batches, ranges: ranges.into_iter(), behind: from, next };
            }
            ConsumerEvent::Revoking { .. } => {
                self.revocations += 1;
                reading.is_revoking = true;
                // Batches that were not handed on are for the next owner of the slices.
                reading.frame = Frame::default();
                self.revoking.insert(self.revocations, index);
                let event = Event::Revoking(self.revocations, BTreeSet::from([partition.clone()]));
                self.events.push_back((partition, Queued::Event(event)));
            }
            ConsumerEvent::Lost { by_reset, .. } => {
                reading.frame = Frame::default();
                // An assignment that the driver has not received yet needs no loss reported.
                if reading.next_assigned.take().is_none() {
                    let why = if by_reset { RESET } else { LOST };
                    let event = Event::Lost(BTreeSet::from([partition.clone()]), why);
                    self.events.push_back((partition, Queued::Event(event)));
                }
            }
            ConsumerEvent::FilteredFrom { offset } => {
                tracing::info!("from offset {offset} on {partition} goes through another filter");
            }
        }
    }

    fn reading(&mut self, partition: &TopicPartition) -> Option<&mut Reading> {
        self.readings.iter_mut().find(|one| one.partition == *partition)
    }
}

/// A batch without records: nothing between two offsets is for this instance.
fn nothing(partition: &TopicPartition, from: i64, next: i64) -> Result<FetchedBatch> {
    let mut builder = BatchBuilder::new(BatchOptions { base_offset: from, ..BatchOptions::default() });
    let delta = i32::try_from(next - from - 1).unwrap_or(i32::MAX);
    builder.append_at(delta, 0, None, None, &[]).expect("one small record fits");
    let bytes = builder.build().expect("it has a record");
    let (batch, _) = Batch::split_first(&bytes).expect("it was just built");
    Ok(FetchedBatch::from_bytes(partition.clone(), Bytes::copy_from_slice(&empty_batch(&batch)))?)
}

impl Source for DirectSource {
    async fn next(&mut self) -> Result<Event> {
        loop {
            if let Some(event) = self.ready()? {
                return Ok(event);
            }
            // A reading that always has something must not keep the others waiting.
            self.turn = (self.turn + 1) % self.readings.len();
            let (before, after) = self.readings.split_at_mut(self.turn);
            let all = after.iter_mut().chain(before).map(|one| Box::pin(one.next()));
            let (event, index, _) = futures_util::future::select_all(all).await;
            let index = (self.turn + index) % self.readings.len();
            self.take(index, event?);
        }
    }

    fn hold(&mut self, partition: &TopicPartition) {
        if let Some(reading) = self.reading(partition) {
            reading.hold(true);
        }
    }

    fn release(&mut self, partition: &TopicPartition) {
        if let Some(reading) = self.reading(partition) {
            reading.hold(false);
        }
    }

    fn end(&self, partition: &TopicPartition) -> Option<i64> {
        self.readings.iter().find(|one| one.partition == *partition)?.consumer.as_ref()?.end()
    }

    fn seek(&mut self, partition: &TopicPartition, offset: i64) {
        let Some(index) = self.readings.iter().position(|one| one.partition == *partition) else { return };
        tracing::warn!("{partition} continues at offset {offset}, for all instances");
        // Nothing that was, or is, under way counts any more.
        self.current.lock().remove(partition);
        self.events.retain(|(one, _)| one != partition);
        self.revoking.retain(|_, revoked| *revoked != index);
        self.readings[index].seek(&self.name, offset);
        let lost = Event::Lost(BTreeSet::from([partition.clone()]), SOUGHT);
        self.events.push_back((partition.clone(), Queued::Event(lost)));
    }

    fn committer(&self) -> Arc<dyn Commit> {
        Arc::new(DirectCommit(self.current.clone()))
    }

    fn finish_revocation(&mut self, number: u64) {
        let Some(reading) = self.revoking.remove(&number).map(|index| &mut self.readings[index]) else {
            return;
        };
        if let Some(current) = self.current.lock().remove(&reading.partition)
            && let Some(consumer) = &mut reading.consumer
        {
            consumer.release(current.done);
        }
        reading.is_revoking = false;
        let partition = reading.partition.clone();
        self.events.extend(reading.next_assigned.take().map(|assigned| (partition, assigned)));
    }

    async fn leave(self) {
        futures_util::future::join_all(self.readings.into_iter().map(Reading::leave)).await;
    }
}

struct DirectCommit(Currents);

impl Commit for DirectCommit {
    fn commit(
        &self,
        positions: BTreeMap<TopicPartition, CommittedOffset>,
    ) -> BoxFuture<'static, Result<BTreeSet<TopicPartition>, ClientError>> {
        let mut currents = self.0.lock();
        for (partition, committed) in positions {
            // A position outside of this range is the target of a handler's seek, which is done by a reset.
            if let Some(current) = currents.get_mut(&partition)
                && (current.done.offset..=current.handed_to).contains(&committed.offset)
            {
                // It was encoded by this process.
                current.done.finished =
                    metadata::decode(committed.offset, &committed.metadata).unwrap_or_default().ranges;
                current.done.offset = committed.offset;
                current.positions.done(current.done.clone());
            }
        }
        Box::pin(std::future::ready(Ok(BTreeSet::new())))
    }
}

/// Takes outputs and dead letters to queues, one a topic, in the folders of a directory.
pub(crate) struct QueueSink {
    directory: PathBuf,
    queues: Arc<Mutex<HashMap<Arc<str>, Queue>>>,
}

impl QueueSink {
    pub(crate) fn new(directory: impl Into<PathBuf>) -> QueueSink {
        QueueSink { directory: directory.into(), queues: Arc::default() }
    }
}

impl Sink for QueueSink {
    fn write(&self, records: Vec<Record>) -> BoxFuture<'static, Result<(), ClientError>> {
        let (directory, queues) = (self.directory.clone(), self.queues.clone());
        Box::pin(async move {
            let written = tokio::task::spawn_blocking(move || {
                let mut queues = queues.lock();
                records.iter().try_for_each(|record| append(&directory, &mut queues, record))?;
                records.iter().try_for_each(|record| queues[&record.topic].sync().map(drop))
            });
            let written = written.await.map_err(|_| ClientError::Closed)?;
            written.map_err(|error| ClientError::Invalid(error.to_string()))
        })
    }

    fn letter_partitions(&self, _: String, _: Arc<str>) -> BoxFuture<'static, Result<i32, ClientError>> {
        Box::pin(std::future::ready(Ok(1)))
    }
}

fn append(
    directory: &std::path::Path,
    queues: &mut HashMap<Arc<str>, Queue>,
    record: &Record,
) -> Result<(), mainstem_queue::QueueError> {
    let queue = match queues.get(&record.topic) {
        Some(queue) => queue,
        None => {
            let queue = Queue::open(directory.join(&*record.topic))?;
            queues.entry(record.topic.clone()).or_insert(queue)
        }
    };
    let headers: Vec<Header<'_>> = record
        .headers
        .iter()
        .map(|(name, value)| Header { key: name.as_bytes(), value: value.as_deref() })
        .collect();
    let value = record.value.as_deref().unwrap_or_default();
    queue.appender()?.append_with(record.key.as_deref(), value, &headers, record.timestamp_ms)?;
    Ok(())
}

/// The sink of an application that reads streams and has no target for outputs.
pub(crate) struct NoSink;

fn nowhere<T: Send + 'static>() -> BoxFuture<'static, Result<T, ClientError>> {
    let reason = "an application that reads streams has to say where outputs and dead letters go: App::outputs(\"mmap:DIR\"), or \
                  kafka://HOST:PORT";
    Box::pin(std::future::ready(Err(ClientError::Invalid(reason.to_owned()))))
}

impl Sink for NoSink {
    fn write(&self, _: Vec<Record>) -> BoxFuture<'static, Result<(), ClientError>> {
        nowhere()
    }

    fn letter_partitions(&self, _: String, _: Arc<str>) -> BoxFuture<'static, Result<i32, ClientError>> {
        nowhere()
    }
}

/// Implements the conversion of a payload to an event of a journal.
macro_rules! to_event {
    () => {
        fn to_value(&self) -> Result<Bytes, String> {
            let value = self.encode().map_err(|error| error.to_string())?;
            Ok(value.unwrap_or_default())
        }

        fn event_type(&self) -> Option<&str> {
            crate::payload::Encode::event_type(self)
        }
    };
}

impl<T: serde::Serialize> ToEvent for Json<T> {
    to_event!();
}

impl ToEvent for Text {
    to_event!();
}

impl ToEvent for Raw {
    to_event!();
}

#[cfg(feature = "proto")]
impl<T: prost::Message> ToEvent for crate::payload::Proto<T> {
    to_event!();
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;
    use mainstem_direct::SliceRange;
    use mainstem_records::Compression;

    use super::*;

    /// A source whose publisher is away: the test makes the events.
    fn source() -> DirectSource {
        let publishers = Publishers::of_url("grpc://127.0.0.1:1").unwrap().unwrap();
        DirectSource::new("analytics", &publishers, &["cart".to_owned()], Position::Beginning).unwrap()
    }

    fn cart() -> TopicPartition {
        TopicPartition::new("cart", 0)
    }

    /// A frame with so many batches, each of which has a megabyte when it is opened.
    fn frame(count: i64) -> (Vec<u8>, Vec<Range<usize>>) {
        let (mut bytes, mut ranges) = (Vec::new(), Vec::new());
        for base_offset in 0..count {
            let compression = Compression::Gzip;
            let options = BatchOptions { base_offset, compression, ..BatchOptions::default() };
            let mut builder = BatchBuilder::new(options);
            builder.append(1, None, Some(&vec![0; 1 << 20]), &[]).unwrap();
            let start = bytes.len();
            builder.finish(&mut bytes).unwrap();
            ranges.push(start..bytes.len());
        }
        (bytes, ranges)
    }

    fn records(batches: Vec<u8>, ranges: Vec<Range<usize>>) -> ConsumerEvent {
        let next = 1 + ranges.len() as i64;
        ConsumerEvent::Records { assignment: 1, from: 0, next, batches: batches.into(), ranges }
    }

    fn assigned(assignment: u64) -> ConsumerEvent {
        ConsumerEvent::Assigned { assignment, slices: SliceRange::ALL, offset: 0, epoch: 0 }
    }

    /// Returns the next event if there is one without waiting.
    fn next(source: &mut DirectSource) -> Option<Result<Event>> {
        source.next().now_or_never()
    }

    fn next_offset(source: &mut DirectSource) -> i64 {
        match next(source) {
            Some(Ok(Event::Batch(batch))) => batch.next_offset(),
            other => panic!("{other:?}"),
        }
    }

    #[tokio::test]
    async fn batches_of_a_frame_are_opened_when_they_are_taken() {
        let mut source = source();
        source.take(0, assigned(1));
        assert!(matches!(next(&mut source), Some(Ok(Event::Assigned(_)))));
        let (mut batches, ranges) = frame(8);
        // The sixth batch is damaged, which is found when it is opened.
        batches[ranges[5].end - 1] ^= 1;
        source.take(0, records(batches, ranges));
        assert_eq!((next_offset(&mut source), next_offset(&mut source)), (1, 2));
        source.hold(&cart());
        assert!(next(&mut source).is_none(), "it is held");
        source.release(&cart());
        for offset in 3..=5 {
            assert_eq!(next_offset(&mut source), offset);
        }
        assert!(matches!(next(&mut source), Some(Err(Error::Client(ClientError::Damaged { .. })))));
    }

    /// The offset that the publisher is notified of as done.
    fn done(source: &DirectSource) -> Option<i64> {
        source.current.lock().get(&cart()).map(|current| current.done.offset)
    }

    #[tokio::test]
    async fn a_seek_voids_all_that_came_before_and_counts_as_nothing_done() {
        let mut source = source();
        let (batches, ranges) = frame(5);
        source.take(0, assigned(1));
        source.take(0, records(batches, ranges));
        assert!(matches!(next(&mut source), Some(Ok(Event::Assigned(_)))));
        assert_eq!((next_offset(&mut source), next_offset(&mut source)), (1, 2));
        let committer = source.committer();
        // A handler's target of a seek may be committed before the seek. It is no progress: events there were never sent, or done long ago.
        for (committed, is_done) in [(1, 1), (50, 1), (0, 1), (2, 2)] {
            let position = BTreeMap::from([(cart(), CommittedOffset::from(committed))]);
            committer.commit(position).await.unwrap();
            assert_eq!(done(&source), Some(is_done), "{committed}");
        }
        // It is being revoked as well, and the driver has not learned of that.
        source.take(0, ConsumerEvent::Revoking { assignment: 1 });
        source.seek(&cart(), 50);
        assert!(matches!(next(&mut source), Some(Ok(Event::Lost(_, SOUGHT)))));
        assert!(next(&mut source).is_none(), "the publisher is away");
        assert_eq!((done(&source), source.revoking.len()), (None, 0));
        assert!(source.readings[0].consumer.is_none(), "the connection of before brings nothing");
    }

    #[tokio::test]
    async fn what_was_not_taken_goes_with_its_assignment_and_so_does_the_hold() {
        let mut source = source();
        let lost = ConsumerEvent::Lost { assignment: 1, by_reset: false };
        for end in [ConsumerEvent::Revoking { assignment: 1 }, lost] {
            let (batches, ranges) = frame(3);
            source.take(0, assigned(1));
            source.take(0, records(batches.clone(), ranges.clone()));
            assert!(matches!(next(&mut source), Some(Ok(Event::Assigned(_)))));
            assert_eq!(next_offset(&mut source), 1);
            source.hold(&cart());
            source.take(0, end);
            match next(&mut source) {
                Some(Ok(Event::Revoking(number, _))) => source.finish_revocation(number),
                other => assert!(matches!(other, Some(Ok(Event::Lost(..)))), "{other:?}"),
            }
            assert!(next(&mut source).is_none());
            source.take(0, assigned(2));
            source.take(0, records(batches, ranges));
            assert!(matches!(next(&mut source), Some(Ok(Event::Assigned(_)))));
            // The last one says that the rest of the frame has nothing for this instance.
            for offset in 1..=4 {
                assert_eq!(next_offset(&mut source), offset);
            }
            assert!(next(&mut source).is_none());
        }
    }
}
