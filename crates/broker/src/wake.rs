//! Waking a task from wherever an event happens.
//!
//! A wake on the event loop that runs the task is a push to that loop's queue. A wake from another thread would cost
//! one eventfd write each time; it goes to the loop's [`Mailbox`] instead, which writes once however many wakes
//! arrive until the loop has come round.

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Waker};

use parking_lot::Mutex;
use tokio::sync::Notify;

thread_local! {
    static CURRENT: RefCell<Option<Arc<Mailbox>>> = const { RefCell::new(None) };
    static WOKE_NEIGHBOUR: Cell<bool> = const { Cell::new(false) };
}

/// Whether a task was woken on this thread, by a task of the same event loop, since this was asked last.
///
/// A connection that appended what others wait for answers its own peer and lets them send before it reads on.
pub(crate) fn woke_neighbour() -> bool {
    WOKE_NEIGHBOUR.replace(false)
}

/// Has the task that is being polled run again after all others that have something to do, those included whose sockets
/// have become ready meanwhile.
///
/// A task that just wakes itself would keep the loop from running out of tasks, which then looks at its sockets only
/// after every sixty-first: next to two connections that are always busy, others would wait for tens of milliseconds.
pub(crate) fn end_turn(context: &mut Context<'_>) {
    let first_poll = pin!(tokio::task::yield_now()).poll(context);
    debug_assert!(first_poll.is_pending(), "a yield takes effect by its first poll");
}

/// Wakes posted to one event loop by other threads.
#[derive(Default)]
pub(crate) struct Mailbox {
    posted: Mutex<Vec<Waker>>,
    /// Set from the first post until the loop drains: further posts need not wake the loop again.
    notified: AtomicBool,
    notify: Notify,
}

impl Mailbox {
    /// Makes this the mailbox of the calling thread, which is about to run an event loop.
    pub(crate) fn enter(self: &Arc<Self>) {
        CURRENT.with_borrow_mut(|current| *current = Some(self.clone()));
    }

    fn is_current(self: &Arc<Self>) -> bool {
        CURRENT.with_borrow(|current| current.as_ref().is_some_and(|own| Arc::ptr_eq(own, self)))
    }

    fn post(&self, waker: Waker) {
        self.posted.lock().push(waker);
        if !self.notified.swap(true, Ordering::AcqRel) {
            self.notify.notify_one();
        }
    }

    /// Delivers posted wakes for as long as the loop lives.
    pub(crate) async fn deliver(self: Arc<Self>) {
        let mut batch = Vec::new();
        loop {
            self.notify.notified().await;
            // Cleared before the drain: a post that comes between the two notifies again.
            self.notified.store(false, Ordering::Release);
            std::mem::swap(&mut *self.posted.lock(), &mut batch);
            batch.drain(..).for_each(Waker::wake);
        }
    }
}

/// A task's waker together with the mailbox of the loop that it runs on.
#[derive(Clone)]
pub(crate) struct TaskWaker {
    mailbox: Option<Arc<Mailbox>>,
    waker: Waker,
}

impl TaskWaker {
    /// The waker of the task that is being polled now, on this thread.
    pub(crate) fn of(context: &Context<'_>) -> Self {
        let mailbox = CURRENT.with_borrow(Clone::clone);
        TaskWaker { mailbox, waker: context.waker().clone() }
    }

    /// Wakes the task from any thread.
    pub(crate) fn wake(self) {
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
