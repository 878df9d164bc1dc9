//! What comes next, made ready ahead of the one that appends: pages of the open segment, and the files of the next one.
//!
//! The next segment's files are made under the names `log.spare`, `index.spare` and `timeindex.spare`, allocated and written with
//! zeros; the one that rolls renames them. Where there are none, or the rename fails, it makes its own, so that nothing depends on
//! this thread: without it an append that needs a page or a segment takes the time for it.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::{self, JoinHandle, Thread};
use std::time::Duration;

use parking_lot::Mutex;

use crate::byte_lock::{Kind, LockFile};
use crate::control::{Control, lock_bytes};
use crate::error::{QueueError, Result};
use crate::lock;
use crate::map::{PIECE_BYTES, Pages};
use crate::options::RESIDENT_BYTES;
use crate::queue::Inner;
use crate::segment;

/// Pages are made present up to here behind what is published; at half of it the appender asks for more.
pub(crate) const AHEAD_BYTES: usize = 2 << 20;
/// What is not kept resident is given back when it has become this part of what is.
const FORGET_PART: usize = 4;
/// Between two pieces the thread rests for so long while there is time: where no core is free one that spins has lost its core for a
/// piece, not for all of them.
const REST: Duration = Duration::from_millis(1);
/// How often it is looked when nothing asks: appenders of other processes may have rolled.
const LOOK: Duration = Duration::from_millis(500);

/// What the appenders of one process and the thread that works ahead of them share.
#[derive(Debug)]
pub(crate) struct Ahead {
    /// What was written longer ago than this is not kept resident by appenders.
    resident_bytes: usize,
    segments: Mutex<Vec<Present>>,
    worker: Mutex<Option<Thread>>,
    is_working: AtomicBool,
}

/// How much of a mapping of the open segment is present in this process.
#[derive(Debug, Clone)]
pub(crate) struct Present {
    pub(crate) roll: u32,
    pub(crate) pages: Pages,
    pub(crate) to: Arc<AtomicUsize>,
    pub(crate) forgotten_to: Arc<AtomicUsize>,
}

impl Default for Ahead {
    fn default() -> Ahead {
        Ahead {
            resident_bytes: RESIDENT_BYTES,
            segments: Mutex::default(),
            worker: Mutex::default(),
            is_working: AtomicBool::default(),
        }
    }
}

impl Ahead {
    /// Has appenders keep so many bytes resident of what was written last.
    pub(crate) fn keep_resident(&mut self, bytes: usize) {
        self.resident_bytes = bytes;
    }

    /// Gives pages of a mapping back that lie far behind `position`.
    pub(crate) fn forget(&self, pages: &Pages, forgotten_to: &AtomicUsize, position: usize) {
        let from = forgotten_to.load(Ordering::Relaxed);
        // Whole pieces: a page that one call ends in would be left by the next one.
        let to = position.saturating_sub(self.resident_bytes) / PIECE_BYTES * PIECE_BYTES;
        let is_much = to > from && to - from >= self.resident_bytes / FORGET_PART;
        if is_much && pages.forget(from..to) {
            forgotten_to.fetch_max(to, Ordering::Relaxed);
        }
    }

    /// Notes a mapping that is appended through, for as long as it lives.
    pub(crate) fn watch(&self, present: Present) {
        if !present.pages.is_mapped() {
            return;
        }
        let mut segments = self.segments.lock();
        segments.retain(|segment| segment.pages.is_mapped());
        segments.push(present);
    }

    /// Has the thread look at once, if there is one.
    pub(crate) fn ask(&self) {
        if self.is_working.load(Ordering::Relaxed)
            && let Some(worker) = &*self.worker.lock()
        {
            worker.unpark();
        }
    }

    /// Makes a piece of pages behind what is published present. Returns how many bytes behind it are present then, where there are
    /// least; `None` if there was nothing to do.
    fn populate(&self, roll: u32, published: usize) -> Option<usize> {
        let segments: Vec<Present> =
            self.segments.lock().iter().filter(|segment| segment.roll == roll).cloned().collect();
        let mut least = None;
        for segment in segments {
            // Of an appender that waits for its turn too, while others append.
            self.forget(&segment.pages, &segment.forgotten_to, published);
            let from = segment.to.load(Ordering::Relaxed).max(published);
            if from >= published + AHEAD_BYTES {
                continue;
            }
            let end = (from + PIECE_BYTES).next_multiple_of(PIECE_BYTES);
            if segment.pages.populate(from..end) {
                segment.to.fetch_max(end, Ordering::Relaxed);
                let ahead = end - published;
                least = Some(least.map_or(ahead, |least: usize| least.min(ahead)));
            }
        }
        least
    }
}

/// A thread that works ahead of the appenders of this process, see [`Queue::prepare_ahead`](crate::Queue::prepare_ahead). It ends
/// when this is dropped.
#[derive(Debug)]
pub struct Prepared {
    control: Arc<Control>,
    is_over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Prepared {
    pub(crate) fn start(inner: &Inner) -> Result<Prepared> {
        let control = Arc::clone(&inner.control);
        let is_over = Arc::new(AtomicBool::new(false));
        let worker = Worker {
            directory: inner.directory.clone(),
            control: Arc::clone(&control),
            segment_bytes: inner.rules.segment_bytes,
            lock: lock::open_for_locks(&inner.directory, true)?,
            is_over: Arc::clone(&is_over),
        };
        // The first segment after this call finds its files.
        worker.prepare_spare(false);
        let thread = thread::Builder::new().name("queue-ahead".to_owned()).spawn(move || worker.run());
        let thread =
            thread.map_err(|error| QueueError::io("starting a thread for", &inner.directory, error))?;
        *control.ahead.worker.lock() = Some(thread.thread().clone());
        control.ahead.is_working.store(true, Ordering::Relaxed);
        Ok(Prepared { control, is_over, thread: Some(thread) })
    }
}

impl Drop for Prepared {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
        self.control.ahead.is_working.store(false, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            let _ = thread.join();
        }
    }
}

struct Worker {
    directory: PathBuf,
    control: Arc<Control>,
    segment_bytes: u64,
    lock: LockFile,
    is_over: Arc<AtomicBool>,
}

impl Worker {
    fn run(self) {
        while !self.is_over.load(Ordering::Relaxed) {
            self.populate();
            self.prepare_spare(true);
            thread::park_timeout(LOOK);
        }
    }

    /// Makes pages behind what is published present, until there are enough. Rests in between unless appenders need pages faster than
    /// that makes them.
    fn populate(&self) {
        let mut rests = true;
        while !self.is_over.load(Ordering::Relaxed) {
            let end = self.control.end();
            let Some(ahead) = self.control.ahead.populate(end.roll, end.bytes as usize) else { return };
            if rests && ahead > AHEAD_BYTES / 4 {
                thread::sleep(REST);
                let now = self.control.end();
                let appended = now.bytes.saturating_sub(end.bytes) as usize;
                rests = now.roll == end.roll && appended <= PIECE_BYTES / 2;
            }
        }
    }

    /// Makes the files of the next segment, unless they are there or another process is at it. What fails is left to the appender,
    /// who says why.
    fn prepare_spare(&self, rests: bool) {
        let [log, ..] = spares(&self.directory);
        if log.exists() || !self.lock.try_lock(lock_bytes::PREPARING, Kind::Exclusive).unwrap_or(false) {
            return;
        }
        if !log.exists() && self.make_spare(rests).is_err() {
            spares(&self.directory).iter().for_each(|path| drop(fs::remove_file(path)));
        }
        let _ = self.lock.unlock(lock_bytes::PREPARING);
    }

    fn make_spare(&self, rests: bool) -> io::Result<()> {
        let is_synced = self.control.synced_end().load(Ordering::Relaxed) > 0;
        // The log last: it says that all three are there.
        for (path, bytes) in spares(&self.directory).iter().zip(sizes(self.segment_bytes)).rev() {
            let made = path.with_extension("made");
            let file = File::options().create(true).truncate(true).read(true).write(true).open(&made)?;
            segment::allocate(&file, bytes)?;
            self.write_zeros(&file, bytes, rests)?;
            if is_synced {
                file.sync_all()?;
            }
            fs::rename(&made, path)?;
        }
        Ok(())
    }

    /// In pieces. With rests between them, if wanted, until appenders are half through the open segment: one that has to share its core
    /// with this thread then never waits for long.
    fn write_zeros(&self, file: &File, bytes: u64, rests: bool) -> io::Result<()> {
        let zeros = vec![0; PIECE_BYTES];
        let mut at = 0;
        while at < bytes && !self.is_over.load(Ordering::Relaxed) {
            let count = (bytes - at).min(zeros.len() as u64);
            file.write_all_at(&zeros[..count as usize], at)?;
            at += count;
            self.populate();
            let is_early = u64::from(self.control.end().bytes) < self.segment_bytes / 2;
            if rests && at < bytes && is_early {
                thread::sleep(REST);
            }
        }
        Ok(())
    }
}

fn sizes(segment_bytes: u64) -> [u64; 3] {
    segment::sizes(segment_bytes).map(|(_, bytes)| bytes)
}

/// The files of the next segment, the log first.
fn spares(directory: &Path) -> [PathBuf; 3] {
    ["log", "index", "timeindex"].map(|extension| directory.join(format!("{extension}.spare")))
}

/// Gives prepared files their names. Returns false if there are none, or not of the right size; then nothing is left of them that
/// a segment could be taken for. For the holder of the lock.
pub(crate) fn take_spare(directory: &Path, base: i64, segment_bytes: u64) -> bool {
    let paths = spares(directory);
    // It is made last.
    if !paths[0].exists() {
        return false;
    }
    let sized = paths.iter().zip(segment::sizes(segment_bytes));
    // The log last: a segment whose log is there is there.
    let is_taken = sized.rev().all(|(spare, (extension, bytes))| {
        fs::metadata(spare).is_ok_and(|file| file.len() == bytes)
            && fs::rename(spare, segment::path(directory, base, extension)).is_ok()
    });
    if !is_taken {
        // Of one that died between two names, perhaps; the thread makes them anew.
        paths.iter().for_each(|path| drop(fs::remove_file(path)));
    }
    is_taken
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test that fails says so by a panic")]
    #![allow(unsafe_code, reason = "what the kernel counts of a thread")]

    use crate::Queue;

    /// How often this thread has waited for the kernel to find a page, or had it make pages present.
    fn page_faults() -> i64 {
        // SAFETY: all bytes zero is such a structure, and the call writes one.
        unsafe {
            let mut usage: libc::rusage = std::mem::zeroed();
            assert_eq!(libc::getrusage(libc::RUSAGE_THREAD, &raw mut usage), 0);
            usage.ru_minflt + usage.ru_majflt
        }
    }

    #[test]
    fn an_appender_finds_the_pages_that_were_made_present_ahead() {
        const BYTES: usize = 1 << 20;
        let dir = tempfile::tempdir().unwrap();
        let queue = Queue::open(dir.path()).unwrap();
        let mut appender = queue.exclusive_appender().unwrap();
        appender.append("the first page, and those of the indexes").unwrap();
        let mut faults_of_a_mebibyte = |is_ahead: bool| {
            if is_ahead {
                // What the thread does.
                let end = queue.inner.control.end();
                while queue.inner.control.ahead.populate(end.roll, end.bytes as usize).is_some() {}
            }
            let before = page_faults();
            for _ in 0..BYTES / 4_096 {
                appender.append([1; 4_000]).unwrap();
            }
            page_faults() - before
        };
        let without = faults_of_a_mebibyte(false);
        // Entries of the indexes take a page now and then; a system that writes pages to the disk may take some, and not each time.
        let with = (0..5).map(|_| faults_of_a_mebibyte(true)).min().unwrap();
        assert!(without >= 100 && with < 16, "{without} without, {with} with pages ahead");
    }
}
