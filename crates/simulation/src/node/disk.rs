//! What is wrong with a simulated node's disk.

use super::Node;
use super::running::Running;

/// What a stop and a start have on a disk that is full.
const RESERVE_BYTES: u64 = 1 << 20;
/// How often it is looked whether there is room again.
const LOOK_FOR_ROOM_MS: u64 = 500;

/// What is wrong with a disk.
#[derive(Debug, Default, Clone, Copy)]
pub(super) struct DiskFaults {
    /// It is full until then.
    pub(super) full_until_ms: Option<u64>,
    /// No sync is done before.
    pub(super) hangs_until_ms: u64,
    /// One of the next syncs fails.
    pub(super) fails: bool,
    /// So long takes a sync, at most; 0: no longer than elsewhere.
    pub(super) sync_max_ms: u64,
    room_at_ms: u64,
}

impl Node {
    /// Its disk has room for so many bytes, until then.
    pub(crate) fn fill_disk(&mut self, room: u64, until_ms: u64) {
        self.storage.set_free_space(Some(room));
        self.disk.full_until_ms = Some(until_ms);
    }

    /// A stop and a start on a full disk live on what was kept in reserve.
    pub(super) fn take_reserve(&self) {
        if self.disk.full_until_ms.is_some() {
            self.storage.set_free_space(Some(RESERVE_BYTES));
        }
    }

    /// No sync is done before.
    pub(crate) fn hang_disk(&mut self, until_ms: u64) {
        self.disk.hangs_until_ms = until_ms;
        if let Some(round) = self.running.as_mut().and_then(|running| running.round.as_mut()) {
            round.done_at_ms = round.done_at_ms.max(until_ms);
        }
    }

    /// The next sync fails, and what it should have written is not on the disk.
    pub(crate) fn fail_sync(&mut self) {
        if let Some(running) = &mut self.running {
            running.has_failing_disk = true;
            self.disk.fails = true;
            self.storage.fail_syncs(1);
        }
    }

    pub(super) fn end_failing_syncs(&mut self) {
        self.disk.fails = false;
        self.storage.fail_syncs(0);
    }

    /// A sync takes so long, at most.
    pub(crate) fn slow_disk(&mut self, sync_max_ms: u64) {
        self.disk.sync_max_ms = sync_max_ms;
    }

    pub(super) fn repair_disk(&mut self) {
        let now_ms = self.clock.mono_ms();
        self.disk.sync_max_ms = 0;
        self.end_failing_syncs();
        self.storage.set_free_space(None);
        self.disk.full_until_ms = None;
        self.disk.hangs_until_ms = 0;
        let Some(running) = &mut self.running else { return };
        running.has_failing_disk = running.has_failed();
        if let Some(round) = &mut running.round {
            round.done_at_ms = round.done_at_ms.min(now_ms);
        }
    }

    pub(super) fn look_after_disk(&mut self, now_ms: u64) {
        if self.disk.full_until_ms.is_some_and(|until_ms| until_ms <= now_ms) {
            self.storage.set_free_space(None);
            self.disk.full_until_ms = None;
        }
        if now_ms >= self.disk.room_at_ms {
            self.disk.room_at_ms = now_ms + LOOK_FOR_ROOM_MS;
            self.running.iter().for_each(|running| running.dir.retry_after_disk_full(now_ms));
        }
    }

    /// Returns true if it runs, votes, and has all that it has acknowledged. Links are of no account.
    pub(crate) fn is_sound(&self, now_ms: u64) -> bool {
        let has_room = |running: &Running| self.disk.full_until_ms.is_none() && !running.dir.is_full();
        let runs = self.running.as_ref().is_some_and(|running| has_room(running) && !running.has_failed());
        runs && self.disk.hangs_until_ms <= now_ms && !self.may_lack
    }

    /// Returns true if a power cut may have taken what it has acknowledged, and it has not caught up since.
    pub(crate) fn may_lack(&self) -> bool {
        self.may_lack
    }
}
