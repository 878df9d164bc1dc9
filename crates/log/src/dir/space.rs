//! Free space on the file system of a log directory. A reserve makes sure that a stop and a start can write to a disk that
//! clients have filled.
//!
//! The reserve is a file of which only the blocks count. When a write finds the disk full, that is logged once, and clients'
//! appends are refused until there is free space again. A stop, and a start that finds the disk full, remove the file and
//! use its blocks. No other writer gets them, since appends stay refused until the reserve can be set up again.
//!
//! Between full and not full is a margin, of bytes and of time. Other users of the disk may write and delete around the
//! threshold, and each change would move leaders and add lines to the log.

use super::LogDir;
use crate::storage::{OpenMode, Storage};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;

/// Name of the file with the reserve.
const RESERVE: &str = ".mainstem-reserve";

/// Name of the file that is written and removed to test for free space.
const SPACE_PROBE: &str = ".room-probe";

/// The reserve is half a percent of the file system within these bounds, and never more than a quarter of it.
const RESERVE_BYTES: std::ops::RangeInclusive<u64> = 1 << 20..=32 << 20;

/// A full disk counts as full until each look has found free space for this time.
const LASTING_MS: u64 = 2_000;

/// If a disk is full again within this time after it had free space, the next wait is twice as long, up to
/// [`LASTING_MS_MAX`].
const AGAIN_MS: u64 = 60_000;
const LASTING_MS_MAX: u64 = 32_000;

/// Free space of this many reserves is far from the threshold. It counts immediately, unless the disk was full again within
/// [`PLENTY_AGAIN_MS`] before.
const PLENTY: u64 = 8;
const PLENTY_AGAIN_MS: u64 = 10_000;

/// The findings of a look at a full disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum FreeSpace {
    None,
    /// Beyond the margin.
    Enough,
    /// Far beyond it.
    Plenty,
}

/// The time for which free space has to last before it counts.
#[derive(Debug)]
struct Hysteresis {
    enough_ms: u64,
    /// The same if there is plenty.
    plenty_ms: u64,
    /// The time since which each look has found free space.
    since_ms: Option<u64>,
    /// The time at which free space counted last.
    counted_ms: Option<u64>,
    /// The disk was full at the last look.
    is_waiting: bool,
}

impl Default for Hysteresis {
    fn default() -> Self {
        Hysteresis {
            enough_ms: LASTING_MS,
            plenty_ms: 0,
            since_ms: None,
            counted_ms: None,
            is_waiting: false,
        }
    }
}

impl Hysteresis {
    /// Notes what a look at a full disk has found. Returns true if free space has lasted long enough to count
    /// ([`Hysteresis::count`]).
    fn look(&mut self, found: FreeSpace, now_ms: u64) -> bool {
        let counted_within = |ms: u64| self.counted_ms.is_some_and(|at| now_ms.saturating_sub(at) < ms);
        if !self.is_waiting {
            self.is_waiting = true;
            let is_again = counted_within(AGAIN_MS);
            self.enough_ms = if is_again { (self.enough_ms * 2).min(LASTING_MS_MAX) } else { LASTING_MS };
            self.plenty_ms = if counted_within(PLENTY_AGAIN_MS) { LASTING_MS } else { 0 };
        }
        if found == FreeSpace::None {
            self.since_ms = None;
            return false;
        }
        let since_ms = *self.since_ms.get_or_insert(now_ms);
        let lasts_ms = if found == FreeSpace::Plenty { self.plenty_ms } else { self.enough_ms };
        now_ms.saturating_sub(since_ms) >= lasts_ms
    }

    /// Counts the disk as no longer full.
    fn count(&mut self, now_ms: u64) {
        (self.since_ms, self.counted_ms, self.is_waiting) = (None, Some(now_ms), false);
    }
}

/// The free space and the reserve of a directory.
#[derive(Debug)]
pub(super) struct Space {
    storage: Arc<dyn Storage>,
    dir: PathBuf,
    reserve_bytes: u64,
    full: AtomicBool,
    hysteresis: Mutex<Hysteresis>,
}

impl Space {
    /// Sets up the reserve, or releases it if the disk is full.
    pub(super) fn open(storage: &Arc<dyn Storage>, dir: &Path) -> io::Result<Space> {
        let total = storage.total_space(dir)?;
        let reserve_bytes = (total / 200).clamp(*RESERVE_BYTES.start(), *RESERVE_BYTES.end()).min(total / 4);
        let full = AtomicBool::new(false);
        let hysteresis = Mutex::default();
        let space = Space { storage: storage.clone(), dir: dir.to_owned(), reserve_bytes, full, hysteresis };
        let free = storage.free_space(dir)?;
        let has_reserve = storage.exists(&space.dir.join(RESERVE))?;
        let is_full = if has_reserve { free < reserve_bytes / 2 } else { !space.set_up() };
        if is_full {
            space.release();
            space.note_full();
        }
        Ok(space)
    }

    fn note_full(&self) {
        if !self.full.swap(true, Ordering::AcqRel) {
            tracing::error!(
                dir = %self.dir.display(),
                "the disk of the log directory is full: appends are refused, reads continue; free some space, and appends \
                 are accepted again"
            );
        }
    }

    /// Takes the reserve if twice as much is free. Returns true if it did.
    fn set_up(&self) -> bool {
        let fits = self.storage.free_space(&self.dir).is_ok_and(|free| free >= 2 * self.reserve_bytes);
        fits && self.allocate(RESERVE).is_ok()
    }

    fn allocate(&self, name: &str) -> io::Result<()> {
        let path = self.dir.join(name);
        let file = self.storage.open(&path, OpenMode::Create)?;
        let allocated = file.allocate(0, self.reserve_bytes);
        if allocated.is_err() {
            self.storage.remove_file(&path)?;
        }
        allocated
    }

    /// Releases the reserve.
    fn release(&self) {
        match self.storage.remove_file(&self.dir.join(RESERVE)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                tracing::warn!(dir = %self.dir.display(), %error, "the reserve cannot be removed");
            }
            _ => {}
        }
    }

    fn has_reserve(&self) -> bool {
        matches!(self.storage.exists(&self.dir.join(RESERVE)), Ok(true))
    }

    /// Looks at the free space. Enough is twice the reserve: as much again for the margin and the writes of a stop. If the
    /// reserve was released, its blocks do not count.
    fn free_space(&self) -> FreeSpace {
        let taken = if self.has_reserve() { 0 } else { self.reserve_bytes };
        let free = self.storage.free_space(&self.dir).ok().and_then(|free| free.checked_sub(taken));
        let Some(free) = free.filter(|free| *free >= 2 * self.reserve_bytes) else { return FreeSpace::None };
        // The file system's number does not include a quota.
        let fits = self.allocate(SPACE_PROBE).is_ok();
        if !(fits && self.storage.remove_file(&self.dir.join(SPACE_PROBE)).is_ok()) {
            return FreeSpace::None;
        }
        if free >= PLENTY * self.reserve_bytes { FreeSpace::Plenty } else { FreeSpace::Enough }
    }
}

impl LogDir {
    /// Returns true if the disk is full. Appends of clients are then refused.
    pub fn is_full(&self) -> bool {
        self.space.as_ref().is_some_and(|space| space.full.load(Ordering::Relaxed))
    }

    /// Notes that a write found the disk full. It is logged once until there is free space.
    pub fn note_full(&self) {
        if let Some(space) = &self.space {
            space.note_full();
        }
    }

    /// Accepts appends again if a full disk has free space. To be called at least once a second.
    ///
    /// Eight times the reserve counts immediately. Twice the reserve counts if each look of two seconds has found it. The wait
    /// is longer, up to 32 s, if the disk was full again soon after it had free space.
    /// `now_ms` is monotonic time in ms. May block on the disk.
    pub fn retry_after_disk_full(&self, now_ms: u64) {
        let Some(space) = self.space.as_ref().filter(|_| self.is_full()) else { return };
        let mut hysteresis = space.hysteresis.lock();
        if hysteresis.look(space.free_space(), now_ms) && (space.has_reserve() || space.set_up()) {
            hysteresis.count(now_ms);
            space.full.store(false, Ordering::Release);
            tracing::warn!(dir = %self.path.display(), "the disk of the log directory has free space again");
        }
    }

    /// Releases the reserve of a full disk for the writes of a stop.
    pub fn prepare_stop(&self) {
        if let Some(space) = self.space.as_ref().filter(|_| self.is_full()) {
            space.release();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dir::{LogDirOptions, NodeIdentity};
    use crate::sim::SimStorage;

    /// Bytes of the reserve, on the simulated disk.
    const RESERVE_MAX: u64 = *RESERVE_BYTES.end();

    fn full_dir() -> (SimStorage, Arc<LogDir>) {
        let storage = SimStorage::new();
        let identity = NodeIdentity { cluster_id: Some("cluster".into()), node_id: 1 };
        let options = LogDirOptions { keep_reserve: true, ..LogDirOptions::default() };
        let dir = options.open(Arc::new(storage.clone()), Path::new("/data"), &identity, "boot");
        let dir = dir.expect("it opens");
        dir.note_full();
        (storage, dir)
    }

    /// Counts the changes between full and not full. A write finds the disk full whenever less than the threshold is free.
    fn changes(free: impl Fn(u64) -> u64, upto_ms: u64) -> u32 {
        let (storage, dir) = full_dir();
        let mut changes = 0;
        for now_ms in (0..upto_ms).step_by(500) {
            storage.set_free_space(Some(free(now_ms)));
            let was_full = dir.is_full();
            if free(now_ms) < RESERVE_MAX {
                dir.note_full();
            }
            dir.retry_after_disk_full(now_ms);
            changes += u32::from(was_full != dir.is_full());
        }
        changes
    }

    #[test]
    fn free_space_that_comes_and_goes_is_no_change() {
        let around = |period_ms: u64| {
            move |now_ms: u64| {
                if (now_ms / period_ms).is_multiple_of(2) { RESERVE_MAX - 1 } else { 4 * RESERVE_MAX }
            }
        };
        assert_eq!(changes(around(500), 8_000), 0);
        assert_eq!(changes(around(1_000), 60_000), 0);
        // By bytes: what is above the threshold, and below the margin.
        assert_eq!(changes(|_| 2 * RESERVE_MAX - 1, 60_000), 0);
        // Free space that lasts for a while counts, and has to last longer the next time.
        assert_eq!(changes(around(3_000), 60_000), 2);
        // Far from the threshold it counts at once, and has to last after that.
        let far = |now_ms: u64| if (now_ms / 500).is_multiple_of(2) { 0 } else { 100 * RESERVE_MAX };
        assert_eq!(changes(far, 60_000), 2);
    }

    #[test]
    fn lasting_free_space_is_noticed_in_two_seconds_and_plenty_at_once() {
        for (free, noticed_ms) in
            [(Some(2 * RESERVE_MAX), LASTING_MS), (Some(PLENTY * RESERVE_MAX), 0), (None, 0)]
        {
            let (storage, dir) = full_dir();
            storage.set_free_space(free);
            let noticed = (0..60_000).step_by(500).find(|now_ms| {
                dir.retry_after_disk_full(*now_ms);
                !dir.is_full()
            });
            assert_eq!(noticed, Some(noticed_ms), "{free:?}");
        }
    }

    #[test]
    fn a_reserve_that_was_given_away_is_there_again_with_the_free_space() {
        let (storage, dir) = full_dir();
        let reserve = Path::new("/data").join(RESERVE);
        dir.prepare_stop();
        assert!(!storage.exists(&reserve).unwrap());
        storage.set_free_space(Some(3 * RESERVE_MAX - 1));
        (0..10_000).step_by(500).for_each(|now_ms| dir.retry_after_disk_full(now_ms));
        assert!(dir.is_full() && !storage.exists(&reserve).unwrap());
        storage.set_free_space(Some(3 * RESERVE_MAX));
        (10_000..13_000).step_by(500).for_each(|now_ms| dir.retry_after_disk_full(now_ms));
        assert!(!dir.is_full() && storage.exists(&reserve).unwrap());
    }

    #[test]
    fn a_disk_that_is_full_again_soon_waits_for_longer_and_a_good_minute_is_forgiven() {
        let mut hysteresis = Hysteresis::default();
        let mut now_ms = 0;
        let mut waits = |pause_ms: u64| {
            now_ms += pause_ms;
            assert!(!hysteresis.look(FreeSpace::None, now_ms));
            let begun_ms = now_ms + 500;
            loop {
                now_ms += 500;
                if hysteresis.look(FreeSpace::Enough, now_ms) {
                    hysteresis.count(now_ms);
                    return now_ms - begun_ms;
                }
            }
        };
        let soon = [0; 7].map(|_| waits(1_000));
        assert_eq!(soon, [2_000, 4_000, 8_000, 16_000, 32_000, 32_000, 32_000]);
        assert_eq!(waits(AGAIN_MS), LASTING_MS);
    }
}
