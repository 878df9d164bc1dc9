//! Reading frames: of any bytes, without a panic, and without more memory than the bytes themselves allow; entries of an append, which
//! take more than their bytes, have a bound of their own.

use super::{
    Alias, ENTRIES_MAX, HEAD_BYTES_MAX, Heartbeat, KIND_ANSWER, KIND_APPEND, KIND_CALL, KIND_COALESCED,
    KIND_GROUP, KIND_HEARTBEATS, KIND_MESSAGE, KIND_REPEAT, KIND_REPEAT_ANSWER, KIND_SNAPSHOT, LENGTH_BYTES,
    RUN_BATCHES, RUN_INTERNAL, TYPES,
};
use crate::coalesced::{Repeat, RepeatAnswer};
use crate::encoding::Fields;
use crate::group::{Configuration, GroupId, ReplicaId};
use crate::index::has_epoch;
use crate::journal::{ENTRY_DATA_BYTES_MAX, Start};
use crate::snapshots::{SNAPSHOT_BYTES_MAX, SnapshotOffer};
use crate::store::{snapshot_of, stub};
use bytes::Bytes;
use mainstem_records::HEADER_BYTES;
use raft::eraftpb::{Entry, EntryType, Message, MessageType};

/// A frame that was read.
#[derive(Debug, Clone, PartialEq)]
pub enum Frame<'a> {
    /// A group's number from here on.
    Group(Alias),
    /// Heartbeats of groups; none: a sign of life.
    Heartbeats(Vec<Heartbeat>),
    /// Heartbeats that are coalesced from now on.
    Coalesced(Vec<Heartbeat>),
    /// A repeat of all heartbeats that are coalesced.
    Repeat(Repeat),
    /// The answer to that.
    RepeatAnswer(RepeatAnswer),
    /// A message without entries.
    Message {
        /// The group's number.
        alias: u32,
        /// The message; sender and receiver are those of the number.
        message: Message,
    },
    /// Entries.
    Append {
        /// The group's number.
        alias: u32,
        /// The message, with stubs for the batches.
        message: Message,
        /// The offset behind the entry that precedes them.
        offset: i64,
        /// The batches, not checked yet.
        batches: &'a [u8],
    },
    /// A request of the node, not of a group.
    Call {
        /// Its number, for the answer.
        id: u64,
        /// The kind of the request.
        kind: u8,
        /// The request.
        body: &'a [u8],
    },
    /// The answer to a request.
    Answer {
        /// The number of the request.
        id: u64,
        /// 0: it was served.
        status: u8,
        /// The answer.
        body: &'a [u8],
    },
}

/// Why bytes are no frame: the link ends.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    /// Longer than any frame of ours.
    #[error("a frame of {len} bytes, more than {max}")]
    TooLong {
        /// Its length.
        len: usize,
        /// The longest one.
        max: usize,
    },
    /// A frame of no kind that is known, or not as its kind has it.
    #[error("a frame that makes no sense: {0}")]
    Malformed(&'static str),
}

/// The bytes that the first frame takes, as far as they are known from what was received.
pub fn needed(bytes: &[u8]) -> usize {
    let length = bytes.first_chunk::<LENGTH_BYTES>();
    length.map_or(LENGTH_BYTES, |length| (u32::from_be_bytes(*length) as usize).saturating_add(LENGTH_BYTES))
}

/// The first frame of what was received, and the bytes that it takes; `None`: it is not whole yet. `batches_max` is how many
/// bytes of batches an append may have, or of its body a request or an answer.
pub fn decode(bytes: &[u8], batches_max: usize) -> Result<Option<(Frame<'_>, usize)>, FrameError> {
    let Some((length, rest)) = bytes.split_first_chunk::<LENGTH_BYTES>() else { return Ok(None) };
    let len = u32::from_be_bytes(*length) as usize;
    // Few kinds have more than a head.
    let max = match rest.first() {
        Some(&KIND_APPEND | &KIND_CALL | &KIND_ANSWER | &KIND_REPEAT | &KIND_REPEAT_ANSWER) | None => {
            HEAD_BYTES_MAX.saturating_add(batches_max)
        }
        Some(_) => HEAD_BYTES_MAX,
    };
    if len > max {
        return Err(FrameError::TooLong { len, max });
    }
    let Some(body) = rest.get(..len) else { return Ok(None) };
    let Some((kind, fields)) = body.split_first() else { return Err(FrameError::Malformed("no kind")) };
    let mut fields = Fields(fields);
    let frame = match *kind {
        KIND_GROUP => decode_group(&mut fields).ok_or("a group")?,
        KIND_HEARTBEATS => Frame::Heartbeats(decode_heartbeats(&mut fields).ok_or("heartbeats")?),
        KIND_COALESCED => Frame::Coalesced(decode_heartbeats(&mut fields).ok_or("coalesced heartbeats")?),
        KIND_REPEAT => {
            let (number, withdrawn) = decode_numbers(&mut fields).ok_or("a repeat")?;
            Frame::Repeat(Repeat { number, withdrawn })
        }
        KIND_REPEAT_ANSWER => {
            let (number, refused) = decode_numbers(&mut fields).ok_or("the answer to a repeat")?;
            Frame::RepeatAnswer(RepeatAnswer { number, refused })
        }
        KIND_MESSAGE => decode_message(&mut fields).ok_or("a message")?,
        KIND_SNAPSHOT => decode_snapshot(&mut fields).ok_or("a snapshot")?,
        KIND_APPEND => decode_append(&mut fields, batches_max).ok_or("an append")?,
        KIND_CALL => decode_call(&mut fields, batches_max).ok_or("a request")?,
        KIND_ANSWER => decode_answer(&mut fields, batches_max).ok_or("an answer")?,
        _ => return Err(FrameError::Malformed("an unknown kind")),
    };
    match fields.0.is_empty() {
        true => Ok(Some((frame, LENGTH_BYTES + len))),
        false => Err(FrameError::Malformed("bytes behind its end")),
    }
}

impl From<&'static str> for FrameError {
    fn from(what: &'static str) -> FrameError {
        FrameError::Malformed(what)
    }
}

fn decode_group<'a>(fields: &mut Fields<'_>) -> Option<Frame<'a>> {
    let number = fields.u32()?;
    let topic_id = fields.array()?;
    let partition = fields.u32()?.cast_signed();
    let (from, to) = (ReplicaId(fields.u64()?), ReplicaId(fields.u64()?));
    let is_named = from.0 != 0 && to.0 != 0;
    is_named.then_some(Frame::Group(Alias { number, group: GroupId { topic_id, partition }, from, to }))
}

/// A term, which is a leader epoch: a larger one would be written, and the group could never append again.
fn decode_term(fields: &mut Fields<'_>) -> Option<u64> {
    fields.u64().filter(|term| has_epoch(*term))
}

fn decode_numbers(fields: &mut Fields<'_>) -> Option<(u64, Vec<u32>)> {
    let (number, mut aliases) = (fields.u64()?, Vec::new());
    while !fields.0.is_empty() {
        aliases.push(fields.u32()?);
    }
    Some((number, aliases))
}

fn decode_heartbeats(fields: &mut Fields<'_>) -> Option<Vec<Heartbeat>> {
    let mut heartbeats = Vec::new();
    while !fields.0.is_empty() {
        let (alias, term, commit) = (fields.u32()?, decode_term(fields)?, fields.u64()?);
        heartbeats.push(Heartbeat { alias, term, commit });
    }
    Some(heartbeats)
}

fn decode_message<'a>(fields: &mut Fields<'_>) -> Option<Frame<'a>> {
    let alias = fields.u32()?;
    let kind = *TYPES.get(usize::from(fields.u8()?)).filter(|kind| **kind != MessageType::MsgAppend)?;
    let mut message = Message { msg_type: kind, ..Message::default() };
    message.reject = fields.bool()?;
    (message.term, message.log_term) = (decode_term(fields)?, decode_term(fields)?);
    (message.index, message.commit) = (fields.u64()?, fields.u64()?);
    message.commit_term = decode_term(fields)?;
    (message.reject_hint, message.request_snapshot) = (fields.u64()?, fields.u64()?);
    message.priority = fields.u64()?.cast_signed();
    let context_len = usize::from(fields.u16()?);
    message.context = Bytes::copy_from_slice(fields.bytes(context_len)?);
    let asked = fields.rest();
    let asks = matches!(kind, MessageType::MsgReadIndex | MessageType::MsgReadIndexResp);
    if asks == asked.is_empty() || asked.len() > ENTRY_DATA_BYTES_MAX {
        return None;
    }
    if asks {
        let entry = Entry { data: Bytes::copy_from_slice(asked), ..Entry::default() };
        message.set_entries(vec![entry].into());
    }
    Some(Frame::Message { alias, message })
}

fn decode_snapshot<'a>(fields: &mut Fields<'_>) -> Option<Frame<'a>> {
    let (alias, message_term) = (fields.u32()?, decode_term(fields)?);
    let (index, term) = (fields.u64()?, decode_term(fields)?);
    let offset = fields.offset()?;
    let len = fields.u64().filter(|len| (1..=SNAPSHOT_BYTES_MAX).contains(len))?;
    let crc = fields.u32()?;
    if index == 0 || term == 0 {
        return None;
    }
    let configuration = fields.configuration().filter(Configuration::is_sound)?;
    let offer = SnapshotOffer { start: Start { index, term, offset }, configuration, len, crc };
    let mut message =
        Message { msg_type: MessageType::MsgSnapshot, term: message_term, ..Message::default() };
    message.set_snapshot(snapshot_of(&offer));
    Some(Frame::Message { alias, message })
}

fn decode_append<'a>(fields: &mut Fields<'a>, batches_max: usize) -> Option<Frame<'a>> {
    let alias = fields.u32()?;
    let mut message = Message { msg_type: MessageType::MsgAppend, ..Message::default() };
    (message.term, message.log_term) = (decode_term(fields)?, decode_term(fields)?);
    (message.index, message.commit) = (fields.u64()?, fields.u64()?);
    let offset = fields.offset()?;
    let (mut entries, mut batches) = (Vec::new(), 0);
    for _ in 0..fields.u32()? {
        let next = message.index.checked_add(1)?.checked_add(entries.len() as u64)?;
        batches += decode_run(fields, next, &mut entries)?;
        // Each batch has a header: as many bytes have to follow.
        if batches.checked_mul(HEADER_BYTES)? > fields.0.len() {
            return None;
        }
    }
    message.set_entries(entries.into());
    let batches = fields.rest();
    (batches.len() <= batches_max).then_some(Frame::Append { alias, message, offset, batches })
}

fn decode_call<'a>(fields: &mut Fields<'a>, body_max: usize) -> Option<Frame<'a>> {
    let (id, kind, body) = (fields.u64()?, fields.u8()?, fields.rest());
    (body.len() <= body_max).then_some(Frame::Call { id, kind, body })
}

fn decode_answer<'a>(fields: &mut Fields<'a>, body_max: usize) -> Option<Frame<'a>> {
    let (id, status, body) = (fields.u64()?, fields.u8()?, fields.rest());
    (body.len() <= body_max).then_some(Frame::Answer { id, status, body })
}

/// Reads a run into entries from index `next` on; returns how many batches it has.
fn decode_run(fields: &mut Fields<'_>, next: u64, entries: &mut Vec<Entry>) -> Option<usize> {
    let (kind, term, count) = (fields.u8()?, decode_term(fields)?, fields.u32()? as usize);
    let left = ENTRIES_MAX - entries.len();
    match kind {
        RUN_BATCHES => {
            if count > left || count.checked_mul(HEADER_BYTES)? > fields.0.len() {
                return None;
            }
            next.checked_add(count as u64)?;
            entries.extend((next..).take(count).map(|index| stub(index, term)));
            Some(count)
        }
        RUN_INTERNAL if left > 0 => {
            let entry_type = match fields.u8()? {
                0 => EntryType::EntryNormal,
                1 => EntryType::EntryConfChange,
                2 => EntryType::EntryConfChangeV2,
                _ => return None,
            };
            let data = fields.bytes(count).filter(|data| data.len() <= ENTRY_DATA_BYTES_MAX)?;
            let data = Bytes::copy_from_slice(data);
            entries.push(Entry { index: next, term, entry_type, data, ..Entry::default() });
            Some(0)
        }
        _ => None,
    }
}
