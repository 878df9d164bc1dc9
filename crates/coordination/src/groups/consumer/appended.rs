//! The effects of the outcome of a turn's append on its group.

use mainstem_wire::ErrorCode;

use super::super::classic::ClassicGroup;
use super::super::group::{Group, Groups, Protocol};
use super::super::io::Io;
use super::super::lifetime::drop_if_nothing;
use super::super::rebalance;
use super::super::refused::with_error;
use super::append::write;
use super::change::Change;
use super::group::ConsumerGroup;
use super::turn::{Outcome, settle, take_back};
use super::write::{Conversion, Write};
use super::{migration, timers};

impl Write {
    /// Handles the outcome of the append.
    pub(crate) fn done(mut self, groups: &mut Groups, io: &mut Io<'_>, outcome: Result<(), ErrorCode>) {
        let id = self.group.clone();
        if let Some(group) = groups.get_mut(&id) {
            self.settle(group, io, outcome);
            migration::downgrade_if_due(group, io);
            drop_if_nothing(groups, io, &id);
        }
        let outcome = self.failed.map_or(outcome, Err);
        self.reply(io, outcome);
    }

    fn settle(&mut self, group: &mut Group, io: &mut Io<'_>, outcome: Result<(), ErrorCode>) {
        if let Some(conversion) = self.conversion.take() {
            return self.converted(group, io, conversion, outcome);
        }
        let Protocol::Consumer(group) = &mut group.protocol else { return };
        if self.is_append {
            group.pending_writes -= 1;
        }
        match (self.failed, outcome) {
            (None, Ok(())) => group.stored |= self.is_append,
            // Its records are in the log although those before them are not.
            (Some(_), Ok(())) => restate(group, io, &self.undo),
            // It was undone when the failure was reported.
            (_, Err(_)) => {}
        }
    }

    fn converted(
        &mut self,
        group: &mut Group,
        io: &mut Io<'_>,
        conversion: Conversion,
        outcome: Result<(), ErrorCode>,
    ) {
        group.converting = false;
        let writes = match &mut group.protocol {
            Protocol::Classic(classic) => &mut classic.pending_writes,
            Protocol::Consumer(consumer) => &mut consumer.pending_writes,
        };
        *writes -= 1;
        if outcome.is_err() {
            io.exchange(group, *conversion.before);
            if let Protocol::Consumer(group) = &mut group.protocol {
                let members_before = group.members().len();
                take_back(group, std::mem::take(&mut self.undo));
                settle(group, io, members_before);
            }
        }
        match &mut group.protocol {
            Protocol::Classic(classic) => {
                classic.stored |= outcome.is_ok();
                // Members of a group that could not change were asked to rejoin in the middle of a request.
                let is_back = outcome.is_err() && !classic.members.is_empty();
                resume(classic, io, conversion.rebalance || is_back);
            }
            Protocol::Consumer(consumer) => {
                consumer.stored |= outcome.is_ok();
                timers::start(consumer, io);
            }
        }
    }

    fn reply(self, io: &mut Io<'_>, outcome: Result<(), ErrorCode>) {
        let Some((token, reply)) = self.answer else { return };
        let reply = match outcome {
            Ok(()) => reply,
            Err(error) => with_error(reply, error),
        };
        io.reply(token, reply);
    }
}

/// A classic group serves its members again.
pub(crate) fn resume(classic: &mut ClassicGroup, io: &mut Io<'_>, rebalance: bool) {
    for member in classic.members.values_mut() {
        io.restart_session(&classic.id, member, None);
    }
    if rebalance {
        rebalance::prepare(classic, io);
    }
}

/// Handles a failed append. If it was for a turn, its changes are undone at once, and with them those of later turns, which were built on
/// them. Requests are answered in the order of their appends. A group that changes its protocol has no later turns: it is restored then,
/// too.
pub(crate) fn failed(groups: &mut Groups, io: &mut Io<'_>, number: u64, error: ErrorCode) {
    let Some(write) = io.appends.consumer_write(number) else { return };
    if write.failed.is_some() || write.conversion.is_some() {
        return;
    }
    write.failed = Some(error);
    let (id, undo) = (write.group.clone(), write.undo.clone());
    let Some(Group { protocol: Protocol::Consumer(group), .. }) = groups.get_mut(&id) else { return };
    let members_before = group.members().len();
    for later in io.appends.consumer_writes_after(number, &id).rev() {
        later.failed = Some(error);
        // The changes stay with the write: if it is in the log after all, their keys are written again.
        take_back(group, later.undo.clone());
    }
    take_back(group, undo);
    settle(group, io, members_before);
    timers::start(group, io);
}

/// Writes the present values for the keys of a turn that was undone, since its records may be in the log.
fn restate(group: &mut ConsumerGroup, io: &mut Io<'_>, undo: &[Change]) {
    if undo.is_empty() {
        return;
    }
    let records = undo.iter().map(|change| group.statement(change).record(&group.id)).collect();
    write(group, io, Outcome { records, undo: Vec::new() }, None);
}
