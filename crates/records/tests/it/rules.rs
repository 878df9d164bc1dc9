//! The rules of validation, one by one, with the error that Kafka answers.

use mainstem_records::*;

const NOW: i64 = 1_700_000_000_000;

const ATTRIBUTES: usize = 21;
const LAST_OFFSET_DELTA: usize = 23;
const MAX_TIMESTAMP: usize = 35;
const PRODUCER_ID: usize = 43;
const PRODUCER_EPOCH: usize = 51;
const BASE_SEQUENCE: usize = 53;
const RECORD_COUNT: usize = 57;

fn batch_of(records: &[(i64, Option<&[u8]>)], options: BatchOptions) -> Vec<u8> {
    let mut builder = BatchBuilder::new(options);
    for (timestamp, key) in records {
        builder.append(*timestamp, *key, Some(b"value"), &[]).unwrap();
    }
    builder.build().unwrap()
}

fn plain() -> Vec<u8> {
    batch_of(&[(NOW, Some(b"a")), (NOW, Some(b"b"))], BatchOptions::default())
}

/// Overwrites header bytes and renews the CRC, as a faulty client would.
fn with(mut bytes: Vec<u8>, at: usize, value: &[u8]) -> Vec<u8> {
    bytes[at..at + value.len()].copy_from_slice(value);
    fuzz::seal(&bytes[ATTRIBUTES..])
}

fn rules() -> ValidationRules {
    ValidationRules::client(NOW)
}

fn outcome(bytes: &[u8], rules: &ValidationRules) -> Result<(), InvalidBatch> {
    let (batch, _) = Batch::split_first(bytes)?;
    validate(batch, rules, &mut Scratch::new()).map(|_| ())
}

#[track_caller]
fn check(bytes: &[u8], rules: &ValidationRules, expected: Result<(), (KafkaError, &str)>) {
    match (outcome(bytes, rules), expected) {
        (Ok(()), Ok(())) => {}
        (Err(error), Err((kafka_error, words))) => {
            assert_eq!(error.kafka_error(), kafka_error, "{error}");
            assert!(error.to_string().contains(words), "{error}");
        }
        (found, expected) => panic!("expected {expected:?}, found {found:?}"),
    }
}

#[test]
fn framing() {
    let invalid_record = |words| Err((KafkaError::InvalidRecord, words));
    let corrupt = |words| Err((KafkaError::CorruptMessage, words));
    check(&plain()[..100.min(plain().len() - 1)], &rules(), invalid_record("cut off"));
    check(&[], &rules(), invalid_record("cut off"));
    for (length, expected) in [
        (i32::MAX, invalid_record("cut off")),
        (48, corrupt("below the minimum")),
        (0, corrupt("below the minimum")),
        (-1, corrupt("below the minimum")),
        (i32::MIN, corrupt("below the minimum")),
    ] {
        let mut bytes = plain();
        bytes[8..12].copy_from_slice(&length.to_be_bytes());
        check(&bytes, &rules(), expected);
    }
    for (magic, expected) in [
        (0, invalid_record("magic version 2")),
        (1, invalid_record("magic version 2")),
        (3, corrupt("unknown magic byte 3")),
        (-1, corrupt("unknown magic byte -1")),
    ] {
        let mut bytes = plain();
        bytes[16] = magic as i8 as u8;
        check(&bytes, &rules(), expected);
    }
    let mut bytes = plain();
    bytes[70] ^= 1;
    check(&bytes, &rules(), corrupt("computed crc"));
}

#[test]
fn header_of_a_producer() {
    let refused = |words| Err((KafkaError::InvalidRecord, words));
    let mut moved = plain();
    moved[7] = 5;
    check(&moved, &rules(), refused("should be 0, but it is 5"));
    check(
        &with(plain(), RECORD_COUNT, &3i32.to_be_bytes()),
        &rules(),
        refused("inconsistent batch offset range"),
    );
    check(&with(plain(), RECORD_COUNT, &0i32.to_be_bytes()), &rules(), refused("invalid reported count"));
    check(&with(plain(), RECORD_COUNT, &(-1i32).to_be_bytes()), &rules(), refused("has -1 records"));
    check(
        &with(plain(), LAST_OFFSET_DELTA, &(-1i32).to_be_bytes()),
        &rules(),
        refused("last offset delta -1"),
    );
    check(&with(plain(), LAST_OFFSET_DELTA, &i32::MAX.to_be_bytes()), &rules(), refused("inconsistent"));
    check(&with(plain(), ATTRIBUTES, &0x20i16.to_be_bytes()), &rules(), refused("control records"));
    check(&with(plain(), ATTRIBUTES, &0x10i16.to_be_bytes()), &rules(), refused("without a producer id"));
    for id in 5..8i16 {
        let unknown = Err((KafkaError::UnsupportedCompressionType, "unknown compression type"));
        check(&with(plain(), ATTRIBUTES, &id.to_be_bytes()), &rules(), unknown);
    }
}

#[test]
fn producer_fields() {
    let refused = |words| Err((KafkaError::InvalidRecord, words));
    let producer = |producer_id, producer_epoch, base_sequence| {
        let fields = ProducerFields { producer_id, producer_epoch, base_sequence };
        batch_of(&[(NOW, None)], BatchOptions { producer: fields, ..BatchOptions::default() })
    };
    check(&producer(0, 0, 0), &rules(), Ok(()));
    check(&producer(7, 1, i32::MAX), &rules(), Ok(()));
    check(&producer(NO_PRODUCER_ID, NO_PRODUCER_EPOCH, NO_SEQUENCE), &rules(), Ok(()));
    check(&producer(7, 1, NO_SEQUENCE), &rules(), refused("invalid sequence number -1"));
    check(&producer(7, -1, 0), &rules(), refused("invalid producer epoch -1"));
    let fields = ProducerFields { producer_id: 7, producer_epoch: 0, base_sequence: 0 };
    let options = BatchOptions { producer: fields, is_transactional: true, ..BatchOptions::default() };
    check(&batch_of(&[(NOW, None)], options), &rules(), Ok(()));
    let offsets = [(PRODUCER_ID, 8), (PRODUCER_EPOCH, 2), (BASE_SEQUENCE, 4)];
    assert!(offsets.windows(2).all(|pair| pair[0].0 + pair[0].1 == pair[1].0), "the fields are neighbours");
}

#[test]
fn only_brokers_write_control_records() {
    let marker = EndTransactionMarker { committed: true, coordinator_epoch: CoordinatorEpoch::new(1) };
    let bytes = end_transaction_batch(7, 0, marker, NOW);
    check(&bytes, &rules(), Err((KafkaError::InvalidRecord, "control records")));
    for origin in [Origin::Coordinator, Origin::Replication] {
        check(&bytes, &ValidationRules { origin, ..rules() }, Ok(()));
    }
}

#[test]
fn compacted_topics_want_keys() {
    let compacted = ValidationRules { key_required: true, ..rules() };
    for compression in Compression::ALL {
        let options = BatchOptions { compression, ..BatchOptions::default() };
        let keyed = batch_of(&[(NOW, Some(b"a")), (NOW, Some(b""))], options.clone());
        check(&keyed, &compacted, Ok(()));
        let bytes = batch_of(&[(NOW, Some(b"a")), (NOW, None), (NOW, Some(b"")), (NOW, None)], options);
        check(&bytes, &rules(), Ok(()));
        let error = outcome(&bytes, &compacted).unwrap_err();
        assert_eq!(error.kafka_error(), KafkaError::InvalidRecord);
        let indexes: Vec<_> = error.record_errors().iter().map(|record| record.index).collect();
        assert_eq!(indexes, [1, 3], "every record at fault is named");
    }
}

#[test]
fn timestamps_stay_within_the_bounds() {
    let bounded = ValidationRules { timestamp_before_max_ms: 1_000, timestamp_after_max_ms: 100, ..rules() };
    let late = Err((KafkaError::InvalidTimestamp, "rejected due to invalid timestamp"));
    for (timestamp, expected) in [
        (NOW - 1_000, Ok(())),
        (NOW - 1_001, late),
        (NOW + 100, Ok(())),
        (NOW + 101, late),
        (NO_TIMESTAMP, Ok(())),
        (0, late),
        (i64::MAX, late),
    ] {
        for compression in [Compression::None, Compression::Lz4] {
            let options = BatchOptions { compression, ..BatchOptions::default() };
            let bytes = batch_of(&[(timestamp, None)], options);
            check(&bytes, &bounded, expected);
            check(
                &bytes,
                &ValidationRules { timestamp_type: TimestampType::LogAppendTime, ..bounded.clone() },
                Ok(()),
            );
        }
    }
    let mixed = batch_of(&[(NOW, None), (NOW + 101, Some(b"k"))], BatchOptions::default());
    let error = outcome(&mixed, &ValidationRules { key_required: true, ..bounded }).unwrap_err();
    assert_eq!(error.kafka_error(), KafkaError::InvalidTimestamp, "it outranks the missing key, as in Kafka");
    assert_eq!(error.record_errors().len(), 2);
    assert!(error.record_errors()[1].message.contains("within ["), "{error:?}");
}

#[test]
fn record_errors_are_bounded() {
    let records = vec![(NOW, None); 1_000];
    let compacted = ValidationRules { key_required: true, ..rules() };
    let error = outcome(&batch_of(&records, BatchOptions::default()), &compacted).unwrap_err();
    assert_eq!(error.record_errors().len(), InvalidBatch::RECORD_ERRORS_MAX);
    assert!(matches!(error, InvalidBatch::Records { count: 1_000, .. }));
}

#[test]
fn producers_do_not_set_log_append_time() {
    let bytes =
        batch_of(&[(NOW, None)], BatchOptions { log_append_time: Some(NOW), ..BatchOptions::default() });
    for timestamp_type in [TimestampType::CreateTime, TimestampType::LogAppendTime] {
        let rules = ValidationRules { timestamp_type, ..rules() };
        check(&bytes, &rules, Err((KafkaError::InvalidTimestamp, "invalid timestamp")));
        check(&bytes, &ValidationRules { origin: Origin::Replication, ..rules }, Ok(()));
    }
}

#[test]
fn a_wrong_maximum_timestamp_is_put_right() {
    let bytes = with(plain(), MAX_TIMESTAMP, &(NOW + 77).to_be_bytes());
    let (batch, _) = Batch::split_first(&bytes).unwrap();
    let valid = validate(batch, &rules(), &mut Scratch::new()).unwrap();
    assert_eq!((valid.rewrite, valid.max_timestamp), (Rewrite::MaxTimestamp, NOW));
    let mut stored = Vec::new();
    rewrite_max_timestamp(&batch, valid.max_timestamp, &mut stored);
    assert_eq!(stored, plain());
}

#[test]
fn log_append_time_is_what_the_log_indexes() {
    let rules = ValidationRules { timestamp_type: TimestampType::LogAppendTime, ..rules() };
    for (compression, delta) in [(Compression::None, 1), (Compression::Gzip, 0)] {
        let options = BatchOptions { compression, ..BatchOptions::default() };
        let bytes = batch_of(&[(0, None), (5, None)], options);
        let (batch, _) = Batch::split_first(&bytes).unwrap();
        let valid = validate(batch, &rules, &mut Scratch::new()).unwrap();
        assert_eq!(valid.rewrite, Rewrite::LogAppendTime);
        assert_eq!((valid.max_timestamp, valid.offset_delta_of_max_timestamp), (NOW, delta));
    }
}

#[test]
fn holes_are_for_compacted_batches_on_replicas() {
    let mut builder = BatchBuilder::new(BatchOptions { base_offset: 500, ..BatchOptions::default() });
    builder.append_at(0, NOW, None, None, &[]).unwrap();
    builder.append_at(7, NOW, None, None, &[]).unwrap();
    assert_eq!(
        builder.append_at(7, NOW, None, None, &[]),
        Err(BuildError::OffsetOrder { previous: 7, delta: 7 })
    );
    let bytes = builder.build().unwrap();
    let replication = ValidationRules { origin: Origin::Replication, ..rules() };
    check(&bytes, &replication, Ok(()));
    for origin in [Origin::Client, Origin::Coordinator] {
        check(
            &bytes,
            &ValidationRules { origin, ..rules() },
            Err((KafkaError::InvalidRecord, "inconsistent")),
        );
    }
    let emptied = with(plain()[..HEADER_BYTES].to_vec(), RECORD_COUNT, &0i32.to_be_bytes());
    check(&emptied, &replication, Ok(()));
    check(
        &with(plain(), RECORD_COUNT, &9i32.to_be_bytes()),
        &replication,
        Err((KafkaError::InvalidRecord, "fit")),
    );
}

/// One record after the header, byte by byte.
#[test]
fn structure_of_records() {
    let sealed = |count: i32, records: &[u8]| {
        let mut bytes = plain()[..HEADER_BYTES].to_vec();
        bytes.extend_from_slice(records);
        let bytes = with(bytes, RECORD_COUNT, &count.to_be_bytes());
        with(bytes, LAST_OFFSET_DELTA, &(count - 1).to_be_bytes())
    };
    let refused = |words| Err((KafkaError::InvalidRecord, words));
    // length, attributes, timestamp delta, offset delta, key, value, header count
    let good = [12, 0, 0, 0, 1, 1, 0];
    type Case<'a> = (i32, &'a [u8], Result<(), (KafkaError, &'a str)>);
    let cases: &[Case<'_>] = &[
        (1, &good, Ok(())),
        (1, &[], refused("ends within")),
        (2, &good, refused("ends within")),
        (1, &[&good[..], &good[..]].concat(), refused("bytes follow")),
        (2, &[&good[..], &good[..]].concat(), refused("out of order")),
        (1, &[12, 0, 0, 2, 1, 1, 0], refused("out of order")),
        (1, &[12, 0, 0, 1, 1, 1, 0], refused("out of order")),
        (1, &[1, 0, 0, 0, 1, 1, 0], refused("length is negative")),
        (1, &[14, 0, 0, 0, 1, 1, 0], refused("larger than what remains")),
        (1, &[10, 0, 0, 0, 1, 1, 0], refused("do not end")),
        (1, &[14, 0, 0, 0, 1, 1, 0, 0], refused("do not end")),
        (1, &[12, 0, 0, 0, 80, 1, 0], refused("longer than the record")),
        (1, &[12, 0, 0, 0, 1, 80, 0], refused("longer than the record")),
        (1, &[12, 0, 0, 0, 1, 1, 1], refused("headers is negative")),
        (1, &[12, 0, 0, 0, 1, 1, 2], refused("as many headers")),
        (1, &[16, 0, 0, 0, 1, 1, 2, 1, 1], refused("a header has no key")),
        (1, &[16, 0, 0, 0, 1, 1, 2, 0, 1], Ok(())),
        (1, &[0xff, 0xff, 0xff, 0xff, 0xff, 0xff], refused("longer than five bytes")),
        // Kafka reads any negative length as null
        (1, &[12, 0, 0, 0, 3, 5, 0], Ok(())),
    ];
    for (count, records, expected) in cases {
        // base and maximum timestamp are NOW, and so is that of a record with delta 0
        check(&sealed(*count, records), &rules(), *expected);
    }
}
