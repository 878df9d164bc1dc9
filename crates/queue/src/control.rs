//! The control file: what the processes of a queue share beside its segments.
//!
//! Page 0 is written when the queue is made and when it is recovered. Page 1 has the words that change with each append. Words
//! that readers write have cache lines of their own. The slots of the appending processes follow. docs/format.md has the
//! bytes.
//!
//! One word names what is published, [`Control::end`]: the number of rolls of the queue, and the readable bytes of the open
//! segment. The base offset of that segment is in one of two places, in turn. So a reader that has read `end` finds its base
//! unless the queue was rolled twice meanwhile, which the word shows.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicI64, AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::error::{QueueError, Result};
use crate::map::Map;
use crate::present::Ahead;
use crate::protocol::{self, Memory, Shared};
use crate::rules::Rules;
use crate::words::End;

/// The control file's name in a queue's directory.
pub(crate) const FILE: &str = "queue.control";
/// The version of the format; others are refused, except [`VERSION_FENCED`]. In version 1 the next offset and the touched end were in the
/// cache line of the published end.
pub(crate) const VERSION: u32 = 3;
/// In this version every appender has a fence, and relies on no reader for one.
const VERSION_FENCED: u32 = 2;
/// The most processes that may have a queue open for appending at once.
pub(crate) const SLOTS: usize = 256;

const MAGIC: u64 = u64::from_be_bytes(*b"MSQUEUE\0");
/// The longest sleep of a reader before it looks again.
const SLEEP_MAX: Duration = Duration::from_millis(100);
/// A reader that cannot order its sleep looks again after this time. It does so until this time has passed since it asked appenders
/// for fences: by then they have seen that.
const UNORDERED: Duration = Duration::from_millis(1);
const PAGE: usize = 4096;
const SLOT_BYTES: usize = 16;
/// The size of the file.
pub(crate) const BYTES: usize = 2 * PAGE + SLOTS * SLOT_BYTES;

/// Bytes beyond the end of the file, which are locked and never written.
pub(crate) mod lock_bytes {
    /// Held while the queue is made, opened or recovered.
    pub(crate) const OPENING: u64 = 1 << 40;
    /// Shared by all that append under the writer lock, exclusive for an exclusive appender.
    pub(crate) const APPENDING: u64 = OPENING + 1;
    /// Exclusive for the broker that serves the queue.
    pub(crate) const SERVING: u64 = OPENING + 2;
    /// Held while the files of the next segment are made.
    pub(crate) const PREPARING: u64 = OPENING + 3;
    /// The byte of the first slot. The process that has the slot holds it.
    pub(crate) const SLOTS: u64 = OPENING + 16;
}

/// Page 0.
mod fixed {
    pub(super) const MAGIC: usize = 0;
    pub(super) const VERSION: usize = 8;
    pub(super) const CRC: usize = 12;
    pub(super) const RULES: usize = 16;
    pub(super) const RULES_END: usize = 56;
    pub(super) const BOOT: usize = 512;
}

/// Page 1.
mod word {
    const START: usize = super::PAGE;
    pub(super) const END: usize = START;
    pub(super) const BASES: usize = START + 24;
    pub(super) const SLEEPERS: usize = START + 64;
    pub(super) const WAKE: usize = START + 68;
    pub(super) const BROKER_WAKE: usize = START + 72;
    pub(super) const FENCES_WANTED: usize = START + 76;
    pub(super) const LOCK: usize = START + 128;
    pub(super) const INDEX_ENTRIES: usize = START + 192;
    pub(super) const TIME_ENTRIES: usize = START + 196;
    pub(super) const INDEXED_TO: usize = START + 200;
    pub(super) const MAX_TIMESTAMP: usize = START + 208;
    pub(super) const MAX_TIMESTAMP_OFFSET: usize = START + 216;
    pub(super) const SEGMENT_CREATED_MS: usize = START + 224;
    pub(super) const TOUCHED: usize = START + 232;
    pub(super) const NEXT_OFFSET: usize = START + 240;
    pub(super) const SYNCED_END: usize = START + 256;
    pub(super) const LOG_START: usize = START + 264;
    pub(super) const SYNC_FAILED: usize = START + 272;
    pub(super) const LEADER_EPOCH: usize = START + 276;
}

/// The mapped control file.
#[derive(Debug)]
pub(crate) struct Control {
    map: Map,
    pub(crate) path: PathBuf,
    pub(crate) is_writable: bool,
    pub(crate) ahead: Ahead,
    /// The time since which this process asks appenders for fences, since the kernel does not fence them for it.
    fences_wanted_since: OnceLock<Instant>,
}

/// A sleep that appenders know of.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Announced {
    /// The wake sequence before.
    seen: u32,
    longest: Duration,
}

impl Control {
    /// Maps the control file of a directory.
    pub(crate) fn map(file: &File, directory: &Path, is_writable: bool) -> Result<Control> {
        let path = directory.join(FILE);
        match Map::new(file, BYTES, is_writable) {
            Ok(map) => Ok(Control {
                map,
                path,
                is_writable,
                ahead: Ahead::default(),
                fences_wanted_since: OnceLock::new(),
            }),
            Err(source) if source.raw_os_error() == Some(libc::ENODEV) => {
                Err(QueueError::NoSharedMapping { path, source })
            }
            Err(source) => Err(QueueError::io("mapping", &path, source)),
        }
    }

    /// Writes page 0 of a new queue. The boot id follows when everything else is done.
    pub(crate) fn initialize(&mut self, rules: &Rules) {
        let rules = rules.encode();
        self.map.unpublished(fixed::RULES..fixed::RULES_END).copy_from_slice(&rules);
        self.map.unpublished(fixed::CRC..fixed::RULES).copy_from_slice(&crc32c::crc32c(&rules).to_le_bytes());
        self.map.unpublished(fixed::VERSION..fixed::CRC).copy_from_slice(&VERSION.to_le_bytes());
        self.map.unpublished(fixed::MAGIC..fixed::VERSION).copy_from_slice(&MAGIC.to_le_bytes());
    }

    /// Returns false if page 0 was never written.
    pub(crate) fn is_initialized(&self) -> bool {
        self.map.published(fixed::MAGIC..fixed::VERSION).iter().any(|byte| *byte != 0)
    }

    fn version(&self) -> u32 {
        self.map.u32(fixed::VERSION).load(Ordering::Relaxed)
    }

    /// The rules of the queue.
    ///
    /// # Errors
    /// If page 0 is not one of this version, or damaged.
    pub(crate) fn rules(&self) -> Result<Rules> {
        let directory = self.path.parent().unwrap_or(&self.path).to_owned();
        let field = |range: std::ops::Range<usize>| self.map.published(range);
        if *field(fixed::MAGIC..fixed::VERSION) != MAGIC.to_le_bytes() {
            let reason = format!("{FILE} is not a queue's control file; choose another directory");
            return Err(QueueError::NoQueue { path: directory, reason });
        }
        let version = self.version();
        if version != VERSION && version != VERSION_FENCED {
            let path = self.path.clone();
            return Err(QueueError::OtherVersion { path, found: version, known: VERSION });
        }
        let rules = field(fixed::RULES..fixed::RULES_END);
        let is_whole = *field(fixed::CRC..fixed::RULES) == crc32c::crc32c(rules).to_le_bytes();
        let rules = Rules::decode(rules).filter(|_| is_whole);
        rules.ok_or_else(|| QueueError::NoQueue {
            path: directory,
            reason: format!(
                "{FILE} is damaged; `mainstem queue repair` rebuilds it from the segments beside it"
            ),
        })
    }

    /// Returns true if the words were set up under this boot: then everything else is set up too.
    pub(crate) fn is_of_boot(&self, boot: [u8; 16]) -> bool {
        let [low, high] = self.boot_words().map(|word| word.load(Ordering::Acquire).to_ne_bytes());
        [low, high].concat() == boot
    }

    /// Notes the boot under which the words are valid; zeros before they are set up.
    pub(crate) fn set_boot(&self, boot: [u8; 16]) {
        let (words, _) = boot.as_chunks();
        for (word, bytes) in self.boot_words().iter().zip(words) {
            word.store(u64::from_ne_bytes(*bytes), Ordering::Release);
        }
    }

    fn boot_words(&self) -> [&AtomicU64; 2] {
        [self.map.u64(fixed::BOOT), self.map.u64(fixed::BOOT + 8)]
    }

    /// Tells the words that were read before this call from the zeros that a guarded process has in their place after a
    /// cut.
    ///
    /// # Errors
    /// [`QueueError::Cut`].
    pub(crate) fn check_whole(&self) -> Result<()> {
        match self.map.is_lost() {
            true => Err(QueueError::Cut { path: self.path.clone() }),
            false => Ok(()),
        }
    }

    /// The published end. Bytes that were written before it was published are visible behind this load.
    pub(crate) fn end(&self) -> End {
        End::unpack(self.map.u64(word::END).load(Ordering::Acquire))
    }

    /// The open segment: its base offset, and its published end.
    pub(crate) fn open_segment(&self) -> (i64, End) {
        protocol::open_segment::<Shared>(self.map.u64(word::END), self.bases())
    }

    fn bases(&self) -> [&AtomicI64; 2] {
        [self.map.i64(word::BASES), self.map.i64(word::BASES + 8)]
    }

    /// Publishes an end. Readers that do not sleep see it at once; [`Control::wake`] is for the others.
    pub(crate) fn publish(&self, end: End, next_offset: i64) {
        let words = (self.map.u64(word::END), self.map.i64(word::NEXT_OFFSET));
        protocol::publish::<Shared>(words.0, words.1, end, next_offset);
    }

    /// Registers this process to append without fences, if the kernel fences it for others. Returns true if it may
    /// ([`Control::publish_registered`]). A forked process registers again.
    pub(crate) fn register_appender(&self) -> bool {
        self.version() >= VERSION && Shared::register_appender()
    }

    /// The same as [`Control::publish`] for a process that is registered; without a fence unless a reader needs one.
    #[inline]
    pub(crate) fn publish_registered(&self, end: End, next_offset: i64) {
        if self.fences_wanted().load(Ordering::Relaxed) != 0 {
            return self.publish(end, next_offset);
        }
        let words = (self.map.u64(word::END), self.map.i64(word::NEXT_OFFSET));
        protocol::publish_unfenced::<Shared>(words.0, words.1, end, next_offset);
    }

    /// Publishes the beginning of another segment, whose files have to exist.
    pub(crate) fn publish_segment(&self, roll: u32, base: i64) {
        let words = (self.map.u64(word::END), self.map.i64(word::NEXT_OFFSET));
        protocol::publish_segment::<Shared>(words.0, words.1, self.bases(), roll, base);
    }

    /// Wakes readers and the broker that sleep, after [`Control::publish`] or [`Control::publish_synced`].
    pub(crate) fn wake(&self) {
        protocol::wake::<Shared>(self.sleepers(), self.wake_sequence(), self.broker_wake_sequence());
    }

    /// Announces that a reader is about to sleep; returns the argument of [`Control::sleep`]. The reader has to look for what
    /// it waits for in between.
    pub(crate) fn announce_sleep(&self) -> Announced {
        let seen = protocol::announce_sleep::<Shared>(self.sleepers(), self.wake_sequence());
        Announced { seen, longest: self.order_sleep() }
    }

    /// Makes sure that appenders see a bit of [`Control::sleepers`] that was set before this call, unless their publications are
    /// visible after it. Returns the longest time for which a reader may sleep then.
    pub(crate) fn order_sleep(&self) -> Duration {
        if self.version() < VERSION || protocol::order_sleep::<Shared>(self.fences_wanted()) {
            return SLEEP_MAX;
        }
        let since = self.fences_wanted_since.get_or_init(Instant::now);
        if since.elapsed() < UNORDERED { UNORDERED } else { SLEEP_MAX }
    }

    /// Sleeps until something is published, for at most so long, or for no reason. Never for long: an appender may die or be
    /// stopped after it saw that a reader sleeps and before it wakes it.
    pub(crate) fn sleep(&self, announced: Announced, left: Option<Duration>) {
        let Announced { seen, longest } = announced;
        let left = left.map_or(longest, |left| left.min(longest));
        Shared::wait(self.wake_sequence(), seen, Some(left));
    }

    /// The offset that the next message gets; never beyond the published end.
    pub(crate) fn next_offset(&self) -> i64 {
        self.map.i64(word::NEXT_OFFSET).load(Ordering::Acquire)
    }

    /// The end of the bytes that an append may have written, published or not.
    pub(crate) fn touched(&self) -> &AtomicU64 {
        self.map.u64(word::TOUCHED)
    }

    /// Bits of [`sleeper`](crate::words::sleeper) for those that sleep, or are about to.
    pub(crate) fn sleepers(&self) -> &AtomicU32 {
        self.map.u32(word::SLEEPERS)
    }

    /// The word that sleepers wait on. It changes with each wake-up.
    pub(crate) fn wake_sequence(&self) -> &AtomicU32 {
        self.map.u32(word::WAKE)
    }

    /// The word that the serving broker waits on. It changes with each wake-up of the broker.
    pub(crate) fn broker_wake_sequence(&self) -> &AtomicU32 {
        self.map.u32(word::BROKER_WAKE)
    }

    /// Not 0 if a reader cannot have the kernel fence appenders: then appenders use fences themselves.
    fn fences_wanted(&self) -> &AtomicU32 {
        self.map.u32(word::FENCES_WANTED)
    }

    pub(crate) fn lock(&self) -> &AtomicU32 {
        self.map.u32(word::LOCK)
    }

    /// Entries of the open segment's offset index.
    pub(crate) fn index_entries(&self) -> &AtomicU32 {
        self.map.u32(word::INDEX_ENTRIES)
    }

    /// Entries of its time index.
    pub(crate) fn time_entries(&self) -> &AtomicU32 {
        self.map.u32(word::TIME_ENTRIES)
    }

    /// The position of the newest batch that the offset index names.
    pub(crate) fn indexed_to(&self) -> &AtomicU32 {
        self.map.u32(word::INDEXED_TO)
    }

    /// The greatest timestamp of the open segment, or -1.
    pub(crate) fn max_timestamp(&self) -> &AtomicI64 {
        self.map.i64(word::MAX_TIMESTAMP)
    }

    /// The last offset of the first batch with that timestamp.
    pub(crate) fn max_timestamp_offset(&self) -> &AtomicI64 {
        self.map.i64(word::MAX_TIMESTAMP_OFFSET)
    }

    /// The time when the open segment was made, by the wall clock.
    pub(crate) fn segment_created_ms(&self) -> &AtomicI64 {
        self.map.i64(word::SEGMENT_CREATED_MS)
    }

    /// Publishes the end of what survives a power cut. [`Control::wake`] is for readers that sleep until then.
    pub(crate) fn publish_synced(&self, synced_end: i64) {
        self.synced_end().fetch_max(synced_end, Ordering::AcqRel);
        Shared::fence();
    }

    /// Wakes all possible sleepers, announced or not: a process may have died between publishing and waking.
    pub(crate) fn wake_all(&self) {
        for word in [self.wake_sequence(), self.broker_wake_sequence()] {
            word.fetch_add(1, Ordering::SeqCst);
            Shared::wake(word, i32::MAX as u32);
        }
    }

    /// Messages before this offset survive a power cut.
    pub(crate) fn synced_end(&self) -> &AtomicI64 {
        self.map.i64(word::SYNCED_END)
    }

    /// The first offset of the queue.
    pub(crate) fn log_start(&self) -> &AtomicI64 {
        self.map.i64(word::LOG_START)
    }

    /// 1 once a sync has failed. The kernel may then take pages for written that are not, so no later sync can be
    /// trusted.
    pub(crate) fn sync_failed(&self) -> &AtomicU32 {
        self.map.u32(word::SYNC_FAILED)
    }

    /// The leader epoch of new batches. It is raised when a restart of the machine may have lost messages.
    pub(crate) fn leader_epoch(&self) -> &AtomicU32 {
        self.map.u32(word::LEADER_EPOCH)
    }

    /// The number of times that a slot was taken.
    pub(crate) fn slot_generation(&self, slot: usize) -> &AtomicU32 {
        self.map.u32(2 * PAGE + slot * SLOT_BYTES)
    }

    /// The process that has the slot, by its own pid: for messages only.
    pub(crate) fn slot_pid(&self, slot: usize) -> &AtomicU32 {
        self.map.u32(2 * PAGE + slot * SLOT_BYTES + 4)
    }

    /// Resets what an earlier boot has left: locks, sleepers, slots.
    pub(crate) fn reset_shared_state(&self) {
        self.lock().store(0, Ordering::Relaxed);
        self.sleepers().store(0, Ordering::Relaxed);
        self.fences_wanted().store(0, Ordering::Relaxed);
        self.sync_failed().store(0, Ordering::Relaxed);
    }
}

/// Returns an id of the present start of the machine.
pub(crate) fn boot_id() -> io::Result<[u8; 16]> {
    const PATH: &str = "/proc/sys/kernel/random/boot_id";
    let text = std::fs::read_to_string(PATH)?;
    let digits: Vec<u8> = text.bytes().filter(u8::is_ascii_hexdigit).collect();
    let mut boot = [0; 16];
    for (byte, pair) in boot.iter_mut().zip(digits.chunks_exact(2)) {
        let pair = str::from_utf8(pair).unwrap_or_default();
        *byte = u8::from_str_radix(pair, 16).unwrap_or_default();
    }
    Ok(boot)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_system_without_shared_mappings_is_named() {
        // Files of /proc cannot be mapped; those of some network file systems neither.
        let file = File::open("/proc/self/status").unwrap();
        let error = Control::map(&file, Path::new("/somewhere"), false).unwrap_err();
        assert!(matches!(error, QueueError::NoSharedMapping { .. }), "{error}");
        assert!(error.to_string().contains("put the queue on a local disk"), "{error}");
    }
}
