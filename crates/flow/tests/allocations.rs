//! What handling takes: nothing is allocated for a message that succeeds and sends nothing.
#![allow(unsafe_code, clippy::unwrap_used, reason = "an allocator that counts is unsafe to write")]

mod support;

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use mainstem_flow::{Msg, Raw, Route};
use support::{World, eventually};

static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);

struct Counting;

// SAFETY: every call is passed on unchanged to the system's allocator; the counter is a plain atomic.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller's promises are those that `System` asks for.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: as above.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// All of the process is counted, the broker and the client too: they allocate for each batch and request.
#[tokio::test]
async fn nothing_is_allocated_for_a_message() {
    const MESSAGES: u64 = 200_000;
    let world = World::start();
    world.create("lines", 1).await;
    for number in 0..MESSAGES {
        world.write_some("lines", &(number % 1_000).to_string(), "a line of some length").await;
    }
    world.flush().await;
    let seen = Arc::new(AtomicU64::new(0));
    let own = seen.clone();
    let route = Route::topic("lines", move |_: Msg<Raw>| {
        own.fetch_add(1, Ordering::Relaxed);
        std::future::ready(())
    });
    let before = ALLOCATIONS.load(Ordering::Relaxed);
    let running = world.app("a").add(route).start().unwrap();
    eventually("all are handled", || seen.load(Ordering::Relaxed) == MESSAGES).await;
    let allocated = ALLOCATIONS.load(Ordering::Relaxed) - before;
    running.stop().await.unwrap();
    assert!(allocated < MESSAGES / 20, "{allocated} allocations for {MESSAGES} messages");
}
