//! Reading: from an offset to a range of a file, without touching the records.

use crate::aborted::AbortedPlan;
use crate::dir::LogDir;
use crate::error::ReadError;
use crate::log::Log;
use crate::placement::DirectoryId;
use crate::read_mode::{ReadMode, ReadStop};
use crate::scan::ScannedBatch;
use crate::segment::Lookup;
use crate::storage::StorageFile;
use crate::transaction_index::AbortedTransaction;
use std::io;
use std::sync::Arc;

/// The end of the range that a reader may see.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReadBound {
    /// Consumers.
    HighWatermark,
    /// Consumers with `isolation.level=read_committed`.
    LastStable,
    /// Replicas and the broker itself, also of deleted records whose segment is still there.
    LogEnd,
}

/// The result of a read: the place of the bytes, or the work that finds it.
#[derive(Debug)]
pub enum ReadPlan {
    /// There is nothing up to the bound, or nothing that fits.
    Empty,
    /// Here.
    Range(FileRange),
    /// The index has to be read from disk first: [`PendingRead::resolve`], on a thread that may block.
    Later(PendingRead),
}

/// A range of one segment's file. It begins with a whole batch, the one that holds the offset asked for or the first
/// one behind it; it may end within a batch, as Kafka's answers do.
#[derive(Debug, Clone)]
pub struct FileRange {
    /// The file; its bytes stay readable while this is held, even when the segment is deleted.
    pub file: Arc<dyn StorageFile>,
    /// The position at which the range begins.
    pub position: u64,
    /// Its length in bytes, not 0.
    pub len: usize,
    /// The log directory that it is in; none: it is in none, as an embedded queue.
    pub directory: Option<DirectoryId>,
    /// It begins with one of the last batches written: the page cache has it.
    pub recent: bool,
    /// For a read with [`ReadBound::LastStable`]: the aborted transactions that may have records in the range, in the order
    /// of their markers. Empty for any other read.
    pub aborted: Vec<AbortedTransaction>,
}

/// A read that needs the disk before its range is known. Independent of the log: nothing is locked.
#[derive(Debug)]
pub struct PendingRead(Pending);

#[derive(Debug)]
enum Pending {
    Log(Box<PendingLogRead>),
    Elsewhere(ElsewhereRead),
}

/// A read of records that are in no [`Log`].
struct ElsewhereRead(Box<dyn FnOnce() -> Result<ReadPlan, ReadError> + Send + Sync>);

impl std::fmt::Debug for ElsewhereRead {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("ElsewhereRead")
    }
}

#[derive(Debug)]
struct PendingLogRead {
    dir: Arc<LogDir>,
    step: Step,
    /// The aborted transactions, for a read with [`ReadBound::LastStable`].
    aborted: Option<AbortedPlan>,
}

/// The unknown part of a read.
#[derive(Debug)]
enum Step {
    /// Its range.
    Range(Box<Lookup>, Request),
    /// Only the aborted transactions of this range.
    Aborted(FileRange),
}

/// The bounds of a read.
#[derive(Debug, Clone, Copy)]
struct Request {
    directory: DirectoryId,
    from: i64,
    /// The read returns nothing at or behind this offset.
    bound: i64,
    /// The bound is not in this segment: the read may return all of it.
    whole_segment: bool,
    max_bytes: usize,
    at_least_one: bool,
    /// The answer has to name the aborted transactions.
    committed: bool,
}

impl PendingRead {
    /// A read of records that are not in a log but, for example, in an embedded queue.
    pub fn elsewhere(
        read: impl FnOnce() -> Result<ReadPlan, ReadError> + Send + Sync + 'static,
    ) -> PendingRead {
        PendingRead(Pending::Elsewhere(ElsewhereRead(Box::new(read))))
    }

    /// The log directory whose disk is waited for; none: what is read is in none.
    pub fn directory(&self) -> Option<DirectoryId> {
        match &self.0 {
            Pending::Log(read) => Some(read.dir.directory_id()),
            Pending::Elsewhere(_) => None,
        }
    }

    /// Waits for the disk. A segment that ends before the offset (compaction has taken its last records) gives
    /// [`ReadPlan::Empty`] here; a new read from its end finds the next one. So does one whose transaction index was
    /// removed with it in the meantime. A medium that cannot be read takes its log directory offline.
    pub fn resolve(self) -> Result<ReadPlan, ReadError> {
        match self.0 {
            Pending::Log(read) => read.resolve(),
            Pending::Elsewhere(ElsewhereRead(read)) => read(),
        }
    }
}

impl PendingLogRead {
    fn resolve(self) -> Result<ReadPlan, ReadError> {
        let range = match self.step {
            Step::Range(lookup, request) => find_range(&lookup, &request, ReadMode::Blocking),
            Step::Aborted(range) => Ok(Some(range)),
        };
        let with_aborted = range.and_then(|range| match (range, self.aborted) {
            (Some(mut range), Some(aborted)) => {
                range.aborted = aborted.run(&range, ReadMode::Blocking)?;
                Ok(Some(range))
            }
            (range, _) => Ok(range),
        });
        match with_aborted {
            Ok(range) => Ok(range.map_or(ReadPlan::Empty, ReadPlan::Range)),
            Err(ReadStop::Failed(error)) if error.kind() == io::ErrorKind::NotFound => Ok(ReadPlan::Empty),
            Err(ReadStop::Failed(error)) => {
                self.dir.note_error(&error);
                Err(ReadError::Storage(error))
            }
            Err(ReadStop::WouldBlock) => unreachable!("a blocking read does not stop"),
        }
    }
}

fn later(read: PendingLogRead) -> ReadPlan {
    ReadPlan::Later(PendingRead(Pending::Log(Box::new(read))))
}

impl Log {
    /// Plans a read of at most `max_bytes` from the batch that holds `from`, in one segment, never past the bound.
    /// With `at_least_one` the first batch is given whole even if it is larger; without, a batch that does not fit
    /// is not given at all. Never blocks: see [`ReadPlan::Later`].
    pub fn read(
        &self,
        from: i64,
        bound: ReadBound,
        max_bytes: usize,
        at_least_one: bool,
    ) -> Result<ReadPlan, ReadError> {
        self.noted(self.plan(from, bound, max_bytes, at_least_one, ReadMode::NonBlocking))
    }

    /// As [`Log::read`], but waits for the disk. `None` means that there are no records, however many segments have lost their last
    /// records to compaction. For callers that read a whole log.
    pub fn read_waiting(
        &self,
        from: i64,
        bound: ReadBound,
        max_bytes: usize,
        at_least_one: bool,
    ) -> Result<Option<FileRange>, ReadError> {
        match self.noted(self.plan(from, bound, max_bytes, at_least_one, ReadMode::Blocking))? {
            ReadPlan::Range(range) => Ok(Some(range)),
            ReadPlan::Empty => Ok(None),
            ReadPlan::Later(_) => unreachable!("a blocking read does not stop"),
        }
    }

    /// A medium that cannot be read takes its log directory offline.
    fn noted(&self, plan: Result<ReadPlan, ReadError>) -> Result<ReadPlan, ReadError> {
        plan.inspect_err(|error| {
            if let ReadError::Storage(error) = error {
                self.dir.note_error(error);
            }
        })
    }

    fn plan(
        &self,
        from: i64,
        bound: ReadBound,
        max_bytes: usize,
        at_least_one: bool,
        read_mode: ReadMode,
    ) -> Result<ReadPlan, ReadError> {
        if let Some(reason) = self.refusal() {
            return Err(ReadError::Stopped(reason.to_owned()));
        }
        let log_start = match bound {
            ReadBound::HighWatermark | ReadBound::LastStable => self.log_start,
            // A replica that lacks what was deleted needs it all the same, up to what follows.
            ReadBound::LogEnd => self.segments[0].base_offset,
        };
        if from < log_start || from > self.log_end {
            let log_end = self.log_end;
            return Err(ReadError::OffsetOutOfRange { offset: from, log_start, log_end });
        }
        let committed = bound == ReadBound::LastStable;
        let bound = match bound {
            ReadBound::HighWatermark => self.high_watermark,
            ReadBound::LastStable => self.last_stable(),
            ReadBound::LogEnd => self.log_end,
        };
        if from >= bound || (max_bytes == 0 && !at_least_one) {
            return Ok(ReadPlan::Empty);
        }
        let directory = self.dir.directory_id();
        let request =
            Request { directory, from, bound, whole_segment: true, max_bytes, at_least_one, committed };
        match self.recent.find(from) {
            Some(_) => self.plan_recent(request, read_mode),
            None => self.plan_lookup(request, read_mode),
        }
    }

    /// The offset is among the last batches, and so is everything behind it.
    fn plan_recent(&self, request: Request, read_mode: ReadMode) -> Result<ReadPlan, ReadError> {
        let first = self.recent.find(request.from).expect("the caller has found it");
        let end = match request.bound == self.log_end {
            true => u64::from(self.active_segment().len),
            // A bound within a batch keeps the whole batch away.
            false => self.recent.find(request.bound).map_or(0, |batch| u64::from(batch.position)),
        };
        let start = u64::from(first.position);
        let Some((position, len)) = cut(&request, start, u64::from(first.size), end) else {
            return Ok(ReadPlan::Empty);
        };
        let range = FileRange {
            file: self.active.file.clone(),
            position,
            len,
            directory: Some(request.directory),
            recent: true,
            aborted: Vec::new(),
        };
        match request.committed {
            true => self.tell_aborted(range, self.segments.len() - 1, &request, read_mode),
            false => Ok(ReadPlan::Range(range)),
        }
    }

    /// Adds to a range of segment `number` what was aborted in it.
    fn tell_aborted(
        &self,
        mut range: FileRange,
        number: usize,
        request: &Request,
        read_mode: ReadMode,
    ) -> Result<ReadPlan, ReadError> {
        let search = match self.aborted_plan(number, request.from, request.bound) {
            AbortedPlan::Known(aborted) => {
                range.aborted = aborted;
                return Ok(ReadPlan::Range(range));
            }
            AbortedPlan::Search(search) => search,
        };
        match search.run(range.position + range.len as u64, read_mode) {
            Ok(aborted) => {
                range.aborted = aborted;
                Ok(ReadPlan::Range(range))
            }
            Err(ReadStop::WouldBlock) => Ok(later(PendingLogRead {
                dir: self.dir.clone(),
                step: Step::Aborted(range),
                aborted: Some(AbortedPlan::Search(search)),
            })),
            Err(ReadStop::Failed(error)) => Err(ReadError::Storage(error)),
        }
    }

    fn plan_lookup(&self, mut request: Request, read_mode: ReadMode) -> Result<ReadPlan, ReadError> {
        for number in self.segment_of(request.from)..self.segments.len() {
            let segment = &self.segments[number];
            let next = self.segments.get(number + 1);
            request.whole_segment =
                next.map_or(request.bound == self.log_end, |next| next.base_offset <= request.bound);
            let active = next.is_none().then_some(&self.active.file);
            let files = segment.lookup_files(&self.files, active)?;
            let lookup = segment.lookup(request.from, files);
            match find_range(&lookup, &request, read_mode) {
                Ok(Some(range)) if request.committed => {
                    return self.tell_aborted(range, number, &request, read_mode);
                }
                Ok(Some(range)) => return Ok(ReadPlan::Range(range)),
                // Compaction has taken the last records of this segment: the next one has what follows. A bound
                // within the segment ends the search.
                Ok(None) if request.whole_segment => {}
                Ok(None) => break,
                Err(ReadStop::WouldBlock) => {
                    let aborted =
                        request.committed.then(|| self.aborted_plan(number, request.from, request.bound));
                    let step = Step::Range(Box::new(lookup), request);
                    return Ok(later(PendingLogRead { dir: self.dir.clone(), step, aborted }));
                }
                Err(ReadStop::Failed(error)) => return Err(ReadError::Storage(error)),
            }
        }
        Ok(ReadPlan::Empty)
    }
}

/// The range of a segment that answers a request; `None`: nothing of it does.
fn find_range(
    lookup: &Lookup,
    request: &Request,
    read_mode: ReadMode,
) -> Result<Option<FileRange>, ReadStop> {
    let Some(first) = lookup.find(request.from, read_mode)? else { return Ok(None) };
    let end = match request.whole_segment {
        true => u64::from(lookup.len),
        false => bound_position(lookup, &first, request.bound, read_mode)?,
    };
    let range = cut(request, first.position, first.size, end);
    Ok(range.map(|(position, len)| FileRange {
        file: lookup.files.log.clone(),
        position,
        len,
        directory: Some(request.directory),
        recent: false,
        aborted: Vec::new(),
    }))
}

/// The position of the batch that holds the bound or follows it. The bound is not before the first batch.
fn bound_position(
    lookup: &Lookup,
    first: &ScannedBatch,
    bound: i64,
    read_mode: ReadMode,
) -> Result<u64, ReadStop> {
    if first.last_offset >= bound {
        return Ok(first.position);
    }
    Ok(lookup.find(bound, read_mode)?.map_or(u64::from(lookup.len), |batch| batch.position))
}

/// Position and length of what is given of `start..end`, which begins with a batch of `first_size`.
fn cut(request: &Request, start: u64, first_size: u64, end: u64) -> Option<(u64, usize)> {
    let available = end.checked_sub(start).filter(|bytes| *bytes >= first_size)?;
    if first_size > request.max_bytes as u64 && !request.at_least_one {
        return None;
    }
    let len = available.min(first_size.max(request.max_bytes as u64));
    Some((start, usize::try_from(len).ok()?))
}

impl FileRange {
    /// Reads the whole range; for tests and for readers within the process.
    pub fn to_vec(&self) -> io::Result<Vec<u8>> {
        let mut bytes = vec![0; self.len];
        crate::storage::read_exact_at(&*self.file, &mut bytes, self.position)?;
        Ok(bytes)
    }
}
