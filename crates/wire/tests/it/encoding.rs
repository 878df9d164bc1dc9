//! Values that the encoder handles and other messages do not show: tags, holes, refusals, lengths.

use std::borrow::Cow;

use mainstem_wire::messages::fetch_request::{FetchRequest, ReplicaState};
use mainstem_wire::messages::list_groups_request::ListGroupsRequest;
use mainstem_wire::messages::produce_request::{PartitionProduceData, ProduceRequest, TopicProduceData};
use mainstem_wire::{
    Decoder, EncodeError, Encoder, Malformed, Message, Records, Unencodable, UnknownTaggedField,
};

fn encode<'a, M: Message<'a>>(message: &M, version: i16) -> Result<Vec<u8>, EncodeError> {
    let mut bytes = Vec::new();
    message.encode(&mut Encoder::new(&mut bytes), version)?;
    Ok(bytes)
}

fn unknown(tag: u32, data: &'static [u8]) -> UnknownTaggedField<'static> {
    UnknownTaggedField { tag, data: Cow::Borrowed(data) }
}

#[test]
fn unknown_tagged_fields_keep_their_place_between_known_ones() {
    let request = FetchRequest {
        replica_state: ReplicaState { replica_id: 1, ..Default::default() },
        unknown_tagged_fields: vec![unknown(0, b"zero"), unknown(7, b"")],
        ..Default::default()
    };
    let bytes = encode(&request, 17).unwrap();
    // Tag 0 is the cluster id's, which is not set: the caller's own field takes its place before tag 1.
    let tags = [&[3, 0, 4][..], b"zero", &[1, 13], &[0, 0, 0, 1], &[0xff; 8], &[0], &[7, 0]].concat();
    assert!(bytes.ends_with(&tags), "{bytes:02x?}");
}

/// The size of a tagged value takes two bytes from 128 on; the value has moved by then.
#[test]
fn long_tagged_values_move_behind_their_size() {
    for length in [0, 1, 126, 127, 128, 129, 16_383, 16_384, 20_000] {
        let request = FetchRequest { cluster_id: Some("c".repeat(length).into()), ..Default::default() };
        let bytes = encode(&request, 18).unwrap();
        let mut decoder = Decoder::new(&bytes);
        assert_eq!(FetchRequest::decode(&mut decoder, 18), Ok(request), "{length}");
        assert_eq!(decoder.remaining(), 0);
    }
}

#[test]
fn a_field_that_the_version_lacks_is_refused_unless_ignorable() {
    let request = FetchRequest {
        replica_state: ReplicaState { replica_id: 1, ..Default::default() },
        ..Default::default()
    };
    let error = encode(&request, 14).unwrap_err();
    let expected = EncodeError { field: "FetchRequest.ReplicaState", version: 14, kind: Unencodable::Absent };
    assert_eq!(error, expected);
    assert!(encode(&FetchRequest { rack_id: "r".into(), ..Default::default() }, 10).is_ok());
}

#[test]
fn unknown_tagged_fields_need_a_flexible_version() {
    let request = ListGroupsRequest { unknown_tagged_fields: vec![unknown(9, b"x")], ..Default::default() };
    assert_eq!(encode(&request, 3), Ok(vec![1, 9, 1, b'x']));
    assert_eq!(encode(&request, 2).unwrap_err().kind, Unencodable::Absent);
}

#[test]
fn strings_are_bounded_in_compact_form_too() {
    let request = |length| FetchRequest { rack_id: "r".repeat(length).into(), ..Default::default() };
    let longest = encode(&request(32_767), 12).unwrap();
    assert!(FetchRequest::decode(&mut Decoder::new(&longest), 12).is_ok());
    let error = encode(&request(32_768), 12).unwrap_err();
    assert_eq!(error.kind, Unencodable::Length(32_768));
    assert_eq!(encode(&request(32_768), 11).unwrap_err(), EncodeError { version: 11, ..error });
}

#[test]
fn an_explanation_is_cut_where_it_cannot_be_encoded() {
    use mainstem_wire::messages::create_topics_response::{CreatableTopicResult, CreateTopicsResponse};
    let response = |message: String| CreateTopicsResponse {
        topics: vec![CreatableTopicResult { error_message: Some(message.into()), ..Default::default() }],
        ..Default::default()
    };
    for version in [2, 7] {
        let bytes = encode(&response("é".repeat(20_000)), version).unwrap();
        let back = CreateTopicsResponse::decode(&mut Decoder::new(&bytes), version).unwrap();
        let message = back.topics[0].error_message.as_deref().unwrap();
        assert!(message.ends_with("é...") && (32_760..=32_767).contains(&message.len()), "{}", message.len());
        let longest = "x".repeat(32_767);
        let bytes = encode(&response(longest.clone()), version).unwrap();
        let back = CreateTopicsResponse::decode(&mut Decoder::new(&bytes), version).unwrap();
        assert_eq!(back.topics[0].error_message.as_deref(), Some(&*longest));
    }
}

#[test]
fn a_faulty_field_is_named_with_its_place() {
    let bytes = b"\0\x09t\0\x01\0\0\x0b\xb8";
    let error = ProduceRequest::decode(&mut Decoder::new(bytes), 3).unwrap_err();
    assert_eq!((error.field, error.position), ("ProduceRequest.TransactionalId", 2));
    assert_eq!(error.message(), "ProduceRequest");
    assert!(error.to_string().starts_with("ProduceRequest.TransactionalId at byte 2: "), "{error}");
}

#[test]
fn what_is_not_utf8_is_replaced_as_java_does() {
    let bytes = b"\0\x04a\xff\xc3b\0\x01\0\0\x0b\xb8\0\0\0\0";
    let request = ProduceRequest::decode(&mut Decoder::new(bytes), 3).unwrap();
    assert_eq!(request.transactional_id.as_deref(), Some("a\u{fffd}\u{fffd}b"));
}

#[test]
fn replaced_text_can_be_encoded_or_is_refused() {
    let request = |length: usize| {
        let mut bytes = u16::try_from(length).unwrap().to_be_bytes().to_vec();
        bytes.resize(2 + length, 0xff);
        bytes.extend(b"\0\x01\0\0\x0b\xb8\0\0\0\0");
        ProduceRequest::decode(&mut Decoder::new(&bytes), 3).map(|_| ())
    };
    assert_eq!(request(32_767 / 3), Ok(()));
    assert_eq!(request(32_767 / 3 + 1).unwrap_err().kind, Malformed::Length(32_769));
}

#[test]
fn decoded_fields_borrow_from_the_frame() {
    let records = Records::Bytes(Cow::Borrowed(&b"batch"[..]));
    let partition = PartitionProduceData { index: 3, records: Some(records), ..Default::default() };
    let topic = TopicProduceData { name: "t".into(), partition_data: vec![partition], ..Default::default() };
    let request = ProduceRequest { acks: -1, topic_data: vec![topic], ..Default::default() };
    let bytes = encode(&request, 9).unwrap();
    let back = ProduceRequest::decode(&mut Decoder::new(&bytes), 9).unwrap();
    assert_eq!(back, request);
    let topic = &back.topic_data[0];
    assert!(matches!(topic.name, Cow::Borrowed(_)));
    let Some(Records::Bytes(Cow::Borrowed(records))) = topic.partition_data[0].records else {
        panic!("the records were copied")
    };
    assert!(bytes.as_ptr_range().contains(&records.as_ptr()));
}

/// A value of a tagged field that is longer than its size would take bytes from the next field.
#[test]
fn a_tagged_field_must_be_as_long_as_its_size() {
    let request = FetchRequest { cluster_id: Some("abc".into()), ..Default::default() };
    let mut bytes = encode(&request, 12).unwrap();
    let at = bytes.len() - 5;
    assert_eq!(bytes[at], 4);
    bytes[at] = 3;
    let error = FetchRequest::decode(&mut Decoder::new(&bytes), 12).unwrap_err();
    assert_eq!(error.kind, Malformed::TaggedSize { size: 3, used: 4 });
}
