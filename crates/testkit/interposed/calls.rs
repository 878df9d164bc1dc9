//! The file calls of a program, counted and refused by kind, file and number.
//!
//! The functions below replace those of the C library, through which `std::fs` and the queue reach files. A call on a path in a directory
//! that is watched ([`Watched`]) is counted, and fails if a fault asks for that; any other call goes to the kernel directly. They replace
//! them in everything that is linked into a program that includes this file, so it is no part of the testkit's library:
//!
//! ```text
//! #[path = "../../testkit/interposed/calls.rs"]
//! mod calls;
//! ```
//!
//! They call the kernel themselves, use nothing of `std::fs` that would call them again, and hold no lock during the call.
#![allow(
    dead_code,
    unsafe_code,
    reason = "each program uses some of it, and all of it is called by C's rules"
)]

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{CStr, CString, OsStr, c_char, c_int, c_long, c_uint, c_void};
use std::fmt;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard};
use std::thread;
use std::time::Duration;

/// A kind of call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Call {
    MakeDirectory,
    /// Asking for the kind or the length of a file.
    Look,
    /// Reading the names in a directory.
    List,
    /// Opening a file that has to exist.
    Open,
    /// Opening a file that is created if it is missing.
    Create,
    Read,
    Write,
    SetLength,
    Allocate,
    Map,
    Sync,
    Rename,
    Remove,
}

/// A class of files, by their names.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Class {
    Control,
    Segment,
    /// The offset index and the time index.
    Index,
    /// Files of the next segment, made in advance.
    Spare,
    Epochs,
    Metadata,
    Tailer,
    /// The lock of a journal's publisher.
    Lock,
    Identity,
    Subscription,
    Directory,
}

/// Calls of one kind on one class of files.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Place {
    pub(crate) call: Call,
    pub(crate) class: Class,
}

/// The calls that fail.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Fault {
    pub(crate) place: Place,
    /// The first one that fails, from 1, counted since the fault began.
    pub(crate) nth: u64,
    /// Those after it fail too, until the fault is over.
    pub(crate) lasts: bool,
    pub(crate) errno: i32,
}

/// Traces of a fault.
#[derive(Debug, Clone, Default)]
pub(crate) struct Seen {
    /// Calls that have failed.
    pub(crate) refused: u64,
    /// The file of the first of them.
    pub(crate) path: Option<PathBuf>,
}

/// A directory whose calls are counted. No sync in it goes to the disk, which would take most of a test's time.
#[derive(Debug)]
pub(crate) struct Watched {
    directory: PathBuf,
}

#[derive(Debug, Default)]
struct State {
    directory: PathBuf,
    counts: BTreeMap<Place, u64>,
    fault: Option<(Fault, u64)>,
    seen: Seen,
    sync_takes: Duration,
    /// Files of which a sync has failed, and whether they were written to since.
    failed_syncs: BTreeMap<PathBuf, bool>,
    believed: Vec<PathBuf>,
    synced: BTreeSet<PathBuf>,
}

static WATCHED: Mutex<Vec<State>> = Mutex::new(Vec::new());
/// The number of watched directories: without any, no path is asked for.
static COUNT: AtomicUsize = AtomicUsize::new(0);

fn watched() -> MutexGuard<'static, Vec<State>> {
    WATCHED.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

impl Watched {
    /// Watches a directory and all that is in it. Its path is absolute and has no links.
    pub(crate) fn new(directory: &Path) -> Watched {
        watched().push(State { directory: directory.to_owned(), ..State::default() });
        COUNT.fetch_add(1, Ordering::SeqCst);
        Watched { directory: directory.to_owned() }
    }

    fn with<T>(&self, change: impl FnOnce(&mut State) -> T) -> T {
        let mut watched = watched();
        let state = watched.iter_mut().find(|state| state.directory == self.directory);
        change(state.expect("it is watched until it is dropped"))
    }

    /// Has each sync of a regular file take so long.
    pub(crate) fn slow_syncs(&self, takes: Duration) {
        self.with(|state| state.sync_takes = takes);
    }

    /// Counts from here on, and has the calls of a fault fail, if there is one.
    pub(crate) fn begin(&self, fault: Option<Fault>) {
        self.with(|state| {
            state.counts.clear();
            state.fault = fault.map(|fault| (fault, 0));
            state.seen = Seen::default();
        });
    }

    /// Ends the fault; returns what was seen of it.
    pub(crate) fn end(&self) -> Seen {
        self.with(|state| {
            state.fault = None;
            state.seen.clone()
        })
    }

    /// Traces of the fault until now.
    pub(crate) fn seen(&self) -> Seen {
        self.with(|state| state.seen.clone())
    }

    /// The number of calls since the beginning.
    pub(crate) fn counts(&self) -> BTreeMap<Place, u64> {
        self.with(|state| state.counts.clone())
    }

    /// Files of which a sync was asked for again after one had failed, with nothing written in between. Such a success proves nothing: the
    /// kernel may have dropped what the first sync lost. Directories are left out, and so is the control file: its writes are stores to
    /// memory, which no call shows.
    pub(crate) fn believed(&self) -> Vec<PathBuf> {
        self.with(|state| state.believed.clone())
    }

    /// Files and directories of which a sync has succeeded since they are watched.
    pub(crate) fn synced(&self) -> BTreeSet<PathBuf> {
        self.with(|state| state.synced.clone())
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        COUNT.fetch_sub(1, Ordering::SeqCst);
        watched().retain(|state| state.directory != self.directory);
    }
}

/// The verdict on a call.
enum Verdict {
    /// It goes to the kernel.
    Goes,
    /// A sync that is done when so much time has passed.
    Synced(Duration),
    Fails(i32),
}

impl State {
    /// Returns true for the directory and all in it. Paths are compared as bytes: each call asks that of many directories.
    fn has(&self, path: &Path) -> bool {
        let rest = path.as_os_str().as_bytes().strip_prefix(self.directory.as_os_str().as_bytes());
        rest.is_some_and(|rest| matches!(rest.first(), None | Some(b'/')))
    }

    fn judge(&mut self, path: &Path, call: Call, truncates: bool) -> Verdict {
        let is_made = call == Call::MakeDirectory;
        let Some(class) =
            class_of(path).or_else(|| (is_made || is_directory(path)).then_some(Class::Directory))
        else {
            return Verdict::Goes;
        };
        let place = Place { call, class };
        *self.counts.entry(place).or_default() += 1;
        let is_refused = self.is_refused(place);
        if let Some(errno) = is_refused {
            self.seen.refused += 1;
            self.seen.path.get_or_insert_with(|| path.to_owned());
            if call == Call::Sync && !matches!(class, Class::Control | Class::Directory) {
                self.failed_syncs.insert(path.to_owned(), false);
            }
            return Verdict::Fails(errno);
        }
        if let Some(is_written) = self.failed_syncs.get_mut(path) {
            *is_written |= truncates || call == Call::Write;
            if call == Call::Sync && !*is_written {
                self.believed.push(path.to_owned());
            }
        }
        match call {
            Call::Sync => {
                self.synced.insert(path.to_owned());
                let is_slow = class != Class::Directory;
                Verdict::Synced(if is_slow { self.sync_takes } else { Duration::ZERO })
            }
            _ => Verdict::Goes,
        }
    }

    fn is_refused(&mut self, place: Place) -> Option<i32> {
        let (fault, count) = self.fault.as_mut().filter(|(fault, _)| fault.place == place)?;
        *count += 1;
        let is_meant = *count == fault.nth || fault.lasts && *count > fault.nth;
        is_meant.then_some(fault.errno)
    }
}

fn class_of(path: &Path) -> Option<Class> {
    let name = path.file_name()?.to_str()?;
    let extension = path.extension().and_then(OsStr::to_str).unwrap_or_default();
    Some(match (name, extension) {
        ("queue.control", _) => Class::Control,
        ("partition.metadata", _) => Class::Metadata,
        ("direct.journal", _) => Class::Identity,
        ("direct.lock", _) => Class::Lock,
        (_, "spare" | "made") => Class::Spare,
        (_, "log") => Class::Segment,
        (_, "index" | "timeindex") => Class::Index,
        (_, "tailer") => Class::Tailer,
        (_, "subscription") => Class::Subscription,
        _ if name.starts_with("leader-epoch-checkpoint") => Class::Epochs,
        _ => return None,
    })
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let call = match self.call {
            Call::MakeDirectory => "make",
            Call::Look => "look at",
            Call::List => "list",
            Call::Open => "open",
            Call::Create => "make or open",
            Call::Read => "read",
            Call::Write => "write",
            Call::SetLength => "set the length of",
            Call::Allocate => "allocate",
            Call::Map => "map",
            Call::Sync => "sync",
            Call::Rename => "rename",
            Call::Remove => "delete",
        };
        let class = match self.class {
            Class::Control => "control file",
            Class::Segment => "segment",
            Class::Index => "index",
            Class::Spare => "file made ahead",
            Class::Epochs => "epochs",
            Class::Metadata => "metadata",
            Class::Tailer => "tailer",
            Class::Lock => "lock file",
            Class::Identity => "identity",
            Class::Subscription => "subscription",
            Class::Directory => "directory",
        };
        write!(f, "{call} {class}")
    }
}

fn judge(path: &Path, call: Call, truncates: bool) -> Verdict {
    let mut watched = watched();
    match watched.iter_mut().find(|state| state.has(path)) {
        Some(state) => state.judge(path, call, truncates),
        None => Verdict::Goes,
    }
}

/// Passes a call on a path to the kernel, or refuses it.
fn by_path(path: *const c_char, call: Call, truncates: bool, go: impl FnOnce() -> c_long) -> c_long {
    if COUNT.load(Ordering::Relaxed) == 0 {
        return go();
    }
    // SAFETY: the caller gives a string that ends with NUL.
    let named = Path::new(OsStr::from_bytes(unsafe { CStr::from_ptr(path) }.to_bytes()));
    finish(judge(named, call, truncates), go)
}

/// Passes a call on a descriptor to the kernel, or refuses it.
fn by_descriptor(fd: c_int, call: Call, go: impl FnOnce() -> c_long) -> c_long {
    if fd < 0 || COUNT.load(Ordering::Relaxed) == 0 {
        return go();
    }
    let mut buffer = [0_u8; libc::PATH_MAX as usize];
    let mut link = [0_u8; 32];
    let length = {
        use std::io::Write as _;
        let _ = write!(&mut link[..], "/proc/self/fd/{fd}\0");
        // SAFETY: both are buffers of the lengths that are given, and the link's name ends with NUL.
        unsafe { libc::readlink(link.as_ptr().cast(), buffer.as_mut_ptr().cast(), buffer.len()) }
    };
    let Ok(length) = usize::try_from(length) else { return go() };
    let bytes = &buffer[..length];
    let path = Path::new(OsStr::from_bytes(bytes.strip_suffix(b" (deleted)").unwrap_or(bytes)));
    finish(judge(path, call, false), go)
}

fn finish(verdict: Verdict, go: impl FnOnce() -> c_long) -> c_long {
    match verdict {
        Verdict::Goes => go(),
        Verdict::Synced(takes) => {
            if !takes.is_zero() {
                thread::sleep(takes);
            }
            0
        }
        Verdict::Fails(errno) => {
            // SAFETY: the place is this thread's own.
            unsafe { *libc::__errno_location() = errno };
            -1
        }
    }
}

/// Asks for the kind of a file by a system call that none of the functions below replaces. The standard library's own would call them
/// again.
fn is_directory(path: &Path) -> bool {
    let Ok(path) = CString::new(path.as_os_str().as_bytes()) else { return false };
    // SAFETY: all bytes zero is such a structure, the call writes one, and the string ends with NUL.
    unsafe {
        let mut found: libc::stat = std::mem::zeroed();
        libc::stat(path.as_ptr(), &raw mut found) == 0 && found.st_mode & libc::S_IFMT == libc::S_IFDIR
    }
}

/// The kernel's call of this number.
macro_rules! kernel {
    ($number:ident $(, $argument:expr)*) => {
        // SAFETY: the arguments are the caller's own, by whose rules the C library's function would do the same.
        unsafe { libc::syscall(libc::$number $(, $argument)*) }
    };
}

fn open_at(at: c_int, path: *const c_char, flags: c_int, mode: c_uint) -> c_int {
    let call = if flags & libc::O_CREAT != 0 { Call::Create } else { Call::Open };
    let truncates = flags & libc::O_TRUNC != 0;
    by_path(path, call, truncates, || kernel!(SYS_openat, at, path, flags, mode)) as c_int
}

#[unsafe(no_mangle)]
extern "C" fn open64(path: *const c_char, flags: c_int, mode: c_uint) -> c_int {
    open_at(libc::AT_FDCWD, path, flags, mode)
}

#[unsafe(no_mangle)]
extern "C" fn open(path: *const c_char, flags: c_int, mode: c_uint) -> c_int {
    open_at(libc::AT_FDCWD, path, flags, mode)
}

#[unsafe(no_mangle)]
extern "C" fn statx(
    at: c_int,
    path: *const c_char,
    flags: c_int,
    mask: c_uint,
    to: *mut libc::statx,
) -> c_int {
    let go = || kernel!(SYS_statx, at, path, flags, mask, to);
    // SAFETY: the caller gives a string that ends with NUL, or none.
    let is_of_descriptor = path.is_null() || unsafe { *path } == 0;
    match is_of_descriptor {
        true => by_descriptor(at, Call::Look, go) as c_int,
        false => by_path(path, Call::Look, false, go) as c_int,
    }
}

#[unsafe(no_mangle)]
extern "C" fn opendir(path: *const c_char) -> *mut libc::DIR {
    let flags = libc::O_RDONLY | libc::O_DIRECTORY | libc::O_CLOEXEC;
    match by_path(path, Call::List, false, || kernel!(SYS_openat, libc::AT_FDCWD, path, flags, 0)) {
        -1 => std::ptr::null_mut(),
        // SAFETY: it was just opened, and nothing else uses it.
        fd => unsafe { libc::fdopendir(fd as c_int) },
    }
}

#[unsafe(no_mangle)]
extern "C" fn mkdir(path: *const c_char, mode: libc::mode_t) -> c_int {
    by_path(path, Call::MakeDirectory, false, || kernel!(SYS_mkdirat, libc::AT_FDCWD, path, mode)) as c_int
}

#[unsafe(no_mangle)]
extern "C" fn unlink(path: *const c_char) -> c_int {
    by_path(path, Call::Remove, false, || kernel!(SYS_unlinkat, libc::AT_FDCWD, path, 0)) as c_int
}

#[unsafe(no_mangle)]
extern "C" fn rename(from: *const c_char, to: *const c_char) -> c_int {
    let go = || kernel!(SYS_renameat2, libc::AT_FDCWD, from, libc::AT_FDCWD, to, 0);
    by_path(from, Call::Rename, false, go) as c_int
}

#[unsafe(no_mangle)]
extern "C" fn read(fd: c_int, to: *mut c_void, count: usize) -> isize {
    by_descriptor(fd, Call::Read, || kernel!(SYS_read, fd, to, count)) as isize
}

#[unsafe(no_mangle)]
extern "C" fn pread64(fd: c_int, to: *mut c_void, count: usize, at: i64) -> isize {
    by_descriptor(fd, Call::Read, || kernel!(SYS_pread64, fd, to, count, at)) as isize
}

#[unsafe(no_mangle)]
extern "C" fn write(fd: c_int, from: *const c_void, count: usize) -> isize {
    by_descriptor(fd, Call::Write, || kernel!(SYS_write, fd, from, count)) as isize
}

#[unsafe(no_mangle)]
extern "C" fn pwrite64(fd: c_int, from: *const c_void, count: usize, at: i64) -> isize {
    by_descriptor(fd, Call::Write, || kernel!(SYS_pwrite64, fd, from, count, at)) as isize
}

#[unsafe(no_mangle)]
extern "C" fn ftruncate64(fd: c_int, length: i64) -> c_int {
    by_descriptor(fd, Call::SetLength, || kernel!(SYS_ftruncate, fd, length)) as c_int
}

#[unsafe(no_mangle)]
extern "C" fn fallocate(fd: c_int, mode: c_int, from: libc::off_t, bytes: libc::off_t) -> c_int {
    by_descriptor(fd, Call::Allocate, || kernel!(SYS_fallocate, fd, mode, from, bytes)) as c_int
}

#[unsafe(no_mangle)]
extern "C" fn fsync(fd: c_int) -> c_int {
    by_descriptor(fd, Call::Sync, || kernel!(SYS_fsync, fd)) as c_int
}

#[unsafe(no_mangle)]
extern "C" fn fdatasync(fd: c_int) -> c_int {
    by_descriptor(fd, Call::Sync, || kernel!(SYS_fdatasync, fd)) as c_int
}

/// -1 is `MAP_FAILED`.
#[unsafe(no_mangle)]
extern "C" fn mmap(
    at: *mut c_void,
    bytes: usize,
    protection: c_int,
    flags: c_int,
    fd: c_int,
    from: libc::off_t,
) -> *mut c_void {
    let go = || kernel!(SYS_mmap, at, bytes, protection, flags, fd, from);
    // A mapping of memory has no file.
    let mapped = if fd < 0 { go() } else { by_descriptor(fd, Call::Map, go) };
    std::ptr::with_exposed_provenance_mut(mapped as usize)
}
