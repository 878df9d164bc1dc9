//! Our side: `mainstem-queue` under one load. `chronicle/ChronicleSide.java` is the peer's.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;
use std::{fmt, hint, thread};

use anyhow::{Context, Result, bail, ensure};
use hdrhistogram::Histogram;
use mainstem_queue::{Appender, Prepared, Queue, Start, Tailer, Wait};
use serde_json::{Value, json};

use super::event::Codec;
use super::{Event, Waiting};
use crate::clock::now_ns;
use crate::latency::new_histogram;
use crate::process;

const GIVE_UP_NS: u64 = 60_000_000_000;

/// Options of a side: the load, and numbers by name.
#[derive(Debug)]
pub struct SideOptions {
    /// The folder for its queues.
    pub directory: PathBuf,
    /// The load, then `NAME=VALUE` each.
    pub arguments: Vec<String>,
}

impl SideOptions {
    fn text(&self, name: &str) -> Result<&str> {
        let value = self.arguments.iter().find_map(|argument| argument.strip_prefix(name)?.strip_prefix('='));
        value.with_context(|| format!("there is no {name}="))
    }

    fn number(&self, name: &str) -> Result<u64> {
        let text = self.text(name)?;
        text.parse().with_context(|| format!("{name}={text} is no number"))
    }

    fn codec(&self) -> Result<Codec> {
        Ok(Codec::new(Event::parse(self.text("event")?)?))
    }

    fn open(&self, name: &str) -> Result<Place> {
        Place::open(&self.directory.join(name))
    }
}

/// A queue as the loads open it: with defaults, and the thread that prepares segments in advance.
struct Place {
    queue: Queue,
    _prepared: Prepared,
}

impl Place {
    fn open(directory: &Path) -> Result<Self> {
        let queue = Queue::open(directory)?;
        let _prepared = queue.prepare_ahead()?;
        Ok(Self { queue, _prepared })
    }
}

/// Runs a load; returns what was measured.
///
/// # Errors
/// If a message is lost or not what was written, or the queue fails.
pub fn run_side(options: &SideOptions) -> Result<Value> {
    match options.arguments.first().map(String::as_str) {
        Some("hops") => hops(options),
        Some("write") => write(options),
        Some("contend") => contend(options),
        Some("wake") => wake(options),
        other => bail!("there is no load {other:?}"),
    }
}

/// Generator, queue one, service, queue two, recorder; the generator and the recorder share a thread.
fn hops(options: &SideOptions) -> Result<Value> {
    let warmup = options.number("warmup")?;
    let count = warmup + options.number("count")?;
    let interval_ns = 1_000_000_000 / options.number("rate")?;
    let waiting = match options.text("wait")? {
        "spin" => Waiting::Spin,
        "yield" => Waiting::Yield,
        _ => Waiting::Sleep,
    };
    let codec = options.codec()?;
    let [mut publish, mut to_service, mut end_to_end] = [(); 3].map(|()| new_histogram());
    let (one, two) = (options.open("one")?, options.open("two")?);
    let is_ready = AtomicBool::new(false);
    thread::scope(|scope| {
        let service = scope.spawn(|| -> Result<()> {
            let mut tailer = one.queue.reader(Start::Earliest)?;
            let mut appender = two.queue.exclusive_appender()?;
            let mut event = vec![0; codec.size];
            is_ready.store(true, Ordering::Release);
            for _ in 0..count {
                while !read(&mut tailer, &mut event)? {
                    match waiting {
                        Waiting::Sleep => drop(tailer.wait(Wait::Sleep, Some(Duration::from_secs(60)))),
                        other => pause(other),
                    }
                }
                codec.set_service(&mut event, now_ns());
                appender.append(&event)?;
            }
            Ok(())
        });
        while !is_ready.load(Ordering::Acquire) {
            ensure!(!service.is_finished(), "the service has ended before it began");
            thread::yield_now();
        }
        let (mut sent, mut received) = (vec![0; codec.size], vec![0; codec.size]);
        let mut appender = one.queue.exclusive_appender()?;
        let mut tailer = two.queue.reader(Start::Earliest)?;
        let begin = now_ns() + 10_000_000;
        let (mut next, mut recorded) = (0, 0);
        while recorded < count {
            let now = now_ns();
            let due = begin + next * interval_ns;
            if next < count && now >= due {
                codec.encode(&mut sent, next, due);
                let before = now_ns();
                appender.append(&sent)?;
                let after = now_ns();
                if next >= warmup {
                    publish.saturating_record(after - before);
                }
                next += 1;
            }
            if read(&mut tailer, &mut received)? {
                let arrived = now_ns();
                codec.check(&received, recorded)?;
                if recorded >= warmup {
                    let was_due = codec.due(&received);
                    to_service.saturating_record(codec.service(&received) - was_due);
                    end_to_end.saturating_record(arrived - was_due);
                }
                recorded += 1;
            } else if service.is_finished() || now > begin + count * interval_ns + GIVE_UP_NS {
                // The last ones may have arrived since.
                if !service.is_finished()
                    || tailer.position() as u64 == recorded && two.queue.ends().next as u64 == recorded
                {
                    bail!("only {recorded} of {count} came back");
                }
            } else {
                pause(waiting);
            }
        }
        service.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })?;
    Ok(json!({
        "publish": values(&publish), "to_service": values(&to_service), "end_to_end": values(&end_to_end),
    }))
}

/// One writer as fast as it can; then all of it is read back.
fn write(options: &SideOptions) -> Result<Value> {
    let (warmup, count) = (options.number("warmup")?, options.number("count")?);
    let batch = options.number("batch")?.max(1);
    let codec = options.codec()?;
    let mut event = vec![0; codec.size];
    let place = options.open("one")?;
    let mut appender = place.queue.exclusive_appender()?;
    let mut append = |from: u64, to: u64| append_all(&mut appender, &codec, &mut event, from, to, batch);
    append(0, warmup)?;
    let begin = now_ns();
    append(warmup, warmup + count)?;
    let wrote = now_ns() - begin;
    let mut tailer = place.queue.reader(Start::Earliest)?;
    let mut read_all = |from: u64, to: u64| -> Result<()> {
        for sequence in from..to {
            ensure!(read(&mut tailer, &mut event)?, "there is no message {sequence}");
            codec.check(&event, sequence)?;
        }
        Ok(())
    };
    read_all(0, warmup)?;
    let begin = now_ns();
    read_all(warmup, warmup + count)?;
    let read = now_ns() - begin;
    Ok(json!({ "write_s": wrote as f64 / 1e9, "read_s": read as f64 / 1e9 }))
}

fn append_all(
    appender: &mut Appender,
    codec: &Codec,
    event: &mut [u8],
    from: u64,
    to: u64,
    batch: u64,
) -> Result<()> {
    let mut next = from;
    while next < to {
        let end = to.min(next + batch);
        if batch == 1 {
            codec.encode(event, next, next);
            appender.append(&*event)?;
        } else {
            let mut messages = appender.batch();
            for sequence in next..end {
                codec.encode(event, sequence, sequence);
                messages.push(&*event)?;
            }
            messages.commit()?;
        }
        next = end;
    }
    Ok(())
}

/// Writers that want the same queue, for a time; then all of it is read back.
fn contend(options: &SideOptions) -> Result<Value> {
    let writers = options.number("writers")?;
    let (warmup_ns, window_ns) =
        (options.number("warmup_ms")? * 1_000_000, options.number("window_ms")? * 1_000_000);
    let codec = options.codec()?;
    let place = options.open("one")?;
    let begin = now_ns() + 50_000_000;
    let write = |writer: u64| -> Result<(u64, u64)> {
        let mut appender = place.queue.appender()?;
        let mut event = vec![0; codec.size];
        let (mut sequence, mut before) = (0, None);
        loop {
            let now = now_ns().saturating_sub(begin);
            if before.is_none() && now >= warmup_ns {
                before = Some(sequence);
            }
            if now >= warmup_ns + window_ns {
                return Ok((sequence - before.unwrap_or_default(), sequence));
            }
            codec.encode(&mut event, sequence, writer);
            appender.append(&event)?;
            sequence += 1;
        }
    };
    let counts = thread::scope(|scope| {
        let threads: Vec<_> = (0..writers).map(|writer| scope.spawn(move || write(writer))).collect();
        let joined = threads
            .into_iter()
            .map(|thread| thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)));
        joined.collect::<Result<Vec<_>>>()
    })?;
    let (counts, all): (Vec<u64>, Vec<u64>) = counts.into_iter().unzip();
    let mut next = vec![0; all.len()];
    let mut event = vec![0; codec.size];
    let mut tailer = place.queue.reader(Start::Earliest)?;
    while read(&mut tailer, &mut event)? {
        let place = next.get_mut(codec.due(&event) as usize).context("a message is of no writer")?;
        codec.check(&event, *place)?;
        *place += 1;
    }
    ensure!(next == all, "{next:?} are there of {all:?}");
    Ok(json!({ "counts": counts, "seconds": window_ns as f64 / 1e9 }))
}

/// Measures a reader that sleeps and is woken by each message; then the cost of its sleep while nothing comes.
fn wake(options: &SideOptions) -> Result<Value> {
    const IDLE: Duration = Duration::from_secs(2);
    let warmup = options.number("warmup")?;
    let count = warmup + options.number("count")?;
    let interval = Duration::from_nanos(1_000_000_000 / options.number("rate")?);
    let codec = options.codec()?;
    let place = options.open("one")?;
    let (mut wakes, mut publish) = (new_histogram(), new_histogram());
    let read_count = AtomicU64::new(0);
    let idle_s = thread::scope(|scope| -> Result<f64> {
        let mut tailer = place.queue.reader(Start::Earliest)?;
        let (codec, wakes, read_count) = (&codec, &mut wakes, &read_count);
        let reader = scope.spawn(move || -> Result<()> {
            let mut event = vec![0; codec.size];
            for sequence in 0..=count {
                while !read(&mut tailer, &mut event)? {
                    tailer.wait(Wait::Sleep, Some(Duration::from_secs(60)));
                }
                let arrived = now_ns();
                codec.check(&event, sequence)?;
                if (warmup..count).contains(&sequence) {
                    wakes.saturating_record(arrived - codec.due(&event));
                }
                read_count.store(sequence + 1, Ordering::Release);
            }
            Ok(())
        });
        let mut appender = place.queue.exclusive_appender()?;
        let mut event = vec![0; codec.size];
        let mut append = |sequence: u64, publish: &mut Histogram<u64>| -> Result<()> {
            // The time starts at the call: the wake-up is measured, not the delay of this thread.
            let before = now_ns();
            codec.encode(&mut event, sequence, before);
            appender.append(&event)?;
            if sequence >= warmup {
                publish.saturating_record(now_ns() - before);
            }
            Ok(())
        };
        for sequence in 0..count {
            thread::sleep(interval);
            append(sequence, &mut publish)?;
        }
        while read_count.load(Ordering::Acquire) < count {
            ensure!(!reader.is_finished(), "the reader has ended");
            thread::sleep(Duration::from_millis(1));
        }
        let before = process::cpu_time(std::process::id())?;
        thread::sleep(IDLE);
        let used = process::cpu_time(std::process::id())? - before;
        append(count, &mut publish)?;
        reader.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
        Ok(used.as_secs_f64())
    })?;
    Ok(json!({
        "wake": values(&wakes), "publish": values(&publish), "idle_cpu_percent": 100.0 * idle_s / IDLE.as_secs_f64(),
    }))
}

/// Reads a message; returns false if there is none yet.
fn read(tailer: &mut Tailer, event: &mut [u8]) -> Result<bool> {
    let Some(record) = tailer.read()? else { return Ok(false) };
    let value = record.value.unwrap_or_default();
    ensure!(value.len() == event.len(), "a message of {} bytes", value.len());
    event.copy_from_slice(value);
    Ok(true)
}

fn pause(waiting: Waiting) {
    match waiting {
        Waiting::Yield => thread::yield_now(),
        Waiting::Spin | Waiting::Sleep => hint::spin_loop(),
    }
}

/// Recorded values and the count of each, in nanoseconds.
fn values(histogram: &Histogram<u64>) -> Vec<[u64; 2]> {
    histogram
        .iter_recorded()
        .map(|value| [value.value_iterated_to(), value.count_since_last_iteration()])
        .collect()
}

impl fmt::Debug for Place {
    fn fmt(&self, text: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.queue.fmt(text)
    }
}
