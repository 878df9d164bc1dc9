//! Room on the file system of a log directory: a reserve, so that a disk that clients have filled still takes what a stop
//! and a start have to write.
//!
//! The reserve is a file of which only the blocks count. When a write finds the disk full that is logged once, and clients'
//! appends are refused until there is room again. A stop, and a start that finds the disk full, remove the file and live on
//! its blocks; no other writer gets them, since appends stay refused until the reserve can be set up again.

use super::LogDir;
use crate::storage::{OpenMode, Storage};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Name of the file with the reserve.
const RESERVE: &str = ".mainstem-reserve";

/// Name of the file that is written and removed to find out whether there is room.
const ROOM_PROBE: &str = ".room-probe";

/// The reserve is half a percent of the file system within these bounds, and never more than a quarter of it.
const RESERVE_BYTES: std::ops::RangeInclusive<u64> = 1 << 20..=32 << 20;

/// What is known of the room for a directory.
#[derive(Debug)]
pub(super) struct Space {
    storage: Arc<dyn Storage>,
    dir: PathBuf,
    reserve_bytes: u64,
    full: AtomicBool,
}

impl Space {
    /// Sets up the reserve, or gives it away where the disk is full.
    pub(super) fn open(storage: &Arc<dyn Storage>, dir: &Path) -> io::Result<Space> {
        let total = storage.total_space(dir)?;
        let reserve_bytes = (total / 200).clamp(*RESERVE_BYTES.start(), *RESERVE_BYTES.end()).min(total / 4);
        let full = AtomicBool::new(false);
        let space = Space { storage: storage.clone(), dir: dir.to_owned(), reserve_bytes, full };
        let free = storage.free_space(dir)?;
        let has_reserve = storage.exists(&space.dir.join(RESERVE))?;
        let is_full = if has_reserve { free < reserve_bytes / 2 } else { !space.set_up() };
        if is_full {
            space.release();
            space.note_full();
        }
        Ok(space)
    }

    fn note_full(&self) {
        if !self.full.swap(true, Ordering::AcqRel) {
            tracing::error!(
                dir = %self.dir.display(),
                "the disk of the log directory is full: appends are refused, reads go on; make room, and appends go on by \
                 themselves"
            );
        }
    }

    /// Takes the reserve, if twice as much is there; returns true if it did.
    fn set_up(&self) -> bool {
        let has_room = self.storage.free_space(&self.dir).is_ok_and(|free| free >= 2 * self.reserve_bytes);
        has_room && self.allocate(RESERVE).is_ok()
    }

    fn allocate(&self, name: &str) -> io::Result<()> {
        let path = self.dir.join(name);
        let file = self.storage.open(&path, OpenMode::Create)?;
        let allocated = file.allocate(0, self.reserve_bytes);
        if allocated.is_err() {
            self.storage.remove_file(&path)?;
        }
        allocated
    }

    /// Gives the reserve away.
    fn release(&self) {
        match self.storage.remove_file(&self.dir.join(RESERVE)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                tracing::warn!(dir = %self.dir.display(), %error, "the reserve cannot be removed");
            }
            _ => {}
        }
    }

    fn has_room(&self) -> bool {
        match self.storage.exists(&self.dir.join(RESERVE)) {
            Ok(true) => {}
            _ => return self.set_up(),
        }
        let free = self.storage.free_space(&self.dir).is_ok_and(|free| free >= self.reserve_bytes);
        // A quota is not in what the file system says.
        let has_room = free && self.allocate(ROOM_PROBE).is_ok();
        has_room && self.storage.remove_file(&self.dir.join(ROOM_PROBE)).is_ok()
    }
}

impl LogDir {
    /// Whether its disk is full, so that clients' appends are refused.
    pub fn is_full(&self) -> bool {
        self.space.as_ref().is_some_and(|space| space.full.load(Ordering::Relaxed))
    }

    /// A write found no room. Logged once until there is some.
    pub fn note_full(&self) {
        if let Some(space) = &self.space {
            space.note_full();
        }
    }

    /// Lets appends go on where there is room again; to be called now and then. May block on the disk.
    pub fn look_for_room(&self) {
        let Some(space) = self.space.as_ref().filter(|_| self.is_full()) else { return };
        if space.has_room() {
            space.full.store(false, Ordering::Release);
            tracing::warn!(dir = %self.path.display(), "there is room on the disk of the log directory again");
        }
    }

    /// Gives the reserve of a full disk away, for what a stop has to write.
    pub fn prepare_stop(&self) {
        if let Some(space) = self.space.as_ref().filter(|_| self.is_full()) {
            space.release();
        }
    }
}
