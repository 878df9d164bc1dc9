//! Writing frames.

use super::{
    Alias, Heartbeat, KIND_ANSWER, KIND_APPEND, KIND_CALL, KIND_COALESCED, KIND_GROUP, KIND_HEARTBEATS,
    KIND_MESSAGE, KIND_REPEAT, KIND_REPEAT_ANSWER, KIND_SNAPSHOT, LENGTH_BYTES, RUN_BATCHES, RUN_INTERNAL,
    TYPES,
};
use crate::coalesced::{Repeat, RepeatAnswer};
use crate::encoding::{put_configuration, put_u64};
use crate::store::{is_stub, offer_of};
use raft::eraftpb::{Entry, Message, MessageType};

/// Appends a frame; `behind` bytes of it follow from elsewhere.
fn frame(kind: u8, behind: usize, out: &mut Vec<u8>, fields: impl FnOnce(&mut Vec<u8>)) {
    let start = out.len();
    out.extend_from_slice(&[0; LENGTH_BYTES]);
    out.push(kind);
    fields(out);
    let len = (out.len() - start - LENGTH_BYTES + behind) as u32;
    out[start..start + LENGTH_BYTES].copy_from_slice(&len.to_be_bytes());
}

/// Gives a group its number on the link.
pub fn group(alias: &Alias, out: &mut Vec<u8>) {
    frame(KIND_GROUP, 0, out, |out| {
        out.extend_from_slice(&alias.number.to_be_bytes());
        out.extend_from_slice(&alias.group.topic_id);
        out.extend_from_slice(&alias.group.partition.to_be_bytes());
        put_u64(out, &[alias.from.0, alias.to.0]);
    });
}

/// Heartbeats of groups that the sender leads; none: a sign of life.
pub fn heartbeats(heartbeats: &[Heartbeat], out: &mut Vec<u8>) {
    put_heartbeats(KIND_HEARTBEATS, heartbeats, out);
}

/// Heartbeats that are coalesced from now on ([`crate::CoalescedHeartbeats`]).
pub fn coalesced_heartbeats(heartbeats: &[Heartbeat], out: &mut Vec<u8>) {
    put_heartbeats(KIND_COALESCED, heartbeats, out);
}

/// A repeat of all heartbeats that are coalesced.
pub fn repeat(repeat: &Repeat, out: &mut Vec<u8>) {
    put_numbers(KIND_REPEAT, repeat.number, &repeat.withdrawn, out);
}

/// The answer to a repeat.
pub fn repeat_answer(answer: &RepeatAnswer, out: &mut Vec<u8>) {
    put_numbers(KIND_REPEAT_ANSWER, answer.number, &answer.refused, out);
}

fn put_numbers(kind: u8, number: u64, aliases: &[u32], out: &mut Vec<u8>) {
    frame(kind, 0, out, |out| {
        put_u64(out, &[number]);
        aliases.iter().for_each(|alias| out.extend_from_slice(&alias.to_be_bytes()));
    });
}

fn put_heartbeats(kind: u8, heartbeats: &[Heartbeat], out: &mut Vec<u8>) {
    frame(kind, 0, out, |out| {
        for heartbeat in heartbeats {
            out.extend_from_slice(&heartbeat.alias.to_be_bytes());
            put_u64(out, &[heartbeat.term, heartbeat.commit]);
        }
    });
}

/// Any message without entries. Returns false, and writes nothing, for one of a type that no replica sends, or with a
/// context of more than 64 KiB.
pub fn message(alias: u32, message: &Message, out: &mut Vec<u8>) -> bool {
    if message.get_msg_type() == MessageType::MsgSnapshot {
        return snapshot(alias, message, out);
    }
    let kind = TYPES.iter().position(|kind| *kind == message.get_msg_type());
    let (Some(kind), Ok(context_len)) = (kind, u16::try_from(message.context.len())) else { return false };
    if message.get_msg_type() == MessageType::MsgAppend {
        return false;
    }
    frame(KIND_MESSAGE, 0, out, |out| {
        out.extend_from_slice(&alias.to_be_bytes());
        out.push(kind as u8);
        out.push(u8::from(message.reject));
        put_u64(out, &[message.term, message.log_term, message.index, message.commit, message.commit_term]);
        put_u64(out, &[message.reject_hint, message.request_snapshot, message.priority.cast_unsigned()]);
        out.extend_from_slice(&context_len.to_be_bytes());
        out.extend_from_slice(&message.context);
        // A read index is asked for by an entry's data.
        let asked = message.get_entries().first().map_or(&[][..], |entry| &entry.data[..]);
        out.extend_from_slice(asked);
    });
    true
}

/// The offer of a snapshot, whose bytes are asked for.
fn snapshot(alias: u32, message: &Message, out: &mut Vec<u8>) -> bool {
    let Some(offer) = offer_of(message.get_snapshot()) else { return false };
    frame(KIND_SNAPSHOT, 0, out, |out| {
        out.extend_from_slice(&alias.to_be_bytes());
        put_u64(out, &[message.term, offer.start.index, offer.start.term]);
        put_u64(out, &[offer.start.offset.cast_unsigned(), offer.len]);
        out.extend_from_slice(&offer.crc.to_be_bytes());
        put_configuration(out, &offer.configuration);
    });
    true
}

/// The head of an append's frame: `batches_len` bytes of batches follow it. `offset` is that behind the entry that
/// precedes the message's own.
pub fn append_head(alias: u32, message: &Message, offset: i64, batches_len: u32, out: &mut Vec<u8>) {
    frame(KIND_APPEND, batches_len as usize, out, |out| {
        out.extend_from_slice(&alias.to_be_bytes());
        put_u64(out, &[message.term, message.log_term, message.index, message.commit]);
        put_u64(out, &[offset.cast_unsigned()]);
        let runs = runs(message.get_entries());
        out.extend_from_slice(&(runs.len() as u32).to_be_bytes());
        runs.iter().for_each(|run| put_run(run, out));
    });
}

/// A request of the node, not of a group.
pub fn call(id: u64, kind: u8, body: &[u8], out: &mut Vec<u8>) {
    frame(KIND_CALL, 0, out, |out| {
        put_u64(out, &[id]);
        out.push(kind);
        out.extend_from_slice(body);
    });
}

/// The answer to a request; `status` is 0 where it was served.
pub fn answer(id: u64, status: u8, body: &[u8], out: &mut Vec<u8>) {
    frame(KIND_ANSWER, 0, out, |out| {
        put_u64(out, &[id]);
        out.push(status);
        out.extend_from_slice(body);
    });
}

/// Entries of one term that stand for batches, or one internal entry.
fn runs(entries: &[Entry]) -> Vec<&[Entry]> {
    let joins = |a: &Entry, b: &Entry| is_stub(a) && is_stub(b) && a.term == b.term;
    entries.chunk_by(joins).collect()
}

fn put_run(run: &[Entry], out: &mut Vec<u8>) {
    let Some(first) = run.first() else { return };
    let (kind, count) = match is_stub(first) {
        true => (RUN_BATCHES, run.len() as u32),
        false => (RUN_INTERNAL, first.data.len() as u32),
    };
    out.push(kind);
    put_u64(out, &[first.term]);
    out.extend_from_slice(&count.to_be_bytes());
    if kind == RUN_INTERNAL {
        out.push(first.get_entry_type() as u8);
        out.extend_from_slice(&first.data);
    }
}
