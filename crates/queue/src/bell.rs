//! Wakes the tasks of any executor when something is published. One thread of a process sleeps on the queue's futex for all tailers
//! that wait asynchronously. So none of them needs a thread of its own, and no executor's thread is blocked.
//!
//! No wake-up is lost. A task registers what it has seen, then looks once more. The thread announces that it sleeps, looks at all
//! registered tasks, then sleeps. A publication after that look wakes it. An earlier one is seen by that look or, if the task was
//! not registered yet, by the task's own.

use std::sync::Arc;
use std::sync::atomic::Ordering::{Acquire, SeqCst};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::Waker;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use parking_lot::{Condvar, Mutex};
use rustix::thread::futex;

use crate::byte_lock;
use crate::control::Control;

/// The interval of looks at a queue that is open read-only: no appender can be asked to wake this process.
const LOOK_AGAIN: Duration = Duration::from_millis(1);

/// The tasks of one process that wait for one queue.
#[derive(Debug, Default)]
pub(crate) struct Bell {
    ringer: Mutex<Option<Ringer>>,
    next_id: AtomicU64,
}

/// The end that a tailer has seen: it waits for a later one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Seen {
    pub(crate) offset: i64,
    pub(crate) synced_only: bool,
}

impl Seen {
    fn is_past(self, control: &Control) -> bool {
        let end = match self.synced_only {
            true => control.synced_end().load(Acquire),
            false => control.next_offset(),
        };
        end > self.offset
    }
}

impl Bell {
    /// Returns a number for a tailer, under which its one waker is registered.
    pub(crate) fn new_id(&self) -> u64 {
        self.next_id.fetch_add(1, Ordering::Relaxed)
    }

    /// Calls the waker once something is published beyond `seen`. The caller looks once more afterwards.
    pub(crate) fn register(
        &self,
        control: &Arc<Control>,
        id: u64,
        seen: Seen,
        waker: &Waker,
    ) -> std::io::Result<()> {
        let mut ringer = self.ringer.lock();
        // A child process has no thread of its parent.
        if ringer.as_ref().is_none_or(|ringer| ringer.generation != byte_lock::generation()) {
            std::mem::forget(ringer.take());
            *ringer = Some(Ringer::start(control)?);
        }
        if let Some(ringer) = &*ringer {
            ringer.shared.add(Waiting { id, seen, waker: waker.clone() });
        }
        Ok(())
    }

    /// Forgets the waker of a dropped tailer.
    pub(crate) fn remove(&self, id: u64) {
        if let Some(ringer) = &*self.ringer.lock() {
            ringer.shared.waiting.lock().retain(|waiting| waiting.id != id);
        }
    }
}

#[derive(Debug)]
struct Waiting {
    id: u64,
    seen: Seen,
    waker: Waker,
}

#[derive(Debug)]
struct Shared {
    control: Arc<Control>,
    waiting: Mutex<Vec<Waiting>>,
    has_some: Condvar,
    is_over: AtomicBool,
}

impl Shared {
    fn add(&self, one: Waiting) {
        let mut waiting = self.waiting.lock();
        match waiting.iter_mut().find(|other| other.id == one.id) {
            Some(other) => *other = one,
            None => waiting.push(one),
        }
        self.has_some.notify_one();
    }

    /// Takes out the tasks that need not wait any longer.
    fn take_ready(&self) -> Vec<Waker> {
        let mut waiting = self.waiting.lock();
        let ready = waiting.extract_if(.., |waiting| waiting.seen.is_past(&self.control));
        ready.map(|waiting| waiting.waker).collect()
    }

    /// Waits for a registered task; returns false at the end.
    fn wait_for_some(&self) -> bool {
        let mut waiting = self.waiting.lock();
        while waiting.is_empty() && !self.is_over.load(Acquire) {
            self.has_some.wait(&mut waiting);
        }
        !self.is_over.load(Acquire)
    }

    fn run(&self) {
        while self.wait_for_some() {
            let control = &*self.control;
            let announced = control.is_writable.then(|| control.announce_sleep());
            let ready = self.take_ready();
            let is_none = ready.is_empty();
            // Without the lock: a waker may register again, or drop a tailer.
            ready.into_iter().for_each(Waker::wake);
            match (is_none, announced) {
                (false, _) => {}
                (true, None) => thread::sleep(LOOK_AGAIN),
                (true, Some(_)) if self.is_over.load(Acquire) => {}
                (true, Some(announced)) => control.sleep(announced, None),
            }
        }
    }
}

/// The thread, and the state that it shares with the tasks.
#[derive(Debug)]
struct Ringer {
    shared: Arc<Shared>,
    generation: u32,
    thread: Option<JoinHandle<()>>,
}

impl Ringer {
    fn start(control: &Arc<Control>) -> std::io::Result<Ringer> {
        let shared = Arc::new(Shared {
            control: Arc::clone(control),
            waiting: Mutex::default(),
            has_some: Condvar::new(),
            is_over: AtomicBool::new(false),
        });
        let run = Arc::clone(&shared);
        let thread = thread::Builder::new().name("queue-bell".to_owned()).spawn(move || run.run())?;
        Ok(Ringer { shared, generation: byte_lock::generation(), thread: Some(thread) })
    }
}

impl Drop for Ringer {
    fn drop(&mut self) {
        let Shared { control, waiting, has_some, is_over } = &*self.shared;
        is_over.store(true, SeqCst);
        // Under the lock, so that it is not between its look and its sleep.
        drop(waiting.lock());
        has_some.notify_one();
        if control.is_writable {
            control.wake_sequence().fetch_add(1, SeqCst);
            let _ = futex::wake(control.wake_sequence(), futex::Flags::empty(), i32::MAX as u32);
        }
        if let Some(thread) = self.thread.take() {
            // A waker that drops the last tailer does so on that very thread, which then ends by itself.
            if thread.thread().id() != thread::current().id() {
                let _ = thread.join();
            }
        }
    }
}
