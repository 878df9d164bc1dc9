//! A channel between threads, as that of the standard library, over a [`Condvar`].

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

pub use std::sync::mpsc::{RecvError, RecvTimeoutError, SendError, TryRecvError};

use parking_lot::Mutex;

use super::Condvar;

/// A channel without a bound.
pub fn channel<T>() -> (Sender<T>, Receiver<T>) {
    let state = State { queue: VecDeque::new(), senders: 1, has_receiver: true };
    let shared = Arc::new(Shared { state: Mutex::new(state), changed: Condvar::new() });
    (Sender(shared.clone()), Receiver(shared))
}

struct Shared<T> {
    state: Mutex<State<T>>,
    changed: Condvar,
}

struct State<T> {
    queue: VecDeque<T>,
    senders: usize,
    has_receiver: bool,
}

/// The end that sends.
pub struct Sender<T>(Arc<Shared<T>>);

/// The end that receives.
pub struct Receiver<T>(Arc<Shared<T>>);

impl<T> Sender<T> {
    /// Sends a value. Does not wait.
    ///
    /// # Errors
    /// The value, where the receiver is gone.
    pub fn send(&self, value: T) -> Result<(), SendError<T>> {
        let mut state = self.0.state.lock();
        if !state.has_receiver {
            return Err(SendError(value));
        }
        state.queue.push_back(value);
        drop(state);
        self.0.changed.notify_one();
        Ok(())
    }
}

impl<T> Clone for Sender<T> {
    fn clone(&self) -> Self {
        self.0.state.lock().senders += 1;
        Sender(self.0.clone())
    }
}

impl<T> Drop for Sender<T> {
    fn drop(&mut self) {
        let mut state = self.0.state.lock();
        state.senders -= 1;
        let is_last = state.senders == 0;
        drop(state);
        if is_last {
            self.0.changed.notify_all();
        }
    }
}

impl<T> Receiver<T> {
    /// Waits for a value.
    ///
    /// # Errors
    /// When all senders are gone, and all that was sent is received.
    pub fn recv(&self) -> Result<T, RecvError> {
        let mut state = self.0.state.lock();
        loop {
            if let Some(value) = state.queue.pop_front() {
                return Ok(value);
            }
            if state.senders == 0 {
                return Err(RecvError);
            }
            self.0.changed.wait(&mut state);
        }
    }

    /// Waits for a value until the timeout.
    ///
    /// # Errors
    /// When none has come, or as [`Self::recv`].
    pub fn recv_timeout(&self, time: Duration) -> Result<T, RecvTimeoutError> {
        let mut state = self.0.state.lock();
        let deadline = super::now() + time;
        loop {
            if let Some(value) = state.queue.pop_front() {
                return Ok(value);
            }
            if state.senders == 0 {
                return Err(RecvTimeoutError::Disconnected);
            }
            let left = deadline.saturating_duration_since(super::now());
            if left.is_zero() || self.0.changed.wait_for(&mut state, left) {
                return state.queue.pop_front().ok_or(RecvTimeoutError::Timeout);
            }
        }
    }

    /// Takes a value, if one is in the channel.
    ///
    /// # Errors
    /// When there is none, or as [`Self::recv`].
    pub fn try_recv(&self) -> Result<T, TryRecvError> {
        let mut state = self.0.state.lock();
        match state.queue.pop_front() {
            Some(value) => Ok(value),
            None if state.senders == 0 => Err(TryRecvError::Disconnected),
            None => Err(TryRecvError::Empty),
        }
    }
}

impl<T> Iterator for Receiver<T> {
    type Item = T;

    fn next(&mut self) -> Option<T> {
        self.recv().ok()
    }
}

impl<T> Drop for Receiver<T> {
    fn drop(&mut self) {
        let mut state = self.0.state.lock();
        state.has_receiver = false;
        let left = std::mem::take(&mut state.queue);
        drop(state);
        // Without the lock: what was sent may send itself when it is dropped.
        drop(left);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_come_in_their_order_until_all_senders_are_gone() {
        let (sender, mut receiver) = channel();
        assert_eq!(receiver.try_recv(), Err(TryRecvError::Empty));
        assert_eq!(receiver.recv_timeout(Duration::from_millis(1)), Err(RecvTimeoutError::Timeout));
        let other = sender.clone();
        let sending =
            std::thread::spawn(move || (0..100).for_each(|number| other.send(number).expect("it listens")));
        assert!(receiver.by_ref().take(100).eq(0..100));
        sending.join().expect("nothing panics");
        sender.send(100).expect("it listens");
        drop(sender);
        assert_eq!(receiver.recv(), Ok(100));
        assert_eq!(receiver.recv(), Err(RecvError));
        assert_eq!(receiver.recv_timeout(Duration::from_millis(1)), Err(RecvTimeoutError::Disconnected));
    }

    #[test]
    fn what_nobody_receives_comes_back() {
        let (sender, receiver) = channel();
        drop(receiver);
        assert_eq!(sender.send(1), Err(SendError(1)));
    }
}
