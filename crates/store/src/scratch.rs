//! One validation scratch per event loop.

use std::cell::RefCell;

use mainstem_records::Scratch;

thread_local! {
    static SCRATCH: RefCell<Scratch> = RefCell::new(Scratch::default());
}

/// Runs a function with this thread's scratch.
pub fn with_scratch<T>(act: impl FnOnce(&mut Scratch) -> T) -> T {
    SCRATCH.with_borrow_mut(act)
}
