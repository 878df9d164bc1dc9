//! The unsynced part of a log, and the callers that wait until it is on disk.
//!
//! Syncs run outside of the log: [`Log::flush_work`] hands out the files, [`Log::flushed`] takes the result. One at a
//! time per log. What is appended, rolled or cut in between is accounted for here.

use crate::flusher::FlushWork;
use crate::log::Log;
use crate::storage::StorageFile;
use std::io;
use std::path::Path;
use std::sync::Arc;

/// Files and names to sync beside the active segment's data.
#[derive(Debug, Default)]
pub(crate) struct FlushState {
    files: Vec<Arc<dyn StorageFile>>,
    directories: Vec<Arc<Path>>,
    /// A sync is due whether or not a caller waits for it: a segment was closed, the log was not left in order, or
    /// maintenance found what is unsynced.
    due: bool,
    /// The durable end after the sync in progress.
    in_flight: Option<i64>,
    /// The log was cut to this offset after the work in progress was handed out: what follows is other data.
    cut: Option<i64>,
    /// The append time of the oldest record that no finished or running sync covers.
    since_mono_ms: Option<u64>,
    /// A sync failed. No later one proves anything.
    failed: bool,
}

impl FlushState {
    /// A state that begins with the names of a new partition.
    pub(crate) fn new(work: FlushWork) -> FlushState {
        FlushState { files: work.files, directories: work.directories, ..FlushState::default() }
    }

    pub(crate) fn add_file(&mut self, file: Arc<dyn StorageFile>) {
        self.files.push(file);
    }

    /// Directories could not be opened for their sync: they are in the next work.
    pub(crate) fn take_back(&mut self, directories: &[Arc<Path>]) {
        directories.iter().for_each(|directory| self.add_directory(directory));
    }

    /// Takes the work in progress and the lowest log end since it was handed out, so that another sync can run first.
    pub(crate) fn suspend(&mut self) -> (Option<i64>, Option<i64>) {
        (self.in_flight.take(), self.cut.take())
    }

    /// Puts them back.
    pub(crate) fn resume(&mut self, (in_flight, cut): (Option<i64>, Option<i64>)) {
        (self.in_flight, self.cut) = (in_flight, cut);
    }

    /// Returns true if files beside the active segment's may not be durable yet.
    pub(crate) fn files_are_unsynced(&self) -> bool {
        !self.files.is_empty() || self.in_flight.is_some()
    }

    pub(crate) fn add_directory(&mut self, dir: &Arc<Path>) {
        if !self.directories.contains(dir) {
            self.directories.push(dir.clone());
        }
    }

    /// The partition's directory has another name; what was not synced in it is not yet.
    pub(crate) fn note_renamed(&mut self, dir: &Arc<Path>) {
        self.directories.clear();
        self.add_directory(dir);
    }

    pub(crate) fn note_due(&mut self) {
        self.due = true;
    }

    pub(crate) fn note_append(&mut self, mono_ms: u64) {
        self.since_mono_ms.get_or_insert(mono_ms);
    }

    pub(crate) fn note_cut(&mut self, log_end: i64) {
        if self.in_flight.is_some() {
            self.cut = Some(self.cut.map_or(log_end, |cut| cut.min(log_end)));
        }
    }

    /// Returns true if names in the directory may not be durable yet.
    pub(crate) fn names_are_unsynced(&self) -> bool {
        !self.directories.is_empty() || self.in_flight.is_some()
    }
}

impl Log {
    /// Returns the files and directories whose sync makes everything durable that was appended until now. The caller calls
    /// [`Log::flushed`] or [`Log::failed`] once before it calls this again.
    ///
    /// After a failed sync this returns nothing, and nothing further becomes durable. A repeated sync would succeed without
    /// the pages that the kernel has dropped.
    pub fn flush_work(&mut self) -> FlushWork {
        if self.flush.failed || self.is_cut_short() {
            return FlushWork { upto: self.durable_end, ..FlushWork::default() };
        }
        let mut files = std::mem::take(&mut self.flush.files);
        if self.log_end > self.durable_end {
            files.push(self.active.file.clone());
        }
        // With the records, so that after a power cut it has whatever was aborted before the recovery point.
        files.extend(self.active.transaction_index.take());
        let directories = std::mem::take(&mut self.flush.directories);
        self.flush.due = false;
        self.flush.since_mono_ms = None;
        self.flush.in_flight = Some(self.log_end);
        self.flush.cut = None;
        FlushWork { files, directories, shared: None, upto: self.log_end }
    }

    /// The work handed out last is done; `upto` is its own. Returns true if a log start was noted in the directory's checkpoint
    /// that has waited for it.
    pub fn flushed(&mut self, upto: i64) -> bool {
        if self.flush.failed {
            // Another sync has failed meanwhile, and may have taken the error that this one should have got.
            return false;
        }
        let upto = self.flush.cut.take().map_or(upto, |cut| cut.min(upto));
        self.flush.in_flight = None;
        let start_waits = !self.follow_log_end && self.durable_end < self.log_start;
        self.durable_end = self.durable_end.max(upto.min(self.log_end));
        if start_waits {
            self.note_log_start(self.segments[0].base_offset);
        }
        start_waits
    }

    /// The work handed out last failed. The partition stops for good: the kernel may have dropped the pages, so
    /// that a second sync would succeed without them.
    pub fn failed(&mut self, error: &io::Error) {
        self.flush.in_flight = None;
        self.flush.failed = true;
        // Whatever the error says: what is in the page cache may not be what will be on the disk.
        self.dir.note_failed_sync(error);
        self.fail_medium(error);
    }

    /// Returns true if `flush.messages` records or more are unsynced. Kafka answers the produce that brought the last of them only
    /// after a sync, whatever its `acks`.
    pub fn flush_messages_due(&self) -> bool {
        let covered = self.flush.in_flight.unwrap_or(self.durable_end).max(self.durable_end);
        self.log_end - covered >= self.config.flush_messages
    }

    /// Returns true if a sync is due that no caller waits for: by `flush.messages`, by `flush.ms`, or because a segment was
    /// closed.
    pub fn flush_due(&self, mono_ms: u64) -> bool {
        let age = self.flush.since_mono_ms.map(|since| mono_ms.saturating_sub(since));
        self.flush.due
            || self.flush_messages_due()
            || age.is_some_and(|age| i64::try_from(age).unwrap_or(i64::MAX) >= self.config.flush_ms)
    }

    /// Records that no finished sync covers.
    pub fn unflushed(&self) -> i64 {
        self.log_end - self.durable_end
    }
}
