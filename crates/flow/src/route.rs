//! Routes: topics, and the handler of their messages.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use regex::Regex;

use crate::attempt::{Others, handle_batch, handle_one};
use crate::batches::Batch;
use crate::cx::Cx;
use crate::error::Error;
use crate::filter::{Filter, Throttle};
use crate::handler::Handler;
use crate::judge::{Judge, Retry};
use crate::letter;
use crate::message::{Msg, Received};
use crate::metrics::RouteMetrics;
use crate::payload::Payload;
use crate::runner::{self, Dispatch, Partition};
use crate::transport::BoxFuture;
use crate::window::MESSAGES_MAX;

/// Bytes of a topic's name at most.
const TOPIC_BYTES_MAX: usize = 249;

/// Number of messages of a partition that are handled at a time by default.
const CONCURRENCY: usize = 32;

/// The topics of a route.
#[derive(Debug, Clone)]
pub(crate) enum Topics {
    Named(String),
    /// Matches whole names.
    Pattern(Regex),
}

/// Settings of a route.
pub(crate) struct Settings {
    pub(crate) concurrency: usize,
    pub(crate) retry: Retry,
    pub(crate) time_limit: Option<Duration>,
    /// The topic of its dead letters, if it is not the usual one.
    pub(crate) letters: Option<String>,
    pub(crate) filters: Vec<Filter>,
}

/// A route while the application runs.
pub(crate) struct RouteState {
    /// The topic's name, or the pattern.
    pub(crate) name: String,
    pub(crate) settings: Settings,
    pub(crate) judge: Mutex<Judge>,
    pub(crate) throttle: Option<Mutex<Throttle>>,
    pub(crate) metrics: RouteMetrics,
}

impl RouteState {
    /// Returns the topic of dead letters for a topic.
    pub(crate) fn letters(&self, group: &str, topic: &str) -> String {
        self.settings.letters.clone().unwrap_or_else(|| letter::topic(group, topic))
    }
}

/// Runs the handler over one partition.
pub(crate) type RunPartition = Arc<dyn Fn(Partition) -> BoxFuture<'static, ()> + Send + Sync>;

/// Topics, their handler, and how it is run.
///
/// ```
/// use mainstem_flow::{Json, Msg, Retry, Route};
/// use std::time::Duration;
///
/// #[derive(serde::Deserialize)]
/// struct Order { id: u64 }
///
/// let route = Route::topic("orders", |order: Msg<Json<Order>>| async move { println!("{}", order.id) });
/// let route = route.concurrency(256).retry(Retry::exponential(200, 30_000).attempts(8));
/// let route = route.expire_after(Duration::from_secs(24 * 3600)).throttle(5_000);
/// ```
#[must_use = "a route does nothing before it is added to an application"]
pub struct Route {
    pub(crate) topics: Topics,
    pub(crate) settings: Settings,
    pub(crate) throttle: Option<u32>,
    pub(crate) run: RunPartition,
    /// Why it cannot work.
    pub(crate) refusal: Option<String>,
}

impl Route {
    fn new(topics: Topics, run: RunPartition) -> Route {
        let settings = Settings {
            concurrency: CONCURRENCY,
            retry: Retry::default(),
            time_limit: None,
            letters: None,
            filters: Vec::new(),
        };
        Route { topics, settings, throttle: None, run, refusal: None }
    }

    /// Handles the messages of a topic one by one: those of a key by offset, others side by side.
    pub fn topic<P, H, M>(topic: impl Into<String>, handler: H) -> Route
    where
        P: Payload,
        H: Handler<Msg<P>, Cx, M>,
        M: 'static,
    {
        Route::new(Topics::Named(topic.into()), one_by_one(handler))
    }

    /// The same of all topics whose whole name matches a pattern, those that come later too. Topics of dead letters of the same
    /// application (`dlq.APPLICATION.*`) are left out; those of others are topics as any.
    pub fn pattern<P, H, M>(pattern: &str, handler: H) -> Route
    where
        P: Payload,
        H: Handler<Msg<P>, Cx, M>,
        M: 'static,
    {
        let (topics, refusal) = match Regex::new(&format!("^(?:{pattern})$")) {
            Ok(pattern) => (Topics::Pattern(pattern), None),
            Err(error) => {
                let reason = format!("the pattern of topics {pattern:?} is none: {error}");
                (Topics::Named(pattern.to_owned()), Some(reason))
            }
        };
        Route { refusal, ..Route::new(topics, one_by_one(handler)) }
    }

    /// Handles the messages of a topic together: up to `max` of a partition by offset, fewer when the first has waited for `linger`. One
    /// batch of a partition runs at a time.
    ///
    /// A failing message blocks its whole partition until it is a dead letter. [`Fault::poison`](crate::Fault::poison) makes it one at
    /// once. Otherwise it is one after its attempts, if others of the route succeed meanwhile (not those of its own partition, which are
    /// blocked), or after [`Retry::give_up_after_ms`], 15 min by default.
    pub fn batches<P, H, M>(topic: impl Into<String>, max: usize, linger: Duration, handler: H) -> Route
    where
        P: Payload,
        H: Handler<Batch<P>, Cx, M>,
        M: 'static,
    {
        let handler = Arc::new(handler);
        let max = max.clamp(1, MESSAGES_MAX);
        let run: RunPartition = Arc::new(move |partition: Partition| {
            let (handler, limit) = (handler.clone(), partition.route.settings.time_limit);
            Box::pin(async move {
                let handler = &*handler;
                let start = |first: Received, others: Others, cx: Cx, slot: u16| {
                    handle_batch::<P, H, M>(handler, first, others, cx, slot, limit)
                };
                runner::run(partition, Dispatch::together(max, linger, start)).await;
            })
        });
        Route::new(Topics::Named(topic.into()), run)
    }

    /// At most so many messages of a partition are handled at a time; 1 to 1,024, 32 by default.
    pub fn concurrency(mut self, concurrency: usize) -> Route {
        self.settings.concurrency = concurrency.clamp(1, MESSAGES_MAX);
        self
    }

    /// Sets the retries of failed messages.
    pub fn retry(mut self, retry: Retry) -> Route {
        self.settings.retry = retry;
        self
    }

    /// An attempt that takes longer has failed; it is dropped at an await. No limit by default.
    pub fn time_limit(mut self, limit: Duration) -> Route {
        self.settings.time_limit = Some(limit);
        self
    }

    /// Dead letters go to this topic. `dlq.APPLICATION.TOPIC` by default.
    pub fn dead_letters(mut self, topic: impl Into<String>) -> Route {
        self.settings.letters = Some(topic.into());
        self
    }

    /// Messages whose timestamp is older than this are left out, and counted as filtered.
    pub fn expire_after(self, age: Duration) -> Route {
        self.filter_by(Filter::expire_after(age))
    }

    /// Messages wait until their timestamp is so old; those behind them wait too.
    pub fn minimum_age(self, age: Duration) -> Route {
        self.filter_by(Filter::minimum_age(age))
    }

    /// Only messages pass for which this returns true; the others are left out, and counted as filtered. If it panics, the message is a
    /// dead letter.
    pub fn filter(self, passes: impl Fn(&Received) -> bool + Send + Sync + 'static) -> Route {
        self.filter_by(Filter::own(passes))
    }

    /// Handles at most so many messages a second in this process, 1 or more; the others wait. Time counts by the millisecond: the messages
    /// of a tenth of a second, saved up, may come together.
    pub fn throttle(mut self, per_second: u32) -> Route {
        self.throttle = Some(per_second.max(1));
        self
    }

    fn filter_by(mut self, filter: Filter) -> Route {
        self.settings.filters.push(filter);
        self
    }

    /// The topic's name, or the pattern.
    pub(crate) fn name(&self) -> String {
        match &self.topics {
            Topics::Named(topic) => topic.clone(),
            Topics::Pattern(pattern) => {
                let text = pattern.as_str();
                let inner = text.strip_prefix("^(?:").and_then(|text| text.strip_suffix(")$"));
                inner.unwrap_or(text).to_owned()
            }
        }
    }

    /// Returns the topic of its dead letters, for people: a pattern has a topic for each of its topics.
    pub(crate) fn letters(&self, app: &str) -> String {
        let source = if matches!(self.topics, Topics::Pattern(_)) { "TOPIC".to_owned() } else { self.name() };
        self.settings.letters.clone().unwrap_or_else(|| letter::topic(app, &source))
    }

    /// Splits the route into its topics, its function, and its state while the application runs.
    pub(crate) fn into_running(self) -> (Topics, RunPartition, Arc<RouteState>) {
        let state = RouteState {
            name: self.name(),
            judge: Mutex::new(Judge::new(self.settings.retry)),
            throttle: self.throttle.map(|per_second| Mutex::new(Throttle::new(per_second))),
            metrics: RouteMetrics::default(),
            settings: self.settings,
        };
        (self.topics, self.run, Arc::new(state))
    }

    /// Refuses what cannot work.
    pub(crate) fn check(&self, app: &str) -> Result<(), Error> {
        if let Some(refusal) = &self.refusal {
            return Err(Error::Invalid(refusal.clone()));
        }
        match (&self.topics, &self.settings.letters) {
            (Topics::Named(topic), _) if topic.is_empty() => {
                Err(Error::Invalid("a route has to name a topic".to_owned()))
            }
            (Topics::Named(topic), _) => {
                let letters = self.letters(app);
                is_topic(topic, &letters)?;
                is_no_source(topic, &letters, *topic == letters)
            }
            (Topics::Pattern(pattern), letters) => {
                is_topic(&self.name(), &self.letters(app))?;
                let is_source = letters.as_ref().is_some_and(|letters| pattern.is_match(letters));
                is_no_source(&self.name(), &self.letters(app), is_source)
            }
        }
    }
}

/// Refuses a topic of dead letters that no broker would create: the first letter would wait for ever.
fn is_topic(topics: &str, letters: &str) -> Result<(), Error> {
    let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    match letters.len() <= TOPIC_BYTES_MAX && !letters.is_empty() && letters.bytes().all(is_allowed) {
        true => Ok(()),
        false => Err(Error::Invalid(format!(
            "dead letters of route {topics} would go to {letters}, which is no name of a topic (1 to {TOPIC_BYTES_MAX} of \
             A-Z, a-z, 0-9, ., _ and -); name another topic (Route::dead_letters), or the application otherwise"
        ))),
    }
}

fn is_no_source(topics: &str, letters: &str, is_source: bool) -> Result<(), Error> {
    match is_source {
        false => Ok(()),
        true => Err(Error::Invalid(format!(
            "dead letters of route {topics} would go to {letters}, which the route reads itself; name another topic \
             (Route::dead_letters)"
        ))),
    }
}

fn one_by_one<P, H, M>(handler: H) -> RunPartition
where
    P: Payload,
    H: Handler<Msg<P>, Cx, M>,
    M: 'static,
{
    let handler = Arc::new(handler);
    Arc::new(move |partition: Partition| {
        let (handler, limit) = (handler.clone(), partition.route.settings.time_limit);
        Box::pin(async move {
            let handler = &*handler;
            let start = |one: Received, _: Others, cx: Cx, slot: u16| {
                handle_one::<P, H, M>(handler, one, cx, slot, limit)
            };
            runner::run(partition, Dispatch::alone(start)).await;
        })
    })
}

impl fmt::Debug for Route {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Route").field("topics", &self.topics).finish_non_exhaustive()
    }
}
