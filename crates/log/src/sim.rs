//! A file system in memory that can be crashed: it knows what is in the page cache and what is on the disk.
//!
//! [`SimStorage::power_cut`] keeps what was synced and, of the rest, a random part: whole writes, single sectors of
//! them, or nothing; names in the same way. Handles from before do not work any more. [`SimStorage::kill`] is the death
//! of the process alone: everything written stays. Syncs fail and the disk fills up on demand. Everything random comes from
//! a seed.

mod disk;
mod fault_table;
mod hooked;
mod random;

pub use fault_table::{Action, Ending, UNCLEAN, World, fault_table};
pub use hooked::{Call, Hooked};
pub use random::Random;

use crate::storage::{Advice, DirEntry, OpenMode, Storage, StorageFile, StorageLock};
use disk::{Disk, InodeId};
use parking_lot::{Mutex, MutexGuard};
use std::fmt;
use std::io::{self, IoSlice};
use std::os::fd::BorrowedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// The interval in which a held sync checks that it is still held.
const HELD_SYNC_CHECK: Duration = Duration::from_millis(1);

/// A simulated file system. Clones share it.
#[derive(Clone, Default)]
pub struct SimStorage {
    disk: Arc<Mutex<Disk>>,
    /// The process that this handle belongs to; `None`: every process.
    process: Option<u64>,
}

impl fmt::Debug for SimStorage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SimStorage").finish_non_exhaustive()
    }
}

impl SimStorage {
    /// An empty file system with unlimited free space.
    pub fn new() -> SimStorage {
        SimStorage::default()
    }

    /// The file system as the present process has it: from its death or the next power cut on, names fail as handles do.
    /// For a program that is still running in the memory of the test when its simulated process is dead.
    pub fn of_this_process(&self) -> SimStorage {
        let process = Some(self.disk.lock().process);
        SimStorage { disk: self.disk.clone(), process }
    }

    fn alive(&self) -> io::Result<MutexGuard<'_, Disk>> {
        let disk = self.disk.lock();
        match self.process {
            Some(process) if process != disk.process => Err(dead()),
            _ => Ok(disk),
        }
    }

    /// The process dies: its handles and locks are gone, what it wrote is not.
    pub fn kill(&self) {
        self.disk.lock().forget_process();
    }

    /// The power goes: what was not synced survives in part, as `random` has it.
    pub fn power_cut(&self, random: &mut Random) {
        let mut disk = self.disk.lock();
        disk.power_cut(random);
        disk.forget_process();
    }

    /// Lets the next `count` syncs of files fail. What they should have synced is lost with the next power cut, whatever
    /// later syncs say.
    pub fn fail_syncs(&self, count: usize) {
        self.disk.lock().syncs_to_fail = count;
    }

    /// Lets syncs of files and directories with `of` in their path wait until it is called with `None`, or their process is
    /// dead.
    pub fn hold_syncs(&self, of: Option<&str>) {
        self.disk.lock().held = of.map(str::to_owned);
    }

    /// Syncs that wait now.
    pub fn syncs_held(&self) -> usize {
        self.disk.lock().syncs_held
    }

    /// Sets the number of bytes that may still be written beyond the present ends of files; `None`: any number.
    pub fn set_free_space(&self, bytes: Option<u64>) {
        self.disk.lock().free_space = bytes;
    }

    /// Lets `changes` more changes (writes, syncs, names) happen. Then every change fails, as if the machine had stopped
    /// in the middle of it. `None`: no change fails.
    pub fn stop_after(&self, changes: Option<u64>) {
        self.disk.lock().changes_left = changes;
    }

    /// Sets whether reads that must not wait find nothing in the page cache.
    pub fn set_cold(&self, cold: bool) {
        self.disk.lock().cold = cold;
    }

    /// Sets whether every read fails with an error of the medium.
    pub fn set_unreadable(&self, unreadable: bool) {
        self.disk.lock().unreadable = unreadable;
    }

    /// Lists the contents of the page cache and of the disk, a line per file, to find the cause of a loss.
    pub fn describe(&self) -> String {
        let (disk, mut lines) = (self.disk.lock(), Vec::new());
        disk.describe(disk::ROOT, Path::new("/"), &mut lines);
        lines.join("\n")
    }

    fn open_file(&self, path: &Path, mode: OpenMode) -> io::Result<SimFile> {
        let mut disk = self.alive()?;
        let inode = disk.open(path, mode)?;
        let process = disk.process;
        let (disk, path, writable) = (self.disk.clone(), path.to_owned(), mode != OpenMode::Read);
        Ok(SimFile { disk, path, inode, process, writable })
    }

    /// Successful syncs of files and directories so far.
    pub fn syncs(&self) -> usize {
        self.disk.lock().syncs
    }
}

impl Storage for SimStorage {
    fn open(&self, path: &Path, mode: OpenMode) -> io::Result<Arc<dyn StorageFile>> {
        Ok(Arc::new(self.open_file(path, mode)?))
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<DirEntry>> {
        self.alive()?.list(dir)
    }

    fn exists(&self, path: &Path) -> io::Result<bool> {
        Ok(self.alive()?.find(path).is_ok())
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.alive()?.rename(from, to)
    }

    fn remove_file(&self, path: &Path) -> io::Result<()> {
        self.alive()?.remove(path)
    }

    fn create_dir(&self, path: &Path) -> io::Result<()> {
        self.alive()?.create_dir(path)
    }

    fn remove_dir_all(&self, path: &Path) -> io::Result<()> {
        self.alive()?.remove(path)
    }

    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        let mut disk = self.alive()?;
        let is_held =
            |disk: &Disk| disk.held.as_deref().is_some_and(|held| dir.to_string_lossy().contains(held));
        if is_held(&disk) {
            disk.syncs_held += 1;
            while is_held(&disk) {
                drop(disk);
                std::thread::sleep(HELD_SYNC_CHECK);
                match self.alive() {
                    Ok(alive) => disk = alive,
                    Err(dead) => {
                        self.disk.lock().syncs_held -= 1;
                        return Err(dead);
                    }
                }
            }
            disk.syncs_held -= 1;
        }
        let inode = disk.find(dir)?;
        disk.sync(inode)
    }

    fn lock_exclusive(&self, path: &Path) -> io::Result<Box<dyn StorageLock>> {
        let mut disk = self.alive()?;
        disk.open(path, OpenMode::Create)?;
        if !disk.locks.insert(path.to_owned()) {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        Ok(Box::new(SimLock { disk: self.disk.clone(), path: path.to_owned(), process: disk.process }))
    }

    fn free_space(&self, _: &Path) -> io::Result<u64> {
        Ok(self.alive()?.free_space.unwrap_or(u64::MAX))
    }

    fn total_space(&self, _: &Path) -> io::Result<u64> {
        Ok(u64::MAX)
    }

    fn modified_ms(&self, path: &Path) -> io::Result<Option<i64>> {
        self.alive()?.find(path).map(|_| None)
    }
}

fn dead() -> io::Error {
    io::Error::other("simulated: the process is dead")
}

struct SimLock {
    disk: Arc<Mutex<Disk>>,
    path: PathBuf,
    process: u64,
}

impl StorageLock for SimLock {}

impl fmt::Debug for SimLock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SimLock").field("path", &self.path).finish_non_exhaustive()
    }
}

impl Drop for SimLock {
    fn drop(&mut self) {
        let mut disk = self.disk.lock();
        if disk.process == self.process {
            disk.locks.remove(&self.path);
        }
    }
}

struct SimFile {
    disk: Arc<Mutex<Disk>>,
    /// At which it was opened.
    path: PathBuf,
    inode: InodeId,
    process: u64,
    writable: bool,
}

impl fmt::Debug for SimFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SimFile").field("inode", &self.inode).finish_non_exhaustive()
    }
}

impl SimFile {
    fn with<T>(&self, use_it: impl FnOnce(&mut Disk) -> io::Result<T>) -> io::Result<T> {
        let mut disk = self.disk.lock();
        if disk.process != self.process {
            return Err(dead());
        }
        use_it(&mut disk)
    }

    fn for_writing<T>(&self, use_it: impl FnOnce(&mut Disk) -> io::Result<T>) -> io::Result<T> {
        if !self.writable {
            return Err(io::ErrorKind::PermissionDenied.into());
        }
        self.with(use_it)
    }
}

impl SimFile {
    /// Makes everything unsynced be lost with the next power cut, whatever later syncs say.
    fn lose_unsynced(&self) {
        self.disk.lock().lose_unsynced(self.inode);
    }

    fn wait_to_sync(&self, concerns: impl Fn(&str) -> bool) -> io::Result<()> {
        let is_held = |disk: &Disk| disk.held.as_deref().is_some_and(&concerns);
        if !self.with(|disk| Ok(is_held(disk)))? {
            return Ok(());
        }
        self.disk.lock().syncs_held += 1;
        let waited = loop {
            match self.with(|disk| Ok(is_held(disk))) {
                Ok(true) => std::thread::sleep(HELD_SYNC_CHECK),
                other => break other.map(drop),
            }
        };
        self.disk.lock().syncs_held -= 1;
        waited
    }
}

impl StorageFile for SimFile {
    fn write_at(&self, bufs: &[IoSlice<'_>], position: u64) -> io::Result<usize> {
        let bytes: Vec<u8> = bufs.iter().flat_map(|buf| buf.iter().copied()).collect();
        self.for_writing(|disk| disk.write(self.inode, position, bytes))
    }

    fn read_at(&self, buf: &mut [u8], position: u64) -> io::Result<usize> {
        self.with(|disk| match disk.unreadable {
            true => Err(rustix::io::Errno::IO.into()),
            false => Ok(disk.read(self.inode, position, buf)),
        })
    }

    fn read_at_nowait(&self, buf: &mut [u8], position: u64) -> io::Result<Option<usize>> {
        self.with(|disk| Ok((!disk.cold).then(|| disk.read(self.inode, position, buf))))
    }

    fn len(&self) -> io::Result<u64> {
        self.with(|disk| Ok(disk.len(self.inode)))
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.for_writing(|disk| disk.set_len(self.inode, len))
    }

    fn allocate(&self, _: u64, _: u64) -> io::Result<()> {
        Ok(())
    }

    fn sync_data(&self) -> io::Result<()> {
        self.wait_to_sync(|held| self.path.to_string_lossy().contains(held))?;
        self.with(|disk| disk.sync(self.inode))
    }

    fn sync_fs(&self) -> io::Result<()> {
        self.wait_to_sync(|_| true)?;
        self.with(Disk::sync_all)
    }

    fn advise(&self, advice: Advice, _: u64, _: u64) {
        if advice == Advice::DontNeed {
            // Advice by a handle from before a crash has no effect.
            let _ = self.with(|disk| {
                disk.drop_clean(self.inode);
                Ok(())
            });
        }
    }

    fn resident(&self, _: u64, _: u64) -> Option<bool> {
        None
    }

    fn as_fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }
}

#[cfg(test)]
mod tests;
