//! A turn of a consumer group whose records are in flight.

use std::sync::Arc;

use mainstem_wire::ErrorCode;

use super::super::api::Reply;
use super::super::group::Protocol;
use super::super::token::Token;
use super::change::Change;

/// A request that waits for a turn's records, and the answer that it then gets.
pub(crate) type Answer = (Token, Reply);

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
    pub(super) is_append: bool,
    /// Its append, or one before it, has failed with this error: its changes are undone already.
    pub(super) failed: Option<ErrorCode>,
}

/// A group that changes its protocol. It is not served until that is durable.
#[derive(Debug)]
pub(crate) struct Conversion {
    /// The group before its conversion, without time-outs and waiting requests.
    pub(crate) before: Box<Protocol>,
    /// The classic group that it becomes has to rebalance.
    pub(crate) rebalance: bool,
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
}
