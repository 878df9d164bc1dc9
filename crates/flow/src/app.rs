//! The application: its routes, where it reads, and how it runs.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use mainstem_client::{
    Admin, ClientConfig, ConsumerConfig, GroupConfig, GroupProtocol, NewTopic, OutOfRange, Position,
    Producer, ProducerConfig, Subscription,
};
use mainstem_lines::OneLine;
use tokio::sync::watch;
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::Instant;

use crate::brokers;
#[cfg(feature = "direct")]
use crate::direct::Publishers;
use crate::driver::{Driver, Routes};
use crate::error::{Error, Result};
use crate::kafka::{KafkaSink, KafkaSource};
use crate::route::{Route, Topics};
use crate::signals::Signals;
use crate::status::Status;
use crate::topics::{self, PartitionLag, TopicPlan};
use crate::watch::Watch;

/// An address that is never connected to.
const NOWHERE: &str = "mem.invalid:1";

/// The addresses that an application may read at.
#[cfg(feature = "direct")]
const READ_AT: &str = "an application reads at kafka://HOST:PORT (brokers), grpc://HOST:PORT (streams of publishers) or mem: (for a \
                       test, by TestApp); a queue directory is read where its publisher serves it (`mainstem direct serve`), and mmap:DIR \
                       takes outputs alone (App::outputs)";
#[cfg(not(feature = "direct"))]
const READ_AT: &str = "an application reads at kafka://HOST:PORT (brokers) or mem: (for a test, by TestApp); grpc://HOST:PORT (streams of \
                       publishers) needs the feature direct of mainstem-flow";
/// The addresses that outputs of streams may go to.
#[cfg(feature = "direct")]
const WRITTEN_AT: &str = "outputs go to kafka://HOST:PORT (brokers) or mmap:DIR (queues in a directory)";

/// Time that a group grants a member beyond the time for its handlers and their writes, before it removes the member.
const GIVE_UP_MARGIN: Duration = Duration::from_secs(60);

/// Changes how outputs and dead letters are written.
type ChangeProducer = Box<dyn Fn(ProducerConfig) -> ProducerConfig + Send + Sync>;

/// Changes how messages are read.
type ChangeConsumer = Box<dyn Fn(ConsumerConfig) -> ConsumerConfig + Send + Sync>;

/// State that the tasks of an application share.
#[derive(Debug)]
pub(crate) struct AppState {
    pub(crate) name: Arc<str>,
    /// Set while the application is quiet: nothing is started then.
    pub(crate) is_quiet: AtomicBool,
    started: Instant,
    started_wall_ms: i64,
}

impl AppState {
    pub(crate) fn new(name: Arc<str>) -> AppState {
        let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let started_wall_ms = i64::try_from(since_1970.as_millis()).unwrap_or(i64::MAX);
        AppState { name, is_quiet: AtomicBool::new(false), started: Instant::now(), started_wall_ms }
    }

    /// Milliseconds of the application's own clock.
    pub(crate) fn now_ms(&self) -> u64 {
        u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    /// Milliseconds since 1970.
    pub(crate) fn wall_ms(&self) -> i64 {
        self.started_wall_ms.saturating_add(i64::try_from(self.now_ms()).unwrap_or(i64::MAX))
    }
}

/// Limits on the time for parts of stopping, and the interval between commits.
#[derive(Debug, Clone)]
pub(crate) struct Times {
    pub(crate) commit_every: Duration,
    pub(crate) revoke_grace: Duration,
    pub(crate) stop_within: Duration,
    pub(crate) stuck_after: Duration,
    pub(crate) unready_after: Duration,
}

impl Default for Times {
    fn default() -> Times {
        Times {
            commit_every: Duration::from_secs(1),
            revoke_grace: Duration::from_secs(10),
            stop_within: Duration::from_secs(30),
            stuck_after: Duration::from_secs(300),
            unready_after: Duration::from_secs(15),
        }
    }
}

/// A service: topics, and what is done with their messages. Its name is the name of its consumer group.
///
/// ```no_run
/// use mainstem_flow::{App, Json, Msg, Route};
///
/// #[derive(serde::Deserialize)]
/// struct Order { id: u64 }
///
/// #[tokio::main]
/// async fn main() -> mainstem_flow::Result {
///     App::new("billing", "kafka://127.0.0.1:9092")?
///         .add(Route::topic("orders", |order: Msg<Json<Order>>| async move { println!("{}", order.id) }))
///         .run().await
/// }
/// ```
#[must_use = "an application does nothing before it runs"]
pub struct App {
    pub(crate) name: Arc<str>,
    client: ClientConfig,
    /// It reads and writes nowhere but in a test.
    pub(crate) is_in_memory: bool,
    protocol: GroupProtocol,
    start: Position,
    session_timeout: Option<Duration>,
    producer: Option<ChangeProducer>,
    consumer: Option<ChangeConsumer>,
    pub(crate) times: Times,
    pub(crate) routes: Vec<Route>,
    http: Option<String>,
    declared: Vec<NewTopic>,
    #[cfg(feature = "direct")]
    publishers: Option<Publishers>,
}

impl App {
    /// Makes an application for a URL:
    ///
    /// - `kafka://HOST:PORT`, or several of them separated by commas: it reads and writes at brokers.
    /// - `grpc://HOST:PORT` (feature `direct`): it reads streams of publishers.
    /// - `mem:`: it runs in a test (`TestApp`).
    ///
    /// # Errors
    /// [`Error::Invalid`] if the name is empty or the URL is none of these.
    pub fn new(name: impl Into<Arc<str>>, url: &str) -> Result<App> {
        let name = name.into();
        if name.is_empty() {
            return Err(Error::Invalid(
                "an application has to have a name: it is that of its group".to_owned(),
            ));
        }
        let is_in_memory = url == "mem:";
        #[cfg(feature = "direct")]
        let publishers = Publishers::of_url(url)?;
        #[cfg(feature = "direct")]
        let has_brokers = !is_in_memory && publishers.is_none();
        #[cfg(not(feature = "direct"))]
        let has_brokers = !is_in_memory;
        let brokers = if has_brokers { brokers_of(url, READ_AT)? } else { NOWHERE };
        let client = ClientConfig::new(brokers)?.client_id(&*name);
        let (protocol, start) = (GroupProtocol::default(), Position::Beginning);
        #[cfg_attr(not(feature = "direct"), expect(unused_mut, reason = "it is changed for publishers"))]
        let (mut times, routes) = (Times::default(), Vec::new());
        #[cfg(feature = "direct")]
        if publishers.is_some() {
            times.commit_every = crate::direct::COMMIT_EVERY;
        }
        Ok(App {
            name,
            client,
            is_in_memory,
            protocol,
            start,
            session_timeout: None,
            producer: None,
            consumer: None,
            times,
            routes,
            http: None,
            declared: Vec::new(),
            #[cfg(feature = "direct")]
            publishers,
        })
    }

    /// Sets the target of outputs and dead letters for an application that reads streams of publishers: `kafka://HOST:PORT`, or queues in a
    /// directory, `mmap:DIR`. Without it neither can be written, and a message that would become a dead letter holds up the position.
    #[cfg(feature = "direct")]
    pub fn outputs(mut self, url: impl Into<String>) -> App {
        if let Some(publishers) = &mut self.publishers {
            publishers.outputs = Some(url.into());
        }
        self
    }

    /// Changes the connection to publishers, for example to TLS.
    #[cfg(feature = "direct")]
    pub fn publisher(mut self, change: impl Fn(mainstem_direct::Address) -> mainstem_direct::Address) -> App {
        if let Some(publishers) = &mut self.publishers {
            publishers.change_addresses(change);
        }
        self
    }

    /// Changes how streams of publishers are read, for example through a filter.
    #[cfg(feature = "direct")]
    pub fn subscription(
        mut self,
        change: impl Fn(mainstem_direct::ConsumerConfig) -> mainstem_direct::ConsumerConfig
        + Send
        + Sync
        + 'static,
    ) -> App {
        if let Some(publishers) = &mut self.publishers {
            publishers.change = Some(Arc::new(change));
        }
        self
    }

    /// Declares a topic: [`App::plan`] compares it with what the brokers have. [`App::run`] creates nothing.
    pub fn declare(mut self, topic: NewTopic) -> App {
        self.declared.push(topic);
        self
    }

    /// Compares the declared topics with those of the brokers.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a topic that is declared twice; why the brokers cannot be asked.
    pub async fn plan(&self) -> Result<TopicPlan> {
        self.check_brokers()?;
        topics::check(&self.declared)?;
        TopicPlan::make(Admin::new(self.client.clone()), &self.declared).await
    }

    /// Returns the lag of the group in all partitions of its named topics, and in those that it has committed offsets for.
    ///
    /// # Errors
    /// Why the brokers cannot be asked.
    pub async fn lag(&self) -> Result<Vec<PartitionLag>> {
        self.check_brokers()?;
        topics::lag(&Admin::new(self.client.clone()), &self.name, &named_topics(&self.routes)).await
    }

    /// With a further route.
    #[expect(
        clippy::should_implement_trait,
        reason = "an application is no number, and `+` would say nothing"
    )]
    pub fn add(mut self, route: Route) -> App {
        self.routes.push(route);
        self
    }

    /// Sets the position in a partition for which the group has committed nothing. The beginning by default.
    pub fn start_at(mut self, position: Position) -> App {
        self.start = position;
        self
    }

    /// Sets the protocol by which processes share the partitions. [`GroupProtocol::Classic`] by default.
    pub fn protocol(mut self, protocol: GroupProtocol) -> App {
        self.protocol = protocol;
        self
    }

    /// Sets the session timeout: if the group receives no heartbeat of a process for this time, its partitions go to others. 45 s by
    /// default; with the consumer protocol the brokers set it.
    pub fn session_timeout(mut self, time: Duration) -> App {
        self.session_timeout = Some(time);
        self
    }

    /// How to connect, instead of the usual settings.
    pub fn client(mut self, change: impl FnOnce(ClientConfig) -> ClientConfig) -> App {
        self.client = change(self.client);
        self
    }

    /// Changes the settings by which outputs and dead letters are written. The defaults are those of [`ProducerConfig::new`], but with
    /// records of up to 32 MiB. A larger record needs a larger `request_bytes_max`, and as many `buffer_bytes`.
    pub fn producer(
        mut self,
        change: impl Fn(ProducerConfig) -> ProducerConfig + Send + Sync + 'static,
    ) -> App {
        self.producer = Some(Box::new(change));
        self
    }

    /// Changes the settings by which messages are read from brokers. The defaults are those of [`ConsumerConfig::new`]; changed are, for
    /// example, `isolation` (committed records alone), or how much is fetched and read ahead. A position that the log does not have moves
    /// to its beginning, whatever `out_of_range` says, and the connection is that of [`App::client`].
    pub fn consumer(
        mut self,
        change: impl Fn(ConsumerConfig) -> ConsumerConfig + Send + Sync + 'static,
    ) -> App {
        self.consumer = Some(Box::new(change));
        self
    }

    /// Sets the interval between commits of positions. 1 s by default.
    pub fn commit_every(mut self, time: Duration) -> App {
        self.times.commit_every = time;
        self
    }

    /// Sets the time that handlers have to end when their partition is revoked, at most 24 days; then they are dropped. 10 s by default.
    /// Records that handlers have given to the producer by then are still awaited: otherwise they would be written behind those of the next
    /// owner. The group waits for all of that.
    pub fn revoke_grace(mut self, time: Duration) -> App {
        self.times.revoke_grace = time;
        self
    }

    /// Sets the time that handlers have to end when the application stops, at most 24 days; then they are dropped. 30 s by default. The
    /// group keeps the partitions for the process until then.
    pub fn stop_within(mut self, time: Duration) -> App {
        self.times.stop_within = time;
        self
    }

    /// `/live` fails when a partition has made no progress for so long, without an outage. 5 min by default.
    pub fn stuck_after(mut self, time: Duration) -> App {
        self.times.stuck_after = time;
        self
    }

    /// `/ready` fails when no broker has answered for so long; `/live` does not, as a restart would not help. 15 s by default.
    pub fn unready_after(mut self, time: Duration) -> App {
        self.times.unready_after = time;
        self
    }

    /// Serves `/live`, `/ready` and `/metrics` at this address, such as `127.0.0.1:8080`. Not served by default.
    pub fn http(mut self, address: impl Into<String>) -> App {
        self.http = Some(address.into());
        self
    }

    /// Runs until it is stopped by SIGTERM or SIGINT: work under way is finished, committed, and the group is left. A second
    /// signal ends it at once, with 2.
    ///
    /// # Errors
    /// [`Error::Invalid`] where routes cannot work together, or an error after which it cannot continue.
    pub async fn run(self) -> Result {
        let mut signals = Signals::new()?;
        let running = self.start()?;
        let (status, stop) = (running.status.clone(), running.stop.clone());
        let heeding = tokio::spawn(async move { signals.heed(&stop, &status).await });
        let ended = running.wait().await;
        heeding.abort();
        ended
    }

    /// Runs in the background, and leaves signals alone.
    ///
    /// # Errors
    /// [`Error::Invalid`] where routes cannot work together.
    ///
    /// # Panics
    /// Outside of a tokio runtime.
    #[cfg_attr(not(feature = "direct"), expect(unused_mut, reason = "publishers are taken out of it"))]
    pub fn start(mut self) -> Result<Running> {
        check_routes(&self.name, &self.routes)?;
        if self.is_in_memory {
            return Err(Error::Invalid("an application at mem: is for tests; give it to TestApp".to_owned()));
        }
        #[cfg(feature = "direct")]
        if let Some(publishers) = self.publishers.take() {
            return self.start_direct(&publishers);
        }
        let state = Arc::new(AppState::new(self.name.clone()));
        let source = KafkaSource::new(self.group())?;
        let sink = Arc::new(KafkaSink::new(self.sink(&self.client)?, Admin::new(self.client.clone())));
        let (stop, stops) = watch::channel(Stop::No);
        let topics = named_topics(&self.routes);
        let routes = Routes::new(self.routes);
        let status = Arc::new(Status::new(state.clone(), routes.states(), self.times.stuck_after));
        let asking = brokers::look_after(self.client.clone(), self.times.unready_after, status.clone());
        let driver = Driver::new(state, routes, sink, self.times, status.clone());
        let look_every = self.client.metadata_max_age;
        let (http, admin, served) = (self.http, Admin::new(self.client), status.clone());
        let watched = status.clone();
        let task = tokio::spawn(async move {
            let _serving = match http {
                Some(address) => Some(crate::http::serve(&address, served).await?),
                None => None,
            };
            let _watch = Watch::start(watched);
            let mut looking = JoinSet::new();
            looking.spawn(look_after(admin, topics, look_every));
            looking.spawn(asking);
            driver.run(source, stops).await
        });
        Ok(Running { stop, status, task })
    }

    /// Starts the application over streams of publishers.
    #[cfg(feature = "direct")]
    fn start_direct(self, publishers: &Publishers) -> Result<Running> {
        use crate::direct::{DirectSource, NoSink, QueueSink};
        if self.routes.iter().any(|route| matches!(route.topics, Topics::Pattern(_))) {
            let reason = "a pattern of topics needs brokers; name the streams of publishers (Route::topic)";
            return Err(Error::Invalid(reason.to_owned()));
        }
        let sink: Arc<dyn crate::transport::Sink> = match &publishers.outputs {
            None => Arc::new(NoSink),
            Some(url) => match url.strip_prefix("mmap:") {
                Some(directory) => Arc::new(QueueSink::new(directory)),
                None => {
                    let client = ClientConfig::new(brokers_of(url, WRITTEN_AT)?)?.client_id(&*self.name);
                    Arc::new(KafkaSink::new(self.sink(&client)?, Admin::new(client)))
                }
            },
        };
        let source = DirectSource::new(&self.name, publishers, &named_topics(&self.routes), self.start)?;
        let state = Arc::new(AppState::new(self.name.clone()));
        let (stop, stops) = watch::channel(Stop::No);
        let routes = Routes::new(self.routes);
        let status = Arc::new(Status::new(state.clone(), routes.states(), self.times.stuck_after));
        let driver = Driver::new(state, routes, sink, self.times, status.clone());
        let (http, served, watched) = (self.http, status.clone(), status.clone());
        let task = tokio::spawn(async move {
            let _serving = match http {
                Some(address) => Some(crate::http::serve(&address, served).await?),
                None => None,
            };
            let _watch = Watch::start(watched);
            driver.run(source, stops).await
        });
        Ok(Running { stop, status, task })
    }

    /// Refuses to ask brokers where there are none.
    fn check_brokers(&self) -> Result {
        #[cfg(feature = "direct")]
        if self.publishers.is_some() {
            let reason =
                "the application reads streams of publishers; `mainstem direct lag URL` looks at those";
            return Err(Error::Invalid(reason.to_owned()));
        }
        Ok(())
    }

    /// Makes the producer of outputs and dead letters.
    fn sink(&self, client: &ClientConfig) -> Result<Producer> {
        Ok(Producer::new(self.producer_config(client))?)
    }

    fn producer_config(&self, client: &ClientConfig) -> ProducerConfig {
        // A letter may be as large as the largest message that was read. The topic, and not the producer, decides what is too large.
        let usual = ProducerConfig::new(client.clone());
        let config = ProducerConfig { request_bytes_max: usual.buffer_bytes, ..usual };
        self.producer.iter().fold(config, |config, change| change(config))
    }

    /// Returns the time that the group has to wait for a member that stops or has to give up partitions. It covers the time of its handlers,
    /// and that of the records that they have given to the producer.
    fn give_up_limit(&self) -> Duration {
        let of_handlers = self.times.revoke_grace.max(self.times.stop_within);
        let of_writes = self.producer_config(&self.client).delivery_timeout;
        of_handlers.saturating_add(of_writes).saturating_add(GIVE_UP_MARGIN)
    }

    /// Returns the settings of its group membership.
    fn group(&self) -> GroupConfig {
        let usual = ConsumerConfig::new(self.client.clone());
        let consumer = ConsumerConfig {
            // If the log was cut, reading resumes at its beginning, and the window notices that.
            out_of_range: OutOfRange::Beginning,
            client: self.client.clone(),
            ..self.consumer.iter().fold(usual, |config, change| change(config))
        };
        let usual = GroupConfig::new(self.name.clone(), [""; 0], consumer);
        let session_timeout = self.session_timeout.unwrap_or(usual.session_timeout);
        GroupConfig {
            session_timeout,
            heartbeat_interval: usual.heartbeat_interval.min(session_timeout / 3),
            max_poll_interval: usual.max_poll_interval.max(self.give_up_limit()),
            subscription: subscription(&self.routes),
            protocol: self.protocol.clone(),
            start: self.start,
            auto_commit: None,
            ..usual
        }
    }
}

/// The brokers that a URL names. `known` says which addresses there are, for people.
pub(crate) fn brokers_of<'a>(url: &'a str, known: &str) -> Result<&'a str> {
    url.strip_prefix("kafka://")
        .ok_or_else(|| Error::Invalid(format!("{url:?} is no address of messages; {known}")))
}

/// The topics of all routes; as one pattern if one of them is.
fn subscription(routes: &[Route]) -> Subscription {
    let named = named_topics(routes);
    let patterns: Vec<String> = routes
        .iter()
        .filter_map(|route| match &route.topics {
            // A group of the consumer protocol matches whole names by itself, and knows no anchors within.
            Topics::Pattern(_) => Some(format!("({})", route.name())),
            Topics::Named(_) => None,
        })
        .collect();
    if patterns.is_empty() {
        return Subscription::Topics(named.into_iter().map(Into::into).collect());
    }
    let named = named.iter().map(|topic| regex::escape(topic));
    Subscription::Pattern(named.chain(patterns).collect::<Vec<_>>().join("|").into())
}

fn named_topics(routes: &[Route]) -> Vec<String> {
    let named = routes.iter().filter_map(|route| match &route.topics {
        Topics::Named(topic) => Some(topic.clone()),
        Topics::Pattern(_) => None,
    });
    named.collect()
}

/// Refuses routes that cannot work, or not together.
pub(crate) fn check_routes(app: &str, routes: &[Route]) -> Result {
    if routes.is_empty() {
        return Err(Error::Invalid(format!("application {app} has no route; add one (App::add)")));
    }
    routes.iter().try_for_each(|route| route.check(app))?;
    let named = named_topics(routes);
    for (index, topic) in named.iter().enumerate() {
        if named[..index].contains(topic) {
            let reason =
                format!("two routes of application {app} read topic {topic}; a message goes to one handler");
            return Err(Error::Invalid(reason));
        }
    }
    let is_read = |letters: &&String| {
        let by_pattern =
            |route: &Route| matches!(&route.topics, Topics::Pattern(pattern) if pattern.is_match(letters));
        named.contains(letters) || routes.iter().any(by_pattern)
    };
    match routes.iter().filter_map(|route| route.settings.letters.as_ref()).find(is_read) {
        Some(letters) => Err(Error::Invalid(format!(
            "dead letters would go to {letters}, which application {app} reads; name another topic (Route::dead_letters)"
        ))),
        None => Ok(()),
    }
}

/// Logs which topics are missing: their routes wait. Afterwards it watches the topics for added partitions, which move keys.
async fn look_after(admin: Admin, topics: Vec<String>, every: Duration) {
    let mut known: BTreeMap<String, usize> = BTreeMap::new();
    for topic in &topics {
        let shown = OneLine(topic);
        match admin.find_topic(topic).await {
            Ok(None) => tracing::warn!("topic {shown} does not exist; its route waits until it is created"),
            Err(error) => tracing::warn!("cannot find out whether topic {shown} exists: {error}"),
            Ok(Some(found)) => {
                tracing::debug!("topic {shown} has {} partitions", found.partitions.len());
                known.insert(topic.clone(), found.partitions.len());
            }
        }
    }
    loop {
        tokio::time::sleep(every).await;
        for topic in &topics {
            // A lookup that fails is repeated in the next round.
            let Ok(Some(found)) = admin.find_topic(topic).await else { continue };
            let now = found.partitions.len();
            let before = known.insert(topic.clone(), now).unwrap_or(now);
            if before < now {
                tracing::warn!(
                    "topic {} has {now} partitions instead of {before}: messages of a key may go to another one than \
                     those before them, and be handled before those",
                    OneLine(topic)
                );
            }
        }
    }
}

/// The stop or pause that is asked of an application.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stop {
    No,
    /// It starts nothing, and stays in its group.
    Quiet,
    /// Handlers that run have `stop_within` to end.
    Orderly,
}

/// Asks for something, unless the application stops already.
pub(crate) fn change(stop: &watch::Sender<Stop>, to: Stop) {
    stop.send_if_modified(|now| {
        let changes = *now != Stop::Orderly && *now != to;
        if changes {
            *now = to;
        }
        changes
    });
}

/// An application that runs in the background. It keeps running when this is dropped.
#[derive(Debug)]
pub struct Running {
    stop: watch::Sender<Stop>,
    status: Arc<Status>,
    task: JoinHandle<Result>,
}

impl Running {
    /// Finishes work under way, commits, leaves the group, and waits for that.
    ///
    /// # Errors
    /// Why the application had ended before.
    pub async fn stop(self) -> Result {
        let _ = self.stop.send(Stop::Orderly);
        self.wait().await
    }

    /// Starts no message until [`Running::resume`]. Handlers that run continue, and the partitions stay with this process. SIGTSTP does the
    /// same to [`App::run`].
    pub fn quiet(&self) {
        change(&self.stop, Stop::Quiet);
    }

    /// Ends [`Running::quiet`], as SIGCONT does.
    pub fn resume(&self) {
        change(&self.stop, Stop::No);
    }

    /// Waits until the application ends.
    ///
    /// # Errors
    /// Why it has ended, if it was not asked to.
    pub async fn wait(self) -> Result {
        // The sender is kept: without it the application would stop.
        let ended = self.task.await;
        drop(self.stop);
        ended.unwrap_or_else(|error| match error.try_into_panic() {
            Ok(panic) => std::panic::resume_unwind(panic),
            Err(_) => Ok(()),
        })
    }

    /// Returns the application's status: its state, whether it has its partitions, whether it makes progress.
    pub fn status(&self) -> &Status {
        &self.status
    }
}

impl fmt::Debug for App {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("App").field("name", &self.name).field("routes", &self.routes).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Msg, Text};

    fn route(topic: &str) -> Route {
        Route::topic(topic, |_: Msg<Text>| async {})
    }

    #[tokio::test]
    async fn what_cannot_work_is_refused() {
        let app = || App::new("billing", "kafka://127.0.0.1:9092").unwrap();
        let pattern = Route::pattern("dlq\\..*", |_: Msg<Text>| async {});
        for (app, reason) in [
            (app(), "has no route"),
            (
                app().add(route("orders")).add(route("orders")),
                "two routes of application billing read topic orders",
            ),
            (app().add(route("orders").dead_letters("orders")), "which the route reads itself"),
            (
                app().add(route("orders").dead_letters("moves")).add(route("moves")),
                "which application billing reads",
            ),
            (app().add(pattern.dead_letters("dlq.all")), "which the route reads itself"),
            (
                app()
                    .add(route("orders").dead_letters("all.dlq"))
                    .add(Route::pattern("all\\..*", |_: Msg<Text>| async {})),
                "dead letters would go to all.dlq, which application billing reads",
            ),
            (
                app().add(Route::pattern("a(", |_: Msg<Text>| async {})),
                "the pattern of topics \"a(\" is none",
            ),
            (app().add(route("")), "has to name a topic"),
            (
                App::new("billing service", "kafka://a:1").unwrap().add(route("orders")),
                "would go to dlq.billing service.orders, which is no name of a topic",
            ),
            (
                App::new("team/billing", "kafka://a:1")
                    .unwrap()
                    .add(Route::pattern("eu\\..*", |_: Msg<Text>| async {})),
                "would go to dlq.team/billing.TOPIC, which is no name of a topic",
            ),
            (app().add(route(&"o".repeat(240))), "which is no name of a topic"),
            (app().add(route("orders").dead_letters("letters of orders")), "which is no name of a topic"),
        ] {
            let refused = app.start().unwrap_err().to_string();
            assert!(refused.contains(reason), "{refused}");
        }
        assert!(App::new("", "kafka://a:1").is_err());
    }

    #[tokio::test]
    async fn an_address_that_is_none_names_all_that_there_are() {
        for url in ["http://a:1", "mmap:/var/lib/cart", "a:9092", ""] {
            let refused = App::new("billing", url).unwrap_err().to_string();
            for scheme in ["kafka://HOST:PORT", "grpc://HOST:PORT", "mem:", "mmap:DIR"] {
                assert!(refused.contains(scheme), "{url}: {refused}");
            }
        }
        let app = App::new("billing", "grpc://127.0.0.1:1").unwrap().outputs("/var/lib").add(route("cart"));
        let refused = app.start().unwrap_err().to_string();
        assert!(refused.contains("kafka://HOST:PORT") && refused.contains("mmap:DIR"), "{refused}");
    }

    #[test]
    fn an_odd_name_may_have_letters_with_another() {
        let app = App::new("billing service", "kafka://a:1").unwrap();
        let app = app.add(route("orders").dead_letters("orders.dlq"));
        check_routes(&app.name, &app.routes).unwrap();
        check_routes("billing", &[route(&"o".repeat(249 - "dlq.billing.".len()))]).unwrap();
    }

    #[test]
    fn a_group_waits_for_handlers_and_writes_of_a_member_that_leaves() {
        let app = || App::new("billing", "kafka://a:1").unwrap().add(route("orders"));
        let secs = Duration::from_secs;
        assert_eq!(app().group().max_poll_interval, secs(300), "the usual one");
        let slow = app().revoke_grace(secs(600)).stop_within(secs(900)).group();
        assert_eq!(slow.max_poll_interval, secs(900 + 120 + 60));
        let slow = app().revoke_grace(secs(3_600)).group();
        assert_eq!(slow.max_poll_interval, secs(3_600 + 120 + 60));
        let writes = move |config| ProducerConfig { delivery_timeout: secs(600), ..config };
        assert_eq!(app().producer(writes).group().max_poll_interval, secs(30 + 600 + 60));
    }

    #[tokio::test]
    async fn times_beyond_the_protocols_range_are_refused() {
        let app = App::new("billing", "kafka://127.0.0.1:9092").unwrap().add(route("orders"));
        let refused = app.stop_within(Duration::MAX).start().unwrap_err().to_string();
        assert!(refused.contains("at most 24 days"), "{refused}");
    }

    #[test]
    fn a_pattern_subscribes_with_the_named_topics() {
        let pattern = Route::pattern("eu\\..*", |_: Msg<Text>| async {});
        let Subscription::Pattern(all) = subscription(&[route("a.b"), pattern]) else { panic!("it is one") };
        assert_eq!(&*all, "a\\.b|(eu\\..*)");
    }
}
