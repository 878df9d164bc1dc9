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
use crate::transport::BoxFuture;

/// The task of a partition without a source, a group and commits: what handling a message takes is measured by it.
pub struct TestPartition {
    task: BoxFuture<'static, ()>,
    shared: Arc<Shared>,
    inputs: mpsc::UnboundedSender<Input>,
    _commands: mpsc::UnboundedReceiver<Command>,
    runtime: Runtime,
}

impl TestPartition {
    /// Partition 0 of the route's topic, where nothing was committed.
    ///
    /// # Errors
    /// [`Error::Invalid`] if the route cannot work, or the system refuses a timer.
    pub fn new(route: Route) -> Result<TestPartition> {
        route.check("test")?;
        let partition = TopicPartition::new(route.name(), 0);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build();
        let runtime = runtime.map_err(|error| Error::Invalid(format!("there is no timer: {error}")))?;
        let entered = runtime.enter();
        let app = Arc::new(AppState::new("test".into()));
        let (_, run, route) = route.into_running();
        let shared = Arc::new(Shared::new(&app, partition, None));
        let (inputs, receiver) = mpsc::unbounded_channel();
        let (commands, kept) = mpsc::unbounded_channel();
        let sink = Arc::new(Memory::new(app.clone()));
        let partition = Partition { app, route, shared: shared.clone(), inputs: receiver, commands, sink };
        let task = run(partition);
        drop(entered);
        Ok(TestPartition { task, shared, inputs, _commands: kept, runtime })
    }

    /// Gives it a batch, and polls it until all of that is handled. Handlers that wait have to wake themselves.
    ///
    /// # Panics
    /// If a handler stops the application.
    pub fn handle(&mut self, batch: FetchedBatch) {
        let end = batch.next_offset();
        self.shared.queued.fetch_add(1, Ordering::SeqCst);
        // The task has the other end.
        let _ = self.inputs.send(Input::Batch(0, batch));
        let _entered = self.runtime.enter();
        let mut context = Context::from_waker(Waker::noop());
        while self.position() < end {
            assert!(self.task.as_mut().poll(&mut context).is_pending(), "the task has ended");
        }
    }

    /// The first unfinished offset; 0 before the first batch.
    pub fn position(&self) -> i64 {
        let progress = self.shared.progress.lock();
        progress.window.as_ref().map_or(0, crate::Window::frontier)
    }
}

impl std::fmt::Debug for TestPartition {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TestPartition").field("partition", &self.shared.partition).finish_non_exhaustive()
    }
}
