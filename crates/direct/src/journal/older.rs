//! What is older than the newest chunks: read from the disk, for one that reads on from there.

use mainstem_queue::{QueueError, Start, Tailer};
use tonic::Status;

use super::Journal;
use crate::chunk::{CHUNK_BYTES, Chunk};
use crate::error::{DirectError, Refused, Result};
use crate::stream::internal;

/// Reads chunks of a journal from its segments. Where one ends, the next one goes on; elsewhere it begins by the index of the segment.
#[derive(Debug)]
pub(crate) struct OlderReader {
    journal: Journal,
    tailer: Option<Tailer>,
}

impl OlderReader {
    pub(crate) fn new(journal: Journal) -> OlderReader {
        OlderReader { journal, tailer: None }
    }

    /// The chunk that begins with the batch of an offset, read beside the tasks of the runtime.
    ///
    /// # Errors
    /// [`Refused::OutOfRange`] below the first offset that is there; what the queue says otherwise.
    pub(crate) async fn read(&mut self, offset: i64) -> Result<Chunk, Status> {
        let (journal, mut tailer) = (self.journal.clone(), self.tailer.take());
        let read = tokio::task::spawn_blocking(move || (read(&journal, &mut tailer, offset), tailer));
        let (chunk, tailer) = read.await.map_err(|error| Status::internal(error.to_string()))?;
        self.tailer = tailer;
        chunk.map_err(|error| match error {
            DirectError::Queue(QueueError::OutOfRange { offset, start, end }) => {
                Refused::OutOfRange { offset, start, end }.to_status()
            }
            other => internal(other),
        })
    }

    /// Keeps no segment mapped until it is read again.
    pub(crate) fn close(&mut self) {
        self.tailer = None;
    }
}

fn read(journal: &Journal, tailer: &mut Option<Tailer>, offset: i64) -> Result<Chunk> {
    let reader = match tailer.take().filter(|tailer| tailer.position() == offset) {
        Some(tailer) => tailer,
        None => journal.queue().reader(Start::Offset(offset))?,
    };
    let reader = tailer.insert(reader);
    let mut bytes = Vec::with_capacity(CHUNK_BYTES);
    let read = reader.read_batches(journal.end(), CHUNK_BYTES, &mut bytes)?;
    Ok(Chunk::new(read.start, read.end, bytes.into(), journal.counters()))
}
