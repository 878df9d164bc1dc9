//! Makes a queue, and restores its control file: after the death of a writer, and after a restart of the machine, when the
//! control file may be lost or older than the segments.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::atomic::Ordering::Relaxed;

use mainstem_records::Batch;

use crate::clock::wall_ms;
use crate::control::{self, Control};
use crate::epochs;
use crate::error::{QueueError, Result, SYNCING};
use crate::map::Map;
use crate::open_segment::OpenSegment;
use crate::rules::Rules;
use crate::segment::{self, INDEX_ENTRY, INDEX_INTERVAL, TIME_ENTRY};
use crate::tailers;
use crate::words::End;

/// The result of a walk over a segment, up to the first byte that begins no batch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Walked {
    /// Bytes of whole batches.
    pub(crate) bytes: usize,
    /// The number of these batches.
    pub(crate) batches: u64,
    /// The offset behind the last of them.
    pub(crate) next_offset: i64,
    /// The greatest timestamp, or -1, and the last offset of the first batch that has it.
    pub(crate) max_timestamp: (i64, i64),
    /// The reason why the walk ended before the last byte.
    pub(crate) stopped_by: Option<String>,
    /// Entries of an offset index over these batches.
    index: Vec<[u8; INDEX_ENTRY]>,
    /// Entries of a time index over them.
    times: Vec<[u8; TIME_ENTRY]>,
}

/// Walks over the batches of a segment, CRCs checked. `next_offset` is the offset of the first one.
pub(crate) fn walk(bytes: &[u8], base: i64, next_offset: i64) -> Walked {
    let mut walked = Walked {
        bytes: 0,
        batches: 0,
        next_offset,
        max_timestamp: (-1, base),
        stopped_by: None,
        index: Vec::new(),
        times: Vec::new(),
    };
    let mut indexed_to = 0;
    while walked.bytes < bytes.len() {
        let batch = match whole_batch(&bytes[walked.bytes..], walked.next_offset) {
            Ok(batch) => batch,
            Err(reason) => {
                walked.stopped_by = Some(reason);
                break;
            }
        };
        if batch.max_timestamp() > walked.max_timestamp.0 {
            walked.max_timestamp = (batch.max_timestamp(), batch.last_offset());
        }
        if walked.bytes >= indexed_to + INDEX_INTERVAL {
            indexed_to = walked.bytes;
            walked.add_entries(base, batch.last_offset(), indexed_to);
        }
        walked.bytes += batch.size();
        walked.batches += 1;
        walked.next_offset = batch.next_offset();
    }
    walked
}

/// Returns the batch at the beginning of these bytes, if it belongs there.
pub(crate) fn whole_batch(bytes: &[u8], offset: i64) -> Result<Batch<'_>, String> {
    let (batch, _) = Batch::split_first(bytes).map_err(|error| error.to_string())?;
    if batch.base_offset() != offset {
        return Err(format!("a batch of offset {} is where {offset} should be", batch.base_offset()));
    }
    if !batch.verify_crc() {
        return Err("its CRC is not that of its bytes".to_owned());
    }
    if batch.last_offset_delta() < 0 || batch.next_offset() <= offset {
        return Err(format!("its last offset delta is {}", batch.last_offset_delta()));
    }
    Ok(batch)
}

impl Walked {
    fn add_entries(&mut self, base: i64, last_offset: i64, position: usize) {
        let mut entry = [0; INDEX_ENTRY];
        entry[..4].copy_from_slice(&((last_offset - base) as i32).to_be_bytes());
        entry[4..].copy_from_slice(&(position as i32).to_be_bytes());
        self.index.push(entry);
        self.add_time(base);
    }

    fn add_time(&mut self, base: i64) {
        let (timestamp, offset) = self.max_timestamp;
        let newest = self.times.last().map_or(-1, |entry| i64::from_be_bytes(segment::first_bytes(entry)));
        if timestamp > newest {
            let mut entry = [0; TIME_ENTRY];
            entry[..8].copy_from_slice(&timestamp.to_be_bytes());
            entry[8..].copy_from_slice(&((offset - base) as i32).to_be_bytes());
            self.times.push(entry);
        }
    }
}

/// Makes a new queue: its first segment, Kafka's two small files, and the words. The caller holds the opening lock.
pub(crate) fn create(control: &mut Control, directory: &Path, rules: &Rules) -> Result<()> {
    OpenSegment::create(directory, 0, rules.segment_bytes)?;
    epochs::write(directory, &[(0, 0)])?;
    let id = topic_id().map_err(|error| QueueError::io("reading random bytes", directory, error))?;
    write(&directory.join("partition.metadata"), format!("version: 0\ntopic_id: {id}\n").as_bytes())?;
    control.initialize(rules);
    control.reset_shared_state();
    count_as_empty(control, wall_ms());
    control.synced_end().store(0, Relaxed);
    control.log_start().store(0, Relaxed);
    control.leader_epoch().store(0, Relaxed);
    control.publish_segment(0, 0);
    Ok(())
}

/// Syncs the control file and the directory, so that a power cut cannot erase the queue's rules while its segments are
/// there.
pub(crate) fn sync_control(directory: &Path) -> Result<()> {
    [&directory.join(control::FILE), directory].into_iter().try_for_each(|path| {
        let file = File::open(path).map_err(|error| QueueError::io("opening for a sync", path, error))?;
        sync(path, &file)
    })
}

fn sync(path: &Path, file: &File) -> Result<()> {
    file.sync_all().map_err(|error| QueueError::io(SYNCING, path, error))
}

/// Makes a control file for segments that have none, or a damaged one. The rules are given; everything else is found in the
/// segments. The first batch that is not whole ends the queue. The caller holds the opening lock, and no other process has the
/// queue open.
pub(crate) fn rebuild(control: &mut Control, directory: &Path, rules: &Rules) -> Result<()> {
    control.initialize(rules);
    control.synced_end().store(0, Relaxed);
    control.log_start().store(0, Relaxed);
    recover(control, directory, rules)
}

/// Makes or recovers a queue, and syncs its control file. After a failed sync it first writes the unsynced segments again. The note of
/// the failed sync is cleared once they are synced. If a sync of the recovery itself fails, the note is set for the next recovery. The
/// caller holds the opening lock.
pub(crate) fn make_durable(
    control: &mut Control,
    directory: &Path,
    recover: impl FnOnce(&mut Control) -> Result<()>,
) -> Result<()> {
    let had_failed_sync = control.sync_failed().load(Relaxed) != 0;
    if had_failed_sync {
        write_again(directory, control.synced_end().load(Relaxed))?;
        // Only a store makes the kernel write a page of the control file again. The recovery stores to the other pages.
        control.set_boot([0; 16]);
    }
    // A start that failed may have left the control file and the names of segments unsynced.
    let recovered = recover(control).and_then(|()| sync_control(directory));
    recovered.inspect_err(|error| {
        let has_failed_sync = had_failed_sync || error.is_failed_sync();
        control.sync_failed().store(u32::from(has_failed_sync), Relaxed);
    })
}

/// Writes the segments from the one that holds `synced` on again, as they are read. After a failed sync the kernel may take unwritten
/// pages for written, and no sync would write them. The caller holds the opening lock, and syncs the segments.
fn write_again(directory: &Path, synced: i64) -> Result<()> {
    let bases = segment::list(directory)?;
    let from = bases.iter().rposition(|base| *base <= synced).unwrap_or(0);
    for &base in bases.get(from..).unwrap_or_default() {
        let path = segment::path(directory, base, "log");
        let written = File::options().read(true).write(true).open(&path).and_then(|file| {
            let mut bytes = vec![0; 1 << 20];
            let mut at = 0;
            loop {
                let read = file.read_at(&mut bytes, at)?;
                if read == 0 {
                    return Ok(());
                }
                file.write_all_at(&bytes[..read], at)?;
                at += read as u64;
            }
        });
        written.map_err(|error| QueueError::io("writing", &path, error))?;
    }
    Ok(())
}

/// Returns true if a segment holds a message.
pub(crate) fn has_messages(directory: &Path) -> Result<bool> {
    for base in segment::list(directory)? {
        if walk_file(directory, base, base)?.bytes > 0 {
            return Ok(true);
        }
    }
    Ok(false)
}

fn write(path: &Path, bytes: &[u8]) -> Result<()> {
    std::fs::write(path, bytes).map_err(|error| QueueError::io("writing", path, error))
}

/// A random id in Kafka's form: 16 bytes in URL-safe base64 without padding.
fn topic_id() -> io::Result<String> {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
    let mut bits = [0; 16];
    rustix::rand::getrandom(&mut bits, rustix::rand::GetRandomFlags::empty())?;
    let bits = u128::from_be_bytes(bits);
    // 22 digits of 6 bits; the last one has 2 bits and 4 zeros.
    let digit =
        |at: u32| if at < 21 { (bits >> (122 - 6 * at)) as usize & 63 } else { (bits as usize & 3) << 4 };
    Ok((0..22).map(|at| char::from(DIGITS[digit(at)])).collect())
}

/// Resets the words about the open segment.
pub(crate) fn count_as_empty(control: &Control, now_ms: i64) {
    control.index_entries().store(0, Relaxed);
    control.time_entries().store(0, Relaxed);
    control.indexed_to().store(0, Relaxed);
    control.max_timestamp().store(-1, Relaxed);
    control.max_timestamp_offset().store(0, Relaxed);
    control.segment_created_ms().store(now_ms, Relaxed);
}

/// Returns the offset behind the last batch of a segment that has `bytes` readable bytes.
pub(crate) fn next_offset_of(directory: &Path, base: i64, bytes: u64) -> Result<i64> {
    let walked = walk_file(directory, base, base)?;
    if (walked.bytes as u64) < bytes {
        return Err(damaged(directory, base, &walked));
    }
    Ok(walked.next_offset)
}

/// Sets the words about the open segment to its published contents. For the holder of the lock, after a death.
pub(crate) fn recount(control: &Control, directory: &Path, open: &mut OpenSegment, end: End) -> Result<()> {
    if !open.has_sound_counts(control, end) {
        // The control file is damaged: the whole segment is walked over, and the indexes are written again.
        open.clear_indexes();
        count_as_empty(control, control.segment_created_ms().load(Relaxed));
    }
    let from = control.indexed_to().load(Relaxed) as usize;
    let published = open.log.published(0..end.bytes as usize);
    let rest = published.get(from..).unwrap_or_default();
    let first = match Batch::split_first(rest) {
        Ok((batch, _)) => batch.base_offset(),
        Err(_) => open.base,
    };
    let walked = walk(rest, open.base, first);
    if walked.bytes < rest.len() {
        return Err(damaged(directory, open.base, &walked));
    }
    control.publish(end, walked.next_offset);
    if walked.max_timestamp.0 > control.max_timestamp().load(Relaxed) {
        control.max_timestamp().store(walked.max_timestamp.0, Relaxed);
        control.max_timestamp_offset().store(walked.max_timestamp.1, Relaxed);
    }
    Ok(())
}

/// Restores the words after a restart of the machine, from the segments alone. Everything since the last sync is walked
/// over, and what was not written whole is cut. The caller holds the opening lock, and no other process has the queue open.
pub(crate) fn recover(control: &mut Control, directory: &Path, rules: &Rules) -> Result<()> {
    control.reset_shared_state();
    let synced = control.synced_end().load(Relaxed);
    let bases = segment::list(directory)?;
    let Some(&first) = bases.first() else { return create(control, directory, rules) };
    let start = bases.iter().rposition(|base| *base <= synced).unwrap_or(0);
    let mut last = bases[start];
    let mut next = last;
    for (at, &base) in bases.iter().enumerate().skip(start) {
        if base != next {
            if next < synced {
                break;
            }
            bases[at..].iter().try_for_each(|lost| segment::remove(directory, *lost))?;
            break;
        }
        let walked = walk_file(directory, base, base)?;
        if walked.next_offset < synced && (at + 1 == bases.len() || walked.stopped_by.is_some()) {
            return Err(damaged(directory, base, &walked));
        }
        close(directory, base, walked.clone())?;
        (last, next) = (base, walked.next_offset);
    }
    if next < synced {
        let reason = format!("its end was synced at offset {synced}, and what follows is gone");
        let path = segment::path(directory, last, "log");
        return Err(QueueError::Damaged { path, position: 0, offset: next, reason });
    }
    tailers::move_back_to(directory, next)?;
    reopen(control, directory, rules, last)?;
    control.synced_end().store(next, Relaxed);
    // A start within the segment, by DeleteRecords, stays.
    let log_start = control.log_start().load(Relaxed).max(first).min(next);
    control.log_start().store(log_start, Relaxed);
    let epoch = epochs::raise(directory, control.leader_epoch().load(Relaxed) as i32, next)?;
    control.leader_epoch().store(epoch as u32, Relaxed);
    Ok(())
}

/// Cuts a segment to its whole batches, writes matching indexes, and syncs them.
fn close(directory: &Path, base: i64, mut walked: Walked) -> Result<()> {
    walked.add_time(base);
    let file = |extension: &str, bytes: &[u8]| {
        let path = segment::path(directory, base, extension);
        let written = std::fs::write(&path, bytes).and_then(|()| File::open(&path)?.sync_all());
        written.map_err(|error| QueueError::io("writing", &path, error))
    };
    file("index", &walked.index.concat())?;
    file("timeindex", &walked.times.concat())?;
    let path = segment::path(directory, base, "log");
    let cut = File::options().write(true).open(&path).and_then(|file| {
        file.set_len(walked.bytes as u64)?;
        Ok(file)
    });
    sync(&path, &cut.map_err(|error| QueueError::io("cutting", &path, error))?)
}

/// Opens the last segment for appends again: gives its files their full size, and sets the words to its contents.
fn reopen(control: &Control, directory: &Path, rules: &Rules, base: i64) -> Result<()> {
    let walked = walk_file(directory, base, base)?;
    let roll = control.end().roll.wrapping_add(1);
    if walked.bytes as u64 > rules.segment_bytes {
        // It was written when segments were larger.
        let next = walked.next_offset;
        OpenSegment::create(directory, next, rules.segment_bytes)?;
        count_as_empty(control, wall_ms());
        control.publish_segment(roll, next);
        return Ok(());
    }
    for (extension, bytes) in segment::sizes(rules.segment_bytes) {
        let path = segment::path(directory, base, extension);
        let file = File::options().create(true).truncate(false).read(true).write(true).open(&path);
        let extended = file.and_then(|file| segment::allocate(&file, bytes));
        extended.map_err(|error| QueueError::io("allocating", &path, error))?;
    }
    count_as_empty(control, wall_ms());
    control.index_entries().store(walked.index.len() as u32, Relaxed);
    let indexed_to =
        walked.index.last().map_or(0, |entry| u32::from_be_bytes(segment::first_bytes(&entry[4..])));
    control.indexed_to().store(indexed_to, Relaxed);
    // The last time entry of a closed segment stays; it is not below later ones.
    let mut times = walked.clone();
    times.add_time(base);
    control.time_entries().store(times.times.len() as u32, Relaxed);
    control.max_timestamp().store(walked.max_timestamp.0, Relaxed);
    control.max_timestamp_offset().store(walked.max_timestamp.1, Relaxed);
    control.publish_segment(roll, base);
    control.publish(End { roll, bytes: walked.bytes as u32 }, walked.next_offset);
    Ok(())
}

/// Walks over a segment's file.
pub(crate) fn walk_file(directory: &Path, base: i64, next_offset: i64) -> Result<Walked> {
    let path = segment::path(directory, base, "log");
    let mapped = File::open(&path).and_then(|file| {
        let len = usize::try_from(file.metadata()?.len()).unwrap_or(usize::MAX);
        Map::new(&file, len, false)
    });
    let map = mapped.map_err(|error| QueueError::io("reading", &path, error))?;
    Ok(walk(map.published(0..map.len()), base, next_offset))
}

pub(crate) fn damaged(directory: &Path, base: i64, walked: &Walked) -> QueueError {
    QueueError::Damaged {
        path: segment::path(directory, base, "log"),
        position: walked.bytes as u64,
        offset: walked.next_offset,
        reason: walked.stopped_by.clone().unwrap_or_else(|| "the file ends too early".to_owned()),
    }
}
