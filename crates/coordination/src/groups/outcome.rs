//! The outcome of an append reaches the group that it was for.

use mainstem_wire::ErrorCode;
use mainstem_wire::messages::offset_delete_response::OffsetDeleteResponse;

use super::api::Reply;
use super::appends::Completion;
use super::classic::{ClassicGroup, State};
use super::consumer::heartbeat::{self, Refusal};
use super::group::Groups;
use super::io::Io;
use super::offset_commit::{committed_offsets, not_committed, release};
use super::rebalance::{self, Held};
use super::{join, leave, offset_fetch, removal, sync};

impl Completion {
    /// Lets the outcome take effect.
    pub(crate) fn apply(self, groups: &mut Groups, io: &mut Io<'_>, outcome: Result<(), ErrorCode>) {
        match self {
            Completion::Commit { group, offsets, token, response } => match outcome {
                Ok(()) => {
                    committed_offsets(groups, io, &group, offsets);
                    io.reply(token, Reply::OffsetCommit(response));
                }
                Err(error) => {
                    release(io, offsets);
                    not_committed(io, token, response, error);
                }
            },
            Completion::Created { group } => {
                if let (Some(classic), Err(error)) = (written(groups, &group, outcome), outcome) {
                    not_created(classic, io, error);
                    removal::drop_if_nothing(groups, io, &group);
                }
            }
            Completion::Assignment { group, generation, assignments } => {
                if let Some(classic) = written(groups, &group, outcome) {
                    sync::assignment_written(classic, io, generation, &assignments, outcome);
                    io.recount(classic);
                }
            }
            Completion::Replaced { group, replacement } => {
                let Some(classic) = written(groups, &group, outcome) else { return };
                match outcome {
                    Ok(()) => join::replaced(classic, io, &replacement),
                    Err(error) => join::not_replaced(classic, io, replacement, error),
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
            Completion::Fetch { token, fetch } => {
                io.reply(token, Reply::OffsetFetch(offset_fetch::fetch(groups, &fetch)));
            }
        }
    }

    /// The partition is given up: whoever waits gets `error`. Members that wait are answered with their group.
    pub(crate) fn give_up(self, io: &mut Io<'_>, error: ErrorCode) {
        match self {
            Completion::Commit { offsets, token, response, .. } => {
                release(io, offsets);
                not_committed(io, token, response, error);
            }
            Completion::Removed { offsets, held, .. } => {
                for at in offsets {
                    io.topics.release(at.topic);
                }
                answer(io, held, Err(error));
            }
            Completion::Emptied { held, .. } => answer(io, held, Err(error)),
            Completion::Consumer(write) => write.give_up(io, error),
            Completion::Fetch { token, fetch } => {
                // Requests before v2 have no require_stable and never wait.
                let refused = offset_fetch::refused(&fetch, error, i16::MAX);
                io.reply(token, Reply::OffsetFetch(refused));
            }
            Completion::Created { .. } | Completion::Assignment { .. } | Completion::Replaced { .. } => {}
        }
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

/// A group that was made for a JoinGroup could not be written. If nothing else of it is on its way it goes again, and
/// those who joined are told.
fn not_created(group: &mut ClassicGroup, io: &mut Io<'_>, error: ErrorCode) {
    if group.pending_writes == 0 && !group.stored && group.state != State::Stable {
        rebalance::give_up(group, io, error);
        group.reset(io.now.wall_ms);
        io.recount(group);
    }
}

/// Sends an answer that waited, or the error in its place.
fn answer(io: &mut Io<'_>, held: Held, outcome: Result<(), ErrorCode>) {
    let Some((token, reply)) = held else { return };
    let reply = match outcome {
        Ok(()) => reply,
        Err(error) => with_error(reply, error),
    };
    io.reply(token, reply);
}

/// The error for the whole of a request of the same kind.
pub(crate) fn with_error(reply: Reply, error: ErrorCode) -> Reply {
    match reply {
        Reply::LeaveGroup(_) => leave::refused(error),
        Reply::JoinGroup(response) => join::refused(&response.member_id, error),
        Reply::SyncGroup(_) => sync::refused(error),
        Reply::ConsumerGroupHeartbeat(_) => heartbeat::refused(Refusal::new(error, error.message())),
        Reply::DeleteGroup(_) => Reply::DeleteGroup(error),
        Reply::OffsetDelete(_) => {
            Reply::OffsetDelete(OffsetDeleteResponse { error_code: error.0, ..Default::default() })
        }
        other => unreachable!("{other:?} does not wait for an append in this way"),
    }
}
