//! Configurations of groups: set before the group exists, kept over a restart, within the broker's limits.

use mainstem_tests::broker::Setup;
use mainstem_tests::client::Client;
use mainstem_wire::ErrorCode;
use mainstem_wire::messages::alter_configs_request::{self, AlterConfigsRequest};
use mainstem_wire::messages::describe_configs_request::{DescribeConfigsRequest, DescribeConfigsResource};
use mainstem_wire::messages::incremental_alter_configs_request::{
    AlterConfigsResource, AlterableConfig, IncrementalAlterConfigsRequest,
};

use crate::groups::{GROUP, broker};

const RESOURCE_GROUP: i8 = 32;
const SET: i8 = 0;
const DELETE: i8 = 1;
/// `config_source` of a group's own setting, and of a default.
const OF_GROUP: i8 = 8;
const DEFAULT: i8 = 5;
const SESSION_TIMEOUT: &str = "consumer.session.timeout.ms";

fn alter(
    client: &mut Client,
    group: &str,
    operation: i8,
    name: &str,
    value: Option<&str>,
) -> (ErrorCode, String) {
    let config = AlterableConfig {
        name: name.into(),
        config_operation: operation,
        value: value.map(Into::into),
        ..Default::default()
    };
    let resource = AlterConfigsResource {
        resource_type: RESOURCE_GROUP,
        resource_name: group.into(),
        configs: vec![config],
        ..Default::default()
    };
    let request = IncrementalAlterConfigsRequest { resources: vec![resource], ..Default::default() };
    let response = client.call(&request, 1);
    let answer = &response.responses[0];
    let message = answer.error_message.as_deref().unwrap_or_default().to_owned();
    (ErrorCode::from(answer.error_code), message)
}

/// The session timeout with its source, and the number of described keys.
fn describe(client: &mut Client, group: &str) -> (String, i8, usize) {
    let resource = DescribeConfigsResource {
        resource_type: RESOURCE_GROUP,
        resource_name: group.into(),
        configuration_keys: None,
        ..Default::default()
    };
    let request = DescribeConfigsRequest { resources: vec![resource], ..Default::default() };
    let response = client.call(&request, 4);
    let result = &response.results[0];
    assert_eq!(result.error_code, 0, "{:?}", result.error_message);
    let config = result.configs.iter().find(|config| config.name == SESSION_TIMEOUT).unwrap();
    (config.value.as_deref().unwrap_or_default().to_owned(), config.config_source, result.configs.len())
}

#[test]
fn a_groups_values_are_set_described_kept_and_forgotten() {
    let mut broker = broker(Setup::new("group-configs"));
    let mut client = broker.connect();
    assert_eq!(describe(&mut client, GROUP), ("45000".to_owned(), DEFAULT, 17));
    assert_eq!(alter(&mut client, GROUP, SET, SESSION_TIMEOUT, Some("50000")).0, ErrorCode::NONE);
    broker.kill();
    broker.start_again();
    let mut client = broker.connect();
    assert_eq!(describe(&mut client, GROUP), ("50000".to_owned(), OF_GROUP, 17));
    assert_eq!(describe(&mut client, "another").1, DEFAULT);
    assert_eq!(alter(&mut client, GROUP, DELETE, SESSION_TIMEOUT, None).0, ErrorCode::NONE);
    assert_eq!(describe(&mut client, GROUP).1, DEFAULT);
}

/// AlterConfigs replaces all earlier settings.
fn replace(client: &mut Client, name: &str, value: &str) -> ErrorCode {
    let config = alter_configs_request::AlterableConfig {
        name: name.into(),
        value: Some(value.into()),
        ..Default::default()
    };
    let resource = alter_configs_request::AlterConfigsResource {
        resource_type: RESOURCE_GROUP,
        resource_name: GROUP.into(),
        configs: vec![config],
        ..Default::default()
    };
    let request = AlterConfigsRequest { resources: vec![resource], ..Default::default() };
    ErrorCode::from(client.call(&request, 2).responses[0].error_code)
}

#[test]
fn a_groups_values_are_replaced() {
    let broker = broker(Setup::new("group-configs-replaced"));
    let mut client = broker.connect();
    assert_eq!(replace(&mut client, SESSION_TIMEOUT, "50000"), ErrorCode::NONE);
    assert_eq!(describe(&mut client, GROUP).1, OF_GROUP);
    assert_eq!(replace(&mut client, SESSION_TIMEOUT, "1"), ErrorCode::INVALID_CONFIG);
    assert_eq!(replace(&mut client, "share.session.timeout.ms", "46000"), ErrorCode::NONE);
    assert_eq!(describe(&mut client, GROUP).1, DEFAULT, "it was not named again");
}

#[test]
fn values_of_groups_that_cannot_be_are_refused() {
    let broker = broker(Setup::new("bad-group-configs"));
    let mut client = broker.connect();
    let beyond =
        format!("{SESSION_TIMEOUT} must be less than or equal to group.consumer.max.session.timeout.ms");
    let cases = [
        (GROUP, SESSION_TIMEOUT, "70000", ErrorCode::INVALID_CONFIG, beyond.as_str()),
        (GROUP, "no.such.key", "1", ErrorCode::INVALID_CONFIG, "Unknown group config name: no.such.key"),
        (
            "",
            SESSION_TIMEOUT,
            "50000",
            ErrorCode::INVALID_REQUEST,
            "Default group resources are not allowed.",
        ),
    ];
    for (group, name, value, error, message) in cases {
        let refused = alter(&mut client, group, SET, name, Some(value));
        assert_eq!(refused, (error, message.to_owned()), "{name}={value} of {group:?}");
    }
}
