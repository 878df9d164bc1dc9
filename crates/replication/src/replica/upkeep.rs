//! Upkeep of a log that its group has to follow: segments, retention, the snapshots that may end somewhere, and the end of the process.

use super::Replica;
use crate::error::ReplicaError;
use crate::journal::{Frame, Mark, Start};

impl Replica {
    /// Notes the place where the log may have begun a segment for its age, and not for a batch, in the journal: a start can count entries
    /// from there alone once retention has removed what precedes it. Returns true if the journal has to be synced before that.
    pub fn follow_roll(&mut self) -> Result<bool, ReplicaError> {
        self.check_running()?;
        if self.space.is_awaited() {
            return Ok(false);
        }
        let end = self.log.ends().log_end;
        if self.log().active_base_offset() != end {
            return Ok(false);
        }
        self.drive_into()?;
        let index = self.group.index_mut();
        if index.end_offset() != end {
            return Ok(false);
        }
        let Some(mark) = index.mark(Mark { index: index.last() + 1, offset: end }) else { return Ok(false) };
        if let Err(error) = self.journal.write(&mut vec![Frame::Mark(mark)]) {
            // It is noted when there is space.
            self.group.index_mut().forget_mark(mark);
            return Err(error);
        }
        Ok(true)
    }

    /// Notes the places that were found when entries were counted: entries can begin there when what precedes them is removed.
    pub(super) fn note_found_marks(&mut self) -> Result<(), ReplicaError> {
        let found = self.group.index_mut().take_unnoted();
        self.journal.write(&mut found.into_iter().map(Frame::Mark).collect())?;
        Ok(())
    }

    /// Has the group begin behind the segments that retention has removed, as far as the log lasts. It must not begin behind what a power
    /// cut leaves.
    pub fn follow_log_start(&mut self) -> Result<(), ReplicaError> {
        self.check_running()?;
        if self.space.is_awaited() {
            return Ok(());
        }
        let log_start = self.log().lasting_log_start();
        let Some(start) = self.group.index_mut().follow_log_start(log_start) else { return Ok(()) };
        self.journal.append(Frame::Start(start))?;
        if start.index > self.group.applied() {
            // Retention goes by the high watermark that was noted, which may be further than what this replica knows to be committed
            // since it was opened. The library must not find entries removed that it takes for uncommitted.
            self.begin_again()?;
        }
        Ok(())
    }

    /// The place where the group can begin at or before `floor`, an offset that every voter has reached: not behind what is applied, or
    /// behind what a power cut leaves. `None`: it begins there, or cannot yet.
    pub fn start_at_floor(&self, floor: i64) -> Option<Start> {
        // The entry that has moved the log start is needed until that lasts.
        if self.space.is_awaited() || !self.log().is_log_start_durable() {
            return None;
        }
        let index = self.group.index();
        let applied = index.offset_before(self.group.applied())?;
        index.start_behind(floor.min(applied).min(self.log.ends().durable_end))
    }

    /// Has the group begin at the place of [`Replica::start_at_floor`]: what precedes it may be compacted once the journal is synced. The
    /// recovery point that is noted on disk is not before `floor`: after a power cut the producers' snapshot at the start would be gone,
    /// which a copy of the log needs.
    ///
    /// # Errors
    /// When the journal refuses: the group begins where it did.
    pub fn follow_floor(&mut self, floor: i64) -> Result<(), ReplicaError> {
        self.check_running()?;
        if let Some(start) = self.start_at_floor(floor) {
            // The journal first: a start that is not in it would count what was compacted.
            self.journal.append(Frame::Start(start))?;
            self.group.index_mut().begin_at(start);
        }
        Ok(())
    }

    /// The data of the internal entries that are applied and not before the group's start.
    pub fn applied_data(&self) -> impl Iterator<Item = &[u8]> {
        let applied = self.group.applied();
        let entries = self.group.index().internal_entries().iter();
        entries.filter(move |entry| entry.index <= applied).map(|entry| &entry.data[..])
    }

    /// Notes in the journal what the next start begins with. The log is closed after it, the journal synced.
    pub fn prepare_close(&mut self) -> Result<(), ReplicaError> {
        self.drive_into()?;
        if self.space.is_awaited() {
            return Ok(());
        }
        let committed = self.group.committed().min(self.group.index().last());
        let applied = self.applied_to_note();
        let index = self.group.index_mut();
        let mark = index.mark(Mark { index: index.last() + 1, offset: index.end_offset() });
        let mut frames: Vec<_> = mark.map(Frame::Mark).into_iter().collect();
        frames.push(Frame::Commit { committed, applied });
        self.journal.write(&mut frames)?;
        Ok(())
    }

    /// The index up to which the next start need not apply entries again. Where only this process knows the log start, what was noted
    /// before stays: the entry that has moved it is behind that.
    fn applied_to_note(&self) -> u64 {
        let applied = self.group.applied();
        match self.log().is_log_start_durable() {
            true => applied,
            false => self.journal.applied().min(applied),
        }
    }

    /// The last entry that precedes `offset`, where that is known without a look at the log: of what was appended last, and
    /// where the journal remembers it ([`Replica::remember`]). It is committed if the offset is. `None` also where the replica
    /// waits for space.
    pub fn entry_before(&self, offset: i64) -> Option<Start> {
        self.group.index().entry_before(offset).filter(|_| self.is_taking_part())
    }

    /// The entry with which a snapshot may end that precedes `offset`, as [`Replica::entry_before`] knows it. `None` also where the
    /// log is not durable so far: after a power cut it would end before its snapshots, which have let what precedes them be removed.
    pub fn snapshot_end(&self, offset: i64) -> Option<Start> {
        if offset > self.log.ends().durable_end {
            return None;
        }
        self.entry_before(offset)
    }

    /// Has the journal remember which entry precedes an offset that is committed: a snapshot ends there. Returns true if the
    /// journal has to be synced before anything relies on it.
    pub fn remember(&mut self, at: Start) -> Result<bool, ReplicaError> {
        self.check_running()?;
        let marks = self.group.index().marks_for(at);
        let mut frames: Vec<_> = marks.iter().copied().map(Frame::Mark).collect();
        let is_noted = !frames.is_empty();
        self.journal.write(&mut frames)?;
        self.group.index_mut().add_marks(&marks);
        Ok(is_noted)
    }

    /// The offset up to which the log can be removed behind a snapshot: what precedes is applied, and durable here as well. What is
    /// committed need not be: a majority of others may have it. Without a snapshot to offer nothing more is removed.
    pub fn removable_end(&self) -> i64 {
        let ends = self.log.ends();
        if !self.has_offer() {
            return ends.log_start;
        }
        let durable = self.persisted_end();
        let applied = self.group.index().offset_before(self.group.applied());
        applied.map_or(ends.log_start, |offset| offset.min(durable))
    }
}
