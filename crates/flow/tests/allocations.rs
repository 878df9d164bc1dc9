//! Allocations of handling: nothing is allocated for a message that succeeds and sends nothing.
#![allow(unsafe_code, clippy::unwrap_used, reason = "an allocator that counts is unsafe to write")]

#[path = "it/support/mod.rs"]
mod support;

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use mainstem_client::{FetchedBatch, TopicPartition};
use mainstem_flow::{Msg, Raw, Route, TestPartition};
use mainstem_records::{BatchBuilder, BatchOptions};
use support::{World, eventually};
use tokio::sync::Mutex;

static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);

/// One test at a time: those of the other would count.
static TURN: Mutex<()> = Mutex::const_new(());

thread_local! {
    /// Those of this thread alone.
    static OWN: Cell<u64> = const { Cell::new(0) };
}

struct Counting;

// SAFETY: every call is passed on unchanged to the system's allocator; the counter is a plain atomic.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        OWN.set(OWN.get() + 1);
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

/// Returns the number of allocations for a batch of so many messages, after others were handled.
fn allocated_for(partition: &mut TestPartition, messages: i64) -> u64 {
    let batch = batch(partition.position(), messages);
    let before = OWN.get();
    partition.handle(batch);
    OWN.get() - before
}

fn batch(base_offset: i64, messages: i64) -> FetchedBatch {
    let mut builder = BatchBuilder::new(BatchOptions { base_offset, ..BatchOptions::default() });
    for number in 0..messages {
        let key = (number % 100).to_string();
        builder.append(1_000, Some(key.as_bytes()), Some(b"a line of some length"), &[]).unwrap();
    }
    FetchedBatch::from_bytes(TopicPartition::new("lines", 0), builder.build().unwrap().into()).unwrap()
}

/// The task of a partition by itself: a batch of one message takes as many allocations as one of two thousand.
#[test]
fn a_batch_is_what_is_allocated_for_and_not_its_messages() {
    let _turn = TURN.blocking_lock();
    let ready = Route::topic("lines", |_: Msg<Raw>| std::future::ready(()));
    let waits = Route::topic("lines", |_: Msg<Raw>| async { tokio::task::yield_now().await });
    for (name, route) in [("done at once", ready), ("waits", waits)] {
        let mut partition = TestPartition::new(route).unwrap();
        for _ in 0..4 {
            allocated_for(&mut partition, 2_000);
        }
        let (few, many) = (allocated_for(&mut partition, 1), allocated_for(&mut partition, 2_000));
        assert!(many <= few + 2, "{name}: {many} allocations for 2,000 messages, {few} for one");
    }
}

/// All of the process is counted, the broker and the client too: they allocate for each batch and request.
#[tokio::test]
async fn nothing_is_allocated_for_a_message() {
    const MESSAGES: u64 = 200_000;
    let _turn = TURN.lock().await;
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
