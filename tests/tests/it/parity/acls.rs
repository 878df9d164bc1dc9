//! Rules without an authorizer, and passwords of users: in every version of their APIs.

use mainstem_tests::client::Client;
use mainstem_wire::messages::alter_user_scram_credentials_request::{
    AlterUserScramCredentialsRequest, ScramCredentialUpsertion,
};
use mainstem_wire::messages::create_acls_request::{AclCreation, CreateAclsRequest};
use mainstem_wire::messages::delete_acls_request::{DeleteAclsFilter, DeleteAclsRequest};
use mainstem_wire::messages::describe_acls_request::DescribeAclsRequest;
use mainstem_wire::{ApiKey, ErrorCode};

use super::sensible::in_every_version;

/// The code for any value in a filter.
const ANY: i8 = 1;
const SCRAM_SHA_256: i8 = 1;

/// Checks all and returns their keys.
pub(crate) fn check_all(client: &mut Client) -> [ApiKey; 4] {
    let disabled = ErrorCode::SECURITY_DISABLED.code();
    let describe = |_| DescribeAclsRequest {
        resource_type_filter: ANY,
        resource_name_filter: None,
        pattern_type_filter: ANY,
        principal_filter: None,
        host_filter: None,
        operation: ANY,
        permission_type: ANY,
        ..Default::default()
    };
    let create = |_| CreateAclsRequest {
        creations: vec![AclCreation {
            resource_type: 2,
            resource_name: "topic".into(),
            resource_pattern_type: 3,
            principal: "User:a".into(),
            host: "*".into(),
            operation: 3,
            permission_type: 3,
            ..Default::default()
        }],
        ..Default::default()
    };
    let delete = |_| DeleteAclsRequest {
        filters: vec![DeleteAclsFilter {
            resource_type_filter: ANY,
            pattern_type_filter: ANY,
            operation: ANY,
            permission_type: ANY,
            ..Default::default()
        }],
        ..Default::default()
    };
    let alter = |_| AlterUserScramCredentialsRequest {
        upsertions: vec![ScramCredentialUpsertion {
            name: "a-user".into(),
            mechanism: SCRAM_SHA_256,
            iterations: 4096,
            salt: b"0123456789".as_slice().into(),
            salted_password: vec![7; 32].into(),
            ..Default::default()
        }],
        ..Default::default()
    };
    [
        in_every_version(client, describe, |response, _| assert_eq!(response.error_code, disabled)),
        in_every_version(client, create, |response, _| assert_eq!(response.results[0].error_code, disabled)),
        in_every_version(client, delete, |response, _| {
            assert_eq!(response.filter_results[0].error_code, disabled);
        }),
        in_every_version(client, alter, |response, _| assert_eq!(response.results[0].error_code, 0)),
    ]
}
