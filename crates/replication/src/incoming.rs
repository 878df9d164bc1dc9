//! The batches that came with an append, each for its entry.

use crate::error::MessageError;
use crate::store::is_stub;
use mainstem_records::Batch;
use raft::eraftpb::{Message, MessageType};

/// Batches on their way into the log.
#[derive(Debug, Default)]
pub(crate) struct Incoming {
    bytes: Vec<u8>,
    /// Index and range of each.
    ranges: Vec<(u64, std::ops::Range<usize>)>,
}

impl Incoming {
    /// Checks that the bytes are the batches of a message's entries: as many, whole, each of its entry's term, without a
    /// gap from `offset` on. A leader whose log was cut and written again while a message waited has sent others.
    pub(crate) fn of(message: &Message, offset: i64, bytes: &[u8]) -> Result<Incoming, MessageError> {
        let mut incoming = Incoming { bytes: bytes.to_vec(), ranges: Vec::new() };
        let (mut rest, mut next) = (bytes, offset);
        let is_append = message.get_msg_type() == MessageType::MsgAppend;
        let entries = if is_append { message.get_entries() } else { &[] };
        for (entry, index) in entries.iter().zip(message.index + 1..) {
            if entry.index != index {
                return Err(MessageError::Batches("indexes that do not ascend"));
            }
            if !is_stub(entry) {
                if entry.data.len() > crate::journal::ENTRY_DATA_BYTES_MAX {
                    return Err(MessageError::Batches("an internal entry that is too long"));
                }
                continue;
            }
            let split = Batch::split_first(rest);
            let Ok((batch, behind)) = split else { return Err(MessageError::Batches("too few")) };
            if !batch.verify_crc() {
                return Err(MessageError::Batches("a checksum that does not match"));
            }
            if u64::from(batch.partition_leader_epoch().cast_unsigned()) != entry.term {
                return Err(MessageError::Batches("another term"));
            }
            if batch.base_offset() != next || batch.last_offset_delta() < 0 || batch.next_offset() <= next {
                return Err(MessageError::Batches("other offsets"));
            }
            let start = bytes.len() - rest.len();
            incoming.ranges.push((index, start..start + batch.size()));
            (rest, next) = (behind, batch.next_offset());
        }
        match rest.is_empty() {
            true => Ok(incoming),
            false => Err(MessageError::Batches("too many")),
        }
    }

    /// The batch of an entry.
    pub(crate) fn batch(&self, index: u64) -> Option<&[u8]> {
        let at = self.ranges.binary_search_by_key(&index, |(index, _)| *index).ok()?;
        Some(&self.bytes[self.ranges[at].1.clone()])
    }
}
