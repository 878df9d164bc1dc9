//! Attempts under way.
//!
//! Most handlers are done when they are polled first: such a one is polled where it was put, and costs no waker. One that waits joins those
//! that are woken one by one, in its own allocation, which is used again after it.

use std::pin::Pin;
use std::task::{Context, Poll, Waker};

use futures_buffered::FuturesUnorderedBounded;
use futures_util::Stream as _;

/// An allocation for a future, which stays where it is.
type Pinned<F> = Pin<Box<Option<F>>>;

/// The attempts of a partition.
pub(super) struct Attempts<F> {
    waiting: FuturesUnorderedBounded<Waiting<F>>,
    /// Empty allocations, to be used again.
    spare: Vec<Pinned<F>>,
}

impl<F: Future> Attempts<F> {
    /// Makes a set of which at most `concurrency` attempts may wait at a time.
    pub(super) fn new(concurrency: usize) -> Attempts<F> {
        Attempts { waiting: FuturesUnorderedBounded::new(concurrency), spare: Vec::new() }
    }

    /// Returns the number of attempts that wait.
    pub(super) fn len(&self) -> usize {
        self.waiting.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Returns the number of attempts that may be begun, as each may have to wait.
    pub(super) fn free_capacity(&self) -> usize {
        self.waiting.capacity() - self.waiting.len()
    }

    /// Begins the attempt that `make` makes; returns its outcome if it is done at once.
    ///
    /// # Panics
    /// If there is no [free capacity](Attempts::free_capacity).
    #[inline]
    pub(super) fn begin(&mut self, make: impl FnOnce() -> F) -> Option<F::Output> {
        let mut pinned = self.spare.pop().unwrap_or_else(|| Box::pin(None));
        // An attempt is some hundred bytes long: it is made where it is polled, instead of moved there.
        pinned.set(Some(make()));
        // One that waits is polled again among the others, which gives it a waker of its own.
        match poll_in(&mut pinned, &mut Context::from_waker(Waker::noop())) {
            Poll::Ready(done) => {
                self.recycle(pinned);
                Some(done)
            }
            Poll::Pending => {
                self.waiting.push(Waiting(Some(pinned)));
                None
            }
        }
    }

    /// Polls for the outcome of an attempt that has waited; pending if none is done, or none waits.
    pub(super) fn poll_ended(&mut self, cx: &mut Context<'_>) -> Poll<F::Output> {
        match Pin::new(&mut self.waiting).poll_next(cx) {
            Poll::Ready(Some((done, pinned))) => {
                self.spare.extend(pinned);
                Poll::Ready(done)
            }
            Poll::Ready(None) | Poll::Pending => Poll::Pending,
        }
    }

    fn recycle(&mut self, mut pinned: Pinned<F>) {
        pinned.set(None);
        self.spare.push(pinned);
    }
}

fn poll_in<F: Future>(pinned: &mut Pinned<F>, cx: &mut Context<'_>) -> Poll<F::Output> {
    let attempt =
        pinned.as_mut().as_pin_mut().expect("a future is dropped when it is done, and not polled again");
    attempt.poll(cx)
}

/// An attempt that waits. Its output has the allocation, empty.
struct Waiting<F>(Option<Pinned<F>>);

impl<F: Future> Future for Waiting<F> {
    type Output = (F::Output, Option<Pinned<F>>);

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let pinned = self.0.as_mut().expect("one that is done is not polled again");
        let Poll::Ready(done) = poll_in(pinned, cx) else { return Poll::Pending };
        pinned.set(None);
        Poll::Ready((done, self.0.take()))
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::rc::Rc;

    use super::*;

    /// A future that is done at a given poll; counts those that live.
    struct After(u32, u16, Rc<Cell<i32>>);

    impl After {
        fn new(polls: u32, number: u16, living: &Rc<Cell<i32>>) -> After {
            living.set(living.get() + 1);
            After(polls, number, living.clone())
        }
    }

    impl Future for After {
        type Output = u16;

        fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<u16> {
            if self.0 == 0 {
                return Poll::Ready(self.1);
            }
            self.0 -= 1;
            cx.waker().wake_by_ref();
            Poll::Pending
        }
    }

    impl Drop for After {
        fn drop(&mut self) {
            self.2.set(self.2.get() - 1);
        }
    }

    #[test]
    fn one_that_is_done_at_once_frees_its_allocation_and_one_that_waits_is_woken() {
        let living = Rc::default();
        let mut attempts = Attempts::new(2);
        let mut cx = Context::from_waker(Waker::noop());
        for number in 0..5 {
            assert_eq!(attempts.begin(|| After::new(0, number, &living)), Some(number));
        }
        assert_eq!((attempts.free_capacity(), attempts.spare.len(), living.get()), (2, 1, 0));
        assert_eq!(attempts.begin(|| After::new(1, 7, &living)), None);
        assert_eq!(attempts.begin(|| After::new(4, 8, &living)), None);
        assert_eq!((attempts.free_capacity(), attempts.len(), living.get()), (0, 2, 2));
        assert_eq!(attempts.poll_ended(&mut cx), Poll::Ready(7));
        assert_eq!(attempts.begin(|| After::new(0, 9, &living)), Some(9));
        let mut polls = 0;
        while attempts.poll_ended(&mut cx).is_pending() {
            polls += 1;
            assert!(polls < 10, "it wakes itself");
        }
        assert_eq!((attempts.is_empty(), attempts.spare.len(), living.get()), (true, 2, 0));
        assert!(attempts.poll_ended(&mut cx).is_pending());
    }
}
