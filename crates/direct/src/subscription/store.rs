//! The places where a subscription is stored: a file beside the journal, and the position of a named tailer of the queue, for which
//! retention may wait. Neither takes a descriptor while nothing is written.

use std::fs::File;
use std::path::{Path, PathBuf};

use mainstem_lines::OneLine;
use mainstem_queue::{Bookmark, Queue, file_of_name, name_of_file};

use crate::error::{DirectError, Result};
use crate::slot_file::{SlotFile, Syncing};

const FOLDER: &str = "subscriptions";
const EXTENSION: &str = ".subscription";

/// The storage of a subscription.
pub(crate) trait SubscriptionStore: std::fmt::Debug + Send {
    /// Replaces what is stored. The bytes survive a kill; if `is_synced`, a power cut too.
    ///
    /// # Errors
    /// If they cannot be written; the earlier ones are still stored then.
    fn write(&mut self, bytes: &[u8], is_synced: bool) -> Result<()>;

    /// Notes that every event before an offset is done.
    fn seek(&mut self, offset: i64);

    /// Returns the sync of the last write; `None` if it is on disk, or if its sync has failed.
    fn to_sync(&self) -> Option<Syncing>;

    /// Notes that the write of this number was synced.
    fn synced(&mut self, number: u64);

    /// Notes that the sync of this number failed. Returns true if it was the last write, which has to be written again.
    fn sync_failed(&mut self, number: u64) -> bool;

    /// Deletes the consumer. Nothing is stored after that.
    ///
    /// # Errors
    /// If it cannot be deleted; it is still stored then.
    fn delete(&mut self) -> Result<()>;
}

/// Stores a subscription beside a journal.
#[derive(Debug)]
pub(super) struct BesideJournal {
    file: SlotFile,
    queue: Queue,
    /// Has retention wait.
    bookmark: Bookmark,
    name: String,
}

impl BesideJournal {
    /// Opens a consumer's file; returns its contents, none for a new one.
    pub(super) fn open(queue: &Queue, name: &str) -> Result<(BesideJournal, Option<Vec<u8>>)> {
        let path = path(queue.directory(), name);
        let folder = path.parent().expect("it has one");
        std::fs::create_dir_all(folder).map_err(|error| DirectError::io("making", folder, error))?;
        let (file, kept) = SlotFile::open(&path)?;
        let (queue, bookmark, name) = (queue.clone(), queue.bookmark(name)?, name.to_owned());
        Ok((BesideJournal { file, queue, bookmark, name }, kept))
    }

    /// The path of the file.
    pub(super) fn path(&self) -> &Path {
        self.file.path()
    }
}

impl SubscriptionStore for BesideJournal {
    fn write(&mut self, bytes: &[u8], is_synced: bool) -> Result<()> {
        self.file.write(bytes, is_synced)
    }

    fn seek(&mut self, offset: i64) {
        self.bookmark.move_to(offset);
    }

    fn to_sync(&self) -> Option<Syncing> {
        self.file.to_sync()
    }

    fn synced(&mut self, number: u64) {
        self.file.synced(number);
    }

    fn sync_failed(&mut self, number: u64) -> bool {
        self.file.sync_failed(number)
    }

    fn delete(&mut self) -> Result<()> {
        // The file decides: without it the consumer is unknown, whatever becomes of the rest.
        let path = self.file.path();
        match std::fs::remove_file(path) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
            deleted => deleted.map_err(|error| DirectError::io("deleting", path, error))?,
        }
        let forgotten = sync_names(&self.queue, path);
        forgotten.and_then(|()| Ok(self.bookmark.remove()?)).unwrap_or_else(|error| {
            tracing::error!(
                "consumer {} is forgotten, and not all of it is gone: {error}",
                OneLine(&self.name)
            );
        });
        Ok(())
    }
}

/// Returns the names of the consumers that are stored beside a journal.
pub(super) fn names(directory: &Path) -> Result<Vec<String>> {
    let folder = directory.join(FOLDER);
    let entries = match std::fs::read_dir(&folder) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries.map_err(|error| DirectError::io("reading", &folder, error))?,
    };
    let mut names = Vec::new();
    for entry in entries {
        let file = entry.map_err(|error| DirectError::io("reading", &folder, error))?.file_name();
        let name = file.to_str().and_then(|name| name.strip_suffix(EXTENSION));
        names.extend(name.and_then(name_of_file));
    }
    names.sort_unstable();
    Ok(names)
}

/// Makes the name of a new file durable. Without it, a consumer that begins at the end could miss events after a power cut.
pub(super) fn sync_names(queue: &Queue, path: &Path) -> Result<()> {
    for directory in [path.parent().expect("it has one"), queue.directory()] {
        let synced = File::open(directory).and_then(|directory| directory.sync_all());
        synced.map_err(|error| DirectError::io("syncing", directory, error))?;
    }
    Ok(())
}

/// Returns true if a consumer has a file, whatever is in it.
pub(super) fn is_there(directory: &Path, name: &str) -> bool {
    path(directory, name).exists()
}

fn path(directory: &Path, name: &str) -> PathBuf {
    directory.join(FOLDER).join(file_of_name(name) + EXTENSION)
}
