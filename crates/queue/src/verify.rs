//! Verification of a queue's directory, and repair of a damaged one.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering::Relaxed;

use mainstem_records::Batch;

use crate::byte_lock::Kind;
use crate::control::{self, BYTES, Control, FILE, lock_bytes};
use crate::directory::Directory;
use crate::error::{QueueError, Result};
use crate::map::Map;
use crate::options::Options;
use crate::recovery::{self, walk};
use crate::segment::{self, INDEX_ENTRY, TIME_ENTRY, first_bytes};
use crate::{lock, tailers};

/// The result of [`verify`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Verification {
    /// The segments, ascending.
    pub segments: Vec<SegmentCheck>,
    /// Faults outside of the segments: of the control file, or of segments that do not follow each other.
    pub faults: Vec<String>,
    /// Messages before this offset survive a power cut, by the control file; `None` if it cannot say it.
    pub synced: Option<i64>,
}

/// The result of [`verify`] for one segment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SegmentCheck {
    /// Its file.
    pub path: PathBuf,
    /// The offset of its first message.
    pub base_offset: i64,
    /// The offset behind its last sound message.
    pub next_offset: i64,
    /// Bytes of its sound batches.
    pub bytes: u64,
    /// The number of these batches.
    pub batches: u64,
    /// Faults of the segment.
    pub faults: Vec<String>,
}

impl Verification {
    /// Returns true if no fault was found.
    pub fn is_sound(&self) -> bool {
        self.faults.is_empty() && self.segments.iter().all(|segment| segment.faults.is_empty())
    }

    /// All faults, each with its file.
    pub fn all_faults(&self) -> impl Iterator<Item = String> {
        let of_segment = |check: &SegmentCheck| -> Vec<String> {
            check.faults.iter().map(|fault| format!("{}: {fault}", check.path.display())).collect()
        };
        self.faults.iter().cloned().chain(self.segments.iter().flat_map(of_segment))
    }
}

/// The result of [`repair`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Repaired {
    /// The offset that the next message gets.
    pub next_offset: i64,
    /// The least number of lost messages: the control file or the segments knew them.
    pub lost: u64,
    /// True if the control file was rebuilt.
    pub control_rebuilt: bool,
}

/// Walks over all segments of a queue, and checks CRCs and index entries. Nothing is changed, and processes that append or
/// read are not held up.
///
/// # Errors
/// If the directory holds no queue, or cannot be read. Damage is no error, but in the result.
pub fn verify(directory: impl AsRef<Path>) -> Result<Verification> {
    let directory = directory.as_ref();
    let mut found = Verification { segments: Vec::new(), faults: Vec::new(), synced: None };
    let published = match published(directory) {
        Ok(published) => published,
        Err(error @ (QueueError::NoQueue { .. } | QueueError::OtherVersion { .. }))
            if directory.join(FILE).exists() =>
        {
            found.faults.push(error.to_string());
            None
        }
        Err(error) => return Err(error),
    };
    check_all(directory, published.as_ref(), &mut found)?;
    Ok(found)
}

/// Checks all segments, up to the published end if that is known.
fn check_all(directory: &Path, published: Option<&Published>, found: &mut Verification) -> Result<()> {
    let bases = segment::list(directory)?;
    // A later segment that is not published belongs to a running append, or to a writer that died.
    let is_begun = |base: i64| published.is_some_and(|published| base > published.open);
    let bases: Vec<i64> = bases.into_iter().filter(|base| !is_begun(*base)).collect();
    for (at, &base) in bases.iter().enumerate() {
        let is_last = at + 1 == bases.len();
        let bound = published.filter(|_| is_last).map(|published| published.bytes);
        let may_have_tail = is_last && published.is_none();
        match check_segment(directory, base, bound, may_have_tail) {
            Ok(check) => found.segments.push(check),
            // Retention has deleted it meanwhile.
            Err(QueueError::Io { source, .. }) if source.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
    }
    check_order(found);
    if let Some(published) = published {
        check_ends(found, published);
    }
    Ok(())
}

/// The published end, from a control file that was written under the running boot.
struct Published {
    open: i64,
    bytes: u64,
    synced: i64,
    is_of_this_boot: bool,
}

fn published(directory: &Path) -> Result<Option<Published>> {
    let path = directory.join(FILE);
    let missing = |reason: String| QueueError::NoQueue { path: directory.to_owned(), reason };
    let file = File::open(&path).map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => missing(format!("it has no {FILE}")),
        _ => QueueError::io("opening", &path, error),
    })?;
    if file.metadata().map_err(|error| QueueError::io("reading", &path, error))?.len() < BYTES as u64 {
        return Err(missing(format!("{FILE} is cut short")));
    }
    let control = Control::map(&file, directory, false)?;
    control.rules()?;
    let boot = control::boot_id().map_err(|error| QueueError::io("reading the boot id for", &path, error))?;
    let (open, end) = control.open_segment();
    let synced = control.synced_end().load(Relaxed);
    Ok(Some(Published {
        open,
        bytes: u64::from(end.bytes),
        synced,
        is_of_this_boot: control.is_of_boot(boot),
    }))
}

/// Checks a segment up to `bound`, or its end. A segment that may be open has zeros behind the last batch.
fn check_segment(
    directory: &Path,
    base: i64,
    bound: Option<u64>,
    may_have_tail: bool,
) -> Result<SegmentCheck> {
    let (path, map) = map_log(directory, base)?;
    let whole = map.published(0..map.len());
    let (bytes, mut faults) = match bound {
        Some(bound) if bound > whole.len() as u64 => {
            (whole, vec![format!("it has {} bytes of {bound} that were published", whole.len())])
        }
        Some(bound) => (&whole[..bound as usize], Vec::new()),
        None => (whole, Vec::new()),
    };
    let walked = walk(bytes, base, base);
    let tail = &bytes[walked.bytes..];
    if let Some(reason) = &walked.stopped_by
        && !(may_have_tail && tail.iter().all(|byte| *byte == 0))
    {
        faults.push(format!("damaged at byte {}, offset {}: {reason}", walked.bytes, walked.next_offset));
    }
    let sound = &bytes[..walked.bytes];
    faults.extend(check_index(directory, base, sound)?);
    faults.extend(check_times(directory, base, walked.next_offset)?);
    Ok(SegmentCheck {
        path,
        base_offset: base,
        next_offset: walked.next_offset,
        bytes: walked.bytes as u64,
        batches: walked.batches,
        faults,
    })
}

fn map_log(directory: &Path, base: i64) -> Result<(PathBuf, Map)> {
    let path = segment::path(directory, base, "log");
    let mapped = File::open(&path).and_then(|file| {
        let len = usize::try_from(file.metadata()?.len()).unwrap_or(usize::MAX);
        Map::new(&file, len, false)
    });
    let map = mapped.map_err(|error| QueueError::io("reading", &path, error))?;
    Ok((path, map))
}

/// Checks that each entry that is not zero names the last offset and the position of a batch.
fn check_index(directory: &Path, base: i64, sound: &[u8]) -> Result<Option<String>> {
    for (number, entry) in
        entries(directory, base, "index", INDEX_ENTRY)?.chunks_exact(INDEX_ENTRY).enumerate()
    {
        let offset = base.saturating_add(i64::from(i32::from_be_bytes(first_bytes(entry))));
        let position = u32::from_be_bytes(first_bytes(&entry[4..])) as usize;
        if position == 0 {
            break;
        }
        // The entry is for a batch that was appended after the walk.
        if position >= sound.len() {
            continue;
        }
        let batch = Batch::split_first(&sound[position..]).ok().map(|(batch, _)| batch.last_offset());
        if batch != Some(offset) {
            return Ok(Some(format!(
                "entry {number} of its index names offset {offset} at byte {position}, which is not there"
            )));
        }
    }
    Ok(None)
}

/// Checks that timestamps and offsets of entries rise.
fn check_times(directory: &Path, base: i64, next_offset: i64) -> Result<Option<String>> {
    let bytes = entries(directory, base, "timeindex", TIME_ENTRY)?;
    let mut last = (i64::MIN, -1);
    for (number, entry) in bytes.chunks_exact(TIME_ENTRY).enumerate() {
        let entry = (i64::from_be_bytes(first_bytes(entry)), i32::from_be_bytes(first_bytes(&entry[8..])));
        if entry == (0, 0) {
            break;
        }
        if entry.0 < last.0 || entry.1 < last.1 {
            return Ok(Some(format!(
                "entry {number} of its time index (before offset {next_offset}) is out of order"
            )));
        }
        last = entry;
    }
    Ok(None)
}

fn entries(directory: &Path, base: i64, extension: &str, entry_bytes: usize) -> Result<Vec<u8>> {
    let path = segment::path(directory, base, extension);
    match std::fs::read(&path) {
        Ok(mut bytes) => {
            bytes.truncate(bytes.len() - bytes.len() % entry_bytes);
            Ok(bytes)
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        Err(error) => Err(QueueError::io("reading", &path, error)),
    }
}

fn check_order(found: &mut Verification) {
    for pair in found.segments.windows(2) {
        let (next, base) = (pair[0].next_offset, pair[1].base_offset);
        if next != base && pair[0].faults.is_empty() {
            found
                .faults
                .push(format!("{} begins at offset {base}, and {next} should come", pair[1].path.display()));
        }
    }
}

fn check_ends(found: &mut Verification, published: &Published) {
    found.synced = Some(published.synced);
    let next = found.segments.last().map_or(0, |segment| segment.next_offset);
    let is_open_there = found.segments.last().is_some_and(|segment| segment.base_offset == published.open);
    if published.is_of_this_boot && !is_open_there {
        found.faults.push(format!("the open segment, of base offset {}, is not there", published.open));
    }
    if next < published.synced {
        found.faults.push(format!("offsets up to {} were synced, and {next} is the end", published.synced));
    }
}

/// Calls `each` with the sound batches of a queue in order: the segment's base offset, the position, the batch. It ends at
/// the published end, and at the first damage.
///
/// # Errors
/// If the directory holds no queue or cannot be read, [`QueueError::Damaged`] at the first damage, and the error of `each`.
pub fn batches<E: From<QueueError>>(
    directory: impl AsRef<Path>,
    mut each: impl FnMut(i64, u64, &Batch<'_>) -> Result<(), E>,
) -> Result<(), E> {
    let directory = directory.as_ref();
    let published = published(directory)?;
    for base in segment::list(directory)? {
        let open = published.as_ref().map(|published| (published.open, published.bytes as usize));
        if open.is_some_and(|(open, _)| base > open) {
            break;
        }
        let (_, map) = map_log(directory, base)?;
        let bound =
            open.filter(|(open, _)| *open == base).map_or(map.len(), |(_, bytes)| bytes.min(map.len()));
        let (mut position, mut offset) = (0, base);
        while position < bound {
            let rest = map.published(position..bound);
            let batch = recovery::whole_batch(rest, offset).map_err(|reason| QueueError::Damaged {
                path: segment::path(directory, base, "log"),
                position: position as u64,
                offset,
                reason,
            })?;
            each(base, position as u64, &batch)?;
            position += batch.size();
            offset = batch.next_offset();
        }
    }
    Ok(())
}

/// Refuses damaged segments without a control file. They may be a broker's partition, where apparent damage may come from
/// compaction, so nothing is cut.
fn check_before_adopting(directory: &Path) -> Result<()> {
    let mut found = Verification { segments: Vec::new(), faults: Vec::new(), synced: None };
    check_all(directory, None, &mut found)?;
    match found.all_faults().next() {
        None => Ok(()),
        Some(fault) => {
            let reason = format!(
                "it has no {FILE}, and what its segments hold cannot become one: {fault}; `mainstem log verify` shows more"
            );
            Err(QueueError::NoQueue { path: directory.to_owned(), reason })
        }
    }
}

/// The advice for a broker's partition.
const BY_ITS_BROKER: &str = "the broker checks and repairs its partitions when it starts; `mainstem log verify` shows what is wrong in one";

/// Refuses to repair a directory that is no queue, belongs to a broker, or is open in other processes.
fn check_repairable(directory: &Path) -> Result<()> {
    let found = Directory::inspect(directory);
    found.check_not_of_broker(BY_ITS_BROKER)?;
    let control = directory.join(FILE);
    let has_control = control.try_exists().map_err(|error| QueueError::io("reading", &control, error))?;
    if !has_control && segment::list(directory)?.is_empty() {
        let reason =
            "it has neither segments nor a control file; `mainstem queue append` makes one".to_owned();
        return Err(QueueError::NoQueue { path: directory.to_owned(), reason });
    }
    if !has_control {
        check_before_adopting(directory)?;
    }
    found.check_not_held()
}

/// Returns what [`repair`] would do. Nothing is changed.
///
/// # Errors
/// As [`repair`].
pub fn plan_repair(directory: impl AsRef<Path>) -> Result<Repaired> {
    let directory = directory.as_ref();
    check_repairable(directory)?;
    let known = match known_end(directory) {
        Err(error @ QueueError::OtherVersion { .. }) => return Err(error),
        known => known.ok(),
    };
    let bases = segment::list(directory)?;
    let mut next_offset = bases.first().copied().unwrap_or(0);
    for &base in &bases {
        if base != next_offset {
            break;
        }
        let (_, map) = map_log(directory, base)?;
        next_offset = walk(map.published(0..map.len()), base, base).next_offset;
    }
    Ok(Repaired {
        next_offset,
        lost: lost_between(next_offset, known.unwrap_or(0)),
        control_rebuilt: known.is_none(),
    })
}

/// The offset of the next message, by a control file that can be read.
fn known_end(directory: &Path) -> Result<i64> {
    let path = directory.join(FILE);
    let file = File::open(&path).map_err(|error| QueueError::io("opening", &path, error))?;
    if file.metadata().map_err(|error| QueueError::io("reading", &path, error))?.len() < BYTES as u64 {
        let reason = format!("{FILE} is cut short");
        return Err(QueueError::NoQueue { path: directory.to_owned(), reason });
    }
    let control = Control::map(&file, directory, false)?;
    control.rules()?;
    Ok(control.next_offset())
}

fn lost_between(next_offset: i64, known: i64) -> u64 {
    u64::try_from(known.saturating_sub(next_offset)).unwrap_or(0)
}

/// Repairs a queue whose control file or segments are damaged. It cuts the queue at the first damage, and writes indexes and control
/// file again. If the rules of the queue are lost, those of `options` replace them. After a failed sync it writes the unsynced
/// segments once more ([`QueueError::SyncFailed`]). End unnamed readers of the queue first; appenders and named tailers are detected.
///
/// # Errors
/// [`QueueError::OfBroker`] within a broker's log directory, [`QueueError::Busy`] while other processes have the queue
/// open, [`QueueError::NoQueue`] if there is none, and failures of the disk.
pub fn repair(directory: impl AsRef<Path>, options: &Options) -> Result<Repaired> {
    let directory = directory.as_ref();
    let path = directory.join(FILE);
    let failed = |what, error| QueueError::io(what, &path, error);
    check_repairable(directory)?;
    let file = File::options().create(true).truncate(false).read(true).write(true).open(&path);
    let file = file.map_err(|error| failed("opening", error))?;
    let locks = lock::open_for_locks(directory, true)?;
    let mut is_ours = true;
    for byte in [lock_bytes::OPENING, lock_bytes::APPENDING, lock_bytes::SERVING] {
        is_ours &= locks.try_lock(byte, Kind::Exclusive).map_err(|error| failed("locking", error))?;
    }
    // A tailer may have come since the check.
    let is_read = tailers::list(directory, 0)?.iter().any(|tailer| tailer.is_live);
    if !is_ours || is_read {
        let reason = "other processes have it open; end them, then repair it".to_owned();
        return Err(QueueError::Busy { path: directory.to_owned(), reason });
    }
    if file.metadata().map_err(|error| failed("reading", error))?.len() < BYTES as u64 {
        segment::allocate(&file, BYTES as u64).map_err(|error| failed("allocating", error))?;
    }
    let mut control = Control::map(&file, directory, true)?;
    let (rules, control_rebuilt) = match control.rules() {
        Ok(rules) => (rules, false),
        Err(error @ QueueError::OtherVersion { .. }) => return Err(error),
        Err(_) => (options.rules, true),
    };
    // An unreadable control file says nothing.
    let known = if control_rebuilt { 0 } else { control.next_offset() };
    // Processes that open it meanwhile wait.
    control.set_boot([0; 16]);
    recovery::make_durable(&mut control, directory, |control| recovery::rebuild(control, directory, &rules))?;
    let boot = control::boot_id().map_err(|error| failed("reading the boot id for", error))?;
    control.set_boot(boot);
    let next_offset = control.next_offset();
    Ok(Repaired { next_offset, lost: lost_between(next_offset, known), control_rebuilt })
}
