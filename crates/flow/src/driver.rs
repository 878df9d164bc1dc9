//! The task of an application. It is always inside the source's `next`, passes events to the tasks of partitions, commits the positions of
//! finished messages, and stops the tasks of partitions that are revoked.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use futures_util::stream::FuturesUnordered;
use futures_util::{FutureExt as _, StreamExt as _};
use mainstem_client::{CommittedOffset, FetchedBatch, TopicPartition};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;
use tokio::time::Instant;

use crate::app::{AppState, Stop, Times};
use crate::attempt::words_of;
use crate::error::{Error, Result};
use crate::route::{Route, RouteState, RunPartition, Topics};
use crate::runner::{Command, Input, Partition, QUEUE_MAX, Shared};
use crate::status::Status;
use crate::transport::{BoxFuture, Commit, Event, Sink, Source};

/// The least time for the commits at the end of a stop. They have the rest of its time if handlers have left more.
const LAST_COMMITS: Duration = Duration::from_secs(5);

/// The routes of an application, by topic.
pub(crate) struct Routes {
    routes: Vec<(Topics, RunPartition, Arc<RouteState>)>,
}

impl Routes {
    pub(crate) fn new(routes: Vec<Route>) -> Routes {
        Routes { routes: routes.into_iter().map(Route::into_running).collect() }
    }

    pub(crate) fn states(&self) -> Vec<Arc<RouteState>> {
        self.routes.iter().map(|(_, _, state)| state.clone()).collect()
    }

    /// Returns a function that says whether a topic is a route's, for use after this is gone.
    #[cfg(feature = "testing")]
    pub(crate) fn matcher(&self, group: Arc<str>) -> Box<dyn Fn(&str) -> bool + Send> {
        let topics: Vec<Topics> = self.routes.iter().map(|(topics, ..)| topics.clone()).collect();
        let own_letters = crate::letter::topic(&group, "");
        Box::new(move |topic| {
            topics.iter().any(|topics| match topics {
                Topics::Named(name) => name == topic,
                Topics::Pattern(pattern) => pattern.is_match(topic) && !topic.starts_with(&own_letters),
            })
        })
    }

    /// The route of a topic: one that names it comes before one whose pattern matches it, and topics of dead letters match
    /// no pattern.
    fn of(&self, group: &str, topic: &str) -> Option<(&RunPartition, &Arc<RouteState>)> {
        let named =
            self.routes.iter().find(|(topics, ..)| matches!(topics, Topics::Named(name) if name == topic));
        let is_own_letters = || topic.starts_with(&crate::letter::topic(group, ""));
        let matches = |(topics, ..): &&(Topics, RunPartition, Arc<RouteState>)| matches!(topics, Topics::Pattern(pattern) if pattern.is_match(topic) && !is_own_letters());
        let found = named.or_else(|| self.routes.iter().find(matches));
        found.map(|(_, run, state)| (run, state))
    }
}

/// The task of a partition, as the driver sees it.
struct Handle {
    inputs: mpsc::UnboundedSender<Input>,
    shared: Arc<Shared>,
    task: JoinHandle<()>,
    /// The position that was committed last.
    committed: Option<CommittedOffset>,
    /// Its topic did not exist when its position was committed last.
    is_missing: bool,
    seeks: u64,
}

impl Handle {
    /// Returns its position if that is not committed. A new topic id alone does not count: it is known when the first batch comes.
    fn moved(&self) -> Option<CommittedOffset> {
        let is_committed = |new: &CommittedOffset| {
            self.committed.as_ref().is_some_and(|old| {
                (old.offset, old.leader_epoch, &old.metadata) == (new.offset, new.leader_epoch, &new.metadata)
                    && (old.topic_id.is_none() || old.topic_id == new.topic_id)
            })
        };
        self.shared.position().filter(|new| !is_committed(new))
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        // Has no effect on a task that has ended by itself.
        self.task.abort();
    }
}

/// A finished commit, and what it covers.
struct Committed {
    positions: BTreeMap<TopicPartition, CommittedOffset>,
    /// Partitions that were left out, as their topics do not exist; or why nothing is known to be committed.
    outcome: Result<BTreeSet<TopicPartition>, mainstem_client::Error>,
    /// Revocations that are finished with it.
    revocations: Vec<u64>,
}

/// Tasks of partitions that were asked to end: done when all have.
type Ending = BoxFuture<'static, (u64, Vec<Arc<Shared>>)>;

/// The driver of an application.
pub(crate) struct Driver {
    app: Arc<AppState>,
    routes: Routes,
    sink: Arc<dyn Sink>,
    times: Times,
    status: Arc<Status>,
    partitions: HashMap<TopicPartition, Handle>,
    commands: (mpsc::UnboundedSender<Command>, mpsc::UnboundedReceiver<Command>),
    ending: FuturesUnordered<Ending>,
    /// Positions of partitions whose tasks have ended, and the revocations that wait for their commit.
    last: (BTreeMap<TopicPartition, CommittedOffset>, Vec<u64>),
    commit: Option<BoxFuture<'static, Committed>>,
    commit_at: Instant,
}

impl Driver {
    pub(crate) fn new(
        app: Arc<AppState>,
        routes: Routes,
        sink: Arc<dyn Sink>,
        times: Times,
        status: Arc<Status>,
    ) -> Driver {
        Driver {
            commit_at: Instant::now() + times.commit_every,
            app,
            routes,
            sink,
            times,
            status,
            partitions: HashMap::new(),
            commands: mpsc::unbounded_channel(),
            ending: FuturesUnordered::new(),
            last: Default::default(),
            commit: None,
        }
    }

    /// Runs until it is asked to stop, or cannot continue.
    pub(crate) async fn run<S: Source>(mut self, mut source: S, mut stops: watch::Receiver<Stop>) -> Result {
        let committer = source.committer();
        let ended = self.drive(&mut source, &*committer, &mut stops).await;
        self.status.stopping();
        self.stop(&*committer).await;
        source.leave().await;
        self.status.stopped();
        ended
    }

    async fn drive<S: Source>(
        &mut self,
        source: &mut S,
        committer: &dyn Commit,
        stops: &mut watch::Receiver<Stop>,
    ) -> Result {
        loop {
            tokio::select! {
                biased;
                wanted = wanted(stops) => match wanted {
                    Stop::Orderly => return Ok(()),
                    Stop::Quiet => self.be_quiet(true),
                    Stop::No => self.be_quiet(false),
                },
                Some(command) = self.commands.1.recv() => self.obey(source, command)?,
                Some((number, ended)) = self.ending.next(), if !self.ending.is_empty() => self.has_ended(number, ended),
                done = ended(&mut self.commit) => self.committed(source, done),
                () = tokio::time::sleep_until(self.commit_at) => {
                    if source.is_member() {
                        self.status.joined();
                    }
                    self.note_ends(source);
                    self.commit_all(committer);
                }
                event = source.next() => self.take(source, event?),
            }
            self.commit_last(committer);
        }
    }

    /// Has partitions start nothing more, or start messages again.
    fn be_quiet(&mut self, is_quiet: bool) {
        self.app.is_quiet.store(is_quiet, Ordering::SeqCst);
        self.status.quiet(is_quiet);
        for handle in self.partitions.values() {
            // A task that has ended has nothing to start.
            let _ = handle.inputs.send(Input::Look);
        }
    }

    fn obey<S: Source>(&mut self, source: &mut S, command: Command) -> Result {
        match command {
            Command::Release(partition) => source.release(&partition),
            Command::Seek(partition, offset, seeks) => {
                if let Some(handle) = self.partitions.get_mut(&partition) {
                    handle.seeks = seeks;
                    source.seek(&partition, offset);
                    source.release(&partition);
                }
            }
            Command::Fail(error) => return Err(error),
        }
        Ok(())
    }

    fn take<S: Source>(&mut self, source: &mut S, event: Event) {
        match event {
            Event::Assigned(assigned) => {
                for (partition, committed) in assigned {
                    self.begin(source, partition, committed);
                }
                self.status.assigned(self.partitions.values().map(|handle| handle.shared.clone()));
            }
            Event::Batch(batch) => self.give(source, batch),
            Event::Revoking(number, partitions) => self.revoke(number, &partitions),
            Event::Lost(partitions, why) => {
                tracing::warn!("{} partitions are lost: {why}", partitions.len());
                for handle in partitions.iter().filter_map(|partition| self.partitions.remove(partition)) {
                    // Its task ends with the handle, and nothing of it can be committed.
                    handle.shared.cx.is_revoked.store(true, Ordering::Relaxed);
                }
                self.status.assigned(self.partitions.values().map(|handle| handle.shared.clone()));
            }
        }
    }

    fn begin<S: Source>(
        &mut self,
        source: &mut S,
        partition: TopicPartition,
        committed: Option<CommittedOffset>,
    ) {
        let Some((run, route)) = self.routes.of(&self.app.name, &partition.topic) else {
            // It matches a pattern but is no route's: dead letters of this application.
            return source.hold(&partition);
        };
        let shared = Arc::new(Shared::new(&self.app, partition.clone(), committed.as_ref()));
        let (inputs, receiver) = mpsc::unbounded_channel();
        let task = run(Partition {
            app: self.app.clone(),
            route: route.clone(),
            shared: shared.clone(),
            inputs: receiver,
            commands: self.commands.0.clone(),
            sink: self.sink.clone(),
        });
        let task = tokio::spawn(watched(task, partition.clone(), self.commands.0.clone()));
        tracing::info!(
            "{partition} is handled from {} on",
            match &committed {
                Some(committed) => format!("offset {}", committed.offset),
                None => "where the application starts".to_owned(),
            }
        );
        self.partitions
            .insert(partition, Handle { inputs, shared, task, committed, is_missing: false, seeks: 0 });
    }

    fn give<S: Source>(&mut self, source: &mut S, batch: FetchedBatch) {
        let Some(handle) = self.partitions.get(batch.partition()) else { return };
        let (shared, partition) = (&handle.shared, batch.partition().clone());
        let queued = shared.queued.fetch_add(1, Ordering::SeqCst) + 1;
        if queued >= QUEUE_MAX {
            shared.is_held.store(true, Ordering::SeqCst);
            source.hold(&partition);
        }
        // A task that has ended was asked to.
        let _ = handle.inputs.send(Input::Batch(handle.seeks, batch));
    }

    fn revoke(&mut self, number: u64, partitions: &BTreeSet<TopicPartition>) {
        let handles = partitions.iter().filter_map(|partition| self.partitions.remove(partition)).collect();
        self.end_tasks(number, handles, || Input::Revoke(self.times.revoke_grace));
        self.status.assigned(self.partitions.values().map(|handle| handle.shared.clone()));
    }

    fn end_tasks(&self, number: u64, handles: Vec<Handle>, end: impl Fn() -> Input) {
        for handle in &handles {
            let _ = handle.inputs.send(end());
        }
        self.ending.push(Box::pin(async move {
            let mut ended = Vec::new();
            for mut handle in handles {
                // What one had finished that has panicked counts.
                let _ = (&mut handle.task).await;
                ended.extend(handle.moved().is_some().then(|| handle.shared.clone()));
            }
            (number, ended)
        }));
    }

    fn has_ended(&mut self, number: u64, ended: Vec<Arc<Shared>>) {
        let position = |shared: &Arc<Shared>| Some((shared.partition.clone(), shared.position()?));
        self.last.0.extend(ended.iter().filter_map(position));
        self.last.1.push(number);
    }

    /// Notes where the logs end, for the lag that the metrics show.
    fn note_ends<S: Source>(&self, source: &S) {
        for (partition, handle) in &self.partitions {
            if let Some(end) = source.end(partition) {
                handle.shared.end.store(end, Ordering::Relaxed);
            }
        }
    }

    /// Begins a commit of all that has moved, if none is under way.
    fn commit_all(&mut self, committer: &dyn Commit) {
        self.commit_at = Instant::now() + self.times.commit_every;
        if self.commit.is_some() {
            return;
        }
        let mut moved = BTreeMap::new();
        for (partition, handle) in &mut self.partitions {
            if let Some(position) = handle.moved() {
                handle.committed = Some(position.clone());
                moved.insert(partition.clone(), position);
            }
        }
        if !moved.is_empty() {
            self.begin_commit(committer, moved, Vec::new());
        }
    }

    /// Begins the last commit of revoked partitions, if no other commit is under way: of two the later could arrive first.
    fn commit_last(&mut self, committer: &dyn Commit) {
        if self.commit.is_some() || self.last.1.is_empty() {
            return;
        }
        let (positions, revocations) = std::mem::take(&mut self.last);
        self.begin_commit(committer, positions, revocations);
    }

    fn begin_commit(
        &mut self,
        committer: &dyn Commit,
        positions: BTreeMap<TopicPartition, CommittedOffset>,
        revocations: Vec<u64>,
    ) {
        let commit = match positions.is_empty() {
            true => Box::pin(std::future::ready(Ok(BTreeSet::new()))),
            false => committer.commit(positions.clone()),
        };
        self.commit =
            Some(Box::pin(async move { Committed { outcome: commit.await, positions, revocations } }));
    }

    fn committed<S: Source>(&mut self, source: &mut S, done: Committed) {
        match done.outcome {
            Ok(missing) => self.note_missing(done.positions.keys(), &missing),
            Err(error) => {
                tracing::warn!(
                    "positions are not committed: {error}; what they cover runs again after a crash"
                );
                for partition in done.positions.keys() {
                    if let Some(handle) = self.partitions.get_mut(partition) {
                        handle.committed = None;
                    }
                }
            }
        }
        done.revocations.into_iter().for_each(|number| source.finish_revocation(number));
    }

    /// Positions were committed, but those of missing partitions; these are tried again, as their topic may only be news to the
    /// coordinator. They are named once.
    fn note_missing<'a>(
        &mut self,
        committed: impl Iterator<Item = &'a TopicPartition>,
        missing: &BTreeSet<TopicPartition>,
    ) {
        for partition in committed {
            let is_missing = missing.contains(partition);
            let Some(handle) = self.partitions.get_mut(partition) else {
                if is_missing {
                    warn_of_missing(partition);
                }
                continue;
            };
            let was_missing = std::mem::replace(&mut handle.is_missing, is_missing);
            if is_missing {
                handle.committed = None;
                if !was_missing {
                    warn_of_missing(partition);
                }
            }
        }
    }

    /// Ends all tasks, and commits what they have finished.
    async fn stop(&mut self, committer: &dyn Commit) {
        let began = Instant::now();
        let handles = self.partitions.drain().map(|(_, handle)| handle).collect();
        self.end_tasks(0, handles, || Input::Stop(self.times.stop_within));
        // Revocations before it wait for what is being written, which the end of the sink ends.
        let in_time = tokio::time::sleep(self.times.stop_within);
        tokio::pin!(in_time);
        loop {
            tokio::select! {
                ended = self.ending.next() => match ended {
                    Some((number, ended)) => self.has_ended(number, ended),
                    None => break,
                },
                () = &mut in_time => break,
            }
        }
        // Other members get the partitions next: records that were dropped may not be written behind theirs.
        self.sink.close().await;
        while let Some((number, ended)) = self.ending.next().await {
            self.has_ended(number, ended);
        }
        let left = self.times.stop_within.saturating_sub(began.elapsed()).max(LAST_COMMITS);
        if tokio::time::timeout(left, self.commit_at_end(committer)).await.is_err() {
            tracing::warn!(
                "the last positions are not committed within {left:?}; what they cover runs again"
            );
        }
    }

    /// Waits for the commit that is under way, and commits what is left.
    async fn commit_at_end(&mut self, committer: &dyn Commit) {
        if let Some(commit) = self.commit.take() {
            let done = commit.await;
            if let Err(error) = done.outcome {
                tracing::warn!("positions are not committed: {error}");
                // Those of partitions that have moved since are newer.
                done.positions.into_iter().for_each(|(partition, position)| {
                    self.last.0.entry(partition).or_insert(position);
                });
            }
        }
        let positions = std::mem::take(&mut self.last.0);
        if positions.is_empty() {
            return;
        }
        match committer.commit(positions).await {
            Ok(missing) => missing.iter().for_each(warn_of_missing),
            Err(error) => {
                tracing::warn!("the last positions are not committed: {error}; what they cover runs again");
            }
        }
    }
}

fn warn_of_missing(partition: &TopicPartition) {
    tracing::warn!(
        "the position of {partition} is not committed: its topic was deleted, or is another one of that name by now"
    );
}

/// The task of a partition. A panic in it ends the application: otherwise the partition would stop without a message.
async fn watched(
    task: BoxFuture<'static, ()>,
    partition: TopicPartition,
    commands: mpsc::UnboundedSender<Command>,
) {
    if let Err(panic) = AssertUnwindSafe(task).catch_unwind().await {
        let cause = words_of(&*panic).to_owned();
        // A driver that is gone has nothing to end.
        let _ = commands.send(Command::Fail(Error::Panicked { partition, cause }));
    }
}

/// Waits until something else is asked of the application. Nothing more is asked once the other end is gone.
async fn wanted(stops: &mut watch::Receiver<Stop>) -> Stop {
    if stops.changed().await.is_err() {
        std::future::pending::<()>().await;
    }
    *stops.borrow_and_update()
}

/// Waits for a future, for ever if there is none.
async fn ended<T>(under_way: &mut Option<BoxFuture<'static, T>>) -> T {
    match under_way {
        Some(future) => {
            let done = future.await;
            *under_way = None;
            done
        }
        None => std::future::pending().await,
    }
}

#[cfg(all(test, feature = "testing"))]
mod tests {
    use super::*;
    use crate::testing::memory::Memory;

    /// Brokers that are away.
    struct Away;

    impl Commit for Away {
        fn commit(
            &self,
            _: BTreeMap<TopicPartition, CommittedOffset>,
        ) -> BoxFuture<'static, Result<BTreeSet<TopicPartition>, mainstem_client::Error>> {
            Box::pin(std::future::pending())
        }
    }

    fn driver(times: Times) -> Driver {
        let app = Arc::new(AppState::new("a".into()));
        let status = Arc::new(Status::new(app.clone(), Vec::new(), times.stuck_after));
        let sink = Arc::new(Memory::new(app.clone()));
        Driver::new(app, Routes::new(Vec::new()), sink, times, status)
    }

    #[tokio::test(start_paused = true)]
    async fn a_stop_does_not_wait_for_brokers_that_are_away() {
        for (stop_within, takes) in [(30, 30), (1, 5)] {
            let times = Times { stop_within: Duration::from_secs(stop_within), ..Times::default() };
            let mut driver = driver(times);
            let position = |topic: &str| (TopicPartition::new(topic, 0), CommittedOffset::from(7));
            driver.begin_commit(&Away, BTreeMap::from([position("a")]), Vec::new());
            driver.last.0.extend([position("b")]);
            let began = Instant::now();
            driver.stop(&Away).await;
            assert_eq!(began.elapsed().as_secs(), takes);
        }
    }
}
