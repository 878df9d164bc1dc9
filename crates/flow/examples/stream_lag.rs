//! How late events come that one process publishes and another handles, without a broker.
//!
//! `cargo run --release -p mainstem-flow --features direct --example stream_lag -- lag [RATE] [SECONDS] [CONSUMERS]`: a publisher
//! and a process with so many consumers; each event says when its append began, and each handler how long ago that was.
//! `... -- catch-up [EVENTS]`: how fast one empty handler reads what was appended before, 100 events a batch.

#![allow(clippy::print_stdout)]

use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context as _, Result, bail};
use mainstem_direct::{Journal, NewEvent, Publisher};
use mainstem_flow::{App, Msg, Raw, Route};
use parking_lot::Mutex;

const WARM_UP: Duration = Duration::from_secs(3);
const EVENT_BYTES: usize = 56;
const ENTITIES: u64 = 32;
const BATCH: u64 = 100;

#[tokio::main]
async fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let number = |at: usize, usual: u64| {
        arguments
            .get(at)
            .map_or(Ok(usual), |text| text.parse().with_context(|| format!("{text} is no number")))
    };
    let text = |at: usize| arguments.get(at).map_or("", String::as_str);
    match text(0) {
        "lag" => lag(number(1, 940)?, number(2, 20)?, number(3, 1)?).await,
        "catch-up" => catch_up(number(1, 2_000_000)?).await,
        "publish" => publish(text(1), number(2, 0)?, number(3, 0)?).await,
        "consume" => consume(text(1), number(2, 0)?, number(3, 0)?).await,
        _ => bail!("usage: stream_lag lag [RATE] [SECONDS] [CONSUMERS] | catch-up [EVENTS]"),
    }
}

fn now_ns() -> u64 {
    let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since_1970.as_nanos()).unwrap_or(u64::MAX)
}

fn child(arguments: &[&str]) -> Result<Child> {
    Ok(Command::new(std::env::current_exe()?).args(arguments).stdin(Stdio::piped()).spawn()?)
}

async fn lag(rate: u64, seconds: u64, consumers: u64) -> Result<()> {
    let dir = std::env::temp_dir().join(format!("stream-lag-{}", std::process::id()));
    let port = std::net::TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
    let address = format!("127.0.0.1:{port}");
    let [rate, seconds, consumers] = [rate, seconds, consumers].map(|one| one.to_string());
    let place = format!("{}@{address}", dir.display());
    let mut publisher = child(&["publish", &place, &rate, &seconds])?;
    let mut consumer = child(&["consume", &address, &consumers, &seconds])?;
    let ended = tokio::task::spawn_blocking(move || (consumer.wait(), publisher.wait())).await?;
    std::fs::remove_dir_all(&dir)?;
    match ended {
        (Ok(one), Ok(other)) if one.success() && other.success() => Ok(()),
        other => bail!("a process has failed: {other:?}"),
    }
}

async fn publish(place: &str, rate: u64, seconds: u64) -> Result<()> {
    let (directory, address) = place.split_once('@').context("DIR@ADDRESS")?;
    let journal = Journal::open(std::path::Path::new(directory).join("events"))?;
    let serving = Publisher::new().stream(&journal).start(address).await?;
    tokio::time::sleep(Duration::from_secs(1)).await;
    let begin = Instant::now();
    let appending = Arc::new(Mutex::new(Vec::new()));
    let total = rate * (seconds + WARM_UP.as_secs());
    for number in 0..total {
        // When it is due, not when the one before is done: a slow append makes the next ones late as well.
        tokio::time::sleep_until((begin + Duration::from_nanos(number * 1_000_000_000 / rate)).into()).await;
        let (journal, took) = (journal.clone(), appending.clone());
        tokio::spawn(async move {
            let began = Instant::now();
            let mut value = now_ns().to_le_bytes().to_vec();
            value.resize(EVENT_BYTES, b'x');
            let key = format!("entity-{}", number % ENTITIES);
            journal
                .append_event(NewEvent::new(value).key(key))
                .await
                .map(|_| took.lock().push(began.elapsed()))
        });
    }
    tokio::time::sleep(Duration::from_secs(1)).await;
    println!("append: {}", percentiles(&mut appending.lock()));
    println!("publisher: {}", usage()?);
    serving.stop().await?;
    Ok(())
}

async fn consume(address: &str, consumers: u64, seconds: u64) -> Result<()> {
    let lags = Arc::new(Mutex::new(Vec::new()));
    let begin = Instant::now();
    let mut running = Vec::new();
    for number in 0..consumers {
        let lags = lags.clone();
        let route = Route::topic("events", move |event: Msg<Raw>| {
            let lags = lags.clone();
            async move {
                let sent = event.first_chunk::<8>().map_or(0, |bytes| u64::from_le_bytes(*bytes));
                if begin.elapsed() > WARM_UP {
                    lags.lock().push(Duration::from_nanos(now_ns().saturating_sub(sent)));
                }
            }
        });
        running
            .push(App::new(format!("consumer-{number}"), &format!("grpc://{address}"))?.add(route).start()?);
    }
    tokio::time::sleep(WARM_UP + Duration::from_secs(seconds)).await;
    println!("lag of {consumers} consumers: {}", percentiles(&mut lags.lock()));
    println!("consumers: {}", usage()?);
    for one in running {
        one.stop().await?;
    }
    Ok(())
}

fn percentiles(times: &mut [Duration]) -> String {
    times.sort_unstable();
    let at =
        |share: f64| times.get(((times.len() as f64 * share) as usize).min(times.len().saturating_sub(1)));
    let ms = |share: f64| at(share).map_or(f64::NAN, |time| time.as_secs_f64() * 1e3);
    let [p50, p99, p999, max] = [0.5, 0.99, 0.999, 1.0].map(ms);
    format!("p50 {p50:.3} p99 {p99:.3} p99.9 {p999:.3} max {max:.3} ms of {}", times.len())
}

/// CPU time and memory of this process.
fn usage() -> Result<String> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let memory = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_default();
        line.trim_start_matches(':').trim().to_owned()
    };
    let stat = std::fs::read_to_string("/proc/self/stat")?;
    let fields: Vec<&str> = stat.rsplit(") ").next().unwrap_or_default().split(' ').collect();
    // Fields 14 and 15 of proc(5), in hundredths of a second.
    let ticks: u64 = fields.iter().skip(11).take(2).filter_map(|field| field.parse::<u64>().ok()).sum();
    Ok(format!(
        "CPU {:.2} s, {} resident, {} of it anonymous",
        ticks as f64 / 1e2,
        memory("VmRSS"),
        memory("RssAnon")
    ))
}

async fn catch_up(events: u64) -> Result<()> {
    let dir = std::env::temp_dir().join(format!("stream-catch-up-{}", std::process::id()));
    let journal = Journal::open(dir.join("events"))?;
    let began = Instant::now();
    for first in (0..events).step_by(BATCH as usize) {
        let batch = (first..(first + BATCH).min(events)).map(|number| {
            NewEvent::new(vec![b'x'; EVENT_BYTES]).key(format!("entity-{}", number % ENTITIES))
        });
        journal.append_many(batch).await?;
    }
    println!("appended {events} events in {:.2} s", began.elapsed().as_secs_f64());
    let serving = Publisher::new().stream(&journal).start("127.0.0.1:0").await?;
    let handled = Arc::new(AtomicU64::new(0));
    let count = handled.clone();
    let route = Route::topic("events", move |_: Msg<Raw>| {
        count.fetch_add(1, Ordering::Relaxed);
        std::future::ready(())
    });
    let began = Instant::now();
    let running = App::new("catch-up", &format!("grpc://{}", serving.address()))?.add(route).start()?;
    while handled.load(Ordering::Relaxed) < events {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let took = began.elapsed().as_secs_f64();
    println!("handled {events} events in {took:.2} s: {:.2} M/s; {}", events as f64 / took / 1e6, usage()?);
    running.stop().await?;
    serving.stop().await?;
    drop(journal);
    Ok(std::fs::remove_dir_all(dir)?)
}
