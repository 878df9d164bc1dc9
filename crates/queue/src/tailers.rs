//! Named tailers: positions that are stored in the directory, each in a mapped file of its own.

use std::fs::{self, File};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering::{Acquire, Release};

use crate::byte_lock::{Kind, LockFile};
use crate::clock::wall_ms;
use crate::error::{QueueError, Result};
use crate::journal::{has_publisher, is_consumer};
use crate::map::Map;
use crate::tailer_names::{file_of_name, name_of_file};

const DIRECTORY: &str = "tailers";
const EXTENSION: &str = ".tailer";
const MAGIC: u64 = u64::from_be_bytes(*b"MSTAILER");
const BYTES: usize = 64;
const NAME_CHARS_MAX: usize = 100;

mod word {
    pub(super) const MAGIC: usize = 0;
    pub(super) const POSITION: usize = 8;
    pub(super) const UPDATED_MS: usize = 16;
}

/// A named tailer, as in a list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TailerInfo {
    /// Its name.
    pub name: String,
    /// The offset that it reads next.
    pub position: i64,
    /// Messages that it has not read.
    pub lag: i64,
    /// True if a process reads under this name now.
    pub is_live: bool,
    /// When it last moved, in ms since 1970.
    pub updated_ms: i64,
}

/// The position of a named tailer, which no other process can open while this lives.
#[derive(Debug)]
pub(crate) struct Position {
    map: Map,
    _lock: LockFile,
}

impl Position {
    /// Opens the position of a name; a new one begins at `start`.
    pub(crate) fn open(directory: &Path, name: &str, start: i64) -> Result<Position> {
        if is_consumer(directory, name)? && has_publisher(directory)? {
            return Err(QueueError::TailerInUse { name: name.to_owned() });
        }
        Position::open_unless_read(directory, name, start)
    }

    fn open_unless_read(directory: &Path, name: &str, start: i64) -> Result<Position> {
        let path = path(directory, name)?;
        let parent = directory.join(DIRECTORY);
        fs::create_dir_all(&parent).map_err(|error| QueueError::io("making", &parent, error))?;
        let failed = |what, error| QueueError::io(what, &path, error);
        let open = || File::options().create(true).truncate(false).read(true).write(true).open(&path);
        let lock = LockFile::new(open().map_err(|error| failed("opening", error))?);
        if !lock.try_lock(0, Kind::Exclusive).map_err(|error| failed("locking", error))? {
            return Err(QueueError::TailerInUse { name: name.to_owned() });
        }
        if !lock.is_at(&path).map_err(|error| failed("reading", error))? {
            // It was deleted between opening and locking.
            return Position::open_unless_read(directory, name, start);
        }
        let mapped = open().and_then(|file| {
            if file.metadata()?.len() < BYTES as u64 {
                segment_allocate(&file)?;
            }
            Map::new(&file, BYTES, true)
        });
        let map = mapped.map_err(|error| failed("mapping", error))?;
        let position = Position { map, _lock: lock };
        if position.map.u64(word::MAGIC).load(Acquire) != MAGIC {
            position.store(start);
            position.map.u64(word::MAGIC).store(MAGIC, Release);
        }
        Ok(position)
    }

    /// The offset that is read next.
    pub(crate) fn load(&self) -> i64 {
        self.map.i64(word::POSITION).load(Acquire)
    }

    /// Notes that everything before this offset is done.
    pub(crate) fn store(&self, position: i64) {
        store(&self.map, position);
    }
}

/// The position of a named tailer without a reader: its owner moves it ([`Queue::bookmark`](crate::Queue::bookmark)). It takes no
/// descriptor. While the publisher of a journal runs, the bookmarks of its consumers are live tailers for all other processes.
#[derive(Debug)]
pub struct Bookmark {
    path: PathBuf,
    position: Map,
}

impl Bookmark {
    pub(crate) fn open(directory: &Path, name: &str, start: i64) -> Result<Bookmark> {
        // Closing the file releases the lock.
        let Position { map, .. } = Position::open_unless_read(directory, name, start)?;
        Ok(Bookmark { path: path(directory, name)?, position: map })
    }

    /// Deletes the file. Later moves are not stored.
    ///
    /// # Errors
    /// If it cannot be deleted.
    pub fn remove(&self) -> Result<()> {
        match fs::remove_file(&self.path) {
            Err(error) if error.kind() != ErrorKind::NotFound => {
                Err(QueueError::io("deleting", &self.path, error))
            }
            _ => Ok(()),
        }
    }

    /// The offset before which everything is done.
    pub fn position(&self) -> i64 {
        self.position.i64(word::POSITION).load(Acquire)
    }

    /// Notes that everything before this offset is done.
    pub fn move_to(&self, offset: i64) {
        store(&self.position, offset);
    }
}

fn store(map: &Map, position: i64) {
    map.i64(word::POSITION).store(position, Release);
    map.i64(word::UPDATED_MS).store(wall_ms(), Release);
}

fn segment_allocate(file: &File) -> std::io::Result<()> {
    crate::segment::allocate(file, BYTES as u64)
}

/// Finds a named tailer of a queue whose next offset is `end`; `None` if there is none.
pub(crate) fn find(directory: &Path, name: &str, end: i64) -> Result<Option<TailerInfo>> {
    let path = path(directory, name)?;
    read(&path, name.to_owned(), end, has_publisher(directory)?)
}

/// Deletes the position of a name without a live tailer; returns true if there was one.
pub(crate) fn remove(directory: &Path, name: &str) -> Result<bool> {
    let path = path(directory, name)?;
    match path.try_exists() {
        Ok(true) => {}
        Ok(false) => return Ok(false),
        // A name that cannot be a file's has no tailer.
        Err(error) if error.kind() == ErrorKind::InvalidFilename => return Ok(false),
        Err(error) => return Err(QueueError::io("reading", &path, error)),
    }
    // While it is held, no tailer can begin with the file that is deleted.
    let _held = Position::open(directory, name, 0)?;
    fs::remove_file(&path).map_err(|error| QueueError::io("deleting", &path, error))?;
    Ok(true)
}

/// All named tailers of a queue whose next offset is `end`, by name.
pub(crate) fn list(directory: &Path, end: i64) -> Result<Vec<TailerInfo>> {
    let parent = directory.join(DIRECTORY);
    let entries = match fs::read_dir(&parent) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries.map_err(|error| QueueError::io("reading", &parent, error))?,
    };
    let (mut tailers, has_publisher) = (Vec::new(), has_publisher(directory)?);
    for entry in entries {
        let path = entry.map_err(|error| QueueError::io("reading", &parent, error))?.path();
        let name =
            path.file_name().and_then(|name| name.to_str()).and_then(|name| name.strip_suffix(EXTENSION));
        let Some(name) = name.and_then(name_of_file) else { continue };
        tailers.extend(read(&path, name, end, has_publisher)?);
    }
    tailers.sort_by(|one, other| one.name.cmp(&other.name));
    Ok(tailers)
}

/// The smallest position; `None` without tailers.
pub(crate) fn slowest(directory: &Path) -> Result<Option<i64>> {
    Ok(list(directory, 0)?.into_iter().map(|tailer| tailer.position).min())
}

/// Moves tailers that are behind `end` back to it. A power cut or a repair took messages that they had read, and they have not read
/// those that are appended now. No other process has the queue open.
pub(crate) fn move_back_to(directory: &Path, end: i64) -> Result<()> {
    for tailer in list(directory, end)?.into_iter().filter(|tailer| tailer.position > end) {
        Position::open(directory, &tailer.name, end)?.store(end);
    }
    Ok(())
}

/// Reads a position; `None` for a file that has none (yet), or is gone.
fn read(path: &Path, name: String, end: i64, has_publisher: bool) -> Result<Option<TailerInfo>> {
    let failed = |error| QueueError::io("reading", path, error);
    let file = match File::open(path) {
        // It was removed since its name was listed, or no file can have such a name.
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::InvalidFilename) => {
            return Ok(None);
        }
        opened => opened.map_err(failed)?,
    };
    if file.metadata().map_err(failed)?.len() < BYTES as u64 {
        return Ok(None);
    }
    let map = Map::new(&file, BYTES, false).map_err(failed)?;
    if map.u64(word::MAGIC).load(Acquire) != MAGIC {
        return Ok(None);
    }
    let directory = path.parent().and_then(Path::parent).unwrap_or(path);
    let is_live = LockFile::new(file).is_locked_elsewhere(0).map_err(failed)?
        || has_publisher && is_consumer(directory, &name)?;
    let position = map.i64(word::POSITION).load(Acquire);
    let updated_ms = map.i64(word::UPDATED_MS).load(Acquire);
    Ok(Some(TailerInfo { name, position, lag: end.saturating_sub(position).max(0), is_live, updated_ms }))
}

fn path(directory: &Path, name: &str) -> Result<PathBuf> {
    let chars = name.chars().count();
    if chars == 0 || chars > NAME_CHARS_MAX {
        return Err(QueueError::TailerName { name: name.to_owned() });
    }
    Ok(directory.join(DIRECTORY).join(file_of_name(name) + EXTENSION))
}
