//! The append that ends a turn, and the effects of its outcome on the group.

use std::sync::Arc;

use mainstem_wire::ErrorCode;

use super::super::appends::Completion;
use super::super::classic::ClassicGroup;
use super::super::group::{Group, Groups, Protocol};
use super::super::io::Io;
use super::super::log::CoordinatorRecord;
use super::super::outcome::with_error;
use super::super::{rebalance, removal};
use super::change::Change;
use super::group::ConsumerGroup;
use super::migration;
use super::turn::{Answer, Outcome, settle, take_back};

/// A turn whose records are in flight, or a request without records that waits for those before it.
#[derive(Debug)]
pub(crate) struct Write {
    pub(crate) group: Arc<str>,
    /// The changes that undo the write, oldest first.
    pub(crate) undo: Vec<Change>,
    pub(crate) answer: Option<Answer>,
    /// The group changes its protocol.
    pub(crate) conversion: Option<Conversion>,
    /// It has records of its own.
    is_append: bool,
    /// Its append, or one before it, has failed with this error: its changes are undone already.
    failed: Option<ErrorCode>,
}

/// A group that changes its protocol. It is not served until that is durable.
#[derive(Debug)]
pub(crate) struct Conversion {
    /// The group before its conversion, without time-outs and waiting requests.
    pub(crate) before: Box<Protocol>,
    /// The classic group that it becomes has to rebalance.
    pub(crate) rebalance: bool,
}

/// Writes the records of a turn. Without records there is nothing to wait for but earlier ones.
pub(crate) fn write(group: &mut ConsumerGroup, io: &mut Io<'_>, outcome: Outcome, answer: Option<Answer>) {
    let is_append = !outcome.records.is_empty();
    if is_append {
        group.pending_writes += 1;
    } else if group.pending_writes == 0 {
        if let Some((token, reply)) = answer {
            io.reply(token, reply);
        }
        return;
    }
    let Outcome { records, undo } = outcome;
    let write = Write { group: group.id.clone(), undo, answer, conversion: None, is_append, failed: None };
    if is_append {
        io.append(records, Completion::Consumer(Box::new(write)));
    } else if write.answer.is_some() {
        io.wait_behind(Completion::Consumer(Box::new(write)));
    }
}

/// Writes the records of a turn with which the group has changed its protocol.
pub(crate) fn write_conversion(
    group: &mut Group,
    io: &mut Io<'_>,
    records: Vec<CoordinatorRecord>,
    undo: Vec<Change>,
    conversion: Conversion,
    answer: Option<Answer>,
) {
    group.converting = true;
    match &mut group.protocol {
        Protocol::Classic(classic) => classic.pending_writes += 1,
        Protocol::Consumer(consumer) => consumer.pending_writes += 1,
    }
    let id = group.id().clone();
    let conversion = Some(conversion);
    let write = Write { group: id, undo, answer, conversion, is_append: true, failed: None };
    io.append(records, Completion::Consumer(Box::new(write)));
}

impl Write {
    /// Returns true if it has records of its own, whose outcome the group waits for.
    pub(crate) fn is_append(&self) -> bool {
        self.is_append
    }

    /// Returns its accounted bytes while it is in flight, see [`memory`](super::super::memory).
    pub(crate) fn bytes(&self) -> usize {
        self.group.len() + self.undo.iter().map(Change::bytes).sum::<usize>()
    }

    /// Handles the outcome of the append.
    pub(crate) fn done(mut self, groups: &mut Groups, io: &mut Io<'_>, outcome: Result<(), ErrorCode>) {
        let id = self.group.clone();
        if let Some(group) = groups.get_mut(&id) {
            self.settle(group, io, outcome);
            migration::downgrade_if_due(group, io);
            removal::drop_if_nothing(groups, io, &id);
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
                super::timers::start(consumer, io);
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
    super::timers::start(group, io);
}

/// Writes the present values for the keys of a turn that was undone, since its records may be in the log.
fn restate(group: &mut ConsumerGroup, io: &mut Io<'_>, undo: &[Change]) {
    if undo.is_empty() {
        return;
    }
    let records = undo.iter().map(|change| group.statement(change).record(&group.id)).collect();
    write(group, io, Outcome { records, undo: Vec::new() }, None);
}
