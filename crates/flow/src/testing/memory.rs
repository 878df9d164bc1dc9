//! Topics in memory, of one partition each, and the member of a group that reads them.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use bytes::Bytes;
use mainstem_client::{CommittedOffset, Error, FetchedBatch, Header, Record, TopicPartition};
use mainstem_records::{BatchBuilder, BatchOptions};
use parking_lot::Mutex;
use tokio::sync::{Notify, oneshot};

use crate::app::AppState;
use crate::transport::{BoxFuture, Commit, Event, Sink, Source};

/// Records of one batch at most.
const BATCH_RECORDS: usize = 100;

/// The state that survives a crash.
pub(crate) struct Memory {
    app: Arc<AppState>,
    state: Mutex<State>,
    changed: Notify,
}

#[derive(Default)]
struct State {
    topics: BTreeMap<String, Log>,
    committed: BTreeMap<TopicPartition, CommittedOffset>,
    is_rebalancing: bool,
    /// Writes that are held; none: each is done at once.
    held: Option<Vec<HeldWrite>>,
    changes: u64,
}

/// Records with the leader epochs that they were written in.
#[derive(Default)]
struct Log {
    records: Vec<Record>,
    epochs: Vec<i32>,
    epoch: i32,
}

/// Records that are not written yet, and the sender that completes the write.
type HeldWrite = (Vec<Record>, oneshot::Sender<()>);

impl Memory {
    pub(crate) fn new(app: Arc<AppState>) -> Memory {
        Memory { app, state: Mutex::default(), changed: Notify::new() }
    }

    pub(super) fn append(&self, mut record: Record) {
        record.timestamp_ms.get_or_insert(self.app.wall_ms());
        let mut state = self.state.lock();
        let log = state.topics.entry(record.topic.to_string()).or_default();
        log.epochs.push(log.epoch);
        log.records.push(record);
        state.changes += 1;
        drop(state);
        self.changed.notify_one();
    }

    pub(super) fn records(&self, topic: &str) -> Vec<Record> {
        self.state.lock().topics.get(topic).map(|log| log.records.clone()).unwrap_or_default()
    }

    pub(super) fn truncate(&self, topic: &str, offset: usize) {
        if let Some(log) = self.state.lock().topics.get_mut(topic) {
            log.records.truncate(offset);
            log.epochs.truncate(offset);
            log.epoch += 1;
        }
    }

    pub(super) fn committed(&self, partition: &TopicPartition) -> Option<CommittedOffset> {
        self.state.lock().committed.get(partition).cloned()
    }

    pub(super) fn rebalance(&self) {
        self.state.lock().is_rebalancing = true;
        self.changed.notify_one();
    }

    pub(super) fn hold_writes(&self, are_held: bool) {
        let held = std::mem::replace(&mut self.state.lock().held, are_held.then(Vec::new));
        for (records, written) in held.into_iter().flatten() {
            records.into_iter().for_each(|record| self.append(record));
            // The write may have been dropped.
            let _ = written.send(());
        }
    }

    pub(super) fn changes(&self) -> u64 {
        self.state.lock().changes
    }
}

impl Sink for Memory {
    fn write(&self, records: Vec<Record>) -> BoxFuture<'static, Result<(), Error>> {
        if let Some(held) = &mut self.state.lock().held {
            let (sender, written) = oneshot::channel();
            held.push((records, sender));
            return Box::pin(async move { written.await.map_err(|_| Error::Closed) });
        }
        records.into_iter().for_each(|record| self.append(record));
        Box::pin(std::future::ready(Ok(())))
    }

    fn close(&self) -> BoxFuture<'static, ()> {
        // Dropping the senders makes the held writes fail.
        self.state.lock().held.iter_mut().for_each(Vec::clear);
        Box::pin(std::future::ready(()))
    }

    fn letter_partitions(&self, _: String, _: Arc<str>) -> BoxFuture<'static, Result<i32, Error>> {
        Box::pin(std::future::ready(Ok(1)))
    }
}

/// Says whether a topic is read.
pub(super) type Matcher = Box<dyn Fn(&str) -> bool + Send>;

/// The one member of the group.
pub(super) struct MemorySource {
    memory: Arc<Memory>,
    is_read: Matcher,
    positions: BTreeMap<TopicPartition, usize>,
    held: BTreeSet<TopicPartition>,
    events: VecDeque<Event>,
    revocations: u64,
    is_revoking: bool,
}

impl MemorySource {
    pub(super) fn new(memory: Arc<Memory>, is_read: Matcher) -> MemorySource {
        MemorySource {
            memory,
            is_read,
            positions: BTreeMap::new(),
            held: BTreeSet::new(),
            events: VecDeque::new(),
            revocations: 0,
            is_revoking: false,
        }
    }

    /// Returns the next event if there is one now.
    fn look(&mut self) -> Option<Event> {
        if let Some(event) = self.events.pop_front() {
            return Some(event);
        }
        let memory = self.memory.clone();
        let mut state = memory.state.lock();
        if std::mem::take(&mut state.is_rebalancing) {
            self.revocations += 1;
            self.is_revoking = true;
            return Some(Event::Revoking(self.revocations, self.positions.keys().cloned().collect()));
        }
        if self.is_revoking {
            return None;
        }
        self.assign(&state).or_else(|| self.fetch(&state))
    }

    /// Topics that are new.
    fn assign(&mut self, state: &State) -> Option<Event> {
        let key = |topic: &String| TopicPartition::new(topic.as_str(), 0);
        let new = state.topics.keys().map(key);
        let new: Vec<_> =
            new.filter(|key| !self.positions.contains_key(key) && (self.is_read)(&key.topic)).collect();
        if new.is_empty() {
            return None;
        }
        let mut assigned = BTreeMap::new();
        for key in new {
            let committed = state.committed.get(&key).cloned();
            let offset = committed.as_ref().map_or(0, |committed| committed.offset);
            self.positions.insert(key.clone(), usize::try_from(offset).unwrap_or(0));
            assigned.insert(key, committed);
        }
        Some(Event::Assigned(assigned))
    }

    fn fetch(&mut self, state: &State) -> Option<Event> {
        for (key, position) in &mut self.positions {
            let Some(log) = state.topics.get(&*key.topic) else { continue };
            if self.held.contains(key) || *position >= log.records.len() {
                continue;
            }
            let epoch = log.epochs[*position];
            let of_epoch = log.epochs[*position..].partition_point(|other| *other == epoch);
            let end = *position + of_epoch.min(BATCH_RECORDS);
            let batch = batch(key, *position, epoch, &log.records[*position..end]);
            *position = end;
            return Some(Event::Batch(batch));
        }
        None
    }
}

/// Records as they would come from a broker.
fn batch(partition: &TopicPartition, base_offset: usize, epoch: i32, records: &[Record]) -> FetchedBatch {
    let base_offset = i64::try_from(base_offset).unwrap_or(i64::MAX);
    let options = BatchOptions { base_offset, partition_leader_epoch: epoch, ..BatchOptions::default() };
    let mut builder = BatchBuilder::new(options);
    for record in records {
        let header = |(name, value): &'_ (String, Option<Bytes>)| (name.clone(), value.clone());
        let owned: Vec<_> = record.headers.iter().map(header).collect();
        let headers: Vec<_> = owned
            .iter()
            .map(|(name, value)| Header { key: name.as_bytes(), value: value.as_deref() })
            .collect();
        let timestamp = record.timestamp_ms.unwrap_or_default();
        let added = builder.append(timestamp, record.key.as_deref(), record.value.as_deref(), &headers);
        added.expect("a test's records are small");
    }
    let bytes = builder.build().expect("a test's batches are small");
    FetchedBatch::from_bytes(partition.clone(), bytes.into()).expect("it was just built")
}

impl Source for MemorySource {
    async fn next(&mut self) -> crate::Result<Event> {
        loop {
            if let Some(event) = self.look() {
                return Ok(event);
            }
            let memory = self.memory.clone();
            memory.changed.notified().await;
        }
    }

    fn hold(&mut self, partition: &TopicPartition) {
        self.held.insert(partition.clone());
    }

    fn release(&mut self, partition: &TopicPartition) {
        self.held.remove(partition);
    }

    fn seek(&mut self, partition: &TopicPartition, offset: i64) {
        if let Some(position) = self.positions.get_mut(partition) {
            *position = usize::try_from(offset).unwrap_or(0);
        }
    }

    fn end(&self, partition: &TopicPartition) -> Option<i64> {
        let state = self.memory.state.lock();
        let log = state.topics.get(&*partition.topic)?;
        i64::try_from(log.records.len()).ok()
    }

    fn committer(&self) -> Arc<dyn Commit> {
        Arc::new(MemoryCommit(self.memory.clone()))
    }

    fn finish_revocation(&mut self, _: u64) {
        self.is_revoking = false;
        self.positions.clear();
        self.held.clear();
    }

    async fn leave(self) {}
}

struct MemoryCommit(Arc<Memory>);

impl Commit for MemoryCommit {
    fn commit(
        &self,
        positions: BTreeMap<TopicPartition, CommittedOffset>,
    ) -> BoxFuture<'static, Result<BTreeSet<TopicPartition>, Error>> {
        let mut state = self.0.state.lock();
        state.committed.extend(positions);
        state.changes += 1;
        Box::pin(std::future::ready(Ok(BTreeSet::new())))
    }
}
