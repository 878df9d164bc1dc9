//! Waking a task from wherever an event happens.
//!
//! A wake on the event loop that runs the task is a push to that loop's queue. A wake from another thread would cost
//! one eventfd write each time; it goes to the loop's [`Mailbox`] instead, which writes once however many wakes
//! arrive until the loop has come round, and not at all while the loop looks there by itself.

use std::cell::{Cell, RefCell};
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::Instant;

use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::idle_poll::{Density, IdlePoll};

thread_local! {
    static CURRENT: RefCell<Option<Arc<Mailbox>>> = const { RefCell::new(None) };
    static WOKE_NEIGHBOUR: Cell<bool> = const { Cell::new(false) };
    /// Turns of connections on this loop.
    static TURNS: Cell<u64> = const { Cell::new(0) };
    static DENSITY: Cell<Option<Density>> = const { Cell::new(None) };
    static IS_DENSE: Cell<bool> = const { Cell::new(false) };
    /// When the connection whose turn it is has to look again, as those that it polls have asked.
    static LOOK_AGAIN: Cell<Option<Instant>> = const { Cell::new(None) };
    /// The task that delivers posts, while it waits.
    static DELIVERER: RefCell<Option<Waker>> = const { RefCell::new(None) };
}

/// A connection of this loop begins a turn: it has, or may have, something to do.
pub fn begin_turn(now: Instant) {
    TURNS.set(TURNS.get() + 1);
    LOOK_AGAIN.set(None);
    // A loop that looks already finds out by itself when to stop.
    if !is_dense() {
        note_turn(now);
    }
}

fn note_turn(now: Instant) {
    let window = CURRENT.with_borrow(|current| current.as_ref().map(|mailbox| mailbox.idle_poll.window()));
    let Some(window) = window.filter(|window| !window.is_zero()) else { return };
    let mut density = DENSITY.get().unwrap_or_else(|| Density::new(now));
    let is_dense = density.arrived(now, window);
    DENSITY.set(Some(density));
    IS_DENSE.set(is_dense);
    if is_dense && let Some(deliverer) = DELIVERER.take() {
        deliverer.wake();
    }
}

/// Has the connection whose turn it is poll again at this instant, or soon after it, whatever it waits for. Counts for this turn:
/// who waits on asks again.
///
/// A connection has a timer in any case, and leaves one alone that ends too early. A timer for each wait would be set and
/// taken back with each message; and where it is the first of its loop to end, tokio writes to an eventfd, and the loop
/// comes round once more for that.
pub fn look_again_at(instant: Instant) {
    let first = LOOK_AGAIN.get().map_or(instant, |asked| asked.min(instant));
    LOOK_AGAIN.set(Some(first));
}

/// The first instant for which [`look_again_at`] was called in this turn.
pub fn look_again() -> Option<Instant> {
    LOOK_AGAIN.get()
}

/// Turns of connections on this loop so far.
pub fn turns() -> u64 {
    TURNS.get()
}

/// Whether turns follow each other so closely that the loop should look for more before it sleeps.
pub fn is_dense() -> bool {
    IS_DENSE.get()
}

/// Nothing has come for a while.
pub fn end_density() {
    IS_DENSE.set(false);
}

/// Whether a task was woken on this thread, by a task of the same event loop, since this was asked last.
///
/// A connection that appended what others wait for answers its own peer and lets them send before it reads on.
pub fn woke_neighbour() -> bool {
    WOKE_NEIGHBOUR.replace(false)
}

/// Has the task that is being polled run again after all others that have something to do, those included whose sockets
/// have become ready meanwhile.
///
/// A task that just wakes itself would keep the loop from running out of tasks, which then looks at its sockets only
/// after every sixty-first: next to two connections that are always busy, others would wait for tens of milliseconds.
pub fn end_turn(context: &mut Context<'_>) {
    let first_poll = pin!(tokio::task::yield_now()).poll(context);
    debug_assert!(first_poll.is_pending(), "a yield takes effect by its first poll");
}

/// Wakes posted to one event loop by other threads.
#[derive(Default)]
pub struct Mailbox {
    posted: Mutex<Vec<Waker>>,
    /// Set from the first post until the loop delivers: further posts need not wake the loop again.
    notified: AtomicBool,
    /// The loop looks here by itself: posts need not wake it at all.
    is_looked_at: AtomicBool,
    notify: Notify,
    idle_poll: IdlePoll,
}

impl Mailbox {
    /// One of a loop that looks for more as `idle_poll` says.
    pub fn new(idle_poll: IdlePoll) -> Mailbox {
        Mailbox { idle_poll, ..Mailbox::default() }
    }

    /// Makes this the mailbox of the calling thread, which is about to run an event loop.
    pub fn enter(self: &Arc<Self>) {
        CURRENT.with_borrow_mut(|current| *current = Some(self.clone()));
    }

    fn is_current(self: &Arc<Self>) -> bool {
        CURRENT.with_borrow(|current| current.as_ref().is_some_and(|own| Arc::ptr_eq(own, self)))
    }

    /// For how long its loop looks for more.
    pub fn idle_poll(&self) -> &IdlePoll {
        &self.idle_poll
    }

    fn post(&self, waker: Waker) {
        self.posted.lock().push(waker);
        if !self.is_looked_at.load(Ordering::SeqCst) && !self.notified.swap(true, Ordering::AcqRel) {
            self.notify.notify_one();
        }
    }

    /// Waits for a post, or until the turns of the loop's connections follow each other closely.
    pub async fn wait(&self) {
        let mut posted = pin!(self.notify.notified());
        poll_fn(|context| {
            if posted.as_mut().poll(context).is_ready() || is_dense() {
                return Poll::Ready(());
            }
            DELIVERER.set(Some(context.waker().clone()));
            Poll::Pending
        })
        .await;
    }

    /// Delivers what was posted, by a buffer that is empty before and after; whether there was something.
    pub fn deliver(&self, batch: &mut Vec<Waker>) -> bool {
        // Cleared before: a post that comes between the two notifies again.
        self.notified.store(false, Ordering::Release);
        std::mem::swap(&mut *self.posted.lock(), batch);
        let has_posted = !batch.is_empty();
        batch.drain(..).for_each(Waker::wake);
        has_posted
    }

    /// Says that the loop delivers again and again by itself, so that posts need not wake it, or does so no more. When it stops,
    /// it delivers once more: no task was notified of what came before.
    pub fn set_looked_at(&self, is_looked_at: bool) {
        self.is_looked_at.store(is_looked_at, Ordering::SeqCst);
    }
}

/// A task's waker together with the mailbox of the loop that it runs on.
#[derive(Clone)]
pub struct TaskWaker {
    mailbox: Option<Arc<Mailbox>>,
    waker: Waker,
}

impl TaskWaker {
    /// The waker of the task that is being polled now, on this thread.
    pub fn of(context: &Context<'_>) -> Self {
        let mailbox = CURRENT.with_borrow(Clone::clone);
        TaskWaker { mailbox, waker: context.waker().clone() }
    }

    /// Wakes the task from any thread.
    pub fn wake(self) {
        match self.mailbox {
            Some(mailbox) if !mailbox.is_current() => mailbox.post(self.waker),
            _ => {
                WOKE_NEIGHBOUR.set(true);
                self.waker.wake();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;
    use std::io::Write;
    use std::os::unix::net::UnixStream as Peer;
    use std::task::Poll;

    use tokio::net::UnixStream;

    use super::*;

    #[test]
    fn a_busy_task_lets_the_loop_look_at_its_sockets_after_each_turn() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build().expect("a runtime");
        runtime.block_on(async {
            let (mut peer, socket) = Peer::pair().expect("a pair of sockets");
            socket.set_nonblocking(true).expect("sockets can be made so");
            let socket = UnixStream::from_std(socket).expect("the runtime takes it");
            let newcomer = tokio::spawn(async move { socket.readable().await });
            let mut turns = 0;
            let busy = poll_fn(move |context| {
                if turns == 10 {
                    peer.write_all(b"x").expect("there is room for a byte");
                }
                if newcomer.is_finished() {
                    return Poll::Ready(turns);
                }
                turns += 1;
                end_turn(context);
                Poll::Pending
            });
            let turns = tokio::spawn(busy).await.expect("nothing panics");
            assert!(turns <= 12, "the newcomer waited until turn {turns}");
        });
    }

    #[test]
    fn the_first_instant_of_a_turn_counts_for_that_turn() {
        let now = Instant::now();
        let [soon, later] = [1, 2].map(|seconds| now + std::time::Duration::from_secs(seconds));
        begin_turn(now);
        assert_eq!(look_again(), None);
        look_again_at(later);
        look_again_at(soon);
        look_again_at(later);
        assert_eq!(look_again(), Some(soon));
        begin_turn(now);
        assert_eq!(look_again(), None, "it was another connection's");
    }

    #[test]
    fn only_wakes_on_the_own_loop_make_room_for_neighbours() {
        let (here, elsewhere) = (Arc::new(Mailbox::default()), Arc::new(Mailbox::default()));
        here.enter();
        let waker = |mailbox: &Arc<Mailbox>| TaskWaker {
            mailbox: Some(mailbox.clone()),
            waker: Waker::noop().clone(),
        };

        waker(&elsewhere).wake();
        assert!(!woke_neighbour(), "another loop's task does not wait for this thread");
        assert_eq!(elsewhere.posted.lock().len(), 1);

        waker(&here).wake();
        assert!(woke_neighbour());
        assert!(!woke_neighbour(), "asked once, answered once");
    }
}
