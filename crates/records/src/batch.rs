//! A borrowed record batch: the header's layout, its fields, and the few bytes that a leader changes.
//!
//! The offsets below repeat the byte diagram in docs/format.md.

use crate::builder::ProducerFields;
use crate::crc;
use crate::error::BatchError;

/// Bytes of a batch header, up to the first record.
pub const HEADER_BYTES: usize = 61;
/// Bytes of base offset and length, which the length field does not count.
pub const LOG_OVERHEAD_BYTES: usize = 12;
/// Bytes that a leader stamps: base offset, length, leader epoch. All of them precede what the CRC covers.
pub const STAMP_BYTES: usize = 16;

/// `producer_id` of a batch without idempotence.
pub const NO_PRODUCER_ID: i64 = -1;
/// `producer_epoch` of a batch without idempotence.
pub const NO_PRODUCER_EPOCH: i16 = -1;
/// `base_sequence` of a batch without idempotence and of control batches.
pub const NO_SEQUENCE: i32 = -1;
/// The timestamp that says that there is none.
pub const NO_TIMESTAMP: i64 = -1;
/// `partition_leader_epoch` before a leader has stamped it.
pub const NO_PARTITION_LEADER_EPOCH: i32 = -1;

pub(crate) const MAGIC: i8 = 2;

const LENGTH_AT: usize = 8;
const LEADER_EPOCH_AT: usize = 12;
const MAGIC_AT: usize = 16;
const CRC_AT: usize = 17;
const ATTRIBUTES_AT: usize = 21;
const LAST_OFFSET_DELTA_AT: usize = 23;
const BASE_TIMESTAMP_AT: usize = 27;
const MAX_TIMESTAMP_AT: usize = 35;
const PRODUCER_ID_AT: usize = 43;
const PRODUCER_EPOCH_AT: usize = 51;
const BASE_SEQUENCE_AT: usize = 53;
const RECORD_COUNT_AT: usize = 57;

const _: () = assert!(RECORD_COUNT_AT + size_of::<i32>() == HEADER_BYTES);
const _: () = assert!(LEADER_EPOCH_AT + size_of::<i32>() == STAMP_BYTES);

const LENGTH_MIN: i32 = (HEADER_BYTES - LOG_OVERHEAD_BYTES) as i32;

/// The codec of a batch's records, by its number in the attributes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Compression {
    /// Not compressed.
    None = 0,
    /// Gzip members (RFC 1952).
    Gzip = 1,
    /// Snappy: blocks in the Xerial framing that Java clients write, or one raw block as others do.
    Snappy = 2,
    /// One LZ4 frame of independent blocks.
    Lz4 = 3,
    /// Zstandard frames (KIP-110).
    Zstd = 4,
}

impl Compression {
    /// Every codec, in the order of the numbers.
    pub const ALL: [Compression; 5] =
        [Compression::None, Compression::Gzip, Compression::Snappy, Compression::Lz4, Compression::Zstd];

    /// The codec with this number, if Kafka has defined it.
    pub fn from_id(id: u8) -> Option<Compression> {
        Compression::ALL.get(usize::from(id)).copied()
    }

    /// The number in the attributes.
    pub fn id(self) -> u8 {
        self as u8
    }

    /// Kafka's name, as in `compression.type`.
    pub fn name(self) -> &'static str {
        match self {
            Compression::None => "none",
            Compression::Gzip => "gzip",
            Compression::Snappy => "snappy",
            Compression::Lz4 => "lz4",
            Compression::Zstd => "zstd",
        }
    }
}

/// The clock that the timestamps of a batch come from (KIP-32).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum TimestampType {
    /// The producer's, record by record.
    CreateTime,
    /// The broker's, at the append: the batch's `max_timestamp` counts for every record.
    LogAppendTime,
}

/// The attribute bits of a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Attributes(i16);

impl Attributes {
    const COMPRESSION: i16 = 0x07;
    const LOG_APPEND_TIME: i16 = 0x08;
    const TRANSACTIONAL: i16 = 0x10;
    const CONTROL: i16 = 0x20;
    const DELETE_HORIZON: i16 = 0x40;

    /// The bits as they are in a header.
    pub fn from_bits(bits: i16) -> Attributes {
        Attributes(bits)
    }

    /// The bits as they go into a header.
    pub fn bits(self) -> i16 {
        self.0
    }

    /// The codec; an error carries the number when it names none.
    pub fn compression(self) -> Result<Compression, u8> {
        let id = (self.0 & Self::COMPRESSION) as u8;
        Compression::from_id(id).ok_or(id)
    }

    /// Returns true if the compression bits are other than "none".
    pub fn is_compressed(self) -> bool {
        self.0 & Self::COMPRESSION != 0
    }

    /// Whose timestamps these are.
    pub fn timestamp_type(self) -> TimestampType {
        match self.0 & Self::LOG_APPEND_TIME {
            0 => TimestampType::CreateTime,
            _ => TimestampType::LogAppendTime,
        }
    }

    /// Returns true if the batch belongs to a transaction.
    pub fn is_transactional(self) -> bool {
        self.0 & Self::TRANSACTIONAL != 0
    }

    /// Returns true if the batch holds control records, which consumers do not see.
    pub fn is_control(self) -> bool {
        self.0 & Self::CONTROL != 0
    }

    /// Returns true if `base_timestamp` is the time from which tombstones may be removed (KIP-534).
    pub fn has_delete_horizon(self) -> bool {
        self.0 & Self::DELETE_HORIZON != 0
    }

    /// With this codec.
    pub fn with_compression(self, compression: Compression) -> Attributes {
        Attributes((self.0 & !Self::COMPRESSION) | i16::from(compression.id()))
    }

    /// With this timestamp type.
    pub fn with_timestamp_type(self, timestamp_type: TimestampType) -> Attributes {
        self.with_bit(Self::LOG_APPEND_TIME, timestamp_type == TimestampType::LogAppendTime)
    }

    /// With or without the transactional bit.
    pub fn with_transactional(self, transactional: bool) -> Attributes {
        self.with_bit(Self::TRANSACTIONAL, transactional)
    }

    /// With or without the control bit.
    pub fn with_control(self, control: bool) -> Attributes {
        self.with_bit(Self::CONTROL, control)
    }

    /// With or without the delete-horizon bit.
    pub fn with_delete_horizon(self, delete_horizon: bool) -> Attributes {
        self.with_bit(Self::DELETE_HORIZON, delete_horizon)
    }

    fn with_bit(self, bit: i16, on: bool) -> Attributes {
        Attributes(if on { self.0 | bit } else { self.0 & !bit })
    }
}

/// A view of exactly one batch of format v2. Only length and magic are known to be right.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Batch<'a> {
    bytes: &'a [u8],
}

impl<'a> Batch<'a> {
    /// The first batch of `bytes`, and what follows it. Checks length and magic, nothing more.
    ///
    /// # Errors
    /// [`BatchError`]; [`BatchError::Truncated`] says how many bytes are needed, as far as the bytes tell.
    #[inline]
    pub fn split_first(bytes: &'a [u8]) -> Result<(Batch<'a>, &'a [u8]), BatchError> {
        let size = Self::size_of_first(bytes)?;
        if bytes.len() < size {
            return Err(BatchError::Truncated { needed: size, available: bytes.len() });
        }
        let (batch, rest) = bytes.split_at(size);
        Ok((Batch { bytes: batch }, rest))
    }

    /// The size in bytes of the batch that starts `bytes`, of which 17 bytes are enough. The batch itself need
    /// not be there, so compare with what remains before allocating.
    ///
    /// # Errors
    /// As [`Batch::split_first`].
    #[inline]
    pub fn size_of_first(bytes: &[u8]) -> Result<usize, BatchError> {
        if bytes.len() <= MAGIC_AT {
            return Err(BatchError::Truncated { needed: HEADER_BYTES, available: bytes.len() });
        }
        match bytes[MAGIC_AT] as i8 {
            MAGIC => {}
            magic @ (0 | 1) => return Err(BatchError::OldMagic { magic }),
            magic => return Err(BatchError::UnknownMagic { magic }),
        }
        let length = i32::from_be_bytes(field(bytes, LENGTH_AT));
        if length < LENGTH_MIN {
            return Err(BatchError::TooShort { length, minimum: LENGTH_MIN });
        }
        Ok(LOG_OVERHEAD_BYTES + length as usize)
    }

    /// The offset of the first record; 0 as sent by a producer.
    #[inline]
    pub fn base_offset(&self) -> i64 {
        i64::from_be_bytes(self.field(0))
    }

    /// The whole batch in bytes, header included.
    #[inline]
    pub fn size(&self) -> usize {
        self.bytes.len()
    }

    /// The leader epoch as stamped by the leader; not covered by the CRC.
    #[inline]
    pub fn partition_leader_epoch(&self) -> i32 {
        i32::from_be_bytes(self.field(LEADER_EPOCH_AT))
    }

    /// The CRC-32C in the header, over everything from the attributes to the end.
    #[inline]
    pub fn crc(&self) -> u32 {
        u32::from_be_bytes(self.field(CRC_AT))
    }

    /// The attribute bits.
    #[inline]
    pub fn attributes(&self) -> Attributes {
        Attributes(i16::from_be_bytes(self.field(ATTRIBUTES_AT)))
    }

    /// Last offset minus base offset. Compaction keeps it, so it may be more than `record_count() - 1`.
    #[inline]
    pub fn last_offset_delta(&self) -> i32 {
        i32::from_be_bytes(self.field(LAST_OFFSET_DELTA_AT))
    }

    /// The base of the records' timestamp deltas, in ms; the delete horizon when that bit is set.
    #[inline]
    pub fn base_timestamp(&self) -> i64 {
        i64::from_be_bytes(self.field(BASE_TIMESTAMP_AT))
    }

    /// The largest timestamp in ms, or the append time of a LogAppendTime batch.
    #[inline]
    pub fn max_timestamp(&self) -> i64 {
        i64::from_be_bytes(self.field(MAX_TIMESTAMP_AT))
    }

    /// The producer's id, or [`NO_PRODUCER_ID`].
    #[inline]
    pub fn producer_id(&self) -> i64 {
        i64::from_be_bytes(self.field(PRODUCER_ID_AT))
    }

    /// The producer's epoch, or [`NO_PRODUCER_EPOCH`].
    #[inline]
    pub fn producer_epoch(&self) -> i16 {
        i16::from_be_bytes(self.field(PRODUCER_EPOCH_AT))
    }

    /// The sequence number of the first record, or [`NO_SEQUENCE`].
    #[inline]
    pub fn base_sequence(&self) -> i32 {
        i32::from_be_bytes(self.field(BASE_SEQUENCE_AT))
    }

    /// The sequence number of the last record, or [`NO_SEQUENCE`]. Sequence numbers wrap to 0.
    #[inline]
    pub fn last_sequence(&self) -> i32 {
        self.header().last_sequence()
    }

    /// The number of records, by the header; unverified until [`validate`](crate::validate()).
    #[inline]
    pub fn record_count(&self) -> i32 {
        i32::from_be_bytes(self.field(RECORD_COUNT_AT))
    }

    /// The offset of the last record.
    #[inline]
    pub fn last_offset(&self) -> i64 {
        self.base_offset().wrapping_add(i64::from(self.last_offset_delta()))
    }

    /// The offset that follows the batch.
    #[inline]
    pub fn next_offset(&self) -> i64 {
        self.last_offset().wrapping_add(1)
    }

    /// The time from which tombstones in the batch may be removed, in ms, if compaction has set it (KIP-534).
    pub fn delete_horizon_ms(&self) -> Option<i64> {
        self.attributes().has_delete_horizon().then(|| self.base_timestamp())
    }

    /// The whole batch.
    #[inline]
    pub fn bytes(&self) -> &'a [u8] {
        self.bytes
    }

    /// The bytes behind the header: the records, compressed as the attributes say.
    #[inline]
    pub fn payload(&self) -> &'a [u8] {
        &self.bytes[HEADER_BYTES..]
    }

    /// The CRC-32C over what the header's covers.
    #[inline]
    pub fn computed_crc(&self) -> u32 {
        crc::crc32c(&self.bytes[ATTRIBUTES_AT..])
    }

    /// Returns true if the header's CRC is right.
    #[inline]
    pub fn verify_crc(&self) -> bool {
        self.crc() == self.computed_crc()
    }

    /// The header's fields.
    pub fn header(&self) -> BatchHeader {
        BatchHeader {
            base_offset: self.base_offset(),
            size: LOG_OVERHEAD_BYTES + i32::from_be_bytes(self.field(LENGTH_AT)) as usize,
            partition_leader_epoch: self.partition_leader_epoch(),
            crc: self.crc(),
            attributes: self.attributes(),
            last_offset_delta: self.last_offset_delta(),
            base_timestamp: self.base_timestamp(),
            max_timestamp: self.max_timestamp(),
            producer_id: self.producer_id(),
            producer_epoch: self.producer_epoch(),
            base_sequence: self.base_sequence(),
            record_count: self.record_count(),
        }
    }

    #[inline]
    fn field<const N: usize>(&self, at: usize) -> [u8; N] {
        field(self.bytes, at)
    }
}

#[inline]
fn field<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    bytes[at..at + N].try_into().expect("a slice of N bytes is an array of N bytes")
}

/// `sequence` after `increment` more records: sequence numbers run from 0 to `i32::MAX` and wrap to 0.
#[inline]
pub fn increment_sequence(sequence: i32, increment: i32) -> i32 {
    sequence.wrapping_add(increment) & i32::MAX
}

/// The first 16 bytes of `batch` as a leader writes them: its base offset and epoch, the length unchanged. The
/// client's other bytes follow as they are, for the CRC does not cover these.
#[inline]
pub fn stamp_header(batch: &Batch<'_>, base_offset: i64, leader_epoch: i32) -> [u8; STAMP_BYTES] {
    let mut stamp = [0; STAMP_BYTES];
    stamp[..LENGTH_AT].copy_from_slice(&base_offset.to_be_bytes());
    stamp[LENGTH_AT..LEADER_EPOCH_AT].copy_from_slice(&batch.bytes[LENGTH_AT..LEADER_EPOCH_AT]);
    stamp[LEADER_EPOCH_AT..].copy_from_slice(&leader_epoch.to_be_bytes());
    stamp
}

/// The header of `batch` with another timestamp type and `max_timestamp`, CRC renewed. [`Batch::payload`]
/// follows it unchanged, so a caller can write the two parts without copying the records.
pub fn restamped_header(
    batch: &Batch<'_>,
    timestamp_type: TimestampType,
    max_timestamp: i64,
) -> [u8; HEADER_BYTES] {
    let mut header = batch.header();
    header.attributes = header.attributes.with_timestamp_type(timestamp_type);
    header.max_timestamp = max_timestamp;
    header.encode(batch.payload())
}

/// Appends `batch` to `out` as a LogAppendTime batch of the time `now_ms`.
pub fn rewrite_log_append_time(batch: &Batch<'_>, now_ms: i64, out: &mut Vec<u8>) {
    out.extend_from_slice(&restamped_header(batch, TimestampType::LogAppendTime, now_ms));
    out.extend_from_slice(batch.payload());
}

/// Appends `batch` to `out` as a CreateTime batch with this `max_timestamp`, for a producer that sent another
/// than its records have. Kafka corrects it in the same way.
pub fn rewrite_max_timestamp(batch: &Batch<'_>, max_timestamp: i64, out: &mut Vec<u8>) {
    out.extend_from_slice(&restamped_header(batch, TimestampType::CreateTime, max_timestamp));
    out.extend_from_slice(batch.payload());
}

/// Appends `batch` to `out` under another producer's name and place: a client that sends again what it built before.
pub fn rewrite_producer(batch: &Batch<'_>, producer: ProducerFields, out: &mut Vec<u8>) {
    let mut header = batch.header();
    header.producer_id = producer.producer_id;
    header.producer_epoch = producer.producer_epoch;
    header.base_sequence = producer.base_sequence;
    out.extend_from_slice(&header.encode(batch.payload()));
    out.extend_from_slice(batch.payload());
}

/// The fields of a batch header, for a walk over a file that reads headers only; [`Batch`] describes each.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(missing_docs, reason = "the fields are those of `Batch`")]
pub struct BatchHeader {
    pub base_offset: i64,
    /// Bytes of the whole batch, header included.
    pub size: usize,
    pub partition_leader_epoch: i32,
    pub crc: u32,
    pub attributes: Attributes,
    pub last_offset_delta: i32,
    pub base_timestamp: i64,
    pub max_timestamp: i64,
    pub producer_id: i64,
    pub producer_epoch: i16,
    pub base_sequence: i32,
    pub record_count: i32,
}

/// The CRC of a batch that is read piece by piece, from its first byte on.
#[derive(Debug, Clone, Copy)]
pub struct BatchCrc {
    expected: u32,
    computed: u32,
    /// Bytes at the beginning that the CRC does not cover and that have not come yet.
    uncovered: usize,
}

impl BatchCrc {
    /// Begins with the batch that has this header.
    pub fn new(header: &BatchHeader) -> BatchCrc {
        BatchCrc { expected: header.crc, computed: 0, uncovered: ATTRIBUTES_AT }
    }

    /// Takes the next bytes.
    pub fn update(&mut self, bytes: &[u8]) {
        let covered = bytes.get(self.uncovered..).unwrap_or_default();
        self.uncovered -= self.uncovered.min(bytes.len());
        self.computed = crc::append(self.computed, covered);
    }

    /// Returns true if all of the batch has come and is as it was written.
    pub fn is_right(&self) -> bool {
        self.computed == self.expected
    }
}

impl BatchHeader {
    /// The header that starts `bytes`; the records behind it need not be there.
    ///
    /// # Errors
    /// As [`Batch::split_first`]; truncated means fewer than [`HEADER_BYTES`].
    pub fn read(bytes: &[u8]) -> Result<BatchHeader, BatchError> {
        Batch::size_of_first(bytes)?;
        match bytes.get(..HEADER_BYTES) {
            Some(header) => Ok(Batch { bytes: header }.header()),
            None => Err(BatchError::Truncated { needed: HEADER_BYTES, available: bytes.len() }),
        }
    }

    /// The offset of the last record.
    pub fn last_offset(&self) -> i64 {
        self.base_offset.wrapping_add(i64::from(self.last_offset_delta))
    }

    /// The offset that follows the batch.
    pub fn next_offset(&self) -> i64 {
        self.last_offset().wrapping_add(1)
    }

    /// The sequence number of the last record, or [`NO_SEQUENCE`].
    pub fn last_sequence(&self) -> i32 {
        match self.base_sequence {
            NO_SEQUENCE => NO_SEQUENCE,
            base => increment_sequence(base, self.last_offset_delta),
        }
    }

    /// The header's bytes in front of `payload`, from which they take length and CRC.
    ///
    /// # Panics
    /// If the batch would be longer than its length field can say; builders check that first.
    pub(crate) fn encode(&self, payload: &[u8]) -> [u8; HEADER_BYTES] {
        self.template().complete(self.base_offset, self.partition_leader_epoch, payload)
    }

    /// The header without what differs between batches of equal fields.
    pub(crate) fn template(&self) -> HeaderTemplate {
        let mut bytes = [0; HEADER_BYTES];
        put(&mut bytes, MAGIC_AT, MAGIC.to_be_bytes());
        put(&mut bytes, ATTRIBUTES_AT, self.attributes.bits().to_be_bytes());
        put(&mut bytes, LAST_OFFSET_DELTA_AT, self.last_offset_delta.to_be_bytes());
        put(&mut bytes, BASE_TIMESTAMP_AT, self.base_timestamp.to_be_bytes());
        put(&mut bytes, MAX_TIMESTAMP_AT, self.max_timestamp.to_be_bytes());
        put(&mut bytes, PRODUCER_ID_AT, self.producer_id.to_be_bytes());
        put(&mut bytes, PRODUCER_EPOCH_AT, self.producer_epoch.to_be_bytes());
        put(&mut bytes, BASE_SEQUENCE_AT, self.base_sequence.to_be_bytes());
        put(&mut bytes, RECORD_COUNT_AT, self.record_count.to_be_bytes());
        HeaderTemplate { bytes, crc: crc::crc32c(&bytes[ATTRIBUTES_AT..]) }
    }
}

/// An encoded header of batches that differ in their offsets, leader epochs and records alone.
#[derive(Debug, Clone)]
pub(crate) struct HeaderTemplate {
    bytes: [u8; HEADER_BYTES],
    /// The CRC of the bytes between the CRC field and the records.
    crc: u32,
}

impl HeaderTemplate {
    /// The header of one of them.
    ///
    /// # Panics
    /// If the batch would be longer than its length field can say; builders check that first.
    #[inline]
    pub(crate) fn complete(&self, base_offset: i64, leader_epoch: i32, payload: &[u8]) -> [u8; HEADER_BYTES] {
        let length = i32::try_from(HEADER_BYTES - LOG_OVERHEAD_BYTES + payload.len())
            .expect("a batch is at most 2 GiB: its parts were checked when they were added");
        let mut bytes = self.bytes;
        put(&mut bytes, 0, base_offset.to_be_bytes());
        put(&mut bytes, LENGTH_AT, length.to_be_bytes());
        put(&mut bytes, LEADER_EPOCH_AT, leader_epoch.to_be_bytes());
        put(&mut bytes, CRC_AT, crc::append(self.crc, payload).to_be_bytes());
        bytes
    }
}

fn put<const N: usize>(bytes: &mut [u8; HEADER_BYTES], at: usize, value: [u8; N]) {
    bytes[at..at + N].copy_from_slice(&value);
}
