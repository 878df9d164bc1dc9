//! Bodies for fuzzing: each takes any bytes and asserts what must hold for all of them.

use crate::batch::{
    Batch, Compression, HEADER_BYTES, NO_PARTITION_LEADER_EPOCH, NO_TIMESTAMP, TimestampType,
};
use crate::error::InvalidBatch;
use crate::rewrite::{Recompression, recompress};
use crate::scratch::Scratch;
use crate::validate::{Origin, ValidationRules, validate};

const DECOMPRESSED_BYTES_MAX: usize = 1 << 20;

/// Bytes as they come from a peer: split into batches, each one validated and iterated over.
pub fn split(data: &[u8]) {
    let mut rest = data;
    let mut scratch = Scratch::new();
    while let Ok((batch, behind)) = Batch::split_first(rest) {
        assert_eq!(batch.size() + behind.len(), rest.len());
        assert!(batch.size() >= HEADER_BYTES);
        check(&batch, &mut scratch);
        rest = behind;
    }
}

/// A batch whose length, magic and CRC are right, and everything else is `data`: the header from the attributes
/// on, then the records.
pub fn sealed(data: &[u8]) {
    let bytes = seal(data);
    let Ok((batch, rest)) = Batch::split_first(&bytes) else {
        assert!(bytes.len() < HEADER_BYTES, "a sealed batch of {} bytes is refused", bytes.len());
        return;
    };
    assert!(rest.is_empty() && batch.verify_crc());
    check(&batch, &mut Scratch::new());
}

/// Compressed bytes, the codec named by the first one: a bound holds, and used memory decodes as fresh does.
pub fn decompress(data: &[u8]) {
    let Some((codec, payload)) = data.split_first() else { return };
    let mut header = vec![0; HEADER_BYTES - 21];
    header[1] = codec % 8;
    header.extend_from_slice(payload);
    let bytes = seal(&header);
    let (batch, _) = Batch::split_first(&bytes).expect("a sealed batch has the right length and magic");
    let mut used = Scratch::new();
    let first = decompressed(&batch, &mut used);
    assert_eq!(first, decompressed(&batch, &mut used));
    assert!(first.is_err() || first.is_ok_and(|bytes| bytes.len() <= DECOMPRESSED_BYTES_MAX));
    assert!(used.held_bytes() <= Scratch::KEPT_BYTES_MAX, "{used:?}");
}

fn decompressed(batch: &Batch<'_>, scratch: &mut Scratch) -> Result<Vec<u8>, InvalidBatch> {
    let mut out = Vec::new();
    scratch.with_pieces(batch, DECOMPRESSED_BYTES_MAX, |piece| {
        out.extend_from_slice(piece);
        Ok::<(), InvalidBatch>(())
    })?;
    Ok(out)
}

/// Puts base offset, length, epoch, magic and CRC in front of the rest of a batch.
pub fn seal(rest: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0; 21];
    bytes[8..12].copy_from_slice(&(rest.len() as u32 + 9).to_be_bytes());
    bytes[12..16].copy_from_slice(&NO_PARTITION_LEADER_EPOCH.to_be_bytes());
    bytes[16] = 2;
    bytes[17..21].copy_from_slice(&crc32c::crc32c(rest).to_be_bytes());
    bytes.extend_from_slice(rest);
    bytes
}

fn check(batch: &Batch<'_>, scratch: &mut Scratch) {
    for origin in [Origin::Client, Origin::Coordinator, Origin::Replication] {
        for timestamp_type in [TimestampType::CreateTime, TimestampType::LogAppendTime] {
            let mut rules = ValidationRules::client(1_700_000_000_000);
            rules.origin = origin;
            rules.timestamp_type = timestamp_type;
            rules.decompressed_bytes_max = DECOMPRESSED_BYTES_MAX;
            check_agreement(batch, &rules, scratch);
        }
    }
}

/// Checks that consumers can read a batch to the end that validation accepts, and that it stays valid in any other
/// codec.
fn check_agreement(batch: &Batch<'_>, rules: &ValidationRules, scratch: &mut Scratch) {
    let valid = validate(*batch, rules, scratch);
    let mut buffer = Vec::new();
    let mut records = 0;
    let mut max_timestamp = NO_TIMESTAMP;
    let read = batch.records(&mut buffer, DECOMPRESSED_BYTES_MAX, scratch).and_then(|found| {
        for record in found {
            let record = record?;
            assert_eq!(record.headers.count(), record.headers.len());
            max_timestamp = max_timestamp.max(record.timestamp);
            records += 1;
        }
        Ok(())
    });
    let Ok(valid) = valid else { return };
    assert_eq!(read, Ok(()), "valid, but not readable");
    assert_eq!(records, batch.record_count());
    if rules.timestamp_type == TimestampType::CreateTime && rules.origin != Origin::Replication {
        assert_eq!(valid.max_timestamp, max_timestamp);
    }
    let mut out = Vec::new();
    let recompression = Recompression {
        compression: Compression::Lz4,
        level: None,
        decompressed_bytes_max: DECOMPRESSED_BYTES_MAX,
    };
    recompress(batch, &recompression, &mut out, scratch).expect("a valid batch can be recompressed");
    let (again, _) = Batch::split_first(&out).expect("a recompressed batch is a batch");
    validate(again, rules, scratch).expect("a recompressed batch is as valid as before");
}
