//! Work ahead of the appenders: makes pages of the open segment present, and the files of the next one.
//!
//! The next segment's files are made under the names `log.spare`, `index.spare` and `timeindex.spare`, allocated and written with
//! zeros. The appender that rolls renames them. If there are none, or the rename fails, it makes its own. So nothing depends on
//! this thread: without it, an append that needs a page or a segment takes the time for it.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use crate::byte_lock::{Kind, LockFile};
use crate::control::{Control, lock_bytes};
use crate::error::{QueueError, Result};
use crate::inner::Inner;
use crate::map::PIECE_BYTES;
use crate::present::AHEAD_BYTES;
use crate::spare::spares;
use crate::{lock, segment};

/// The pause between two pieces while there is time. If no core is free, a spinning process loses its core for one piece, not for
/// all of them.
const REST: Duration = Duration::from_millis(1);
/// The interval of checks when no appender asks: appenders of other processes may have rolled.
const LOOK: Duration = Duration::from_millis(500);

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

    /// Makes pages behind the published end present, until there are enough. It pauses between pieces unless appenders use pages
    /// faster.
    fn populate(&self) {
        let mut is_paced = true;
        while !self.is_over.load(Ordering::Relaxed) {
            let end = self.control.end();
            let Some(ahead) = self.control.ahead.populate(end.roll, end.bytes as usize) else { return };
            if is_paced && ahead > AHEAD_BYTES / 4 {
                thread::sleep(REST);
                let now = self.control.end();
                let appended = now.bytes.saturating_sub(end.bytes) as usize;
                is_paced = now.roll == end.roll && appended <= PIECE_BYTES / 2;
            }
        }
    }

    /// Makes the files of the next segment, unless they exist or another process makes them. After a failure the appender makes
    /// its own, and reports the error.
    fn prepare_spare(&self, is_paced: bool) {
        let [log, ..] = spares(&self.directory);
        if log.exists() || !self.lock.try_lock(lock_bytes::PREPARING, Kind::Exclusive).unwrap_or(false) {
            return;
        }
        if !log.exists() && self.make_spare(is_paced).is_err() {
            spares(&self.directory).iter().for_each(|path| drop(fs::remove_file(path)));
        }
        let _ = self.lock.unlock(lock_bytes::PREPARING);
    }

    fn make_spare(&self, is_paced: bool) -> io::Result<()> {
        let is_synced = self.control.synced_end().load(Ordering::Relaxed) > 0;
        // The log last: its name means that all three exist.
        for (path, bytes) in spares(&self.directory).iter().zip(sizes(self.segment_bytes)).rev() {
            let made = path.with_extension("made");
            let file = File::options().create(true).truncate(true).read(true).write(true).open(&made)?;
            segment::allocate(&file, bytes)?;
            self.write_zeros(&file, bytes, is_paced)?;
            if is_synced {
                file.sync_all()?;
            }
            fs::rename(&made, path)?;
        }
        Ok(())
    }

    /// Writes in pieces. If `is_paced`, it pauses between them until appenders are half through the open segment, so that a process
    /// that shares its core with this thread never waits for long.
    fn write_zeros(&self, file: &File, bytes: u64, is_paced: bool) -> io::Result<()> {
        let zeros = vec![0; PIECE_BYTES];
        let mut at = 0;
        while at < bytes && !self.is_over.load(Ordering::Relaxed) {
            let count = (bytes - at).min(zeros.len() as u64);
            file.write_all_at(&zeros[..count as usize], at)?;
            at += count;
            self.populate();
            let is_early = u64::from(self.control.end().bytes) < self.segment_bytes / 2;
            if is_paced && at < bytes && is_early {
                thread::sleep(REST);
            }
        }
        Ok(())
    }
}

fn sizes(segment_bytes: u64) -> [u64; 3] {
    segment::sizes(segment_bytes).map(|(_, bytes)| bytes)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test that fails says so by a panic")]
    #![allow(unsafe_code, reason = "what the kernel counts of a thread")]

    use crate::Queue;

    /// The number of page faults of this thread, and of pages that it had made present.
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
