//! Reads from the disk, made by a helper thread so that no event loop waits for one.
//!
//! The helper only brings a range into the page cache; the loop then reads or sends it from there.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::thread::JoinHandle;

use mainstem_log::FileRange;
use mainstem_log::storage::Advice;
use parking_lot::{Condvar, Mutex};

use crate::wake::TaskWaker;

/// Bytes that the helper reads at once.
const PIECE_BYTES: usize = 64 * 1024;

/// The helper thread's queue.
pub(crate) struct ColdReads {
    queue: Arc<Queue>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

#[derive(Default)]
struct Queue {
    state: Mutex<QueueState>,
    changed: Condvar,
}

#[derive(Default)]
struct QueueState {
    orders: VecDeque<Arc<Order>>,
    stopped: bool,
}

struct Order {
    range: FileRange,
    outcome: Mutex<Outcome>,
}

#[derive(Default)]
struct Outcome {
    result: Option<io::Result<()>>,
    waiting: Option<TaskWaker>,
}

/// A range that was asked for.
pub(crate) struct ColdRead(Arc<Order>);

impl ColdReads {
    /// Starts the helper thread.
    ///
    /// # Errors
    /// The system's, when no thread can be made.
    pub(crate) fn start() -> io::Result<Self> {
        let queue = Arc::new(Queue::default());
        let own = queue.clone();
        let thread = std::thread::Builder::new().name("cold-reads".into()).spawn(move || own.serve())?;
        Ok(ColdReads { queue, thread: Mutex::new(Some(thread)) })
    }

    /// Asks for a range to be brought into memory.
    pub(crate) fn request(&self, range: FileRange) -> ColdRead {
        let order = Arc::new(Order { range, outcome: Mutex::default() });
        self.queue.state.lock().orders.push_back(order.clone());
        self.queue.changed.notify_one();
        ColdRead(order)
    }
}

impl Drop for ColdReads {
    fn drop(&mut self) {
        self.queue.state.lock().stopped = true;
        self.queue.changed.notify_all();
        if let Some(thread) = self.thread.lock().take() {
            let _ = thread.join();
        }
    }
}

impl ColdRead {
    /// Ready when the range is in memory, or could not be read.
    pub(crate) fn poll(&self, context: &Context<'_>) -> Poll<io::Result<()>> {
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

impl Queue {
    fn serve(&self) {
        let mut piece = vec![0; PIECE_BYTES];
        while let Some(order) = self.next() {
            // Nobody waits any more: the connection went away.
            if Arc::strong_count(&order) == 1 {
                continue;
            }
            let result = read_through(&order.range, &mut piece);
            let mut outcome = order.outcome.lock();
            outcome.result = Some(result);
            let waiting = outcome.waiting.take();
            drop(outcome);
            if let Some(task) = waiting {
                task.wake();
            }
        }
    }

    fn next(&self) -> Option<Arc<Order>> {
        let mut state = self.state.lock();
        loop {
            if state.stopped {
                return None;
            }
            if let Some(order) = state.orders.pop_front() {
                return Some(order);
            }
            self.changed.wait(&mut state);
        }
    }
}

/// Reads a range, so that it is in the page cache. The kernel is told to read nothing ahead of it: its read-ahead would
/// go on in the loop that sends the range, and have that loop wait for pages that are on their way.
fn read_through(range: &FileRange, piece: &mut [u8]) -> io::Result<()> {
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
