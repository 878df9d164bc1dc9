//! Copies of partitions on their way into a log directory: `<topic>-<partition>.<id>-future`.
//!
//! The name is all that a restart knows of a move; what the copy is worth is decided by [`crate::placement`].

use super::LogDir;
use crate::import::INCOMING;
use crate::partition_dir::{DirName, SetAside, TopicPartition, future_name};
use crate::partition_metadata::{read_topic_id, write_topic_id};
use crate::uuid;
use std::io;
use std::path::{Path, PathBuf};

/// The directory of a copy, as found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FoundFuture {
    /// The topic's id; `None` where a power cut has left none. The topic's name may be cut short in the directory's.
    pub topic_id: Option<[u8; 16]>,
    /// The partition's number.
    pub partition: i32,
    /// The directory.
    pub path: PathBuf,
    /// True for a copy of another replica's log, false for a move between log directories.
    pub is_import: bool,
}

impl LogDir {
    /// The copies that are there now.
    ///
    /// # Errors
    /// The file system's.
    pub fn futures(&self) -> io::Result<Vec<FoundFuture>> {
        let mut found = Vec::new();
        for entry in self.storage.list(&self.path)?.into_iter().filter(|entry| entry.is_dir) {
            if let DirName::Future(TopicPartition { partition, .. }) = DirName::parse(&entry.name) {
                let path = self.path.join(entry.name);
                let topic_id = read_topic_id(&*self.storage, &path)?;
                let is_import = self.storage.exists(&path.join(INCOMING))?;
                found.push(FoundFuture { topic_id, partition, path, is_import });
            }
        }
        Ok(found)
    }

    /// Creates the directory of a copy, with the topic's id in it. From here on a restart knows of the move.
    ///
    /// # Errors
    /// The file system's.
    pub fn create_future(&self, partition: &TopicPartition, topic_id: &[u8; 16]) -> io::Result<PathBuf> {
        let path = self.path.join(future_name(partition, &uuid::random()));
        self.storage.create_dir(&path)?;
        write_topic_id(&*self.storage, &path, topic_id)?;
        Ok(path)
    }

    /// Removes a copy that is not wanted any more. One that is not there is fine.
    ///
    /// # Errors
    /// The file system's.
    pub fn remove_future(&self, path: &Path) -> io::Result<()> {
        match self.storage.remove_dir_all(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            result => result,
        }
    }

    /// Gives a whole copy the partition's name, durably. Nothing in this directory has that name.
    ///
    /// # Errors
    /// The file system's: whether it happened is not known then.
    pub fn promote_future(&self, future: &Path, partition: &TopicPartition) -> io::Result<PathBuf> {
        let path = self.name_future(future, partition)?;
        self.storage.sync_dir(&self.path)?;
        Ok(path)
    }

    /// As [`promote_future`](Self::promote_future); durable after a sync of this directory.
    pub(crate) fn name_future(&self, future: &Path, partition: &TopicPartition) -> io::Result<PathBuf> {
        let path = self.partition_path(partition);
        self.storage.rename(future, &path)?;
        Ok(path)
    }

    /// Takes a partition out of service that has a whole copy in another directory; durable after a sync of this one.
    /// [`LogDir::forget`] follows when that holds no caller up.
    pub(crate) fn retire(&self, partition: &TopicPartition, due_mono_ms: u64) -> io::Result<()> {
        self.rename_aside(partition, SetAside::Delete, due_mono_ms)
    }
}
