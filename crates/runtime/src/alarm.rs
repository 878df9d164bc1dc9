//! A wake-up of a thread that looks whether something has failed.

use parking_lot::Mutex;

use crate::sync::Condvar;

/// Wakes the thread.
#[derive(Default)]
pub struct Alarm {
    state: Mutex<AlarmState>,
    changed: Condvar,
}

#[derive(Default)]
struct AlarmState {
    rung: bool,
    stopped: bool,
}

impl Alarm {
    /// Something may have failed: the thread is to look. Does not wait.
    pub fn ring(&self) {
        self.state.lock().rung = true;
        self.changed.notify_all();
    }

    /// Ends the thread that waits, and has it wait no more.
    pub fn stop(&self) {
        self.state.lock().stopped = true;
        self.changed.notify_all();
    }

    /// Waits for the next ring; `false`: there is nothing to wait for any more.
    pub fn wait(&self) -> bool {
        let mut state = self.state.lock();
        while !state.rung && !state.stopped {
            self.changed.wait(&mut state);
        }
        std::mem::take(&mut state.rung) && !state.stopped
    }
}
