//! Embedded queues: the loads of one process between threads, over shared memory.
//!
//! A side is a process that runs one load on one queue and prints its results, so that its memory is its own. Ours is this program again
//! ([`side`]). The peer's is `chronicle/ChronicleSide.java`, which does the same statement for statement.

pub(crate) mod chronicle;
mod event;
pub(crate) mod side;

use anyhow::{Context, Result};

/// The content of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Event {
    /// A number of bytes: three numbers and a pattern.
    Binary(usize),
    /// The same as 512 bytes of JSON.
    Json,
}

/// The way in which the ends of a queue wait for the next message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Waiting {
    /// They look again at once.
    Spin,
    /// They let other threads run between looks.
    Yield,
    /// The service sleeps, and is woken; the other end spins, since it has messages to send meanwhile.
    Sleep,
}

/// One load of an embedded queue.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum EmbeddedLoad {
    /// Generator, queue one, service, queue two, recorder, by a schedule.
    Hops { event: Event, per_s: u32, waiting: Waiting },
    /// One writer as fast as it can, a message at a time.
    Write,
    /// The same in batches of 32.
    WriteBatches,
    /// Four writers that want the same queue.
    Contend,
    /// A reader that sleeps is woken 1,000 times a second; then it sleeps and nothing comes.
    Wake,
}

impl Event {
    /// The name that sides get as an argument.
    fn name(self) -> String {
        match self {
            Self::Binary(bytes) => format!("binary-{bytes}"),
            Self::Json => "json-512".to_owned(),
        }
    }

    fn parse(name: &str) -> Result<Self> {
        if name == "json-512" {
            return Ok(Self::Json);
        }
        let bytes = name.strip_prefix("binary-").and_then(|bytes| bytes.parse().ok());
        Ok(Self::Binary(bytes.with_context(|| format!("{name} is no event"))?))
    }
}

impl Waiting {
    /// The name that sides get as an argument.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Spin => "spin",
            Self::Yield => "yield",
            Self::Sleep => "sleep",
        }
    }
}

impl EmbeddedLoad {
    /// Returns the arguments of a side besides its directory: the load and its numbers. `window_s` is the measured time.
    pub(crate) fn arguments(self, warmup_s: f64, window_s: f64) -> Vec<String> {
        let event = match self {
            Self::Hops { event, .. } => event,
            Self::Wake => Event::Binary(212),
            Self::Write | Self::WriteBatches | Self::Contend => Event::Binary(96),
        };
        let event = format!("event={}", event.name());
        let by_rate = |per_s: u32| {
            let per_s = f64::from(per_s);
            // A JVM has compiled this code after 50,000 messages, if it had the time to.
            let warmup = (per_s * warmup_s).max(f64::from(WARMUP_MESSAGES).min(4.0 * per_s * warmup_s));
            [format!("warmup={}", warmup as u64), format!("count={}", (per_s * window_s) as u64)]
        };
        let (load, numbers) = match self {
            Self::Hops { per_s, waiting, .. } => {
                let further = [format!("rate={per_s}"), format!("wait={}", waiting.name())];
                ("hops", [by_rate(per_s).to_vec(), further.to_vec()].concat())
            }
            Self::Write | Self::WriteBatches => {
                let count = |seconds: f64| self.written(seconds) as u64;
                let batch = if self == Self::Write { 1 } else { BATCH };
                let numbers = [
                    format!("warmup={}", count(warmup_s)),
                    format!("count={}", count(window_s)),
                    format!("batch={batch}"),
                ];
                ("write", numbers.to_vec())
            }
            Self::Contend => {
                let ms = |seconds: f64| (1e3 * seconds) as u64;
                let numbers = [
                    format!("warmup_ms={}", ms(warmup_s)),
                    format!("window_ms={}", ms(window_s)),
                    format!("writers={WRITERS}"),
                ];
                ("contend", numbers.to_vec())
            }
            Self::Wake => {
                ("wake", [by_rate(WAKES_PER_S).to_vec(), vec![format!("rate={WAKES_PER_S}")]].concat())
            }
        };
        [vec![load.to_owned(), event], numbers].concat()
    }

    /// Returns the number of measured messages of one writer.
    pub(crate) fn written(self, window_s: f64) -> f64 {
        (WRITES_PER_S * window_s).floor()
    }

    /// Returns true if Chronicle Queue has this load: its readers cannot be woken, and it has no batches.
    pub(crate) fn is_of_peer(self) -> bool {
        match self {
            Self::Hops { waiting, .. } => waiting != Waiting::Sleep,
            Self::Write | Self::Contend => true,
            Self::WriteBatches | Self::Wake => false,
        }
    }
}

/// The least number of messages before the window, unless the warm-up is cut short.
const WARMUP_MESSAGES: u32 = 50_000;
const BATCH: u32 = 32;
const WRITERS: u32 = 4;
/// Messages of one writer for each second of the window. The time that they take is the result.
const WRITES_PER_S: f64 = 1e6;
const WAKES_PER_S: u32 = 1_000;
