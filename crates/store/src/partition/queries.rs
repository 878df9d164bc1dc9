//! Queries of a partition besides reads: its size and directory, epochs, timestamps and producers, and all of its records. They hide
//! whether a log or an attached queue answers.

use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;

use mainstem_log::dir::LogDir;
use mainstem_log::placement::DirectoryId;
use mainstem_log::{Ends, FoundOffset, ProducerState};
use mainstem_records::LeaderEpoch;
use mainstem_wire::ErrorCode;

use super::Partition;
use crate::errors::read_error_code;
use crate::replay::{Checksums, Entry, ReplayError, replay_range};

/// Size, directory and ends of a partition at one instant.
#[derive(Debug)]
pub struct Extent {
    /// The log directory that it is in; `None` for an attached queue, which has a directory of its own.
    pub dir: Option<Arc<LogDir>>,
    /// Bytes of its segments.
    pub bytes: u64,
    /// Number of its segments.
    pub segments: usize,
    /// Its log start and ends.
    pub ends: Ends,
}

/// A record that is looked for by its timestamp.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TimeSearch {
    /// The first one whose timestamp is at least this, in ms.
    AtLeast(i64),
    /// The first one with the largest timestamp (KIP-734).
    Latest,
}

impl Partition {
    /// Its size, directory and ends.
    ///
    /// # Errors
    /// That of [`NoLog`](super::NoLog).
    pub fn extent(&self) -> Result<Extent, ErrorCode> {
        if let Some(queue) = &self.attached {
            let (bytes, segments) = queue.size();
            return Ok(Extent { dir: None, bytes, segments, ends: queue.ends()? });
        }
        self.with_log(|log| Extent {
            dir: Some(log.dir().clone()),
            bytes: log.size(),
            segments: log.segment_count(),
            ends: log.ends(),
        })
    }

    /// The log directory that it is in, and the directory of its own there. A move may change both at any time.
    ///
    /// # Errors
    /// That of [`NoLog`](super::NoLog): an attached queue is in no log directory.
    pub fn place(&self) -> Result<(Arc<LogDir>, PathBuf), ErrorCode> {
        self.with_log(|log| (log.dir().clone(), log.path().to_owned()))
    }

    /// The log directory whose disk a read waits for; none where no log directory has the records. It waits for nothing, and a move may
    /// change it at any time.
    pub fn directory(&self) -> Option<DirectoryId> {
        self.flush.read().as_ref().map(|flush| flush.dir.directory_id())
    }

    /// The leader epoch of the record at an offset, where it is known.
    pub fn epoch_of(&self, offset: i64) -> Option<LeaderEpoch> {
        match &self.attached {
            Some(queue) => queue.epoch_of(offset),
            None => self.with_log(|log| log.leader_epochs().epoch_of(offset)).ok()?,
        }
    }

    /// Looks for a record by its timestamp, up to the log end. Reads from the disk, for which no append waits.
    ///
    /// # Errors
    /// That of [`NoLog`](super::NoLog), or why the files cannot be read.
    pub fn search_time(&self, wanted: TimeSearch) -> Result<Option<FoundOffset>, ErrorCode> {
        if let Some(queue) = &self.attached {
            let found = queue.search(match wanted {
                TimeSearch::AtLeast(timestamp) => Some(timestamp),
                TimeSearch::Latest => None,
            })?;
            return Ok(found.map(|(offset, timestamp)| FoundOffset {
                offset,
                timestamp,
                leader_epoch: LeaderEpoch::NONE,
            }));
        }
        loop {
            let (path, search) = self.with_log(|log| (log.path().to_owned(), log.timestamp_search()))?;
            let found = search.and_then(|search| match wanted {
                TimeSearch::AtLeast(timestamp) => search.offset_for(timestamp),
                TimeSearch::Latest => search.offset_of_max(),
            });
            // If it has moved in between, what was not found may only have been elsewhere by then.
            if self.is_at(&path) {
                return found.map_err(|error| read_error_code(&error));
            }
        }
    }

    /// Looks at what is remembered of its producers. Appends wait for that.
    ///
    /// # Errors
    /// That of [`NoLog`](super::NoLog).
    pub fn with_producers<T>(&self, look: impl FnOnce(&ProducerState) -> T) -> Result<T, ErrorCode> {
        match &self.attached {
            Some(queue) => Ok(queue.with_producers(|producers| look(producers.state()))),
            None => self.with_log(|log| look(log.producer_state())),
        }
    }

    /// Calls `each` with the entries of its log from the start of a range on, of the batches that begin before its end. Nothing is appended
    /// meanwhile.
    ///
    /// # Errors
    /// That of [`NoLog`](super::NoLog); within, why the log cannot be read.
    pub fn replay_range(
        &self,
        offsets: Range<i64>,
        checksums: Checksums,
        each: impl FnMut(Entry<'_>),
    ) -> Result<Result<(), ReplayError>, ErrorCode> {
        self.with_log(|log| replay_range(log, offsets, checksums, each))
    }
}
