//! Reads from the disk, made by helper threads so that no event loop waits for one.
//!
//! A helper only brings a range into the page cache; the loop then reads or sends it from there. Each log directory has helpers of
//! its own: where a disk hangs, what is to be read from it waits, and the others go on. A disk that cannot be read takes its
//! directory offline.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::task::{Context, Poll};

use mainstem_log::FileRange;
use mainstem_log::dir::LogDir;
use mainstem_log::placement::DirectoryId;
use mainstem_log::pool::Pool;
use mainstem_log::storage::Advice;
use parking_lot::Mutex;

use mainstem_runtime::wake::TaskWaker;

/// Bytes that a helper reads at once.
const PIECE_BYTES: usize = 64 * 1024;

/// Helpers of a log directory: reads that its disk has at the same time, so that one that is slow holds up few others.
const HELPERS: usize = 4;

/// The helper threads, which are started as they are needed.
pub struct ColdReads {
    dirs: Vec<Arc<LogDir>>,
    /// By log directory. Files in no log directory have helpers, too.
    pools: Mutex<BTreeMap<Option<DirectoryId>, Arc<Pool>>>,
}

struct Order {
    range: FileRange,
    dir: Option<Arc<LogDir>>,
    outcome: Mutex<Outcome>,
}

#[derive(Default)]
struct Outcome {
    result: Option<io::Result<()>>,
    waiting: Option<TaskWaker>,
}

/// A range that was asked for.
pub struct ColdRead(Arc<Order>);

impl ColdReads {
    /// Reads from these directories, without a thread yet.
    pub fn new(dirs: Vec<Arc<LogDir>>) -> Self {
        ColdReads { dirs, pools: Mutex::default() }
    }

    /// Asks for a range to be brought into memory. Where no thread can be made, this one does it.
    pub fn request(&self, range: FileRange) -> ColdRead {
        let dir = self.dirs.iter().find(|dir| Some(dir.directory_id()) == range.directory).cloned();
        let order = Arc::new(Order { range, dir, outcome: Mutex::default() });
        let own = order.clone();
        let pool = self.pool(order.range.directory);
        if let Err(job) = pool.run(Box::new(move || serve(&own))) {
            job();
        }
        ColdRead(order)
    }

    /// The helpers of a directory. There are as many as directories, which a start knows.
    fn pool(&self, directory: Option<DirectoryId>) -> Arc<Pool> {
        let mut pools = self.pools.lock();
        let number = pools.len();
        let new = || Arc::new(Pool::new(format!("cold-reads-{number}"), HELPERS));
        pools.entry(directory).or_insert_with(new).clone()
    }
}

impl Drop for ColdReads {
    fn drop(&mut self) {
        self.pools.get_mut().values().for_each(|pool| pool.stop());
    }
}

impl ColdRead {
    /// Ready when the range is in memory, or could not be read.
    pub fn poll(&self, context: &Context<'_>) -> Poll<io::Result<()>> {
        let mut outcome = self.0.outcome.lock();
        match outcome.result.take() {
            Some(result) => Poll::Ready(result),
            None => {
                outcome.waiting = Some(TaskWaker::of(context));
                Poll::Pending
            }
        }
    }
}

fn serve(order: &Arc<Order>) {
    // It is not waited for any more: the connection went away.
    if Arc::strong_count(order) == 1 {
        return;
    }
    let result = read_through(&order.range);
    if let (Err(error), Some(dir)) = (&result, &order.dir) {
        dir.note_error(error);
    }
    let mut outcome = order.outcome.lock();
    outcome.result = Some(result);
    let waiting = outcome.waiting.take();
    drop(outcome);
    if let Some(task) = waiting {
        task.wake();
    }
}

/// Reads a range, so that it is in the page cache. The kernel is advised to read nothing ahead. Its read-ahead would run in the
/// loop that sends the range, and the loop would wait for pages that are not read yet.
fn read_through(range: &FileRange) -> io::Result<()> {
    let mut piece = vec![0; PIECE_BYTES];
    range.file.advise(Advice::Random, 0, 0);
    range.file.advise(Advice::WillNeed, range.position, range.len as u64);
    let (mut position, end) = (range.position, range.position + range.len as u64);
    while position < end {
        let length = piece.len().min((end - position) as usize);
        match range.file.read_at(&mut piece[..length], position)? {
            0 => return Err(io::Error::from(io::ErrorKind::UnexpectedEof)),
            read => position += read as u64,
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;
    use std::path::Path;

    use mainstem_log::dir::NodeIdentity;
    use mainstem_log::sim::SimStorage;
    use mainstem_log::storage::{OpenMode, Storage, StorageFile};

    use super::*;
    use crate::testing::{cold_file, together};

    #[test]
    fn slow_reads_do_not_wait_for_each_other() {
        let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
        let cold_reads = ColdReads::new(Vec::new());
        let range = range(cold_file(HELPERS), None);
        let reads: Vec<_> = (0..2 * HELPERS).map(|_| cold_reads.request(range.clone())).collect();
        for read in reads {
            runtime.block_on(poll_fn(|context| read.poll(context))).expect("the file can be read");
        }
        assert_eq!(cold_reads.pool(None).threads(), HELPERS);
    }

    #[test]
    fn a_disk_that_cannot_be_read_takes_its_directory_offline() {
        let disk = SimStorage::new();
        let identity = NodeIdentity { cluster_id: Some("cluster".into()), node_id: 1 };
        let open = |path: &str| {
            LogDir::open(Arc::new(disk.clone()), Path::new(path), &identity, "boot").expect("it opens")
        };
        let (failing, other) = (open("/failing"), open("/other"));
        let file = disk.open(Path::new("/failing/records"), OpenMode::Create).expect("a file");
        file.set_len(2 * PIECE_BYTES as u64).expect("there is room");
        disk.set_unreadable(true);
        let cold_reads = ColdReads::new(vec![other.clone(), failing.clone()]);
        let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
        let read = cold_reads.request(range(file, Some(failing.directory_id())));
        runtime.block_on(poll_fn(|context| read.poll(context))).expect_err("it cannot be read");
        assert!(failing.failure().is_some() && other.failure().is_none());
    }

    fn range(file: Arc<dyn StorageFile>, directory: Option<DirectoryId>) -> FileRange {
        FileRange { file, position: 0, len: 2 * PIECE_BYTES, directory, recent: false, aborted: Vec::new() }
    }

    #[test]
    fn reads_of_a_directory_that_hangs_keep_no_other_waiting() {
        let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
        let cold_reads = ColdReads::new(Vec::new());
        // It is read when all that will ever be asked for is.
        let hanging = together(usize::MAX);
        let stuck: Vec<_> =
            (0..3 * HELPERS).map(|_| cold_reads.request(range(hanging.clone(), Some([1; 16])))).collect();
        for _ in 0..HELPERS {
            let read = cold_reads.request(range(cold_file(1), Some([2; 16])));
            runtime.block_on(poll_fn(|context| read.poll(context))).expect("the file can be read");
        }
        assert!(*hanging.begun.lock() <= HELPERS, "no more threads wait for a directory than it has");
        hanging.release();
        for read in stuck {
            runtime.block_on(poll_fn(|context| read.poll(context))).expect("the disk answers again");
        }
    }
}
