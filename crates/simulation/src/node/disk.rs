//! Faults of a simulated node's disk.

use super::Node;
use super::whole::Whole;

/// Bytes that a stop and a start may still write on a full disk.
const RESERVE_BYTES: u64 = 1 << 20;
/// Interval between two checks whether a full disk has free space again, in ms.
const DISK_FULL_RETRY_MS: u64 = 500;

/// Faults of a disk.
#[derive(Debug, Default, Clone, Copy)]
pub(super) struct DiskFaults {
    /// End of the time in which it is full; `None`: it is not full.
    pub(super) full_until_ms: Option<u64>,
    /// Time before which no sync ends.
    pub(super) hangs_until_ms: u64,
    /// One of the next syncs fails.
    pub(super) fails: bool,
    /// Longest duration of a sync in ms; 0: the default.
    pub(super) sync_max_ms: u64,
    retry_at_ms: u64,
}

impl Node {
    /// Leaves only `free_bytes` of free space on its disk until `until_ms`.
    pub(crate) fn fill_disk(&mut self, free_bytes: u64, until_ms: u64) {
        self.storage.set_free_space(Some(free_bytes));
        self.disk.full_until_ms = Some(until_ms);
        self.running.iter_mut().for_each(|running| running.had_full_disk = true);
    }

    /// Gives a stop and a start on a full disk some reserved free space.
    pub(super) fn take_reserve(&self) {
        if self.disk.full_until_ms.is_some() {
            self.storage.set_free_space(Some(RESERVE_BYTES));
        }
    }

    /// Time before which no sync ends.
    pub(crate) fn hang_disk(&mut self, until_ms: u64) {
        self.disk.hangs_until_ms = until_ms;
        if let Some(round) = self.running.as_mut().and_then(|running| running.round.as_mut()) {
            round.done_at_ms = round.done_at_ms.max(until_ms);
        }
    }

    /// Lets the next sync fail. Its data is not on the disk.
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

    /// Lets each sync take up to `sync_max_ms`.
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
        running.has_failing_disk = running.has_failed(self.id);
        if let Some(round) = &mut running.round {
            round.done_at_ms = round.done_at_ms.min(now_ms);
        }
    }

    pub(super) fn look_after_disk(&mut self, now_ms: u64) {
        if self.disk.full_until_ms.is_some_and(|until_ms| until_ms <= now_ms) {
            self.storage.set_free_space(None);
            self.disk.full_until_ms = None;
        }
        if now_ms >= self.disk.retry_at_ms {
            self.disk.retry_at_ms = now_ms + DISK_FULL_RETRY_MS;
            self.running.iter().for_each(|running| running.dir.retry_after_disk_full(now_ms));
        }
    }

    /// Returns true if it runs, votes, and has all records that it has acknowledged. Its links do not matter.
    pub(crate) fn is_sound(&self, now_ms: u64) -> bool {
        let Some(running) = &self.running else { return false };
        let has_space = self.disk.full_until_ms.is_none() && !running.dir.is_full();
        // Until a whole node serves, it may not have opened the partition.
        let serves = running.whole.as_ref().is_none_or(Whole::is_in_service);
        has_space && serves && !self.has_failed() && self.disk.hangs_until_ms <= now_ms && !self.may_lack
    }

    /// Returns true if a power cut may have destroyed records that it has acknowledged, and it has not caught up since.
    pub(crate) fn may_lack(&self) -> bool {
        self.may_lack
    }
}
