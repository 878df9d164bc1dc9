//! Chunks of whole batches of a journal, shared by all sessions that send them, and what filters leave of them.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use mainstem_records::{Batch, BatchBuilder, BatchOptions, Header, Record, RecordFilter, Scratch, slice_of};
use parking_lot::Mutex;
use tokio::sync::watch;

use crate::filter::Filter;
use crate::handover::Part;
use crate::pipeline_cache::CountedPatterns;
use crate::slices::SliceRange;

/// The most bytes of a batch of transformed events. A batch of one event may be larger.
const TRANSFORMED_BATCH_BYTES: usize = 256 << 10;
/// The bytes at which a chunk ends, unless it has a single batch.
pub(crate) const CHUNK_BYTES: usize = 256 << 10;
/// The bytes of chunks that a ring keeps. An instance that is not further behind needs no read of a file.
const RING_BYTES: usize = 4 << 20;
/// The most bytes that a batch may have decompressed, here and at a consumer. Only a broker's clients write compressed
/// ones.
pub const DECOMPRESSED_BYTES_MAX: usize = 16 << 20;

/// Counters of reads and evaluations since the journal was opened.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    /// Events read from the journal.
    pub(crate) read: AtomicU64,
    /// Events that a filter or a transformation was asked about.
    pub(crate) evaluated: AtomicU64,
}

/// Whole batches, one behind the other.
#[derive(Debug)]
pub(crate) struct Chunk {
    pub(crate) from: i64,
    pub(crate) next: i64,
    bytes: Bytes,
    views: Mutex<Views>,
}

/// The views of a chunk through the pipelines that were asked for.
#[derive(Debug, Default)]
struct Views {
    /// Newer chunks have replaced it among those that keep views: no further view is kept.
    is_retired: bool,
    kept: Vec<(ViewKey, Arc<View>)>,
}

/// The bytes that one pipeline lets through, once computed. It is locked while one caller computes it, so that others with the same
/// pipeline wait and do not compute it too. Callers with other pipelines do not wait.
type View = Mutex<Option<Bytes>>;

impl Views {
    /// Returns the view of a pipeline, made if need be.
    fn view(&mut self, key: ViewKey) -> Arc<View> {
        if let Some((_, known)) = self.kept.iter().find(|(one, _)| *one == key) {
            return known.clone();
        }
        let view = Arc::<View>::default();
        if !self.is_retired {
            self.kept.push((key, view.clone()));
        }
        view
    }

    fn retire(&mut self) {
        *self = Views { is_retired: true, kept: Vec::new() };
    }
}

/// The number of a pipeline.
type ViewKey = u64;
/// The key of the view by the stream's transformation alone, before any filter.
const TRANSFORMED: ViewKey = 0;
/// The bytes of the newest chunks that keep their views.
const VIEWED_BYTES: usize = 256 << 10;

/// The stages that events pass on the way to a consumer: the stream's transformation, then filters. Each filter has to let an
/// event pass.
pub(crate) struct FilterPipeline {
    /// Unique among pipelines.
    number: ViewKey,
    transform: Option<Arc<Transform>>,
    filters: Vec<Filter>,
    /// Counts its patterns among those of all pipelines.
    _patterns: Option<CountedPatterns>,
}

/// Makes the event that others see, or leaves it out.
pub(crate) type Transform = dyn Fn(&Record<'_>) -> Option<Transformed> + Send + Sync;

/// An event as consumers see it. Its offset and timestamp are those of the event that it was made of.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Transformed {
    /// The key.
    pub key: Option<Bytes>,
    /// The value.
    pub value: Bytes,
    /// Names and values of the headers.
    pub headers: Vec<(String, Bytes)>,
}

impl Transformed {
    fn size(&self) -> usize {
        let headers = self.headers.iter().map(|(name, value)| name.len() + value.len() + 8);
        self.key.as_ref().map_or(0, Bytes::len) + self.value.len() + headers.sum::<usize>() + 32
    }
}

impl std::fmt::Debug for FilterPipeline {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let is_transformed = self.transform.is_some();
        f.debug_struct("FilterPipeline")
            .field("is_transformed", &is_transformed)
            .field("filters", &self.filters)
            .finish()
    }
}

impl FilterPipeline {
    pub(crate) fn new(transform: Option<Arc<Transform>>, filters: Vec<Filter>) -> FilterPipeline {
        static NUMBERS: AtomicU64 = AtomicU64::new(TRANSFORMED + 1);
        let number = NUMBERS.fetch_add(1, Ordering::Relaxed);
        FilterPipeline { number, transform, filters, _patterns: None }
    }

    /// Counts its patterns until it is dropped.
    pub(crate) fn counted(self, patterns: CountedPatterns) -> FilterPipeline {
        FilterPipeline { _patterns: Some(patterns), ..self }
    }

    /// Returns true if it changes nothing and leaves nothing out.
    fn is_identity(&self) -> bool {
        self.transform.is_none() && self.passes_all()
    }

    /// Returns true if no filter leaves anything out.
    fn passes_all(&self) -> bool {
        self.filters.iter().all(Filter::is_empty)
    }

    fn passes(&self, record: &Record<'_>) -> bool {
        self.filters.iter().all(|filter| filter.passes(record))
    }
}

impl Chunk {
    pub(crate) fn new(from: i64, next: i64, bytes: Bytes, counters: &Counters) -> Chunk {
        let events: i64 = batches(&bytes).map(|(batch, _)| i64::from(batch.record_count())).sum();
        counters.read.fetch_add(events.unsigned_abs(), Ordering::Relaxed);
        Chunk { from, next, bytes, views: Mutex::default() }
    }

    /// The batches behind a pipeline, computed once for all callers with that pipeline.
    pub(crate) fn passed_through(
        &self,
        pipeline: &FilterPipeline,
        counters: &Counters,
    ) -> Result<Bytes, String> {
        if pipeline.is_identity() {
            return Ok(self.bytes.clone());
        }
        if pipeline.passes_all() {
            return self.transformed(pipeline, counters);
        }
        self.view(pipeline.number, || {
            let mut evaluated = 0;
            let view = kept(&self.transformed(pipeline, counters)?, |record| {
                evaluated += 1;
                pipeline.passes(record)
            })?;
            counters.evaluated.fetch_add(evaluated, Ordering::Relaxed);
            Ok(view)
        })
    }

    /// The batches behind the stream's transformation.
    fn transformed(&self, pipeline: &FilterPipeline, counters: &Counters) -> Result<Bytes, String> {
        let Some(transform) = &pipeline.transform else { return Ok(self.bytes.clone()) };
        self.view(TRANSFORMED, || {
            let mut evaluated = 0;
            let shown = transformed(&self.bytes, &**transform, &mut evaluated)?;
            counters.evaluated.fetch_add(evaluated, Ordering::Relaxed);
            Ok(shown)
        })
    }

    fn view(&self, key: ViewKey, compute: impl FnOnce() -> Result<Bytes, String>) -> Result<Bytes, String> {
        let view = self.views.lock().view(key);
        let mut view = view.lock();
        if let Some(known) = view.as_ref() {
            return Ok(known.clone());
        }
        Ok(view.insert(compute()?).clone())
    }
}

/// Iterates over whole batches, each with the position of its end.
fn batches(bytes: &Bytes) -> impl Iterator<Item = (Batch<'_>, usize)> {
    let mut position = 0;
    std::iter::from_fn(move || {
        let (batch, rest) = Batch::split_first(bytes.get(position..)?).ok()?;
        position = bytes.len() - rest.len();
        Some((batch, position))
    })
}

/// Returns batches with the records to keep; the same bytes if all are kept.
fn kept(bytes: &Bytes, mut keep: impl FnMut(&Record<'_>) -> bool) -> Result<Bytes, String> {
    let (mut filter, mut scratch, mut buffer) =
        (RecordFilter::new(DECOMPRESSED_BYTES_MAX), Scratch::default(), Vec::new());
    let mut flags = Vec::new();
    // Neighbouring batches that are kept whole are one range of `bytes`. A copy begins where something is left out.
    let (mut whole, mut copy) = (0..0, None::<Vec<u8>>);
    for (batch, end) in batches(bytes) {
        let start = end - batch.size();
        flags.clear();
        let records = batch.records(&mut buffer, DECOMPRESSED_BYTES_MAX, &mut scratch);
        for record in records.map_err(|error| error.to_string())? {
            flags.push(keep(&record.map_err(|error| error.to_string())?));
        }
        if flags.iter().all(|kept| *kept) {
            match &mut copy {
                Some(copy) => copy.extend_from_slice(batch.bytes()),
                None if whole.is_empty() => whole = start..end,
                None if whole.end == start => whole.end = end,
                None => copy = Some([&bytes[whole.clone()], batch.bytes()].concat()),
            }
            continue;
        }
        if flags.iter().any(|kept| *kept) {
            let copy = copy.get_or_insert_with(|| bytes[whole.clone()].to_vec());
            let mut each = flags.iter();
            let selection = filter.select(&batch, |_| each.next().copied().unwrap_or(false));
            let selection = selection.map_err(|error| error.to_string())?;
            filter.write(&batch, &selection, None, copy).map_err(|error| error.to_string())?;
        }
    }
    Ok(copy.map_or_else(|| bytes.slice(whole), Bytes::from))
}

/// Returns batches with what a transformation makes of their records.
fn transformed(bytes: &Bytes, transform: &Transform, evaluated: &mut u64) -> Result<Bytes, String> {
    let (mut scratch, mut buffer, mut out) = (Scratch::default(), Vec::new(), Vec::new());
    for (batch, _) in batches(bytes) {
        let options = BatchOptions {
            base_offset: batch.base_offset(),
            partition_leader_epoch: batch.partition_leader_epoch(),
            ..BatchOptions::default()
        };
        let mut builder = BatchBuilder::new(options);
        let records = batch.records(&mut buffer, DECOMPRESSED_BYTES_MAX, &mut scratch);
        for record in records.map_err(|error| error.to_string())? {
            let record = record.map_err(|error| error.to_string())?;
            *evaluated += 1;
            let Some(event) = transform(&record) else { continue };
            // Batches that grow are split. So a batch that is too large for a frame has a single event.
            let bytes = builder.uncompressed_bytes() + event.size();
            if builder.record_count() > 0 && bytes > TRANSFORMED_BATCH_BYTES {
                builder.finish(&mut out).map_err(|error| error.to_string())?;
            }
            if builder.record_count() == 0 {
                builder.options_mut().base_offset = record.offset;
            }
            let delta = i32::try_from(record.offset - builder.options_mut().base_offset)
                .map_err(|error| error.to_string())?;
            let headers: Vec<Header<'_>> = event
                .headers
                .iter()
                .map(|(name, value)| Header { key: name.as_bytes(), value: Some(value) })
                .collect();
            let added = builder.append_at(
                delta,
                record.timestamp,
                event.key.as_deref(),
                Some(&event.value),
                &headers,
            );
            added.map_err(|error| error.to_string())?;
        }
        if builder.record_count() > 0 {
            builder.finish(&mut out).map_err(|error| error.to_string())?;
        }
    }
    Ok(out.into())
}

/// Returns the first batches that fit into `bytes_max`, with the offset behind them.
///
/// # Errors
/// The offset behind the first one, if it alone has more than `bytes_max`.
pub(crate) fn first_batches(bytes: &Bytes, bytes_max: usize) -> Result<(Bytes, i64), i64> {
    let fitting = batches(bytes).take_while(|(_, end)| *end <= bytes_max).last();
    match fitting {
        Some((batch, end)) => Ok((bytes.slice(..end), batch.last_offset() + 1)),
        None => Err(batches(bytes).next().map_or(0, |(batch, _)| batch.last_offset() + 1)),
    }
}

/// Cuts the last batch at an offset, if it has no event from there on but its header covers more offsets. These come later, through
/// another pipeline.
fn ended_before(bytes: Bytes, until: i64) -> Bytes {
    // Fields of a batch of format 2: CRC-32C of all behind it, attributes, the last offset relative to the first one.
    const CRC_AT: usize = 17;
    const ATTRIBUTES_AT: usize = 21;
    const LAST_OFFSET_DELTA_AT: usize = 23;
    let last = batches(&bytes).last().filter(|(batch, _)| batch.last_offset() >= until);
    let Some((start, base_offset)) = last.map(|(batch, end)| (end - batch.size(), batch.base_offset()))
    else {
        return bytes;
    };
    let delta = i32::try_from(until - 1 - base_offset).expect("it is less than the batch's own");
    let mut cut = bytes.to_vec();
    let batch = &mut cut[start..];
    batch[LAST_OFFSET_DELTA_AT..LAST_OFFSET_DELTA_AT + 4].copy_from_slice(&delta.to_be_bytes());
    let crc = crc32c::crc32c(&batch[ATTRIBUTES_AT..]);
    batch[CRC_AT..ATTRIBUTES_AT].copy_from_slice(&crc.to_be_bytes());
    cut.into()
}

/// The part of a chunk that an assignment is sent: events from an offset on, of its slices, that are not done.
#[derive(Debug)]
pub(crate) struct Share {
    slices: SliceRange,
    parts: Vec<Part>,
    /// The offset behind all events that are done.
    done_end: i64,
}

impl Share {
    pub(crate) fn new(slices: SliceRange, parts: Vec<Part>) -> Share {
        let done_end = parts.iter().map(Part::done_end).max().unwrap_or(0);
        Share { slices, parts, done_end }
    }

    /// Returns the batches, out of those behind a pipeline, that this assignment is sent from `position` on and before
    /// `until`.
    pub(crate) fn of(&self, bytes: &Bytes, position: i64, until: i64) -> Result<Bytes, String> {
        let starts_at = batches(bytes).next().map_or(i64::MAX, |(batch, _)| batch.base_offset());
        let ends_at = batches(bytes).last().map_or(0, |(batch, _)| batch.last_offset());
        if self.slices == SliceRange::ALL && starts_at >= position.max(self.done_end) && ends_at < until {
            return Ok(bytes.clone());
        }
        let own = kept(bytes, |record| {
            let slice = slice_of(record.key, record.offset);
            record.offset >= position
                && record.offset < until
                && self.slices.contains(slice)
                && (record.offset >= self.done_end || !self.is_done(slice, record.offset))
        });
        own.map(|own| ended_before(own, until))
    }

    fn is_done(&self, slice: u16, offset: i64) -> bool {
        let at = self.parts.partition_point(|part| part.slices.to <= slice);
        self.parts.get(at).is_some_and(|part| part.is_done(offset))
    }
}

/// The newest chunks of a journal.
#[derive(Debug)]
pub(crate) struct Ring {
    chunks: Mutex<Chunks>,
    /// The offset behind the last visible event.
    end: watch::Sender<i64>,
}

#[derive(Debug, Default)]
struct Chunks {
    chunks: VecDeque<Arc<Chunk>>,
    bytes: usize,
    /// The newest chunks, which keep their views.
    viewed: VecDeque<Arc<Chunk>>,
    viewed_bytes: usize,
}

/// The answer of a ring for an offset.
#[derive(Debug)]
pub(crate) enum Found {
    Chunk(Arc<Chunk>),
    /// The offset is older than all chunks of the ring, and has to be read from a file.
    Older,
    /// The offset is behind the last visible event.
    End,
}

impl Ring {
    pub(crate) fn new(end: i64) -> Ring {
        Ring { chunks: Mutex::default(), end: watch::Sender::new(end) }
    }

    /// The offset behind the last visible event.
    pub(crate) fn end(&self) -> i64 {
        *self.end.borrow()
    }

    /// Notifies when the end moves.
    pub(crate) fn watch(&self) -> watch::Receiver<i64> {
        self.end.subscribe()
    }

    pub(crate) fn push(&self, chunk: Chunk) {
        let next = chunk.next;
        {
            let mut ring = self.chunks.lock();
            let chunk = Arc::new(chunk);
            ring.bytes += chunk.bytes.len();
            ring.viewed_bytes += chunk.bytes.len();
            ring.chunks.push_back(chunk.clone());
            ring.viewed.push_back(chunk);
            while ring.bytes > RING_BYTES
                && let Some(oldest) = ring.chunks.pop_front()
            {
                ring.bytes -= oldest.bytes.len();
            }
            // Live readers have passed the older chunks. A reader that comes later computes its own views.
            while ring.viewed_bytes > VIEWED_BYTES
                && let Some(viewed) = ring.viewed.pop_front()
            {
                ring.viewed_bytes -= viewed.bytes.len();
                viewed.views.lock().retire();
            }
        }
        self.end.send_replace(next);
    }

    pub(crate) fn find(&self, offset: i64) -> Found {
        let ring = self.chunks.lock();
        if offset >= self.end() {
            return Found::End;
        }
        let at = ring.chunks.partition_point(|chunk| chunk.next <= offset);
        match ring.chunks.get(at).filter(|chunk| chunk.from <= offset) {
            Some(chunk) => Found::Chunk(chunk.clone()),
            None => Found::Older,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::filter::criteria;
    use mainstem_records::SLICES;
    use proptest::prelude::*;

    /// Batches of these sizes, from offset 0 on; the key of an event is its offset modulo 10.
    fn journal(sizes: &[i32]) -> Bytes {
        let mut out = Vec::new();
        let mut base_offset = 0;
        for size in sizes {
            let mut builder = BatchBuilder::new(BatchOptions { base_offset, ..BatchOptions::default() });
            for offset in base_offset..base_offset + i64::from(*size) {
                let key = (offset % 10).to_string();
                builder.append(1_000 + offset, Some(key.as_bytes()), Some(b"v"), &[]).unwrap();
            }
            builder.finish(&mut out).unwrap();
            base_offset += i64::from(*size);
        }
        out.into()
    }

    fn offsets(bytes: &Bytes) -> Vec<i64> {
        let mut all = Vec::new();
        for (batch, _) in batches(bytes) {
            assert!(batch.verify_crc());
            let mut buffer = Vec::new();
            let records = batch.records(&mut buffer, 1 << 20, &mut Scratch::default()).unwrap();
            all.extend(records.map(|record| record.unwrap().offset));
        }
        all
    }

    proptest! {
        #[test]
        fn a_share_is_what_its_slices_have_left(
            sizes in prop::collection::vec(1i32..6, 1..10),
            from in 0u32..1_024, count in 1u32..1_025, position in 0i64..20, done in 0i64..20, finished in 0i64..30,
            until in prop_oneof![10i64..40, Just(i64::MAX)],
        ) {
            let bytes = journal(&sizes);
            let slices = SliceRange::new(from, (from + count).min(SLICES as u32)).unwrap();
            let part = Part { slices, offset: done, finished: std::iter::once(done + finished..done + finished + 3).collect(), assignment: 1 };
            let share = Share::new(slices, vec![part.clone()]);
            let wanted: Vec<i64> = (0..sizes.iter().map(|size| i64::from(*size)).sum())
                .filter(|offset| *offset >= position && *offset < until && !part.is_done(*offset))
                .filter(|offset| slices.contains(slice_of(Some((offset % 10).to_string().as_bytes()), *offset)))
                .collect();
            let own = share.of(&bytes, position, until).unwrap();
            prop_assert_eq!(offsets(&own), wanted);
            // A frame ends where another filter begins to hold, and its batches with it.
            prop_assert!(batches(&own).all(|(batch, _)| batch.last_offset() < until));
        }
    }

    #[test]
    fn a_filter_is_asked_once_however_many_look() {
        let counters = Counters::default();
        let chunk = Chunk::new(0, 9, journal(&[3, 1, 5]), &counters);
        let filter = Filter::compile(&criteria::only([criteria::key("4"), criteria::key("8")])).unwrap();
        let pipeline = FilterPipeline::new(None, vec![filter]);
        for _ in 0..100 {
            assert_eq!(offsets(&chunk.passed_through(&pipeline, &counters).unwrap()), [4, 8]);
        }
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        assert_eq!((count(&counters.read), count(&counters.evaluated)), (9, 9));
    }

    /// A slow filter delays its own consumers alone.
    #[test]
    fn who_looks_through_a_lens_that_takes_long_holds_up_no_other_lens() {
        let chunk = Arc::new(Chunk::new(0, 9, journal(&[3, 1, 5]), &Counters::default()));
        let (begins, has_begun) = std::sync::mpsc::channel();
        let (ends, may_end) = std::sync::mpsc::channel::<()>();
        let (begins, may_end) = (Mutex::new(begins), Mutex::new(may_end));
        let slow: Arc<Transform> = Arc::new(move |_: &Record<'_>| {
            // Each event blocks until the sender is dropped.
            begins.lock().send(()).unwrap();
            let _ = may_end.lock().recv();
            None
        });
        let of_slow = chunk.clone();
        let slow = std::thread::spawn(move || {
            of_slow.passed_through(&FilterPipeline::new(Some(slow), Vec::new()), &Counters::default())
        });
        has_begun.recv().unwrap();
        let (seen, is_seen) = std::sync::mpsc::channel();
        let of_other = chunk.clone();
        std::thread::spawn(move || {
            let filter = Filter::compile(&criteria::only([criteria::key("4")])).unwrap();
            seen.send(of_other.passed_through(&FilterPipeline::new(None, vec![filter]), &Counters::default()))
        });
        let seen = is_seen.recv_timeout(std::time::Duration::from_secs(60)).expect("it waits for no other");
        assert_eq!(offsets(&seen.unwrap()), [4]);
        drop(ends);
        assert!(slow.join().unwrap().unwrap().is_empty());
    }

    /// A transformation that counts its events and makes them `bytes` large.
    fn enlarging(bytes: usize, count: &Arc<AtomicU64>) -> Arc<Transform> {
        let count = count.clone();
        Arc::new(move |record: &Record<'_>| {
            count.fetch_add(1, Ordering::Relaxed);
            let key = record.key.map(Bytes::copy_from_slice);
            Some(Transformed { key, value: vec![b'x'; bytes].into(), headers: Vec::new() })
        })
    }

    #[test]
    fn a_transformation_runs_once_however_many_filters_are_behind_it() {
        let (counters, count) = (Counters::default(), Arc::new(AtomicU64::new(0)));
        let chunk = Chunk::new(0, 9, journal(&[3, 1, 5]), &counters);
        let transform = enlarging(1, &count);
        for key in ["4", "8", "2"] {
            let filter = Filter::compile(&criteria::only([criteria::key(key)])).unwrap();
            let pipeline = FilterPipeline::new(Some(transform.clone()), vec![filter]);
            assert_eq!(
                offsets(&chunk.passed_through(&pipeline, &counters).unwrap()),
                [key.parse::<i64>().unwrap()]
            );
        }
        let unfiltered = FilterPipeline::new(Some(transform), Vec::new());
        assert_eq!(offsets(&chunk.passed_through(&unfiltered, &counters).unwrap()).len(), 9);
        assert_eq!(count.load(Ordering::Relaxed), 9);
    }

    #[test]
    fn what_a_transformation_enlarges_is_cut_into_frames_between_events() {
        let (counters, count) = (Counters::default(), Arc::new(AtomicU64::new(0)));
        let chunk = Chunk::new(0, 9, journal(&[3, 1, 5]), &counters);
        let pipeline = FilterPipeline::new(Some(enlarging(100_000, &count)), Vec::new());
        let seen = chunk.passed_through(&pipeline, &counters).unwrap();
        assert_eq!(offsets(&seen), (0..9).collect::<Vec<_>>());
        let (first, next) = first_batches(&seen, 500_000).unwrap();
        assert!(first.len() <= 500_000);
        assert_eq!(offsets(&first), (0..next).collect::<Vec<_>>());
        assert!(next > 0 && next < 9);
        // Each batch is within the frame that is due, wherever it was cut.
        let mut sequence = crate::Sequence::new(0);
        sequence.accept(0, next, &first).unwrap();
        sequence.accept(next, 9, &seen.slice(first.len()..)).unwrap();
        assert_eq!(first_batches(&seen, 50_000), Err(2), "the first batch has two events");
    }

    #[test]
    fn a_straggler_has_nothing_be_kept_of_chunks_that_others_have_left() {
        let (ring, counters) = (Ring::new(0), Counters::default());
        let sizes = [50; 40];
        let mut from = 0;
        while from < 80_000 {
            let bytes = journal(&sizes);
            ring.push(Chunk::new(from, from + 2_000, bytes, &counters));
            from += 2_000;
        }
        let filter = Filter::compile(&criteria::only([criteria::key("4")])).unwrap();
        let pipeline = FilterPipeline::new(None, vec![filter]);
        let kept = |chunk: &Chunk| chunk.views.lock().kept.len();
        let mut looked = 0;
        for offset in (0..80_000).step_by(2_000) {
            let Found::Chunk(chunk) = ring.find(offset) else { panic!("it is in the ring") };
            chunk.passed_through(&pipeline, &counters).unwrap();
            looked += 1;
        }
        let chunks = ring.chunks.lock();
        let viewed: usize =
            chunks.chunks.iter().filter(|chunk| kept(chunk) > 0).map(|chunk| chunk.bytes.len()).sum();
        assert_eq!(looked, 40);
        assert!(viewed > 0 && viewed <= VIEWED_BYTES, "{viewed} bytes keep views");
        assert!(chunks.bytes > 2 * VIEWED_BYTES, "there are others");
    }

    #[test]
    fn a_transformation_keeps_offsets_and_leaves_out() {
        let transform: Arc<Transform> = Arc::new(|record: &Record<'_>| {
            let value = Bytes::from(format!("public {}", record.offset));
            (record.offset % 2 == 0).then(|| Transformed { key: None, value, headers: Vec::new() })
        });
        let counters = Counters::default();
        let chunk = Chunk::new(0, 6, journal(&[1, 1, 4]), &counters);
        let pipeline = FilterPipeline::new(Some(transform), Vec::new());
        assert_eq!(offsets(&chunk.passed_through(&pipeline, &counters).unwrap()), [0, 2, 4]);
    }

    #[test]
    fn a_ring_forgets_the_oldest() {
        let ring = Ring::new(0);
        for n in 0..5 {
            let bytes = Bytes::from(vec![0; RING_BYTES / 4 + 1]);
            ring.push(Chunk { from: n, next: n + 1, bytes, views: Mutex::default() });
        }
        assert!(matches!(ring.find(1), Found::Older));
        assert!(matches!(ring.find(3), Found::Chunk(chunk) if chunk.from == 3));
        assert!(matches!(ring.find(5), Found::End));
    }
}
