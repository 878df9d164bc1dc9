//! The purposes of appends, the requests that wait for them, and what follows when these have waited too long.

use std::sync::Arc;

use mainstem_records::{ProducerId, TransactionEnd};
use mainstem_wire::ErrorCode;

use super::api::Reply;
use super::committed_offset::{PendingOffset, TopicPartition};
use super::consumer::write::Write;
use super::member::{MemberId, Protocol};
use super::offset_fetch::{Fetch, Fetched};
use super::refused::with_error;
use super::token::Token;

/// A request that is answered only when the write that it caused, if any, is durable.
pub(crate) type Held = Option<(Token, Reply)>;

/// A static member that got a new id while the group is stable, with the state to undo that.
#[derive(Debug)]
pub(crate) struct Replacement {
    pub(crate) old: MemberId,
    pub(crate) new: MemberId,
    pub(crate) old_protocols: Vec<Protocol>,
    pub(crate) old_rebalance_timeout_ms: i32,
    pub(crate) old_session_timeout_ms: i32,
    pub(crate) old_leader: Option<MemberId>,
}

/// The purpose of an append. A change that needs a record takes effect when the outcome of its append is known.
#[derive(Debug)]
pub(crate) enum Completion {
    /// Offsets become readable, or, with a producer id, those of its open transaction; their commit is answered.
    Commit { group: Arc<str>, producer_id: Option<ProducerId>, offsets: Vec<PendingOffset>, held: Held },
    /// A transaction ends. The driver writes the marker, and answers for it.
    Ended(TransactionEnd),
    /// A group that a JoinGroup made; `waiting` is that request, until a time-out has answered it.
    Created { group: Arc<str>, waiting: Option<Token> },
    /// The leader's assignment of a generation; not `awaited` when a time-out has ended the generation.
    Assignment { group: Arc<str>, generation: i32, assignments: Vec<(MemberId, Arc<[u8]>)>, awaited: bool },
    /// A static member that rejoined under a new id, unless a time-out has undone that.
    Replaced { group: Arc<str>, replacement: Option<Replacement> },
    /// A generation without members.
    Emptied { group: Arc<str>, held: Held },
    /// Offsets that expired or were deleted, and the group with them if `group_too`.
    Removed { group: Arc<str>, offsets: Vec<TopicPartition>, group_too: bool, held: Held },
    /// A turn of a consumer group, or a request that waits for one.
    Consumer(Box<Write>),
    /// Not an append: a read that waits for the appends before it.
    Fetch { waiting: Option<(Token, Fetch)> },
}

impl Completion {
    /// The group whose own record, not an offset of it, is being appended. The group handles the outcome.
    pub(crate) fn written_group(&self) -> Option<&Arc<str>> {
        match self {
            Completion::Created { group, .. }
            | Completion::Assignment { group, .. }
            | Completion::Replaced { group, .. }
            | Completion::Emptied { group, .. } => Some(group),
            Completion::Consumer(write) => write.is_append().then_some(&write.group),
            Completion::Commit { .. }
            | Completion::Removed { .. }
            | Completion::Ended(_)
            | Completion::Fetch { .. } => None,
        }
    }

    /// The request that waits here. Those of members of classic groups wait with their member.
    pub(crate) fn waiting(&self) -> Option<Token> {
        match self {
            Completion::Commit { held, .. }
            | Completion::Emptied { held, .. }
            | Completion::Removed { held, .. } => held.as_ref().map(|(token, _)| *token),
            Completion::Consumer(write) => write.answer.as_ref().map(|(token, _)| *token),
            Completion::Fetch { waiting } => waiting.as_ref().map(|(token, _)| *token),
            Completion::Created { .. }
            | Completion::Assignment { .. }
            | Completion::Replaced { .. }
            | Completion::Ended(_) => None,
        }
    }

    /// Returns true if a request waits for this append and may still be answered by a time-out.
    pub(crate) fn is_awaited(&self) -> bool {
        match self {
            Completion::Commit { held, .. }
            | Completion::Emptied { held, .. }
            | Completion::Removed { held, .. } => held.is_some(),
            Completion::Ended(_) => false,
            Completion::Fetch { waiting } => waiting.is_some(),
            Completion::Consumer(write) => write.answer.is_some(),
            Completion::Created { waiting, .. } => waiting.is_some(),
            Completion::Assignment { awaited, .. } => *awaited,
            Completion::Replaced { replacement, .. } => replacement.is_some(),
        }
    }
    /// Removes the request that waits for the outcome, answered by an error. Those of the members of classic groups are with their group,
    /// see [`Completion::take_overdue`].
    pub(crate) fn take_answer(&mut self, error: ErrorCode) -> Option<(Token, Reply)> {
        let (token, reply) = match self {
            Completion::Commit { held, .. }
            | Completion::Emptied { held, .. }
            | Completion::Removed { held, .. } => held.take()?,
            Completion::Fetch { waiting } => {
                let (token, fetch) = waiting.take()?;
                // Requests before v2 have no require_stable and never wait.
                return Some((token, Reply::OffsetFetch(Fetched::refused(fetch, error, i16::MAX))));
            }
            Completion::Consumer(write) => write.answer.take()?,
            Completion::Created { .. }
            | Completion::Assignment { .. }
            | Completion::Replaced { .. }
            | Completion::Ended(_) => return None,
        };
        Some((token, with_error(reply, error)))
    }

    /// Returns the classic group whose members have waited too long for this outcome, and the reason. Later calls return nothing.
    pub(crate) fn take_overdue(&mut self) -> Option<Overdue> {
        let (group, what) = match self {
            Completion::Created { group, waiting } => (group, Late::Group(waiting.take()?)),
            Completion::Assignment { group, generation, awaited, .. } => {
                (group, std::mem::take(awaited).then_some(Late::Assignment(*generation))?)
            }
            Completion::Replaced { group, replacement } => (group, Late::Replacement(replacement.take()?)),
            _ => return None,
        };
        Some(Overdue { group: group.clone(), what })
    }
}

/// A record of a classic group takes longer than its members wait (`offsets.commit.timeout.ms`).
pub(crate) struct Overdue {
    pub(super) group: Arc<str>,
    pub(super) what: Late,
}

/// The purpose of the late record.
pub(super) enum Late {
    Group(Token),
    /// The assignment of a generation.
    Assignment(i32),
    Replacement(Replacement),
}
