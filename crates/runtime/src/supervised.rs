//! Handling of panics: each is logged, counted, and shown by `/health`. If it may have left shared state half changed, the process
//! ends.
//!
//! A panic is a mistake of this program. If a thread that only tidies up panics, the node continues without its work. If others wait
//! for the thread, or it alone keeps a promise, the process ends: the next start rebuilds the state from the logs. A panic in a
//! request ends its connection. If the request had locked a log, that log is offline from then on (see `Partition`). If it was in a
//! coordinator, the process ends.

use std::any::Any;
use std::future::{Future, poll_fn};
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::Poll;

use parking_lot::Mutex;

use crate::alarm::Alarm;
use crate::sync::Thread;

/// Consequence of a thread's panic for the node.
#[derive(Debug, Clone, Copy)]
pub enum Role {
    /// The node continues without this work.
    Tidies(&'static str),
    /// The process ends, for this reason.
    Vital(&'static str),
}

/// Panics of this node since its start.
#[derive(Default)]
pub struct Panics {
    caught: AtomicU64,
    /// Threads that have died, each with what is not done any more.
    dead_threads: Mutex<Vec<String>>,
    /// Rung at each panic: what it has left is looked for.
    alarm: Arc<Alarm>,
}

impl Panics {
    /// None yet.
    pub fn new(alarm: Arc<Alarm>) -> Panics {
        Panics { alarm, ..Panics::default() }
    }

    /// A panic was caught: what it has left is looked for.
    pub fn note(&self) {
        self.caught.fetch_add(1, Ordering::Relaxed);
        self.alarm.ring();
    }

    /// Number of panics that were caught.
    pub fn caught_total(&self) -> u64 {
        self.caught.load(Ordering::Relaxed)
    }

    /// A thread has panicked; `stopped` is what is not done any more.
    fn thread_died(&self, name: &str, stopped: &str) {
        self.dead_threads.lock().push(format!("the thread {name} has panicked: {stopped}"));
        self.note();
    }

    /// Looks whether all threads live.
    ///
    /// # Errors
    /// Which have died.
    pub fn threads(&self) -> Result<(), String> {
        let dead = self.dead_threads.lock();
        if dead.is_empty() { Ok(()) } else { Err(dead.join("; ")) }
    }
}

/// Starts a thread whose panic does not go unnoticed.
///
/// # Errors
/// The system's, when no thread can be made.
pub fn spawn(
    panics: &Arc<Panics>,
    name: &str,
    role: Role,
    run: impl FnOnce() + Send + 'static,
) -> io::Result<Thread> {
    #[cfg(feature = "sim")]
    if crate::sync::is_simulated() {
        return Thread::start(name, run);
    }
    let (panics, own) = (panics.clone(), name.to_owned());
    let supervised = move || {
        // What is half changed is behind locks that look after themselves, or the process ends.
        if catch_unwind(AssertUnwindSafe(run)).is_err() {
            died(&panics, &own, role);
        }
    };
    Thread::start(name, supervised)
}

/// Starts a thread whose panic ends the process, because of `why`. For callers without [`Panics`].
///
/// # Errors
/// The system's, when no thread can be made.
pub fn spawn_vital<T: Send + 'static>(
    name: &str,
    why: &'static str,
    run: impl FnOnce() -> T + Send + 'static,
) -> io::Result<Thread<T>> {
    let guarded = move || {
        let _guard = AbortOnPanic(why);
        run()
    };
    Thread::start(name, guarded)
}

/// Starts a thread that serves one peer, or one question, and whose panic ends nothing else. What has to be given back
/// then, `run` gives back by a drop.
///
/// # Errors
/// The system's, when no thread can be made.
pub fn spawn_apart(name: &str, run: impl FnOnce() + Send + 'static) -> io::Result<()> {
    #[cfg(feature = "sim")]
    if crate::sync::is_simulated() {
        return Thread::start(name, run).map(drop);
    }
    let own = name.to_owned();
    let caught = move || {
        if catch_unwind(AssertUnwindSafe(run)).is_err() {
            tracing::error!("the thread {own} has panicked: what it was to answer stays without an answer");
        }
    };
    Thread::start(name, caught).map(drop)
}

fn died(panics: &Panics, name: &str, role: Role) {
    match role {
        Role::Tidies(stopped) => {
            tracing::error!("the thread {name} has panicked: {stopped}, until the broker is started again");
            panics.thread_died(name, stopped);
        }
        Role::Vital(why) => {
            tracing::error!(
                "the thread {name} has panicked; the process ends, because {why}; start it again"
            );
            std::process::abort();
        }
    }
}

/// Ends the process, which says why in its log.
pub fn end_process(why: &str) -> ! {
    tracing::error!("the process ends: {why}");
    #[cfg(feature = "sim")]
    crate::schedule::end_process(why);
    std::process::abort()
}

/// Ends the process when it is dropped by a panic, and says why nothing less will do.
pub struct AbortOnPanic(pub &'static str);

impl Drop for AbortOnPanic {
    fn drop(&mut self) {
        if std::thread::panicking() {
            // The owner of a schedule gets the panic, with its seed; or the node of the thread was killed.
            #[cfg(feature = "sim")]
            if crate::schedule::current().is_some() {
                return;
            }
            tracing::error!("the process ends after a panic, because {}; start it again", self.0);
            std::process::abort();
        }
    }
}

/// A future with which the process ends if it panics.
pub async fn vital<T>(why: &'static str, future: impl Future<Output = T>) -> T {
    let _guard = AbortOnPanic(why);
    future.await
}

/// A future that resolves to its panic, if it has one.
pub async fn caught<T>(future: impl Future<Output = T>) -> Result<T, Box<dyn Any + Send>> {
    let mut future = pin!(future);
    // After a panic it is only dropped.
    poll_fn(|context| match catch_unwind(AssertUnwindSafe(|| future.as_mut().poll(context))) {
        Ok(poll) => poll.map(Ok),
        Err(panic) => Poll::Ready(Err(panic)),
    })
    .await
}

#[cfg(test)]
mod tests {

    use mainstem_testkit::child;

    use super::*;

    #[test]
    fn a_panic_in_a_future_is_its_outcome() {
        let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime can be made");
        runtime.block_on(async {
            assert!(caught(async { 1 }).await.is_ok_and(|value| value == 1));
            let late = caught(async {
                tokio::task::yield_now().await;
                panic!("a mistake of the test");
            });
            assert!(late.await.is_err());
        });
    }

    #[test]
    fn a_dead_thread_is_named_and_counted() {
        let panics = Panics::default();
        assert_eq!(panics.threads(), Ok(()));
        panics.thread_died("cleaner-0", "nothing is compacted");
        assert!(panics.threads().is_err_and(|why| why.contains("cleaner-0") && why.contains("compacted")));
        assert_eq!(panics.caught_total(), 1);
    }

    #[test]
    fn the_process_ends_with_a_vital_thread() {
        const THIS: &str = "supervised::tests::the_process_ends_with_a_vital_thread";
        let Some(part) = child::part() else {
            for part in ["a vital thread", "a vital thread without a count of panics"] {
                assert_eq!(child::run(THIS, part), child::End::Aborted, "{part}");
            }
            return;
        };
        let mistake = part.clone();
        let run = move || fail(&mistake);
        let thread = match part.as_str() {
            "a vital thread" => spawn(&Arc::default(), "vital", Role::Vital("others wait for it"), run),
            _ => spawn_vital("vital", "others wait for it", run),
        };
        // The thread has ended, and the process continues, whether the panic was caught or not.
        let _ = thread.expect("a thread can be made").join();
    }

    fn fail(part: &str) {
        panic!("a mistake in {part}");
    }
}
