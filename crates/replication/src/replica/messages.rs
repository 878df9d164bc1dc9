//! Which messages of another replica are taken.
//!
//! The Raft library believes what it is handed. Of messages that no replica sends it ends the process, takes its term back, or
//! gives its vote twice; and who has passed for a node can send any message. So each is looked at here before the library gets it.
//! No replica of this release or an earlier one sends what is refused; that another one tells an untruth about its own disk or vote
//! cannot be seen.
//!
//! | type | who says it to whom, where it is taken |
//! |---|---|
//! | `MsgAppend`, `MsgHeartbeat`, `MsgSnapshot` | a leader to the others |
//! | `MsgAppendResponse`, `MsgHeartbeatResponse` | the others to it |
//! | `MsgRequestPreVote`, `MsgRequestVote` | who wants to lead, to voters |
//! | `MsgRequestPreVoteResponse`, `MsgRequestVoteResponse` | these, when they were asked |
//! | `MsgTimeoutNow` | a leader to its successor |
//!
//! All others are what a replica says to itself. The library hands `MsgTransferLeader` and `MsgReadIndex` on from a follower
//! to its leader; here only a leader is asked for either.

use crate::change;
use crate::error::MessageError;
use crate::group::{Configuration, ReplicaId};
use crate::index::has_epoch;
use crate::snapshots::SnapshotOffer;
use crate::store::is_noop;
use raft::StateRole;
use raft::eraftpb::{EntryType, Message, MessageType};

/// No index and no offset is larger: a number more, or an entry, can be counted behind it.
const NUMBER_MAX: u64 = 1 << 62;

/// The replica that a message is for: what decides whether the message can be.
#[derive(Debug, Clone, Copy)]
pub(super) struct Receiver<'a> {
    /// Which replica it is.
    pub(super) own: ReplicaId,
    /// The members of its group.
    pub(super) configuration: &'a Configuration,
    /// Its term.
    pub(super) term: u64,
    /// Its part in that term.
    pub(super) state: StateRole,
    /// Members may change: senders may be members that it does not know of yet, or not any more.
    pub(super) may_change: bool,
    /// It is a candidate: its own vote is not durable yet, and no one was asked for another one.
    pub(super) is_to_ask: bool,
}

/// Refuses a message that no replica of the group can have sent to this one. `offset` is that behind the entry which precedes those of
/// an append.
///
/// # Errors
/// The reason for which it is wrong: the link that it came over is to be ended.
pub(super) fn check(message: &Message, offset: i64, receiver: &Receiver<'_>) -> Result<(), MessageError> {
    use MessageType::*;
    check_terms(message)?;
    let kind = message.get_msg_type();
    let is_of_leader = matches!(kind, MsgAppend | MsgHeartbeat | MsgSnapshot);
    let is_sent = is_of_leader
        || matches!(kind, MsgAppendResponse | MsgHeartbeatResponse | MsgTimeoutNow)
        || matches!(kind, MsgRequestPreVote | MsgRequestPreVoteResponse)
        || matches!(kind, MsgRequestVote | MsgRequestVoteResponse);
    if !is_sent {
        return Err(MessageError::Type);
    }
    check_sender(message, receiver)?;
    check_numbers(message, offset)?;
    let is_now = message.term == receiver.term;
    match kind {
        // Others would take it for one of themselves, and do as if no term were said.
        _ if message.term == 0 => Err(MessageError::Impossible("it has no term")),
        // Each leader has the votes of a majority, and each replica has one vote.
        _ if is_of_leader && is_now && receiver.state == StateRole::Leader => {
            Err(MessageError::Impossible("another leader in the term in which this replica leads"))
        }
        MsgAppend => check_entries(message, receiver.may_change),
        MsgAppendResponse if message.request_snapshot != 0 => {
            Err(MessageError::Impossible("it asks for a snapshot"))
        }
        MsgRequestPreVote | MsgRequestVote if message.priority != 0 => {
            Err(MessageError::Impossible("a candidate with a priority"))
        }
        // The library would lead with entries that are not durable.
        MsgRequestVoteResponse if is_now && !message.reject && receiver.is_to_ask => {
            Err(MessageError::Impossible("a vote that was not asked for"))
        }
        _ => Ok(()),
    }
}

/// Refuses terms that cannot be written. What a link decodes has been checked; this is for messages that are made otherwise.
fn check_terms(message: &Message) -> Result<(), MessageError> {
    let own = [message.term, message.log_term, message.commit_term];
    let entries = message.get_entries().iter().map(|entry| entry.term);
    let beyond = own.into_iter().chain(entries).find(|term| !has_epoch(*term));
    beyond.map_or(Ok(()), |term| Err(MessageError::Term(term)))
}

/// Refuses who cannot be another replica of the group. Where members may change, one of them may have come or gone without this
/// replica's knowledge; the library counts the votes and answers of members alone.
fn check_sender(message: &Message, receiver: &Receiver<'_>) -> Result<(), MessageError> {
    let from = ReplicaId(message.from);
    let is_member = || receiver.configuration.replicas().any(|replica| replica == from);
    let can_be = from.node() >= 0 && from.incarnation() > 0;
    let is_other = from != receiver.own && can_be && (receiver.may_change || is_member());
    if is_other { Ok(()) } else { Err(MessageError::Sender(from)) }
}

/// Refuses numbers that could not be counted on from.
fn check_numbers(message: &Message, offset: i64) -> Result<(), MessageError> {
    let numbers = [message.index, message.commit, message.reject_hint, offset.cast_unsigned()];
    match numbers.into_iter().all(|number| number <= NUMBER_MAX) {
        true => Ok(()),
        false => Err(MessageError::Impossible("an index or an offset beyond all that there can be")),
    }
}

/// Refuses entries that no leader has: their terms ascend from that of the entry which precedes them up to the leader's, and
/// each begins with a no-op. `may_change`: some may change the members.
fn check_entries(message: &Message, may_change: bool) -> Result<(), MessageError> {
    // Only before the first entry is none. The library finds the term 0 behind its last one, too.
    if (message.index == 0) != (message.log_term == 0) {
        return Err(MessageError::Impossible("an entry without a term"));
    }
    let mut term = message.log_term;
    for entry in message.get_entries() {
        let follows = entry.term == term && term > 0;
        let begins = entry.term > term && is_noop(entry);
        if !follows && !begins {
            return Err(MessageError::Impossible("entries with terms that no leader gives them"));
        }
        match entry.get_entry_type() {
            EntryType::EntryNormal => {}
            EntryType::EntryConfChangeV2 if may_change && change::decode(&entry.data).is_some() => {}
            EntryType::EntryConfChangeV2 if may_change => {
                return Err(MessageError::Impossible("a change of members that makes no sense"));
            }
            _ => {
                return Err(MessageError::Impossible(
                    "a change of members, which this release does not make",
                ));
            }
        }
        term = entry.term;
    }
    match term <= message.term {
        true => Ok(()),
        false => Err(MessageError::Impossible("an entry of a later term than its leader's")),
    }
}

/// Refuses a snapshot that no leader of the term has: with a later end, or, unless members may change, of a group with other members.
///
/// # Errors
/// The reason for which it is wrong.
pub(super) fn check_offer(
    offer: &SnapshotOffer,
    term: u64,
    configuration: &Configuration,
    may_change: bool,
) -> Result<(), MessageError> {
    if offer.start.index > NUMBER_MAX || offer.start.term > term {
        return Err(MessageError::Impossible("a snapshot with an end that no leader has"));
    }
    let is_same = |(one, other): (&[ReplicaId], &[ReplicaId])| {
        one.len() == other.len() && one.iter().all(|replica| other.contains(replica))
    };
    match may_change || offer.configuration.lists().into_iter().zip(configuration.lists()).all(is_same) {
        true => Ok(()),
        false => Err(MessageError::Impossible("a snapshot of a group with other members")),
    }
}
