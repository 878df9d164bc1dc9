//! One frame of the journal, as bytes. docs/format.md has the diagram.

use crate::encoding::{Fields, put_configuration, put_u64};
use crate::group::{Configuration, GroupId, ReplicaId};
use mainstem_log::ImportId;

/// Largest frame in bytes: a configuration of [`REPLICAS_MAX`] replicas, or the longest internal entry.
pub const FRAME_BYTES_MAX: usize = 4096;
/// A configuration names at most so many replicas, all lists together.
pub const REPLICAS_MAX: usize = 128;
/// The data of an internal entry has at most so many bytes: a change of all replicas of a configuration.
pub const ENTRY_DATA_BYTES_MAX: usize = 3072;
/// Frames begin at multiples of this.
pub(crate) const ALIGNMENT: usize = 8;
/// Checksum, length, kind, padding, synced length, group.
const HEAD_BYTES: usize = 36;

const _: () = assert!(HEAD_BYTES + 80 + 8 * REPLICAS_MAX < FRAME_BYTES_MAX);
const _: () = assert!(HEAD_BYTES + 64 + ENTRY_DATA_BYTES_MAX < FRAME_BYTES_MAX);

/// Term and vote of a replica: what it must never forget.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Vote {
    /// The term, which is the leader epoch.
    pub term: u64,
    /// For whom the replica voted in it.
    pub candidate: Option<ReplicaId>,
}

/// The kind of an internal entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EntryKind {
    /// The first entry of a leader. Its index is where its term starts.
    NoOp,
    /// A change of one member, in Raft's own encoding.
    ConfigurationChange,
    /// A change of members, in Raft's own encoding.
    ConfigurationChangeV2,
    /// Another entry without records: its data is the broker's.
    Data,
}

/// An entry that has no offset.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InternalEntry {
    /// Its index, which it shares with no batch.
    pub index: u64,
    /// The term it was appended in.
    pub term: u64,
    /// The log end when it was appended: the next batch behind it has this offset.
    pub offset: i64,
    /// Its kind: it begins a term, changes the members of the group, or is the broker's.
    pub kind: EntryKind,
    /// Its content; empty for a no-op. At most [`ENTRY_DATA_BYTES_MAX`].
    pub data: Vec<u8>,
}

/// The start of a group's entries: those up to `index` are in a snapshot, and the log's first batch of the group
/// has `offset`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Start {
    /// Index of the last entry that is not here; 0 for a group that has all.
    pub index: u64,
    /// Its term.
    pub term: u64,
    /// Offset behind it.
    pub offset: i64,
}

/// The next entry's index where the log had this end. Counting begins at the last one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Mark {
    /// Index of the entry that follows what the offset ends. Internal entries of the same offset with a lower index
    /// precede it.
    pub index: u64,
    /// A segment's base offset, or the log end at a clean stop.
    pub offset: i64,
}

/// The part of a log that a power cut may take, or has taken.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Tail {
    /// Batches may have been acknowledged that are not durable (`write.caching`), or it is not certain yet that all are here which
    /// were.
    pub is_cached: bool,
    /// A power cut may have taken what was acknowledged: no vote before the replica has caught up with a leader.
    pub holds_votes: bool,
}

impl Tail {
    /// As bits: 1 cached, 2 votes held.
    fn bits(self) -> u8 {
        u8::from(self.is_cached) | u8::from(self.holds_votes) << 1
    }

    fn of_bits(bits: u8) -> Option<Tail> {
        (bits < 4).then_some(Tail { is_cached: bits & 1 != 0, holds_votes: bits & 2 != 0 })
    }
}

/// One fact about a group.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Frame {
    /// Term and vote changed.
    Vote(Vote),
    /// An internal entry was appended.
    Entry(InternalEntry),
    /// Entries from this index on are gone: another leader has others.
    Cut {
        /// The first that is gone.
        index: u64,
    },
    /// The members of the group, from the entry with this index on, and which of them this replica is.
    Configuration {
        /// This replica.
        own: ReplicaId,
        /// Index of the entry that made it so; 0: the founding one.
        index: u64,
        /// The members of the group.
        configuration: Configuration,
    },
    /// All that precedes is gone, or never was here.
    Start(Start),
    /// An index beside an offset.
    Mark(Mark),
    /// Entries that are known to be committed and applied: a lower bound.
    Commit {
        /// Index of the last entry that was known to be committed.
        committed: u64,
        /// Index of the last entry that was applied.
        applied: u64,
    },
    /// The group is no longer here.
    Removed,
    /// A snapshot takes the place of the log, which begins again. Until a [`Frame::Start`] follows, the log may still be the
    /// old one.
    Restore {
        /// The end of the snapshot.
        start: Start,
        /// This replica.
        own: ReplicaId,
        /// The members of the group from there on.
        configuration: Configuration,
    },
    /// The part of the log that a power cut may take, or has taken.
    Tail(Tail),
    /// A whole copy of another replica's log takes the place of the log. Until a [`Frame::Start`] follows, a start finishes that
    /// first. Only journals of [`JournalFormat::V2`](super::JournalFormat::V2) have it.
    Replace {
        /// The id of the copy.
        copy: ImportId,
        /// The end of the copy.
        start: Start,
        /// This replica.
        own: ReplicaId,
        /// The members of the group from there on.
        configuration: Configuration,
    },
}

impl Frame {
    fn kind(&self) -> u8 {
        match self {
            Frame::Vote(_) => 1,
            Frame::Entry(_) => 2,
            Frame::Cut { .. } => 3,
            Frame::Configuration { .. } => 4,
            Frame::Start(_) => 5,
            Frame::Mark(_) => 6,
            Frame::Commit { .. } => 7,
            Frame::Removed => 8,
            Frame::Restore { .. } => 9,
            Frame::Tail(_) => 10,
            Frame::Replace { .. } => 11,
        }
    }

    /// Bytes of the frame in the file.
    pub fn encoded_len(&self) -> usize {
        let fields = match self {
            Frame::Vote(_) | Frame::Mark(_) | Frame::Commit { .. } => 16,
            Frame::Entry(entry) => 25 + entry.data.len(),
            Frame::Cut { .. } => 8,
            Frame::Configuration { configuration, .. } => 25 + 8 * configuration.replicas().count(),
            Frame::Restore { configuration, .. } => 41 + 8 * configuration.replicas().count(),
            Frame::Replace { configuration, .. } => 57 + 8 * configuration.replicas().count(),
            Frame::Start(_) => 24,
            Frame::Removed => 0,
            Frame::Tail(_) => 1,
        };
        (HEAD_BYTES + fields).next_multiple_of(ALIGNMENT)
    }

    /// Appends the frame's bytes. `synced`: so many bytes of the file were durable when it was written.
    pub(crate) fn encode(&self, group: GroupId, synced: u64, out: &mut Vec<u8>) {
        let start = out.len();
        out.extend_from_slice(&[0; 4]);
        out.extend_from_slice(&(self.encoded_len() as u16).to_be_bytes());
        out.push(self.kind());
        out.push(0);
        out.extend_from_slice(&synced.to_be_bytes());
        out.extend_from_slice(&group.topic_id);
        out.extend_from_slice(&group.partition.to_be_bytes());
        self.encode_fields(out);
        let padding = (start + self.encoded_len()) - out.len();
        out.resize(out.len() + padding, 0);
        out[start + 7] = padding as u8;
        let crc = crc32c::crc32c(&out[start + 4..]);
        out[start..start + 4].copy_from_slice(&crc.to_be_bytes());
    }

    fn encode_fields(&self, out: &mut Vec<u8>) {
        match self {
            Frame::Vote(vote) => {
                put_u64(out, &[vote.term, vote.candidate.map_or(0, |candidate| candidate.0)])
            }
            Frame::Entry(entry) => {
                put_u64(out, &[entry.index, entry.term, entry.offset.cast_unsigned()]);
                out.push(entry.kind as u8);
                out.extend_from_slice(&entry.data);
            }
            Frame::Cut { index } => put_u64(out, &[*index]),
            Frame::Configuration { own, index, configuration } => {
                put_u64(out, &[own.0, *index]);
                put_configuration(out, configuration);
            }
            Frame::Start(start) => put_u64(out, &[start.index, start.term, start.offset.cast_unsigned()]),
            Frame::Restore { start, own, configuration } => {
                put_u64(out, &[start.term, start.offset.cast_unsigned(), own.0, start.index]);
                put_configuration(out, configuration);
            }
            Frame::Replace { copy, start, own, configuration } => {
                out.extend_from_slice(&copy.0);
                put_u64(out, &[start.term, start.offset.cast_unsigned(), own.0, start.index]);
                put_configuration(out, configuration);
            }
            Frame::Mark(mark) => put_u64(out, &[mark.index, mark.offset.cast_unsigned()]),
            Frame::Commit { committed, applied } => put_u64(out, &[*committed, *applied]),
            Frame::Removed => {}
            Frame::Tail(tail) => out.push(tail.bits()),
        }
    }
}

/// A frame that was read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Decoded {
    pub(crate) group: GroupId,
    /// Bytes of the file that were durable when it was written.
    pub(crate) synced: u64,
    pub(crate) frame: Frame,
    /// Bytes it takes.
    pub(crate) len: usize,
}

/// The frame that begins here; `None`: none does.
pub(crate) fn decode(bytes: &[u8]) -> Option<Decoded> {
    let head = bytes.first_chunk::<HEAD_BYTES>()?;
    let len = usize::from(u16::from_be_bytes([head[4], head[5]]));
    let padding = usize::from(head[7]);
    if !(HEAD_BYTES..=FRAME_BYTES_MAX).contains(&len)
        || !len.is_multiple_of(ALIGNMENT)
        || padding >= ALIGNMENT
    {
        return None;
    }
    let frame = bytes.get(..len)?;
    let crc = u32::from_be_bytes([head[0], head[1], head[2], head[3]]);
    if crc32c::crc32c(&frame[4..]) != crc {
        return None;
    }
    let (fields, zeros) = frame[HEAD_BYTES..].split_at_checked((len - HEAD_BYTES).checked_sub(padding)?)?;
    if zeros.iter().any(|byte| *byte != 0) {
        return None;
    }
    let mut fields = Fields(fields);
    let synced = u64::from_be_bytes(head[8..16].try_into().ok()?);
    let topic_id = head[16..32].try_into().ok()?;
    let partition = i32::from_be_bytes(head[32..36].try_into().ok()?);
    let frame = decode_fields(head[6], &mut fields)?;
    fields.0.is_empty().then_some(Decoded { group: GroupId { topic_id, partition }, synced, frame, len })
}

fn decode_fields(kind: u8, fields: &mut Fields<'_>) -> Option<Frame> {
    Some(match kind {
        1 => {
            let (term, candidate) = (fields.u64()?, fields.u64()?);
            Frame::Vote(Vote { term, candidate: (candidate != 0).then_some(ReplicaId(candidate)) })
        }
        2 => Frame::Entry(decode_entry(fields)?),
        3 => Frame::Cut { index: fields.u64()? },
        4 => decode_configuration(fields)?,
        5 => Frame::Start(Start { index: fields.u64()?, term: fields.u64()?, offset: fields.offset()? }),
        6 => Frame::Mark(Mark { index: fields.u64()?, offset: fields.offset()? }),
        7 => Frame::Commit { committed: fields.u64()?, applied: fields.u64()? },
        8 => Frame::Removed,
        9 => decode_restore(fields)?,
        10 => Frame::Tail(Tail::of_bits(fields.u8()?)?),
        11 => decode_replace(fields)?,
        _ => return None,
    })
}

fn decode_restore(fields: &mut Fields<'_>) -> Option<Frame> {
    let (term, offset) = (fields.u64()?, fields.offset()?);
    let Frame::Configuration { own, index, configuration } = decode_configuration(fields)? else {
        return None;
    };
    Some(Frame::Restore { start: Start { index, term, offset }, own, configuration })
}

fn decode_replace(fields: &mut Fields<'_>) -> Option<Frame> {
    let copy = ImportId(fields.array()?);
    let Frame::Restore { start, own, configuration } = decode_restore(fields)? else { return None };
    Some(Frame::Replace { copy, start, own, configuration })
}

fn decode_entry(fields: &mut Fields<'_>) -> Option<InternalEntry> {
    let (index, term, offset) = (fields.u64()?, fields.u64()?, fields.offset()?);
    let kind = match fields.u8()? {
        0 => EntryKind::NoOp,
        1 => EntryKind::ConfigurationChange,
        2 => EntryKind::ConfigurationChangeV2,
        3 => EntryKind::Data,
        _ => return None,
    };
    let data = fields.rest().to_vec();
    let fits = data.len() <= ENTRY_DATA_BYTES_MAX && (kind != EntryKind::NoOp || data.is_empty());
    fits.then_some(InternalEntry { index, term, offset, kind, data })
}

fn decode_configuration(fields: &mut Fields<'_>) -> Option<Frame> {
    let (own, index) = (ReplicaId(fields.u64()?), fields.u64()?);
    Some(Frame::Configuration { own, index, configuration: fields.configuration()? })
}
