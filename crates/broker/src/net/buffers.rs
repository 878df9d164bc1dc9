//! Memory for requests and responses: pooled buffers per event loop, and the budget for large requests.
//!
//! A connection without unfinished business holds no buffer. What a loop may hold is
//! [`POOLED_BUFFERS_MAX`] x [`BUFFER_BYTES`]; what large requests may hold is `queued.max.request.bytes` plus one
//! request, as in Kafka's own memory pool: a request is admitted while anything is left.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};

use parking_lot::Mutex;

use crate::net::wake::TaskWaker;

/// Size of a pooled buffer. A request that fits is read and served from one; 64 KiB is what one read of a loopback
/// socket returns at most in practice.
pub(crate) const BUFFER_BYTES: usize = 64 * 1024;

/// Buffers that one loop keeps for the next turn: one being read, one being written, and some for pipelined answers.
const POOLED_BUFFERS_MAX: usize = 4;

thread_local! {
    static POOL: RefCell<Vec<Vec<u8>>> = const { RefCell::new(Vec::new()) };
}

/// An empty buffer with room for [`BUFFER_BYTES`].
pub(crate) fn take() -> Vec<u8> {
    POOL.with_borrow_mut(Vec::pop).unwrap_or_else(|| Vec::with_capacity(BUFFER_BYTES))
}

/// Gives a buffer back. One that has grown, or one too many, is freed.
pub(crate) fn give(mut buffer: Vec<u8>) {
    if buffer.capacity() != BUFFER_BYTES {
        return;
    }
    buffer.clear();
    POOL.with_borrow_mut(|pool| {
        if pool.len() < POOLED_BUFFERS_MAX {
            pool.push(buffer);
        }
    });
}

/// The budget of `queued.max.request.bytes` for requests larger than a pooled buffer.
pub(crate) struct RequestMemory {
    limit: u64,
    state: Mutex<State>,
    contended: AtomicBool,
}

struct State {
    used: u64,
    waiting: VecDeque<TaskWaker>,
}

impl RequestMemory {
    pub(crate) fn new(limit: u64) -> Arc<Self> {
        let state = Mutex::new(State { used: 0, waiting: VecDeque::new() });
        Arc::new(RequestMemory { limit, state, contended: AtomicBool::new(false) })
    }

    /// Reserves `bytes`, or has the task woken when some are free.
    pub(crate) fn poll_reserve(self: &Arc<Self>, bytes: usize, context: &Context<'_>) -> Poll<Reservation> {
        let mut state = self.state.lock();
        if state.used >= self.limit {
            state.waiting.push_back(TaskWaker::of(context));
            self.contended.store(true, Ordering::Relaxed);
            return Poll::Pending;
        }
        state.used += bytes as u64;
        Poll::Ready(Reservation { memory: self.clone(), bytes: bytes as u64 })
    }

    /// Reserves bytes that are held already, whether or not any are left: what is admitted next waits the longer.
    pub(crate) fn take(self: &Arc<Self>, bytes: usize) -> Reservation {
        self.state.lock().used += bytes as u64;
        Reservation { memory: self.clone(), bytes: bytes as u64 }
    }

    /// Whether somebody waits for memory: then a sender that does not deliver has to go.
    pub(crate) fn is_contended(&self) -> bool {
        self.contended.load(Ordering::Relaxed)
    }

    /// Bytes reserved now.
    pub(crate) fn used(&self) -> u64 {
        self.state.lock().used
    }

    fn release(&self, bytes: u64) {
        let mut state = self.state.lock();
        state.used -= bytes;
        self.contended.store(false, Ordering::Relaxed);
        // All of them: each polls again, takes what is there or queues again in the order of its wake.
        let waiting = std::mem::take(&mut state.waiting);
        drop(state);
        waiting.into_iter().for_each(TaskWaker::wake);
    }
}

/// A part of the budget, given back when dropped.
pub(crate) struct Reservation {
    memory: Arc<RequestMemory>,
    bytes: u64,
}

impl Drop for Reservation {
    fn drop(&mut self) {
        self.memory.release(self.bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_is_admitted_while_anything_is_left() {
        let memory = RequestMemory::new(100);
        let context = Context::from_waker(std::task::Waker::noop());
        let Poll::Ready(first) = memory.poll_reserve(60, &context) else { panic!("the budget is free") };
        let Poll::Ready(second) = memory.poll_reserve(60, &context) else { panic!("40 bytes are left") };
        assert!(memory.poll_reserve(1, &context).is_pending());
        assert!(memory.is_contended());
        drop(first);
        assert_eq!(memory.used(), 60);
        assert!(memory.poll_reserve(1, &context).is_ready());
        drop(second);
    }

    #[test]
    fn a_grown_buffer_is_not_kept() {
        let mut buffer = take();
        buffer.resize(BUFFER_BYTES + 1, 0);
        give(buffer);
        assert_eq!(take().capacity(), BUFFER_BYTES);
    }
}
