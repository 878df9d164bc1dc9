//! A driver whose writes are made and reported by hand, for simulations. In a broker, threads do that.

use std::collections::{HashMap, VecDeque};

use parking_lot::Mutex;

use super::{Coordinator, Driver};

/// Reports the fate of a write.
type Report<C> = Box<dyn FnOnce(&Driver<C>) + Send>;

/// The additional state of a driver by hand.
pub(super) struct ByHand<C: Coordinator> {
    /// Reports by partition, in the order in which the outcomes were known.
    reports: Mutex<HashMap<i32, VecDeque<Report<C>>>>,
    /// Records that do not decode, or do not fit into a batch: a simulation writes none.
    faults: Mutex<Vec<String>>,
}

impl<C: Coordinator> Driver<C> {
    /// Has decided writes wait for [`Self::write_next`], as behind a busy thread of the same partition. Their outcomes wait for
    /// [`Self::report_next`], as on a late thread of the flusher or of a link. Called before the first request.
    pub fn hold_writes(&self) {
        let by_hand = ByHand { reports: Mutex::default(), faults: Mutex::default() };
        assert!(self.by_hand.set(by_hand).is_ok(), "writes are held already");
    }

    /// Makes the oldest decided write of a partition. Returns false if there is none.
    pub fn write_next(&self, partition: i32) -> bool {
        let mut lanes = self.lanes.lock();
        let Some(lane) = lanes.get_mut(&partition) else { return false };
        let write = lane.writes.pop_front();
        if lane.writes.is_empty() {
            lanes.remove(&partition);
        }
        drop(lanes);
        let is_made = write.is_some();
        write.into_iter().for_each(|write| self.write(write));
        is_made
    }

    /// Queues the report of a write's outcome.
    pub(super) fn report_later(&self, partition: i32, report: impl FnOnce(&Driver<C>) + Send + 'static) {
        if let Some(by_hand) = self.by_hand.get() {
            by_hand.reports.lock().entry(partition).or_default().push_back(Box::new(report));
        }
    }

    /// Records a fault that a simulation must not have.
    pub(super) fn note_fault(&self, fault: &str) {
        if let Some(by_hand) = self.by_hand.get() {
            by_hand.faults.lock().push(fault.to_owned());
        }
    }

    /// Reports the oldest known outcome of a write to a partition. Returns false if there is none.
    pub fn report_next(&self, partition: i32) -> bool {
        let next = |by_hand: &ByHand<C>| by_hand.reports.lock().get_mut(&partition)?.pop_front();
        let report = self.by_hand.get().and_then(next);
        let is_reported = report.is_some();
        report.into_iter().for_each(|report| report(self));
        is_reported
    }

    /// Returns true if an outcome of a write to a partition is known and not reported.
    pub fn has_reports(&self, partition: i32) -> bool {
        let has =
            |by_hand: &ByHand<C>| by_hand.reports.lock().get(&partition).is_some_and(|some| !some.is_empty());
        self.by_hand.get().is_some_and(has)
    }

    /// Returns true if a decided write of a partition is not made yet.
    pub fn has_writes(&self, partition: i32) -> bool {
        self.lanes.lock().contains_key(&partition)
    }

    /// Acts like a process that dies: nothing is written or reported any more, and all waits for replies end.
    pub fn forget_waiting(&self) {
        let lanes = std::mem::take(&mut *self.lanes.lock());
        let reports = self.by_hand.get().map(|by_hand| std::mem::take(&mut *by_hand.reports.lock()));
        let waiting = std::mem::take(&mut self.core.lock().waiting);
        // Without the locks: they may hold what looks at the coordinator when it is dropped.
        drop((lanes, reports, waiting));
    }

    /// Fires the deadlines that are due.
    pub fn fire_due(&self) {
        let now_ms = self.clock().mono_ms();
        if self.look(|machine| machine.next_deadline_ms()).is_some_and(|due_ms| due_ms <= now_ms) {
            self.tick();
        }
    }

    /// Asserts what holds between any two calls.
    pub fn check(&self) {
        let core = self.core.lock();
        core.machine.check();
        let is_known = |index: &i32| core.epochs.contains_key(index);
        assert!(core.loads.keys().all(is_known), "what is taken over is so in an epoch");
        assert!(self.lanes.lock().values().all(|lane| !lane.writes.is_empty()), "no lane is empty");
        let faults = self.by_hand.get().map(|by_hand| by_hand.faults.lock().clone());
        assert_eq!(faults.unwrap_or_default(), Vec::<String>::new());
    }
}
