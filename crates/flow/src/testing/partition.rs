//! The task of a partition by itself.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Waker};

use mainstem_client::{FetchedBatch, TopicPartition};
use tokio::runtime::Runtime;
use tokio::sync::mpsc;

use super::memory::Memory;
use crate::app::AppState;
use crate::error::{Error, Result};
use crate::route::Route;
use crate::runner::{Command, Input, Partition, Shared};
use crate::transport::{BoxFuture, Sink};

/// The task of a partition without a source, a group and commits: what handling a message takes is measured by it.
pub struct TestPartition {
    task: BoxFuture<'static, ()>,
    shared: Arc<Shared>,
    inputs: mpsc::UnboundedSender<Input>,
    #[cfg_attr(not(test), expect(dead_code, reason = "the task has the other end"))]
    commands: mpsc::UnboundedReceiver<Command>,
    runtime: Runtime,
}

impl TestPartition {
    /// Partition 0 of the route's topic, where nothing was committed.
    ///
    /// # Errors
    /// [`Error::Invalid`] if the route cannot work, or the system refuses a timer.
    pub fn new(route: Route) -> Result<TestPartition> {
        let app = Arc::new(AppState::new("test".into()));
        TestPartition::with_sink(route, Arc::new(Memory::new(app)))
    }

    fn with_sink(route: Route, sink: Arc<dyn Sink>) -> Result<TestPartition> {
        route.check("test")?;
        let partition = TopicPartition::new(route.name(), 0);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build();
        let runtime = runtime.map_err(|error| Error::Invalid(format!("there is no timer: {error}")))?;
        let entered = runtime.enter();
        let app = Arc::new(AppState::new("test".into()));
        let (_, run, route) = route.into_running();
        let shared = Arc::new(Shared::new(&app, partition, None));
        let (inputs, receiver) = mpsc::unbounded_channel();
        let (sender, commands) = mpsc::unbounded_channel();
        let partition =
            Partition { app, route, shared: shared.clone(), inputs: receiver, commands: sender, sink };
        let task = run(partition);
        drop(entered);
        Ok(TestPartition { task, shared, inputs, commands, runtime })
    }

    /// Gives it a batch, and polls it until all of that is handled. Handlers that wait have to wake themselves.
    ///
    /// # Panics
    /// If a handler stops the application.
    pub fn handle(&mut self, batch: FetchedBatch) {
        let end = batch.next_offset();
        self.give(batch);
        self.poll_until(|shared| position(shared) >= end);
    }

    fn give(&mut self, batch: FetchedBatch) {
        self.give_after(0, batch);
    }

    /// The same, read behind so many seeks.
    fn give_after(&mut self, seeks: u64, batch: FetchedBatch) {
        self.shared.queued.fetch_add(1, Ordering::SeqCst);
        // The task has the other end.
        let _ = self.inputs.send(Input::Batch(seeks, batch));
    }

    fn poll_until(&mut self, holds: impl Fn(&Shared) -> bool) {
        let _entered = self.runtime.enter();
        let mut context = Context::from_waker(Waker::noop());
        while !holds(&self.shared) {
            assert!(self.task.as_mut().poll(&mut context).is_pending(), "the task has ended");
        }
    }

    #[cfg(test)]
    fn poll_once(&mut self) -> std::task::Poll<()> {
        let _entered = self.runtime.enter();
        self.task.as_mut().poll(&mut Context::from_waker(Waker::noop()))
    }

    /// The first unfinished offset; 0 before the first batch.
    pub fn position(&self) -> i64 {
        position(&self.shared)
    }
}

fn position(shared: &Shared) -> i64 {
    shared.progress.lock().window.as_ref().map_or(0, crate::Window::frontier)
}

impl std::fmt::Debug for TestPartition {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TestPartition").field("partition", &self.shared.partition).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, AtomicUsize};
    use std::time::{Duration, Instant};

    use bytes::Bytes;
    use mainstem_client::{Error as ClientError, Record};
    use mainstem_records::{BatchBuilder, BatchOptions};

    use super::*;
    use crate::{Cx, Fault, Msg, Retry, Text};

    /// An answer of a broker, which says when it is gone.
    struct Answer {
        bytes: Vec<u8>,
        is_gone: Arc<AtomicBool>,
    }

    impl AsRef<[u8]> for Answer {
        fn as_ref(&self) -> &[u8] {
            &self.bytes
        }
    }

    impl Drop for Answer {
        fn drop(&mut self) {
            self.is_gone.store(true, Ordering::Relaxed);
        }
    }

    /// The batch of an answer: 2,000 lines that can be handled, but for some, which have one key.
    fn answer(base_offset: i64, bad: &[i64], is_gone: &Arc<AtomicBool>) -> FetchedBatch {
        let mut builder = BatchBuilder::new(BatchOptions { base_offset, ..BatchOptions::default() });
        for offset in base_offset..base_offset + 2_000 {
            let (key, line) = match bad.contains(&offset) {
                true => ("bad".to_owned(), "bad"),
                false => (offset.to_string(), "good"),
            };
            builder.append(0, Some(key.as_bytes()), Some(line.as_bytes()), &[]).unwrap();
        }
        let answer = Answer { bytes: builder.build().unwrap(), is_gone: is_gone.clone() };
        FetchedBatch::from_bytes(TopicPartition::new("lines", 0), Bytes::from_owner(answer)).unwrap()
    }

    fn polls_until(partition: &mut TestPartition, what: &str, holds: impl Fn() -> bool) {
        let deadline = Instant::now() + Duration::from_secs(60);
        partition.poll_until(|_| {
            assert!(Instant::now() < deadline, "{what}");
            holds()
        });
    }

    fn unfinished(partition: &TestPartition) -> usize {
        partition.shared.progress.lock().window.as_ref().map_or(0, crate::Window::unfinished)
    }

    #[test]
    fn a_message_that_fails_and_those_behind_it_keep_no_answer_in_memory() {
        let route = Route::topic("lines", |line: Msg<Text>| async move {
            if *line == "bad" { Err(Fault::transient("away")) } else { Ok(()) }
        });
        let mut partition = TestPartition::new(route.retry(Retry::exponential(1, 2))).unwrap();
        for (base_offset, bad) in [(0, &[0, 500, 1_500][..]), (2_000, &[2_500, 3_999][..])] {
            let is_gone = Arc::default();
            partition.give(answer(base_offset, bad, &is_gone));
            polls_until(&mut partition, "the answer is gone", || is_gone.load(Ordering::Relaxed));
        }
        assert_eq!(partition.position(), 0);
        assert!((5..50).contains(&unfinished(&partition)), "those of the slice: {}", unfinished(&partition));
    }

    #[test]
    fn batches_that_a_seek_leaves_out_do_not_count() {
        let has_sought = Arc::new(AtomicBool::new(false));
        let seeks = has_sought.clone();
        let route = Route::topic("lines", move |_: Msg<Text>, cx: Cx| {
            let asks = !seeks.swap(true, Ordering::Relaxed);
            async move { if asks { cx.seek(2_000) } else { Ok(()) } }
        });
        let mut partition = TestPartition::new(route.concurrency(1)).unwrap();
        let unused = Arc::default();
        partition.give(answer(0, &[], &unused));
        polls_until(&mut partition, "it seeks", || has_sought.load(Ordering::Relaxed));
        while partition.position() < 2_000 {
            assert!(partition.poll_once().is_pending());
        }
        // The driver has not received the request yet.
        for base_offset in [2_000, 4_000, 6_000] {
            partition.give_after(0, answer(base_offset, &[], &unused));
        }
        assert!(matches!(partition.commands.try_recv(), Ok(Command::Seek(_, 2_000, 1))));
        partition.give_after(1, answer(2_000, &[], &unused));
        partition.poll_until(|shared| position(shared) == 4_000);
        assert!(partition.poll_once().is_pending());
        assert_eq!(partition.shared.queued.load(Ordering::SeqCst), 0);
    }

    /// A sink whose producer is closed.
    struct Closed;

    impl Sink for Closed {
        fn write(&self, _: Vec<Record>) -> BoxFuture<'static, std::result::Result<(), ClientError>> {
            Box::pin(std::future::ready(Err(ClientError::Closed)))
        }

        fn letter_partitions(
            &self,
            _: String,
            _: Arc<str>,
        ) -> BoxFuture<'static, std::result::Result<i32, ClientError>> {
            Box::pin(std::future::ready(Ok(1)))
        }
    }

    #[test]
    fn a_letter_that_can_never_be_written_ends_the_application() {
        let route = Route::topic("lines", |_: Msg<Text>| async { Err::<(), _>(Fault::poison("no")) });
        let mut partition = TestPartition::with_sink(route, Arc::new(Closed)).unwrap();
        partition.give(answer(0, &[], &Arc::default()));
        let deadline = Instant::now() + Duration::from_secs(60);
        while partition.poll_once().is_pending() {
            assert!(Instant::now() < deadline, "the task ends");
        }
        let Ok(Command::Fail(error)) = partition.commands.try_recv() else { panic!("it says so") };
        assert!(matches!(error, Error::Stopped { .. }), "{error}");
        assert_eq!(partition.position(), 0, "the message is unfinished");
    }

    #[test]
    fn handlers_that_take_long_do_not_hold_their_thread_for_a_whole_group() {
        let (is_slow, handled) = (Arc::new(AtomicBool::new(true)), Arc::new(AtomicUsize::new(0)));
        let (slow, count) = (is_slow.clone(), handled.clone());
        let route = Route::topic("lines", move |_: Msg<Text>| {
            if slow.load(Ordering::Relaxed) {
                std::thread::sleep(Duration::from_millis(6));
            }
            // Those behind the fast ones are slow.
            if count.fetch_add(1, Ordering::Relaxed) == 1_000 {
                slow.store(true, Ordering::Relaxed);
            }
            async {}
        });
        let mut partition = TestPartition::new(route).unwrap();
        partition.give(answer(0, &[], &Arc::default()));
        assert!(partition.poll_once().is_pending());
        let first = handled.load(Ordering::Relaxed);
        assert!((1..=3).contains(&first), "{first} at the first poll");
        is_slow.store(false, Ordering::Relaxed);
        while !is_slow.load(Ordering::Relaxed) {
            assert!(partition.poll_once().is_pending());
        }
        let slow = handled.load(Ordering::Relaxed) - 1_001;
        assert!(slow <= 40, "{slow} slow ones in the poll of the first of them");
    }

    #[test]
    fn messages_behind_one_that_runs_for_long_keep_no_answer_in_memory() {
        let route = Route::topic("lines", |line: Msg<Text>| async move {
            if *line == "bad" {
                std::future::pending::<()>().await;
            }
        });
        let mut partition = TestPartition::new(route).unwrap();
        let (first, second) = (Arc::default(), Arc::default());
        partition.give(answer(0, &[0], &first));
        partition.give(answer(10_000, &[10_000, 11_999], &second));
        polls_until(&mut partition, "the second answer is gone", || second.load(Ordering::Relaxed));
        assert!(!first.load(Ordering::Relaxed), "what runs has it");
        assert_eq!(partition.position(), 0);
        assert!((3..50).contains(&unfinished(&partition)), "those of the slice: {}", unfinished(&partition));
    }
}
