//! Looking for more for a while, before an event loop that has nothing to do sleeps.
//!
//! To let a thread sleep and to wake it again takes longer than a request does, and many times as long where a
//! hypervisor has to start the CPU again. While requests follow each other closely a loop therefore keeps looking at its
//! sockets, and other threads need not wake it; in between it gives its CPU to other threads. Where requests are further
//! apart than the time for which it would look, it sleeps at once, so that a broker at rest, or one with little to do,
//! uses no CPU for that.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::Waker;
use std::time::Duration;

use tokio::task::yield_now;

use crate::clock::machine_now;
use crate::wake::{self, Mailbox};

/// For how long loops look, and how long one has looked.
#[derive(Debug, Default)]
pub struct IdlePoll {
    /// The same for all loops of a broker.
    window_us: Arc<AtomicU64>,
    looked_ns: AtomicU64,
}

impl IdlePoll {
    /// That of another loop.
    pub fn sibling(&self) -> IdlePoll {
        IdlePoll { window_us: self.window_us.clone(), looked_ns: AtomicU64::default() }
    }

    /// Sets the time for which all loops look; 0: they do not look.
    pub fn set_window(&self, window: Duration) {
        let window_us = u64::try_from(window.as_micros()).unwrap_or(u64::MAX);
        self.window_us.store(window_us, Ordering::Relaxed);
    }

    /// Time for which a loop looks for more before it sleeps; zero: it sleeps at once.
    pub fn window(&self) -> Duration {
        Duration::from_micros(self.window_us.load(Ordering::Relaxed))
    }

    /// The time in which this loop looked and found nothing. The runtime takes it for busy.
    pub fn looked(&self) -> Duration {
        Duration::from_nanos(self.looked_ns.load(Ordering::Relaxed))
    }
}

/// Delivers wakes from other threads for as long as the loop lives, and keeps it from sleeping while that pays.
pub async fn attend(mailbox: Arc<Mailbox>) {
    let mut batch = Vec::new();
    loop {
        mailbox.wait().await;
        mailbox.deliver(&mut batch);
        if wake::is_dense() {
            mailbox.set_looked_at(true);
            look(&mailbox, &mut batch).await;
            mailbox.set_looked_at(false);
            mailbox.deliver(&mut batch);
            wake::end_density();
        }
    }
}

/// Looks for something to do until there was nothing for long enough.
async fn look(mailbox: &Mailbox, batch: &mut Vec<Waker>) {
    let (idle_poll, mut turns) = (mailbox.idle_poll(), wake::turns());
    let mut found_at = machine_now();
    loop {
        // The loop looks at its sockets, and does what there is to be done.
        yield_now().await;
        let now = machine_now();
        if mailbox.deliver(batch) || wake::turns() != turns {
            (turns, found_at) = (wake::turns(), now);
            continue;
        }
        if now.duration_since(found_at) >= idle_poll.window() {
            return;
        }
        // Clients on the same CPU go first.
        rustix::thread::sched_yield();
        let looked = u64::try_from(machine_now().duration_since(now).as_nanos()).unwrap_or(u64::MAX);
        idle_poll.looked_ns.fetch_add(looked, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;
    use std::sync::atomic::AtomicBool;
    use std::sync::mpsc::{self, RecvTimeoutError, TryRecvError};
    use std::task::Poll;
    use std::time::Instant;

    use tokio::sync::oneshot;

    use super::*;
    use crate::turns::CLOSE_IN_A_ROW;
    use crate::wake::TaskWaker;

    /// Pauses of [`PAUSE`] in which nothing is asked for after a wake: then it is lost. However slow the machine is, the loop
    /// has its turn within a few of them.
    const PAUSES_MAX: u32 = 600;
    const PAUSE: Duration = Duration::from_millis(100);

    /// The next order; [`TryRecvError::Empty`] where none comes though there were [`PAUSES_MAX`] pauses.
    fn next_order<T>(asked: &mpsc::Receiver<T>) -> Result<T, TryRecvError> {
        let begin = Instant::now();
        for _ in 0..PAUSES_MAX {
            // It does not sleep at first: that takes longer than the loop looks.
            while begin.elapsed() < PAUSE {
                match asked.try_recv() {
                    Err(TryRecvError::Empty) => std::hint::spin_loop(),
                    order => return order,
                }
            }
            match asked.recv_timeout(PAUSE) {
                Ok(order) => return Ok(order),
                Err(RecvTimeoutError::Disconnected) => return Err(TryRecvError::Disconnected),
                Err(RecvTimeoutError::Timeout) => {}
            }
        }
        Err(TryRecvError::Empty)
    }

    /// Another thread wakes a task again and again, about when the loop stops looking.
    #[test]
    fn no_wake_is_lost_when_a_loop_stops_looking() {
        const WINDOW: Duration = Duration::from_micros(20);
        let idle_poll = IdlePoll::default();
        idle_poll.set_window(WINDOW);
        let mailbox = Arc::new(Mailbox::new(idle_poll));
        let (asks, asked) = mpsc::channel::<(TaskWaker, Arc<AtomicBool>)>();
        let (lose, lost) = oneshot::channel();
        let waker = std::thread::spawn(move || {
            for number in 0.. {
                let (task, is_set) = match next_order(&asked) {
                    Ok(order) => order,
                    Err(TryRecvError::Empty) => {
                        // Its waker is the runtime's own, which needs no mailbox.
                        let _ = lose.send(());
                        return;
                    }
                    Err(TryRecvError::Disconnected) => return,
                };
                let begin = Instant::now();
                let pause = WINDOW - Duration::from_micros(10) + Duration::from_nanos(number * 7 % 20_000);
                while begin.elapsed() < pause {
                    std::hint::spin_loop();
                }
                is_set.store(true, Ordering::Release);
                task.wake();
            }
        });
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        let looked = runtime.block_on(async {
            let _entered = mailbox.enter();
            let attending = tokio::spawn(attend(mailbox.clone()));
            let woken = tokio::spawn(async move {
                for _ in 0..10_000 {
                    let (is_set, mut is_asked) = (Arc::new(AtomicBool::default()), false);
                    poll_fn(|context| {
                        // Many turns at once, so that the loop looks whatever else the machine does.
                        (0..=CLOSE_IN_A_ROW).for_each(|_| wake::begin_turn(Instant::now()));
                        if is_set.load(Ordering::Acquire) {
                            return Poll::Ready(());
                        }
                        if !std::mem::replace(&mut is_asked, true) {
                            asks.send((TaskWaker::of(context), is_set.clone())).expect("it is taken");
                        }
                        Poll::Pending
                    })
                    .await;
                }
            });
            tokio::select! {
                woken = woken => woken.expect("nothing panics"),
                Ok(()) = lost => panic!("a wake is lost"),
            }
            attending.abort();
            mailbox.idle_poll().looked()
        });
        waker.join().expect("it ends with the channel");
        assert!(!looked.is_zero(), "the loop never looked by itself");
    }
}
