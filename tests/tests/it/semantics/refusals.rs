//! Refused requests, with their errors, and answers from which a client learns not to retry.

use mainstem_tests::kafka::{batch, refusal};
use mainstem_wire::messages::api_versions_request::ApiVersionsRequest;
use mainstem_wire::messages::api_versions_response::ApiVersionsResponse;
use mainstem_wire::messages::create_topics_request::{CreatableTopic, CreateTopicsRequest};
use mainstem_wire::{ApiKey, Decoder, ErrorCode, Message};

use crate::semantics::{TOPIC, broker_with_topic};

#[test]
fn a_replication_factor_of_three_is_refused_on_one_node() {
    let (_broker, mut client) = broker_with_topic("replicas", 1, &[]);
    let topic = CreatableTopic {
        name: "three".into(),
        num_partitions: 1,
        replication_factor: 3,
        ..Default::default()
    };
    let request = CreateTopicsRequest { topics: vec![topic], timeout_ms: 10_000, ..Default::default() };
    let response = client.call(&request, 7);
    let result = &response.topics[0];
    assert_eq!(ErrorCode::from(result.error_code), ErrorCode::INVALID_REPLICATION_FACTOR);
    assert!(result.error_message.as_deref().is_some_and(|text| text.contains('3')), "{result:?}");
    assert!(!client.topics().unwrap().contains(&"three".to_owned()));
}

#[test]
fn acks_that_do_not_exist_are_refused() {
    let (_broker, mut client) = broker_with_topic("acks", 1, &[]);
    for acks in [-2, 2, 5] {
        let refused = refusal(client.produce(TOPIC, 0, acks, &batch(&[b"a"])));
        assert_eq!(refused, ErrorCode::INVALID_REQUIRED_ACKS, "{acks}");
    }
    assert_eq!(client.fetch(TOPIC, 0, 0).unwrap(), []);
}

/// KIP-511: a client that is newer than the broker gets an answer that it can read.
#[test]
fn a_newer_api_versions_is_answered_in_version_0() {
    let (_broker, mut client) = broker_with_topic("newer", 1, &[]);
    let id = client.send_body(ApiKey::ApiVersions.key(), 127, 2, &[0xff; 40]).unwrap();
    let frame = client.receive_frame().unwrap();
    assert_eq!(frame[..4], id.to_be_bytes());
    let mut decoder = Decoder::new(&frame[4..]);
    let response = ApiVersionsResponse::decode(&mut decoder, 0).unwrap();
    decoder.finish("ApiVersionsResponse").unwrap();
    assert_eq!(ErrorCode::from(response.error_code), ErrorCode::UNSUPPORTED_VERSION);
    let own = response.api_keys.iter().find(|api| api.api_key == ApiKey::ApiVersions.key()).unwrap();
    assert_eq!((own.min_version, own.max_version), (0, *ApiKey::ApiVersions.versions().end()));
    client.call(&ApiVersionsRequest::default(), 0);
}

#[test]
fn versions_that_are_not_served_close_the_connection() {
    let (mut broker, _client) = broker_with_topic("old-versions", 1, &[]);
    let cases = [
        (ApiKey::Produce.key(), 0),
        (ApiKey::Produce.key(), 2),
        (ApiKey::Produce.key(), 14),
        (ApiKey::Fetch.key(), 3),
        (ApiKey::Metadata.key(), 100),
        (1000, 0),
        (-1, 0),
    ];
    for (api, version) in cases {
        let mut client = broker.connect();
        client.send_body(api, version, 1, &[0; 20]).unwrap();
        client.wait_for_close().unwrap_or_else(|error| panic!("API {api} v{version}: {error}"));
    }
    broker.assert_healthy();
}
