//! Reading: forwards and backwards, by offset and by time, with or without a name, and waiting for what comes.

mod back;
mod message;
mod places;
#[cfg(test)]
mod tests;
mod trail;
#[cfg(test)]
mod work;

use std::fs::File;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering::Acquire;
use std::thread;
use std::time::{Duration, Instant};

use mainstem_records::{Batch, Record, RecordCursor, Scratch};

use crate::control::Control;
use crate::error::{QueueError, Result};
use crate::inner::Inner;
use crate::map::{Map, PIECE_BYTES};
use crate::segment;
use crate::tailer::message::OpenBatch;
use crate::tailer::trail::Back;
use crate::tailers::Position;

pub use crate::tailer::message::Message;

/// The most bytes of decompressed records. Only a broker's clients write compressed batches.
const DECOMPRESSED_MAX: usize = 64 << 20;
/// The number of empty looks in a row before a reader compares its position with the next offset. Rare looks leave that cache line
/// to the writer, which would otherwise wait for it at each message.
const LOOKS_BEFORE_CHECK: u32 = 1 << 14;
/// The interval of looks of a reader that cannot be woken.
const LOOK_AGAIN: Duration = Duration::from_millis(1);

/// The start of a tailer without a name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Start {
    /// With the first message of the queue.
    Earliest,
    /// With the next message that is appended.
    Latest,
    /// With the message of this offset.
    Offset(i64),
    /// With the first message whose timestamp is this or later, in ms since 1970.
    Time(i64),
}

/// The way in which a tailer waits for the next message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wait {
    /// It looks again at once: the shortest delay, for a core of its own.
    Spin,
    /// It lets other threads run between looks.
    Yield,
    /// It sleeps, and the appender wakes it; no CPU time meanwhile.
    Sleep,
}

/// Reads a queue. As an iterator it ends at the published end, and may be asked again later.
#[derive(Debug)]
pub struct Tailer {
    inner: Arc<Inner>,
    segment: Option<ReadSegment>,
    position: usize,
    /// The offset that is read next.
    next: i64,
    batch: Option<OpenBatch>,
    /// The offsets of that batch, by its header: its first and its last records may have been compacted away.
    covered: Range<i64>,
    named: Option<Position>,
    synced_only: bool,
    scratch: Scratch,
    back: Back,
    /// Pages of the segment before this are not kept resident.
    forgotten_to: usize,
    /// Position beyond which more of them are given back.
    forgets_at: usize,
    /// The number of empty looks in a row.
    empty_looks: u32,
}

#[derive(Debug)]
struct ReadSegment {
    base: i64,
    roll: u32,
    /// Its length is known when it is closed, even after retention has deleted its name.
    file: File,
    map: Arc<Map>,
    /// The length of the segment, once it is closed.
    sealed: Option<usize>,
}

impl Tailer {
    pub(crate) fn named(inner: &Arc<Inner>, name: &str) -> Result<Tailer> {
        inner.check_writable()?;
        let start = inner.control.log_start().load(Acquire);
        let named = Position::open(&inner.directory, name, start)?;
        // Messages that retention deleted meanwhile are skipped. A position is never beyond the end.
        let start = inner.control.log_start().load(Acquire);
        let next = named.load().max(start).min(inner.control.next_offset());
        let mut tailer = Tailer::at(inner, next);
        tailer.named = Some(named);
        Ok(tailer)
    }

    pub(crate) fn unnamed(inner: &Arc<Inner>, start: Start) -> Result<Tailer> {
        let mut tailer = Tailer::at(inner, 0);
        tailer.seek(start)?;
        Ok(tailer)
    }

    pub(crate) fn at(inner: &Arc<Inner>, next: i64) -> Tailer {
        Tailer {
            inner: Arc::clone(inner),
            segment: None,
            position: 0,
            next,
            batch: None,
            covered: 0..0,
            named: None,
            synced_only: false,
            scratch: Scratch::default(),
            back: Back::default(),
            forgotten_to: 0,
            forgets_at: usize::MAX,
            empty_looks: 0,
        }
    }

    pub(crate) fn inner(&self) -> &Arc<Inner> {
        &self.inner
    }

    pub(crate) fn is_synced_only(&self) -> bool {
        self.synced_only
    }

    /// The offset that is read next.
    pub fn position(&self) -> i64 {
        self.next
    }

    /// Limits the tailer to synced messages ([`Ends::synced`](crate::Ends)), which no power cut erases. A sync wakes it as an append
    /// does.
    #[must_use]
    pub fn synced_only(mut self, synced_only: bool) -> Tailer {
        self.synced_only = synced_only;
        self
    }

    /// The offset before which messages may be read.
    fn readable_end(&self) -> i64 {
        match self.synced_only {
            true => self.control().synced_end().load(Acquire),
            false => self.control().next_offset(),
        }
    }

    /// Moves the tailer. A named one stores the new position.
    ///
    /// # Errors
    /// [`QueueError::OutOfRange`] for an offset that is not in the queue; the position stays.
    pub fn seek(&mut self, to: Start) -> Result<()> {
        let (start, end) = (self.control().log_start().load(Acquire), self.control().next_offset());
        let offset = match to {
            Start::Earliest => start,
            Start::Latest => end,
            Start::Offset(offset) if (start..=end).contains(&offset) => offset,
            Start::Offset(offset) => return Err(QueueError::OutOfRange { offset, start, end }),
            Start::Time(timestamp) => self.offset_at(timestamp)?,
        };
        self.go_to(offset);
        self.commit();
        Ok(())
    }

    fn go_to(&mut self, offset: i64) {
        self.next = offset;
        self.batch = None;
        self.segment = None;
        self.back.clear();
    }

    /// Stores the position of a named tailer now. Otherwise it is stored with the next read, so that a message whose
    /// handling was cut off by the death of the process is read again.
    pub fn commit(&self) {
        if let Some(named) = &self.named {
            named.store(self.next);
        }
    }

    /// Returns the next message; `None` if there is none yet. The call also says that the message before it is done.
    ///
    /// # Errors
    /// [`QueueError::Damaged`] if the bytes are not those that were written, [`QueueError::OutOfRange`] if retention has
    /// deleted the message.
    pub fn read(&mut self) -> Result<Option<Record<'_>>> {
        if !self.find_next()? {
            return Ok(None);
        }
        let Tailer { inner, segment, batch, next, position, .. } = self;
        let (Some(segment), Some(open)) = (segment.as_ref(), batch.as_mut()) else { return Ok(None) };
        match open.take(&segment.map) {
            Ok(record) => {
                *next = record.offset + 1;
                Ok(Some(record))
            }
            Err(reason) => Err(damaged(&inner.directory, segment.base, *position, *next, reason)),
        }
    }

    /// The same, as a message that can be kept.
    ///
    /// # Errors
    /// As [`Tailer::read`].
    pub fn read_message(&mut self) -> Result<Option<Message>> {
        if !self.find_next()? {
            return Ok(None);
        }
        let (Some(segment), Some(open)) = (self.segment.as_ref(), self.batch.as_mut()) else {
            return Ok(None);
        };
        let before = open.clone();
        let (offset, timestamp) = match open.take(&segment.map) {
            Ok(record) => (record.offset, record.timestamp),
            Err(reason) => return Err(self.damaged(reason)),
        };
        self.next = offset + 1;
        Ok(Some(Message { map: Arc::clone(&segment.map), batch: before, offset, timestamp }))
    }

    /// Appends whole batches to `out`, as they are on disk, checked by their CRCs, until there are `bytes_max` bytes or the next
    /// one begins at `end` or later; one at least, however large, if there is any. Returns the offsets that they cover: the first
    /// batch may begin before them.
    ///
    /// # Errors
    /// As [`Tailer::read`]; then `out` has the batches before the unreadable one. If the next segment cannot be mapped for want of
    /// descriptors or memory ([`QueueError::is_shortage`]), they are returned, and the error comes with the next call.
    pub fn read_batches(&mut self, end: i64, bytes_max: usize, out: &mut Vec<u8>) -> Result<Range<i64>> {
        self.commit();
        let from = self.next;
        match self.read_batches_before(end, bytes_max, out) {
            Err(error) if error.is_shortage() && self.next > from => Ok(from..self.next),
            Err(error) => Err(error),
            Ok(()) => Ok(from..self.next),
        }
    }

    fn read_batches_before(&mut self, end: i64, bytes_max: usize, out: &mut Vec<u8>) -> Result<()> {
        let begin = out.len();
        if let Some(open) = self.batch.take() {
            // Some of its records were read one by one.
            self.position = open.range.start;
        }
        let end = end.min(self.readable_end());
        while self.next < end {
            if self.segment.is_none() {
                self.enter_segment(self.next)?;
            }
            let Some((_, next, range)) = self.peek_batch()? else {
                let reason = format!("messages before offset {end} are published, and it ends");
                return Err(self.damaged(reason));
            };
            if next > self.next {
                let segment = self.segment.as_ref().expect("it was entered");
                let bytes = segment.map.published(range.clone());
                if out.len() > begin && out.len() - begin + bytes.len() > bytes_max {
                    break;
                }
                let (batch, _) =
                    Batch::split_first(bytes).map_err(|error| self.damaged(error.to_string()))?;
                if !batch.verify_crc() {
                    return Err(self.damaged("its CRC is not that of its bytes".to_owned()));
                }
                if !batch.attributes().is_control() {
                    out.extend_from_slice(bytes);
                }
                self.next = next;
            }
            self.position = range.end;
            self.give_back();
        }
        Ok(())
    }

    /// Waits until there is something to read, for at most `timeout`; returns true if there is.
    pub fn wait(&mut self, how: Wait, timeout: Option<Duration>) -> bool {
        let deadline = timeout.map(|timeout| Instant::now() + timeout);
        loop {
            if self.is_there_more() {
                return true;
            }
            if deadline.is_some_and(|deadline| Instant::now() >= deadline) {
                return false;
            }
            match how {
                Wait::Spin => std::hint::spin_loop(),
                Wait::Yield => thread::yield_now(),
                Wait::Sleep => self.sleep(deadline),
            }
        }
    }

    /// Looks only at the published end while all of the open segment was read, as reading does.
    fn is_there_more(&mut self) -> bool {
        if let Some(segment) = &self.segment
            && !self.synced_only
        {
            let end = self.control().end();
            let has_read_all = end.roll == segment.roll
                && end.bytes as usize <= self.position
                && !self.batch.as_ref().is_some_and(OpenBatch::has_more);
            if has_read_all {
                self.empty_looks = self.empty_looks.saturating_add(1);
                if self.empty_looks < LOOKS_BEFORE_CHECK {
                    return false;
                }
            }
        }
        let is_more = self.readable_end() > self.next;
        if !is_more {
            self.empty_looks = 0;
        }
        is_more
    }

    /// Sleeps until something is published, or the deadline, or for no reason.
    fn sleep(&self, deadline: Option<Instant>) {
        let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
        let control = self.control();
        if !control.is_writable {
            thread::sleep(left.map_or(LOOK_AGAIN, |left| left.min(LOOK_AGAIN)));
            return;
        }
        let announced = control.announce_sleep();
        // An appender that publishes after this look sees that this process sleeps.
        if self.readable_end() <= self.next {
            control.sleep(announced, left);
        }
    }

    /// Returns an iterator that waits for new messages and does not end.
    pub fn follow(&mut self, how: Wait) -> Follow<'_> {
        Follow { tailer: self, how }
    }

    fn control(&self) -> &Control {
        &self.inner.control
    }

    /// Opens the batch with the next record, and moves its cursor there; false if there is none yet.
    fn find_next(&mut self) -> Result<bool> {
        self.commit();
        // Syncs end between batches, so that one is read whole or not at all.
        if self.synced_only && self.readable_end() <= self.next {
            return Ok(false);
        }
        loop {
            if self.batch.as_ref().is_some_and(OpenBatch::has_more) {
                return Ok(true);
            }
            if self.batch.is_some() {
                // The batch stays for a reader that turns back.
                self.next = self.next.max(self.covered.end);
            }
            if !self.open_batch()? {
                self.empty_looks = self.empty_looks.saturating_add(1);
                if self.empty_looks < LOOKS_BEFORE_CHECK {
                    return Ok(false);
                }
                self.empty_looks = 0;
                if !self.open_promised_batch()? {
                    return Ok(false);
                }
            }
            self.empty_looks = 0;
        }
    }

    /// Opens the batch at the position if the next offset says that there is one; false if not.
    ///
    /// # Errors
    /// [`QueueError::Damaged`] if no segment has it. Writers publish bytes before offsets, so only a damaged control file
    /// can say so. A reader that took it for "not yet" would look again for ever.
    fn open_promised_batch(&mut self) -> Result<bool> {
        let promised = self.control().next_offset();
        if promised <= self.next {
            return Ok(false);
        }
        if self.open_batch()? {
            return Ok(true);
        }
        // Reading may have passed control batches up to the end, or a writer has repaired the queue meanwhile.
        match promised.min(self.control().next_offset()) <= self.next {
            true => Ok(false),
            false => {
                Err(self.damaged(format!("messages before offset {promised} are published, and it ends")))
            }
        }
    }

    /// Opens the batch at the position; false if there is none yet.
    fn open_batch(&mut self) -> Result<bool> {
        if self.segment.is_none() {
            self.enter_segment(self.next)?;
        }
        loop {
            let Some((base, next_offset, range)) = self.peek_batch()? else { return Ok(false) };
            self.position = range.end;
            if next_offset <= self.next {
                continue;
            }
            let Some(mut open) = self.open_at(range)? else {
                self.next = next_offset;
                continue;
            };
            let segment = self.segment.as_ref().expect("it was entered");
            if base < self.next {
                open.skip_to(&segment.map, self.next).map_err(|reason| self.damaged(reason))?;
            }
            self.batch = Some(open);
            self.covered = base..next_offset;
            self.give_back();
            return Ok(true);
        }
    }

    /// Checks and decompresses the batch at a place of the segment, with the cursor at its first record; `None` if its records are
    /// control records.
    fn open_at(&mut self, range: Range<usize>) -> Result<Option<OpenBatch>> {
        let segment = self.segment.as_ref().expect("it was entered");
        let bytes = segment.map.published(range.clone());
        let (batch, _) = Batch::split_first(bytes).map_err(|error| self.damaged(error.to_string()))?;
        if !batch.verify_crc() {
            return Err(self.damaged("its CRC is not that of its bytes".to_owned()));
        }
        if batch.attributes().is_control() {
            return Ok(None);
        }
        let records = match batch.attributes().is_compressed() {
            false => None,
            true => {
                #[cfg(test)]
                work::count_decompressed();
                let mut buffer = Vec::new();
                let decompressed = batch.decompressed(&mut buffer, DECOMPRESSED_MAX, &mut self.scratch);
                decompressed.map(drop).map_err(|error| self.damaged(error.to_string()))?;
                Some(Arc::new(buffer))
            }
        };
        let count = batch.record_count();
        Ok(Some(OpenBatch { range, records, cursor: RecordCursor::default(), count }))
    }

    /// Returns first offset, next offset and place of the batch at the position; moves to the next segment at the end
    /// of one.
    fn peek_batch(&mut self) -> Result<Option<(i64, i64, Range<usize>)>> {
        loop {
            let limit = self.limit()?;
            let segment = self.segment.as_ref().expect("it was entered");
            if self.position < limit {
                let bytes = segment.map.published(self.position..limit);
                let (batch, _) =
                    Batch::split_first(bytes).map_err(|error| self.damaged(error.to_string()))?;
                let (base, next) = (batch.base_offset(), batch.next_offset());
                if next <= base || base > self.next {
                    return Err(self.damaged(format!("offset {base} comes where {} should", self.next)));
                }
                return Ok(Some((base, next, self.position..self.position + batch.size())));
            }
            if segment.sealed.is_none() {
                return Ok(None);
            }
            let (open, _) = self.control().open_segment();
            if open == segment.base {
                return Ok(None);
            }
            let (next, left) = (self.next, segment.base);
            self.enter_segment(next)?;
            if self.segment.as_ref().is_none_or(|segment| segment.base <= left) {
                return Err(self.damaged(format!("it ends before offset {next}, which no other segment has")));
            }
        }
    }

    /// Returns the readable bytes of the segment.
    fn limit(&mut self) -> Result<usize> {
        let segment = self.segment.as_ref().expect("it was entered");
        if let Some(sealed) = segment.sealed {
            return Ok(sealed);
        }
        let end = self.inner.control.end();
        if end.roll == segment.roll {
            let (bytes, mapped) = (end.bytes as usize, segment.map.len());
            if bytes > mapped {
                return Err(self.damaged(format!("{bytes} bytes are published, and it has {mapped}")));
            }
            return Ok(bytes);
        }
        // It was closed meanwhile; its length is final.
        let len = segment.file.metadata().map_err(|error| {
            QueueError::io("reading", &segment::path(&self.inner.directory, segment.base, "log"), error)
        })?;
        let len = (len.len() as usize).min(segment.map.len());
        self.segment.as_mut().expect("it was entered").sealed = Some(len);
        Ok(len)
    }

    /// Maps the segment that holds `offset`, and goes to the index entry before it.
    fn enter_segment(&mut self, offset: i64) -> Result<()> {
        let control = Arc::clone(&self.inner.control);
        let directory = &self.inner.directory;
        for _ in 0..100 {
            let (open, end) = control.open_segment();
            let start = control.log_start().load(Acquire);
            if offset < start {
                return Err(QueueError::OutOfRange { offset, start, end: control.next_offset() });
            }
            let base = match offset >= open {
                true => open,
                // The offset itself names the next segment in order.
                false if segment::path(directory, offset, "log").exists() => offset,
                false => segment::list(directory)?.into_iter().rfind(|base| *base <= offset).unwrap_or(start),
            };
            let path = segment::path(directory, base, "log");
            let mapped = File::open(&path).and_then(|file| {
                let len = file.metadata()?.len() as usize;
                Ok((Map::new(&file, len, false)?, len, file))
            });
            let (map, len, file) = match mapped {
                // Retention has deleted it: look again.
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => continue,
                mapped => mapped.map_err(|error| QueueError::io("mapping", &path, error))?,
            };
            if base == open && control.end().roll != end.roll {
                // It was closed while it was mapped; the length may be an earlier one.
                continue;
            }
            let sealed = (base != open).then_some(len);
            let entries = (base == open).then(|| control.index_entries().load(Acquire));
            self.position = match offset == base {
                true => 0,
                false => segment::position_before(directory, base, entries, offset)? as usize,
            };
            self.keep_resident_from(self.position);
            self.back.left_segment();
            self.batch = None;
            self.segment = Some(ReadSegment { base, roll: end.roll, file, map: Arc::new(map), sealed });
            return Ok(());
        }
        let (start, end) = (control.log_start().load(Acquire), control.next_offset());
        Err(QueueError::OutOfRange { offset, start, end })
    }

    /// Returns the first offset with this timestamp or a later one; the end of the queue if there is none.
    fn offset_at(&self, timestamp: i64) -> Result<i64> {
        let control = self.control();
        let (open, _) = control.open_segment();
        let start = control.log_start().load(Acquire);
        let bases = segment::list(&self.inner.directory)?;
        // The first message may be within a segment.
        let first = bases.iter().rposition(|base| *base <= start).unwrap_or(0);
        for base in bases.into_iter().skip(first).filter(|base| *base <= open) {
            let newest = match base == open {
                true => Some(control.max_timestamp().load(Acquire)),
                false => segment::newest_timestamp(&self.inner.directory, base)?,
            };
            if newest.is_none_or(|newest| newest < timestamp) {
                continue;
            }
            let entries = (base == open).then(|| control.time_entries().load(Acquire));
            let from = segment::offset_before(&self.inner.directory, base, entries, timestamp)?;
            let mut scan = Tailer::at(&self.inner, from.max(start));
            while let Some(record) = scan.read()? {
                if record.timestamp >= timestamp {
                    return Ok(record.offset);
                }
            }
        }
        Ok(control.next_offset())
    }

    /// Gives back pages that were read long ago.
    fn give_back(&mut self) {
        if self.position > self.forgets_at {
            self.forget();
        }
    }

    #[cold]
    fn forget(&mut self) {
        // Whole pieces: a page in which one call ends would be left out by the next one.
        let to = (self.position - self.inner.options.resident_bytes) / PIECE_BYTES * PIECE_BYTES;
        if let Some(segment) = &self.segment {
            segment.map.forget(self.forgotten_to..to);
        }
        self.keep_resident_from(to);
    }

    fn keep_resident_from(&mut self, position: usize) {
        self.forgotten_to = position;
        self.forgets_at = position.saturating_add(self.inner.options.resident_bytes.saturating_mul(2));
    }

    fn damaged(&self, reason: String) -> QueueError {
        let base = self.segment.as_ref().map_or(0, |segment| segment.base);
        damaged(&self.inner.directory, base, self.position, self.next, reason)
    }
}

#[cold]
fn damaged(directory: &Path, base: i64, position: usize, offset: i64, reason: String) -> QueueError {
    QueueError::Damaged {
        path: segment::path(directory, base, "log"),
        position: position as u64,
        offset,
        reason,
    }
}

impl Iterator for Tailer {
    type Item = Result<Message>;

    fn next(&mut self) -> Option<Result<Message>> {
        self.read_message().transpose()
    }
}

/// An endless iterator over messages, see [`Tailer::follow`].
#[derive(Debug)]
pub struct Follow<'a> {
    tailer: &'a mut Tailer,
    how: Wait,
}

impl Iterator for Follow<'_> {
    type Item = Result<Message>;

    fn next(&mut self) -> Option<Result<Message>> {
        loop {
            match self.tailer.read_message() {
                Ok(None) => drop(self.tailer.wait(self.how, None)),
                found => return found.transpose(),
            }
        }
    }
}
