//! Whatever the builder makes is valid and comes back; whatever happens to its bytes is noticed.

use mainstem_records::*;
use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;
use proptest::sample::{Index, select};
use std::ops::ControlFlow;

const NOW: i64 = 1_700_000_000_000;
const BYTES_MAX: usize = 4 << 20;

#[derive(Debug, Clone, PartialEq)]
struct Owned {
    timestamp: i64,
    key: Option<Vec<u8>>,
    value: Option<Vec<u8>>,
    headers: Vec<(Vec<u8>, Option<Vec<u8>>)>,
}

fn bytes(max: usize) -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        vec(any::<u8>(), 0..max),
        (any::<u8>(), 0..max * 8).prop_map(|(byte, length)| vec![byte; length]),
    ]
}

fn record() -> impl Strategy<Value = Owned> {
    let headers =
        vec((select(vec![b"".to_vec(), b"a".to_vec(), b"trace".to_vec()]), option::of(bytes(12))), 0..4);
    let timestamp = prop_oneof![NOW - 100..NOW + 100, Just(NO_TIMESTAMP), 0..i64::MAX];
    (timestamp, option::of(bytes(20)), option::of(bytes(400)), headers)
        .prop_map(|(timestamp, key, value, headers)| Owned { timestamp, key, value, headers })
}

fn codec() -> impl Strategy<Value = (Compression, Option<i32>)> {
    (select(Compression::ALL.to_vec()), option::weighted(0.3, 1..10i32))
}

fn build(records: &[Owned], options: BatchOptions) -> Vec<u8> {
    let mut builder = BatchBuilder::new(options);
    for record in records {
        let headers: Vec<Header<'_>> =
            record.headers.iter().map(|(key, value)| Header { key, value: value.as_deref() }).collect();
        builder.append(record.timestamp, record.key.as_deref(), record.value.as_deref(), &headers).unwrap();
    }
    builder.build().unwrap()
}

fn read(batch: &Batch<'_>, scratch: &mut Scratch) -> Vec<Owned> {
    let mut buffer = Vec::new();
    let records = batch.records(&mut buffer, BYTES_MAX, scratch).unwrap();
    records
        .enumerate()
        .map(|(index, record)| {
            let record = record.unwrap();
            assert_eq!(record.offset, batch.base_offset() + index as i64);
            Owned {
                timestamp: record.timestamp,
                key: record.key.map(<[u8]>::to_vec),
                value: record.value.map(<[u8]>::to_vec),
                headers: record
                    .headers
                    .map(|header| (header.key.to_vec(), header.value.map(<[u8]>::to_vec)))
                    .collect(),
            }
        })
        .collect()
}

fn any_time() -> ValidationRules {
    ValidationRules {
        timestamp_after_max_ms: i64::MAX,
        decompressed_bytes_max: BYTES_MAX,
        ..ValidationRules::client(NOW)
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: mainstem_testkit::cases(400), failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn built_batches_are_valid_and_come_back(
        records in vec(record(), 1..40),
        (compression, level) in codec(),
        sequence in 0..=i32::MAX,
    ) {
        let producer = ProducerFields { producer_id: 9, producer_epoch: 1, base_sequence: sequence };
        let bytes = build(&records, BatchOptions { compression, level, producer, ..BatchOptions::default() });
        let (batch, rest) = Batch::split_first(&bytes).unwrap();
        prop_assert!(rest.is_empty());
        let mut scratch = Scratch::new();
        let valid = validate(batch, &any_time(), &mut scratch).unwrap();
        let max = records.iter().map(|record| record.timestamp).max().unwrap();
        let first = records.iter().position(|record| record.timestamp == max).unwrap();
        prop_assert_eq!(valid.max_timestamp, max);
        if max >= 0 {
            prop_assert_eq!(valid.offset_delta_of_max_timestamp, first as i32);
        }
        prop_assert_eq!(valid.rewrite, Rewrite::None);
        prop_assert!(read(&batch, &mut scratch) == records);
        let last = (i64::from(sequence) + records.len() as i64 - 1) % (1 << 31);
        prop_assert_eq!(i64::from(batch.last_sequence()), last);
    }

    #[test]
    fn a_search_by_timestamp_finds_the_first(
        records in vec(record(), 1..40),
        (compression, _) in codec(),
        at in any::<Index>(),
        from in 0..20i64,
    ) {
        let bytes = build(&records, BatchOptions { compression, ..BatchOptions::default() });
        let (batch, _) = Batch::split_first(&bytes).unwrap();
        let target = records[at.index(records.len())].timestamp;
        let expected = (0..).zip(&records).find(|(offset, record)| *offset >= from && record.timestamp >= target);
        let found = batch.find_by_timestamp(target, from, BYTES_MAX, &mut Scratch::new()).unwrap();
        prop_assert_eq!(found.map(|found| found.offset), expected.map(|(offset, _)| offset));
        let mut stamps = Vec::new();
        batch.scan(BYTES_MAX, &mut Scratch::new(), |stamp| {
            stamps.push(stamp.timestamp);
            ControlFlow::Continue(())
        }).unwrap();
        prop_assert_eq!(stamps, records.iter().map(|record| record.timestamp).collect::<Vec<_>>());
    }

    #[test]
    fn a_changed_byte_fails_the_crc(
        records in vec(record(), 1..8),
        (compression, _) in codec(),
        at in any::<Index>(),
        flip in 1..=u8::MAX,
    ) {
        let mut bytes = build(&records, BatchOptions { compression, ..BatchOptions::default() });
        let at = 17 + at.index(bytes.len() - 17);
        bytes[at] ^= flip;
        let (batch, _) = Batch::split_first(&bytes).unwrap();
        let error = validate(batch, &any_time(), &mut Scratch::new()).unwrap_err();
        prop_assert_eq!(error.kafka_error(), KafkaError::CorruptMessage);
    }

    #[test]
    fn a_cut_batch_says_what_it_needs(records in vec(record(), 1..8), (compression, _) in codec(), at in any::<Index>()) {
        let bytes = build(&records, BatchOptions { compression, ..BatchOptions::default() });
        let available = at.index(bytes.len());
        match Batch::split_first(&bytes[..available]) {
            Err(BatchError::Truncated { needed, available: found }) => {
                prop_assert_eq!(found, available);
                prop_assert!(needed > available && needed <= bytes.len());
            }
            other => prop_assert!(false, "{:?}", other),
        }
    }

    #[test]
    fn stamps_and_rewrites_keep_records(
        records in vec(record(), 1..8),
        (compression, _) in codec(),
        base_offset in 0..i64::MAX / 2,
        epoch in 0..i32::MAX,
    ) {
        let bytes = build(&records, BatchOptions { compression, ..BatchOptions::default() });
        let (batch, _) = Batch::split_first(&bytes).unwrap();
        let mut stored = stamp_header(&batch, base_offset, epoch).to_vec();
        stored.extend_from_slice(&bytes[STAMP_BYTES..]);
        let (stored, _) = Batch::split_first(&stored).unwrap();
        prop_assert!(stored.verify_crc());
        prop_assert_eq!((stored.base_offset(), stored.partition_leader_epoch()), (base_offset, epoch));
        prop_assert!(read(&stored, &mut Scratch::new()) == records);

        let mut appended = Vec::new();
        rewrite_log_append_time(&batch, NOW, &mut appended);
        let (appended, _) = Batch::split_first(&appended).unwrap();
        prop_assert!(appended.verify_crc());
        let expected: Vec<_> = records.iter().cloned().map(|record| Owned { timestamp: NOW, ..record }).collect();
        prop_assert!(read(&appended, &mut Scratch::new()) == expected);
    }

    #[test]
    fn what_a_filter_keeps_stays_as_it_was(
        records in vec(record(), 1..40),
        mask in vec(any::<bool>(), 40),
        (compression, level) in codec(),
        horizon in option::of(0..2 * NOW),
        log_append_time in option::weighted(0.2, Just(NOW)),
    ) {
        let producer = ProducerFields { producer_id: 9, producer_epoch: 1, base_sequence: 5 };
        let options = BatchOptions {
            compression, level, producer, base_offset: 1000, partition_leader_epoch: 3,
            is_transactional: true, log_append_time, ..BatchOptions::default()
        };
        let bytes = build(&records, options);
        let (batch, _) = Batch::split_first(&bytes).unwrap();
        let mut filter = RecordFilter::new(BYTES_MAX);
        let selection = filter.select(&batch, |record| {
            let index = (record.offset - 1000) as usize;
            assert_eq!(record.key, records[index].key.as_deref());
            assert_eq!(record.has_value, records[index].value.is_some());
            mask[index]
        }).unwrap();
        let kept = || records.iter().zip(&mask).filter(|(_, keep)| **keep).map(|(record, _)| record);
        prop_assert_eq!((selection.count as usize, selection.kept as usize), (records.len(), kept().count()));
        prop_assert_eq!(selection.has_tombstone, kept().any(|record| record.value.is_none()));
        let mut out = b"before".to_vec();
        if selection.kept == 0 {
            out.extend_from_slice(&empty_batch(&batch));
        } else {
            filter.write(&batch, &selection, horizon, &mut out).unwrap();
        }
        let (after, rest) = Batch::split_first(&out[6..]).unwrap();
        prop_assert!(rest.is_empty() && after.verify_crc());
        let frame = |batch: &Batch<'_>| (
            batch.base_offset(), batch.last_offset(), batch.partition_leader_epoch(), batch.producer_id(),
            batch.producer_epoch(), batch.base_sequence(), batch.last_sequence(),
            batch.attributes().is_transactional(), batch.attributes().timestamp_type(),
        );
        prop_assert_eq!(frame(&after), frame(&batch));
        prop_assert_eq!(after.delete_horizon_ms(), horizon.filter(|_| selection.kept > 0));
        let max = kept().map(|record| record.timestamp).max().unwrap_or(batch.max_timestamp());
        prop_assert_eq!(after.max_timestamp(), log_append_time.unwrap_or(max));

        let mut buffer = Vec::new();
        let read = after.records(&mut buffer, BYTES_MAX, &mut Scratch::new()).unwrap();
        let read: Vec<_> = read.map(Result::unwrap).collect();
        let expected = records.iter().zip(&mask).zip(1000..).filter(|((_, keep), _)| **keep);
        prop_assert_eq!(read.len(), selection.kept as usize);
        for (read, ((record, _), offset)) in read.iter().zip(expected) {
            prop_assert_eq!((read.offset, read.key, read.value), (offset, record.key.as_deref(), record.value.as_deref()));
            prop_assert_eq!(read.timestamp, log_append_time.unwrap_or(record.timestamp));
            let headers: Vec<_> = read.headers.map(|h| (h.key.to_vec(), h.value.map(<[u8]>::to_vec))).collect();
            prop_assert_eq!(&headers, &record.headers);
        }
    }
}
