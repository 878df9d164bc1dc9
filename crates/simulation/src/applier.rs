//! The applied state of a simulated node, in place of the metadata image of a real one: all values by their offsets. The node writes
//! snapshots of it and removes the log before them. It fetches the leader's snapshot when the leader's log starts after its own end.

use crate::node::read_records;
use mainstem_log::sim::SimStorage;
use mainstem_log::storage::{Storage, read_small_file};
use mainstem_replication::Replica;
use mainstem_replication::journal::Start;
use mainstem_replication::snapshots::{
    Receiving, SNAPSHOT_BYTES_MAX, SnapshotContent, SnapshotFile, SnapshotOffer, Snapshots, read_range,
};
use mainstem_runtime::clock::Clock;
use mainstem_store::partition::Partition;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Number of records after which a snapshot is due.
const RECORDS_BETWEEN: i64 = 40;
/// Bytes of its log that a leader keeps for slow voters.
const LOG_BYTES_MAX: u64 = 12_000;
/// Bytes of a snapshot in one answer, at most.
const RANGE_BYTES: u32 = 500;
/// Timeout of a request, in ms.
const ANSWER_MAX_MS: u64 = 400;
/// Delay before a failed step is tried again, in ms.
const RETRY_MS: u64 = 300;
/// Interval between two looks at the log, in ms.
const LOOK_MS: u64 = 50;
/// Bytes of a value and its offset.
const VALUE_BYTES: usize = 16;

/// A request for a range of a snapshot.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Asked {
    end_offset: i64,
    epoch: i32,
    position: u64,
    len: u32,
}

/// The answer to [`Asked`]. Its bytes are `None` if there is no such snapshot.
#[derive(Debug, Clone)]
pub(crate) struct Range {
    asked: Asked,
    bytes: Option<Vec<u8>>,
}

/// The applied values, and the snapshots of them.
pub(crate) struct Applier {
    /// The directory of the partition.
    dir: PathBuf,
    storage: Arc<dyn Storage>,
    snapshots: Snapshots,
    values: Vec<(i64, u64)>,
    /// Everything below is applied.
    next: i64,
    offered: Option<SnapshotOffer>,
    receiving: Option<Receiving>,
    /// Time of the next request, at the earliest.
    ask_at_ms: u64,
    look_at_ms: u64,
    restored: usize,
}

impl Applier {
    /// Begins with the newest snapshot. The log has to reach back to its end.
    pub(crate) fn open(storage: &SimStorage, replica: &mut Replica) -> Applier {
        let storage: Arc<dyn Storage> = Arc::new(storage.clone());
        let ends = replica.log().ends();
        let dir = replica.log().path().to_owned();
        let snapshots = Snapshots::open(storage.clone(), &dir, ends.log_end);
        let snapshots = snapshots.expect("the snapshots are listed");
        let mut applier = Applier {
            dir,
            storage,
            snapshots,
            values: Vec::new(),
            next: 0,
            offered: None,
            receiving: None,
            ask_at_ms: 0,
            look_at_ms: 0,
            restored: 0,
        };
        // Among them may be a received snapshot that was never used, since the log got there by itself.
        while let Some(file) = applier.snapshots.files().last().cloned() {
            let Some(at) = replica.entry_before(file.end_offset) else {
                applier.snapshots.distrust(&file);
                continue;
            };
            let bytes = applier.read(&file).expect("a snapshot that has its name is whole");
            applier.load(file.end_offset, &bytes);
            replica.offer_snapshot(Some(SnapshotContent::of(at, &bytes)));
            break;
        }
        let (start, next) = (ends.log_start, applier.next);
        assert!(start <= next, "the log starts at {start}, and a snapshot holds what is below {next}");
        let has_offer = replica.start().index == 0 || replica.has_offer();
        assert!(has_offer, "nothing is here for replicas that need what the log has not");
        applier
    }

    fn read(&self, file: &SnapshotFile) -> io::Result<Vec<u8>> {
        read_small_file(&*self.storage, &file.path, SNAPSHOT_BYTES_MAX as usize)
    }

    fn load(&mut self, end_offset: i64, bytes: &[u8]) {
        assert!(bytes.len().is_multiple_of(VALUE_BYTES), "{} bytes", bytes.len());
        let number = |bytes: &[u8]| u64::from_be_bytes(bytes.try_into().expect("8 bytes"));
        let pairs = bytes.chunks_exact(VALUE_BYTES);
        self.values = pairs.map(|pair| (number(&pair[..8]) as i64, number(&pair[8..]))).collect();
        self.next = end_offset;
    }

    fn encode(&self) -> Vec<u8> {
        let pairs = self.values.iter();
        pairs.flat_map(|(offset, value)| [offset.to_be_bytes(), value.to_be_bytes()].concat()).collect()
    }

    /// Applied values with these offsets.
    pub(crate) fn values(&self, offsets: std::ops::Range<i64>) -> impl Iterator<Item = (i64, u64)> {
        self.values.iter().copied().filter(move |(offset, _)| offsets.contains(offset))
    }

    /// Number of snapshots that replaced the log since the last call.
    pub(crate) fn take_restored(&mut self) -> usize {
        std::mem::take(&mut self.restored)
    }

    /// Takes note of a snapshot that the leader has.
    pub(crate) fn note_offer(&mut self, offer: SnapshotOffer) {
        if self.offered.as_ref() != Some(&offer) {
            (self.offered, self.receiving, self.ask_at_ms) = (Some(offer), None, 0);
        }
    }

    /// Loads the snapshot behind which the log begins now.
    fn take_over(&mut self, start: Start) {
        let file = self.snapshots.files().last().cloned().expect("there is what was restored");
        assert_eq!(file.end_offset, start.offset, "the log begins behind another snapshot");
        let bytes = self.read(&file).expect("it can be read");
        self.load(start.offset, &bytes);
        self.restored += 1;
        // If the older files cannot be removed now, the next call removes them.
        let _ = self.snapshots.remove_old(start.offset);
    }

    pub(crate) fn pass_time(&mut self, partition: &Partition, clock: &Clock) {
        let now_ms = clock.mono_ms();
        if now_ms < self.look_at_ms {
            return;
        }
        self.look_at_ms = now_ms + LOOK_MS;
        let Ok(ends) = partition.ends() else { return };
        if ends.high_watermark > self.next {
            if ends.log_start > self.next {
                // A snapshot has replaced this part of the log and is loaded first.
                return;
            }
            let new = self.next..ends.high_watermark;
            let read = partition.with_replica_by_hand(|replica| read_records(replica.log(), new));
            self.values.extend(read.expect("it takes part"));
            self.next = ends.high_watermark;
        }
        let last = self.snapshots.files().last().map_or(0, |file| file.end_offset);
        if self.next < last + RECORDS_BETWEEN {
            return;
        }
        if let Err(error) = self.write(partition, clock) {
            tracing::debug!(%error, "no snapshot");
        }
    }

    /// Writes a snapshot, and removes the log before the previous snapshot, as a node does with its metadata.
    fn write(&mut self, partition: &Partition, clock: &Clock) -> Result<(), Box<dyn std::error::Error>> {
        let Some(at) = partition.remember_entry_before(self.next)? else { return Ok(()) };
        if !partition.may_end_snapshot(at) {
            return Ok(());
        }
        let content = self.snapshots.write(at, &self.encode())?;
        partition.offer_snapshot(content);
        let log_start = partition.give_up_log(&self.snapshots.ends(), LOG_BYTES_MAX, clock)?;
        self.snapshots.remove_old(log_start)?;
        Ok(())
    }

    /// The request that is due now, if any.
    pub(crate) fn ask(&mut self, now_ms: u64) -> Option<Asked> {
        let offer = self.offered.as_ref().filter(|_| now_ms >= self.ask_at_ms)?;
        if self.receiving.is_none() {
            match self.snapshots.receive(offer.clone()) {
                Ok(receiving) => self.receiving = Some(receiving),
                Err(_) => {
                    self.ask_at_ms = now_ms + RETRY_MS;
                    return None;
                }
            }
        }
        let (position, len) = self.receiving.as_ref()?.next_range()?;
        self.ask_at_ms = now_ms + ANSWER_MAX_MS;
        let SnapshotFile { end_offset, epoch, .. } = SnapshotFile::at(Path::new(""), offer.start);
        Some(Asked { end_offset, epoch, position, len: len.min(RANGE_BYTES) })
    }

    /// Reads what another node asks for.
    pub(crate) fn answer(&self, asked: Asked, node: i32, partition: &Partition) -> Range {
        let file = SnapshotFile::new(&self.dir, asked.end_offset, asked.epoch);
        let is_here = self.snapshots.files().contains(&file);
        let read = || read_range(&*self.storage, &file, asked.position, asked.len).ok();
        let bytes = is_here.then(read).flatten();
        partition.note_snapshot_fetch(node, bytes.is_some());
        Range { asked, bytes }
    }

    /// Takes an answer. When the snapshot is complete, the replica begins behind it.
    pub(crate) fn take(&mut self, range: Range, partition: &Partition, now_ms: u64) {
        let Range { asked, bytes } = range;
        let Some(mut receiving) = self.receiving.take() else { return };
        if receiving.offer().start.offset != asked.end_offset {
            self.receiving = Some(receiving);
            return;
        }
        self.ask_at_ms = now_ms;
        let Some(bytes) = bytes else {
            self.offered = None;
            return;
        };
        if receiving.take(asked.position, &bytes).is_err() {
            self.ask_at_ms = now_ms + RETRY_MS;
            return;
        }
        if receiving.next_range().is_some() {
            self.receiving = Some(receiving);
            return;
        }
        let offer = receiving.offer().clone();
        let finished = receiving.check().and_then(|received| Ok(self.snapshots.finish(&received)?));
        match finished {
            Ok(file) => {
                match partition.begin_behind_snapshot(&offer) {
                    Ok(true) => self.take_over(offer.start),
                    Ok(false) => _ = self.snapshots.remove(&file),
                    // The file stays: the next start of the replica may need it.
                    Err(_) => {}
                }
                self.offered = None;
            }
            // The bytes do not match the offer, or the disk is full.
            Err(_) => self.ask_at_ms = now_ms + RETRY_MS,
        }
    }
}
