//! The partitions that a consumer reads: the position in each, and the batches that arrived and were not taken yet.
//!
//! Pure: answers go in; batches, and the next requests, come out. Reading ahead is a second offset for each partition:
//! `fetch` is the offset after all that has arrived, `position` the offset after all that was taken. An error at `fetch`
//! waits until the records before it are taken.

use std::collections::{BTreeMap, VecDeque};

use bytes::Bytes;
use mainstem_records::Scratch;
use mainstem_wire::Uuid;

use super::batch::FetchedBatch;
use super::chunk::{Arrived, Chunk};
use super::config::{ConsumerConfig, Isolation, OutOfRange, Position};
use super::session::Wanted;
use crate::error::Error;
use crate::topic_partition::TopicPartition;

/// The partitions of a consumer.
#[derive(Debug, Default)]
pub(crate) struct Assignment {
    partitions: BTreeMap<TopicPartition, Progress>,
    /// Chunks that have arrived, oldest first.
    chunks: VecDeque<Chunk>,
    buffered_bytes: usize,
    /// Errors that no caller has had yet.
    failures: VecDeque<Error>,
    generations: u64,
}

#[derive(Debug)]
struct Progress {
    /// Changes with every seek: answers to requests from before it are ignored.
    generation: u64,
    state: State,
    is_paused: bool,
    /// Chunks of a held partition, oldest first. They do not count towards the consumer's bound, so that a held partition
    /// stops no other. None: it is not held.
    held: Option<VecDeque<Chunk>>,
    /// The bytes of all chunks of the partition.
    buffered_bytes: usize,
    /// The offset after the last record that may be read, as of the last answer.
    end_offset: Option<i64>,
    /// The id of the topic that is read; zero before the first look, and if the brokers report none.
    topic_id: Uuid,
    /// The newest epoch of a leader under which the offsets are known to hold; -1 before the first.
    leader_epoch: i32,
    /// True if a leader is being asked whether they hold under a newer epoch, or has to be asked (KIP-320).
    check: Check,
    /// The outcome to return after all batches that arrived were taken; nothing is fetched meanwhile.
    pending: Option<Outcome>,
}

/// The reason why a partition is not read on at its position.
#[derive(Debug)]
enum Outcome {
    /// The error was returned, and nothing is read until a seek.
    Failed(Error),
    /// Reading continues at this position; the error gives the reason.
    Moved(Position, Error),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Check {
    NotNeeded,
    Due,
    Asked,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// The offset has to be asked for.
    Unlocated(Position),
    /// The offset is being asked for.
    Locating(Position),
    /// Offsets are known.
    Reading { position: FetchPosition, fetch: FetchPosition },
    /// An error was returned; only a seek helps. What was taken before it can still be committed: the position is kept, if
    /// there was one.
    Failed(Option<FetchPosition>),
}

impl Progress {
    /// Starts over at another position. A paused or held partition stays so; arrived chunks are dropped.
    fn replace(&mut self, next: Progress) {
        let held = self.held.as_ref().map(|_| VecDeque::new());
        *self = Progress { is_paused: self.is_paused, held, ..next };
    }
}

impl State {
    /// The offset after all that was taken, if that is known.
    fn position(&self) -> Option<FetchPosition> {
        match *self {
            State::Reading { position, .. } => Some(position),
            State::Failed(position) => position,
            State::Unlocated(_) | State::Locating(_) => None,
        }
    }
}

/// An offset, and the epoch of the leader that wrote the record before it; -1 if that is not known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct FetchPosition {
    pub(crate) offset: i64,
    pub(crate) epoch: i32,
}

/// The position at which to begin with a partition.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Start {
    pub(crate) position: Position,
    /// As the epoch of [`FetchPosition`], for a position that is an offset.
    pub(crate) epoch: i32,
}

impl From<Position> for Start {
    fn from(position: Position) -> Start {
        Start { position, epoch: UNKNOWN_EPOCH }
    }
}

/// Offsets whose records may be others under a new leader.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct EpochValidation {
    pub(crate) key: TopicPartition,
    pub(crate) generation: u64,
    /// The epoch of the leader that is to be asked.
    pub(crate) leader_epoch: i32,
    /// The epoch of the last record.
    pub(crate) epoch: i32,
}

/// A partition that more is wanted of, from an offset on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct WantedFetch<'a> {
    pub(crate) key: &'a TopicPartition,
    pub(crate) offset: i64,
    pub(crate) generation: u64,
}

const UNKNOWN_EPOCH: i32 = -1;

/// An offset to be asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct OffsetLookup {
    pub(crate) key: TopicPartition,
    pub(crate) generation: u64,
    pub(crate) position: Position,
}

/// The outcome of [`Assignment::take`].
#[derive(Debug)]
pub(crate) struct Taken {
    pub(crate) batch: Option<Result<Unopened, Error>>,
    /// True if memory was freed: the fetcher can ask for more.
    pub(crate) has_freed_memory: bool,
}

/// A batch that was taken, before its checksum is verified and its records are decompressed. That is done without a lock;
/// [`Assignment::opened`] gets the outcome.
#[derive(Debug)]
pub(crate) struct Unopened {
    key: TopicPartition,
    generation: u64,
    topic_id: Uuid,
    bytes: Bytes,
    /// Records before this offset were not asked for.
    first_offset: i64,
    /// The base offset of the next batch, if it came too.
    following: Option<i64>,
}

impl Unopened {
    /// Verifies and decompresses it; the error says at which offset reading can continue.
    pub(crate) fn open(&self, config: &ConsumerConfig, scratch: &mut Scratch) -> Result<FetchedBatch, Error> {
        let (key, bytes) = (self.key.clone(), self.bytes.clone());
        FetchedBatch::open(key, bytes, self.first_offset, config.decompressed_bytes_max, scratch)
            .map(|batch| batch.of_topic(self.topic_id))
            .map_err(|error| ending_at(error, self.following))
    }
}

impl Assignment {
    /// Reads these partitions and no others. Partitions that were read already keep their position.
    pub(crate) fn assign(&mut self, partitions: impl IntoIterator<Item = (TopicPartition, Start)>) {
        let mut before = std::mem::take(&mut self.partitions);
        for (key, start) in partitions {
            let kept = before.remove(&key);
            let progress = kept.unwrap_or_else(|| self.begin(start));
            self.partitions.insert(key, progress);
        }
        self.drop_stale();
    }

    fn begin(&mut self, start: Start) -> Progress {
        Progress {
            generation: self.next_generation(),
            state: begin_at(start),
            is_paused: false,
            held: None,
            buffered_bytes: 0,
            end_offset: None,
            topic_id: Uuid::ZERO,
            leader_epoch: UNKNOWN_EPOCH,
            check: Check::NotNeeded,
            pending: None,
        }
    }

    fn next_generation(&mut self) -> u64 {
        self.generations += 1;
        self.generations
    }

    /// Continues at another position.
    pub(crate) fn seek(&mut self, key: &TopicPartition, position: Position) -> Result<(), Error> {
        self.restart(key, position.into())
    }

    fn restart(&mut self, key: &TopicPartition, start: Start) -> Result<(), Error> {
        let next = self.begin(start);
        let progress = self.progress_mut(key)?;
        // It is the partition's, not the position's: a broker whose session has sent it before does not send it again (KIP-227).
        let end_offset = progress.end_offset;
        progress.replace(Progress { end_offset, ..next });
        self.drop_stale();
        Ok(())
    }

    /// Holds a partition: takes nothing more from it, and keeps the chunks that were read ahead. Or releases it.
    pub(crate) fn set_held(&mut self, key: &TopicPartition, is_held: bool) -> Result<(), Error> {
        let progress = self.partitions.get_mut(key).ok_or_else(|| not_assigned(key))?;
        match (is_held, progress.held.take()) {
            (true, None) => {
                let all = std::mem::take(&mut self.chunks).into_iter();
                let (held, others): (VecDeque<_>, VecDeque<_>) = all.partition(|chunk| chunk.key == *key);
                self.buffered_bytes -= held.iter().map(|chunk| chunk.size).sum::<usize>();
                (progress.held, self.chunks) = (Some(held), others);
            }
            (true, held) => progress.held = held,
            (false, None) => {}
            (false, Some(held)) => {
                self.buffered_bytes += held.iter().map(|chunk| chunk.size).sum::<usize>();
                // These chunks have waited for longest.
                held.into_iter().rev().for_each(|chunk| self.chunks.push_front(chunk));
            }
        }
        Ok(())
    }

    /// Pauses a partition: stops reading it, and drops the chunks that were read ahead. Or resumes it.
    pub(crate) fn set_paused(&mut self, key: &TopicPartition, is_paused: bool) -> Result<(), Error> {
        let generation = self.next_generation();
        let progress = self.progress_mut(key)?;
        progress.is_paused = is_paused;
        if is_paused {
            progress.generation = generation;
            progress.buffered_bytes = 0;
            progress.held.iter_mut().for_each(VecDeque::clear);
            // A pending outcome was about the place after the records that are dropped now.
            progress.pending = None;
            progress.state = match progress.state {
                State::Reading { position, .. } => State::Reading { position, fetch: position },
                State::Locating(position) => State::Unlocated(position),
                state => state,
            };
            // The answer to the request under way would be one about another generation.
            progress.check = match (progress.check, progress.state) {
                (Check::NotNeeded, _) => Check::NotNeeded,
                (_, State::Reading { position, .. }) if position.epoch != UNKNOWN_EPOCH => Check::Due,
                _ => Check::NotNeeded,
            };
            self.drop_stale();
        }
        Ok(())
    }

    /// The offset of the next record that is handed out; none until it was asked for.
    pub(crate) fn position(&self, key: &TopicPartition) -> Result<Option<i64>, Error> {
        let progress = self.partitions.get(key).ok_or_else(|| not_assigned(key))?;
        Ok(progress.state.position().map(|position| position.offset))
    }

    /// The epoch of the leader that wrote the record before an offset, if that is the position; -1 otherwise.
    pub(crate) fn epoch_at(&self, key: &TopicPartition, offset: i64) -> i32 {
        let position = self.partitions.get(key).and_then(|progress| progress.state.position());
        position.filter(|position| position.offset == offset).map_or(UNKNOWN_EPOCH, |position| position.epoch)
    }

    /// The number of offsets between the position and the end, as of the last answer.
    pub(crate) fn lag(&self, key: &TopicPartition) -> Result<Option<i64>, Error> {
        let position = self.position(key)?;
        let end = self.partitions.get(key).and_then(|progress| progress.end_offset);
        Ok(position.zip(end).map(|(position, end)| end.saturating_sub(position).max(0)))
    }

    /// The partitions that are read.
    pub(crate) fn keys(&self) -> impl Iterator<Item = &TopicPartition> {
        self.partitions.keys()
    }

    fn progress_mut(&mut self, key: &TopicPartition) -> Result<&mut Progress, Error> {
        self.partitions.get_mut(key).ok_or_else(|| not_assigned(key))
    }

    /// Drops chunks of partitions that are not read any more, or are read at another position.
    fn drop_stale(&mut self) {
        let partitions = &self.partitions;
        let is_current =
            |chunk: &Chunk| partitions.get(&chunk.key).is_some_and(|now| now.generation == chunk.generation);
        let (kept, stale) = std::mem::take(&mut self.chunks).into_iter().partition(is_current);
        self.chunks = kept;
        let stale: VecDeque<Chunk> = stale;
        self.buffered_bytes -= stale.iter().map(|chunk| chunk.size).sum::<usize>();
    }

    /// The next visible batch, in the order of arrival. It counts as taken once it is [opened](Assignment::opened).
    pub(crate) fn take(&mut self) -> Taken {
        let mut has_freed_memory = false;
        loop {
            if let Some(error) = self.failures.pop_front() {
                return Taken { batch: Some(Err(error)), has_freed_memory };
            }
            let Some(chunk) = self.chunks.front_mut() else { return Taken { batch: None, has_freed_memory } };
            let Some(bytes) = chunk.next() else {
                has_freed_memory = true;
                self.finish_first();
                continue;
            };
            let (key, generation, topic_id) = (chunk.key.clone(), chunk.generation, chunk.topic_id);
            let following = chunk.following();
            let State::Reading { position, .. } = self.partitions[&key].state else {
                unreachable!("what is not read has no chunks")
            };
            let first_offset = position.offset;
            let unopened = Unopened { key, generation, topic_id, bytes, first_offset, following };
            return Taken { batch: Some(Ok(unopened)), has_freed_memory };
        }
    }

    /// Takes the outcome of opening a batch. If it failed, its partition is not read any more until a seek. Returns none if
    /// the batch is not to be handed out: it has nothing at or after the position, or reading has moved meanwhile.
    pub(crate) fn opened(
        &mut self,
        unopened: Unopened,
        outcome: Result<FetchedBatch, Error>,
    ) -> Option<Result<FetchedBatch, Error>> {
        let key = &unopened.key;
        self.current(key, unopened.generation)?;
        match outcome {
            Ok(batch) if batch.next_offset() <= batch.first_offset() => None,
            Ok(batch) => {
                self.advance(key, FetchPosition { offset: batch.next_offset(), epoch: batch.leader_epoch() });
                Some(Ok(batch))
            }
            Err(error) => {
                self.stop(key);
                Some(Err(error))
            }
        }
    }

    fn advance(&mut self, key: &TopicPartition, next: FetchPosition) {
        if let Some(Progress { state: State::Reading { position, .. }, .. }) = self.partitions.get_mut(key)
            && next.offset > position.offset
        {
            *position = next;
        }
    }

    /// Removes the first chunk, which is used up, and moves the position past invisible batches at its end.
    fn finish_first(&mut self) {
        let Some(chunk) = self.chunks.pop_front() else { return };
        self.buffered_bytes -= chunk.size;
        if let Some(progress) = self.partitions.get_mut(&chunk.key) {
            progress.buffered_bytes -= chunk.size;
        }
        self.advance(&chunk.key, chunk.next);
        self.do_pending(&chunk.key);
    }

    /// Stops reading a partition at its position. Records that have arrived from before that place are handed out first:
    /// they may be gone when they are asked for again.
    fn end_with(&mut self, key: &TopicPartition, outcome: Outcome) {
        if let Some(progress) = self.partitions.get_mut(key) {
            progress.pending.get_or_insert(outcome);
        }
        self.do_pending(key);
    }

    /// Carries out the pending outcome of a partition of which nothing is left to be taken.
    fn do_pending(&mut self, key: &TopicPartition) {
        let drained = self.partitions.get_mut(key).filter(|one| one.buffered_bytes == 0);
        match drained.and_then(|one| one.pending.take()) {
            None => {}
            Some(Outcome::Failed(error)) => self.fail_now(key, error),
            Some(Outcome::Moved(position, error)) => {
                tracing::warn!("{error}; going on at {position:?}");
                self.seek(key, position).expect("it is assigned");
            }
        }
    }

    /// Returns an error without handing out the records that have arrived.
    fn fail_now(&mut self, key: &TopicPartition, error: Error) {
        self.failures.push_back(error);
        self.stop(key);
    }

    /// Reads nothing more of a partition until a seek, after an error that was or will be returned.
    fn stop(&mut self, key: &TopicPartition) {
        let next = self.begin(Position::End.into());
        if let Some(progress) = self.partitions.get_mut(key) {
            let state = State::Failed(progress.state.position());
            progress.replace(Progress { state, ..next });
        }
        self.drop_stale();
    }

    /// Offsets that have to be asked for, of partitions with a known leader. They count as being asked for from now on.
    pub(crate) fn locate<L>(
        &mut self,
        mut lead: impl FnMut(&TopicPartition) -> Option<L>,
    ) -> Vec<(L, OffsetLookup)> {
        let mut wanted = Vec::new();
        for (key, progress) in &mut self.partitions {
            let State::Unlocated(position) = progress.state else { continue };
            let Some(lead) = lead(key) else { continue };
            progress.state = State::Locating(position);
            wanted.push((lead, OffsetLookup { key: key.clone(), generation: progress.generation, position }));
        }
        wanted
    }

    /// Takes the answer to a lookup. Without an offset it has to be asked for again.
    pub(crate) fn located(&mut self, asked: &OffsetLookup, offset: Option<i64>) {
        let Some(progress) = self.current(&asked.key, asked.generation) else { return };
        progress.state = match offset {
            Some(offset) => begin_at(Position::Offset(offset).into()),
            None => State::Unlocated(asked.position),
        };
    }

    /// Fails a partition whose lookup was refused for good, or which cannot be read. The error is returned after all records
    /// that have arrived.
    pub(crate) fn fail(&mut self, key: &TopicPartition, generation: u64, error: Error) {
        if self.current(key, generation).is_some() {
            self.end_with(key, Outcome::Failed(error));
        }
    }

    /// Fails all partitions of a topic that is refused.
    pub(crate) fn fail_topic(&mut self, topic: &str, error: &Error) {
        let of_topic = |(key, one): (&TopicPartition, &Progress)| {
            let is_read = &*key.topic == topic && !matches!(one.state, State::Failed(_));
            is_read.then(|| (key.clone(), one.generation))
        };
        let concerned: Vec<_> = self.partitions.iter().filter_map(of_topic).collect();
        for (key, generation) in concerned {
            self.fail(&key, generation, error.clone());
        }
    }

    fn current(&mut self, key: &TopicPartition, generation: u64) -> Option<&mut Progress> {
        self.partitions.get_mut(key).filter(|progress| progress.generation == generation)
    }

    /// Partitions of which more is wanted.
    pub(crate) fn wanted(&self, config: &ConsumerConfig) -> Vec<WantedFetch<'_>> {
        if self.buffered_bytes >= config.prefetch_bytes {
            return Vec::new();
        }
        let part = usize::try_from(config.partition_bytes_max).expect("the configuration was checked");
        let is_wanted = |one: &Progress| {
            !one.is_paused
                && one.held.is_none()
                && one.check == Check::NotNeeded
                && one.pending.is_none()
                && one.buffered_bytes < part
        };
        self.partitions
            .iter()
            .filter(|(_, one)| is_wanted(one))
            .filter_map(|(key, one)| match one.state {
                State::Reading { fetch, .. } => {
                    Some(WantedFetch { key, offset: fetch.offset, generation: one.generation })
                }
                _ => None,
            })
            .collect()
    }

    /// Takes the topic ids and leader epochs of partitions. Under a newer epoch a leader has to be asked whether the offsets
    /// still hold, if the epoch of the last record is known (KIP-320). Offsets of a topic with another id than before hold no
    /// more, however long it is (KIP-516): returns true if there are such.
    pub(crate) fn lead(
        &mut self,
        lead: impl Fn(&TopicPartition) -> Option<(Uuid, i32)>,
        then: OutOfRange,
    ) -> bool {
        let mut recreated = Vec::new();
        for (key, one) in &mut self.partitions {
            let State::Reading { fetch, .. } = one.state else { continue };
            let Some((topic_id, newer)) = lead(key) else { continue };
            if !topic_id.is_zero() {
                let before = std::mem::replace(&mut one.topic_id, topic_id);
                if before != topic_id && !before.is_zero() {
                    one.end_offset = None;
                    recreated.push((key.clone(), fetch.offset));
                    continue;
                }
            }
            if newer > one.leader_epoch {
                one.leader_epoch = newer;
                // An answer to a request under the epoch before is ignored.
                one.check = if fetch.epoch == UNKNOWN_EPOCH { Check::NotNeeded } else { Check::Due };
            }
        }
        let has_any = !recreated.is_empty();
        for (key, offset) in recreated {
            let error = Error::TopicRecreated { partition: key.clone(), offset };
            self.end_with(&key, outside(error, then));
        }
        has_any
    }

    /// The epoch validations that leaders have to be asked for, if the leader is known; they count as being asked from now on.
    pub(crate) fn due_validations<L>(
        &mut self,
        mut lead: impl FnMut(&TopicPartition) -> Option<L>,
    ) -> Vec<(L, EpochValidation)> {
        let mut validations = Vec::new();
        for (key, one) in self.partitions.iter_mut().filter(|(_, one)| one.check == Check::Due) {
            let State::Reading { fetch, .. } = one.state else { continue };
            let Some(lead) = lead(key) else { continue };
            one.check = Check::Asked;
            let (generation, leader_epoch) = (one.generation, one.leader_epoch);
            validations.push((
                lead,
                EpochValidation { key: key.clone(), generation, leader_epoch, epoch: fetch.epoch },
            ));
        }
        validations
    }

    /// Takes the answer of a leader: the newest epoch that is not newer than that of the last record, and its end offset. Both are
    /// -1 if the leader knows none. Without an answer it has to be asked again.
    pub(crate) fn settled(
        &mut self,
        validation: &EpochValidation,
        end: Option<FetchPosition>,
        then: OutOfRange,
    ) {
        let Some(one) = self.current(&validation.key, validation.generation) else { return };
        if one.leader_epoch != validation.leader_epoch || one.check != Check::Asked {
            return;
        }
        let State::Reading { position, fetch } = one.state else { return };
        match end {
            None => one.check = Check::Due,
            Some(end) if end.epoch != UNKNOWN_EPOCH && end.offset >= fetch.offset => {
                one.check = Check::NotNeeded
            }
            // Records that were read ahead are gone, but the caller has not taken them.
            Some(end) if end.epoch != UNKNOWN_EPOCH && end.offset >= position.offset => {
                self.go_back(&validation.key, position);
            }
            Some(end) => self.truncated(validation, position.offset, end, then),
        }
    }

    /// Reads again from a place; the leader is known.
    fn go_back(&mut self, key: &TopicPartition, to: FetchPosition) {
        let leader_epoch = self.partitions.get(key).map_or(UNKNOWN_EPOCH, |one| one.leader_epoch);
        let start = Start { position: Position::Offset(to.offset), epoch: to.epoch };
        self.restart(key, start).expect("it is assigned");
        self.partitions.get_mut(key).expect("it is assigned").leader_epoch = leader_epoch;
    }

    /// Handles the loss of records that were taken.
    fn truncated(&mut self, validation: &EpochValidation, offset: i64, end: FetchPosition, then: OutOfRange) {
        let diverges_at = (end.epoch != UNKNOWN_EPOCH).then_some(end.offset);
        let error = Error::Truncated { partition: validation.key.clone(), offset, diverges_at };
        if then == OutOfRange::Fail {
            // The chunks that have arrived came after the lost records.
            return self.fail_now(&validation.key, error);
        }
        tracing::warn!("{error}; going on there");
        match (diverges_at, then) {
            (Some(_), _) => self.go_back(&validation.key, end),
            (None, OutOfRange::End) => self.seek(&validation.key, Position::End).expect("it is assigned"),
            (None, _) => self.seek(&validation.key, Position::Beginning).expect("it is assigned"),
        }
    }

    /// Takes what a broker sent for a partition.
    pub(crate) fn arrived(
        &mut self,
        key: &TopicPartition,
        asked: &Wanted,
        arrived: Arrived,
        isolation: Isolation,
    ) {
        let Some(progress) = self.current(key, asked.generation) else { return };
        let State::Reading { fetch, .. } = &mut progress.state else { return };
        // In the midst of an upgrade an older broker sends no ids. The pending outcome may be that the topic is another one.
        let tells_none = asked.topic_id.is_zero() && progress.pending.is_none();
        let is_of_another_topic =
            !progress.topic_id.is_zero() && asked.topic_id != progress.topic_id && !tells_none;
        if fetch.offset != asked.offset || is_of_another_topic {
            return;
        }
        if progress.check == Check::NotNeeded {
            // Another leader has given another answer for this place.
            progress.pending = None;
        }
        progress.end_offset = Some(arrived.end_offset);
        match Chunk::open(key.clone(), asked, isolation, arrived) {
            Ok(None) => {}
            Ok(Some(chunk)) => {
                if chunk.next.offset > fetch.offset {
                    *fetch = chunk.next;
                }
                progress.buffered_bytes += chunk.size;
                match &mut progress.held {
                    Some(held) => held.push_back(chunk),
                    None => {
                        self.buffered_bytes += chunk.size;
                        self.chunks.push_back(chunk);
                    }
                }
            }
            Err(error) => {
                let (partition, offset, reason) = (key.clone(), asked.offset, error.to_string());
                let error = Error::Damaged { partition, offset, next_offset: None, reason };
                self.fail(key, asked.generation, error);
            }
        }
    }

    /// Handles that the offset to read does not exist.
    pub(crate) fn out_of_range(
        &mut self,
        key: &TopicPartition,
        asked: &Wanted,
        error: Error,
        then: OutOfRange,
    ) {
        let is_current = self.current(key, asked.generation).is_some_and(
            |one| matches!(one.state, State::Reading { fetch, .. } if fetch.offset == asked.offset),
        );
        if is_current {
            self.end_with(key, outside(error, then));
        }
    }
}

/// The outcome for a position that does not exist.
fn outside(error: Error, then: OutOfRange) -> Outcome {
    match then {
        OutOfRange::Fail => Outcome::Failed(error),
        OutOfRange::Beginning => Outcome::Moved(Position::Beginning, error),
        OutOfRange::End => Outcome::Moved(Position::End, error),
    }
}

fn begin_at(start: Start) -> State {
    match start.position {
        Position::Offset(offset) => {
            let place = FetchPosition { offset, epoch: start.epoch };
            State::Reading { position: place, fetch: place }
        }
        position => State::Unlocated(position),
    }
}

/// Lets a damaged batch end where the next one begins, if that came too: its own header may be damaged as well.
fn ending_at(error: Error, following: Option<i64>) -> Error {
    match (error, following) {
        (Error::Damaged { partition, offset, reason, .. }, Some(next)) if next > offset => {
            Error::Damaged { partition, offset, next_offset: Some(next), reason }
        }
        (error, _) => error,
    }
}

fn not_assigned(key: &TopicPartition) -> Error {
    Error::Invalid(format!("{key} is not assigned to this consumer; assign it first"))
}

#[cfg(test)]
#[path = "assignment/tests.rs"]
mod tests;
