//! Record batches (format v2) of records without key and headers: all that the driver sends.

use anyhow::{Result, ensure};

use crate::bytes::{Reader, Writer, uvarint_len, zigzag};

/// Bytes of the base offset and the length, which come before all that the length counts.
const PREFIX_BYTES: usize = 12;
/// Places of the fields that are known only when the batch is complete.
const LENGTH_AT: usize = 8;
const CRC_AT: usize = 17;
const LAST_OFFSET_DELTA_AT: usize = 23;
const MAX_TIMESTAMP_AT: usize = 35;
const PRODUCER_AT: usize = 43;
const COUNT_AT: usize = 57;
/// The attribute of batches that are part of a transaction.
const TRANSACTIONAL: i16 = 0x10;
/// Bytes of the header; the records begin behind it.
const HEADER_BYTES: usize = 61;

/// The producer fields of an idempotent producer's batch (KIP-98).
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct ProducerFields {
    pub(crate) id: i64,
    pub(crate) epoch: i16,
    /// The sequence number of the first record.
    pub(crate) base_sequence: i32,
}

impl ProducerFields {
    /// The fields of a producer that is not idempotent.
    pub(crate) const NONE: Self = Self { id: -1, epoch: -1, base_sequence: -1 };

    /// Returns the fields of a producer with this (id, epoch), if it has one.
    pub(crate) fn of(identity: Option<(i64, i16)>, base_sequence: u64) -> Self {
        let idempotent = |(id, epoch)| Self { id, epoch, base_sequence: base_sequence as i32 };
        identity.map_or(Self::NONE, idempotent)
    }
}

/// A batch that grows record by record, in a buffer that is kept from batch to batch.
#[derive(Debug, Default)]
pub(crate) struct BatchBuilder {
    writer: Writer,
    count: i32,
    base_timestamp_ms: i64,
    max_timestamp_ms: i64,
}

impl BatchBuilder {
    pub(crate) fn count(&self) -> i32 {
        self.count
    }

    /// The bytes so far, the header included once there is a record.
    pub(crate) fn len(&self) -> usize {
        self.writer.len()
    }

    /// Empties it for the next batch.
    pub(crate) fn clear(&mut self) {
        self.writer.clear();
        self.count = 0;
    }

    /// Appends a record whose value of exactly `value_bytes` is written by `value`.
    pub(crate) fn append(&mut self, timestamp_ms: i64, value_bytes: usize, value: impl FnOnce(&mut Writer)) {
        if self.count == 0 {
            self.writer.raw(&[0; HEADER_BYTES]);
            self.base_timestamp_ms = timestamp_ms;
            self.max_timestamp_ms = timestamp_ms;
        }
        self.max_timestamp_ms = self.max_timestamp_ms.max(timestamp_ms);
        // If the wall clock was set back by more than the age of the batch, timestamps are clamped.
        let delta = i32::try_from(timestamp_ms - self.base_timestamp_ms).unwrap_or(0);
        let writer = &mut self.writer;
        writer.varint(record_bytes(delta, self.count, value_bytes) as i32);
        writer.i8(0); // attributes
        writer.varint(delta);
        writer.varint(self.count);
        writer.varint(-1); // no key
        writer.varint(value_bytes as i32);
        let begin = writer.len();
        value(writer);
        assert_eq!(writer.len() - begin, value_bytes, "the value has the promised size");
        writer.varint(0); // no headers
        self.count += 1;
    }

    /// Fills in the header and returns the whole batch.
    pub(crate) fn finish(&mut self, producer: ProducerFields) -> &[u8] {
        self.finish_as(0, producer)
    }

    /// The same within a transaction.
    pub(crate) fn finish_transactional(&mut self, producer: ProducerFields) -> &[u8] {
        self.finish_as(TRANSACTIONAL, producer)
    }

    fn finish_as(&mut self, attributes: i16, producer: ProducerFields) -> &[u8] {
        assert!(self.count > 0, "a batch has records");
        let writer = &mut self.writer;
        writer.patch(LENGTH_AT, &((writer.len() - PREFIX_BYTES) as i32).to_be_bytes());
        writer.patch(LENGTH_AT + 4, &(-1i32).to_be_bytes()); // leader epoch: not known to a producer
        writer.patch(LENGTH_AT + 8, &[2]); // magic
        writer.patch(CRC_AT + 4, &attributes.to_be_bytes()); // and no compression, create time
        writer.patch(LAST_OFFSET_DELTA_AT, &(self.count - 1).to_be_bytes());
        writer.patch(LAST_OFFSET_DELTA_AT + 4, &self.base_timestamp_ms.to_be_bytes());
        writer.patch(MAX_TIMESTAMP_AT, &self.max_timestamp_ms.to_be_bytes());
        writer.patch(PRODUCER_AT, &producer.id.to_be_bytes());
        writer.patch(PRODUCER_AT + 8, &producer.epoch.to_be_bytes());
        writer.patch(PRODUCER_AT + 10, &producer.base_sequence.to_be_bytes());
        writer.patch(COUNT_AT, &self.count.to_be_bytes());
        let crc = crc32c::crc32c(&writer.as_bytes()[CRC_AT + 4..]);
        writer.patch(CRC_AT, &crc.to_be_bytes());
        writer.as_bytes()
    }
}

/// Returns the length of a record, without the length field itself.
fn record_bytes(timestamp_delta: i32, offset_delta: i32, value_bytes: usize) -> usize {
    let varint_len = |value: i32| uvarint_len(zigzag(value));
    // One byte each: attributes, the null key, the count of headers.
    3 + varint_len(timestamp_delta) + varint_len(offset_delta) + varint_len(value_bytes as i32) + value_bytes
}

/// Returns the number of records of a batch that was just built. It reads nothing else: it is for the probe.
pub(crate) fn record_count(batch: &[u8]) -> Result<u64> {
    ensure!(batch.len() > HEADER_BYTES, "a batch of {} bytes", batch.len());
    Ok(u64::from(Reader::new(&batch[COUNT_AT..]).u32()?))
}

/// A fetched batch whose CRC was verified.
#[derive(Debug, Clone, Copy)]
pub(crate) struct FetchedBatch<'a> {
    pub(crate) base_offset: i64,
    count: i32,
    records: Reader<'a>,
}

/// Takes the first batch off `bytes`. `None` at the end, and where the broker cut a batch short.
pub(crate) fn split_first<'a>(bytes: &mut &'a [u8]) -> Result<Option<FetchedBatch<'a>>> {
    if bytes.len() < PREFIX_BYTES {
        return Ok(None);
    }
    let mut reader = Reader::new(bytes);
    let base_offset = reader.i64()?;
    let length = reader.i32()?;
    ensure!(length > (HEADER_BYTES - PREFIX_BYTES) as i32, "a batch of length {length}");
    let Some((batch, rest)) = bytes.split_at_checked(PREFIX_BYTES + length as usize) else {
        return Ok(None);
    };
    *bytes = rest;
    let mut reader = Reader::new(&batch[PREFIX_BYTES..]);
    reader.i32()?; // leader epoch
    let magic = reader.i8()?;
    ensure!(magic == 2, "a batch of magic {magic}");
    let crc = reader.u32()?;
    ensure!(crc == crc32c::crc32c(&batch[CRC_AT + 4..]), "a batch whose CRC does not match");
    let attributes = reader.i16()?;
    ensure!(attributes == 0, "attributes {attributes} on a batch sent with none");
    let last_offset_delta = reader.i32()?;
    reader.raw(8 + 8 + 8 + 2 + 4)?; // timestamps, producer fields
    let count = reader.i32()?;
    ensure!(last_offset_delta == count - 1, "a batch of {count} records that ends at {last_offset_delta}");
    Ok(Some(FetchedBatch { base_offset, count, records: reader }))
}

impl<'a> FetchedBatch<'a> {
    /// Hands the value of each record to `take`, in order of offsets, which follow each other without gaps.
    pub(crate) fn for_each(mut self, mut take: impl FnMut(&'a [u8]) -> Result<()>) -> Result<()> {
        for delta in 0..self.count {
            take(read_record(&mut self.records, delta)?)?;
        }
        ensure!(self.records.is_empty(), "bytes behind the records of a batch");
        Ok(())
    }

    /// The offset behind its last record.
    pub(crate) fn next_offset(&self) -> i64 {
        self.base_offset + i64::from(self.count)
    }
}

fn read_record<'a>(reader: &mut Reader<'a>, offset_delta: i32) -> Result<&'a [u8]> {
    reader.varint()?; // length
    reader.i8()?; // attributes
    reader.varint()?; // timestamp delta
    let delta = reader.varint()?;
    ensure!(delta == offset_delta, "offset delta {delta} where {offset_delta} was next");
    ensure!(reader.varint()? == -1, "a key on a record sent without one");
    let len = usize::try_from(reader.varint()?)?;
    let value = reader.raw(len)?;
    ensure!(reader.varint()? == 0, "headers on a record sent without any");
    Ok(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn batch(values: &[&[u8]], producer: ProducerFields) -> Vec<u8> {
        let mut builder = BatchBuilder::default();
        for (index, value) in values.iter().enumerate() {
            let timestamp_ms = 1_700_000_000_000 + 100 * index as i64;
            builder.append(timestamp_ms, value.len(), |writer| writer.raw(value));
        }
        builder.finish(producer).to_vec()
    }

    fn values(batch: FetchedBatch<'_>) -> Vec<&[u8]> {
        let mut values = Vec::new();
        let take = |value| {
            values.push(value);
            Ok(())
        };
        batch.for_each(take).unwrap();
        values
    }

    #[test]
    fn round_trips_over_the_varint_boundaries() {
        for len in [0, 1, 57, 58, 59, 63, 64, 100, 1024, 8186, 8192, 70_000] {
            let value = vec![7; len];
            let all = vec![value.as_slice(); 70];
            let bytes = batch(&all, ProducerFields { id: 9, epoch: 2, base_sequence: 70 });
            assert_eq!(record_count(&bytes).unwrap(), 70);
            let mut rest = bytes.as_slice();
            let fetched = split_first(&mut rest).unwrap().unwrap();
            assert_eq!((fetched.base_offset, fetched.next_offset()), (0, 70));
            assert_eq!(values(fetched), all);
            assert!(split_first(&mut rest).unwrap().is_none());
        }
    }

    #[test]
    fn a_builder_is_used_again() {
        let mut builder = BatchBuilder::default();
        for value in [b"first", b"other"] {
            builder.clear();
            builder.append(5, value.len(), |writer| writer.raw(value));
            assert_eq!(builder.finish(ProducerFields::NONE), builder_of(value));
            assert_eq!((builder.count(), builder.len()), (1, 61 + 12));
        }
    }

    fn builder_of(value: &[u8]) -> Vec<u8> {
        let mut builder = BatchBuilder::default();
        builder.append(5, value.len(), |writer| writer.raw(value));
        builder.finish(ProducerFields::NONE).to_vec()
    }

    #[test]
    fn a_batch_that_is_cut_short_ends_the_walk() {
        let mut bytes = batch(&[b"first"], ProducerFields::NONE);
        bytes.extend_from_slice(&batch(&[b"second"], ProducerFields::NONE)[..70]);
        let mut rest = bytes.as_slice();
        assert_eq!(values(split_first(&mut rest).unwrap().unwrap()), [b"first"]);
        assert!(split_first(&mut rest).unwrap().is_none());
    }

    #[test]
    fn every_flipped_bit_behind_the_leader_epoch_is_found() {
        let good = batch(&[b"some", b"values"], ProducerFields::NONE);
        for at in PREFIX_BYTES + 4..good.len() {
            for bit in 0..8 {
                let mut bytes = good.clone();
                bytes[at] ^= 1 << bit;
                assert!(split_first(&mut bytes.as_slice()).is_err(), "byte {at}, bit {bit}");
            }
        }
    }
}
