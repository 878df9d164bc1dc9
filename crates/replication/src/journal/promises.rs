//! `mainstem.promises`: what each replica of a log directory has promised, so that a start can tell whether its disk still has that.
//!
//! A log cannot say of itself that its end is gone: one that was cut, or lost a file, is as whole as one that never was longer. So
//! beside the journal there is a slot for each group with the last entry that was durable when the replica answered for it, and the
//! last term in which it may have voted. A slot is written before such an answer leaves, over what it had before, and synced only now
//! and then ([`Journal::promises_to_sync`](super::Journal::promises_to_sync)): the death of the process takes nothing of it, and a
//! power cut leaves what it had a moment before, which is true as well. It is lowered, durably, before a log is cut.

use super::JournalError;
use crate::group::{GroupId, ReplicaId};
use mainstem_log::storage::{
    OpenMode, Storage, StorageFault, StorageFile, read_exact_at, replace_file, write_all_at,
};
use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Name of the file in a log directory.
pub const PROMISES: &str = "mainstem.promises";
/// The file begins with this: name and version.
const MAGIC: [u8; 8] = *b"mspromi1";
/// Bytes of a slot, and of what precedes the first one: no slot is in two sectors of a disk.
const SLOT_BYTES: u64 = 64;
/// Slots are added in lots of so many: 4 KiB.
const SLOTS_PER_LOT: u64 = 64;
/// A file has at most so many bytes: slots for a million groups.
const LEN_MAX: u64 = 64 << 20;

/// The promise of a replica.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Promised {
    /// Term of the last entry that it has answered for.
    pub term: u64,
    /// Index of that entry.
    pub index: u64,
    /// The highest term in which it may have voted.
    pub vote_term: u64,
    /// About where its log has ended, durably.
    pub offset: i64,
}

impl Promised {
    /// Returns true if a log with this last entry has all that was promised, as far as terms and indexes say it: Raft's rule for votes.
    pub fn is_kept_by(&self, last_term: u64, last_index: u64) -> bool {
        (last_term, last_index) >= (self.term, self.index)
    }
}

/// The number of replicas that a node has had in a group before this one.
fn replicas_before(own: ReplicaId) -> u64 {
    u64::from(own.incarnation().saturating_sub(1))
}

fn encode(group: GroupId, before: u64, promised: &Promised) -> [u8; SLOT_BYTES as usize] {
    let mut bytes = [0; SLOT_BYTES as usize];
    bytes[4..8].copy_from_slice(&group.partition.to_be_bytes());
    bytes[8..24].copy_from_slice(&group.topic_id);
    let numbers =
        [promised.vote_term, promised.term, promised.index, promised.offset.cast_unsigned(), before];
    for (field, number) in bytes[24..].chunks_exact_mut(8).zip(numbers) {
        field.copy_from_slice(&number.to_be_bytes());
    }
    let crc = crc32c::crc32c(&bytes[4..]);
    bytes[..4].copy_from_slice(&crc.to_be_bytes());
    bytes
}

/// The promise in a slot.
#[derive(Debug, Clone, Copy, Default)]
struct Slot {
    /// The number of replicas that this node had in the group before the one that it is of.
    before: u64,
    promised: Promised,
}

impl Slot {
    /// The promise, unless it is of an earlier replica: the slot was given back when that was removed, and a power cut took that.
    fn of(self, own: ReplicaId) -> Option<Promised> {
        (self.before >= replicas_before(own)).then_some(self.promised)
    }
}

/// The content of a slot; `None`: nothing that is whole.
fn decode(bytes: &[u8]) -> Option<(GroupId, Slot)> {
    let bytes: &[u8; SLOT_BYTES as usize] = bytes.try_into().ok()?;
    let number = |at: usize| u64::from_be_bytes(bytes[at..at + 8].try_into().expect("eight bytes"));
    if crc32c::crc32c(&bytes[4..]).to_be_bytes() != bytes[..4] {
        return None;
    }
    let partition = i32::from_be_bytes(bytes[4..8].try_into().expect("four bytes"));
    let topic_id = bytes[8..24].try_into().expect("sixteen bytes");
    let offset = number(48).cast_signed();
    let promised = Promised { vote_term: number(24), term: number(32), index: number(40), offset };
    Some((GroupId { topic_id, partition }, Slot { before: number(56), promised }))
}

/// The file, as its slots were when it was opened.
#[derive(Debug)]
pub(super) struct Promises {
    path: Arc<Path>,
    file: Arc<dyn StorageFile>,
    /// The position of each group's slot, and what it has said at the start.
    slots: BTreeMap<GroupId, (u64, Slot)>,
    free: Vec<u64>,
    len: u64,
    is_dirty: Arc<AtomicBool>,
}

impl Promises {
    /// Opens the file of a log directory, and creates it, durably, where there is none. `None`: the disk is full. Blocks
    /// on the disk.
    pub(super) fn open(storage: &dyn Storage, dir: &Path) -> Result<Option<Promises>, JournalError> {
        let path: Arc<Path> = Arc::from(dir.join(PROMISES));
        let failed = |action: &'static str| io_error(action, &path);
        if !storage.exists(&path).map_err(failed("look for"))? {
            let mut first = vec![0; (SLOT_BYTES * SLOTS_PER_LOT) as usize];
            first[..MAGIC.len()].copy_from_slice(&MAGIC);
            match replace_file(storage, &path, &first) {
                Err(error) if StorageFault::of(&error) == StorageFault::NoSpace => {
                    // It only takes space away.
                    let _ = storage.remove_file(&dir.join("mainstem.promises.tmp"));
                    tracing::warn!(
                        path = %path.display(),
                        "the disk has no free space to note what replicas promise: until it has, a start does not notice what their logs may lose"
                    );
                    return Ok(None);
                }
                created => created.map_err(failed("create"))?,
            }
        }
        let file = storage.open(&path, OpenMode::ReadWrite).map_err(failed("open"))?;
        let len = file.len().map_err(failed("measure"))?;
        if len > LEN_MAX {
            return Err(JournalError::TooLarge { path: path.to_path_buf(), len });
        }
        let mut bytes = vec![0; len as usize];
        read_exact_at(&*file, &mut bytes, 0).map_err(failed("read"))?;
        if !bytes.starts_with(&MAGIC) {
            return Err(JournalError::OtherFormat { path: path.to_path_buf() });
        }
        // What a killed process left in the page cache is built upon from here on.
        file.sync_data().map_err(failed("sync"))?;
        let len = len / SLOT_BYTES * SLOT_BYTES;
        let (slots, free) = slots_of(&bytes, &path);
        Ok(Some(Promises { path, file, slots, free, len, is_dirty: Arc::default() }))
    }

    /// The promise of a group's replica.
    ///
    /// # Errors
    /// It cannot be read.
    pub(super) fn found(&self, group: GroupId, own: ReplicaId) -> Result<Option<Promised>, JournalError> {
        let Some((position, at_start)) = self.slots.get(&group) else { return Ok(None) };
        // A replica that was here since the file was opened has written more.
        let mut slot = [0; SLOT_BYTES as usize];
        read_exact_at(&*self.file, &mut slot, *position).map_err(io_error("read", &self.path))?;
        let read = decode(&slot).filter(|(of, _)| *of == group);
        Ok(read.map_or(*at_start, |(_, slot)| slot).of(own))
    }

    /// The slot of a group, the next free one where it has none. `None`: there is no space for more.
    ///
    /// # Errors
    /// The disk refused, for another reason than want of space.
    pub(super) fn slot(&mut self, group: GroupId, own: ReplicaId) -> Result<Option<Promise>, JournalError> {
        let known = self.found(group, own)?;
        let position = match self.slots.get(&group) {
            Some((position, _)) => *position,
            None => {
                if self.free.is_empty() {
                    self.add_slots()?;
                }
                let Some(position) = self.free.pop() else { return Ok(None) };
                self.slots.insert(group, (position, Slot::default()));
                position
            }
        };
        let written = known.unwrap_or_default();
        let (path, file, is_dirty) = (self.path.clone(), self.file.clone(), self.is_dirty.clone());
        let before = replicas_before(own);
        Ok(Some(Promise { path, file, is_dirty, group, before, position, written }))
    }

    /// Makes more slots, where there is space for them.
    fn add_slots(&mut self) -> Result<(), JournalError> {
        let more = vec![0; (SLOT_BYTES * SLOTS_PER_LOT) as usize];
        if self.len + more.len() as u64 > LEN_MAX {
            return Ok(());
        }
        match write_all_at(&*self.file, &more, self.len) {
            Err(error) if StorageFault::of(&error) == StorageFault::NoSpace => return Ok(()),
            written => written.map_err(io_error("write", &self.path))?,
        }
        let first = self.len;
        self.len += more.len() as u64;
        self.free.extend((0..SLOTS_PER_LOT).rev().map(|slot| first + slot * SLOT_BYTES));
        Ok(())
    }

    /// Gives a group's slot back: the group is gone for good.
    pub(super) fn forget(&mut self, group: GroupId) {
        if let Some((position, _)) = self.slots.remove(&group)
            && write_all_at(&*self.file, &[0; SLOT_BYTES as usize], position).is_ok()
        {
            self.free.push(position);
            self.is_dirty.store(true, Ordering::Release);
        }
    }

    /// The file, if something was written since it was asked for last.
    pub(super) fn to_sync(&self) -> Option<Arc<dyn StorageFile>> {
        self.is_dirty.swap(false, Ordering::AcqRel).then(|| self.file.clone())
    }

    pub(super) fn path(&self) -> PathBuf {
        self.path.to_path_buf()
    }
}

/// The slots by group, and those that are free.
fn slots_of(bytes: &[u8], path: &Path) -> (BTreeMap<GroupId, (u64, Slot)>, Vec<u64>) {
    let (mut slots, mut free, mut damaged) = (BTreeMap::<GroupId, (u64, Slot)>::new(), Vec::new(), 0);
    for (slot, bytes) in (1..).zip(bytes.chunks_exact(SLOT_BYTES as usize).skip(1)) {
        let position = slot * SLOT_BYTES;
        match decode(bytes) {
            Some((group, slot)) => {
                let first = slots.insert(group, (position, slot));
                // Never written so. What says more counts.
                let says = |slot: &Slot| (slot.before, slot.promised);
                if let Some(first) = first.filter(|(_, first)| says(first) > says(&slot)) {
                    slots.insert(group, first);
                }
            }
            None => {
                damaged += usize::from(bytes.iter().any(|byte| *byte != 0));
                free.push(position);
            }
        }
    }
    if damaged > 0 {
        tracing::warn!(
            path = %path.display(),
            damaged,
            "of {damaged} replicas it is not known any more what they have promised: a loss of theirs would not be noticed"
        );
    }
    free.reverse();
    (slots, free)
}

fn io_error(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> JournalError {
    let path = path.to_path_buf();
    move |source| JournalError::Io { action, path, source }
}

/// The slot of one replica. Written without the journal's lock: no one else writes it.
#[derive(Debug)]
pub(crate) struct Promise {
    path: Arc<Path>,
    file: Arc<dyn StorageFile>,
    is_dirty: Arc<AtomicBool>,
    group: GroupId,
    before: u64,
    position: u64,
    written: Promised,
}

impl Promise {
    /// Its content.
    pub(crate) fn written(&self) -> &Promised {
        &self.written
    }

    /// Writes what is promised. It outlives the process from here on, not a power cut.
    pub(crate) fn write(&mut self, promised: Promised) -> Result<(), JournalError> {
        let bytes = encode(self.group, self.before, &promised);
        write_all_at(&*self.file, &bytes, self.position).map_err(io_error("write", &self.path))?;
        self.written = promised;
        self.is_dirty.store(true, Ordering::Release);
        Ok(())
    }

    /// Writes what is promised, durably. Blocks on the disk.
    pub(crate) fn write_durably(&mut self, promised: Promised) -> Result<(), JournalError> {
        self.write(promised)?;
        // Whatever its error says, the promise may be lost, and a second sync proves nothing.
        let synced = self.file.sync_data().map_err(|error| match StorageFault::of(&error).is_temporary() {
            true => io::Error::other(error.to_string()),
            false => error,
        });
        synced.map_err(io_error("sync", &self.path))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use mainstem_log::sim::{Random, SimStorage};

    const FIRST: ReplicaId = ReplicaId(1 << 32 | 1);

    fn group(partition: i32) -> GroupId {
        GroupId { topic_id: [7; 16], partition }
    }

    fn promised(number: u64) -> Promised {
        Promised { term: number, index: 10 * number, vote_term: number + 1, offset: number as i64 }
    }

    fn open(storage: &SimStorage) -> Promises {
        storage.create_dir(Path::new("/data")).expect("a directory");
        storage.sync_dir(Path::new("/")).expect("a sync");
        Promises::open(storage, Path::new("/data")).expect("a file").expect("space")
    }

    #[test]
    fn what_was_written_is_there_after_the_death_of_the_process() {
        let storage = SimStorage::new();
        let mut promises = open(&storage);
        // More than one lot.
        for partition in 0..100 {
            let mut slot = promises.slot(group(partition), FIRST).expect("a read").expect("a slot");
            slot.write(promised(1)).expect("a write");
            slot.write(promised(2 + partition as u64)).expect("a write");
        }
        promises.forget(group(3));
        storage.kill();
        let mut promises = open(&storage);
        assert_eq!(
            (
                promises.found(group(3), FIRST).expect("a read"),
                promises.found(group(100), FIRST).expect("a read")
            ),
            (None, None)
        );
        for partition in (0..100).filter(|partition| *partition != 3) {
            assert_eq!(
                promises.found(group(partition), FIRST).expect("a read"),
                Some(promised(2 + partition as u64))
            );
        }
        let positions: Vec<_> = promises.slots.values().map(|(position, _)| *position).collect();
        let slot = promises.slot(group(100), FIRST).expect("a read").expect("a slot");
        assert!(!positions.contains(&slot.position), "it is another's");
    }

    #[test]
    fn a_power_cut_leaves_what_a_slot_had_at_one_time_or_another() {
        for seed in 0..50 {
            let storage = SimStorage::new();
            let mut promises = open(&storage);
            let mut slot = promises.slot(group(1), FIRST).expect("a read").expect("a slot");
            slot.write(promised(1)).expect("a write");
            promises.to_sync().expect("it was written").sync_data().expect("a sync");
            assert!(promises.to_sync().is_none());
            (2..6).for_each(|number| slot.write(promised(number)).expect("a write"));
            storage.power_cut(&mut Random::new(seed));
            let found = open(&storage).found(group(1), FIRST).expect("a read");
            assert!((1..6).any(|number| found == Some(promised(number))), "{found:?}");
        }
    }

    /// A power cut takes the end of an earlier replica's slot, and not that of the replica.
    #[test]
    fn an_earlier_replica_of_a_node_has_promised_nothing_for_the_next_one() {
        let storage = SimStorage::new();
        let mut promises = open(&storage);
        let next = ReplicaId::new(1, 3);
        let mut slot = promises.slot(group(1), FIRST).expect("a read").expect("a slot");
        slot.write_durably(promised(9)).expect("a write");
        promises = open(&storage);
        assert_eq!(promises.found(group(1), FIRST).expect("a read"), Some(promised(9)));
        assert_eq!(promises.found(group(1), next).expect("a read"), None);
        let mut slot = promises.slot(group(1), next).expect("a read").expect("a slot");
        assert_eq!(*slot.written(), Promised::default());
        slot.write(promised(2)).expect("a write");
        storage.kill();
        assert_eq!(open(&storage).found(group(1), next).expect("a read"), Some(promised(2)));
    }

    #[test]
    fn a_damaged_slot_says_nothing_and_another_file_is_refused() {
        let storage = SimStorage::new();
        let mut promises = open(&storage);
        for partition in 0..2 {
            promises
                .slot(group(partition), FIRST)
                .expect("a read")
                .expect("a slot")
                .write(promised(9))
                .expect("a write");
        }
        let file = storage.open(Path::new("/data/mainstem.promises"), OpenMode::ReadWrite).expect("a file");
        write_all_at(&*file, b"x", SLOT_BYTES + 30).expect("a write");
        let promises = open(&storage);
        assert_eq!(
            (
                promises.found(group(0), FIRST).expect("a read"),
                promises.found(group(1), FIRST).expect("a read")
            ),
            (None, Some(promised(9)))
        );
        write_all_at(&*file, b"y", 2).expect("a write");
        let refused = Promises::open(&storage, Path::new("/data"));
        assert!(matches!(refused, Err(JournalError::OtherFormat { .. })), "{refused:?}");
    }

    /// The bytes that docs/format.md shows.
    #[test]
    fn a_slot_is_as_the_format_says() {
        let bytes = encode(group(3), 8, &Promised { term: 4, index: 5, vote_term: 6, offset: 7 });
        let numbers: Vec<_> = bytes[24..].chunks(8).map(|field| field[7]).collect();
        assert_eq!((bytes[7], &bytes[8..24], &numbers[..]), (3, &[7; 16][..], &[6, 4, 5, 7, 8][..]));
        assert_eq!(decode(&bytes).map(|(of, _)| of), Some(group(3)));
    }
}
