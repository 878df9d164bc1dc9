//! From a timestamp to an offset: what ListOffsets asks for.

use crate::error::{LogError, ReadError};
use crate::log::Log;
use crate::patience::Patience;
use crate::scan::{Scanned, ScannedBatch};
use crate::segment::{Lookup, patient};
use crate::storage::read_exact_at;
use mainstem_records::{Batch, Record, Scratch};
use std::io;

/// A record that was found by its timestamp.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FoundOffset {
    /// Its offset.
    pub offset: i64,
    /// Its timestamp in ms.
    pub timestamp: i64,
    /// The leader epoch of its batch; -1: none.
    pub leader_epoch: i32,
}

impl Log {
    /// The first record at or behind the log start whose timestamp is at least `timestamp`. May read from disk.
    ///
    /// Nothing is found beyond the high watermark by the caller's own comparison: the log end is searched.
    pub fn offset_for_timestamp(&mut self, timestamp: i64) -> Result<Option<FoundOffset>, ReadError> {
        self.check_readable()?;
        for number in 0..self.segments.len() {
            let largest = self.segments[number].largest(&self.files).map_err(storage_error)?;
            if largest.timestamp < timestamp {
                continue;
            }
            if let Some(found) = self.search_segment(number, timestamp)? {
                return Ok(Some(found));
            }
        }
        Ok(None)
    }

    /// The first record with the largest timestamp (KIP-734). May read from disk.
    pub fn offset_of_max_timestamp(&mut self) -> Result<Option<FoundOffset>, ReadError> {
        self.check_readable()?;
        let mut best: Option<(usize, i64)> = None;
        for number in 0..self.segments.len() {
            let largest = self.segments[number].largest(&self.files).map_err(storage_error)?;
            if largest.timestamp >= 0 && best.is_none_or(|(_, timestamp)| largest.timestamp > timestamp) {
                best = Some((number, largest.timestamp));
            }
        }
        best.map_or(Ok(None), |(number, timestamp)| self.search_segment(number, timestamp))
    }

    fn check_readable(&self) -> Result<(), ReadError> {
        match &self.stopped {
            Some(reason) => Err(ReadError::Stopped(reason.clone())),
            None => Ok(()),
        }
    }

    /// The first record of a segment, from the log start on, that is so young.
    fn search_segment(&self, number: usize, timestamp: i64) -> Result<Option<FoundOffset>, ReadError> {
        let segment = &self.segments[number];
        let active = (number + 1 == self.segments.len()).then_some(&self.active.file);
        let before = segment.time_before(&self.files, timestamp).map_err(storage_error)?;
        let from = before.offset.max(self.log_start);
        let lookup = segment.lookup(from, segment.lookup_files(&self.files, active)?);
        let Some(first) = patient(lookup.find(from, Patience::Wait))? else { return Ok(None) };
        let mut batches = lookup.batches(first.position, Patience::Wait);
        while let Scanned::Batch(batch) = patient(batches.next(false))? {
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
            batch.records(&mut buffer, self.config.decompressed_bytes_max, &mut scratch).map_err(damaged)?;
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
