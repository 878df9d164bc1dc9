//! What becomes of a panic: it is named in the log, counted, and shown by `/health`; where it may have left half a change
//! in what all rely on, the process ends.
//!
//! A panic is a mistake of this program. Threads that only tidy up die, and the node goes on without what they did. A
//! thread that others wait for, or that alone keeps a promise, takes the process with it: the next start rebuilds the
//! state from the logs. A panic while a request is served ends its connection; a log that was locked meanwhile is
//! offline from then on (see `Partition`), and a coordinator that was asked meanwhile ends the process.

#[cfg(test)]
pub(crate) mod child;

use std::any::Any;
use std::future::{Future, poll_fn};
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::thread::JoinHandle;

use crate::broker::Broker;

/// What the node is without a thread.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Role {
    /// It goes on, and this is not done any more.
    Tidies(&'static str),
    /// It ends, because of this.
    Vital(&'static str),
}

/// Starts a thread whose panic does not go unnoticed.
///
/// # Errors
/// The system's, when no thread can be made.
pub(crate) fn spawn(
    broker: &Arc<Broker>,
    name: &str,
    role: Role,
    run: impl FnOnce() + Send + 'static,
) -> io::Result<JoinHandle<()>> {
    let (broker, own) = (broker.clone(), name.to_owned());
    let supervised = move || {
        // What is half changed is behind locks that look after themselves, or the process ends.
        if catch_unwind(AssertUnwindSafe(run)).is_err() {
            died(&broker, &own, role);
        }
    };
    std::thread::Builder::new().name(name.into()).spawn(supervised)
}

fn died(broker: &Broker, name: &str, role: Role) {
    match role {
        Role::Tidies(stopped) => {
            tracing::error!("the thread {name} has panicked: {stopped}, until the broker is started again");
            broker.health.thread_died(name, stopped);
            broker.note_panic();
        }
        Role::Vital(why) => {
            tracing::error!(
                "the thread {name} has panicked; the process ends, because {why}; start it again"
            );
            std::process::abort();
        }
    }
}

/// Ends the process when it is dropped by a panic, and says why nothing less will do.
pub(crate) struct AbortOnPanic(pub(crate) &'static str);

impl Drop for AbortOnPanic {
    fn drop(&mut self) {
        if std::thread::panicking() {
            tracing::error!("the process ends after a panic, because {}; start it again", self.0);
            std::process::abort();
        }
    }
}

/// A future with which the process ends if it panics.
pub(crate) async fn vital<T>(why: &'static str, future: impl Future<Output = T>) -> T {
    let _guard = AbortOnPanic(why);
    future.await
}

/// A future that resolves to its panic, if it has one.
pub(crate) async fn caught<T>(future: impl Future<Output = T>) -> Result<T, Box<dyn Any + Send>> {
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
}
