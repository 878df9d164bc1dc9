//! Reads of chunks that are older than the ring, from the disk.

use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use mainstem_queue::{QueueError, Start, Tailer};
use tonic::Status;

use super::Journal;
use crate::chunk::{CHUNK_BYTES, Chunk};
use crate::error::{DirectError, Refused, Result};
use crate::pace::{PIECE_BYTES, Progress};
use crate::past::{OpenSegment, Past};
use crate::stream::internal;

/// The most by which the runtime's timer is late. The reading thread itself waits for the rest.
const TIMER_LATE: Duration = Duration::from_millis(2);

/// Reads chunks of a journal from its segments. A read that begins where the last one ended continues; any other one uses the index of
/// the segment.
#[derive(Debug)]
pub(crate) struct OlderReader {
    journal: Journal,
    past: Arc<Past>,
    /// The place of the last read, if its segment stays open.
    kept: Option<(Tailer, OpenSegment)>,
    /// The progress at the last read.
    before: Option<Progress>,
    /// The time that the last read took, if it was in a turn that has not ended.
    turn: Option<Duration>,
}

impl OlderReader {
    pub(crate) fn new(journal: Journal, past: Arc<Past>) -> OlderReader {
        OlderReader { journal, past, kept: None, before: None, turn: None }
    }

    /// Reads the chunk that begins with the batch of an offset, on a thread for blocking work. While others are sent new events, it is a
    /// small one and waits for its turn. [`OlderReader::end_turn`] reports the work after it.
    ///
    /// # Errors
    /// [`Refused::OutOfRange`] below the first offset of the journal; otherwise the queue's error.
    pub(crate) async fn read(&mut self, offset: i64) -> Result<Chunk, Status> {
        let begins = self.turn(offset);
        if let Some(begins) = begins {
            let early = begins.saturating_duration_since(Instant::now()).saturating_sub(TIMER_LATE);
            if !early.is_zero() {
                tokio::time::sleep(early).await;
            }
        }
        let (mut tailer, segment) = self.kept.take().unzip();
        let journal = self.journal.clone();
        let read = tokio::task::spawn_blocking(move || {
            let bytes_max = match begins {
                None => CHUNK_BYTES,
                Some(begins) => {
                    thread::sleep(begins.saturating_duration_since(Instant::now()));
                    PIECE_BYTES
                }
            };
            let began = Instant::now();
            let chunk = read(&journal, &mut tailer, offset, bytes_max);
            (chunk, tailer, began.elapsed())
        });
        let (chunk, tailer, took) = read.await.map_err(|error| Status::internal(error.to_string()))?;
        let segment = segment.or_else(|| self.past.keep_open());
        (self.kept, self.turn) = (tailer.zip(segment), begins.map(|_| took));
        chunk.map_err(|error| match error {
            DirectError::Queue(QueueError::OutOfRange { offset, start, end }) => {
                Refused::OutOfRange { offset, start, end }.to_status()
            }
            other => internal(other),
        })
    }

    /// Returns the time at which the chunk of an offset may be read; `None` if now.
    fn turn(&mut self, offset: i64) -> Option<Instant> {
        let now = Progress { position: offset, end: self.journal.end() };
        let gains = self.before.replace(now).is_none_or(|before| now.gains_since(before));
        gains.then(|| self.past.take_turn()).flatten()
    }

    /// Ends the turn of the last read: the time to evaluate it, and the bytes that were sent of it.
    pub(crate) fn end_turn(&mut self, evaluating: Duration, sent: usize) {
        if let Some(reading) = self.turn.take() {
            self.past.end_turn(reading + evaluating, sent);
        }
    }

    /// Closes the segment until the next read.
    pub(crate) fn close(&mut self) {
        (self.kept, self.before) = (None, None);
    }
}

fn read(journal: &Journal, tailer: &mut Option<Tailer>, offset: i64, bytes_max: usize) -> Result<Chunk> {
    let reader = match tailer.take().filter(|tailer| tailer.position() == offset) {
        Some(tailer) => tailer,
        None => journal.queue().reader(Start::Offset(offset))?,
    };
    let reader = tailer.insert(reader);
    let mut bytes = Vec::with_capacity(bytes_max);
    let read = reader.read_batches(journal.end(), bytes_max, &mut bytes)?;
    Ok(Chunk::new(read.start, read.end, bytes.into(), journal.counters()))
}
