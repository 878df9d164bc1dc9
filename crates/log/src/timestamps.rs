//! From a timestamp to an offset: what ListOffsets asks for.

use crate::dir::LogDir;
use crate::error::{LogError, ReadError};
use crate::files::{FileKind, PartitionFiles};
use crate::log::Log;
use crate::read_mode::ReadMode;
use crate::scan::{Scanned, ScannedBatch};
use crate::segment::{Lookup, Segment, blocking};
use crate::storage::{StorageFile, read_exact_at};
use crate::time_index::TimestampOffset;
use mainstem_records::{Batch, LeaderEpoch, Record, Scratch};
use std::io;
use std::sync::Arc;

/// A record that was found by its timestamp.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FoundOffset {
    /// Its offset.
    pub offset: i64,
    /// Its timestamp in ms.
    pub timestamp: i64,
    /// The leader epoch of its batch; [`LeaderEpoch::NONE`]: it has none.
    pub leader_epoch: LeaderEpoch,
}

/// A search by time. It holds the log as it was when the search began, and locks nothing: it may wait for the disk.
#[derive(Debug)]
pub struct TimestampSearch {
    dir: Arc<LogDir>,
    files: PartitionFiles,
    segments: Vec<Segment>,
    active: Arc<dyn StorageFile>,
    log_start: i64,
    decompressed_bytes_max: usize,
}

impl Log {
    /// Returns a search by time, up to the log end. The caller leaves out what is beyond the high watermark. Never blocks.
    pub fn timestamp_search(&self) -> Result<TimestampSearch, ReadError> {
        if let Some(reason) = self.refusal() {
            return Err(ReadError::Stopped(reason.to_owned()));
        }
        Ok(TimestampSearch {
            dir: self.dir.clone(),
            files: self.files.clone(),
            segments: self.segments.clone(),
            active: self.active.file.clone(),
            log_start: self.log_start,
            decompressed_bytes_max: self.config.decompressed_bytes_max,
        })
    }
}

impl TimestampSearch {
    /// The first record at or behind the log start whose timestamp is at least `timestamp`. May read from disk.
    ///
    /// # Errors
    /// A medium that cannot be read takes its log directory offline.
    pub fn offset_for(&self, timestamp: i64) -> Result<Option<FoundOffset>, ReadError> {
        self.noted(self.find_at_least(timestamp))
    }

    /// The first record with the largest timestamp (KIP-734). May read from disk.
    ///
    /// # Errors
    /// As [`Self::offset_for`].
    pub fn offset_of_max(&self) -> Result<Option<FoundOffset>, ReadError> {
        self.noted(self.find_max())
    }

    fn noted<T>(&self, found: Result<T, ReadError>) -> Result<T, ReadError> {
        found.inspect_err(|error| {
            if let ReadError::Storage(error) = error {
                self.dir.note_error(error);
            }
        })
    }

    fn find_at_least(&self, timestamp: i64) -> Result<Option<FoundOffset>, ReadError> {
        for number in 0..self.segments.len() {
            let found = self.unless_gone(number, || {
                let largest = self.segments[number].largest(&self.files).map_err(storage_error)?;
                if largest.timestamp < timestamp {
                    return Ok(None);
                }
                self.search_segment(number, timestamp)
            });
            if let Some(found) = found? {
                return Ok(Some(found));
            }
        }
        Ok(None)
    }

    fn find_max(&self) -> Result<Option<FoundOffset>, ReadError> {
        let mut best: Option<(usize, i64)> = None;
        for number in 0..self.segments.len() {
            let largest = self.unless_gone(number, || {
                self.segments[number].largest(&self.files).map(Some).map_err(storage_error)
            });
            if let Some(TimestampOffset { timestamp, .. }) = largest?
                && timestamp >= 0
                && best.is_none_or(|(_, best)| timestamp > best)
            {
                best = Some((number, timestamp));
            }
        }
        best.map_or(Ok(None), |(number, timestamp)| {
            self.unless_gone(number, || self.search_segment(number, timestamp))
        })
    }

    /// Searches in a segment, in which there is nothing when it was deleted in the meantime: its log goes first.
    fn unless_gone<T>(
        &self,
        number: usize,
        search: impl FnOnce() -> Result<Option<T>, ReadError>,
    ) -> Result<Option<T>, ReadError> {
        match search() {
            Err(ReadError::Storage(error)) if error.kind() == io::ErrorKind::NotFound => {
                let path = self.files.path(self.segments[number].base_offset, FileKind::Log);
                if self.files.storage.exists(&path)? { Err(ReadError::Storage(error)) } else { Ok(None) }
            }
            result => result,
        }
    }

    /// The first record of a segment, from the log start on, that is so young.
    fn search_segment(&self, number: usize, timestamp: i64) -> Result<Option<FoundOffset>, ReadError> {
        let segment = &self.segments[number];
        let active = (number + 1 == self.segments.len()).then_some(&self.active);
        let before = segment.time_before(&self.files, timestamp).map_err(storage_error)?;
        let from = before.offset.max(self.log_start);
        let lookup = segment.lookup(from, segment.lookup_files(&self.files, active)?);
        let Some(first) = blocking(lookup.find(from, ReadMode::Blocking))? else { return Ok(None) };
        let mut batches = lookup.batches(first.position, ReadMode::Blocking);
        while let Scanned::Batch(batch) = blocking(batches.next(false))? {
            if batch.max_timestamp >= timestamp
                && let Some(found) = self.search_batch(&lookup, &batch, timestamp)?
            {
                return Ok(Some(found));
            }
        }
        Ok(None)
    }

    fn search_batch(
        &self,
        lookup: &Lookup,
        scanned: &ScannedBatch,
        timestamp: i64,
    ) -> Result<Option<FoundOffset>, ReadError> {
        let mut bytes = vec![0; scanned.size as usize];
        read_exact_at(&*lookup.files.log, &mut bytes, scanned.position)?;
        let (batch, _) = Batch::split_first(&bytes).map_err(damaged)?;
        let (mut buffer, mut scratch) = (Vec::new(), Scratch::new());
        let records =
            batch.records(&mut buffer, self.decompressed_bytes_max, &mut scratch).map_err(damaged)?;
        for record in records {
            let Record { offset, timestamp: found, .. } = record.map_err(damaged)?;
            if found >= timestamp && offset >= self.log_start {
                let leader_epoch = scanned.leader_epoch;
                return Ok(Some(FoundOffset { offset, timestamp: found, leader_epoch }));
            }
        }
        Ok(None)
    }
}

fn damaged(error: impl std::error::Error) -> ReadError {
    ReadError::Storage(io::Error::new(io::ErrorKind::InvalidData, error.to_string()))
}

fn storage_error(error: LogError) -> ReadError {
    match error {
        LogError::Io { source, .. } => ReadError::Storage(source),
        error => ReadError::Stopped(error.to_string()),
    }
}
