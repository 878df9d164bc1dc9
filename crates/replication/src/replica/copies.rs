//! Copies of the beginning of a partition, for replicas that need entries which are not here any more: where one can end, and the log
//! of a follower whose place a copy takes.

use super::Replica;
use super::group_journal::GroupJournal;
use crate::change;
use crate::error::ReplicaError;
use crate::group::{Configuration, GroupId};
use crate::journal::{EntryKind, Frame, InternalEntry, Journal, JournalFormat, Start};
use crate::snapshots::SnapshotOffer;
use mainstem_log::dir::LogDir;
use mainstem_log::partition_dir::TopicPartition;
use mainstem_log::{ImportedLog, LogError};
use parking_lot::Mutex;
use std::sync::Arc;

impl Replica {
    /// The places where a copy of a leader's log can end, the best one first: a segment begins there, the entry before it is known, and
    /// all before it is committed, applied and durable here. The entries behind it are in the log. No member has come since.
    pub fn copy_ends(&self) -> impl Iterator<Item = Start> {
        let ends = self.log.ends();
        // Also before it knows what is committed, and while members change: the replica that is too far behind may be needed for that.
        let may_offer = self.leads();
        let range = self.start_offset()..=ends.high_watermark.min(ends.durable_end);
        let bases = self.log().segment_bases().rev().filter(move |base| may_offer && range.contains(base));
        let applied = self.group.applied();
        let may_be =
            move |start: &Start| (1..=applied).contains(&start.index) && self.are_all_at(start.index);
        bases.filter_map(move |base| self.ends_at(base).into_iter().flatten().find(may_be))
    }

    /// The last entries before an offset that are applied: before the internal entries at it, which others may follow soon, and behind
    /// them, since the last change of members may be among them, and nothing follow in a group at rest.
    fn ends_at(&self, offset: i64) -> [Option<Start>; 2] {
        let (index, applied) = (self.group.index(), self.group.applied());
        let mut internal = index.internal_entries().iter();
        let behind = internal.rfind(|entry| entry.offset == offset && entry.index <= applied);
        let behind = behind.map(|entry| Start { index: entry.index, term: entry.term, offset });
        [index.known_at(offset), behind]
    }

    /// The members of the group behind an applied entry, which is the one before the first entry here, or a later one.
    pub fn configuration_at(&self, index: u64) -> Configuration {
        // Since a start the members may be those of changes that are not applied again yet.
        let applied = index + 1..=self.group.applied().max(self.group.noted_change());
        let is_change = |entry: &&InternalEntry| entry.kind == EntryKind::ConfigurationChangeV2;
        let mut later = self.group.index().internal_entries().iter().filter(is_change);
        let next = later.find(|entry| applied.contains(&entry.index));
        let base = next.and_then(|entry| change::decode(&entry.data)).map(|next| next.base);
        base.unwrap_or_else(|| self.configuration().in_order())
    }

    /// Returns true if all members were in the group behind an entry: others cannot begin there.
    pub fn are_all_at(&self, index: u64) -> bool {
        let then = self.configuration_at(index);
        self.configuration().replicas().all(|id| then.replicas().any(|one| one == id))
    }

    /// Puts a copy in the place of the log, of which the manifest was offered. Returns false, and removes the copy, where it is not
    /// needed or cannot be taken now: no leader is known, the log has reached its end without, the disk is full, or the journal is of an
    /// older format. Blocks on the disk. To be followed by [`Replica::drive`]. `due_mono_ms`: the old files are removed from then on.
    ///
    /// # Errors
    /// The replica is out of service then, and the next start finishes what has begun.
    pub fn install(
        &mut self,
        offer: &SnapshotOffer,
        copy: ImportedLog,
        due_mono_ms: u64,
    ) -> Result<bool, ReplicaError> {
        self.check_running()?;
        self.drive_into()?;
        let is_of_offer = copy.ends().end == offer.start.offset;
        let may_be_noted = self.journal.format() >= JournalFormat::V2;
        let wanted = self.wanted_snapshot(offer).filter(|_| is_of_offer && may_be_noted);
        if let Some(message) = wanted {
            self.copy = Some((copy, due_mono_ms));
            let taken = self.take_snapshot(message);
            let is_left = self.copy.take();
            taken?;
            let is_installed = is_left.is_none() && self.effects.restored.is_some();
            is_left.map_or(Ok(()), |(copy, _)| remove(copy))?;
            return Ok(is_installed);
        }
        remove(copy)?;
        Ok(false)
    }

    /// Has a copy take the place of the log, which ends where the copy does. All of it is durable when this returns.
    pub(super) fn begin_with_copy(
        &mut self,
        (copy, due_mono_ms): (ImportedLog, u64),
        start: Start,
        configuration: &Configuration,
        frames: &mut Vec<Frame>,
    ) -> Result<(), ReplicaError> {
        frames.push(self.journal.replace_frame(copy.id(), start, configuration.clone()));
        self.journal.write(frames)?;
        // From here on there is no way back.
        let done = self.journal.sync_now().map_err(ReplicaError::Journal).and_then(|()| {
            let log = self.log.log_mut();
            copy.take_place(log, due_mono_ms)?;
            log.hold_high_watermark(start.offset)?;
            note_replaced(&self.journal, log.dir(), log.partition(), start)
        });
        done.map_err(|error| match error.failed_sync().is_some() {
            true => error,
            false => ReplicaError::Failed(format!(
                "a copy of the leader's log takes the place of the log, and that is not finished: {error}; the next start finishes it"
            )),
        })
    }
}

/// Notes durably that a copy is in its place.
fn note_replaced(
    journal: &GroupJournal,
    dir: &LogDir,
    partition: &TopicPartition,
    start: Start,
) -> Result<(), ReplicaError> {
    journal.append(Frame::Start(start))?;
    journal.sync_now()?;
    forget_copy(dir, partition);
    Ok(())
}

/// Removes the mark of a copy that is in its place. One that stays takes some space, and nothing looks at it.
fn forget_copy(dir: &LogDir, partition: &TopicPartition) {
    if let Err(error) = dir.forget_import(partition) {
        tracing::warn!(%partition, "a file of the copy that the log was stays: {error}");
    }
}

fn remove(copy: ImportedLog) -> Result<(), ReplicaError> {
    let failed = |source| LogError::Io { action: "remove", path: "the copy of a log".into(), source };
    Ok(copy.remove().map_err(failed)?)
}

/// Finishes what a stop has interrupted, before the log of a partition is opened: a copy of the leader's log takes its place. Does
/// nothing where nothing was begun. Blocks on the disk.
///
/// # Errors
/// When disk or journal refuse, or the copy is gone: then the replica has nothing that it could begin with.
pub fn finish_replacement(
    journal: &Arc<Mutex<Journal>>,
    group: GroupId,
    dir: &LogDir,
    partition: &TopicPartition,
    due_mono_ms: u64,
) -> Result<(), ReplicaError> {
    let state = journal.lock().group(group).cloned();
    let begun = state.and_then(|state| Some((state.replacing?, state.own?, state.start)));
    let Some((copy, own, start)) = begun else { return Ok(()) };
    if !dir.finish_import(partition, (copy, start.offset), due_mono_ms)? {
        return Err(ReplicaError::CopyGone { partition: partition.clone() });
    }
    note_replaced(&GroupJournal::new(journal.clone(), group, own), dir, partition, start)
}
