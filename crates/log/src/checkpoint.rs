//! Checkpoint files: one offset per partition, in Kafka's text format.
//!
//! ```text
//! 0                     version
//! 2                     number of lines that follow
//! orders 0 1742         topic, partition, offset
//! orders 1 98
//! ```
//!
//! The offsets live in memory; the file is replaced as a whole ([`replace_file`]), so that after a power cut it is
//! the old or the new one. A caller that needs an update to be durable joins the next replacement
//! ([`OffsetCheckpoint::commit`]): any number of callers share one.

use crate::partition_dir::TopicPartition;
use crate::storage::{Storage, read_small_file, replace_file};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::fmt::{self, Write};
use std::io;
use std::mem;
use std::path::{Path, PathBuf};
#[cfg(any(test, feature = "sim"))]
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};

/// Name of the file with the offsets up to which everything is known to be on disk.
pub(crate) const RECOVERY_POINT_CHECKPOINT: &str = "recovery-point-offset-checkpoint";
/// Name of the file with the log start offsets.
pub(crate) const LOG_START_CHECKPOINT: &str = "log-start-offset-checkpoint";
/// Name of the file with the high watermarks.
pub(crate) const REPLICATION_CHECKPOINT: &str = "replication-offset-checkpoint";

/// Name of the file with the offsets up to which logs are compacted.
pub const CLEANER_CHECKPOINT: &str = "cleaner-offset-checkpoint";

/// A line has at most 249 + 1 + 10 + 1 + 20 + 1 bytes: room for 200,000 partitions with the longest names.
const LEN_MAX: usize = 64 << 20;

/// The offsets of a checkpoint.
pub type Offsets = BTreeMap<TopicPartition, i64>;

/// The reason for which a checkpoint file makes no sense.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum MalformedCheckpoint {
    /// Not version 0.
    #[error("its version is {0:?} and not 0")]
    Version(String),
    /// Not `topic partition offset`.
    #[error("line {line} is malformed: {text:?}")]
    Line {
        /// The line's number, from 1.
        line: usize,
        /// Its text.
        text: String,
    },
    /// The file ends too early or too late.
    #[error("it has {found} entries and says {expected}")]
    Count {
        /// The entries it says.
        expected: usize,
        /// The entries it has.
        found: usize,
    },
    /// The file is not text.
    #[error("it is not a text file")]
    NotText,
}

/// The text of a checkpoint file.
pub(crate) fn format(offsets: &Offsets) -> String {
    let mut text = format!("0\n{}\n", offsets.len());
    for (TopicPartition { topic, partition }, offset) in offsets {
        writeln!(text, "{topic} {partition} {offset}").expect("writing to a string cannot fail");
    }
    text
}

/// The offsets in a checkpoint file. An empty file has none, as in Kafka, which creates it so.
pub(crate) fn parse(bytes: &[u8]) -> Result<Offsets, MalformedCheckpoint> {
    let text = std::str::from_utf8(bytes).map_err(|_| MalformedCheckpoint::NotText)?;
    let mut lines = (1..).zip(text.lines());
    let Some((_, version)) = lines.next() else { return Ok(Offsets::new()) };
    if version != "0" {
        return Err(MalformedCheckpoint::Version(version.to_owned()));
    }
    let Some((number, count)) = lines.next() else { return Ok(Offsets::new()) };
    let expected = count.parse::<usize>().map_err(|_| malformed_line(number, count))?;
    let mut offsets = Offsets::new();
    let mut found = 0;
    for (number, line) in lines {
        let (partition, offset) = parse_entry(line).ok_or_else(|| malformed_line(number, line))?;
        offsets.insert(partition, offset);
        found += 1;
    }
    if found != expected {
        return Err(MalformedCheckpoint::Count { expected, found });
    }
    Ok(offsets)
}

fn malformed_line(line: usize, text: &str) -> MalformedCheckpoint {
    MalformedCheckpoint::Line { line, text: text.to_owned() }
}

fn parse_entry(line: &str) -> Option<(TopicPartition, i64)> {
    let mut words = line.split_ascii_whitespace();
    let (topic, partition, offset) =
        (words.next()?, words.next()?.parse().ok()?, words.next()?.parse().ok()?);
    words.next().is_none().then(|| (TopicPartition::new(topic, partition), offset))
}

/// Called once with whether an update is durable.
pub type OnDurable = Box<dyn FnOnce(io::Result<()>) + Send>;

/// One checkpoint file and the offsets that go into it.
pub struct OffsetCheckpoint {
    storage: Arc<dyn Storage>,
    path: PathBuf,
    state: Mutex<State>,
    /// Held while the file is replaced, so that two replacements cannot overtake each other.
    file: Mutex<()>,
    /// No other thread writes what waits.
    #[cfg(any(test, feature = "sim"))]
    is_by_hand: AtomicBool,
}

#[derive(Default)]
struct State {
    offsets: Offsets,
    /// True if the file may differ from the offsets.
    changed: bool,
    waiting: Vec<OnDurable>,
    /// True while a caller replaces the file. It looks for waiting callers afterwards.
    writing: bool,
}

impl OffsetCheckpoint {
    /// Reads the file. One that makes no sense counts as empty, with a warning: without a recovery point more is
    /// checked, without a start offset the log starts at its first segment.
    pub(crate) fn load(storage: Arc<dyn Storage>, dir: &Path, name: &str) -> io::Result<OffsetCheckpoint> {
        let path = dir.join(name);
        let offsets = match read_small_file(&*storage, &path, LEN_MAX) {
            Ok(bytes) => parse(&bytes).unwrap_or_else(|error| {
                tracing::warn!(file = %path.display(), %error, "a checkpoint file is ignored");
                Offsets::new()
            }),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Offsets::new(),
            Err(error) => return Err(error),
        };
        let state = Mutex::new(State { offsets, ..State::default() });
        Ok(OffsetCheckpoint {
            storage,
            path,
            state,
            file: Mutex::new(()),
            #[cfg(any(test, feature = "sim"))]
            is_by_hand: AtomicBool::new(false),
        })
    }

    /// The offset of a partition.
    pub fn get(&self, partition: &TopicPartition) -> Option<i64> {
        self.state.lock().offsets.get(partition).copied()
    }

    /// The offset of a partition that the file has durably; `None`: it has none, or may have another one than is noted.
    pub(crate) fn written(&self, partition: &TopicPartition) -> Option<i64> {
        // While it is replaced, it is not known which of the two it is.
        let _file = self.file.try_lock()?;
        let state = self.state.lock();
        state.offsets.get(partition).copied().filter(|_| !state.changed)
    }

    /// Notes an offset; it reaches the file with the next [`Self::write`] or [`Self::commit`].
    pub fn set(&self, partition: &TopicPartition, offset: i64) {
        let mut state = self.state.lock();
        state.changed |= match state.offsets.get_mut(partition) {
            Some(known) => mem::replace(known, offset) != offset,
            None => state.offsets.insert(partition.clone(), offset).is_none(),
        };
    }

    /// Lowers an offset, durably, to at most `bound`; an offset that is not noted stays so. What an earlier call has noted and could
    /// not write is written.
    pub(crate) fn lower(&self, partition: &TopicPartition, bound: i64) -> io::Result<()> {
        match self.get(partition) {
            None => return Ok(()),
            Some(noted) if noted > bound => self.set(partition, bound),
            Some(_) if self.written(partition).is_some() => return Ok(()),
            Some(_) => {}
        }
        self.commit()
    }

    /// Forgets the partitions that `keep` does not want; whether there were any.
    pub(crate) fn retain(&self, mut keep: impl FnMut(&TopicPartition) -> bool) -> bool {
        let mut state = self.state.lock();
        let before = state.offsets.len();
        state.offsets.retain(|partition, _| keep(partition));
        let forgotten = state.offsets.len() < before;
        state.changed |= forgotten;
        forgotten
    }

    /// Makes the file durable as the offsets are now, if it differs. Blocks for two syncs.
    pub fn write(&self) -> io::Result<()> {
        let _file = self.file.lock();
        let text = {
            let mut state = self.state.lock();
            if !mem::take(&mut state.changed) {
                return Ok(());
            }
            format(&state.offsets)
        };
        // After a failure the next replacement starts afresh, with a file of its own.
        replace_file(&*self.storage, &self.path, text.as_bytes())
            .inspect_err(|_| self.state.lock().changed = true)
    }

    /// Requests that the offsets become durable in their present state, and calls `on_durable` when they are. The next
    /// replacement of the file serves all waiting callers. `true`: the caller has to run [`Self::write_for_waiting`] on a thread
    /// that may block; no other thread does.
    #[must_use]
    pub(crate) fn enqueue(&self, on_durable: OnDurable) -> bool {
        let mut state = self.state.lock();
        state.waiting.push(on_durable);
        !mem::replace(&mut state.writing, true)
    }

    /// Replaces the file until no caller waits any more.
    pub(crate) fn write_for_waiting(&self) {
        while let Some(waiting) = self.take_waiting() {
            let result = self.write();
            for on_durable in waiting {
                on_durable(crate::flusher::copy_result(&result));
            }
        }
    }

    fn take_waiting(&self) -> Option<Vec<OnDurable>> {
        let mut state = self.state.lock();
        let waiting = mem::take(&mut state.waiting);
        state.writing = !waiting.is_empty();
        state.writing.then_some(waiting)
    }

    /// Makes a caller of [`Self::commit`] write for the callers before it: no other thread does.
    #[cfg(any(test, feature = "sim"))]
    pub(crate) fn set_by_hand(&self) {
        self.is_by_hand.store(true, Ordering::Relaxed);
    }

    #[cfg(any(test, feature = "sim"))]
    fn writes_by_hand(&self) -> bool {
        self.is_by_hand.load(Ordering::Relaxed)
    }

    #[cfg(not(any(test, feature = "sim")))]
    fn writes_by_hand(&self) -> bool {
        false
    }

    /// Makes the offsets as they are now durable, together with those of other callers; blocks.
    pub fn commit(&self) -> io::Result<()> {
        let (sender, receiver) = mpsc::sync_channel(1);
        let write = self.enqueue(Box::new(move |result| {
            // The receiver waits below.
            let _ = sender.send(result);
        }));
        if write || self.writes_by_hand() {
            self.write_for_waiting();
        }
        receiver.recv().unwrap_or_else(|_| Err(io::ErrorKind::Interrupted.into()))
    }
}

impl fmt::Debug for OffsetCheckpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OffsetCheckpoint").field("path", &self.path).finish_non_exhaustive()
    }
}

/// Fuzz body: what is read is read again from what would be written.
pub(crate) fn fuzz(data: &[u8]) {
    if let Ok(offsets) = parse(data) {
        assert_eq!(parse(format(&offsets).as_bytes()), Ok(offsets));
    }
}

#[cfg(test)]
mod tests;
