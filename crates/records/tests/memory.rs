//! The memory of validation: no allocation for plain records, a bounded window for compressed ones.
#![allow(unsafe_code, clippy::unwrap_used)]

use mainstem_records::*;
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

/// Counts this thread's allocations, and how many bytes are in use at most.
struct Counting;

thread_local! {
    static ALLOCATIONS: Cell<usize> = const { Cell::new(0) };
    static IN_USE: Cell<isize> = const { Cell::new(0) };
    static IN_USE_MAX: Cell<isize> = const { Cell::new(0) };
}

fn note(change: isize) {
    if change > 0 {
        ALLOCATIONS.set(ALLOCATIONS.get() + 1);
    }
    IN_USE.set(IN_USE.get() + change);
    IN_USE_MAX.set(IN_USE_MAX.get().max(IN_USE.get()));
}

// SAFETY: every call is passed on unchanged to the system's allocator; the counters are plain thread-local cells
// without destructors, so that they can be used at any time.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        note(layout.size() as isize);
        // SAFETY: the caller's promises are those that `System` asks for.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        note(-(layout.size() as isize));
        // SAFETY: as above.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

const NOW: i64 = 1_700_000_000_000;

fn batch_of(count: usize, value: &[u8], compression: Compression) -> Vec<u8> {
    let mut builder = BatchBuilder::new(BatchOptions { compression, ..BatchOptions::default() });
    for _ in 0..count {
        let header = Header { key: b"h", value: Some(b"1") };
        builder.append(NOW, Some(b"key"), Some(value), &[header]).unwrap();
    }
    builder.build().unwrap()
}

/// Allocations, and bytes in use at most beyond what was before, during `work`.
fn measure<T>(work: impl FnOnce() -> T) -> (usize, isize, T) {
    ALLOCATIONS.set(0);
    let before = IN_USE.get();
    IN_USE_MAX.set(before);
    let result = work();
    (ALLOCATIONS.get(), IN_USE_MAX.get() - before, result)
}

#[test]
fn plain_batches_allocate_nothing() {
    let mut scratch = Scratch::new();
    for count in [1, 100] {
        let bytes = batch_of(count, &[7; 100], Compression::None);
        let (allocations, _, valid) = measure(|| {
            let (batch, _) = Batch::split_first(&bytes).unwrap();
            validate(batch, &ValidationRules::client(NOW), &mut scratch).is_ok()
        });
        assert!(valid);
        assert_eq!(allocations, 0);
    }
    assert_eq!(scratch.held_bytes(), 0);
}

#[test]
fn compressed_batches_reuse_what_the_first_one_allocated() {
    for compression in [Compression::Gzip, Compression::Snappy, Compression::Zstd, Compression::Lz4] {
        let bytes = batch_of(50, &[7; 100], compression);
        let (batch, _) = Batch::split_first(&bytes).unwrap();
        let mut scratch = Scratch::new();
        validate(batch, &ValidationRules::client(NOW), &mut scratch).unwrap();
        let (allocations, _, valid) =
            measure(|| validate(batch, &ValidationRules::client(NOW), &mut scratch).is_ok());
        assert!(valid);
        assert!(allocations <= 1, "{compression:?}: {allocations} allocations");
    }
}

/// A few KiB that decompress to 32 MiB are walked in a small window. What zstd allocates in C is not counted here:
/// its context and, for streamed frames, a window that is at most 8 MiB and given back afterwards.
#[test]
fn bombs_are_walked_in_a_bounded_window() {
    let value = vec![0; 1 << 20];
    let limit = 64 << 20;
    for compression in [Compression::Gzip, Compression::Snappy, Compression::Zstd, Compression::Lz4] {
        let bytes = batch_of(32, &value, compression);
        let (batch, _) = Batch::split_first(&bytes).unwrap();
        let mut scratch = Scratch::new();
        let rules = ValidationRules { decompressed_bytes_max: limit, ..ValidationRules::client(NOW) };
        let (_, most, valid) = measure(|| validate(batch, &rules, &mut scratch).is_ok());
        assert!(valid, "{compression:?}");
        assert!(most < 512 << 10, "{compression:?}: {most} bytes in use");
        assert!(scratch.held_bytes() <= Scratch::KEPT_BYTES_MAX, "{compression:?}: {scratch:?}");

        let rules = ValidationRules { decompressed_bytes_max: 1 << 20, ..rules };
        let (_, most, result) = measure(|| validate(batch, &rules, &mut scratch));
        assert_eq!(result.unwrap_err().kafka_error(), KafkaError::MessageTooLarge);
        assert!(most < 512 << 10, "{compression:?}: {most} bytes in use");
    }
}
