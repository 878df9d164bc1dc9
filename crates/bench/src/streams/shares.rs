//! The share of each stage in a lag: joins the records of publisher and consumer (`stages.rs` beside `stream_lag`).
//!
//! ```text
//! append ─sync─▶ on the disk ─wake─▶ session ─frame─▶ HTTP/2 ─write─▶ socket ─receive─▶ consumer ─handler─▶ handler
//! ```
//!
//! The stages of an event add up to its lag. If a stage begins before the one before has ended, for example if a session was awake already,
//! it took no time.

use std::collections::HashMap;
use std::str::SplitWhitespace;

use anyhow::{Context, Result, ensure};

use super::talk::Figures;

/// The stages, in turn.
const STAGES: [&str; 6] = ["sync", "wake", "frame", "write", "receive", "handler"];
/// The stages of the way through HTTP/2 and the sockets of both ends.
const HTTP2: [usize; 2] = [3, 4];
/// The slowest events: this part of all.
const TAIL: f64 = 0.01;

/// A frame of a consumer, and the time of a stage.
#[derive(Debug)]
struct Frame {
    from: i64,
    next: i64,
    /// The time when the session began to make it; for received frames the same as `at`.
    woken: u64,
    at: u64,
    peer: String,
}

/// Recorded frames of one consumer.
#[derive(Debug, Default)]
struct Seen {
    handed: Vec<Frame>,
    received: Vec<Frame>,
}

/// The records of both processes.
#[derive(Debug, Default)]
struct Stamps {
    /// (offset behind, time).
    synced: Vec<(i64, u64)>,
    /// Times by peer.
    written: HashMap<String, Vec<u64>>,
    consumers: HashMap<String, Seen>,
    /// (consumer, offset, append, handler).
    handled: Vec<(String, i64, u64, u64)>,
}

/// Parses the next word of a line.
fn word<T: std::str::FromStr>(words: &mut SplitWhitespace<'_>) -> Result<T> {
    let word = words.next().context("a line is too short")?;
    word.parse().ok().with_context(|| format!("{word:?} is none of what is expected there"))
}

impl Stamps {
    fn of(texts: [&str; 2]) -> Result<Stamps> {
        let mut stamps = Stamps::default();
        for line in texts.into_iter().flat_map(str::lines) {
            stamps.take(line).with_context(|| format!("the line of a stage cannot be read: {line}"))?;
        }
        // Threads take times in one order and may write them in another.
        stamps.synced.sort_unstable();
        stamps.written.values_mut().for_each(|times| times.sort_unstable());
        for seen in stamps.consumers.values_mut() {
            seen.handed.sort_by_key(|frame| frame.from);
            seen.received.sort_by_key(|frame| frame.from);
        }
        Ok(stamps)
    }

    fn take(&mut self, line: &str) -> Result<()> {
        let words = &mut line.split_whitespace();
        match word::<String>(words)?.as_str() {
            "synced" => self.synced.push((word(words)?, word(words)?)),
            "written" => self.written.entry(word(words)?).or_default().push(word(words)?),
            "handed" => {
                let (consumer, peer) = (word(words)?, word(words)?);
                let (from, next) = (word(words)?, word(words)?);
                let frame = Frame { from, next, woken: word(words)?, at: word(words)?, peer };
                self.consumers.entry(consumer).or_default().handed.push(frame);
            }
            "received" => {
                let consumer = word(words)?;
                let (from, next, at) = (word(words)?, word(words)?, word(words)?);
                let frame = Frame { from, next, woken: at, at, peer: String::new() };
                self.consumers.entry(consumer).or_default().received.push(frame);
            }
            "handled" => self.handled.push((word(words)?, word(words)?, word(words)?, word(words)?)),
            other => anyhow::bail!("{other:?} is no stage"),
        }
        Ok(())
    }

    /// Returns the time of each stage of an event; none if one of them was not recorded.
    fn stages(&self, consumer: &str, offset: i64, sent: u64, handled: u64) -> Option<[u64; 6]> {
        let at = self.synced.partition_point(|(next, _)| *next <= offset);
        let (_, synced) = self.synced.get(at)?;
        let seen = self.consumers.get(consumer)?;
        let (handed, received) = (frame_of(&seen.handed, offset)?, frame_of(&seen.received, offset)?);
        let written = self
            .written
            .get(&handed.peer)
            .and_then(|times| times.get(times.partition_point(|time| *time < handed.at)).copied());
        // The consumer may have received it before the publisher records that it was written.
        let written = written.unwrap_or(received.at).min(received.at);
        let mut before = sent.min(handled);
        let ends = [*synced, handed.woken, handed.at, written, received.at, handled];
        Some(ends.map(|end| {
            let end = end.clamp(before, handled.max(before));
            end - std::mem::replace(&mut before, end)
        }))
    }
}

/// The frame that an offset was in.
fn frame_of(frames: &[Frame], offset: i64) -> Option<&Frame> {
    let behind = frames.partition_point(|frame| frame.from <= offset);
    frames.get(behind.checked_sub(1)?).filter(|frame| offset < frame.next)
}

/// Returns median and p99 of each stage, its mean in the slowest events, in milliseconds, and the same of the lag.
pub(super) fn shares(publisher: &str, consumer: &str) -> Result<Figures> {
    let stamps = Stamps::of([publisher, consumer])?;
    let all = stamps.handled.iter();
    let all = all.filter_map(|(consumer, offset, sent, at)| stamps.stages(consumer, *offset, *sent, *at));
    let mut all: Vec<[u64; 6]> = all.collect();
    ensure!(!all.is_empty(), "of {} events none was seen to pass all stages", stamps.handled.len());
    all.sort_by_key(|stages| stages.iter().sum::<u64>());
    let tail = all.len() - ((all.len() as f64 * TAIL).ceil() as usize).clamp(1, all.len());
    let mut figures = Figures::from([
        ("shares_events".to_owned(), all.len() as f64),
        ("shares_part".to_owned(), all.len() as f64 / stamps.handled.len() as f64),
    ]);
    let mut add = |name: &str, of: &dyn Fn(&[u64; 6]) -> u64| {
        let mean =
            all[tail..].iter().map(|stages| of(stages) as f64).sum::<f64>() / (all.len() - tail) as f64;
        let mut times: Vec<u64> = all.iter().map(of).collect();
        times.sort_unstable();
        let quantile = |quantile: f64| times[((times.len() - 1) as f64 * quantile).round() as usize] as f64;
        for (word, ns) in [("p50", quantile(0.5)), ("p99", quantile(0.99)), ("slowest", mean)] {
            figures.insert(format!("share_{name}_{word}_ms"), ns / 1e6);
        }
    };
    for (index, name) in STAGES.iter().enumerate() {
        add(name, &|stages| stages[index]);
    }
    add("http2", &|stages| HTTP2.iter().map(|index| stages[*index]).sum());
    add("all", &|stages| stages.iter().sum());
    Ok(figures)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two events in one frame, then one that the session was awake for. The last write is recorded after it was received.
    const PUBLISHER: &str = "synced 2 1400\nhanded c 1.1.1.1:9 0 2 1500 1600\nwritten 1.1.1.1:9 1650\nsynced 3 2200\nhanded c 1.1.1.1:9 2 3 \
                             2100 2300\nwritten 1.1.1.1:8 2310\nwritten 1.1.1.1:9 2500\n";
    const CONSUMER: &str = "received c 0 2 1700\nhandled c 0 1000 1720\nhandled c 1 1100 1750\nreceived c 2 3 2400\nhandled c 2 2000 2450\n";

    #[test]
    fn the_stages_of_an_event_add_up_to_its_lag() {
        let stamps = Stamps::of([PUBLISHER, CONSUMER]).unwrap();
        let stages = |offset, sent, handled| stamps.stages("c", offset, sent, handled).unwrap();
        assert_eq!(stages(0, 1000, 1720), [400, 100, 100, 50, 50, 20]);
        assert_eq!(stages(1, 1100, 1750), [300, 100, 100, 50, 50, 50]);
        assert_eq!(stages(2, 2000, 2450), [200, 0, 100, 100, 0, 50]);
        assert_eq!(stamps.stages("other", 0, 1000, 1720), None);
        assert_eq!(stamps.stages("c", 3, 1000, 1720), None);
    }

    #[test]
    fn clocks_that_step_take_nothing_from_nothing() {
        let stamps = Stamps::of([PUBLISHER, CONSUMER]).unwrap();
        assert_eq!(stamps.stages("c", 0, 3000, 1720), Some([0; 6]));
        assert_eq!(stamps.stages("c", 0, 1000, 1450), Some([400, 50, 0, 0, 0, 0]));
    }

    #[test]
    fn a_summary_has_medians_and_what_the_slowest_consist_of() {
        let figures = shares(PUBLISHER, CONSUMER).unwrap();
        assert_eq!((figures["shares_events"], figures["shares_part"]), (3.0, 1.0));
        assert_eq!((figures["share_sync_p50_ms"], figures["share_sync_slowest_ms"]), (0.0003, 0.0004));
        assert_eq!((figures["share_all_p99_ms"], figures["share_all_slowest_ms"]), (0.00072, 0.00072));
        assert_eq!(figures["share_http2_p50_ms"], 0.0001);
        let sum: f64 = STAGES.iter().map(|name| figures[&format!("share_{name}_slowest_ms")]).sum();
        assert!((sum - figures["share_all_slowest_ms"]).abs() < 1e-9);
    }

    #[test]
    fn what_was_not_seen_and_what_is_no_line_is_an_error() {
        assert!(shares("", CONSUMER).unwrap_err().to_string().contains("of 3 events none"));
        let wrong = |line: &str| format!("{:#}", shares(line, CONSUMER).unwrap_err());
        assert!(wrong("synced x 3").contains("\"x\""));
        assert!(wrong("synced 3").contains("too short"));
        assert!(wrong("passed 3").contains("no stage"));
    }
}
