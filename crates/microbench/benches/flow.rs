//! Cost of a message from the batch that contains it to the position behind it, with a handler that does nothing.

#![allow(clippy::unwrap_used, reason = "a bench may panic")]

use std::task::Poll;

use mainstem_client::{FetchedBatch, TopicPartition};
use mainstem_flow::{Msg, Raw, Route, TestPartition};
use mainstem_microbench::{Case, Suite};
use mainstem_records::{BatchBuilder, BatchOptions};

const NOW_MS: i64 = 1_700_000_000_000;
/// Messages of a batch. Finding its records is counted, too, and costs a bare loop about the same: 516 instructions of a
/// message's 1,131 when this was first recorded.
const MESSAGES: i64 = 512;
/// Calls, and so batches, of one input.
const CALLS: u32 = 16;

fn main() {
    let mut suite = Suite::from_args("flow");
    let case = |name| Case { name, calls: CALLS };
    suite.measure(case("dispatch_512x100"), || input(Route::topic("lines", |_: Msg<Raw>| async {})), handle);
    // Each attempt has a slot in the window, a waker, and an allocation for the time that it waits.
    let waits = || input(Route::topic("lines", |_: Msg<Raw>| Once(false)));
    suite.measure(case("dispatch_waiting_512x100"), waits, handle);
}

/// A future that is pending once, wakes itself, and is ready at the next poll.
struct Once(bool);

impl Future for Once {
    type Output = ();

    fn poll(mut self: std::pin::Pin<&mut Self>, cx: &mut std::task::Context<'_>) -> Poll<()> {
        if std::mem::replace(&mut self.0, true) {
            return Poll::Ready(());
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    }
}

struct Input {
    partition: TestPartition,
    batches: Vec<FetchedBatch>,
}

/// Returns a partition that has handled one batch, and the batches of all calls.
fn input(route: Route) -> Input {
    let mut partition = TestPartition::new(route).unwrap();
    partition.handle(batch(0));
    let batches = (1..=i64::from(CALLS) + 1).rev().map(|number| batch(number * MESSAGES)).collect();
    Input { partition, batches }
}

fn handle(input: &mut Input) {
    input.partition.handle(input.batches.pop().unwrap());
}

fn batch(base_offset: i64) -> FetchedBatch {
    let mut builder = BatchBuilder::new(BatchOptions { base_offset, ..BatchOptions::default() });
    for number in base_offset..base_offset + MESSAGES {
        let key = (number % 10_000).to_string();
        builder.append(NOW_MS, Some(key.as_bytes()), Some(&[b'x'; 100]), &[]).unwrap();
    }
    FetchedBatch::from_bytes(TopicPartition::new("lines", 0), builder.build().unwrap().into()).unwrap()
}
