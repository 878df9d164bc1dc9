//! The value of each record: its producer's number, its time, and bytes that show damage.

use anyhow::{Result, ensure};

use crate::bytes::{Reader, Writer};

/// Bytes of the fields before the filler.
pub(crate) const FIELD_BYTES: usize = 24;

/// The fields at the head of every value.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Payload {
    /// Counts the records of one producer in one partition.
    pub(crate) sequence: u64,
    /// Nanoseconds of the driver's clock at which the producer began to send, or was to begin by its schedule.
    pub(crate) sent_ns: u64,
    pub(crate) producer: u32,
    pub(crate) partition: u32,
}

/// Writes and checks values of one size; the bytes behind the fields are the same in all of them.
#[derive(Debug, Clone)]
pub(crate) struct PayloadCodec {
    filler: Vec<u8>,
}

impl PayloadCodec {
    /// Makes a codec for values of `value_bytes`, at least [`FIELD_BYTES`].
    pub(crate) fn new(value_bytes: usize) -> Self {
        let filler_bytes = value_bytes.checked_sub(FIELD_BYTES).expect("a value is as long as its fields");
        // A multiplicative generator: bytes that do not repeat, so that a shifted value is noticed.
        let mut state = 0x9e37_79b9_u32;
        let mut next = || {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 24) as u8
        };
        Self { filler: (0..filler_bytes).map(|_| next()).collect() }
    }

    /// Makes one whose values have zeros in the second half.
    pub(crate) fn half_random(value_bytes: usize) -> Self {
        let mut codec = Self::new(value_bytes);
        let random = codec.filler.len() / 2;
        codec.filler[random..].fill(0);
        codec
    }

    pub(crate) fn value_bytes(&self) -> usize {
        FIELD_BYTES + self.filler.len()
    }

    pub(crate) fn write(&self, writer: &mut Writer, payload: Payload) {
        writer.raw(&payload.sequence.to_be_bytes());
        writer.raw(&payload.sent_ns.to_be_bytes());
        writer.raw(&payload.producer.to_be_bytes());
        writer.raw(&payload.partition.to_be_bytes());
        writer.raw(&self.filler);
    }

    /// Returns the fields of a value, after comparing its size and all its filler.
    pub(crate) fn check(&self, value: &[u8]) -> Result<Payload> {
        let expected = self.value_bytes();
        ensure!(value.len() == expected, "a value of {} bytes, sent with {expected}", value.len());
        let (fields, filler) = value.split_at(FIELD_BYTES);
        ensure!(filler == self.filler, "a value whose filler has changed");
        let mut reader = Reader::new(fields);
        Ok(Payload {
            sequence: reader.u64()?,
            sent_ns: reader.u64()?,
            producer: reader.u32()?,
            partition: reader.u32()?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_come_back_and_any_change_of_the_filler_is_an_error() {
        let codec = PayloadCodec::new(100);
        let payload = Payload { sequence: 7, sent_ns: u64::MAX - 1, producer: 1, partition: 5 };
        let mut writer = Writer::default();
        codec.write(&mut writer, payload);
        assert_eq!(writer.len(), 100);
        assert_eq!(codec.check(writer.as_bytes()).unwrap(), payload);
        for at in FIELD_BYTES..100 {
            let mut value = writer.as_bytes().to_vec();
            value[at] ^= 1;
            assert!(codec.check(&value).is_err(), "byte {at}");
        }
        assert!(codec.check(&writer.as_bytes()[..99]).is_err());
    }
}
