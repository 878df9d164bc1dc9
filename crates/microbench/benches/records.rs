//! Cost of a produced batch before it is written: its checksum, and the validation in one pass.

#![allow(clippy::unwrap_used, reason = "a bench may panic")]

use mainstem_microbench::{Case, Suite};
use mainstem_records::{Batch, BatchBuilder, BatchOptions, Scratch, ValidationRules, validate};

const NOW_MS: i64 = 1_700_000_000_000;

fn main() {
    let mut suite = Suite::from_args("records");
    for (name, records, value_bytes) in
        [("crc_100", 1, 100), ("crc_1024", 1, 1_024), ("crc_512x100", 512, 100)]
    {
        let input = || batch(records, value_bytes);
        suite.measure(Case { name, calls: 1_000 }, input, |bytes| first(bytes).verify_crc());
    }
    let (rules, mut scratch) = (ValidationRules::client(NOW_MS), Scratch::new());
    for (name, records, value_bytes) in
        [("validate_100", 1, 100), ("validate_1024", 1, 1_024), ("validate_512x100", 512, 100)]
    {
        let input = || batch(records, value_bytes);
        suite.measure(Case { name, calls: 200 }, input, |bytes| {
            validate(first(bytes), &rules, &mut scratch).unwrap().max_timestamp
        });
    }
}

fn batch(records: usize, value_bytes: usize) -> Vec<u8> {
    let mut builder = BatchBuilder::new(BatchOptions::default());
    for _ in 0..records {
        builder.append(NOW_MS, None, Some(&vec![b'x'; value_bytes]), &[]).unwrap();
    }
    builder.build().unwrap()
}

fn first(bytes: &[u8]) -> Batch<'_> {
    Batch::split_first(bytes).unwrap().0
}
