//! Loads for measuring handlers, as a process of their own; `mainstem-bench handlers` runs it beside its peers.
//!
//! ```text
//! handler_load fill      --url U --topic T --records N [--keys K] [--bytes B]
//! handler_load flow      --url U --topics T,T --records N [--concurrency C] [--wait-us W]
//! handler_load bare      --url U --topics T,T --records N
//! handler_load latency   --url U --rate R --seconds S [--keys K] [--failing-key] [--bare]
//! handler_load rebalance --url U --seconds S [--consumer-protocol]
//! handler_load boot      --url U [--consumer-protocol]
//! ```
//! Each prints one line of JSON. What is read is checked: each record carries its number, and the sum of the numbers is printed.

// Its purpose is a line on standard output.
#![allow(clippy::print_stdout)]

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use hdrhistogram::Histogram;
use mainstem_client::{
    Admin, ClientConfig, ConsumerConfig, GroupConfig, GroupConsumer, GroupProtocol, NewTopic, Position,
    Producer, ProducerConfig, Record,
};
use mainstem_flow::{App, Fault, Msg, Raw, Retry, Route, Running, slice_of};
use parking_lot::Mutex;
use tokio::sync::Notify;

/// Bytes of a value: its number, when it was due and when it was appended, then filler.
const HEAD_BYTES: usize = 24;

/// The largest latency that is recorded; a longer one counts as this.
const LATENCY_NS_MAX: u64 = 60_000_000_000;

#[tokio::main]
async fn main() -> Result<()> {
    let mut words = std::env::args().skip(1);
    let mode = words.next().context("name a load: fill, flow, bare, latency, rebalance, boot")?;
    let options = Options::parse(words)?;
    let figures = match mode.as_str() {
        "fill" => fill(&options).await?,
        "flow" => flow(&options).await?,
        "bare" => bare(&options).await?,
        "latency" => latency(&options).await?,
        "rebalance" => rebalance(&options).await?,
        "boot" => boot(&options).await?,
        other => bail!("there is no load {other}: take fill, flow, bare, latency, rebalance or boot"),
    };
    println!("{}", serde_json::to_string(&figures)?);
    Ok(())
}

type Figures = HashMap<&'static str, f64>;

/// `--name value`, and names alone.
struct Options(HashMap<String, String>);

impl Options {
    fn parse(words: impl Iterator<Item = String>) -> Result<Options> {
        let (mut options, mut words) = (HashMap::new(), words.peekable());
        while let Some(word) = words.next() {
            let name = word.strip_prefix("--").with_context(|| format!("{word} is no option"))?;
            let value = words.next_if(|next| !next.starts_with("--")).unwrap_or_default();
            options.insert(name.to_owned(), value);
        }
        Ok(Options(options))
    }

    fn text(&self, name: &str) -> Result<&str> {
        self.0.get(name).map(String::as_str).with_context(|| format!("--{name} is missing"))
    }

    fn number(&self, name: &str, otherwise: u64) -> Result<u64> {
        let text = self.0.get(name);
        text.map_or(Ok(otherwise), |text| text.parse().with_context(|| format!("--{name} takes a number")))
    }

    fn has(&self, name: &str) -> bool {
        self.0.contains_key(name)
    }

    fn url(&self) -> Result<&str> {
        self.text("url")
    }

    fn client(&self) -> Result<ClientConfig> {
        let brokers = self.url()?.strip_prefix("kafka://").context("--url takes kafka://HOST:PORT")?;
        Ok(ClientConfig::new(brokers)?)
    }

    fn protocol(&self) -> GroupProtocol {
        match self.has("consumer-protocol") {
            true => GroupProtocol::Consumer { assignor: None },
            false => GroupProtocol::default(),
        }
    }

    fn topics(&self) -> Result<Vec<String>> {
        Ok(self.text("topics")?.split(',').map(str::to_owned).collect())
    }
}

/// The first fields of a value; times in nanoseconds of [`now_ns`].
#[derive(Clone, Copy, Default)]
struct Head {
    number: u64,
    due_ns: u64,
    appended_ns: u64,
}

fn value(head: Head, bytes: usize) -> Vec<u8> {
    let mut value = vec![b'.'; bytes.max(HEAD_BYTES)];
    let fields = [head.number, head.due_ns, head.appended_ns];
    for (place, field) in value.chunks_exact_mut(8).zip(fields) {
        place.copy_from_slice(&field.to_be_bytes());
    }
    value
}

fn head(value: &[u8]) -> Head {
    let field = |index: usize| {
        let bytes = value.get(8 * index..8 * index + 8).and_then(|bytes| bytes.try_into().ok());
        bytes.map_or(0, u64::from_be_bytes)
    };
    Head { number: field(0), due_ns: field(1), appended_ns: field(2) }
}

/// CPU time of this process so far.
fn cpu_s() -> f64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

/// A topic of one partition with so many records, with keys in turn.
async fn fill(options: &Options) -> Result<Figures> {
    let (topic, records) = (options.text("topic")?, options.number("records", 1)?);
    let (keys, bytes) = (options.number("keys", 10_000)?, options.number("bytes", 100)? as usize);
    Admin::new(options.client()?).create_topic(&NewTopic::new(topic).partitions(1)).await?;
    let config = ProducerConfig::new(options.client()?);
    let producer = Producer::new(ProducerConfig { batch_bytes: 256 << 10, ..config })?;
    let topic: Arc<str> = topic.into();
    for number in 0..records {
        let record =
            Record::new(topic.clone(), value(Head { number, ..Head::default() }, bytes)).partition(0);
        drop(producer.send(record.key((number % keys).to_string())).await?);
    }
    producer.flush().await;
    Ok(HashMap::from([("records", records as f64)]))
}

/// Counts what is handled, from the first message to the last one that is wanted.
struct Tally {
    wanted: u64,
    topics: Vec<Topic>,
    begin: Mutex<Option<(Instant, f64)>>,
    done: Notify,
}

/// Counts of one topic. No two share a cache line, as each may be counted by a thread of its own.
#[derive(Default)]
#[repr(align(128))]
struct Topic {
    records: AtomicU64,
    sum: AtomicU64,
}

impl Tally {
    /// Makes one that lives as long as the process, so that handlers need no `Arc` of it.
    fn new(wanted: u64, topics: usize) -> &'static Tally {
        Box::leak(Box::new(Tally {
            wanted,
            topics: (0..topics).map(|_| Topic::default()).collect(),
            begin: Mutex::new(None),
            done: Notify::new(),
        }))
    }

    fn count(&self, topic: usize, value: &[u8]) {
        let topic = &self.topics[topic];
        topic.sum.fetch_add(head(value).number, Ordering::Relaxed);
        let before = topic.records.fetch_add(1, Ordering::SeqCst);
        if before == 0 {
            self.begin.lock().get_or_insert_with(|| (Instant::now(), cpu_s()));
        }
        // All topics are added up only if this message may be the last.
        if (before + 1) * self.topics.len() as u64 >= self.wanted && self.records() >= self.wanted {
            self.done.notify_one();
        }
    }

    fn records(&self) -> u64 {
        self.topics.iter().map(|topic| topic.records.load(Ordering::SeqCst)).sum()
    }

    fn figures(&self) -> Figures {
        let (began, cpu) = self.begin.lock().unwrap_or((Instant::now(), cpu_s()));
        let (seconds, cpu) = (began.elapsed().as_secs_f64(), cpu_s() - cpu);
        let sum: u64 = self.topics.iter().map(|topic| topic.sum.load(Ordering::SeqCst)).sum();
        let (records, sum) = (self.records() as f64, sum as f64);
        HashMap::from([("records", records), ("sum", sum), ("seconds", seconds), ("cpu_s", cpu)])
    }
}

async fn flow(options: &Options) -> Result<Figures> {
    let topics = options.topics()?;
    let tally = Tally::new(options.number("records", 1)?, topics.len());
    let concurrency = options.number("concurrency", 32)? as usize;
    let wait = Duration::from_micros(options.number("wait-us", 0)?);
    let mut app = App::new(format!("flow-{}", std::process::id()), options.url()?)?;
    for (index, topic) in topics.into_iter().enumerate() {
        let route = Route::topic(topic, move |message: Msg<Raw>| async move {
            if !wait.is_zero() {
                tokio::time::sleep(wait).await;
            }
            tally.count(index, &message);
        });
        app = app.add(route.concurrency(concurrency));
    }
    let bare = bare_wait(wait).await;
    let began = Instant::now();
    let running = app.start()?;
    tally.done.notified().await;
    let mut figures = tally.figures();
    let stopping = Instant::now();
    running.stop().await?;
    figures.extend([
        ("stop_s", stopping.elapsed().as_secs_f64()),
        ("whole_s", began.elapsed().as_secs_f64()),
        ("bare_wait_us", bare.as_secs_f64() * 1e6),
    ]);
    Ok(figures)
}

/// Measures a wait without anything around it: the median of many.
async fn bare_wait(wait: Duration) -> Duration {
    if wait.is_zero() {
        return Duration::ZERO;
    }
    let mut took = Vec::new();
    for _ in 0..200 {
        let began = Instant::now();
        tokio::time::sleep(wait).await;
        took.push(began.elapsed());
    }
    took.sort_unstable();
    took[took.len() / 2]
}

async fn bare(options: &Options) -> Result<Figures> {
    let wanted = options.number("records", 1)?;
    let topics = options.topics()?;
    let tally = Tally::new(wanted, topics.len());
    let mut consumer = group(options, &topics)?;
    while tally.records() < wanted {
        let batch = consumer.next().await?;
        let topic = topics.iter().position(|topic| **topic == *batch.partition().topic);
        let topic = topic.context("a topic that was not asked for")?;
        for record in batch.records() {
            tally.count(topic, record?.value.unwrap_or_default());
        }
    }
    let figures = tally.figures();
    consumer.close().await?;
    Ok(figures)
}

fn group(options: &Options, topics: &[String]) -> Result<GroupConsumer> {
    let name = format!("bare-{}", std::process::id());
    let config = GroupConfig::new(name, topics.iter().cloned(), ConsumerConfig::new(options.client()?));
    Ok(GroupConsumer::new(GroupConfig { start: Position::Beginning, ..config })?)
}

/// Nanoseconds since the first call.
fn now_ns() -> u64 {
    static BEGAN: std::sync::OnceLock<Instant> = std::sync::OnceLock::new();
    BEGAN.get_or_init(Instant::now).elapsed().as_nanos() as u64
}

/// Keys in turn, of which the first may fail. No other is of its slice, where messages would wait for those that fail.
fn keys(count: u64) -> Vec<String> {
    let slice = |key: &str| slice_of(Some(key.as_bytes()), 0);
    let failing = slice("0");
    let others = (1..).map(|number: u64| number.to_string()).filter(|key| slice(key) != failing);
    std::iter::once("0".to_owned()).chain(others).take(count as usize).collect()
}

/// The times of a load.
struct Times {
    /// From the instant before a record was appended to the start of its handler,
    appended: Histogram<u64>,
    /// and from the instant when it was due, which contains what the writer is late by.
    due: Histogram<u64>,
}

impl Times {
    fn new() -> Result<Times> {
        let histogram = || Histogram::new_with_bounds(1, LATENCY_NS_MAX, 3);
        Ok(Times { appended: histogram()?, due: histogram()? })
    }

    fn record(&mut self, head: Head, now_ns: u64) {
        self.appended.saturating_record(now_ns.saturating_sub(head.appended_ns));
        self.due.saturating_record(now_ns.saturating_sub(head.due_ns));
    }

    fn figures(&self) -> Figures {
        let us = |times: &Histogram<u64>, quantile| times.value_at_quantile(quantile) as f64 / 1_000.0;
        HashMap::from([
            ("p50_us", us(&self.appended, 0.5)),
            ("p99_us", us(&self.appended, 0.99)),
            ("p999_us", us(&self.appended, 0.999)),
            ("due_p50_us", us(&self.due, 0.5)),
            ("due_p99_us", us(&self.due, 0.99)),
            ("due_p999_us", us(&self.due, 0.999)),
        ])
    }
}

/// Measures the time from append to the start of the handler, for all records but those of the key that fails.
async fn latency(options: &Options) -> Result<Figures> {
    let (rate, seconds) = (options.number("rate", 2_000)?, options.number("seconds", 10)?);
    let keys = keys(options.number("keys", 10_000)?.max(1));
    let is_of_failing = {
        let keys = keys.len() as u64;
        move |number: u64| number.is_multiple_of(keys)
    };
    let (is_bare, fails) = (options.has("bare"), options.has("failing-key"));
    let topic = format!("latency-{}", std::process::id());
    Admin::new(options.client()?).create_topic(&NewTopic::new(&*topic).partitions(1)).await?;
    let warm = rate * 3;
    let total = warm + rate * seconds;
    let measured = (warm..total).filter(|number| !is_of_failing(*number)).count() as u64;
    let times = Arc::new(Mutex::new(Times::new()?));
    let tally = Tally::new(measured, 1);
    let note = {
        let times = times.clone();
        move |value: &[u8], now: u64| {
            let head = head(value);
            if head.number >= warm && !is_of_failing(head.number) {
                times.lock().record(head, now);
                tally.count(0, value);
            }
        }
    };
    let failures = Arc::new(AtomicU64::new(0));
    let reading = if is_bare {
        let mut consumer = group(options, std::slice::from_ref(&topic))?;
        let task = tokio::spawn(async move {
            loop {
                let batch = consumer.next().await?;
                for record in batch.records() {
                    note(record?.value.unwrap_or_default(), now_ns());
                }
            }
            #[expect(unreachable_code, reason = "it says what the task's errors are")]
            Ok::<(), mainstem_client::Error>(())
        });
        Err(task)
    } else {
        let failures = failures.clone();
        let route = Route::topic(&*topic, move |message: Msg<Raw>| {
            let now = now_ns();
            let is_failing = fails && is_of_failing(head(&message).number);
            failures.fetch_add(u64::from(is_failing), Ordering::Relaxed);
            if !is_failing {
                note(&message, now);
            }
            async move { if is_failing { Err(Fault::transient("it fails always")) } else { Ok(()) } }
        });
        let route = route.retry(Retry::exponential(100, 1_000)).concurrency(1_024);
        let app = App::new(format!("flow-{}", std::process::id()), options.url()?)?.add(route);
        Ok(app.stop_within(Duration::from_millis(100)).start()?)
    };
    // The group is joined before the first record is due.
    tokio::time::sleep(Duration::from_secs(2)).await;
    let config = ProducerConfig::new(options.client()?).linger(Duration::ZERO);
    let producer = Producer::new(config)?;
    let topic: Arc<str> = topic.into();
    let begin = now_ns();
    for number in 0..total {
        let due = begin + number * 1_000_000_000 / rate;
        let now = now_ns();
        if now < due {
            tokio::time::sleep(Duration::from_nanos(due - now)).await;
        }
        let head = Head { number, due_ns: due, appended_ns: now_ns() };
        let record = Record::new(topic.clone(), value(head, 100)).partition(0);
        let key = &keys[number as usize % keys.len()];
        drop(producer.send(record.key(key.clone())).await?);
    }
    producer.flush().await;
    let waiting = tokio::time::timeout(Duration::from_secs(30), tally.done.notified()).await;
    ensure!(waiting.is_ok(), "only {} of {measured} records arrived", tally.records());
    match reading {
        Ok(running) => running.stop().await?,
        Err(task) => task.abort(),
    }
    let mut figures = tally.figures();
    figures.extend(times.lock().figures());
    figures.insert("failures", failures.load(Ordering::Relaxed) as f64);
    Ok(figures)
}

/// Partitions of the load with a rebalance, and records a second of each.
const SHARED_PARTITIONS: u64 = 12;
const SHARED_RATE: u64 = 200;
/// The time that a job of that load waits.
const JOB: Duration = Duration::from_millis(100);

/// The start of a job.
#[derive(Clone, Copy)]
struct Start {
    at_ns: u64,
    offset: i64,
    member: usize,
}

/// The starts of all members, by partition.
#[derive(Default)]
struct Starts(Mutex<BTreeMap<i32, Vec<Start>>>);

impl Starts {
    fn len(&self) -> u64 {
        self.0.lock().values().map(|starts| starts.len() as u64).sum()
    }

    /// Returns the number of partitions that a member has begun to handle.
    fn partitions(&self, member: usize) -> usize {
        self.0.lock().values().filter(|starts| starts.iter().any(|start| start.member == member)).count()
    }

    /// Jobs that were started more than once.
    fn repeats(&self) -> u64 {
        let of = |starts: &Vec<Start>| {
            let distinct: BTreeSet<i64> = starts.iter().map(|start| start.offset).collect();
            (starts.len() - distinct.len()) as u64
        };
        self.0.lock().values().map(of).sum()
    }

    /// The longest time without a start in a part of the run, in ms: of partitions that one member had throughout, and of
    /// others; and how many those are.
    fn gaps_ms(&self, part: std::ops::Range<u64>) -> (f64, f64, u64) {
        let (mut stayed, mut moved, mut count) = (0.0f64, 0.0f64, 0);
        for starts in self.0.lock().values_mut() {
            starts.sort_unstable_by_key(|start| start.at_ns);
            let first = starts.partition_point(|start| start.at_ns < part.start);
            let end = starts.partition_point(|start| start.at_ns < part.end);
            let within = &starts[first.saturating_sub(1)..end];
            let gap = within.iter().zip(&within[1..]).map(|(a, b)| b.at_ns - a.at_ns).max();
            let gap = gap.unwrap_or(part.end - part.start) as f64 / 1e6;
            if within.iter().all(|start| start.member == within[0].member) {
                stayed = stayed.max(gap);
            } else {
                (moved, count) = (moved.max(gap), count + 1);
            }
        }
        (stayed, moved, count)
    }
}

/// Runs three members, of which one joins and leaves, while each partition has records at a steady rate and 20 jobs of 100 ms under way.
/// Measures the longest gap of partitions that stay with their member, and of others, and counts jobs that ran twice.
async fn rebalance(options: &Options) -> Result<Figures> {
    let part = Duration::from_secs(options.number("seconds", 3)?.max(1));
    let name = format!("shared-{}", std::process::id());
    let topic = NewTopic::new(name.as_str()).partitions(SHARED_PARTITIONS as i32);
    Admin::new(options.client()?).create_topic(&topic).await?;
    let starts = Arc::new(Starts::default());
    let member = |member: usize| -> Result<Running> {
        let starts = starts.clone();
        let route = Route::topic(&*name, move |message: Msg<Raw>| {
            let start = Start { at_ns: now_ns(), offset: message.offset(), member };
            starts.0.lock().entry(message.partition().partition).or_default().push(start);
            tokio::time::sleep(JOB)
        });
        let app = App::new(name.as_str(), options.url()?)?.protocol(options.protocol());
        Ok(app.add(route.concurrency(256)).start()?)
    };
    let members = [member(0)?, member(1)?];
    let writing = tokio::spawn(write_shared(options.client()?, name.as_str().into(), 4 * part + 4 * JOB));
    // Both have partitions before anything is measured.
    let deadline = Instant::now() + Duration::from_secs(20);
    while starts.partitions(0) == 0 || starts.partitions(1) == 0 {
        ensure!(Instant::now() < deadline, "two members do not share the partitions");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    tokio::time::sleep(part).await;
    let joins = now_ns();
    let third = member(2)?;
    tokio::time::sleep(part).await;
    ensure!(starts.partitions(2) > 0, "the third member has no partition within {part:?}");
    let leaves = now_ns();
    third.stop().await?;
    tokio::time::sleep(part).await;
    let ends = now_ns();
    let written = writing.await??;
    let deadline = Instant::now() + Duration::from_secs(30);
    while starts.len() - starts.repeats() < written {
        ensure!(Instant::now() < deadline, "only {} of {written} jobs were started", starts.len());
        tokio::time::sleep(JOB).await;
    }
    for member in members {
        member.stop().await?;
    }
    let calm = starts.gaps_ms(joins - part.as_nanos() as u64 / 2..joins);
    let (join, leave) = (starts.gaps_ms(joins..leaves), starts.gaps_ms(leaves..ends));
    Ok(HashMap::from([
        ("records", written as f64),
        ("repeats", starts.repeats() as f64),
        ("calm_ms", calm.0),
        ("join_stay_ms", join.0),
        ("join_move_ms", join.1),
        ("join_moved", join.2 as f64),
        ("leave_stay_ms", leave.0),
        ("leave_move_ms", leave.1),
        ("leave_moved", leave.2 as f64),
    ]))
}

/// Writes to all partitions in turn, by a schedule. Returns how many records there are.
async fn write_shared(client: ClientConfig, topic: Arc<str>, time: Duration) -> Result<u64> {
    let producer = Producer::new(ProducerConfig::new(client).linger(Duration::ZERO))?;
    let rate = SHARED_PARTITIONS * SHARED_RATE;
    let total = time.as_millis() as u64 * rate / 1_000;
    let begin = now_ns();
    for number in 0..total {
        let due = begin + number * 1_000_000_000 / rate;
        let now = now_ns();
        if now < due {
            tokio::time::sleep(Duration::from_nanos(due - now)).await;
        }
        let partition = (number % SHARED_PARTITIONS) as i32;
        let head = Head { number, due_ns: due, appended_ns: now_ns() };
        let record = Record::new(topic.clone(), value(head, 100)).partition(partition);
        // Keys that follow each other in a partition are apart.
        drop(producer.send(record.key((number / SHARED_PARTITIONS % 10_000).to_string())).await?);
    }
    producer.flush().await;
    Ok(total)
}

/// Measures the time from the start of an application to its first handler, and that of its stop.
async fn boot(options: &Options) -> Result<Figures> {
    let name = format!("boot-{}", std::process::id());
    Admin::new(options.client()?).create_topic(&NewTopic::new(name.as_str()).partitions(1)).await?;
    let producer = Producer::new(ProducerConfig::new(options.client()?))?;
    producer.send(Record::new(name.as_str(), "first")).await?.await?;
    let handled = Arc::new(Notify::new());
    let own = handled.clone();
    let began = Instant::now();
    let route = Route::topic(&*name, move |_: Msg<Raw>| {
        own.notify_one();
        std::future::ready(())
    });
    let app = App::new(name.as_str(), options.url()?)?.protocol(options.protocol());
    let running = app.add(route).start()?;
    handled.notified().await;
    let boot = began.elapsed();
    tokio::time::sleep(Duration::from_millis(500)).await;
    let stopping = Instant::now();
    running.stop().await?;
    Ok(HashMap::from([("boot_s", boot.as_secs_f64()), ("stop_s", stopping.elapsed().as_secs_f64())]))
}
