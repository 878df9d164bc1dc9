//! Variable-length integers, ids and error codes.

use mainstem_wire::varint::{
    VarintError, len_u64, read_i32, read_i64, read_u32, read_u64, write_i32, write_i64, write_u64,
};
use mainstem_wire::{ErrorCode, Uuid};

#[test]
fn numbers_come_back() {
    for shift in 0..64 {
        for value in [1u64 << shift, (1u64 << shift) - 1, !0 >> shift] {
            let mut bytes = Vec::new();
            write_u64(&mut bytes, value);
            assert_eq!(len_u64(value), bytes.len(), "{value}");
            assert_eq!(read_u64(&bytes), Ok((value, bytes.len())));
            let signed = value as i64;
            bytes.clear();
            write_i64(&mut bytes, signed);
            assert_eq!(read_i64(&bytes), Ok((signed, bytes.len())));
            let narrow = value as i32;
            bytes.clear();
            write_i32(&mut bytes, narrow);
            assert_eq!(read_i32(&bytes), Ok((narrow, bytes.len())));
        }
    }
}

#[test]
fn numbers_beyond_their_width_are_refused() {
    assert_eq!(read_u32(&[0xff, 0xff, 0xff, 0xff, 0x0f]), Ok((u32::MAX, 5)));
    assert_eq!(read_u32(&[0xff, 0xff, 0xff, 0xff, 0x10]), Err(VarintError::TooLong));
    assert_eq!(read_u32(&[0x80, 0x80, 0x80, 0x80, 0x80, 0x00]), Err(VarintError::TooLong));
    assert_eq!(read_u64(&[0xff; 10]), Err(VarintError::TooLong));
    assert_eq!(read_u64(&[0xff; 9]), Err(VarintError::Truncated));
    assert_eq!(read_u32(&[]), Err(VarintError::Truncated));
}

#[track_caller]
fn check(bits: u128, text: &str) {
    assert_eq!(Uuid::from_u128(bits).to_string(), text);
    assert_eq!(text.parse::<Uuid>(), Ok(Uuid::from_u128(bits)));
}

#[test]
fn ids_are_written_as_kafka_writes_them() {
    check(0, "AAAAAAAAAAAAAAAAAAAAAA");
    check(1, "AAAAAAAAAAAAAAAAAAAAAQ");
    check(u128::MAX, "_____________________w");
    check(0x00112233_44556677_8899aabb_ccddeeff, "ABEiM0RVZneImaq7zN3u_w");
}

#[test]
fn other_texts_are_no_ids() {
    for text in ["", "AAAA", "AAAAAAAAAAAAAAAAAAAAA+", "AAAAAAAAAAAAAAAAAAAAAAA", "ä"] {
        assert!(text.parse::<Uuid>().is_err(), "{text}");
    }
    assert_eq!("AAAAAAAAAAAAAAAAAAAAAQ==".parse(), Ok(Uuid::METADATA_TOPIC));
}

#[test]
fn codes_are_dense_and_named() {
    let numbers: Vec<i16> = ErrorCode::ALL.iter().map(|error| error.code()).collect();
    assert_eq!(numbers, (-1..=133).collect::<Vec<i16>>());
    assert_eq!(ErrorCode(9999).name(), "UNKNOWN_SERVER_ERROR");
    assert!(ErrorCode::NOT_LEADER_OR_FOLLOWER.is_retriable());
    assert!(!ErrorCode::OFFSET_OUT_OF_RANGE.is_retriable());
    assert_eq!(format!("{:?}", ErrorCode::FENCED_LEADER_EPOCH), "FENCED_LEADER_EPOCH(74)");
}
