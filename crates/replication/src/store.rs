//! A group's entries as the Raft library sees them: stubs without bytes.
//!
//! The entry of a batch is a stub, marked by its context, since a no-op has neither data nor context. So a replica
//! that is far behind costs no memory: nothing but term and index is in what is sent to it until the link reads the
//! bytes from the page cache.

use crate::group::Configuration;
use crate::index::{EntryIndex, has_epoch};
use crate::journal::{EntryKind, InternalEntry, Start};
use crate::snapshots::SnapshotOffer;
use bytes::Bytes;
use raft::eraftpb::{Entry, EntryType, Snapshot};
use raft::{GetEntriesContext, RaftState, Storage, StorageError};
use std::cell::RefCell;
use std::collections::BTreeSet;

/// The batches of one message have at most so many bytes, or are one batch.
pub const MESSAGE_BYTES_MAX: u64 = 256 << 10;
/// Entries of a message, or of what is listed at once as committed.
const ENTRIES_MAX: u64 = 4096;
/// The context of a batch's stub.
const STUB_CONTEXT: &[u8] = b"b";

/// The entry of a batch, as it is proposed and sent.
pub(crate) fn stub(index: u64, term: u64) -> Entry {
    Entry { index, term, context: Bytes::from_static(STUB_CONTEXT), ..Entry::default() }
}

/// Returns true if an entry stands for a batch.
pub(crate) fn is_stub(entry: &Entry) -> bool {
    entry.get_entry_type() == EntryType::EntryNormal && entry.context == STUB_CONTEXT
}

/// Returns true if an entry has neither a batch nor data, as the first one of a term.
pub(crate) fn is_noop(entry: &Entry) -> bool {
    entry.get_entry_type() == EntryType::EntryNormal && entry.data.is_empty() && !is_stub(entry)
}

pub(crate) fn to_raft(entry: &InternalEntry) -> Entry {
    let entry_type = match entry.kind {
        EntryKind::NoOp | EntryKind::Data => EntryType::EntryNormal,
        EntryKind::ConfigurationChange => EntryType::EntryConfChange,
        EntryKind::ConfigurationChangeV2 => EntryType::EntryConfChangeV2,
    };
    let data = Bytes::copy_from_slice(&entry.data);
    Entry { index: entry.index, term: entry.term, entry_type, data, ..Entry::default() }
}

/// The internal entry that is appended where the log ends at `offset`, behind an entry of the term `before`. A no-op begins a term: one
/// without data that does not is a change of members that the library has refused.
pub(crate) fn from_raft(entry: &Entry, offset: i64, before: Option<u64>) -> InternalEntry {
    let kind = match entry.get_entry_type() {
        EntryType::EntryNormal if entry.data.is_empty() && before != Some(entry.term) => EntryKind::NoOp,
        EntryType::EntryNormal => EntryKind::Data,
        EntryType::EntryConfChange => EntryKind::ConfigurationChange,
        EntryType::EntryConfChangeV2 => EntryKind::ConfigurationChangeV2,
    };
    InternalEntry { index: entry.index, term: entry.term, offset, kind, data: entry.data.to_vec() }
}

/// Bytes of what a snapshot's message says of its file: the offset behind it, its length, its checksum.
const OFFER_BYTES: usize = 20;

/// An offer as the library carries it: which file it is, not what is in it.
pub(crate) fn snapshot_of(offer: &SnapshotOffer) -> Snapshot {
    let mut data = Vec::with_capacity(OFFER_BYTES);
    data.extend_from_slice(&offer.start.offset.to_be_bytes());
    data.extend_from_slice(&offer.len.to_be_bytes());
    data.extend_from_slice(&offer.crc.to_be_bytes());
    let mut snapshot = Snapshot { data: data.into(), ..Snapshot::default() };
    let metadata = snapshot.mut_metadata();
    (metadata.index, metadata.term) = (offer.start.index, offer.start.term);
    metadata.set_conf_state((&offer.configuration).into());
    snapshot
}

/// The offer that the library carries; `None`: it makes no sense.
pub(crate) fn offer_of(snapshot: &Snapshot) -> Option<SnapshotOffer> {
    let (offset, rest) = snapshot.data.split_first_chunk()?;
    let (len, rest) = rest.split_first_chunk()?;
    let metadata = snapshot.get_metadata();
    let offset = Some(i64::from_be_bytes(*offset)).filter(|offset| *offset >= 0)?;
    let start = Start { index: metadata.index, term: metadata.term, offset };
    let configuration = Configuration::from(metadata.get_conf_state());
    let (len, crc) = (u64::from_be_bytes(*len), u32::from_be_bytes(rest.try_into().ok()?));
    let is_sound = start.index > 0 && start.term > 0 && has_epoch(start.term);
    is_sound.then_some(SnapshotOffer { start, configuration, len, crc })
}

/// The storage that the Raft library reads.
#[derive(Debug)]
pub(crate) struct Store {
    pub(crate) index: EntryIndex,
    initial: RaftState,
    /// The snapshot for replicas that need entries which are not here any more.
    pub(crate) offer: Option<SnapshotOffer>,
    /// Replicas that need entries which are not here any more, nor in a snapshot.
    behind: RefCell<BTreeSet<u64>>,
}

impl Store {
    pub(crate) fn new(index: EntryIndex, initial: RaftState) -> Store {
        Store { index, initial, offer: None, behind: RefCell::default() }
    }

    pub(crate) fn take_behind(&mut self) -> BTreeSet<u64> {
        std::mem::take(self.behind.get_mut())
    }

    /// Returns true if there is a snapshot behind which the entries follow.
    pub(crate) fn has_offer(&self) -> bool {
        self.offer.as_ref().is_some_and(|offer| offer.start.index >= self.index.start().index)
    }

    fn entry(&self, index: u64) -> raft::Result<Entry> {
        match self.index.internal(index) {
            Some(entry) => Ok(to_raft(entry)),
            None => Ok(stub(index, self.term(index)?)),
        }
    }
}

impl Storage for Store {
    fn initial_state(&self) -> raft::Result<RaftState> {
        Ok(self.initial.clone())
    }

    fn entries(
        &self,
        low: u64,
        high: u64,
        _: impl Into<Option<u64>>,
        context: GetEntriesContext,
    ) -> raft::Result<Vec<Entry>> {
        if low < self.index.first() {
            return Err(StorageError::Compacted.into());
        }
        if high > self.index.last() + 1 {
            return Err(StorageError::Unavailable.into());
        }
        // Only what is sent drags bytes along.
        let is_sent = context.can_async();
        let (mut entries, mut bytes) = (Vec::new(), 0);
        for index in low..high.min(low.saturating_add(ENTRIES_MAX)) {
            bytes += if is_sent { self.index.size_of(index) } else { 0 };
            if bytes > MESSAGE_BYTES_MAX && !entries.is_empty() {
                break;
            }
            entries.push(self.entry(index)?);
        }
        Ok(entries)
    }

    fn term(&self, index: u64) -> raft::Result<u64> {
        match self.index.term(index) {
            None => Err(StorageError::Compacted.into()),
            Some(_) if index > self.index.last() => Err(StorageError::Unavailable.into()),
            Some(term) => Ok(term),
        }
    }

    fn first_index(&self) -> raft::Result<u64> {
        Ok(self.index.first())
    }

    fn last_index(&self) -> raft::Result<u64> {
        Ok(self.index.last())
    }

    fn snapshot(&self, request_index: u64, to: u64) -> raft::Result<Snapshot> {
        match &self.offer {
            Some(offer) if self.has_offer() && offer.start.index >= request_index => Ok(snapshot_of(offer)),
            _ => {
                self.behind.borrow_mut().insert(to);
                Err(StorageError::SnapshotTemporarilyUnavailable.into())
            }
        }
    }
}
