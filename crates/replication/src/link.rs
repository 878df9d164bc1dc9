//! Frames of a link between two nodes: the bytes, not the socket.
//!
//! docs/format.md has the diagrams. The bytes of batches are not part of what is encoded: a link sends them from the
//! files of the log, right behind the head of their frame.

mod decode;
mod encode;

pub use decode::{Frame, FrameError, decode, needed};
pub use encode::{
    answer, append_head, call, coalesced_heartbeats, group, heartbeats, message, repeat, repeat_answer,
};

use crate::group::{GroupId, ReplicaId};
use raft::eraftpb::MessageType;

/// A frame has at most so many bytes behind its length, the batches of an append not counted.
pub const HEAD_BYTES_MAX: usize = 1 << 20;
/// An append has at most so many entries: what is 14 bytes in a frame takes about 110 in memory. No node sends as many: its outbox ends
/// at 8 MiB, in which an entry counts for 96 bytes at least.
pub const ENTRIES_MAX: usize = 1 << 17;
const _: () = assert!(ENTRIES_MAX >= (8 << 20) / 96);
/// The bytes of a frame's length.
pub const LENGTH_BYTES: usize = 4;

pub(crate) const KIND_GROUP: u8 = 1;
pub(crate) const KIND_HEARTBEATS: u8 = 2;
pub(crate) const KIND_MESSAGE: u8 = 3;
pub(crate) const KIND_APPEND: u8 = 4;
pub(crate) const KIND_CALL: u8 = 5;
pub(crate) const KIND_ANSWER: u8 = 6;
pub(crate) const KIND_COALESCED: u8 = 7;
pub(crate) const KIND_REPEAT: u8 = 8;
pub(crate) const KIND_REPEAT_ANSWER: u8 = 9;
pub(crate) const KIND_SNAPSHOT: u8 = 10;
/// A run of batches' entries in an append, and an internal entry in it.
pub(crate) const RUN_BATCHES: u8 = 0;
pub(crate) const RUN_INTERNAL: u8 = 1;

/// The name of a group on a link: until the link ends, this number stands for two replicas of a group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Alias {
    /// The number of the group in frames.
    pub number: u32,
    /// The group that is meant.
    pub group: GroupId,
    /// Whose messages go under it.
    pub from: ReplicaId,
    /// For whom.
    pub to: ReplicaId,
}

/// One group's part in a frame of heartbeats.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Heartbeat {
    /// The group's number on the link.
    pub alias: u32,
    /// The leader's term.
    pub term: u64,
    /// The index up to which the receiver has what is committed.
    pub commit: u64,
}

/// Types of messages in their order on a link; what only a replica says to itself is not among them, and appends and
/// heartbeats without context have frames of their own.
pub(crate) const TYPES: [MessageType; 12] = [
    MessageType::MsgAppendResponse,
    MessageType::MsgRequestVote,
    MessageType::MsgRequestVoteResponse,
    MessageType::MsgHeartbeat,
    MessageType::MsgHeartbeatResponse,
    MessageType::MsgTransferLeader,
    MessageType::MsgTimeoutNow,
    MessageType::MsgReadIndex,
    MessageType::MsgReadIndexResp,
    MessageType::MsgRequestPreVote,
    MessageType::MsgRequestPreVoteResponse,
    MessageType::MsgAppend,
];

#[cfg(test)]
mod tests;
