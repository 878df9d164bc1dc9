//! An application on topics in memory.

use std::sync::Arc;
use std::time::Duration;

use mainstem_client::{Record, TopicPartition};
use tokio::sync::watch;
use tokio::task::JoinHandle;

use super::memory::{Memory, MemorySource};
use crate::app::{App, AppState, Stop, Times, check_routes};
use crate::driver::{Driver, Routes};
use crate::error::{Error, Result};
use crate::letter;
use crate::payload::Encode;
use crate::route::Route;
use crate::status::Status;

/// Nothing has happened for so many turns of the runtime: all that can be done without time has been.
const QUIET_TURNS: u32 = 64;

/// An application on topics in memory. Time passes only in [`TestApp::advance`]: it needs a runtime with one thread whose clock is paused,
/// `#[tokio::test(start_paused = true)]`. Handlers that wait for anything but such time are not awaited.
///
/// ```
/// use mainstem_flow::{App, Cx, Fault, Handler, Json, Msg, Route, TestApp};
/// use serde::{Deserialize, Serialize};
///
/// #[derive(Serialize, Deserialize)]
/// struct Order { cents: u64 }
///
/// struct Billing;
///
/// impl Handler<Msg<Json<Order>>> for Billing {
///     async fn handle(&self, order: Msg<Json<Order>>, cx: &mut Cx) -> Result<(), Fault> {
///         let total = order.cents.checked_mul(2).ok_or_else(|| Fault::poison("the total overflows"))?;
///         cx.send("invoices", order.key(), &Json(Order { cents: total }))
///     }
/// }
///
/// # #[tokio::main(flavor = "current_thread", start_paused = true)]
/// # async fn main() -> mainstem_flow::Result {
/// let app = App::new("billing", "mem:")?.add(Route::topic("orders", Billing));
/// let mut test = TestApp::new(app)?;
/// test.send("orders", Some("a"), &Json(Order { cents: 21 }));
/// test.send("orders", Some("b"), &Json(Order { cents: u64::MAX }));
/// test.settle().await;
/// assert_eq!(test.sent("invoices")[0].value.as_deref(), Some(&b"{\"cents\":42}"[..]));
/// assert_eq!(test.letters("orders").len(), 1);
/// # Ok(())
/// # }
/// ```
pub struct TestApp {
    app: Arc<AppState>,
    memory: Arc<Memory>,
    times: Times,
    routes: Option<Vec<Route>>,
    again: Box<dyn Fn() -> Vec<Route> + Send>,
    process: Option<Process>,
}

/// The process that a crash ends.
struct Process {
    stop: watch::Sender<Stop>,
    task: JoinHandle<Result>,
    status: Arc<Status>,
}

impl TestApp {
    /// Starts an application of `mem:`, with a partition for each topic. It cannot [crash](TestApp::crash).
    ///
    /// # Errors
    /// [`Error::Invalid`] where routes cannot work together, or it is not at `mem:`.
    ///
    /// # Panics
    /// Outside of a tokio runtime.
    pub fn new(app: App) -> Result<TestApp> {
        TestApp::start(app, Box::new(Vec::new))
    }

    /// The same of an application that can be made again, so that it can crash.
    ///
    /// # Errors
    /// As [`TestApp::new`], and why it cannot be made.
    ///
    /// # Panics
    /// Outside of a tokio runtime.
    pub fn made_by(make: impl Fn() -> Result<App> + Send + 'static) -> Result<TestApp> {
        let app = make()?;
        // `make` has succeeded once, and makes the same routes again.
        TestApp::start(app, Box::new(move || make().map(|app| app.routes).unwrap_or_default()))
    }

    fn start(app: App, again: Box<dyn Fn() -> Vec<Route> + Send>) -> Result<TestApp> {
        check_routes(&app.name, &app.routes)?;
        if !app.is_in_memory {
            return Err(Error::Invalid("a test runs an application at mem:, not at brokers".to_owned()));
        }
        let state = Arc::new(AppState::new(app.name.clone()));
        let memory = Arc::new(Memory::new(state.clone()));
        let mut test =
            TestApp { app: state, memory, times: app.times, routes: Some(app.routes), again, process: None };
        test.launch();
        Ok(test)
    }

    fn launch(&mut self) {
        let routes = self.routes.take().unwrap_or_else(|| (self.again)());
        let routes = Routes::new(routes);
        let status = Arc::new(Status::new(self.app.clone(), routes.states(), self.times.stuck_after));
        let source = MemorySource::new(self.memory.clone(), routes.matcher(self.app.name.clone()));
        let (stop, stops) = watch::channel(Stop::No);
        let sink = self.memory.clone();
        let driver = Driver::new(self.app.clone(), routes, sink, self.times.clone(), status.clone());
        let task = tokio::spawn(driver.run(source, stops));
        self.process = Some(Process { stop, task, status });
    }

    /// Writes a record to a topic, which comes to be by that.
    ///
    /// # Panics
    /// If the payload cannot be encoded.
    pub fn send<P: Encode + ?Sized>(&self, topic: &str, key: Option<&str>, payload: &P) {
        let value = payload.encode().unwrap_or_else(|error| panic!("{topic}: {error}"));
        let mut record = Record::new(topic, bytes::Bytes::new());
        record.value = value;
        record.key = key.map(|key| bytes::Bytes::copy_from_slice(key.as_bytes()));
        if let Some(event_type) = payload.event_type() {
            record = record.header("type", event_type.to_owned());
        }
        self.send_record(record);
    }

    /// The same with all that a record has.
    pub fn send_record(&self, record: Record) {
        self.memory.append(record);
    }

    /// Cuts the log of a topic at an offset, as an election of a replica with a shorter log does. Records that are written from then on
    /// have the next leader epoch. A process that has read further continues there; see [`TestApp::crash`].
    pub fn truncate(&self, topic: &str, offset: usize) {
        self.memory.truncate(topic, offset);
    }

    /// Holds what handlers send, and dead letters, as a broker that does not answer; or lets it be written. Held records are written even
    /// if nothing waits for them any more, as by a producer that has them.
    pub fn hold_writes(&self, are_held: bool) {
        self.memory.hold_writes(are_held);
    }

    /// Lets everything happen that needs no time.
    pub async fn settle(&mut self) {
        let mut quiet = 0;
        let mut before = self.state();
        while quiet < QUIET_TURNS {
            tokio::task::yield_now().await;
            let now = self.state();
            quiet = if now == before { quiet + 1 } else { 0 };
            before = now;
        }
    }

    /// Counts that change when anything happens.
    fn state(&self) -> (u64, u64) {
        let activity = self.process.as_ref().map_or(0, |process| process.status.activity());
        (activity, self.memory.changes())
    }

    /// Lets time pass, with all that happens meanwhile, each at its time.
    ///
    /// # Panics
    /// If time is not paused, as by `#[tokio::test(start_paused = true)]`.
    pub async fn advance(&mut self, time: Duration) {
        // It panics where time is not paused.
        tokio::time::advance(Duration::ZERO).await;
        self.settle().await;
        // A paused clock moves by itself to the next timer of any task, once nothing else is left to do.
        tokio::time::sleep(time).await;
        self.settle().await;
    }

    /// Takes all partitions away and gives them back, as a group does when its members change.
    pub async fn rebalance(&mut self) {
        self.memory.rebalance();
        self.settle().await;
    }

    /// Ends the process as a kill does, and starts it again: what was not committed is done again.
    ///
    /// # Panics
    /// If the application was not [made](TestApp::made_by) so that it can be made again.
    pub async fn crash(&mut self) {
        if let Some(process) = self.process.take() {
            process.task.abort();
            // It was aborted.
            let _ = process.task.await;
        }
        self.settle().await;
        self.launch();
        self.settle().await;
    }

    /// Stops in order.
    ///
    /// # Errors
    /// Why the application had ended before.
    ///
    /// # Panics
    /// As the application's tasks do.
    pub async fn stop(mut self) -> Result {
        let Some(process) = self.process.take() else { return Ok(()) };
        // If it has ended by itself, nothing receives this.
        let _ = process.stop.send(Stop::Orderly);
        process.task.await.unwrap_or_else(|error| match error.try_into_panic() {
            Ok(panic) => std::panic::resume_unwind(panic),
            Err(_) => Ok(()),
        })
    }

    /// The records of a topic, whatever wrote them, in their order.
    pub fn sent(&self, topic: &str) -> Vec<Record> {
        self.memory.records(topic)
    }

    /// The dead letters of a topic.
    pub fn letters(&self, topic: &str) -> Vec<Record> {
        self.memory.records(&letter::topic(&self.app.name, topic))
    }

    /// The committed offset of a topic; 0 if there is none.
    pub fn position(&self, topic: &str) -> i64 {
        self.memory.committed(&TopicPartition::new(topic, 0)).map_or(0, |committed| committed.offset)
    }

    /// Returns the status of the application.
    pub fn status(&self) -> Option<&Status> {
        self.process.as_ref().map(|process| &*process.status)
    }
}

impl Drop for TestApp {
    fn drop(&mut self) {
        if let Some(process) = &self.process {
            process.task.abort();
        }
    }
}

impl std::fmt::Debug for TestApp {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TestApp").field("app", &self.app.name).finish_non_exhaustive()
    }
}
