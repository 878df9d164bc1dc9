//! The files of a copy that is fetched, as they are on this disk.

use std::path::Path;
use std::sync::Arc;

use mainstem_log::dir::LogDir;
use mainstem_log::partition_dir::TopicPartition;
use mainstem_log::{
    ExportedFile, FoundImport, Import, ImportEnds, ImportError, ImportedLog, LogConfig, LogError,
    RecoveryWatch,
};
use mainstem_replication::copies::manifest::{CopyFileKind, Manifest};
use mainstem_replication::copies::question::{Answer, Question};
use mainstem_replication::copies::transfer::{Taken, Transfer, TransferError};

/// Bytes after which what was received is put on disk, and noted: a restart fetches no more than these again.
const SYNC_BYTES: u64 = 8 << 20;
/// Files that are open until then, at most.
const UNSYNCED_FILES_MAX: usize = 64;

/// The files of a copy, or of an earlier one, that a disk has.
pub(super) struct Found(Option<FoundImport>);

/// A copy that grows on this disk.
pub(super) struct Receiving {
    import: Import,
    transfer: Transfer,
    files: Vec<ExportedFile>,
    synced: u64,
}

/// Why a copy cannot be received.
#[derive(Debug, thiserror::Error)]
pub(super) enum ReceivingError {
    #[error(transparent)]
    Log(#[from] LogError),
    #[error("the leader's answers make no sense: {0}")]
    Transfer(#[from] TransferError),
}

/// The consequence of an answer.
pub(super) enum Next {
    /// A number of bytes came.
    Received(u64),
    /// A number of bytes that are here are right, or are to be fetched all the same.
    Compared(u64),
    /// The same is to be asked again later.
    Later,
    /// The copy is not offered any more.
    Gone,
}

impl Found {
    /// Looks for what a log directory has.
    pub(super) fn look(
        dir: &Arc<LogDir>,
        partition: &TopicPartition,
        manifest: &Manifest,
    ) -> Result<Found, ReceivingError> {
        Ok(Found(Import::find(dir, partition, &manifest.group.topic_id)?))
    }

    /// Returns true if there is something.
    pub(super) fn is_some(&self) -> bool {
        self.0.is_some()
    }

    /// Bytes that a copy takes on the disk beside those that are here: about so many, where these are of an earlier one.
    pub(super) fn needed_by(&self, manifest: &Manifest) -> Result<u64, ReceivingError> {
        let here = self.0.as_ref().map_or(Ok(0), |found| found.import.bytes())?;
        Ok(manifest.len().saturating_sub(here))
    }
}

impl Receiving {
    /// Begins, or continues with the files of this copy or an earlier one.
    pub(super) fn begin(
        (dir, partition): (&Arc<LogDir>, &TopicPartition),
        found: Found,
        manifest: Arc<Manifest>,
    ) -> Result<Receiving, ReceivingError> {
        let description = manifest.encode();
        let ends = ImportEnds {
            log_start: manifest.log_start,
            end: manifest.start.offset,
            compacted_to: manifest.compacted_to,
        };
        let files = manifest.files.iter().map(|file| ExportedFile {
            base_offset: file.base_offset,
            is_snapshot: file.kind == CopyFileKind::Snapshot,
            len: file.len,
        });
        let files: Vec<_> = files.collect();
        let nothing = vec![0; files.len()];
        let topic_id = &manifest.group.topic_id;
        let (import, synced, here) = match found.0 {
            Some(FoundImport { import, description: known, synced })
                if known == description && synced <= manifest.len() =>
            {
                (import, synced, nothing)
            }
            Some(FoundImport { mut import, .. }) => {
                let here = import.begin_again(ends, &description, &files)?;
                (import, 0, here)
            }
            None => (Import::create(dir, partition, topic_id, ends, &description)?, 0, nothing),
        };
        let transfer = Transfer::new(manifest, synced, here)?;
        Ok(Receiving { import, transfer, files, synced })
    }

    /// The next question; `None`: all is here.
    pub(super) fn question(&self) -> Option<Question> {
        self.transfer.next()
    }

    /// The directory in which it grows.
    pub(super) fn path(&self) -> &Path {
        self.import.path()
    }

    /// Bytes that are still to come, or to be compared.
    pub(super) fn missing(&self) -> u64 {
        self.transfer.manifest().len() - self.transfer.received()
    }

    /// Takes the answer to the next question.
    pub(super) fn take(&mut self, answer: &Answer<'_>) -> Result<Next, ReceivingError> {
        let own_crc = match self.transfer.range() {
            Some((file, position, len)) => self.import.crc_of(&self.files[file], position, len)?,
            None => None,
        };
        let compared = self.transfer.range().map_or(0, |(_, _, len)| u64::from(len));
        let next = match self.transfer.take(answer, own_crc)? {
            Taken::Write { file, position, bytes } => {
                self.import.write(&self.files[file], position, bytes)?;
                Next::Received(bytes.len() as u64)
            }
            Taken::Matches { file, .. } => {
                self.import.note_kept(&self.files[file])?;
                Next::Compared(compared)
            }
            Taken::Differs => Next::Compared(compared),
            Taken::Later => Next::Later,
            Taken::Gone => Next::Gone,
        };
        let unsynced = self.transfer.received() - self.synced;
        if unsynced >= SYNC_BYTES || self.import.unsynced_files() >= UNSYNCED_FILES_MAX {
            self.sync()?;
        }
        Ok(next)
    }

    /// Puts on disk what was received, so that the next attempt begins behind it.
    pub(super) fn sync(&mut self) -> Result<(), LogError> {
        self.import.sync(self.transfer.received())?;
        self.synced = self.transfer.received();
        Ok(())
    }

    /// Puts all on disk and opens the log.
    pub(super) fn finish(
        mut self,
        (config, mono_ms): (Arc<LogConfig>, u64),
        watch: &Arc<RecoveryWatch>,
    ) -> Result<ImportedLog, ImportError> {
        self.sync()?;
        let manifest = self.transfer.manifest().clone();
        self.import.finish(&self.files, &manifest.epochs, (config, mono_ms), watch)
    }
}
