//! Tailers for tasks: a stream that waits without a thread of its own, on any executor.

use std::future::poll_fn;
use std::pin::Pin;
use std::task::{Context, Poll};

use futures_core::Stream;
use futures_core::stream::FusedStream;

use crate::bell::Seen;
use crate::error::{QueueError, Result};
use crate::tailer::{Message, Tailer};

/// A tailer that tasks wait for, see [`Tailer::into_async`]. As a stream it does not end.
///
/// All of a queue's in one process share one thread, which sleeps until something is published and then wakes their tasks. It is
/// started by the first one that has to wait, and ends with the queue.
#[derive(Debug)]
pub struct AsyncTailer {
    tailer: Tailer,
    id: u64,
    is_registered: bool,
}

impl Tailer {
    /// Turns it into a tailer for tasks: a stream of messages, on any executor.
    pub fn into_async(self) -> AsyncTailer {
        AsyncTailer::new(self)
    }
}

impl AsyncTailer {
    pub(crate) fn new(tailer: Tailer) -> AsyncTailer {
        let id = tailer.inner().bell.new_id();
        AsyncTailer { tailer, id, is_registered: false }
    }

    /// The next message, waited for. Asking for it says that the one before it is done. A future that is dropped has taken nothing.
    ///
    /// # Errors
    /// As [`Tailer::read`], and [`QueueError::Io`] if no thread can be started.
    pub async fn next(&mut self) -> Result<Message> {
        poll_fn(|context| self.poll(context)).await
    }

    /// The offset that is read next.
    pub fn position(&self) -> i64 {
        self.tailer.position()
    }

    /// The tailer, to be read without waiting.
    pub fn get_mut(&mut self) -> &mut Tailer {
        &mut self.tailer
    }

    /// The tailer again.
    pub fn into_inner(mut self) -> Tailer {
        self.forget_waker();
        let inner = std::sync::Arc::clone(self.tailer.inner());
        std::mem::replace(&mut self.tailer, Tailer::at(&inner, 0))
    }

    fn poll(&mut self, context: &mut Context<'_>) -> Poll<Result<Message>> {
        if let Some(found) = self.tailer.read_message().transpose() {
            return Poll::Ready(found);
        }
        let seen = Seen { offset: self.tailer.position(), synced_only: self.tailer.is_synced_only() };
        let inner = self.tailer.inner();
        self.is_registered = true;
        if let Err(error) = inner.bell.register(&inner.control, self.id, seen, context.waker()) {
            return Poll::Ready(Err(QueueError::io("starting a thread for", &inner.directory, error)));
        }
        // What was published before the registration wakes no task.
        match self.tailer.read_message().transpose() {
            Some(found) => {
                self.forget_waker();
                Poll::Ready(found)
            }
            None => Poll::Pending,
        }
    }

    fn forget_waker(&mut self) {
        if self.is_registered {
            self.is_registered = false;
            self.tailer.inner().bell.remove(self.id);
        }
    }
}

impl Stream for AsyncTailer {
    type Item = Result<Message>;

    fn poll_next(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<Message>>> {
        self.get_mut().poll(context).map(Some)
    }
}

impl FusedStream for AsyncTailer {
    fn is_terminated(&self) -> bool {
        false
    }
}

impl Drop for AsyncTailer {
    fn drop(&mut self) {
        self.forget_waker();
    }
}
