//! The work that reading takes, counted.

#![allow(clippy::unwrap_used, reason = "a test that fails says so by a panic")]

use std::path::Path;

use mainstem_records::{BatchBuilder, BatchOptions, Compression};

use super::work;
use crate::{Options, Queue, Start, repair};

/// A queue of compressed batches of so many records each.
fn compressed(directory: &Path, batches: i64, records: i64) -> Queue {
    let mut log = Vec::new();
    for batch in 0..batches {
        let options = BatchOptions {
            compression: Compression::Lz4,
            base_offset: batch * records,
            partition_leader_epoch: 0,
            ..BatchOptions::default()
        };
        let mut builder = BatchBuilder::new(options);
        (0..records).for_each(|_| builder.append(1, None, Some(b"value"), &[]).unwrap());
        builder.finish(&mut log).unwrap();
    }
    std::fs::write(directory.join(format!("{:020}.log", 0)), log).unwrap();
    repair(directory, &Options::new()).unwrap();
    Queue::open(directory).unwrap()
}

#[test]
fn each_record_is_decoded_twice_at_most_and_each_batch_decompressed_once() {
    for (batches, records) in [(300, 1), (300, 2), (30, 500), (3, 1_024), (3, 1_025), (2, 10_000)] {
        let dir = tempfile::tempdir().unwrap();
        let queue = compressed(dir.path(), batches, records);
        let total = batches * records;
        let mut reader = queue.reader(Start::Latest).unwrap();
        let (decoded, decompressed) = work::of(|| {
            for offset in (0..total).rev() {
                assert_eq!(reader.read_back().unwrap().unwrap().offset(), offset);
            }
            assert!(reader.read_back().unwrap().is_none());
        });
        assert!(decoded <= 2 * total as u64, "{decoded} for {batches} batches of {records} records");
        assert_eq!(decompressed, batches as u64, "of {records} records");
    }
}

#[test]
fn one_that_turns_round_and_round_does_no_more() {
    const RECORDS: i64 = 10_000;
    let dir = tempfile::tempdir().unwrap();
    let queue = compressed(dir.path(), 1, RECORDS);
    let mut reader = queue.reader(Start::Latest).unwrap();
    let mut steps = 0;
    let (decoded, decompressed) = work::of(|| {
        while reader.position() > 3 {
            for _ in 0..3 {
                reader.read_back().unwrap().unwrap();
            }
            for _ in 0..2 {
                reader.read().unwrap().unwrap();
            }
            steps += 5;
        }
        // At the end, where a reader finds nothing in each look.
        while reader.read().unwrap().is_some() {
            steps += 1;
        }
        for _ in 0..1_000 {
            reader.read_back().unwrap().unwrap();
            assert!(reader.read().unwrap().is_some());
            assert!(reader.read().unwrap().is_none());
            steps += 3;
        }
    });
    assert!(decoded <= 2 * steps, "{decoded} of {steps} steps");
    assert_eq!(decompressed, 1);
}
