//! A request that succeeds, for the APIs of client quotas.

use mainstem_tests::client::Client;
use mainstem_wire::ApiKey;
use mainstem_wire::messages::alter_client_quotas_request::{
    AlterClientQuotasRequest, EntityData, EntryData, OpData,
};
use mainstem_wire::messages::describe_client_quotas_request::DescribeClientQuotasRequest;

use crate::sensible::in_every_version;

/// Checks all and says which.
pub(crate) fn check_all(client: &mut Client) -> [ApiKey; 2] {
    let alter = |version: i16| AlterClientQuotasRequest {
        entries: vec![EntryData {
            entity: vec![EntityData {
                entity_type: "client-id".into(),
                entity_name: Some("somebody".into()),
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
    [altered, described]
}
