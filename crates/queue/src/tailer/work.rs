//! The work of tailers of this thread, counted for tests.

use std::cell::Cell;

thread_local! {
    static DECODED: Cell<u64> = const { Cell::new(0) };
    static DECOMPRESSED: Cell<u64> = const { Cell::new(0) };
}

pub(super) fn count_decoded() {
    DECODED.set(DECODED.get() + 1);
}

pub(super) fn count_decompressed() {
    DECOMPRESSED.set(DECOMPRESSED.get() + 1);
}

/// Records decoded and batches decompressed by `run`.
pub(super) fn of(run: impl FnOnce()) -> (u64, u64) {
    let before = (DECODED.get(), DECOMPRESSED.get());
    run();
    (DECODED.get() - before.0, DECOMPRESSED.get() - before.1)
}
