//! Input that the decoders take and refuse, beyond what Kafka's own writers make.

use mainstem_records::*;
use std::hash::Hasher;
use std::io::Write;
use twox_hash::XxHash32;

const NOW: i64 = 1_700_000_000_000;
const ATTRIBUTES: usize = 21;
const LIMIT: usize = 64 << 20;

/// A plain batch of one record with a value of `bytes` zeroes, and its records' bytes.
fn zeroes(bytes: usize) -> (Vec<u8>, Vec<u8>) {
    let mut builder = BatchBuilder::new(BatchOptions::default());
    builder.append(NOW, None, Some(&vec![0; bytes]), &[]).unwrap();
    let batch = builder.build().unwrap();
    let records = batch[HEADER_BYTES..].to_vec();
    (batch, records)
}

/// `batch` with `payload` as its records, compressed by `compression` as the header says.
fn with_payload(batch: &[u8], compression: Compression, payload: &[u8]) -> Vec<u8> {
    let mut rest = batch[ATTRIBUTES..HEADER_BYTES].to_vec();
    rest[1] = compression.id();
    rest.extend_from_slice(payload);
    fuzz::seal(&rest)
}

fn validated(bytes: &[u8], limit: usize) -> Result<usize, InvalidBatch> {
    let mut scratch = Scratch::new();
    let (batch, _) = Batch::split_first(bytes)?;
    let rules = ValidationRules { decompressed_bytes_max: limit, ..ValidationRules::client(NOW) };
    validate(batch, &rules, &mut scratch)?;
    let mut buffer = Vec::new();
    let record = batch.records(&mut buffer, limit, &mut scratch)?.next().unwrap()?;
    assert!(scratch.held_bytes() <= Scratch::KEPT_BYTES_MAX, "{scratch:?}");
    Ok(record.value.unwrap().len())
}

#[track_caller]
fn accepts(compression: Compression, batch: &[u8], payload: &[u8], value_bytes: usize) {
    assert_eq!(validated(&with_payload(batch, compression, payload), LIMIT), Ok(value_bytes));
}

#[track_caller]
fn refuses(compression: Compression, batch: &[u8], payload: &[u8], words: &str) {
    let error = validated(&with_payload(batch, compression, payload), LIMIT).unwrap_err();
    assert_eq!(error.kafka_error(), KafkaError::InvalidRecord, "{error}");
    assert!(error.to_string().contains(words), "{error}");
}

#[test]
fn snappy_in_every_shape() {
    let codec = Compression::Snappy;
    let (batch, records) = zeroes(200_000);
    let raw = |bytes: &[u8]| snap::raw::Encoder::new().compress_vec(bytes).unwrap();
    let header = [&b"\x82SNAPPY\0"[..], &1i32.to_be_bytes(), &1i32.to_be_bytes()].concat();
    let block = |bytes: &[u8]| [&(raw(bytes).len() as i32).to_be_bytes()[..], &raw(bytes)].concat();
    let (first, second) = records.split_at(70_000);

    accepts(codec, &batch, &raw(&records), 200_000);
    accepts(codec, &batch, &[&header[..], &block(first), &block(second)].concat(), 200_000);
    accepts(codec, &batch, &[&header[..], &block(first), &block(b""), &block(second)].concat(), 200_000);
    accepts(codec, &batch, &[&header[..], &block(first), &header, &block(second)].concat(), 200_000);

    refuses(codec, &batch, &[&header[..], &block(first)].concat(), "ends within the record");
    refuses(codec, &batch, &[&header[..], &block(&records), &[0, 0]].concat(), "cut off");
    refuses(codec, &batch, &[&header[..], &i32::MAX.to_be_bytes(), &raw(&records)].concat(), "cut off");
    refuses(codec, &batch, &header[..12], "cut off");
    refuses(codec, &batch, b"\xff\xff\xff\xff\x0f\0a", "more bytes than it can hold");
    let version_0 = [&header[..8], &0i32.to_be_bytes(), &1i32.to_be_bytes(), &block(&records)].concat();
    refuses(codec, &batch, &version_0, "framing version 0");
    refuses(codec, &batch, &[&block(&records)[..]].concat(), "snappy");
}

/// The properties of an LZ4 frame of these tests.
#[derive(Clone, Copy, Default)]
struct Lz4 {
    flags: u8,
    block_bytes: usize,
    wrong_block_checksum: bool,
    wrong_content_checksum: bool,
    wrong_header_checksum: bool,
    wrong_content_size: bool,
}

impl Lz4 {
    fn frame(self, bytes: &[u8]) -> Vec<u8> {
        let block_bytes = if self.block_bytes == 0 { 64 << 10 } else { self.block_bytes };
        let descriptor = ((block_bytes.trailing_zeros() as u8 - 8) / 2) << 4;
        let mut frame = 0x184D_2204u32.to_le_bytes().to_vec();
        frame.extend_from_slice(&[0x60 ^ self.flags, descriptor]);
        if self.flags & 0x08 != 0 {
            let size = bytes.len() as u64 + u64::from(self.wrong_content_size);
            frame.extend_from_slice(&size.to_le_bytes());
        }
        let checksum = (XxHash32::oneshot(0, &frame[4..]) >> 8) as u8;
        frame.push(checksum ^ u8::from(self.wrong_header_checksum));
        for block in bytes.chunks(block_bytes) {
            let compressed = lz4_flex::block::compress(block);
            frame.extend_from_slice(&(compressed.len() as u32).to_le_bytes());
            frame.extend_from_slice(&compressed);
            if self.flags & 0x10 != 0 {
                let checksum = XxHash32::oneshot(0, &compressed) ^ u32::from(self.wrong_block_checksum);
                frame.extend_from_slice(&checksum.to_le_bytes());
            }
        }
        frame.extend_from_slice(&0u32.to_le_bytes());
        if self.flags & 0x04 != 0 {
            let mut hash = XxHash32::with_seed(0);
            hash.write(bytes);
            let checksum = hash.finish_32() ^ u32::from(self.wrong_content_checksum);
            frame.extend_from_slice(&checksum.to_le_bytes());
        }
        frame
    }
}

#[test]
fn lz4_frames_in_every_shape() {
    let codec = Compression::Lz4;
    let (batch, records) = zeroes(300_000);
    for flags in [0x00, 0x04, 0x08, 0x10, 0x1c] {
        for block_bytes in [64 << 10, 256 << 10, 1 << 20, 4 << 20] {
            let frame = Lz4 { flags, block_bytes, ..Lz4::default() }.frame(&records);
            accepts(codec, &batch, &frame, 300_000);
        }
    }
    let frame = |lz4: Lz4| lz4.frame(&records);
    let wrong = |lz4: Lz4, words| refuses(codec, &batch, &lz4.frame(&records), words);
    wrong(Lz4 { flags: 0x10, wrong_block_checksum: true, ..Lz4::default() }, "block checksum");
    wrong(Lz4 { flags: 0x04, wrong_content_checksum: true, ..Lz4::default() }, "content checksum");
    wrong(Lz4 { flags: 0x08, wrong_content_size: true, ..Lz4::default() }, "content size");
    wrong(Lz4 { wrong_header_checksum: true, ..Lz4::default() }, "descriptor checksum");
    wrong(Lz4 { flags: 0x20, ..Lz4::default() }, "dependent blocks");
    wrong(Lz4 { flags: 0x01, ..Lz4::default() }, "dictionary");
    wrong(Lz4 { flags: 0x40, ..Lz4::default() }, "frame version");
    wrong(Lz4 { block_bytes: 16 << 10, ..Lz4::default() }, "block descriptor");

    let good = frame(Lz4::default());
    refuses(codec, &batch, &[&good[..], b"x"].concat(), "bytes follow the frame");
    refuses(codec, &batch, &good[..good.len() - 1], "cut off");
    refuses(codec, &batch, &good[..good.len() - 4], "cut off");
    refuses(codec, &batch, b"not a frame", "not an LZ4 frame");
    let mut oversized = good.clone();
    oversized[7..11].copy_from_slice(&0x0010_0000u32.to_le_bytes());
    refuses(codec, &batch, &oversized, "exceeds the frame's block size");
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = flate2::GzBuilder::new()
        .filename("name")
        .comment("comment")
        .extra(vec![1; 300])
        .write(Vec::new(), flate2::Compression::best());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

#[test]
fn gzip_members() {
    let codec = Compression::Gzip;
    let (batch, records) = zeroes(100_000);
    let (first, second) = records.split_at(50_000);
    accepts(codec, &batch, &gzip(&records), 100_000);
    accepts(codec, &batch, &[gzip(first), gzip(b""), gzip(second)].concat(), 100_000);

    let good = gzip(&records);
    refuses(codec, &batch, &[&good[..], b"trailing bytes"].concat(), "not a gzip member");
    refuses(codec, &batch, &good[..good.len() - 1], "cut off");
    refuses(codec, &batch, &good[..good.len() / 2], "cut off");
    let mut wrong = good.clone();
    let trailer = wrong.len() - 8;
    wrong[trailer] ^= 1;
    refuses(codec, &batch, &wrong, "checksum or length mismatch");
    refuses(codec, &batch, b"not gzip at all", "not a gzip member");
}

fn zstd_frame(bytes: &[u8], window_log: u32) -> Vec<u8> {
    let mut encoder = zstd::stream::Encoder::new(Vec::new(), 1).unwrap();
    encoder.set_parameter(zstd::zstd_safe::CParameter::WindowLog(window_log)).unwrap();
    encoder.include_checksum(true).unwrap();
    for piece in bytes.chunks(64 << 10) {
        encoder.write_all(piece).unwrap();
    }
    encoder.finish().unwrap()
}

#[test]
fn zstd_frames_and_windows() {
    let codec = Compression::Zstd;
    for size in [0, 1_000, 200_000, 5_000_000] {
        let (batch, records) = zeroes(size);
        for window_log in [17, 21, 23, 27] {
            accepts(codec, &batch, &zstd_frame(&records, window_log), size);
        }
        let (first, second) = records.split_at(records.len() / 2);
        let two = [zstd_frame(first, 19), zstd_frame(b"", 19), zstd_frame(second, 19)].concat();
        accepts(codec, &batch, &two, size);
    }
    let (batch, records) = zeroes(300_000);
    let good = zstd_frame(&records, 21);
    refuses(codec, &batch, &good[..good.len() - 1], "cut off");
    refuses(codec, &batch, &[&good[..], b"trailing bytes"].concat(), "zstd");
    refuses(codec, &batch, b"not zstd at all", "zstd");
}

/// A window that is declared beyond 8 MiB is fine as long as the content is not.
#[test]
fn zstd_content_beyond_the_window_bound() {
    let (batch, records) = zeroes(9 << 20);
    accepts(Compression::Zstd, &batch, &zstd_frame(&records, 23), 9 << 20);
    let wide = with_payload(&batch, Compression::Zstd, &zstd_frame(&records, 27));
    assert_eq!(validated(&wide, LIMIT).unwrap_err().kafka_error(), KafkaError::MessageTooLarge);
}

#[test]
fn the_bound_is_exact() {
    let (batch, records) = zeroes(100_000);
    let mut scratch = Scratch::new();
    for compression in [Compression::Gzip, Compression::Snappy, Compression::Lz4, Compression::Zstd] {
        let source = Batch::split_first(&batch).unwrap().0;
        let recompression = Recompression { compression, level: None, decompressed_bytes_max: LIMIT };
        let mut out = Vec::new();
        recompress(&source, &recompression, &mut out, &mut scratch).unwrap();
        assert_eq!(validated(&out, records.len()), Ok(100_000), "{compression:?}");
        let limit = records.len() - 1;
        assert_eq!(validated(&out, limit), Err(InvalidBatch::TooLarge { limit }), "{compression:?}");
    }
}
