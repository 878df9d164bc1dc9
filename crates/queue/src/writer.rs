//! Appends, for the holder of the writer lock or the only appender.
//!
//! An append finds its place, writes the batch there, and publishes it by one store. The bytes that a dead writer has
//! left are behind the published end. The next writer clears them ([`Writer::repair`]).

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use mainstem_records::{Batch, BatchHeader, HEADER_BYTES, Header, SingleRecord, SingleRecordHeader};

use crate::clock::wall_ms;
use crate::control::Control;
use crate::error::{QueueError, Result};
use crate::open_segment::{self, OpenSegment, Sealing};
use crate::present::AHEAD_BYTES;
use crate::rules::Rules;
use crate::words::End;
use crate::{guard, recovery, retention, segment};

/// Pages are made present in pieces of this size, ahead of what is written.
const POPULATE_BYTES: usize = 64 << 10;
/// The most bytes of the next batch's place that are prefetched. The last batch's size is taken.
const PREFETCH_BYTES: usize = 512;
/// The largest batch of one message that is built in `staging`.
const STAGING_BYTES: usize = 2 << 10;

/// The place of the next batch.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Place {
    pub(crate) position: usize,
    pub(crate) offset: i64,
}

/// The writing side of a queue in one process.
#[derive(Debug)]
pub(crate) struct Writer {
    directory: PathBuf,
    control: Arc<Control>,
    rules: Rules,
    open: OpenSegment,
    /// The kernel fences the threads of this process for readers that are about to sleep.
    is_registered: bool,
    /// The published end, if no other process publishes. Readers look at the shared word all the time; a load here would take its cache
    /// line from them.
    exclusive_end: Option<End>,
    /// The header for the newest timestamp.
    header: SingleRecordHeader,
    /// A batch is built here, with its CRC, and then stored to its place. Loads there would wait for cache lines from the cores of
    /// readers; stores need not.
    staging: Box<[u8; STAGING_BYTES]>,
}

impl Writer {
    /// Maps the open segment, after it has cleared what a dead writer may have left: unpublished bytes, outdated counts,
    /// segments that were begun. For the holder of the lock.
    pub(crate) fn repaired(directory: PathBuf, control: Arc<Control>, rules: Rules) -> Result<Writer> {
        let (base, end) = control.open_segment();
        control.check_whole()?;
        for begun in segment::list(&directory)?.into_iter().filter(|begun| *begun > base) {
            if !segment::is_empty(&directory, begun)? {
                let reason = format!("the open segment is that of offset {base}, and this one has messages");
                let path = segment::path(&directory, begun, "log");
                return Err(QueueError::Damaged { path, position: 0, offset: begun, reason });
            }
            segment::remove(&directory, begun)?;
        }
        if u64::from(end.bytes) > rules.segment_bytes {
            let reason = format!("{} bytes are published, and it has {}", end.bytes, rules.segment_bytes);
            let path = segment::path(&directory, base, "log");
            return Err(QueueError::Damaged { path, position: rules.segment_bytes, offset: base, reason });
        }
        let log = segment::path(&directory, base, "log");
        let len = std::fs::metadata(&log).map_err(|error| QueueError::io("reading", &log, error))?.len();
        if len < rules.segment_bytes {
            // The writer died between cutting this segment and publishing the next one.
            let next = recovery::next_offset_of(&directory, base, u64::from(end.bytes))?;
            let roll = end.roll.wrapping_add(1);
            let open = OpenSegment::begin(&directory, next, roll, rules.segment_bytes)?;
            publish_segment(&control, &open);
            control.wake_all();
            return Ok(Writer::over(directory, control, rules, open));
        }
        // The writer may have died between cutting the indexes and cutting the log.
        open_segment::extend_indexes(&directory, base, rules.segment_bytes)?;
        let mut open = OpenSegment::map(&directory, base, end.roll, rules.segment_bytes)?;
        recovery::recount(&control, &directory, &mut open, end)?;
        let touched = End::unpack(control.touched().load(Relaxed));
        let dirty_to = if touched.roll == end.roll { touched.bytes.max(end.bytes) } else { end.bytes };
        let dirty = end.bytes as usize..(dirty_to as usize).min(open.log.len());
        open.log.unpublished(dirty).fill(0);
        // The writer may have died between publishing and waking.
        control.wake_all();
        control.ahead.watch(open.present());
        Ok(Writer::over(directory, control, rules, open))
    }

    fn over(directory: PathBuf, control: Arc<Control>, rules: Rules, open: OpenSegment) -> Writer {
        let is_registered = control.register_appender();
        let (header, staging) = (SingleRecordHeader::new(0), Box::new([0; STAGING_BYTES]));
        Writer { directory, control, rules, open, is_registered, exclusive_end: None, header, staging }
    }

    /// The same for an existing writer.
    pub(crate) fn repair(&mut self) -> Result<()> {
        *self = Writer::repaired(self.directory.clone(), Arc::clone(&self.control), self.rules)?;
        Ok(())
    }

    /// Finds a place for a batch of `size` bytes and `count` records, in another segment if need be.
    pub(crate) fn place(&mut self, size: usize, count: i64, now_ms: i64) -> Result<Place> {
        let mut end = match self.exclusive_end {
            Some(end) => end,
            None => self.followed_end()?,
        };
        let offset = self.control.next_offset();
        if !self.fits(end, size, offset + count, now_ms) {
            if size as u64 > self.rules.segment_bytes {
                return Err(QueueError::TooLarge { bytes: size, segment_bytes: self.rules.segment_bytes });
            }
            self.roll(end, offset)?;
            end = self.control.end();
            self.exclusive_end = self.exclusive_end.map(|_| end);
        }
        let position = end.bytes as usize;
        let touched = End { roll: end.roll, bytes: (position + size) as u32 };
        self.control.touched().store(touched.pack(), Relaxed);
        if position + size > self.open.ready_to {
            self.get_ready(position, position + size);
        }
        // A reader has the cache line of the last batch's end, which is the beginning of this one.
        self.open.log.prefetch(position, 1);
        Ok(Place { position, offset })
    }

    /// Returns the published end of the open segment, which is mapped if another writer has begun it.
    fn followed_end(&mut self) -> Result<End> {
        let end = self.control.end();
        if end.roll == self.open.roll {
            return Ok(end);
        }
        let (base, now) = self.control.open_segment();
        self.follow(base, now)?;
        Ok(now)
    }

    /// Makes it the only appender for as long as it lives.
    pub(crate) fn alone(mut self) -> Writer {
        self.exclusive_end = Some(self.control.end());
        self
    }

    fn fits(&self, end: End, size: usize, next_offset: i64, now_ms: i64) -> bool {
        let fits = u64::from(end.bytes) + size as u64 <= self.rules.segment_bytes;
        let age = now_ms.saturating_sub(self.control.segment_created_ms().load(Relaxed));
        let is_old = end.bytes > 0 && u64::try_from(age).is_ok_and(|age| age >= self.rules.roll_ms);
        fits && !is_old && next_offset - self.open.base <= i64::from(i32::MAX)
    }

    /// The bytes at a place, to be written.
    pub(crate) fn bytes(&mut self, place: Place, size: usize) -> &mut [u8] {
        self.open.log.unpublished(place.position..place.position + size)
    }

    /// Returns written bytes of a place; the range is relative to its beginning.
    pub(crate) fn written(&self, place: Place, range: std::ops::Range<usize>) -> &[u8] {
        self.open.log.published(place.position + range.start..place.position + range.end)
    }

    /// Publishes a batch that was written to its place, and wakes sleepers.
    pub(crate) fn publish(&mut self, place: Place, size: usize, count: i64, max_timestamp: i64) {
        let end = End { roll: self.open.roll, bytes: (place.position + size) as u32 };
        let last_offset = place.offset + count - 1;
        if self.is_registered {
            self.control.publish_registered(end, last_offset + 1);
        } else {
            self.control.publish(end, last_offset + 1);
        }
        self.control.wake();
        if self.exclusive_end.is_some() {
            self.exclusive_end = Some(end);
        }
        // The next batch would wait for these cache lines, which no core has touched for long.
        self.open.log.prefetch(end.bytes as usize, size.min(PREFETCH_BYTES));
        if max_timestamp > self.control.max_timestamp().load(Relaxed) {
            self.control.max_timestamp().store(max_timestamp, Relaxed);
            self.control.max_timestamp_offset().store(last_offset, Relaxed);
        }
        self.open.add_to_index(&self.control, place.position, last_offset);
    }

    /// Clears the bytes of a place.
    pub(crate) fn clear(&mut self, place: Place, size: usize) {
        self.bytes(place, size).fill(0);
    }

    /// Appends one message.
    pub(crate) fn append(
        &mut self,
        key: Option<&[u8]>,
        value: &[u8],
        headers: &[Header<'_>],
        timestamp: i64,
        now_ms: i64,
    ) -> Result<i64> {
        let layout = SingleRecord::new(key, value.len(), headers)?;
        let size = layout.size();
        let place = self.place(size, 1, now_ms)?;
        self.check_whole()?;
        if size <= STAGING_BYTES {
            self.use_timestamp(timestamp);
            let leader_epoch = self.leader_epoch();
            let Writer { open, header, staging, .. } = self;
            let batch = &mut staging[..size];
            layout.begin(key, headers, batch);
            batch[layout.value()].copy_from_slice(value);
            layout.finish(header, place.offset, leader_epoch, batch);
            open.log.unpublished(place.position..place.position + size).copy_from_slice(batch);
            self.check_whole()?;
            self.publish(place, size, 1, timestamp);
            return Ok(place.offset);
        }
        let bytes = self.bytes(place, size);
        layout.begin(key, headers, bytes);
        bytes[layout.value()].copy_from_slice(value);
        self.finish(&layout, place, timestamp)?;
        Ok(place.offset)
    }

    /// Publishes a message that was written to its place, except for the header.
    ///
    /// # Errors
    /// [`QueueError::Cut`].
    pub(crate) fn finish(&mut self, layout: &SingleRecord, place: Place, timestamp: i64) -> Result<()> {
        self.use_timestamp(timestamp);
        let (size, leader_epoch) = (layout.size(), self.leader_epoch());
        let bytes = self.open.log.unpublished(place.position..place.position + size);
        layout.finish(&self.header, place.offset, leader_epoch, bytes);
        self.check_whole()?;
        self.publish(place, size, 1, timestamp);
        Ok(())
    }

    fn use_timestamp(&mut self, timestamp: i64) {
        if self.header.timestamp() != timestamp {
            self.header = SingleRecordHeader::new(timestamp);
        }
    }

    /// Appends a batch whose offsets begin at 0; returns its first offset.
    pub(crate) fn append_batch(&mut self, batch: &Batch<'_>, now_ms: i64) -> Result<i64> {
        let header = batch.bytes().first_chunk().expect("a batch is not shorter than its header");
        self.append_parts(header, batch, now_ms)
    }

    /// Appends a batch with another header; offset and leader epoch are stamped here.
    pub(crate) fn append_parts(
        &mut self,
        header: &[u8; HEADER_BYTES],
        batch: &Batch<'_>,
        now_ms: i64,
    ) -> Result<i64> {
        let (size, count) = (batch.size(), i64::from(batch.last_offset_delta()) + 1);
        let max_timestamp =
            BatchHeader::read(header).map_or(batch.max_timestamp(), |header| header.max_timestamp);
        let place = self.place(size, count, now_ms)?;
        // If the control file was cut, its words are zeros, and the place would be that of the first message.
        self.check_whole()?;
        let stamp = mainstem_records::stamp_header(batch, place.offset, self.leader_epoch());
        let bytes = self.bytes(place, size);
        bytes[HEADER_BYTES..].copy_from_slice(batch.payload());
        bytes[..HEADER_BYTES].copy_from_slice(header);
        bytes[..stamp.len()].copy_from_slice(&stamp);
        self.check_whole()?;
        self.publish(place, size, count, max_timestamp);
        Ok(place.offset)
    }

    /// Refuses to publish bytes that went to no file.
    ///
    /// # Errors
    /// [`QueueError::Cut`].
    #[inline]
    pub(crate) fn check_whole(&self) -> Result<()> {
        match guard::any_lost() {
            false => Ok(()),
            true => self.find_lost(),
        }
    }

    #[cold]
    fn find_lost(&self) -> Result<()> {
        self.control.check_whole()?;
        let maps = [(&self.open.log, "log"), (&self.open.index, "index"), (&self.open.times, "timeindex")];
        match maps.into_iter().find(|(map, _)| map.is_lost()) {
            None => Ok(()),
            Some((_, extension)) => {
                Err(QueueError::Cut { path: segment::path(&self.directory, self.open.base, extension) })
            }
        }
    }

    /// The leader epoch of new batches.
    pub(crate) fn leader_epoch(&self) -> i32 {
        self.control.leader_epoch().load(Relaxed) as i32
    }

    /// Closes the open segment if it is too old, and applies the rules of retention. For the holder of the lock.
    pub(crate) fn maintain(&mut self, now_ms: i64) -> Result<()> {
        let end = self.followed_end()?;
        let next = self.control.next_offset();
        if !self.fits(end, 0, next, now_ms) {
            self.roll(end, next)?;
        }
        retention::apply(&self.control, &self.directory, &self.rules, now_ms);
        Ok(())
    }

    /// Moves the start of the queue to `offset`, and deletes closed segments before it.
    pub(crate) fn delete_before(&mut self, offset: i64) {
        retention::delete_before(&self.control, &self.directory, offset);
    }

    /// Maps the present open segment.
    fn follow(&mut self, base: i64, end: End) -> Result<()> {
        if self.open.roll != end.roll || self.open.base != base {
            self.open = OpenSegment::map(&self.directory, base, end.roll, self.rules.segment_bytes)?;
            self.control.ahead.watch(self.open.present());
        }
        Ok(())
    }

    /// Closes the open segment and begins the next one. The next one is made and mapped first, and the files of this one are opened.
    /// If space, descriptors or memory do not suffice for that, nothing changes.
    fn roll(&mut self, end: End, next_offset: i64) -> Result<()> {
        if next_offset == self.open.base {
            // The segment is empty, and only too old.
            self.control.segment_created_ms().store(wall_ms(), Relaxed);
            return Ok(());
        }
        // With zeros in place of the published words, a segment could be made over an existing one.
        self.check_whole()?;
        let segment_bytes = self.rules.segment_bytes;
        let next = OpenSegment::begin(&self.directory, next_offset, end.roll.wrapping_add(1), segment_bytes)?;
        if let Err(error) = self.seal(end) {
            let _ = segment::remove(&self.directory, next_offset);
            return Err(error);
        }
        publish_segment(&self.control, &next);
        self.open = next;
        retention::apply(&self.control, &self.directory, &self.rules, wall_ms());
        self.control.ahead.ask();
        Ok(())
    }

    /// Cuts the files of the open segment to their contents.
    fn seal(&mut self, end: End) -> Result<()> {
        let sealing = Sealing::open(&self.directory, self.open.base)?;
        self.open.add_time(&self.control);
        let index_entries = self.control.index_entries().load(Relaxed);
        let time_entries = self.control.time_entries().load(Relaxed);
        self.check_whole()?;
        sealing.cut(u64::from(end.bytes), index_entries, time_entries, self.rules.segment_bytes)
    }

    /// Asks for pages ahead in time, or makes those of the next piece present itself. Gives back those that were written long
    /// ago.
    #[cold]
    fn get_ready(&mut self, position: usize, end: usize) {
        let populated = self.open.populated.load(Relaxed);
        let low = populated.saturating_sub(AHEAD_BYTES / 2);
        if end > populated {
            let to = end.next_multiple_of(POPULATE_BYTES);
            self.open.log.populate(position..to.min(self.open.log.len()));
            self.open.populated.fetch_max(to, Relaxed);
            self.open.ready_to = to;
        } else {
            self.open.ready_to = if end > low { populated } else { low };
        }
        if end > low {
            self.control.ahead.ask();
        }
        self.control.ahead.forget(&self.open.log.pages(), &self.open.forgotten_to, position);
    }
}

/// Publishes a new segment, and wakes sleepers.
fn publish_segment(control: &Control, open: &OpenSegment) {
    control.ahead.watch(open.present());
    recovery::count_as_empty(control, wall_ms());
    control.publish_segment(open.roll, open.base);
    control.wake();
}
