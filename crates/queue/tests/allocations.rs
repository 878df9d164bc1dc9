//! Messages go in and out without an allocation.
#![allow(clippy::unwrap_used, reason = "a test that fails says so by a panic")]
#![allow(unsafe_code, reason = "an allocator that counts")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use mainstem_queue::{Queue, Start};

thread_local! {
    static COUNT: Cell<u64> = const { Cell::new(0) };
}

struct Counting;

// SAFETY: all is the system's allocator's.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let _ = COUNT.try_with(|count| count.set(count.get() + 1));
        // SAFETY: as the caller promises.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: as the caller promises.
        unsafe { System.dealloc(pointer, layout) };
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Allocations of this thread.
fn allocations(run: impl FnOnce()) -> u64 {
    let before = COUNT.get();
    run();
    COUNT.get() - before
}

#[test]
fn appends_and_reads_allocate_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let queue = Queue::open(dir.path()).unwrap();
    let mut tailer = queue.tailer("me").unwrap();
    for is_exclusive in [false, true] {
        let mut appender = if is_exclusive { queue.exclusive_appender() } else { queue.appender() }.unwrap();
        appender.append([1; 212]).unwrap();
        tailer.read().unwrap();
        let counted = allocations(|| {
            for number in 0..10_000_u32 {
                appender.append_with(Some(b"key"), &number.to_le_bytes(), &[], None).unwrap();
                let mut place = appender.reserve(212).unwrap();
                place.fill(2);
                place.commit();
                for _ in 0..2 {
                    assert!(tailer.read().unwrap().is_some());
                }
            }
        });
        assert_eq!(counted, 0, "exclusive: {is_exclusive}");
    }
    let mut reader = queue.reader(Start::Earliest).unwrap();
    assert!(reader.read().unwrap().is_some());
    let counted = allocations(|| while reader.read().unwrap().is_some() {});
    assert_eq!(counted, 0);
}
