//! Loads for measuring handlers, as a process of their own; `mainstem-bench handlers` runs it beside its peers.
//!
//! ```text
//! handler_load fill    --url U --topic T --records N [--keys K] [--bytes B]
//! handler_load flow    --url U --topics T,T --records N [--concurrency C] [--wait-us W]
//! handler_load bare    --url U --topics T,T --records N
//! handler_load latency --url U --rate R --seconds S [--keys K] [--failing-key] [--bare]
//! ```
//! Each prints one line of JSON. What is read is checked: each record carries its number, and the sum of the numbers is printed.

// What it is for is a line on standard output.
#![allow(clippy::print_stdout)]

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use hdrhistogram::Histogram;
use mainstem_client::{
    Admin, ClientConfig, ConsumerConfig, GroupConfig, GroupConsumer, NewTopic, Position, Producer,
    ProducerConfig, Record,
};
use mainstem_flow::{App, Fault, Msg, Raw, Retry, Route};
use parking_lot::Mutex;
use tokio::sync::Notify;

/// Bytes of a value: its number and the time at which it was due, then filler.
const HEAD_BYTES: usize = 16;

#[tokio::main]
async fn main() -> Result<()> {
    let mut words = std::env::args().skip(1);
    let mode = words.next().context("name a load: fill, flow, bare, latency")?;
    let options = Options::parse(words)?;
    let figures = match mode.as_str() {
        "fill" => fill(&options).await?,
        "flow" => flow(&options).await?,
        "bare" => bare(&options).await?,
        "latency" => latency(&options).await?,
        other => bail!("there is no load {other}: take fill, flow, bare or latency"),
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

    fn topics(&self) -> Result<Vec<String>> {
        Ok(self.text("topics")?.split(',').map(str::to_owned).collect())
    }
}

fn value(number: u64, due_ns: u64, bytes: usize) -> Vec<u8> {
    let mut value = vec![b'.'; bytes.max(HEAD_BYTES)];
    value[..8].copy_from_slice(&number.to_be_bytes());
    value[8..HEAD_BYTES].copy_from_slice(&due_ns.to_be_bytes());
    value
}

fn head(value: &[u8]) -> (u64, u64) {
    let field = |range: std::ops::Range<usize>| {
        let bytes = value.get(range).and_then(|bytes| bytes.try_into().ok());
        bytes.map_or(0, u64::from_be_bytes)
    };
    (field(0..8), field(8..HEAD_BYTES))
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
        let record = Record::new(topic.clone(), value(number, 0, bytes)).partition(0);
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

/// What one topic has brought; no two share a cache line, as each may have a thread of its own.
#[derive(Default)]
#[repr(align(128))]
struct Topic {
    records: AtomicU64,
    sum: AtomicU64,
}

impl Tally {
    /// It lives as long as the process: handlers need no share in it.
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
        topic.sum.fetch_add(head(value).0, Ordering::Relaxed);
        let before = topic.records.fetch_add(1, Ordering::SeqCst);
        if before == 0 {
            self.begin.lock().get_or_insert_with(|| (Instant::now(), cpu_s()));
        }
        // All are looked at only where one may have been the last.
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

/// What a wait takes here without anything around it: the median of many.
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

/// From the instant when a record was due to the start of its handler, but for those of the failing key.
async fn latency(options: &Options) -> Result<Figures> {
    let (rate, seconds) = (options.number("rate", 2_000)?, options.number("seconds", 10)?);
    let keys = options.number("keys", 10_000)?;
    let (is_bare, fails) = (options.has("bare"), options.has("failing-key"));
    let topic = format!("latency-{}", std::process::id());
    Admin::new(options.client()?).create_topic(&NewTopic::new(&*topic).partitions(1)).await?;
    let warm = rate * 3;
    let total = warm + rate * seconds;
    // The failing key is number 0; its records are not measured.
    let measured = (warm..total).filter(|number| number % keys != 0).count() as u64;
    let times = Arc::new(Mutex::new(Histogram::<u64>::new(3)?));
    let tally = Tally::new(measured, 1);
    let note = {
        let times = times.clone();
        move |value: &[u8], now: u64| {
            let (number, due) = head(value);
            if number >= warm && number % keys != 0 {
                times.lock().saturating_record(now.saturating_sub(due));
                tally.count(0, value);
            }
        }
    };
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
        let route = Route::topic(&*topic, move |message: Msg<Raw>| {
            let now = now_ns();
            let is_failing = fails && head(&message).0.is_multiple_of(keys);
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
        let record = Record::new(topic.clone(), value(number, due, 100)).partition(0);
        drop(producer.send(record.key((number % keys).to_string())).await?);
    }
    producer.flush().await;
    let waiting = tokio::time::timeout(Duration::from_secs(30), tally.done.notified()).await;
    ensure!(waiting.is_ok(), "only {} of {measured} records arrived", tally.records());
    match reading {
        Ok(running) => running.stop().await?,
        Err(task) => task.abort(),
    }
    let times = times.lock();
    let us = |quantile: f64| times.value_at_quantile(quantile) as f64 / 1_000.0;
    let mut figures = tally.figures();
    figures.extend([("p50_us", us(0.5)), ("p99_us", us(0.99)), ("p999_us", us(0.999))]);
    Ok(figures)
}
