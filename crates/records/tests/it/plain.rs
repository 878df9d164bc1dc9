//! Plain batches: what the builder makes is what the view, the walk and the iterator find.
use mainstem_records::*;

const NOW: i64 = 1_700_000_000_000;

fn two_records() -> Vec<u8> {
    let mut builder = BatchBuilder::new(BatchOptions {
        producer: ProducerFields { producer_id: 7, producer_epoch: 3, base_sequence: i32::MAX },
        ..BatchOptions::default()
    });
    let headers = [
        Header { key: b"h", value: Some(b"1") },
        Header { key: b"h", value: None },
        Header { key: b"", value: Some(b"") },
    ];
    builder.append(NOW, Some(b"key"), Some(b"value"), &headers).unwrap();
    builder.append(NOW - 5, None, None, &[]).unwrap();
    builder.build().unwrap()
}

#[test]
fn fields_records_and_headers_come_back() {
    let bytes = two_records();
    let mut twice = bytes.clone();
    twice.extend_from_slice(&bytes);
    let (batch, rest) = Batch::split_first(&twice).unwrap();
    assert_eq!(rest, bytes);
    assert!(batch.verify_crc());
    assert_eq!(
        (batch.base_offset(), batch.last_offset(), batch.next_offset(), batch.record_count()),
        (0, 1, 2, 2)
    );
    assert_eq!((batch.base_timestamp(), batch.max_timestamp()), (NOW, NOW));
    assert_eq!((batch.producer_id(), batch.producer_epoch()), (7, 3));
    assert_eq!((batch.base_sequence(), batch.last_sequence()), (i32::MAX, 0), "sequence numbers wrap to 0");

    let mut buffer = Vec::new();
    let records: Vec<_> =
        batch.records(&mut buffer, 0, &mut Scratch::new()).unwrap().collect::<Result<_, _>>().unwrap();
    assert_eq!((records[0].offset, records[0].timestamp), (0, NOW));
    assert_eq!((records[0].key, records[0].value), (Some(&b"key"[..]), Some(&b"value"[..])));
    let headers: Vec<_> = records[0].headers.collect();
    assert_eq!(headers.len(), 3, "duplicate keys are kept");
    assert_eq!((headers[0].key, headers[0].value), (&b"h"[..], Some(&b"1"[..])));
    assert_eq!(records[0].headers.last_with_key(b"h").unwrap().value, None);
    assert_eq!((records[1].offset, records[1].timestamp), (1, NOW - 5));
    assert_eq!((records[1].key, records[1].value, records[1].headers.len()), (None, None, 0));
}

#[test]
fn a_header_is_read_without_its_records() {
    let bytes = two_records();
    let (batch, _) = Batch::split_first(&bytes).unwrap();
    let header = BatchHeader::read(&bytes[..HEADER_BYTES]).unwrap();
    assert_eq!(header, batch.header());
    assert_eq!((header.size, header.crc), (bytes.len(), batch.crc()));
    assert_eq!((header.last_offset(), header.next_offset(), header.last_sequence()), (1, 2, 0));
    for available in 0..HEADER_BYTES {
        let error = BatchHeader::read(&bytes[..available]).unwrap_err();
        assert_eq!(error, BatchError::Truncated { needed: HEADER_BYTES, available });
    }
}

#[test]
fn validation_tells_the_log_the_maximum_timestamp() {
    let bytes = two_records();
    let (batch, _) = Batch::split_first(&bytes).unwrap();
    let valid = validate(batch, &ValidationRules::client(NOW), &mut Scratch::new()).unwrap();
    assert_eq!((valid.max_timestamp, valid.offset_delta_of_max_timestamp), (NOW, 0));
    assert_eq!(valid.rewrite, Rewrite::None);
}

#[test]
fn a_stamp_changes_neither_crc_nor_records() {
    let bytes = two_records();
    let (batch, _) = Batch::split_first(&bytes).unwrap();
    let mut stored = stamp_header(&batch, 1_000, 42).to_vec();
    stored.extend_from_slice(&bytes[STAMP_BYTES..]);
    let (stored, _) = Batch::split_first(&stored).unwrap();
    assert!(stored.verify_crc());
    assert_eq!(
        (stored.base_offset(), stored.next_offset(), stored.partition_leader_epoch()),
        (1_000, 1_002, 42)
    );
    assert_eq!(stored.payload(), batch.payload());
}

#[test]
fn log_append_time_stands_for_every_record() {
    let bytes = two_records();
    let (batch, _) = Batch::split_first(&bytes).unwrap();
    let mut stored = Vec::new();
    rewrite_log_append_time(&batch, NOW + 9, &mut stored);
    let (stored, _) = Batch::split_first(&stored).unwrap();
    assert!(stored.verify_crc());
    assert_eq!(stored.attributes().timestamp_type(), TimestampType::LogAppendTime);
    let mut buffer = Vec::new();
    for record in stored.records(&mut buffer, 0, &mut Scratch::new()).unwrap() {
        assert_eq!(record.unwrap().timestamp, NOW + 9);
    }
}

#[test]
fn end_transaction_markers_round_trip() {
    for committed in [false, true] {
        let marker = EndTransactionMarker { committed, coordinator_epoch: CoordinatorEpoch::new(17) };
        let bytes = end_transaction_batch(99, 4, marker, NOW);
        let (batch, _) = Batch::split_first(&bytes).unwrap();
        assert!(batch.attributes().is_control() && batch.attributes().is_transactional());
        assert_eq!(
            (batch.producer_id(), batch.producer_epoch(), batch.base_sequence()),
            (99, 4, NO_SEQUENCE)
        );
        let mut buffer = Vec::new();
        let record = batch.records(&mut buffer, 0, &mut Scratch::new()).unwrap().next().unwrap().unwrap();
        assert_eq!(EndTransactionMarker::parse(record.key, record.value).unwrap(), Some(marker));
    }
}
