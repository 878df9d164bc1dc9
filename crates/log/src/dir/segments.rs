//! The segments that a directory's partitions must have: noted when a partition is closed, compared when it is opened.

use super::LogDir;
use crate::error::LogError;
use crate::partition_dir::TopicPartition;
use crate::segment_record::{ACCEPT_LOSS, SegmentLengths, SegmentRecord, missing, segments_in};
use std::collections::BTreeMap;
use std::io;
use std::path::Path;

/// The segments of partitions that are closed.
#[derive(Debug, Default)]
pub(super) struct ClosedSegments {
    /// The record of the last stop, for partitions that were not opened since.
    left: BTreeMap<TopicPartition, SegmentLengths>,
    /// The record that the next stop writes, and the partitions that were refused.
    next: SegmentRecord,
}

impl ClosedSegments {
    pub(super) fn new(found: SegmentRecord) -> ClosedSegments {
        let next = SegmentRecord { refused: found.refused, ..SegmentRecord::default() };
        ClosedSegments { left: found.closed, next }
    }
}

impl LogDir {
    /// Compares the segments of a partition that is about to be opened with those that it was left with.
    ///
    /// # Errors
    /// [`LogError::Missing`] where segments are gone or shorter, and the operator has not accepted that. The partition stays
    /// refused, over stops and kills, until they are back or the operator has.
    pub(crate) fn check_segments(&self, partition: &TopicPartition) -> Result<(), LogError> {
        let mut closed = self.segments.lock();
        let ClosedSegments { left, next } = &*closed;
        let Some(expected) = next.refused.get(partition).or_else(|| left.get(partition)).cloned() else {
            return Ok(());
        };
        let path = self.partition_path(partition);
        let found = segments_in(&*self.storage, &path).map_err(LogError::io("list", &*path))?;
        let lost = missing(&expected, &found);
        if let Some(what) = &lost
            && !self.takes_acceptance(&path)?
        {
            closed.left.remove(partition);
            if closed.next.refused.insert(partition.clone(), expected).is_none() {
                self.write_refused(&closed.next)?;
            }
            return Err(LogError::Missing { path, what: what.clone() });
        }
        if let Some(what) = lost {
            tracing::warn!(%partition, "it is served without what is missing, as {ACCEPT_LOSS} said: {what}");
        }
        closed.left.remove(partition);
        match closed.next.refused.remove(partition) {
            Some(_) => self.write_refused(&closed.next),
            None => Ok(()),
        }
    }

    /// Returns true if an operator has accepted the loss. That counts once: on return the file is durably removed.
    pub(crate) fn takes_acceptance(&self, path: &Path) -> Result<bool, LogError> {
        let accepted = path.join(ACCEPT_LOSS);
        if !self.storage.exists(&accepted).map_err(LogError::io("look for", &*accepted))? {
            return Ok(false);
        }
        let removed = self.storage.remove_file(&accepted).and_then(|()| self.storage.sync_dir(path));
        removed.map(|()| true).map_err(LogError::io("remove", accepted))
    }

    /// Writes what counts while the directory is in use: what was closed does not without the marker.
    fn write_refused(&self, record: &SegmentRecord) -> Result<(), LogError> {
        let refused = SegmentRecord { refused: record.refused.clone(), ..SegmentRecord::default() };
        let written = refused.write(&*self.storage, &self.path);
        let synced = written.and_then(|_| self.storage.sync_dir(&self.path));
        synced.map_err(LogError::io("write the record of segments in", &*self.path))
    }

    /// Notes what a partition has when it is closed in order.
    pub(crate) fn note_segments(&self, partition: &TopicPartition, segments: SegmentLengths) {
        self.segments.lock().next.closed.insert(partition.clone(), segments);
    }

    /// Another log is in the place of the one that a partition was left with.
    pub(crate) fn forget_left_segments(&self, partition: &TopicPartition) {
        self.segments.lock().left.remove(partition);
    }

    /// Partitions are not in this directory any more.
    pub(super) fn forget_segments(&self, partitions: &[TopicPartition]) -> io::Result<()> {
        let mut closed = self.segments.lock();
        let before = closed.next.refused.len();
        for partition in partitions {
            closed.left.remove(partition);
            closed.next.closed.remove(partition);
            closed.next.refused.remove(partition);
        }
        match closed.next.refused.len() == before {
            true => Ok(()),
            false => self.write_refused(&closed.next).map_err(io::Error::other),
        }
    }

    /// Writes the record of a stop, durable once the directory is synced; returns its checksum.
    pub(super) fn write_segments(&self) -> io::Result<u32> {
        self.segments.lock().next.write(&*self.storage, &self.path)
    }
}
