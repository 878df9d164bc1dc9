//! Record batches (format v2) of exactly one record without key and headers: all that the driver sends.

use anyhow::{Result, ensure};

use crate::bytes::{Reader, Writer, uvarint_len, zigzag};

/// Base offset and length, which stand before what the length counts.
const PREFIX_BYTES: usize = 12;
/// From the leader epoch to the record count, all of it counted by the length.
const HEADER_BYTES: usize = 49;
/// Where the CRC stands in a batch; it covers all that follows it.
const CRC_AT: usize = 17;
/// One byte each: attributes, timestamp delta, offset delta, the null key, the count of headers.
const RECORD_FRAME_BYTES: usize = 5;

/// The size of a batch around one value of `value_bytes`.
pub(crate) fn batch_bytes(value_bytes: usize) -> usize {
    PREFIX_BYTES + HEADER_BYTES + record_bytes(value_bytes) + prefix_varint(record_bytes(value_bytes))
}

fn record_bytes(value_bytes: usize) -> usize {
    RECORD_FRAME_BYTES + prefix_varint(value_bytes) + value_bytes
}

fn prefix_varint(len: usize) -> usize {
    uvarint_len(zigzag(len as i32))
}

/// Appends a batch with one record, whose value of exactly `value_bytes` is written by `value`.
pub(crate) fn write_batch(
    writer: &mut Writer,
    timestamp_ms: i64,
    value_bytes: usize,
    value: impl FnOnce(&mut Writer),
) {
    let start = writer.len();
    writer.i64(0);
    writer.i32((batch_bytes(value_bytes) - PREFIX_BYTES) as i32);
    writer.i32(-1); // leader epoch: not known to a producer
    writer.i8(2); // magic
    writer.i32(0); // CRC, below
    writer.i16(0); // attributes: no compression, create time
    writer.i32(0); // last offset delta
    writer.i64(timestamp_ms);
    writer.i64(timestamp_ms);
    writer.i64(-1); // producer id
    writer.i16(-1); // producer epoch
    writer.i32(-1); // base sequence
    writer.i32(1); // record count
    writer.varint(record_bytes(value_bytes) as i32);
    writer.raw(&[0, 0, 0]); // attributes, timestamp delta, offset delta
    writer.varint(-1); // no key
    writer.varint(value_bytes as i32);
    value(writer);
    writer.varint(0); // no headers
    assert_eq!(writer.len() - start, batch_bytes(value_bytes), "the value has the promised size");
    let crc = crc32c::crc32c(&writer.as_bytes()[start + CRC_AT + 4..]);
    writer.patch_u32(start + CRC_AT, crc);
}

/// The one record of a fetched batch.
#[derive(Debug, PartialEq)]
pub(crate) struct FetchedRecord<'a> {
    pub(crate) offset: i64,
    pub(crate) value: &'a [u8],
}

/// Takes the first batch off `bytes`, its CRC verified. `None` at the end, and where the broker cut a batch short.
pub(crate) fn split_first<'a>(bytes: &mut &'a [u8]) -> Result<Option<FetchedRecord<'a>>> {
    if bytes.len() < PREFIX_BYTES {
        return Ok(None);
    }
    let mut reader = Reader::new(bytes);
    let offset = reader.i64()?;
    let length = reader.i32()?;
    ensure!(length > HEADER_BYTES as i32, "a batch of length {length}");
    let Some((batch, rest)) = bytes.split_at_checked(PREFIX_BYTES + length as usize) else {
        return Ok(None);
    };
    *bytes = rest;
    let value = read_body(batch)?;
    Ok(Some(FetchedRecord { offset, value }))
}

fn read_body(batch: &[u8]) -> Result<&[u8]> {
    let mut reader = Reader::new(&batch[PREFIX_BYTES..]);
    reader.i32()?; // leader epoch
    let magic = reader.i8()?;
    ensure!(magic == 2, "a batch of magic {magic}");
    let crc = reader.u32()?;
    ensure!(crc == crc32c::crc32c(&batch[CRC_AT + 4..]), "a batch whose CRC does not match");
    let attributes = reader.i16()?;
    ensure!(attributes == 0, "attributes {attributes} on a batch sent with none");
    reader.raw(4 + 8 + 8 + 8 + 2 + 4)?; // last offset delta, timestamps, producer fields
    let count = reader.i32()?;
    ensure!(count == 1, "a batch of {count} records, sent with one");
    reader.varint()?; // length of the record
    reader.raw(3)?;
    ensure!(reader.varint()? == -1, "a key on a record sent without one");
    let len = usize::try_from(reader.varint()?)?;
    let value = reader.raw(len)?;
    ensure!(reader.varint()? == 0, "headers on a record sent without any");
    ensure!(reader.is_empty(), "bytes behind the record of a batch");
    Ok(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn batch(value: &[u8]) -> Vec<u8> {
        let mut writer = Writer::default();
        write_batch(&mut writer, 1_700_000_000_000, value.len(), |writer| writer.raw(value));
        writer.as_bytes().to_vec()
    }

    #[test]
    fn round_trips_over_the_varint_boundaries() {
        for len in [0, 1, 57, 58, 59, 63, 64, 100, 1024, 8186, 8192, 70_000] {
            let value = vec![7; len];
            let bytes = batch(&value);
            assert_eq!(bytes.len(), batch_bytes(len));
            let mut rest = bytes.as_slice();
            assert_eq!(split_first(&mut rest).unwrap(), Some(FetchedRecord { offset: 0, value: &value }));
            assert_eq!(split_first(&mut rest).unwrap(), None);
        }
    }

    #[test]
    fn a_batch_that_is_cut_short_ends_the_walk() {
        let mut bytes = batch(b"first");
        bytes.extend_from_slice(&batch(b"second")[..70]);
        let mut rest = bytes.as_slice();
        assert_eq!(split_first(&mut rest).unwrap().unwrap().value, b"first");
        assert_eq!(split_first(&mut rest).unwrap(), None);
    }

    #[test]
    fn every_flipped_bit_behind_the_leader_epoch_is_found() {
        let good = batch(b"some value");
        for at in PREFIX_BYTES + 4..good.len() {
            for bit in 0..8 {
                let mut bytes = good.clone();
                bytes[at] ^= 1 << bit;
                assert!(split_first(&mut bytes.as_slice()).is_err(), "byte {at}, bit {bit}");
            }
        }
    }
}
