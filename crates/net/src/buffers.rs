//! Memory for requests and responses: pooled buffers per event loop, and the budget for large requests.
//!
//! A connection without unfinished business holds no buffer. What a loop may hold is
//! [`POOLED_BUFFERS_MAX`] x [`BUFFER_BYTES`]; what large requests may hold is `queued.max.request.bytes` plus one
//! request.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::collections::hash_map::{Entry, HashMap};
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};

use mainstem_peers::Peer;
use parking_lot::Mutex;

use mainstem_runtime::heap;
use mainstem_runtime::wake::TaskWaker;

/// Size of a pooled buffer. A request that fits is read and served from one; 64 KiB is what one read of a loopback
/// socket returns at most in practice.
pub const BUFFER_BYTES: usize = 64 * 1024;

/// Buffers that one loop keeps for the next turn: one being read, one being written, and some for pipelined answers.
const POOLED_BUFFERS_MAX: usize = 4;

thread_local! {
    static POOL: RefCell<Vec<Vec<u8>>> = const { RefCell::new(Vec::new()) };
}

/// An empty buffer with room for [`BUFFER_BYTES`].
pub fn take() -> Vec<u8> {
    POOL.with_borrow_mut(Vec::pop).unwrap_or_else(|| Vec::with_capacity(BUFFER_BYTES))
}

/// Gives a buffer back. One that has grown, or one too many, is freed.
pub fn give(mut buffer: Vec<u8>) {
    if buffer.capacity() != BUFFER_BYTES {
        return heap::freed(buffer.capacity());
    }
    buffer.clear();
    POOL.with_borrow_mut(|pool| match pool.len() < POOLED_BUFFERS_MAX {
        true => pool.push(buffer),
        false => heap::freed(BUFFER_BYTES),
    });
}

/// The budget of `queued.max.request.bytes` for requests larger than a pooled buffer.
///
/// A request reserves memory for the bytes that arrive, step by step, never for its announced length. Requests from one peer may
/// have half of the budget. Beyond either bound, one request at a time may exceed the budget. Otherwise requests that hold a
/// part of it and need more could wait for each other for ever.
pub struct RequestMemory {
    limit: u64,
    state: Mutex<State>,
    contended: AtomicBool,
}

struct State {
    /// Bytes within the budget.
    used: u64,
    /// The part of `used` that was reserved for requests of each peer.
    by_peer: HashMap<Peer, u64>,
    /// Some request exceeds the budget.
    is_overdrawn: bool,
    waiting: VecDeque<TaskWaker>,
}

impl RequestMemory {
    /// Creates a memory of at most this many bytes.
    pub fn new(limit: u64) -> Arc<Self> {
        let state = State { used: 0, by_peer: HashMap::new(), is_overdrawn: false, waiting: VecDeque::new() };
        Arc::new(RequestMemory { limit, state: Mutex::new(state), contended: AtomicBool::new(false) })
    }

    /// A reservation of nothing yet, for a request from an address.
    pub fn begin(self: &Arc<Self>, peer: IpAddr) -> Reservation {
        Reservation { memory: self.clone(), peer: Some(Peer::of(peer)), bytes: 0, is_overdraft: false }
    }

    /// Reserves bytes that are held already, whether or not any are left: what is admitted next waits the longer.
    pub fn take(self: &Arc<Self>, bytes: usize) -> Reservation {
        self.state.lock().used += bytes as u64;
        Reservation { memory: self.clone(), peer: None, bytes: bytes as u64, is_overdraft: false }
    }

    /// Returns true while a request waits for memory: then a sender that does not deliver has to go.
    pub fn is_contended(&self) -> bool {
        self.contended.load(Ordering::Relaxed)
    }

    /// Bytes reserved now.
    pub fn used(&self) -> u64 {
        self.state.lock().used
    }

    fn release(&self, reservation: &Reservation) {
        let mut state = self.state.lock();
        state.used -= reservation.bytes;
        state.is_overdrawn &= !reservation.is_overdraft;
        if let Some(peer) = reservation.peer
            && let Entry::Occupied(mut held) = state.by_peer.entry(peer)
        {
            *held.get_mut() -= reservation.bytes;
            if *held.get() == 0 {
                held.remove();
            }
        }
        self.contended.store(false, Ordering::Relaxed);
        // All of them: each polls again, takes what is there or queues again in the order of its wake.
        let waiting = std::mem::take(&mut state.waiting);
        drop(state);
        waiting.into_iter().for_each(TaskWaker::wake);
    }
}

/// A part of the budget, given back when dropped.
pub struct Reservation {
    memory: Arc<RequestMemory>,
    /// None if the bytes do not depend on a peer to deliver.
    peer: Option<Peer>,
    bytes: u64,
    /// True if further bytes do not count against the budget.
    is_overdraft: bool,
}

impl Reservation {
    /// Reserves `more` bytes, or has the task woken when they may be free.
    pub fn poll_grow(&mut self, more: usize, context: &Context<'_>) -> Poll<()> {
        if self.is_overdraft {
            return Poll::Ready(());
        }
        let more = more as u64;
        let mut state = self.memory.state.lock();
        let by_peer = self.peer.map_or(0, |peer| state.by_peer.get(&peer).copied().unwrap_or(0));
        let fits = state.used.saturating_add(more) <= self.memory.limit
            && by_peer.saturating_add(more) <= self.memory.limit / 2;
        if fits {
            state.used += more;
            self.bytes += more;
            if let Some(peer) = self.peer {
                *state.by_peer.entry(peer).or_insert(0) += more;
            }
        } else if !state.is_overdrawn {
            state.is_overdrawn = true;
            self.is_overdraft = true;
        } else {
            state.waiting.push_back(TaskWaker::of(context));
            self.memory.contended.store(true, Ordering::Relaxed);
            return Poll::Pending;
        }
        Poll::Ready(())
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        self.memory.release(self);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HERE: IpAddr = IpAddr::V4(std::net::Ipv4Addr::LOCALHOST);
    const THERE: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, 1));

    fn grows(reservation: &mut Reservation, more: usize) -> bool {
        reservation.poll_grow(more, &Context::from_waker(std::task::Waker::noop())).is_ready()
    }

    #[test]
    fn an_address_has_half_of_the_budget_and_one_request_goes_beyond() {
        let memory = RequestMemory::new(100);
        let mut requests: Vec<_> = (0..4).map(|_| memory.begin(HERE)).collect();
        assert!(grows(&mut requests[0], 30) && grows(&mut requests[1], 20));
        assert!(grows(&mut requests[2], 1_000), "one may go on beside the budget");
        assert_eq!(memory.used(), 50);
        assert!(!grows(&mut requests[3], 1) && memory.is_contended());
        let mut other = memory.begin(THERE);
        assert!(grows(&mut other, 50), "another address has the other half");
        assert!(!grows(&mut other, 1), "and no more");
        drop(requests.remove(2));
        assert!(!memory.is_contended(), "those who wait look again");
        assert!(grows(&mut other, 1_000), "the place beside the budget is free");
        drop(requests);
        drop(other);
        assert_eq!(memory.used(), 0);
        assert!(memory.state.lock().by_peer.is_empty());
    }

    #[test]
    fn requests_that_need_more_than_there_is_complete_one_after_another() {
        let memory = RequestMemory::new(10);
        let mut requests: Vec<_> = [HERE, HERE, THERE].map(|peer| memory.begin(peer)).into();
        assert!(requests.iter_mut().zip([3, 2, 5]).all(|(request, bytes)| grows(request, bytes)));
        while !requests.is_empty() {
            let able: Vec<bool> = requests.iter_mut().map(|request| grows(request, 100)).collect();
            assert_eq!(able.iter().filter(|able| **able).count(), 1, "{able:?}");
            requests.remove(able.iter().position(|able| *able).expect("there is one"));
        }
    }

    #[test]
    fn a_grown_buffer_is_not_kept() {
        let mut buffer = take();
        buffer.resize(BUFFER_BYTES + 1, 0);
        give(buffer);
        assert_eq!(take().capacity(), BUFFER_BYTES);
    }
}
