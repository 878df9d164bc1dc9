//! Messages against bytes written out by hand.

use std::borrow::Cow;

use mainstem_wire::messages::api_versions_request::ApiVersionsRequest;
use mainstem_wire::messages::fetch_response::{FetchResponse, FetchableTopicResponse, PartitionData};
use mainstem_wire::messages::offset_commit_key::OffsetCommitKey;
use mainstem_wire::messages::request_header::RequestHeader;
use mainstem_wire::messages::topic_record::TopicRecord;
use mainstem_wire::metadata_frame::MetadataRecord;
use mainstem_wire::{ApiKey, Hole, Records, Uuid, coordinator, frame};

#[test]
fn a_request_frame() {
    let header = RequestHeader {
        request_api_key: 18,
        request_api_version: 3,
        correlation_id: 7,
        client_id: Some("me".into()),
        ..Default::default()
    };
    let request = ApiVersionsRequest {
        client_software_name: "a".into(),
        client_software_version: "1".into(),
        ..Default::default()
    };
    let mut bytes = Vec::new();
    frame::write_request(&mut bytes, &header, &request).unwrap();
    let expected = b"\0\0\0\x12\0\x12\0\x03\0\0\0\x07\0\x02me\0\x02a\x021\0";
    assert_eq!(bytes, expected);

    let (body, used) = frame::split_frame(&bytes, 100).unwrap().unwrap();
    assert_eq!(used, bytes.len());
    let mut opened = frame::open_request(body).unwrap();
    assert_eq!((opened.api_key, opened.response_version()), (ApiKey::ApiVersions, 3));
    assert_eq!(opened.header, header);
    assert_eq!(opened.decode::<ApiVersionsRequest<'_>>(), Ok(request));
}

#[test]
fn a_fetch_response_leaves_a_hole_for_its_records() {
    let partition =
        |records| PartitionData { high_watermark: 9, records: Some(records), ..Default::default() };
    let response = |records: [Records<'static>; 2]| FetchResponse {
        responses: vec![FetchableTopicResponse {
            topic_id: Uuid::from_u128(5),
            partitions: records.into_iter().map(partition).collect(),
            ..Default::default()
        }],
        ..Default::default()
    };
    let write = |response: &FetchResponse<'_>, buffer: &mut Vec<u8>| {
        frame::write_response(buffer, ApiKey::Fetch, 13, 3, response).unwrap()
    };
    let full =
        response([Records::Bytes(Cow::Borrowed(&[0xaa; 300])), Records::Bytes(Cow::Borrowed(&[0xbb; 2]))]);
    let mut expected = vec![1, 2, 3];
    assert_eq!(write(&full, &mut expected), []);

    let mut buffer = vec![1, 2, 3];
    let holes = write(&response([Records::Hole(300), Records::Hole(2)]), &mut buffer);
    assert_eq!(holes.iter().map(|hole| hole.len).collect::<Vec<_>>(), [300, 2]);
    for (Hole { at, len }, byte) in holes.into_iter().zip([0xaa, 0xbb]).rev() {
        buffer.splice(at..at, vec![byte; len]);
    }
    assert_eq!(buffer, expected);
}

#[test]
fn a_coordinator_key_begins_with_its_type() {
    let key = OffsetCommitKey { group: "g".into(), topic: "t".into(), partition: 2 };
    let bytes = coordinator::encode_key(&key).unwrap();
    assert_eq!(bytes, b"\0\x01\0\x01g\0\x01t\0\0\0\x02");
    assert_eq!(coordinator::record_type(&bytes), Ok(1));
    assert_eq!(coordinator::decode_key(&bytes), Ok(key));
}

#[test]
fn a_metadata_record_begins_with_frame_type_and_version() {
    let record = TopicRecord { name: "t".into(), topic_id: Uuid::from_u128(1), ..Default::default() };
    let mut bytes = Vec::new();
    MetadataRecord::from(record.clone()).encode(&mut bytes, 0).unwrap();
    assert_eq!(bytes, b"\x01\x02\0\x02t\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\x01\0");
    assert_eq!(MetadataRecord::decode(&bytes), Ok((record.into(), 0)));
}
