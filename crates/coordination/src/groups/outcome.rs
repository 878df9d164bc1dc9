//! The effects of an append's outcome on its group.

use mainstem_wire::ErrorCode;

use super::api::Reply;
use super::classic::{ClassicGroup, State};
use super::completion::{Completion, Held, Late, Overdue};
use super::durable_offsets::{committed_offsets, release};
use super::group::{Group, Groups};
use super::io::Io;
use super::lifetime::drop_if_nothing;
use super::offset_fetch::Fetched;
use super::refused::with_error;
use super::{join, offset_fetch, rebalance, removal, sync, transaction_offsets};

impl Completion {
    /// Lets the outcome take effect.
    pub(crate) fn apply(self, groups: &mut Groups, io: &mut Io<'_>, outcome: Result<(), ErrorCode>) {
        match self {
            Completion::Commit { group, producer_id, offsets, held } => {
                match (outcome, producer_id) {
                    (Ok(()), None) => committed_offsets(groups, io, &group, offsets),
                    (Ok(()), Some(producer_id)) => {
                        transaction_offsets::add(groups, io, &group, producer_id, offsets);
                    }
                    (Err(_), _) => release(io, offsets),
                }
                answer(io, held, outcome);
            }
            Completion::Ended(how) => {
                if outcome.is_ok() {
                    transaction_offsets::end(groups, io, how);
                }
            }
            Completion::Created { group, .. } => {
                if let (Some(classic), Err(error)) = (written(groups, &group, outcome), outcome) {
                    not_created(classic, io, error);
                    drop_if_nothing(groups, io, &group);
                }
            }
            Completion::Assignment { group, generation, assignments, .. } => {
                if let Some(classic) = written(groups, &group, outcome) {
                    sync::assignment_written(classic, io, generation, &assignments, outcome);
                    io.recount(classic);
                }
            }
            Completion::Replaced { group, replacement } => {
                let Some(classic) = written(groups, &group, outcome) else { return };
                match (replacement, outcome) {
                    (Some(replacement), Ok(())) => join::replaced(classic, io, &replacement),
                    (Some(replacement), Err(error)) => join::not_replaced(classic, io, replacement, error),
                    (None, _) => {}
                }
                io.recount(classic);
            }
            Completion::Emptied { group, held } => {
                written(groups, &group, outcome);
                answer(io, held, outcome);
            }
            Completion::Removed { group, offsets, group_too, held } => {
                match outcome {
                    Ok(()) => removal::removed(groups, io, &group, offsets, group_too),
                    Err(_) => removal::not_removed(groups, io, &group, offsets, group_too),
                }
                answer(io, held, outcome);
            }
            Completion::Consumer(write) => write.done(groups, io, outcome),
            Completion::Fetch { waiting } => {
                if let Some((token, fetch)) = waiting {
                    let answer = match outcome {
                        // Only stable reads wait, which requests before v2 cannot ask for.
                        Ok(()) => offset_fetch::fetch(groups, io.topics, fetch, true),
                        Err(error) => Fetched::refused(fetch, error, i16::MAX),
                    };
                    io.reply(token, Reply::OffsetFetch(answer));
                }
            }
        }
    }

    /// Answers requests that wait with `error` when the partition is unloaded. Members that wait are answered with their group.
    pub(crate) fn unload(mut self, io: &mut Io<'_>, error: ErrorCode) {
        if let Some((token, reply)) = self.take_answer(error) {
            io.reply(token, reply);
        }
        match self {
            Completion::Commit { offsets, .. } => release(io, offsets),
            Completion::Removed { offsets, .. } => {
                for at in offsets {
                    io.topics.release(at.topic);
                }
            }
            Completion::Emptied { .. }
            | Completion::Consumer(_)
            | Completion::Fetch { .. }
            | Completion::Created { .. }
            | Completion::Assignment { .. }
            | Completion::Replaced { .. }
            | Completion::Ended(_) => {}
        }
    }
}

impl Overdue {
    /// Answers the members as if the record could not be written. The log may still get the record; then it has that decision until the
    /// group's next record.
    pub(crate) fn apply(self, groups: &mut Groups, io: &mut Io<'_>, error: ErrorCode) {
        let Some(classic) = groups.get_mut(&self.group).and_then(Group::classic) else { return };
        match self.what {
            Late::Group(creator) => join::created_too_slowly(classic, io, creator, error),
            Late::Assignment(generation) => {
                sync::assignment_written(classic, io, generation, &[], Err(error));
            }
            Late::Replacement(replacement) => join::not_replaced(classic, io, replacement, error),
        }
        io.recount(classic);
    }
}

/// The group whose own record has this outcome.
fn written<'a>(
    groups: &'a mut Groups,
    id: &str,
    outcome: Result<(), ErrorCode>,
) -> Option<&'a mut ClassicGroup> {
    let classic = groups.get_mut(id)?.classic()?;
    classic.pending_writes -= 1;
    classic.stored |= outcome.is_ok();
    Some(classic)
}

/// Handles a new group that could not be written. If no other record of it is in flight it is removed, and its members are answered.
fn not_created(group: &mut ClassicGroup, io: &mut Io<'_>, error: ErrorCode) {
    if group.pending_writes == 0 && !group.stored && group.state != State::Stable {
        rebalance::end_waits(group, io, error);
        group.reset(io.now.wall_ms);
        io.recount(group);
    }
}

/// Sends an answer that waited, or the error instead.
fn answer(io: &mut Io<'_>, held: Held, outcome: Result<(), ErrorCode>) {
    let Some((token, reply)) = held else { return };
    let reply = match outcome {
        Ok(()) => reply,
        Err(error) => with_error(reply, error),
    };
    io.reply(token, reply);
}
