//! Inodes, each as it is in the page cache and as it is on the disk.

use super::random::Random;
use crate::storage::{DirEntry, OpenMode};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::io;
use std::path::{Component, Path, PathBuf};

/// A write is torn at such boundaries.
const SECTOR_BYTES: usize = 512;

pub(super) type InodeId = u64;

pub(super) const ROOT: InodeId = 0;

/// The state of the file system.
pub(super) struct Disk {
    inodes: HashMap<InodeId, Inode>,
    next_inode: InodeId,
    /// Counts processes: handles and locks are of one.
    pub(super) process: u64,
    pub(super) locks: BTreeSet<PathBuf>,
    pub(super) syncs_to_fail: usize,
    pub(super) free_space: Option<u64>,
    pub(super) cold: bool,
    pub(super) unreadable: bool,
    pub(super) syncs: usize,
    /// Syncs of files with this in their path wait.
    pub(super) held: Option<String>,
    pub(super) syncs_held: usize,
    /// Changes that are still carried out before everything fails.
    pub(super) changes_left: Option<u64>,
}

enum Inode {
    File(Cached<Vec<u8>, FileChange>),
    Dir(Cached<Names, NameChange>),
}

type Names = BTreeMap<String, InodeId>;

/// Something as it is now, as it is on disk, and what happened in between.
struct Cached<T, C> {
    now: T,
    on_disk: T,
    unsynced: Vec<C>,
}

impl<T: Default, C> Default for Cached<T, C> {
    fn default() -> Self {
        Cached { now: T::default(), on_disk: T::default(), unsynced: Vec::new() }
    }
}

enum FileChange {
    Write { position: u64, bytes: Vec<u8> },
    SetLen(u64),
}

enum NameChange {
    Set { name: String, inode: InodeId },
    Remove { name: String },
    Rename { from: String, to: String, inode: InodeId },
}

/// The part of the unsynced changes that survives.
#[derive(Clone, Copy)]
enum Survival {
    Nothing,
    Everything,
    /// The first changes, up to this number.
    First(usize),
    /// Each change by chance.
    Any,
}

impl Survival {
    fn pick(random: &mut Random, changes: usize) -> Survival {
        match random.below(4) {
            0 => Survival::Nothing,
            1 => Survival::Everything,
            2 => Survival::First(random.below(changes as u64 + 1) as usize),
            _ => Survival::Any,
        }
    }

    fn of(self, number: usize, random: &mut Random) -> bool {
        match self {
            Survival::Nothing => false,
            Survival::Everything => true,
            Survival::First(count) => number < count,
            Survival::Any => random.chance(50),
        }
    }
}

impl Default for Disk {
    fn default() -> Disk {
        Disk {
            inodes: HashMap::from([(ROOT, Inode::Dir(Cached::default()))]),
            next_inode: ROOT + 1,
            process: 0,
            locks: BTreeSet::new(),
            syncs_to_fail: 0,
            free_space: None,
            cold: false,
            unreadable: false,
            syncs: 0,
            held: None,
            syncs_held: 0,
            changes_left: None,
        }
    }
}

impl Disk {
    pub(super) fn forget_process(&mut self) {
        self.process += 1;
        self.locks.clear();
    }

    /// Every change asks here first.
    fn spend(&mut self) -> io::Result<()> {
        match &mut self.changes_left {
            Some(0) => Err(io::Error::other("simulated: the machine has stopped")),
            Some(left) => {
                *left -= 1;
                Ok(())
            }
            None => Ok(()),
        }
    }

    pub(super) fn find(&self, path: &Path) -> io::Result<InodeId> {
        let mut inode = ROOT;
        for component in path.components() {
            if let Component::Normal(name) = component {
                let name = name.to_str().ok_or(io::ErrorKind::InvalidInput)?;
                inode = *self.names(inode)?.now.get(name).ok_or(io::ErrorKind::NotFound)?;
            }
        }
        Ok(inode)
    }

    fn names(&self, inode: InodeId) -> io::Result<&Cached<Names, NameChange>> {
        match self.inodes.get(&inode) {
            Some(Inode::Dir(names)) => Ok(names),
            _ => Err(io::ErrorKind::NotADirectory.into()),
        }
    }

    fn names_mut(&mut self, inode: InodeId) -> io::Result<&mut Cached<Names, NameChange>> {
        match self.inodes.get_mut(&inode) {
            Some(Inode::Dir(names)) => Ok(names),
            _ => Err(io::ErrorKind::NotADirectory.into()),
        }
    }

    fn file(&mut self, inode: InodeId) -> &mut Cached<Vec<u8>, FileChange> {
        match self.inodes.get_mut(&inode) {
            Some(Inode::File(file)) => file,
            _ => panic!("inode {inode} is not a file"),
        }
    }

    /// The directory of a path, and the name in it.
    fn place(&self, path: &Path) -> io::Result<(InodeId, String)> {
        let name = path.file_name().and_then(|name| name.to_str()).ok_or(io::ErrorKind::InvalidInput)?;
        Ok((self.find(path.parent().unwrap_or(Path::new("/")))?, name.to_owned()))
    }

    fn create(&mut self, dir: InodeId, name: String, inode: Inode) -> io::Result<InodeId> {
        self.spend()?;
        let id = self.next_inode;
        let names = self.names_mut(dir)?;
        names.now.insert(name.clone(), id);
        names.unsynced.push(NameChange::Set { name, inode: id });
        self.next_inode += 1;
        self.inodes.insert(id, inode);
        Ok(id)
    }

    pub(super) fn open(&mut self, path: &Path, mode: OpenMode) -> io::Result<InodeId> {
        match self.find(path) {
            Ok(inode) => match self.inodes.get(&inode) {
                Some(Inode::File(_)) => Ok(inode),
                _ => Err(io::ErrorKind::IsADirectory.into()),
            },
            Err(error) if error.kind() == io::ErrorKind::NotFound && mode == OpenMode::Create => {
                let (dir, name) = self.place(path)?;
                self.create(dir, name, Inode::File(Cached::default()))
            }
            Err(error) => Err(error),
        }
    }

    pub(super) fn create_dir(&mut self, path: &Path) -> io::Result<()> {
        let mut at = PathBuf::from("/");
        for component in path.components() {
            if let Component::Normal(name) = component {
                at.push(name);
                if self.find(&at).is_err() {
                    let (dir, name) = self.place(&at)?;
                    self.create(dir, name, Inode::Dir(Cached::default()))?;
                }
            }
        }
        Ok(())
    }

    pub(super) fn list(&mut self, dir: &Path) -> io::Result<Vec<DirEntry>> {
        let inode = self.find(dir)?;
        let names = self.names(inode)?.now.iter();
        let entry = |(name, id): (&String, &InodeId)| match &self.inodes[id] {
            Inode::File(file) => DirEntry { name: name.clone(), is_dir: false, len: file.now.len() as u64 },
            Inode::Dir(_) => DirEntry { name: name.clone(), is_dir: true, len: 0 },
        };
        Ok(names.map(entry).collect())
    }

    pub(super) fn rename(&mut self, from: &Path, to: &Path) -> io::Result<()> {
        self.spend()?;
        let inode = self.find(from)?;
        let ((from_dir, from), (to_dir, to)) = (self.place(from)?, self.place(to)?);
        self.names_mut(from_dir)?.now.remove(&from);
        self.names_mut(to_dir)?.now.insert(to.clone(), inode);
        if from_dir == to_dir {
            self.names_mut(to_dir)?.unsynced.push(NameChange::Rename { from, to, inode });
        } else {
            self.names_mut(from_dir)?.unsynced.push(NameChange::Remove { name: from });
            self.names_mut(to_dir)?.unsynced.push(NameChange::Set { name: to, inode });
        }
        Ok(())
    }

    /// Removes a file, or a directory with all that is in it.
    pub(super) fn remove(&mut self, path: &Path) -> io::Result<()> {
        self.spend()?;
        self.find(path)?;
        let (dir, name) = self.place(path)?;
        let names = self.names_mut(dir)?;
        names.now.remove(&name);
        names.unsynced.push(NameChange::Remove { name });
        Ok(())
    }

    pub(super) fn len(&mut self, inode: InodeId) -> u64 {
        self.file(inode).now.len() as u64
    }

    pub(super) fn read(&mut self, inode: InodeId, position: u64, buf: &mut [u8]) -> usize {
        let bytes = &self.file(inode).now;
        let start = (position as usize).min(bytes.len());
        let count = buf.len().min(bytes.len() - start);
        buf[..count].copy_from_slice(&bytes[start..start + count]);
        count
    }

    pub(super) fn write(&mut self, inode: InodeId, position: u64, mut bytes: Vec<u8>) -> io::Result<usize> {
        self.spend()?;
        let len = self.len(inode);
        if let Some(free) = &mut self.free_space {
            let growth = (position + bytes.len() as u64).saturating_sub(len);
            if growth > *free {
                bytes.truncate((bytes.len() as u64).saturating_sub(growth - *free) as usize);
                if bytes.is_empty() {
                    return Err(io::ErrorKind::StorageFull.into());
                }
            }
            *free -= growth.min(*free);
        }
        let count = bytes.len();
        let file = self.file(inode);
        apply_write(&mut file.now, position, &bytes);
        file.unsynced.push(FileChange::Write { position, bytes });
        Ok(count)
    }

    pub(super) fn set_len(&mut self, inode: InodeId, len: u64) -> io::Result<()> {
        self.spend()?;
        let was = self.len(inode);
        if let Some(free) = &mut self.free_space {
            *free += was.saturating_sub(len);
        }
        let file = self.file(inode);
        if was != len {
            file.now.resize(len as usize, 0);
            file.unsynced.push(FileChange::SetLen(len));
        }
        Ok(())
    }

    /// Drops from the page cache what counts as clean: what a failed sync left there is gone then.
    pub(super) fn drop_clean(&mut self, inode: InodeId) {
        let file = self.file(inode);
        let len = file.now.len();
        file.now = file.on_disk.clone();
        for change in &file.unsynced {
            apply_file_change(&mut file.now, change);
        }
        // The length is in memory, with the inode.
        file.now.resize(len, 0);
    }

    /// Acts as a kernel does after a failed sync: the pages count as clean, and are not on the disk. A new length is in memory,
    /// with the inode, and goes to the disk with the next sync.
    pub(super) fn lose_unsynced(&mut self, inode: InodeId) {
        self.file(inode).unsynced.retain(|change| matches!(change, FileChange::SetLen(_)));
    }

    pub(super) fn sync(&mut self, inode: InodeId) -> io::Result<()> {
        self.spend()?;
        if self.syncs_to_fail > 0 && matches!(self.inodes[&inode], Inode::File(_)) {
            self.syncs_to_fail -= 1;
            self.lose_unsynced(inode);
            return Err(rustix::io::Errno::IO.into());
        }
        self.syncs += 1;
        match self.inodes.get_mut(&inode) {
            Some(Inode::File(file)) => {
                for change in file.unsynced.drain(..) {
                    apply_file_change(&mut file.on_disk, &change);
                }
            }
            Some(Inode::Dir(names)) => {
                for change in names.unsynced.drain(..) {
                    apply_name_change(&mut names.on_disk, &change);
                }
            }
            None => panic!("inode {inode} does not exist"),
        }
        Ok(())
    }

    /// Every file below a directory: its name, its length now and on disk, and how many changes are unsynced.
    pub(super) fn describe(&self, dir: InodeId, path: &Path, lines: &mut Vec<String>) {
        let Some(Inode::Dir(names)) = self.inodes.get(&dir) else { return };
        lines.push(format!("{}: {} names unsynced", path.display(), names.unsynced.len()));
        for (name, inode) in &names.now {
            let path = path.join(name);
            let on_disk = names.on_disk.get(name) == Some(inode);
            match &self.inodes[inode] {
                Inode::File(file) => lines.push(format!(
                    "{} (named on disk: {on_disk}): {} bytes, {} on disk, {} changes",
                    path.display(),
                    file.now.len(),
                    file.on_disk.len(),
                    file.unsynced.len()
                )),
                Inode::Dir(_) => self.describe(*inode, &path, lines),
            }
        }
    }

    pub(super) fn sync_all(&mut self) -> io::Result<()> {
        let mut all: Vec<_> = self.inodes.keys().copied().collect();
        all.sort_unstable();
        all.into_iter().try_for_each(|inode| self.sync(inode))
    }

    pub(super) fn power_cut(&mut self, random: &mut Random) {
        let mut all: Vec<_> = self.inodes.keys().copied().collect();
        all.sort_unstable();
        for inode in all {
            match self.inodes.get_mut(&inode) {
                Some(Inode::File(file)) => cut_file(file, random),
                Some(Inode::Dir(names)) => cut_names(names, random),
                None => {}
            }
        }
    }
}

fn cut_file(file: &mut Cached<Vec<u8>, FileChange>, random: &mut Random) {
    let survival = Survival::pick(random, file.unsynced.len());
    for (number, change) in file.unsynced.drain(..).enumerate() {
        match change {
            FileChange::Write { position, bytes } if matches!(survival, Survival::Any) => {
                tear_write(&mut file.on_disk, position, &bytes, random);
            }
            change if survival.of(number, random) => apply_file_change(&mut file.on_disk, &change),
            _ => {}
        }
    }
    file.now = file.on_disk.clone();
}

fn cut_names(names: &mut Cached<Names, NameChange>, random: &mut Random) {
    let survival = Survival::pick(random, names.unsynced.len());
    for (number, change) in names.unsynced.drain(..).enumerate() {
        if survival.of(number, random) {
            apply_name_change(&mut names.on_disk, &change);
        }
    }
    names.now = names.on_disk.clone();
}

/// Each sector of the write reaches the disk, or not.
fn tear_write(bytes: &mut Vec<u8>, position: u64, written: &[u8], random: &mut Random) {
    let whole = random.chance(40);
    let mut done = 0;
    while done < written.len() {
        let at = position as usize + done;
        let count = (SECTOR_BYTES - at % SECTOR_BYTES).min(written.len() - done);
        if whole || random.chance(60) {
            apply_write(bytes, at as u64, &written[done..done + count]);
        }
        done += count;
    }
}

fn apply_file_change(bytes: &mut Vec<u8>, change: &FileChange) {
    match change {
        FileChange::Write { position, bytes: written } => apply_write(bytes, *position, written),
        FileChange::SetLen(len) => bytes.resize(*len as usize, 0),
    }
}

fn apply_write(bytes: &mut Vec<u8>, position: u64, written: &[u8]) {
    let (start, end) = (position as usize, position as usize + written.len());
    if bytes.len() < end {
        bytes.resize(end, 0);
    }
    bytes[start..end].copy_from_slice(written);
}

fn apply_name_change(names: &mut Names, change: &NameChange) {
    match change {
        NameChange::Set { name, inode } => {
            names.insert(name.clone(), *inode);
        }
        NameChange::Remove { name } => {
            names.remove(name);
        }
        NameChange::Rename { from, to, inode } => {
            names.remove(from);
            names.insert(to.clone(), *inode);
        }
    }
}
