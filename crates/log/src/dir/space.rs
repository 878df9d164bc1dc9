//! Room on the file system of a log directory: a reserve, so that a disk that clients have filled still takes what a stop
//! and a start have to write.
//!
//! The reserve is a file of which only the blocks count. When a write finds the disk full that is logged once, and clients'
//! appends are refused until there is room again. A stop, and a start that finds the disk full, remove the file and live on
//! its blocks; no other writer gets them, since appends stay refused until the reserve can be set up again.
//!
//! Between full and not full is a margin, of bytes and of time: who else uses the disk may write and delete around the threshold, and
//! each change would be one of leaders and of lines of the log.

use super::LogDir;
use crate::storage::{OpenMode, Storage};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;

/// Name of the file with the reserve.
const RESERVE: &str = ".mainstem-reserve";

/// Name of the file that is written and removed to find out whether there is room.
const ROOM_PROBE: &str = ".room-probe";

/// The reserve is half a percent of the file system within these bounds, and never more than a quarter of it.
const RESERVE_BYTES: std::ops::RangeInclusive<u64> = 1 << 20..=32 << 20;

/// A full disk has room when it was there at each look for so long.
const ROOM_MS: u64 = 2_000;

/// For a disk that is full again within this time after it had room, that time is twice as long as before, up to the most.
const AGAIN_MS: u64 = 60_000;
const ROOM_MS_MAX: u64 = 32_000;

/// Free space of so many reserves is far from the threshold: such room need not last, unless it was gone within this time before.
const PLENTY: u64 = 8;
const PLENTY_AGAIN_MS: u64 = 10_000;

/// The findings of a look at a full disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Room {
    None,
    /// Beyond the margin.
    Enough,
    /// Far beyond it.
    Plenty,
}

/// The time that room has to last before it counts.
#[derive(Debug)]
struct Hysteresis {
    room_ms: u64,
    /// The same where there is plenty.
    plenty_ms: u64,
    /// Since when each look has found room.
    since_ms: Option<u64>,
    /// When it counted last.
    counted_ms: Option<u64>,
    /// It was full at the last look.
    is_waiting: bool,
}

impl Default for Hysteresis {
    fn default() -> Self {
        Hysteresis { room_ms: ROOM_MS, plenty_ms: 0, since_ms: None, counted_ms: None, is_waiting: false }
    }
}

impl Hysteresis {
    /// A look at a full disk has found room, or none. Returns true if it has lasted for long enough to count
    /// ([`Hysteresis::count`]).
    fn look(&mut self, room: Room, now_ms: u64) -> bool {
        let counted_within = |ms: u64| self.counted_ms.is_some_and(|at| now_ms.saturating_sub(at) < ms);
        if !self.is_waiting {
            self.is_waiting = true;
            let is_again = counted_within(AGAIN_MS);
            self.room_ms = if is_again { (self.room_ms * 2).min(ROOM_MS_MAX) } else { ROOM_MS };
            self.plenty_ms = if counted_within(PLENTY_AGAIN_MS) { ROOM_MS } else { 0 };
        }
        if room == Room::None {
            self.since_ms = None;
            return false;
        }
        let since_ms = *self.since_ms.get_or_insert(now_ms);
        let lasts_ms = if room == Room::Plenty { self.plenty_ms } else { self.room_ms };
        now_ms.saturating_sub(since_ms) >= lasts_ms
    }

    /// There is room from now on.
    fn count(&mut self, now_ms: u64) {
        (self.since_ms, self.counted_ms, self.is_waiting) = (None, Some(now_ms), false);
    }
}

/// The room for a directory, as far as it is known.
#[derive(Debug)]
pub(super) struct Space {
    storage: Arc<dyn Storage>,
    dir: PathBuf,
    reserve_bytes: u64,
    full: AtomicBool,
    hysteresis: Mutex<Hysteresis>,
}

impl Space {
    /// Sets up the reserve, or gives it away where the disk is full.
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
                "the disk of the log directory is full: appends are refused, reads go on; make room, and appends go on by \
                 themselves"
            );
        }
    }

    /// Takes the reserve, if twice as much is there; returns true if it did.
    fn set_up(&self) -> bool {
        let has_room = self.storage.free_space(&self.dir).is_ok_and(|free| free >= 2 * self.reserve_bytes);
        has_room && self.allocate(RESERVE).is_ok()
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

    /// Gives the reserve away.
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

    /// Looks how much room there is: by the margin it is as much again as the reserve, and what a stop has to write; beside the reserve,
    /// where that was given away.
    fn room(&self) -> Room {
        let taken = if self.has_reserve() { 0 } else { self.reserve_bytes };
        let free = self.storage.free_space(&self.dir).ok().and_then(|free| free.checked_sub(taken));
        let Some(free) = free.filter(|free| *free >= 2 * self.reserve_bytes) else { return Room::None };
        // A quota is not in what the file system says.
        let has_room = self.allocate(ROOM_PROBE).is_ok();
        if !(has_room && self.storage.remove_file(&self.dir.join(ROOM_PROBE)).is_ok()) {
            return Room::None;
        }
        if free >= PLENTY * self.reserve_bytes { Room::Plenty } else { Room::Enough }
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

    /// Lets appends go on where there is room again; to be called now and then, at least once a second. There is room at
    /// once where eight times the reserve is free; where it is twice, when it was so at each look for two seconds, and for longer, up to
    /// 32 s, where the disk was full soon after it had room.
    /// `now_ms` are monotonic milliseconds. May block on the disk.
    pub fn look_for_room(&self, now_ms: u64) {
        let Some(space) = self.space.as_ref().filter(|_| self.is_full()) else { return };
        let mut hysteresis = space.hysteresis.lock();
        if hysteresis.look(space.room(), now_ms) && (space.has_reserve() || space.set_up()) {
            hysteresis.count(now_ms);
            space.full.store(false, Ordering::Release);
            tracing::warn!(dir = %self.path.display(), "there is room on the disk of the log directory again");
        }
    }

    /// Gives the reserve of a full disk away, for what a stop has to write.
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

    /// The number of times that a directory was full or had room again, where a write finds no room whenever there is less than the threshold.
    fn changes(room: impl Fn(u64) -> u64, upto_ms: u64) -> u32 {
        let (storage, dir) = full_dir();
        let mut changes = 0;
        for now_ms in (0..upto_ms).step_by(500) {
            storage.set_room(Some(room(now_ms)));
            let was_full = dir.is_full();
            if room(now_ms) < RESERVE_MAX {
                dir.note_full();
            }
            dir.look_for_room(now_ms);
            changes += u32::from(was_full != dir.is_full());
        }
        changes
    }

    #[test]
    fn room_that_comes_and_goes_is_no_change() {
        let around = |period_ms: u64| {
            move |now_ms: u64| {
                if (now_ms / period_ms).is_multiple_of(2) { RESERVE_MAX - 1 } else { 4 * RESERVE_MAX }
            }
        };
        assert_eq!(changes(around(500), 8_000), 0);
        assert_eq!(changes(around(1_000), 60_000), 0);
        // By bytes: what is above the threshold, and below the margin.
        assert_eq!(changes(|_| 2 * RESERVE_MAX - 1, 60_000), 0);
        // Room that lasts for a while counts, and for longer the next time.
        assert_eq!(changes(around(3_000), 60_000), 2);
        // Far from the threshold it counts at once, and has to last after that.
        let far = |now_ms: u64| if (now_ms / 500).is_multiple_of(2) { 0 } else { 100 * RESERVE_MAX };
        assert_eq!(changes(far, 60_000), 2);
    }

    #[test]
    fn room_that_lasts_is_noticed_in_two_seconds_and_plenty_at_once() {
        for (room, noticed_ms) in
            [(Some(2 * RESERVE_MAX), ROOM_MS), (Some(PLENTY * RESERVE_MAX), 0), (None, 0)]
        {
            let (storage, dir) = full_dir();
            storage.set_room(room);
            let noticed = (0..60_000).step_by(500).find(|now_ms| {
                dir.look_for_room(*now_ms);
                !dir.is_full()
            });
            assert_eq!(noticed, Some(noticed_ms), "{room:?}");
        }
    }

    #[test]
    fn a_reserve_that_was_given_away_is_there_again_with_the_room() {
        let (storage, dir) = full_dir();
        let reserve = Path::new("/data").join(RESERVE);
        dir.prepare_stop();
        assert!(!storage.exists(&reserve).unwrap());
        storage.set_room(Some(3 * RESERVE_MAX - 1));
        (0..10_000).step_by(500).for_each(|now_ms| dir.look_for_room(now_ms));
        assert!(dir.is_full() && !storage.exists(&reserve).unwrap());
        storage.set_room(Some(3 * RESERVE_MAX));
        (10_000..13_000).step_by(500).for_each(|now_ms| dir.look_for_room(now_ms));
        assert!(!dir.is_full() && storage.exists(&reserve).unwrap());
    }

    #[test]
    fn a_disk_that_is_full_again_soon_waits_for_longer_and_a_good_minute_is_forgiven() {
        let mut hysteresis = Hysteresis::default();
        let mut now_ms = 0;
        let mut waits = |pause_ms: u64| {
            now_ms += pause_ms;
            assert!(!hysteresis.look(Room::None, now_ms));
            let begun_ms = now_ms + 500;
            loop {
                now_ms += 500;
                if hysteresis.look(Room::Enough, now_ms) {
                    hysteresis.count(now_ms);
                    return now_ms - begun_ms;
                }
            }
        };
        let soon = [0; 7].map(|_| waits(1_000));
        assert_eq!(soon, [2_000, 4_000, 8_000, 16_000, 32_000, 32_000, 32_000]);
        assert_eq!(waits(AGAIN_MS), ROOM_MS);
    }
}
