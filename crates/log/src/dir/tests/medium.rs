//! A medium in memory that forgets at a power cut what was not synced: whole, in part, in any order.

use crate::storage::{Advice, DirEntry, OpenMode, Storage, StorageFile, StorageLock};
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt;
use std::io::{self, IoSlice};
use std::os::fd::BorrowedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Bytes that reach the disk together.
const BLOCK: usize = 8;

type Names = BTreeMap<String, u64>;

/// A change of the names in one directory; a rename is one change.
#[derive(Clone)]
struct Change {
    removed: Option<String>,
    added: Option<(String, u64)>,
}

impl Change {
    fn apply(&self, names: &mut Names) {
        if let Some(name) = &self.removed {
            names.remove(name);
        }
        if let Some((name, inode)) = &self.added {
            names.insert(name.clone(), *inode);
        }
    }
}

#[derive(Default)]
struct Directory {
    names: Names,
    durable: Names,
    /// Not synced yet.
    changes: Vec<Change>,
}

#[derive(Default)]
struct Content {
    bytes: Vec<u8>,
    durable: Vec<u8>,
}

#[derive(Default)]
struct State {
    /// By path: no test renames or removes a directory.
    directories: HashMap<PathBuf, Directory>,
    files: HashMap<u64, Content>,
    inodes: u64,
    locked: BTreeSet<PathBuf>,
}

/// A disk with the page cache over it.
#[derive(Default, Clone)]
pub(super) struct Medium {
    state: Arc<Mutex<State>>,
}

impl fmt::Debug for Medium {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Medium")
    }
}

/// A small generator of its own, so that a seed means the same for ever (splitmix64).
pub(super) struct Dice(pub(super) u64);

impl Dice {
    fn roll(&mut self, sides: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ mixed >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ mixed >> 31) % sides
    }
}

impl Medium {
    /// With an existing root directory.
    pub(super) fn new() -> Medium {
        let medium = Medium::default();
        medium.state.lock().directories.insert(PathBuf::from("/"), Directory::default());
        medium
    }

    /// The process is gone, the machine runs on.
    pub(super) fn kill(&self) {
        self.state.lock().locked.clear();
    }

    /// The power is gone.
    pub(super) fn power_cut(&self, dice: &mut Dice) {
        let mut state = self.state.lock();
        state.locked.clear();
        for directory in state.directories.values_mut() {
            let Directory { names, durable, changes } = directory;
            // All or nothing of the rest happens as often as a mixture.
            let (all, none) = (dice.roll(3) == 0, dice.roll(3) == 0);
            let kept = changes.drain(..).filter(|_| all || !none && dice.roll(2) == 0);
            kept.for_each(|change| change.apply(durable));
            names.clone_from(durable);
        }
        let mut inodes: Vec<_> = state.files.keys().copied().collect();
        inodes.sort_unstable();
        for inode in inodes {
            let content = state.files.get_mut(&inode).expect("it was listed");
            content.durable = torn(content, dice);
            content.bytes.clone_from(&content.durable);
        }
        // A directory without a name is none.
        let named = |path: &Path, all: &HashMap<PathBuf, Directory>| match (path.parent(), path.file_name()) {
            (Some(parent), Some(name)) => all
                .get(parent)
                .is_some_and(|parent| parent.names.contains_key(name.to_str().expect("names are UTF-8"))),
            _ => true,
        };
        loop {
            let lost: Vec<_> =
                state.directories.keys().filter(|path| !named(path, &state.directories)).cloned().collect();
            if lost.is_empty() {
                break;
            }
            lost.iter().for_each(|path| drop(state.directories.remove(path)));
        }
    }
}

/// Returns a file after a power cut: the old bytes, the new ones, or a mixture of blocks with either length.
fn torn(content: &Content, dice: &mut Dice) -> Vec<u8> {
    let (new, old) = (&content.bytes, &content.durable);
    match dice.roll(3) {
        0 => new.clone(),
        1 => old.clone(),
        _ => {
            let mut mixed = if dice.roll(2) == 0 { vec![0; new.len()] } else { vec![0; old.len()] };
            for (index, block) in mixed.chunks_mut(BLOCK).enumerate() {
                let source = if dice.roll(2) == 0 { new } else { old };
                let start = (index * BLOCK).min(source.len());
                let end = (start + block.len()).min(source.len());
                block[..end - start].copy_from_slice(&source[start..end]);
            }
            mixed
        }
    }
}

fn missing<T>() -> io::Result<T> {
    Err(io::ErrorKind::NotFound.into())
}

impl State {
    fn directory(&mut self, path: &Path) -> io::Result<&mut Directory> {
        self.directories.get_mut(path).map_or_else(missing, Ok)
    }

    /// The directory of a path, and the name in it.
    fn place(&mut self, path: &Path) -> io::Result<(&mut Directory, String)> {
        let name = path.file_name().and_then(|name| name.to_str()).ok_or(io::ErrorKind::InvalidInput)?;
        let name = name.to_owned();
        Ok((self.directory(path.parent().unwrap_or(Path::new("/")))?, name))
    }

    fn change(&mut self, path: &Path, change: Change) -> io::Result<()> {
        let (directory, _) = self.place(path)?;
        change.apply(&mut directory.names);
        directory.changes.push(change);
        Ok(())
    }

    fn new_inode(&mut self) -> u64 {
        self.inodes += 1;
        self.inodes
    }

    fn lookup(&mut self, path: &Path) -> io::Result<u64> {
        let (directory, name) = self.place(path)?;
        directory.names.get(&name).copied().map_or_else(missing, Ok)
    }

    fn create(&mut self, path: &Path) -> io::Result<u64> {
        let inode = self.new_inode();
        let (_, name) = self.place(path)?;
        self.change(path, Change { removed: None, added: Some((name, inode)) })?;
        Ok(inode)
    }

    fn sync_all(&mut self) {
        self.files.values_mut().for_each(|content| content.durable.clone_from(&content.bytes));
        self.directories.values_mut().for_each(Directory::sync);
    }
}

impl Directory {
    fn sync(&mut self) {
        self.durable.clone_from(&self.names);
        self.changes.clear();
    }
}

impl Storage for Medium {
    fn open(&self, path: &Path, mode: OpenMode) -> io::Result<Arc<dyn StorageFile>> {
        let mut state = self.state.lock();
        let inode = match state.lookup(path) {
            Err(_) if mode == OpenMode::Create => {
                let inode = state.create(path)?;
                state.files.insert(inode, Content::default());
                inode
            }
            other => other?,
        };
        Ok(Arc::new(MediumFile { inode, medium: self.clone() }))
    }
    fn list(&self, dir: &Path) -> io::Result<Vec<DirEntry>> {
        let mut state = self.state.lock();
        let names: Vec<_> = state.directory(dir)?.names.keys().cloned().collect();
        let entry = |name: String| {
            let is_dir = state.directories.contains_key(&dir.join(&name));
            DirEntry { name, is_dir, len: 0 }
        };
        Ok(names.into_iter().map(entry).collect())
    }
    fn exists(&self, path: &Path) -> io::Result<bool> {
        let mut state = self.state.lock();
        Ok(path == Path::new("/") || state.lookup(path).is_ok())
    }
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        let mut state = self.state.lock();
        let inode = state.lookup(from)?;
        let ((_, old), (_, new)) =
            (state.place(from).map(|(_, name)| ((), name))?, state.place(to).map(|(_, name)| ((), name))?);
        state.change(to, Change { removed: Some(old), added: Some((new, inode)) })
    }
    fn remove_file(&self, path: &Path) -> io::Result<()> {
        let mut state = self.state.lock();
        state.lookup(path)?;
        let (_, name) = state.place(path)?;
        state.change(path, Change { removed: Some(name), added: None })
    }
    fn create_dir(&self, path: &Path) -> io::Result<()> {
        let mut state = self.state.lock();
        let mut ancestors: Vec<_> = path.ancestors().collect();
        ancestors.reverse();
        for path in ancestors {
            if !state.directories.contains_key(path) {
                state.create(path)?;
                state.directories.insert(path.to_owned(), Directory::default());
            }
        }
        Ok(())
    }
    fn remove_dir_all(&self, _: &Path) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }
    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        self.state.lock().directory(dir).map(Directory::sync)
    }
    fn lock_exclusive(&self, path: &Path) -> io::Result<Box<dyn StorageLock>> {
        self.open(path, OpenMode::Create)?;
        if !self.state.lock().locked.insert(path.to_owned()) {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        Ok(Box::new(MediumLock))
    }
    fn free_space(&self, _: &Path) -> io::Result<u64> {
        Ok(u64::MAX)
    }

    fn total_space(&self, _: &Path) -> io::Result<u64> {
        Ok(u64::MAX)
    }
    fn modified_ms(&self, _: &Path) -> io::Result<Option<i64>> {
        Ok(None)
    }
}

/// Released by [`Medium::kill`] and [`Medium::power_cut`].
#[derive(Debug)]
struct MediumLock;

impl StorageLock for MediumLock {}

#[derive(Debug)]
struct MediumFile {
    inode: u64,
    medium: Medium,
}

impl MediumFile {
    fn with<T>(&self, body: impl FnOnce(&mut Content) -> T) -> T {
        body(self.medium.state.lock().files.entry(self.inode).or_default())
    }
}

impl StorageFile for MediumFile {
    fn write_at(&self, bufs: &[IoSlice<'_>], position: u64) -> io::Result<usize> {
        let new: Vec<u8> = bufs.iter().flat_map(|buf| buf.iter().copied()).collect();
        let (start, end) = (position as usize, position as usize + new.len());
        self.with(|content| {
            content.bytes.resize(content.bytes.len().max(end), 0);
            content.bytes[start..end].copy_from_slice(&new);
        });
        Ok(new.len())
    }
    fn read_at(&self, buf: &mut [u8], position: u64) -> io::Result<usize> {
        Ok(self.with(|content| {
            let rest = content.bytes.get(position as usize..).unwrap_or_default();
            let len = rest.len().min(buf.len());
            buf[..len].copy_from_slice(&rest[..len]);
            len
        }))
    }
    fn read_at_nowait(&self, _: &mut [u8], _: u64) -> io::Result<Option<usize>> {
        Ok(None)
    }
    fn len(&self) -> io::Result<u64> {
        Ok(self.with(|content| content.bytes.len() as u64))
    }
    fn set_len(&self, len: u64) -> io::Result<()> {
        self.with(|content| content.bytes.resize(len as usize, 0));
        Ok(())
    }
    fn allocate(&self, _: u64, _: u64) -> io::Result<()> {
        Ok(())
    }
    fn sync_data(&self) -> io::Result<()> {
        self.with(|content| content.durable.clone_from(&content.bytes));
        Ok(())
    }
    fn sync_fs(&self) -> io::Result<()> {
        self.medium.state.lock().sync_all();
        Ok(())
    }
    fn advise(&self, _: Advice, _: u64, _: u64) {}
    fn resident(&self, _: u64, _: u64) -> Option<bool> {
        None
    }
    fn as_fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }
}
