//! The checkpoint file of the leader epochs, and whether it has what is in memory.
//!
//! It is replaced as a whole and durably, mostly by maintenance and without the log. A roll, a truncation and a stop need it
//! written, and do that themselves if they come first. Maintenance then does not write its older state any more.

use crate::error::LogError;
use crate::files::PartitionFiles;
use crate::leader_epochs::{LEADER_EPOCH_CHECKPOINT, LeaderEpochs};
use crate::storage::replace_file;
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Counts the changes of the epochs against those that the file has.
#[derive(Debug)]
pub(crate) struct EpochCheckpoint {
    changes: u64,
    file: Arc<EpochFile>,
}

#[derive(Debug)]
struct EpochFile {
    files: PartitionFiles,
    /// The number of changes that the file has, durably; [`CLOSED`]: it may not be written any more.
    written: AtomicU64,
    /// Held while the file is replaced.
    turn: Mutex<()>,
}

/// Beyond any number of changes.
const CLOSED: u64 = u64::MAX;

/// The leader epochs of a log at one moment, to be written without the log.
#[derive(Debug)]
pub struct EpochsToWrite {
    changes: u64,
    text: String,
    file: Arc<EpochFile>,
}

impl EpochCheckpoint {
    /// The checkpoint of a directory; `behind`: the file does not have what is in memory.
    pub(crate) fn new(files: PartitionFiles, behind: bool) -> EpochCheckpoint {
        let file = Arc::new(EpochFile { files, written: AtomicU64::new(0), turn: Mutex::default() });
        EpochCheckpoint { changes: u64::from(behind), file }
    }

    /// The epochs have changed, if `changed`.
    pub(crate) fn note(&mut self, changed: bool) {
        self.changes += u64::from(changed);
    }

    /// The epochs to write, if the file does not have them.
    pub(crate) fn to_write(&self, epochs: &LeaderEpochs) -> Option<EpochsToWrite> {
        let behind = self.file.written.load(Ordering::Acquire) < self.changes;
        behind.then(|| EpochsToWrite {
            changes: self.changes,
            text: epochs.encode(),
            file: self.file.clone(),
        })
    }
}

impl Drop for EpochCheckpoint {
    /// The directory may soon be another topic's of the same name.
    fn drop(&mut self) {
        let _turn = self.file.turn.lock();
        self.file.written.store(CLOSED, Ordering::Release);
    }
}

impl EpochsToWrite {
    /// Makes the file durable, unless it has these epochs, or later ones, already. Blocks on the disk.
    ///
    /// # Errors
    /// When the file cannot be replaced: it is as before, and the next one tries again.
    pub fn write(&self) -> Result<(), LogError> {
        let _turn = self.file.turn.lock();
        if self.file.written.load(Ordering::Acquire) < self.changes {
            let files = &self.file.files;
            let path = files.dir.join(LEADER_EPOCH_CHECKPOINT);
            replace_file(&*files.storage, &path, self.text.as_bytes())
                .map_err(LogError::io("replace", path))?;
            self.file.written.store(self.changes, Ordering::Release);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::descriptors::DescriptorCache;
    use crate::log::read_epochs;
    use crate::sim::SimStorage;
    use crate::storage::Storage;
    use mainstem_records::LeaderEpoch;

    fn files() -> PartitionFiles {
        let storage: Arc<dyn Storage> = Arc::new(SimStorage::new());
        storage.create_dir("/t-0".as_ref()).unwrap();
        let descriptors = DescriptorCache::new(storage.clone(), 10);
        PartitionFiles { storage, descriptors, dir: Arc::from(std::path::Path::new("/t-0")) }
    }

    #[test]
    fn what_is_older_than_the_file_is_not_written() {
        let files = files();
        let mut checkpoint = EpochCheckpoint::new(files.clone(), false);
        let mut epochs = LeaderEpochs::default();
        assert!(checkpoint.to_write(&epochs).is_none());
        checkpoint.note(epochs.assign(LeaderEpoch::new(1), 10));
        let earlier = checkpoint.to_write(&epochs).unwrap();
        checkpoint.note(epochs.assign(LeaderEpoch::new(2), 20));
        let later = checkpoint.to_write(&epochs).unwrap();
        later.write().unwrap();
        earlier.write().unwrap();
        assert_eq!(read_epochs(&files).unwrap().as_ref(), Some(&epochs));
        assert!(checkpoint.to_write(&epochs).is_none());
    }

    #[test]
    fn nothing_is_written_into_the_directory_of_a_log_that_is_gone() {
        let files = files();
        let mut checkpoint = EpochCheckpoint::new(files.clone(), false);
        let mut epochs = LeaderEpochs::default();
        checkpoint.note(epochs.assign(LeaderEpoch::new(1), 10));
        let late = checkpoint.to_write(&epochs).unwrap();
        drop(checkpoint);
        late.write().unwrap();
        assert_eq!(read_epochs(&files).unwrap(), None);
    }
}
