//! A request that succeeds, for the APIs of client quotas, of telemetry, and others that tools use.

use mainstem_tests::client::Client;
use mainstem_wire::messages::alter_client_quotas_request::{
    AlterClientQuotasRequest, EntityData, EntryData, OpData,
};
use mainstem_wire::messages::describe_client_quotas_request::DescribeClientQuotasRequest;
use mainstem_wire::messages::describe_user_scram_credentials_request::{
    DescribeUserScramCredentialsRequest, UserName,
};
use mainstem_wire::messages::get_telemetry_subscriptions_request::GetTelemetrySubscriptionsRequest;
use mainstem_wire::messages::push_telemetry_request::PushTelemetryRequest;
use mainstem_wire::{ApiKey, ErrorCode, Uuid};

use crate::parity::sensible::in_every_version;

/// Checks all and returns their keys.
pub(crate) fn check_all(client: &mut Client) -> [ApiKey; 5] {
    let alter = |version: i16| AlterClientQuotasRequest {
        entries: vec![EntryData {
            entity: vec![EntityData {
                entity_type: "client-id".into(),
                entity_name: Some("a user".into()),
                ..Default::default()
            }],
            ops: vec![OpData {
                key: "producer_byte_rate".into(),
                value: 1000.0 + f64::from(version),
                ..Default::default()
            }],
            ..Default::default()
        }],
        ..Default::default()
    };
    let altered = in_every_version(client, alter, |response, _| {
        assert_eq!((response.entries.len(), response.entries[0].error_code), (1, 0));
    });
    let describe = |_| DescribeClientQuotasRequest::default();
    let described = in_every_version(client, describe, |response, _| {
        let entries = response.entries.as_ref().expect("there are quotas");
        assert_eq!((response.error_code, entries[0].values[0].value), (0, 1001.0));
    });
    let id = Uuid::from_u128(0x1234);
    let get = |_| GetTelemetrySubscriptionsRequest { client_instance_id: id, ..Default::default() };
    let got = in_every_version(client, get, |response, _| {
        assert_eq!((response.error_code, response.client_instance_id), (0, id));
        assert_eq!(response.requested_metrics, [""; 0], "there is no subscription");
    });
    let again = client.call(&get(0), 0);
    assert_eq!(ErrorCode::from(again.error_code), ErrorCode::THROTTLING_QUOTA_EXCEEDED);
    let push = |_| PushTelemetryRequest { client_instance_id: id, ..Default::default() };
    let pushed = in_every_version(client, push, |response, _| {
        assert_eq!(ErrorCode::from(response.error_code), ErrorCode::UNKNOWN_SUBSCRIPTION_ID);
    });
    let scram = |_| DescribeUserScramCredentialsRequest {
        users: Some(vec![UserName { name: "a user".into(), ..Default::default() }]),
        ..Default::default()
    };
    let scram = in_every_version(client, scram, |response, _| {
        assert_eq!(response.error_code, 0);
        assert_eq!(ErrorCode::from(response.results[0].error_code), ErrorCode::RESOURCE_NOT_FOUND);
    });
    [altered, described, scram, got, pushed]
}
