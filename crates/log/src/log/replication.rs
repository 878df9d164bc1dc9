//! A replicator that is none: it tells the log, late and in any order, what is durable and what is committed, and cuts
//! off what was not. A model says what must be seen.

use super::testing::{Bench, TestBatch, WALL_MS, read_from, resolve};
use crate::sim::SimStorage;
use crate::{EpochEnd, Log, LogConfig, ReadBound};
use mainstem_records::LeaderEpoch;
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::sync::Arc;

#[derive(Debug, Clone)]
enum Event {
    /// Appends `count` records in one batch, by one of three producers.
    Append { count: usize, producer: i64, large: bool },
    /// Decides on the commit index of `behind` records ago, and sends it.
    Commit { behind: i64 },
    /// Delivers any one of the messages on their way.
    Deliver { which: usize },
    /// Begins a sync, unless one runs. The next such event ends it.
    Sync,
    /// Changes the leader: everything behind the high watermark may be cut.
    Depose { keep: i64 },
    /// Runs Kafka's maintenance.
    Maintain,
    /// The process dies and comes back.
    Kill,
}

fn event() -> impl Strategy<Value = Event> {
    prop_oneof![
        8 => (1usize..4, 0i64..3, prop::bool::weighted(0.2))
            .prop_map(|(count, producer, large)| Event::Append { count, producer, large }),
        4 => (0i64..6).prop_map(|behind| Event::Commit { behind }),
        4 => (0usize..8).prop_map(|which| Event::Deliver { which }),
        3 => Just(Event::Sync),
        2 => (0i64..8).prop_map(|keep| Event::Depose { keep }),
        1 => Just(Event::Maintain),
        1 => Just(Event::Kill),
    ]
}

#[derive(Debug, Clone)]
struct Record {
    value: Vec<u8>,
    epoch: i32,
    /// Producer and its sequence number.
    sequence: Option<(i64, i32)>,
    batch: usize,
}

struct Run {
    bench: Bench,
    storage: SimStorage,
    log: Option<Log>,
    records: Vec<Record>,
    /// Messages on their way.
    commits: Vec<i64>,
    committed: i64,
    seen: i64,
    epoch: i32,
    /// The range of offsets that the sync in progress covers, less what was cut since.
    syncing: Option<(i64, i64)>,
    durable: i64,
    batches: usize,
}

impl Run {
    fn new() -> Run {
        let storage = SimStorage::new();
        let config = LogConfig {
            segment_bytes: 1500,
            index_interval_bytes: 300,
            retention_ms: None,
            ..LogConfig::default()
        };
        let bench = Bench::with_storage(Arc::new(storage.clone()), config);
        let (mut log, _) = bench.open("a");
        log.hold_high_watermark(0).expect("it can be read");
        Run {
            bench,
            storage,
            log: Some(log),
            records: Vec::new(),
            commits: Vec::new(),
            committed: 0,
            seen: 0,
            epoch: 0,
            syncing: None,
            durable: 0,
            batches: 0,
        }
    }

    fn log(&mut self) -> &mut Log {
        self.log.as_mut().expect("open")
    }

    fn apply(&mut self, event: &Event) {
        match *event {
            Event::Append { count, producer, large } => self.append(count, producer, large),
            Event::Commit { behind } => {
                let mut offset = (self.records.len() as i64 - behind).max(0) as usize;
                // What is agreed on are whole batches.
                while offset > 0 && offset < self.records.len() && self.in_one_batch(offset) {
                    offset -= 1;
                }
                self.committed = self.committed.max(offset as i64);
                self.commits.push(self.committed);
            }
            Event::Deliver { which } if !self.commits.is_empty() => {
                let which = which % self.commits.len();
                let offset = self.commits.remove(which);
                self.log().set_high_watermark(offset);
                self.seen = self.seen.max(offset);
            }
            Event::Deliver { .. } => {}
            Event::Sync => self.sync(),
            Event::Depose { keep } => self.depose(keep),
            Event::Maintain => {
                self.bench.mono_ms += 1;
                let mono_ms = self.bench.mono_ms;
                self.log().maintain(WALL_MS, mono_ms).expect("maintenance");
            }
            Event::Kill => self.kill(),
        }
    }

    fn in_one_batch(&self, offset: usize) -> bool {
        self.records[offset].batch == self.records[offset - 1].batch
    }

    fn append(&mut self, count: usize, producer: i64, large: bool) {
        let base = self.records.len();
        let size = if large { 400 } else { 20 };
        let values: Vec<_> =
            (0..count).map(|n| format!("{:0size$}", self.batches * 10 + n).into_bytes()).collect();
        let next =
            self.records.iter().rev().find_map(|record| record.sequence.filter(|(id, _)| *id == producer));
        let first = next.map_or(0, |(_, last)| last + 1);
        let mut batch = TestBatch { values: values.clone(), timestamp: WALL_MS, producer: None };
        if producer > 0 {
            batch = batch.by(producer, 0, first);
        }
        let epoch = self.epoch;
        let log = self.log.as_mut().expect("open");
        let appended = self.bench.append_under(log, &batch, epoch).expect("an append");
        assert_eq!((appended.base_offset, appended.duplicate), (base as i64, false));
        self.batches += 1;
        for (n, value) in values.into_iter().enumerate() {
            let sequence = (producer > 0).then_some((producer, first + n as i32));
            self.records.push(Record { value, epoch, sequence, batch: self.batches });
        }
    }

    fn sync(&mut self) {
        match self.syncing.take() {
            None => {
                let work = self.log().flush_work();
                for file in &work.files {
                    file.sync_data().expect("a sync");
                }
                self.syncing = Some((work.upto, work.upto));
            }
            Some((upto, valid)) => {
                self.log().flushed(upto);
                self.durable = self.durable.max(valid);
            }
        }
    }

    /// Cuts at a batch's start, not below what is committed.
    fn depose(&mut self, keep: i64) {
        let mut to = (self.committed + keep).min(self.records.len() as i64) as usize;
        while to > 0 && to < self.records.len() && self.in_one_batch(to) {
            to += 1;
        }
        let mono_ms = self.bench.mono_ms;
        assert_eq!(self.log().truncate_suffix(to as i64, mono_ms).expect("a truncation"), to as i64);
        self.records.truncate(to);
        self.durable = self.durable.min(to as i64);
        self.syncing = self.syncing.map(|(upto, valid)| (upto, valid.min(to as i64)));
        self.epoch += 1;
    }

    fn kill(&mut self) {
        self.log = None;
        self.storage.kill();
        let (mut log, _) = self.bench.open("a");
        log.hold_high_watermark(self.seen).expect("it can be read");
        (self.durable, self.syncing) = (log.ends().durable_end, None);
        self.log = Some(log);
    }

    fn check(&mut self) {
        let seen = self.seen.min(self.records.len() as i64);
        let log = self.log.as_ref().expect("open");
        log.check();
        let (ends, end) = (log.ends(), self.records.len() as i64);
        assert_eq!((ends.log_start, ends.log_end), (0, end));
        assert_eq!((ends.high_watermark, ends.last_stable), (seen, seen));
        assert_eq!(ends.durable_end, self.durable);
        let all = read_from(log, 0);
        // A consumer sees whole batches: those that end at or before the high watermark.
        let readable =
            all.iter().map(|(_, value)| value).eq(self.records[..all.len()].iter().map(|r| &r.value));
        assert!(readable && all.len() as i64 == seen, "{} of {seen}", all.len());
        self.check_tail(log);
        self.check_derived(log);
    }

    /// A replica sees the tail, too.
    fn check_tail(&self, log: &Log) {
        let Some(last) = self.records.last() else { return };
        let from = self.records.iter().rposition(|record| record.batch != last.batch).map_or(0, |at| at + 1);
        let plan = log.read(from as i64, ReadBound::LogEnd, 1 << 20, true).expect("a read");
        let bytes = resolve(plan).expect("the last batch").to_vec().expect("a read");
        let (batch, rest) = mainstem_records::Batch::split_first(&bytes).expect("a batch");
        assert!(rest.is_empty() && batch.verify_crc());
        assert_eq!((batch.base_offset(), batch.next_offset()), (from as i64, self.records.len() as i64));
        assert_eq!(batch.partition_leader_epoch(), last.epoch);
    }

    fn check_derived(&self, log: &Log) {
        let (mut starts, mut last) = (BTreeMap::new(), BTreeMap::new());
        for (offset, record) in self.records.iter().enumerate() {
            starts.entry(record.epoch).or_insert(offset as i64);
            if let Some((producer, sequence)) = record.sequence {
                last.insert(producer, sequence);
            }
        }
        let epochs: Vec<_> =
            log.leader_epochs().entries().iter().map(|e| (e.epoch.get(), e.start_offset)).collect();
        assert_eq!(epochs, starts.iter().map(|(epoch, start)| (*epoch, *start)).collect::<Vec<_>>());
        for (number, (epoch, _)) in epochs.iter().enumerate() {
            let end_offset = epochs.get(number + 1).map_or(self.records.len() as i64, |next| next.1);
            let epoch = LeaderEpoch::new(*epoch);
            assert_eq!(log.end_offset_for_epoch(epoch), EpochEnd { epoch, end_offset });
        }
        let known: BTreeMap<_, _> =
            log.producer_state().iter().map(|(id, producer)| (id.get(), producer.last_sequence())).collect();
        assert_eq!(known, last);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(mainstem_testkit::cases(150)))]

    #[test]
    fn what_is_seen_is_what_was_agreed_on(events in prop::collection::vec(event(), 1..60)) {
        let mut run = Run::new();
        for event in &events {
            run.apply(event);
            run.check();
        }
    }
}
