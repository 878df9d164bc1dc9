//! The processes of the suite's streams: one publishes, one consumes, without a broker. `mainstem-bench direct` starts both, and
//! its peers in their place.
//!
//! `publish DIR ADDRESS` and `consume ADDRESS CONSUMERS` print a line of JSON when they are ready, and one for each command that
//! they read; they end with their input. Of a publisher:
//!
//! | command | is |
//! |---|---|
//! | `cycles SECONDS CYCLE_MS PAUSE_MS` | all entities append 7 events in turn; the next cycle begins `PAUSE_MS` after the last one is done, `CYCLE_MS` after it began at the earliest |
//! | `rate EVENTS_PER_S SECONDS` | by a schedule: a slow append makes the next ones late as well |
//! | `fill EVENTS` | as fast as it goes, 100 in a batch |
//! | `from NUMBER` | what the next event of each entity is called |
//!
//! Of a consumer: `reset` forgets all times, `figures` prints those since. Of both: `watch` looks at the stages that events pass,
//! and `watched FILE` writes what was seen since (`stages.rs`). Each event says whose it is, its number, and when its
//! append began, or was due; a consumer holds each against the one before.

#![allow(clippy::print_stdout)]

mod stages;

use std::collections::BTreeMap;
use std::io::{BufRead as _, Write as _};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context as _, Result, bail};
use futures_util::FutureExt as _;
use hdrhistogram::Histogram;
use mainstem_direct::{DirectError, Journal, JournalOptions, NewEvent, Publisher};
use mainstem_flow::{App, Msg, Raw, Route};
use parking_lot::Mutex;
use stages::Stages;
use tokio::sync::mpsc;
use tokio::task::JoinSet;

const EVENT_BYTES: usize = 56;
const ENTITIES: u32 = 32;
const EVENTS_OF_CYCLE: u32 = 7;
const BATCH: u32 = 100;

/// Makes a histogram of nanoseconds, up to ten minutes.
fn histogram() -> Histogram<u64> {
    Histogram::new_with_bounds(1, 600_000_000_000, 3).expect("the bounds are constants that fit")
}

type Figures = BTreeMap<&'static str, f64>;

#[tokio::main]
async fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match words[..] {
        ["publish", directory, address] => publish(directory, address).await,
        ["consume", address, consumers] => consume(address, consumers.parse()?).await,
        _ => bail!("usage: stream_lag publish DIR ADDRESS | consume ADDRESS CONSUMERS"),
    }
}

fn now_ns() -> u64 {
    let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since_1970.as_nanos()).unwrap_or(u64::MAX)
}

/// The commands that come in, until there are no more.
fn commands() -> mpsc::UnboundedReceiver<String> {
    let (sender, receiver) = mpsc::unbounded_channel();
    std::thread::spawn(move || {
        for line in std::io::stdin().lock().lines().map_while(std::io::Result::ok) {
            if sender.send(line).is_err() {
                return;
            }
        }
    });
    receiver
}

fn say(figures: &Figures) -> Result<()> {
    println!("{}", serde_json::to_string(figures)?);
    Ok(std::io::stdout().flush()?)
}

/// The publisher's entities, and the times that their appends took.
#[derive(Clone)]
struct Entities {
    journal: Journal,
    numbers: Arc<Vec<AtomicU32>>,
    took: Arc<Mutex<Histogram<u64>>>,
}

impl Entities {
    /// The next event of an entity, which says when its append began, or was due.
    fn next(&self, entity: u32, sent_ns: u64) -> NewEvent {
        let number = self.numbers[entity as usize].fetch_add(1, Ordering::Relaxed);
        let mut value = vec![number as u8; EVENT_BYTES];
        value[..8].copy_from_slice(&sent_ns.to_le_bytes());
        value[8..12].copy_from_slice(&entity.to_le_bytes());
        value[12..16].copy_from_slice(&number.to_le_bytes());
        NewEvent::new(value).key(format!("entity-{entity}"))
    }

    async fn append(self, entity: u32, events: u32) -> mainstem_direct::Result<()> {
        for _ in 0..events {
            let began = Instant::now();
            self.journal.append_event(self.next(entity, now_ns())).await?;
            self.took.lock().saturating_record(began.elapsed().as_nanos() as u64);
        }
        Ok(())
    }

    async fn cycles(&self, time: Duration, cycle: Duration, pause: Duration) -> Result<u64> {
        let end = Instant::now() + time;
        let mut events = 0;
        while Instant::now() < end {
            let began = Instant::now();
            let mut appending: JoinSet<_> =
                (0..ENTITIES).map(|entity| self.clone().append(entity, EVENTS_OF_CYCLE)).collect();
            while let Some(appended) = appending.join_next().await {
                appended??;
            }
            events += u64::from(ENTITIES * EVENTS_OF_CYCLE);
            tokio::time::sleep_until((began + cycle).max(Instant::now() + pause).into()).await;
        }
        Ok(events)
    }

    /// Appends events by a schedule. Events that are due at one time are appended by this task, in the order of their numbers, and awaited
    /// in tasks of their own.
    async fn rate(&self, rate: u64, seconds: u64) -> Result<u64> {
        let (begin, begin_ns) = (Instant::now(), now_ns());
        let mut appending = JoinSet::new();
        for number in 0..rate * seconds {
            let after_ns = number * 1_000_000_000 / rate;
            let due = begin + Duration::from_nanos(after_ns);
            if due > Instant::now() {
                tokio::time::sleep_until(due.into()).await;
            }
            let entity = (number % u64::from(ENTITIES)) as u32;
            let mut append = Box::pin({
                let this = self.clone();
                async move {
                    let event = this.next(entity, begin_ns + after_ns);
                    this.journal.append_event(event).await?;
                    this.took.lock().saturating_record(due.elapsed().as_nanos() as u64);
                    Ok::<_, DirectError>(())
                }
            });
            // The first poll appends.
            match (&mut append).now_or_never() {
                Some(appended) => appended?,
                None => drop(appending.spawn(append)),
            }
            while let Some(appended) = appending.try_join_next() {
                appended??;
            }
        }
        while let Some(appended) = appending.join_next().await {
            appended??;
        }
        Ok(rate * seconds)
    }

    async fn fill(&self, events: u32) -> Result<u64> {
        let each = events / ENTITIES;
        let mut appending = JoinSet::new();
        for entity in 0..ENTITIES {
            let this = self.clone();
            appending.spawn(async move {
                for first in (0..each).step_by(BATCH as usize) {
                    let batch: Vec<_> =
                        (first..(first + BATCH).min(each)).map(|_| this.next(entity, now_ns())).collect();
                    this.journal.append_many(batch).await?;
                }
                Ok::<_, DirectError>(())
            });
        }
        while let Some(appended) = appending.join_next().await {
            appended??;
        }
        Ok(u64::from(each * ENTITIES))
    }

    async fn carry_out(&self, command: &str) -> Result<u64> {
        let words: Vec<&str> = command.split_whitespace().collect();
        match words[..] {
            ["cycles", seconds, cycle_ms, pause_ms] => {
                let ms = |text: &str| text.parse().map(Duration::from_millis);
                self.cycles(Duration::from_secs(seconds.parse()?), ms(cycle_ms)?, ms(pause_ms)?).await
            }
            ["rate", rate, seconds] => self.rate(rate.parse()?, seconds.parse()?).await,
            ["fill", events] => self.fill(events.parse()?).await,
            ["from", number] => {
                let number = number.parse()?;
                self.numbers.iter().for_each(|one| one.store(number, Ordering::Relaxed));
                Ok(0)
            }
            _ => bail!("{command:?} is no command"),
        }
    }
}

/// Carries out a command that has to do with stages; false if it is another one.
fn watch(stages: &Stages, command: &str) -> Result<bool> {
    match command.split_once(' ') {
        None if command == "watch" => stages.begin(),
        Some(("watched", file)) => stages.end(Path::new(file))?,
        _ => return Ok(false),
    }
    say(&Figures::from([("done", 1.0)]))?;
    Ok(true)
}

async fn publish(directory: &str, address: &str) -> Result<()> {
    let journal = JournalOptions::new().name("events").open(directory)?;
    let serving = Publisher::new().stream(&journal).start(address).await?;
    let entities = Entities {
        journal,
        numbers: Arc::new((0..ENTITIES).map(|_| AtomicU32::new(0)).collect()),
        took: Arc::new(Mutex::new(histogram())),
    };
    say(&Figures::from([("ready", 1.0)]))?;
    let (mut commands, stages) = (commands(), Stages::default());
    while let Some(command) = commands.recv().await {
        if watch(&stages, &command)? {
            continue;
        }
        entities.took.lock().reset();
        let began = Instant::now();
        let events = entities.carry_out(&command).await.with_context(|| command.clone())?;
        let mut figures =
            Figures::from([("events", events as f64), ("seconds", began.elapsed().as_secs_f64())]);
        let took = entities.took.lock();
        for (name, quantile) in [("append_p50_ms", 0.5), ("append_p99_ms", 0.99), ("append_p999_ms", 0.999)] {
            figures.insert(name, took.value_at_quantile(quantile) as f64 / 1e6);
        }
        say(&figures)?;
    }
    serving.stop().await?;
    Ok(())
}

/// Events that a consumer has received.
struct Seen {
    /// The consumer's name.
    name: String,
    numbers: Vec<AtomicU32>,
    lags: Mutex<Histogram<u64>>,
}

/// Counts of the events that all consumers have received.
#[derive(Default)]
struct Counts {
    events: AtomicU64,
    faults: AtomicU64,
    first_ns: AtomicU64,
    last_ns: AtomicU64,
}

fn take(event: &Msg<Raw>, seen: &Seen, counts: &Counts, stages: &Stages) {
    let (now, offset): (u64, i64) = (now_ns(), event.offset());
    let event: &[u8] = event;
    let number_at = |at: usize| event.get(at..)?.first_chunk().map(|four| u32::from_le_bytes(*four));
    let sent = event.first_chunk().map_or(0, |eight| u64::from_le_bytes(*eight));
    let due = number_at(8).and_then(|entity| seen.numbers.get(entity as usize));
    let is_right = number_at(12).zip(due).is_some_and(|(number, due)| {
        let is_due = due.swap(number.wrapping_add(1), Ordering::Relaxed) == number;
        is_due && event.len() == EVENT_BYTES && event[16..].iter().all(|byte| *byte == number as u8)
    });
    if !is_right {
        counts.faults.fetch_add(1, Ordering::Relaxed);
    }
    seen.lags.lock().saturating_record(now.saturating_sub(sent));
    stages.handled(&seen.name, offset, sent, now);
    if counts.events.fetch_add(1, Ordering::Relaxed) == 0 {
        counts.first_ns.store(now, Ordering::Relaxed);
    }
    counts.last_ns.fetch_max(now, Ordering::Relaxed);
}

async fn consume(address: &str, consumers: usize) -> Result<()> {
    let counts = Arc::new(Counts::default());
    let (mut all, mut running, stages) = (Vec::new(), Vec::new(), Stages::default());
    for number in 0..consumers {
        let name = format!("consumer-{}-{number}", std::process::id());
        let seen = Arc::new(Seen {
            name: name.clone(),
            numbers: (0..ENTITIES).map(|_| AtomicU32::new(0)).collect(),
            lags: Mutex::new(histogram()),
        });
        all.push(seen.clone());
        let (counts, stages) = (counts.clone(), stages.clone());
        let route = Route::topic("events", move |event: Msg<Raw>| {
            take(&event, &seen, &counts, &stages);
            std::future::ready(())
        });
        running.push(App::new(name, &format!("grpc://{address}"))?.add(route).start()?);
    }
    say(&Figures::from([("ready", 1.0)]))?;
    let mut commands = commands();
    while let Some(command) = commands.recv().await {
        if watch(&stages, &command)? {
            continue;
        }
        match command.as_str() {
            "reset" => {
                all.iter().for_each(|seen| seen.lags.lock().reset());
                for count in [&counts.events, &counts.first_ns, &counts.last_ns] {
                    count.store(0, Ordering::Relaxed);
                }
            }
            "figures" => {}
            other => bail!("{other:?} is no command"),
        }
        let mut lags = histogram();
        for seen in &all {
            lags.add(&*seen.lags.lock())?;
        }
        let count = |count: &AtomicU64| count.load(Ordering::Relaxed) as f64;
        let ms = |quantile: f64| lags.value_at_quantile(quantile) as f64 / 1e6;
        say(&Figures::from([
            ("events", count(&counts.events)),
            ("faults", count(&counts.faults)),
            ("first_ms", count(&counts.first_ns) / 1e6),
            ("last_ms", count(&counts.last_ns) / 1e6),
            ("lag_p50_ms", ms(0.5)),
            ("lag_p99_ms", ms(0.99)),
            ("lag_p999_ms", ms(0.999)),
            ("lag_max_ms", lags.max() as f64 / 1e6),
        ]))?;
    }
    for one in running {
        one.stop().await?;
    }
    Ok(())
}
