//! The writes of a coordinator: decided under its lock, made without it in the order in which they were decided, one at a time for
//! each partition.

use std::collections::VecDeque;
use std::sync::Arc;

use mainstem_coordination::groups::CoordinatorRecord;
use mainstem_coordination::writes::{self, Consequence};
use mainstem_log::{TransactionMarker, VerificationGuard};
use mainstem_records::{BatchOptions, LeaderEpoch};
use mainstem_runtime::clock::Now;
use mainstem_store::partition::{Durable, Partition};
use mainstem_store::scratch::with_scratch;
use mainstem_wire::ErrorCode;

use super::{Coordinator, Driver, whole_or_over};

/// Called with the outcome of a write, after the coordinator has taken it.
pub type OnWritten = Box<dyn FnOnce(Result<(), ErrorCode>) + Send>;

/// One write to a partition of the coordinator's topic.
pub(super) struct Write<C: Coordinator> {
    pub(super) ticket: C::Ticket,
    /// The epoch in which the partition was loaded when the write was decided. In another one the decision may be wrong.
    pub(super) epoch: Option<LeaderEpoch>,
    pub(super) content: Content,
    pub(super) on_written: Option<OnWritten>,
}

/// The content of one write.
pub(super) enum Content {
    Records {
        timestamp_ms: i64,
        batch: BatchOptions,
        guard: VerificationGuard,
        records: Vec<CoordinatorRecord>,
    },
    Marker(TransactionMarker),
}

/// The decided writes of one partition that are not made yet.
pub(super) struct Lane<C: Coordinator> {
    pub(super) writes: VecDeque<Write<C>>,
    /// True while a thread makes them.
    pub(super) is_busy: bool,
}

impl<C: Coordinator> Driver<C> {
    /// Writes a marker into a partition of the coordinator's topic, in the order of the coordinator's own writes, if `begin` allows it.
    /// `on_written` is called once, also if `begin` refuses; it is dropped uncalled only if the broker has stopped.
    pub fn write_marker(
        &self,
        marker: TransactionMarker,
        begin: impl FnOnce(&mut C, Now) -> Result<C::Ticket, ErrorCode>,
        on_written: OnWritten,
    ) {
        let mut core = self.lock();
        match begin(&mut core.machine, self.clock().now()) {
            Ok(ticket) => {
                let epoch = core.epochs.get(&C::partition_of(ticket)).copied();
                let content = Content::Marker(marker);
                self.queue(Write { ticket, epoch, content, on_written: Some(on_written) });
                self.carry_out(core, VerificationGuard::NONE);
                self.drain(C::partition_of(ticket));
            }
            Err(error) => {
                self.prefer_wanted(&mut core);
                drop(core);
                on_written(Err(error));
            }
        }
    }

    /// Queues a write behind the others of its partition. To be called under the coordinator's lock, which orders them.
    pub(super) fn queue(&self, write: Write<C>) {
        let mut lanes = self.lanes.lock();
        let empty = || Lane { writes: VecDeque::new(), is_busy: false };
        lanes.entry(C::partition_of(write.ticket)).or_insert_with(empty).writes.push_back(write);
    }

    /// Makes the writes of a partition, unless another thread does: that one makes these too.
    pub(super) fn drain(&self, partition: i32) {
        // A partition that stays busy would never be written again.
        let _whole = whole_or_over();
        #[cfg(feature = "sim")]
        if self.by_hand.get().is_some() {
            return;
        }
        let mut lanes = self.lanes.lock();
        match lanes.get_mut(&partition) {
            Some(lane) if !lane.is_busy => lane.is_busy = true,
            _ => return,
        }
        while let Some(write) = lanes.get_mut(&partition).and_then(|lane| lane.writes.pop_front()) {
            drop(lanes);
            self.write(write);
            lanes = self.lanes.lock();
        }
        lanes.remove(&partition);
    }

    /// Makes the write that is next.
    pub(super) fn write(&self, write: Write<C>) {
        let Write { ticket, epoch: decided_in, content, on_written } = write;
        match append::<C>(self, (C::partition_of(ticket), decided_in), content) {
            Ok((partition, upto, epoch)) => {
                let is_cached = partition.settings().write_caching && !partition.is_replicated();
                let own = self.own.clone();
                let durable = Durable::Call(Box::new(move |result| {
                    // If the node is gone, its clients are gone too.
                    let Some(driver) = own.upgrade() else { return };
                    #[cfg(feature = "sim")]
                    if driver.by_hand.get().is_some() {
                        return driver.report_later(C::partition_of(ticket), move |driver| {
                            driver.written((ticket, decided_in), result, on_written);
                        });
                    }
                    driver.written((ticket, decided_in), result, on_written);
                }));
                // Called without any lock, since the answer may come at once.
                match is_cached {
                    true => durable.done(Ok(())),
                    false => partition.when_committed(upto, epoch, durable),
                }
            }
            Err(error) => {
                let mut core = self.lock();
                core.machine.appended(self.clock().now(), ticket, Err(error));
                self.carry_out(core, VerificationGuard::NONE);
                on_written.into_iter().for_each(|on_written| on_written(Err(error)));
            }
        }
    }

    /// Handles the outcome of a write: it is durable, or it is not known whether its records will be there after a restart. Then the
    /// partition is unloaded, unless it was loaded again since.
    fn written(
        &self,
        (ticket, epoch): (C::Ticket, Option<LeaderEpoch>),
        result: Result<(), ErrorCode>,
        on_written: Option<OnWritten>,
    ) {
        let _whole = whole_or_over();
        let result = writes::without_min_insync(result);
        let mut core = self.lock();
        let (now, partition) = (self.clock().now(), C::partition_of(ticket));
        match Consequence::of(result, epoch, core.epochs.get(&partition).copied()) {
            Consequence::Report => core.machine.appended(now, ticket, Ok(())),
            Consequence::Unload => core.unload_one(now, partition),
            Consequence::Nothing => {}
        }
        self.carry_out(core, VerificationGuard::NONE);
        on_written.into_iter().for_each(|on_written| on_written(result));
    }
}

/// Appends to a partition of a coordinator's topic, if that is replicated in the epoch in which it was loaded. Between two epochs other
/// nodes may have led, and changed the state behind the decision. Returns the partition, the end up to which it has to be durable, and the
/// leader epoch.
fn append<C: Coordinator>(
    driver: &Driver<C>,
    (partition, epoch): (i32, Option<LeaderEpoch>),
    content: Content,
) -> Result<(Arc<Partition>, i64, LeaderEpoch), ErrorCode> {
    let (partition, clock) =
        (driver.partition(partition).ok_or(ErrorCode::NOT_LEADER_OR_FOLLOWER)?, driver.clock());
    let epoch = epoch.filter(|_| partition.is_replicated());
    let appended = match content {
        Content::Marker(marker) => partition.append_marker_decided(&marker, epoch, clock),
        Content::Records { timestamp_ms, batch, guard, records } => {
            let bytes = writes::batch_of(batch, timestamp_ms, &records).map_err(|_| {
                #[cfg(feature = "sim")]
                driver.note_fault("records that do not fit into a batch");
                ErrorCode::MESSAGE_TOO_LARGE
            })?;
            let append = |scratch: &mut _| partition.append_decided(&bytes, (guard, epoch), clock, scratch);
            with_scratch(append)
        }
    };
    let outcome = appended.map_err(|refused| refused.code())?;
    Ok((partition, outcome.appended.last_offset + 1, outcome.epoch))
}
