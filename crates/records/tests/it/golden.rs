//! Batches that Kafka 4.3.0's own classes wrote (golden/README.md): this crate reads them, and writes the same.

use mainstem_records::*;
use std::path::{Path, PathBuf};

const NOW: i64 = 1_700_000_000_000;

/// Timestamp, key, value, headers.
type Expected = (i64, Option<Vec<u8>>, Option<Vec<u8>>, Vec<(Vec<u8>, Option<Vec<u8>>)>);

fn small() -> Vec<Expected> {
    let headers = vec![
        (b"h".to_vec(), Some(b"1".to_vec())),
        (b"h".to_vec(), None),
        (b"".to_vec(), Some(b"".to_vec())),
        ("ключ".as_bytes().to_vec(), Some(vec![0, 0xff])),
    ];
    vec![
        (NOW, Some(b"key".to_vec()), Some(b"value".to_vec()), headers),
        (NOW - 5, None, None, vec![]),
        (NOW + 100_000, Some(vec![]), Some(vec![]), vec![]),
    ]
}

fn large() -> Vec<Expected> {
    (0..1000)
        .map(|i| {
            let value = format!("value {i}, ").repeat(i % 50);
            (NOW + i as i64, Some(format!("key-{i}").into_bytes()), Some(value.into_bytes()), vec![])
        })
        .collect()
}

fn golden(name: &str) -> Vec<u8> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("golden").join(format!("{name}.batch"));
    std::fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn check_reads(name: &str, bytes: &[u8], expected: &[Expected]) {
    let (batch, rest) = Batch::split_first(bytes).unwrap();
    assert!(rest.is_empty(), "{name}");
    let mut scratch = Scratch::new();
    let mut rules = ValidationRules::client(NOW);
    rules.decompressed_bytes_max = 1 << 20;
    let valid = validate(batch, &rules, &mut scratch).unwrap_or_else(|error| panic!("{name}: {error}"));
    assert_eq!(valid.rewrite, Rewrite::None, "{name}");
    assert_eq!(valid.max_timestamp, expected.iter().map(|record| record.0).max().unwrap(), "{name}");
    assert_eq!(
        (batch.producer_id(), batch.producer_epoch(), batch.base_sequence()),
        (4242, 7, 100),
        "{name}"
    );
    let mut buffer = Vec::new();
    let found: Vec<Expected> = batch
        .records(&mut buffer, 1 << 20, &mut scratch)
        .unwrap()
        .map(|record| owned(&record.unwrap()))
        .collect();
    assert!(found == expected, "{name}: the records differ");
    assert!(scratch.held_bytes() <= Scratch::KEPT_BYTES_MAX, "{name}: {scratch:?}");
}

fn owned(record: &Record<'_>) -> Expected {
    let headers = record.headers.map(|header| (header.key.to_vec(), header.value.map(<[u8]>::to_vec)));
    (record.timestamp, record.key.map(<[u8]>::to_vec), record.value.map(<[u8]>::to_vec), headers.collect())
}

fn write(compression: Compression, level: Option<i32>, records: &[Expected]) -> Vec<u8> {
    let mut builder = BatchBuilder::new(BatchOptions {
        compression,
        level,
        producer: ProducerFields { producer_id: 4242, producer_epoch: 7, base_sequence: 100 },
        ..BatchOptions::default()
    });
    for (timestamp, key, value, headers) in records {
        let headers: Vec<Header<'_>> =
            headers.iter().map(|(key, value)| Header { key, value: value.as_deref() }).collect();
        builder.append(*timestamp, key.as_deref(), value.as_deref(), &headers).unwrap();
    }
    builder.build().unwrap()
}

#[test]
fn what_java_wrote_is_valid_and_read_back() {
    for codec in Compression::ALL.map(Compression::name) {
        let name = format!("small-{codec}");
        check_reads(&name, &golden(&name), &small());
    }
    for kind in ["gzip", "snappy", "lz4", "zstd", "zstd-level-22", "lz4-level-12"] {
        let name = format!("large-{kind}");
        check_reads(&name, &golden(&name), &large());
    }
}

#[test]
fn plain_bytes_are_those_of_java() {
    assert_eq!(write(Compression::None, None, &small()), golden("small-none"));
}

#[test]
fn markers_are_those_of_java() {
    for (name, committed) in [("marker-abort", false), ("marker-commit", true)] {
        let marker = EndTransactionMarker { committed, coordinator_epoch: CoordinatorEpoch::new(99) };
        let mut bytes = end_transaction_batch(4242, 7, marker, NOW);
        let stamp = stamp_header(&Batch::split_first(&bytes).unwrap().0, 0, 11);
        bytes[..STAMP_BYTES].copy_from_slice(&stamp);
        assert_eq!(bytes, golden(name), "{name}");
    }
}

#[test]
fn old_formats_are_refused() {
    for magic in [0, 1] {
        let error = Batch::split_first(&golden(&format!("magic-{magic}"))).unwrap_err();
        assert_eq!(error, BatchError::OldMagic { magic });
        assert_eq!(error.kafka_error(), KafkaError::InvalidRecord);
    }
}

/// The files stay under `target/tmp/golden`, for Golden.java to read.
#[test]
fn every_codec_and_level_is_written_and_read_back() {
    let dir = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("golden");
    std::fs::create_dir_all(&dir).unwrap();
    let levels = [
        (Compression::None, &[None][..]),
        (Compression::Gzip, &[None, Some(-1), Some(0), Some(1), Some(9)]),
        (Compression::Snappy, &[None]),
        (Compression::Lz4, &[None]),
        (Compression::Zstd, &[None, Some(-5), Some(1), Some(19), Some(22)]),
    ];
    for (compression, levels) in levels {
        for level in levels {
            for (size, records) in [("small", small()), ("large", large())] {
                let name = format!("{size}-{}-{level:?}", compression.name());
                let bytes = write(compression, *level, &records);
                check_reads(&name, &bytes, &records);
                std::fs::write(dir.join(name), bytes).unwrap();
            }
        }
    }
}

/// Levels of one codec from weak to strong: each makes the large batch no larger than the one before.
#[test]
fn levels_have_an_effect() {
    for (compression, levels) in [(Compression::Gzip, &[0, 1, 9][..]), (Compression::Zstd, &[-20, 1, 19])] {
        let sizes: Vec<_> =
            levels.iter().map(|level| write(compression, Some(*level), &large()).len()).collect();
        assert!(sizes.is_sorted_by(|weak, strong| weak > strong), "{compression:?} {levels:?}: {sizes:?}");
    }
}

#[test]
fn recompression_keeps_all_but_the_codec() {
    let mut scratch = Scratch::new();
    for from in Compression::ALL {
        let source = write(from, None, &large());
        let (source, _) = Batch::split_first(&source).unwrap();
        for compression in Compression::ALL {
            let recompression = Recompression { compression, level: None, decompressed_bytes_max: 1 << 20 };
            let mut out = b"before".to_vec();
            recompress(&source, &recompression, &mut out, &mut scratch).unwrap();
            let (batch, _) = Batch::split_first(&out[6..]).unwrap();
            assert_eq!(batch.attributes().compression(), Ok(compression));
            check_reads(&format!("{from:?} to {compression:?}"), &out[6..], &large());

            let too_low = Recompression { decompressed_bytes_max: 1 << 10, ..recompression };
            let mut out = b"before".to_vec();
            let error = recompress(&source, &too_low, &mut out, &mut scratch).unwrap_err();
            assert_eq!(error, RecompressError::Invalid(InvalidBatch::TooLarge { limit: 1 << 10 }));
            assert_eq!(out, b"before", "an error leaves nothing behind");
        }
    }
}
