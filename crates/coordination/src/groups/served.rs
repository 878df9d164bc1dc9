//! One partition of `__consumer_offsets` with its groups: time-outs, and unloading.

use mainstem_wire::ErrorCode;

use super::api::append_error;
use super::appends::Appends;
use super::completion::Completion;
use super::consumer::{time_outs, timers};
use super::deadlines::{Fired, Key, Timer};
use super::group::{Groups, Protocol};
use super::io::Io;
use super::open_transactions::OpenTransactions;
use super::{rebalance, removal, transaction_offsets};

/// One partition of `__consumer_offsets` that this node serves.
#[derive(Debug, Default)]
pub(super) struct Partition {
    pub(super) service: Service,
    pub(super) groups: Groups,
    pub(super) appends: Appends,
    pub(super) transactions: OpenTransactions,
}

#[derive(Debug, Default)]
pub(super) struct Service {
    /// All records are loaded.
    pub(super) loaded: bool,
    /// The time of the next search for expired offsets.
    pub(super) expiry: Option<Timer>,
}

/// A partition with the context of its handlers.
pub(super) struct PartitionContext<'a> {
    pub(super) service: &'a mut Service,
    pub(super) groups: &'a mut Groups,
    pub(super) io: Io<'a>,
}

impl PartitionContext<'_> {
    /// Sets the time of the next search for expired offsets.
    pub(super) fn schedule_expiry(&mut self) {
        let Io { now, partition, config, .. } = self.io;
        let due = now.mono_ms.saturating_add(config.offsets_retention_check_interval_ms.max(1));
        self.io.deadlines.set(&mut self.service.expiry, due, || Key::Expiry { partition });
    }

    /// Handles a time-out that has come up. It may have been moved, or its owner may be gone.
    pub(super) fn fire(&mut self, at: u64, key: &Key) {
        let now_ms = self.io.now.mono_ms;
        match key {
            Key::Expiry { .. } => {
                if self.io.deadlines.fire(&mut self.service.expiry, (at, key), now_ms) == Fired::Now {
                    removal::expire(self.groups, &mut self.io);
                    self.schedule_expiry();
                }
            }
            Key::Append { .. } => {
                if self.io.deadlines.fire(&mut self.io.appends.timer, (at, key), now_ms) == Fired::Now {
                    let error = append_error(ErrorCode::REQUEST_TIMED_OUT);
                    for overdue in self.io.time_out_appends(error) {
                        overdue.apply(self.groups, &mut self.io, error);
                    }
                }
            }
            Key::Session { group, .. }
            | Key::Join { group, .. }
            | Key::Sync { group, .. }
            | Key::Rebalance { group, .. }
            | Key::MemberSync { group, .. } => {
                let Some(group) = self.groups.get_mut(group) else { return };
                match &mut group.protocol {
                    Protocol::Classic(classic) => {
                        rebalance::fire(classic, &mut self.io, at, key);
                        self.io.recount(classic);
                    }
                    Protocol::Consumer(_) => time_outs::fire(group, &mut self.io, at, key),
                }
            }
        }
    }

    /// Answers all waiting requests, and drops everything of this partition.
    pub(super) fn unload(mut self) {
        let error = ErrorCode::NOT_COORDINATOR;
        let pending: Vec<Completion> = self.io.appends.drain().collect();
        for completion in pending {
            self.io.left_queue(&completion);
            completion.unload(&mut self.io, error);
        }
        for mut group in std::mem::take(self.groups).into_values() {
            match &mut group.protocol {
                Protocol::Classic(classic) => rebalance::end_waits(classic, &mut self.io, error),
                Protocol::Consumer(consumer) => {
                    timers::cancel_all(consumer, &mut self.io);
                    self.io.usage.members -= consumer.members().len();
                }
            }
            self.io.uncount_protocol(&group.protocol);
            self.io.usage.groups -= 1;
            self.io.usage.offsets -= group.offsets.len();
            self.io.usage.bytes -= group.offsets.bytes() + group.open_offsets.bytes();
            group.offsets.clear(self.io.topics);
        }
        transaction_offsets::clear(&mut self.io);
        let partition = self.io.partition;
        self.io.deadlines.cancel(&mut self.service.expiry, || Key::Expiry { partition });
        self.io.unwatch_appends();
    }
}
