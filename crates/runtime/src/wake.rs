//! Waking a task from wherever an event happens.
//!
//! A wake on the event loop that runs the task is a push to that loop's queue. A wake from another thread would cost
//! one eventfd write each time; it goes to the loop's [`Mailbox`] instead, which writes once however many wakes
//! arrive until the loop has come round, and not at all while the loop looks there by itself.

use std::cell::{Cell, RefCell};
use std::future::{Future, poll_fn};
use std::marker::PhantomData;
use std::mem::ManuallyDrop;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::idle_poll::IdlePoll;
use crate::turns::Turns;

thread_local! {
    /// The loop that runs on this thread: a wake comes from anywhere, and has to find it.
    static LOOP: CurrentLoop = const { CurrentLoop::new() };
}

/// One event loop, as its own thread sees it.
///
/// Nothing is dropped with the thread: each use would have to ask first whether it has been. [`Entered`] takes it out before.
struct CurrentLoop {
    /// Wakes from other threads. A thread without a loop has none.
    mailbox: ManuallyDrop<RefCell<Option<Arc<Mailbox>>>>,
    /// The task that delivers them, while it waits.
    deliverer: ManuallyDrop<Cell<Option<Waker>>>,
    turns: Turns,
}

const _: () = assert!(!std::mem::needs_drop::<CurrentLoop>());

impl CurrentLoop {
    const fn new() -> CurrentLoop {
        CurrentLoop {
            mailbox: ManuallyDrop::new(RefCell::new(None)),
            deliverer: ManuallyDrop::new(Cell::new(None)),
            turns: Turns::new(),
        }
    }

    fn enter(&self, mailbox: Arc<Mailbox>) {
        let before = self.mailbox.replace(Some(mailbox));
        assert!(before.is_none(), "a thread runs one event loop");
    }

    fn leave(&self) {
        drop((self.mailbox.take(), self.deliverer.take()));
    }

    /// A connection begins a turn.
    #[inline]
    fn begin_turn(&self, now: Instant) {
        if self.turns.begin() {
            self.compare_turn(now);
        }
    }

    /// Has the task that delivers wakes look for more once there is reason to. Not a part of its caller, which has to do less where
    /// there is much to do.
    #[inline(never)]
    fn compare_turn(&self, now: Instant) {
        if self.turns.compare(now, self.window())
            && let Some(deliverer) = self.deliverer.take()
        {
            deliverer.wake();
        }
    }

    /// The time for which the loop looks for more before it sleeps.
    fn window(&self) -> Duration {
        self.mailbox.borrow().as_ref().map_or(Duration::ZERO, |mailbox| mailbox.idle_poll.window())
    }

    /// Returns true if a task is to be woken on this thread and not by its loop's mailbox. It is a neighbour of the one that runs.
    fn wakes_here(&self, mailbox: Option<&Arc<Mailbox>>) -> bool {
        let is_own = |mailbox| self.mailbox.borrow().as_ref().is_some_and(|own| Arc::ptr_eq(own, mailbox));
        let is_here = mailbox.is_none_or(is_own);
        if is_here {
            self.turns.wake_neighbour();
        }
        is_here
    }

    /// Ready once turns follow each other closely; a task that finds them apart is woken then.
    fn poll_dense(&self, context: &Context<'_>) -> Poll<()> {
        if self.turns.is_dense() {
            return Poll::Ready(());
        }
        self.deliverer.set(Some(context.waker().clone()));
        Poll::Pending
    }
}

/// A connection of this loop begins a turn: it has, or may have, something to do.
pub fn begin_turn(now: Instant) {
    LOOP.with(|current| current.begin_turn(now));
}

/// Has the connection whose turn it is poll again at this instant, or soon after it, whatever it waits for. Counts for this turn:
/// who waits on asks again.
///
/// A connection has a timer in any case, and leaves one alone that ends too early. A timer for each wait would be set and
/// taken back with each message; and where it is the first of its loop to end, tokio writes to an eventfd, and the loop
/// comes round once more for that.
pub fn look_again_at(instant: Instant) {
    LOOP.with(|current| current.turns.look_again_at(instant));
}

/// The first instant for which [`look_again_at`] was called in this turn.
pub fn look_again() -> Option<Instant> {
    LOOP.with(|current| current.turns.look_again())
}

/// Turns of connections on this loop so far.
pub(crate) fn turns() -> u64 {
    LOOP.with(|current| current.turns.begun())
}

/// Returns true while turns follow each other so closely that the loop should look for more before it sleeps.
pub(crate) fn is_dense() -> bool {
    LOOP.with(|current| current.turns.is_dense())
}

/// Nothing has come for a while.
pub(crate) fn end_density() {
    LOOP.with(|current| current.turns.end_density());
}

/// Returns true if a task was woken on this thread, by a task of the same event loop, since this was asked last.
///
/// A connection that appended what others wait for answers its own peer and lets them send before it reads on.
pub fn woke_neighbour() -> bool {
    LOOP.with(|current| current.turns.woke_neighbour())
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

    /// Makes this the mailbox of the calling thread, which is about to run an event loop, for as long as what is returned lives.
    ///
    /// # Panics
    /// If the thread has one already.
    pub fn enter(self: &Arc<Self>) -> Entered {
        LOOP.with(|current| current.enter(self.clone()));
        Entered(PhantomData)
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
            if posted.as_mut().poll(context).is_ready() {
                return Poll::Ready(());
            }
            LOOP.with(|current| current.poll_dense(context))
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

/// A thread runs the event loop of a [`Mailbox`].
#[must_use]
pub struct Entered(PhantomData<*const ()>);

impl Drop for Entered {
    fn drop(&mut self) {
        LOOP.with(CurrentLoop::leave);
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
        let mailbox = LOOP.with(|current| current.mailbox.borrow().clone());
        TaskWaker { mailbox, waker: context.waker().clone() }
    }

    /// Wakes the task from any thread.
    pub fn wake(self) {
        let is_here = LOOP.with(|current| current.wakes_here(self.mailbox.as_ref()));
        match self.mailbox {
            Some(mailbox) if !is_here => mailbox.post(self.waker),
            _ => self.waker.wake(),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;
    use std::io::Write;
    use std::os::unix::net::UnixStream as Peer;
    use std::sync::atomic::AtomicU32;
    use std::task::{Poll, Wake};

    use tokio::net::UnixStream;

    use super::*;
    use crate::turns::CLOSE_IN_A_ROW;

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
                    peer.write_all(b"x").expect("the socket's buffer takes a byte");
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

    fn loop_of(mailbox: &Arc<Mailbox>) -> CurrentLoop {
        let current = CurrentLoop::new();
        current.enter(mailbox.clone());
        current
    }

    #[test]
    fn only_wakes_on_the_own_loop_run_neighbours_first() {
        let (here, elsewhere) = (Arc::new(Mailbox::default()), Arc::new(Mailbox::default()));
        let (current, none) = (loop_of(&here), CurrentLoop::new());
        for (runs, of_task, is_here) in [
            (&current, Some(&here), true),
            (&current, Some(&elsewhere), false),
            (&current, None, true),
            (&none, Some(&here), false),
            (&none, None, true),
        ] {
            assert_eq!(runs.wakes_here(of_task), is_here);
            assert_eq!(
                runs.turns.woke_neighbour(),
                is_here,
                "another loop's task does not wait for this thread"
            );
            assert!(!runs.turns.woke_neighbour(), "asked once, answered once");
        }
    }

    #[test]
    fn a_task_of_another_loop_is_posted_to_it() {
        let own = Arc::new(Mailbox::default());
        let waker = |mailbox: Option<&Arc<Mailbox>>| TaskWaker {
            mailbox: mailbox.cloned(),
            waker: Waker::noop().clone(),
        };
        let posted = || own.posted.lock().len();
        // This thread has no loop.
        waker(Some(&own)).wake();
        assert_eq!((posted(), woke_neighbour()), (1, false));
        waker(None).wake();
        assert_eq!((posted(), woke_neighbour()), (1, true));
        let entered = own.clone();
        let enters = move || {
            let running = entered.enter();
            waker(Some(&entered)).wake();
            let woke_here = woke_neighbour();
            drop(running);
            waker(Some(&entered)).wake();
            woke_here && !woke_neighbour()
        };
        assert!(std::thread::spawn(enters).join().expect("nothing panics"));
        assert_eq!(
            (posted(), Arc::strong_count(&own)),
            (2, 1),
            "posted once more when its thread has left the loop"
        );
    }

    #[test]
    fn the_task_that_delivers_is_woken_when_turns_become_dense() {
        struct Count(AtomicU32);
        impl Wake for Count {
            fn wake(self: Arc<Self>) {
                self.0.fetch_add(1, Ordering::Relaxed);
            }
        }
        let idle_poll = IdlePoll::default();
        idle_poll.set_window(Duration::from_micros(100));
        let current = loop_of(&Arc::new(Mailbox::new(idle_poll)));
        let count = Arc::new(Count(AtomicU32::new(0)));
        let waker = Waker::from(count.clone());
        let woken = || count.0.load(Ordering::Relaxed);
        let now = Instant::now();
        for times in 1..=2 {
            assert!(current.poll_dense(&Context::from_waker(&waker)).is_pending());
            (1..CLOSE_IN_A_ROW).for_each(|_| current.begin_turn(now));
            assert_eq!(woken(), times - 1);
            current.begin_turn(now);
            current.begin_turn(now);
            assert_eq!(woken(), times, "once for all turns that follow");
            assert!(current.poll_dense(&Context::from_waker(&waker)).is_ready());
            current.turns.end_density();
        }
    }
}
