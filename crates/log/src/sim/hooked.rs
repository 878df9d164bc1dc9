//! A storage that asks before each of its calls, so that a test can count, refuse or hold up any of them.

use super::{SimFile, SimStorage};
use crate::storage::{Advice, DirEntry, OpenMode, Storage, StorageFile, StorageLock};
use parking_lot::{Mutex, RwLock};
use std::fmt;
use std::io::{self, IoSlice};
use std::os::fd::BorrowedFd;
use std::path::Path;
use std::sync::Arc;

/// The kinds of calls: those of [`Storage`], then those of [`StorageFile`]. Advice and free space are not asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Call {
    /// [`Storage::open`] of a file that exists.
    Open,
    /// [`Storage::open`] with [`OpenMode::Create`].
    Create,
    /// [`Storage::list`].
    List,
    /// [`Storage::exists`].
    Exists,
    /// [`Storage::rename`]; the path is the new one.
    Rename,
    /// [`Storage::remove_file`].
    RemoveFile,
    /// [`Storage::create_dir`].
    CreateDir,
    /// [`Storage::remove_dir_all`].
    RemoveDir,
    /// [`Storage::sync_dir`].
    SyncDir,
    /// [`Storage::lock_exclusive`].
    Lock,
    /// [`StorageFile::write_at`].
    Write,
    /// [`StorageFile::read_at`].
    Read,
    /// [`StorageFile::read_at_nowait`] and [`StorageFile::resident`]: where it is refused, nothing is in the page cache.
    ReadCached,
    /// [`StorageFile::len`].
    Len,
    /// [`StorageFile::set_len`].
    SetLen,
    /// [`StorageFile::allocate`].
    Allocate,
    /// [`StorageFile::sync_data`].
    Sync,
    /// [`StorageFile::sync_fs`].
    SyncFs,
}

impl Call {
    /// All of them.
    pub const ALL: [Call; 18] = [
        Call::Open,
        Call::Create,
        Call::List,
        Call::Exists,
        Call::Rename,
        Call::RemoveFile,
        Call::CreateDir,
        Call::RemoveDir,
        Call::SyncDir,
        Call::Lock,
        Call::Write,
        Call::Read,
        Call::ReadCached,
        Call::Len,
        Call::SetLen,
        Call::Allocate,
        Call::Sync,
        Call::SyncFs,
    ];

    /// Returns true if the call changes the medium, or what is durable on it.
    pub fn is_change(self) -> bool {
        !matches!(
            self,
            Call::Open
                | Call::List
                | Call::Exists
                | Call::Read
                | Call::ReadCached
                | Call::Len
                | Call::Allocate
        )
    }
}

/// A question before a call of a path. Its error is that of the call, which is not made then; for as long as it does not
/// return, the call hangs. It may come from several threads at once.
type Hook = dyn Fn(Call, &Path) -> io::Result<()> + Send + Sync;

/// Another storage behind a hook. Clones have the same one.
#[derive(Clone)]
pub struct Hooked {
    inner: Arc<dyn Storage>,
    /// The same, where it is simulated: a sync that is refused loses there what was not synced.
    disk: Option<SimStorage>,
    hook: Arc<RwLock<Option<Arc<Hook>>>>,
}

impl Hooked {
    /// A storage that asks nothing yet.
    pub fn new(inner: Arc<dyn Storage>) -> Hooked {
        Hooked { inner, disk: None, hook: Arc::default() }
    }

    /// A simulated storage. As of a kernel, the pages of a file whose sync is refused count as clean from then on, and are not on
    /// the disk.
    pub fn over(disk: &SimStorage) -> Hooked {
        Hooked { disk: Some(disk.clone()), ..Hooked::new(Arc::new(disk.clone())) }
    }

    /// Asks before each call from now on.
    pub fn set_hook(&self, hook: impl Fn(Call, &Path) -> io::Result<()> + Send + Sync + 'static) {
        *self.hook.write() = Some(Arc::new(hook));
    }

    /// As [`Self::set_hook`], for a hook that uses the storage itself. Calls within it, and calls of other threads meanwhile, do
    /// not reach the hook.
    pub fn set_outer_hook(&self, hook: impl FnMut(Call, &Path) -> io::Result<()> + Send + 'static) {
        let hook = Mutex::new(hook);
        self.set_hook(move |call, path| hook.try_lock().map_or(Ok(()), |mut hook| hook(call, path)));
    }

    /// Asks nothing any more. Calls that hang in the hook stay there.
    pub fn clear_hook(&self) {
        *self.hook.write() = None;
    }

    fn ask(&self, call: Call, path: &Path) -> io::Result<()> {
        let hook = self.hook.read().clone();
        hook.map_or(Ok(()), |hook| hook(call, path))
    }
}

impl fmt::Debug for Hooked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Hooked").field("inner", &self.inner).finish_non_exhaustive()
    }
}

impl Storage for Hooked {
    fn open(&self, path: &Path, mode: OpenMode) -> io::Result<Arc<dyn StorageFile>> {
        self.ask(if mode == OpenMode::Create { Call::Create } else { Call::Open }, path)?;
        let (inner, simulated): (Arc<dyn StorageFile>, _) = match &self.disk {
            Some(disk) => {
                let file = Arc::new(disk.open_file(path, mode)?);
                (file.clone(), Some(file))
            }
            None => (self.inner.open(path, mode)?, None),
        };
        Ok(Arc::new(HookedFile { inner, simulated, path: path.into(), storage: self.clone() }))
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<DirEntry>> {
        self.ask(Call::List, dir)?;
        self.inner.list(dir)
    }

    fn exists(&self, path: &Path) -> io::Result<bool> {
        self.ask(Call::Exists, path)?;
        self.inner.exists(path)
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.ask(Call::Rename, to)?;
        self.inner.rename(from, to)
    }

    fn remove_file(&self, path: &Path) -> io::Result<()> {
        self.ask(Call::RemoveFile, path)?;
        self.inner.remove_file(path)
    }

    fn create_dir(&self, path: &Path) -> io::Result<()> {
        self.ask(Call::CreateDir, path)?;
        self.inner.create_dir(path)
    }

    fn create_private_dir(&self, path: &Path) -> io::Result<()> {
        self.ask(Call::CreateDir, path)?;
        self.inner.create_private_dir(path)
    }

    fn remove_dir_all(&self, path: &Path) -> io::Result<()> {
        self.ask(Call::RemoveDir, path)?;
        self.inner.remove_dir_all(path)
    }

    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        self.ask(Call::SyncDir, dir)?;
        self.inner.sync_dir(dir)
    }

    fn lock_exclusive(&self, path: &Path) -> io::Result<Box<dyn StorageLock>> {
        self.ask(Call::Lock, path)?;
        self.inner.lock_exclusive(path)
    }

    fn free_space(&self, path: &Path) -> io::Result<u64> {
        self.inner.free_space(path)
    }

    fn total_space(&self, path: &Path) -> io::Result<u64> {
        self.inner.total_space(path)
    }

    fn modified_ms(&self, path: &Path) -> io::Result<Option<i64>> {
        self.inner.modified_ms(path)
    }
}

#[derive(Debug)]
struct HookedFile {
    inner: Arc<dyn StorageFile>,
    /// The same, where it is simulated.
    simulated: Option<Arc<SimFile>>,
    /// At which it was opened.
    path: Box<Path>,
    storage: Hooked,
}

impl HookedFile {
    fn ask(&self, call: Call) -> io::Result<()> {
        self.storage.ask(call, &self.path)
    }
}

impl StorageFile for HookedFile {
    fn write_at(&self, bufs: &[IoSlice<'_>], position: u64) -> io::Result<usize> {
        self.ask(Call::Write)?;
        self.inner.write_at(bufs, position)
    }

    fn read_at(&self, buf: &mut [u8], position: u64) -> io::Result<usize> {
        self.ask(Call::Read)?;
        self.inner.read_at(buf, position)
    }

    fn read_at_nowait(&self, buf: &mut [u8], position: u64) -> io::Result<Option<usize>> {
        match self.ask(Call::ReadCached) {
            Ok(()) => self.inner.read_at_nowait(buf, position),
            Err(_) => Ok(None),
        }
    }

    fn len(&self) -> io::Result<u64> {
        self.ask(Call::Len)?;
        self.inner.len()
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.ask(Call::SetLen)?;
        self.inner.set_len(len)
    }

    fn allocate(&self, position: u64, len: u64) -> io::Result<()> {
        self.ask(Call::Allocate)?;
        self.inner.allocate(position, len)
    }

    fn sync_data(&self) -> io::Result<()> {
        let asked = self.ask(Call::Sync);
        if let (Err(_), Some(file)) = (&asked, &self.simulated) {
            file.lose_unsynced();
        }
        asked.and_then(|()| self.inner.sync_data())
    }

    fn sync_fs(&self) -> io::Result<()> {
        self.ask(Call::SyncFs)?;
        self.inner.sync_fs()
    }

    fn advise(&self, advice: Advice, position: u64, len: u64) {
        self.inner.advise(advice, position, len);
    }

    fn resident(&self, position: u64, len: u64) -> Option<bool> {
        match self.ask(Call::ReadCached) {
            Ok(()) => self.inner.resident(position, len),
            Err(_) => Some(false),
        }
    }

    fn as_fd(&self) -> Option<BorrowedFd<'_>> {
        self.inner.as_fd()
    }
}
