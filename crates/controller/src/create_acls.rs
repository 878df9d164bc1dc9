//! CreateAcls (30), v1-3.

use std::borrow::Cow;
use std::collections::HashSet;

use mainstem_security::acl::{
    AclBinding, AclOperation, AclPermissionType, CLUSTER_NAME, PatternType, ResourceType,
};
use mainstem_wire::messages::create_acls_request::{AclCreation, CreateAclsRequest};
use mainstem_wire::messages::create_acls_response::{AclCreationResult, CreateAclsResponse};
use mainstem_wire::{ErrorCode, Uuid};

use super::acls;
use super::error::ApiError;
use super::state_machine::{Decision, IdSource, MetadataStateMachine};

/// Entries that one request may create or delete: all its records go into one batch.
pub(super) const ACLS_PER_REQUEST_MAX: usize = 10_000;

impl MetadataStateMachine {
    /// Creates access control entries, each by itself. An existing one is answered like a new one.
    pub fn create_acls(
        &mut self,
        request: &CreateAclsRequest<'_>,
        ids: IdSource<'_>,
    ) -> Decision<CreateAclsResponse<'static>> {
        let checked: Vec<_> = request.creations.iter().map(binding_of).collect();
        let mut existing: HashSet<&AclBinding> = self.ahead().acls().map(|(_, binding)| binding).collect();
        let new: Vec<&AclBinding> =
            checked.iter().flatten().filter(|binding| existing.insert(binding)).collect();
        let is_too_much = new.len() > ACLS_PER_REQUEST_MAX;
        let mut taken: HashSet<Uuid> = HashSet::from([Uuid::ZERO]);
        let mut fresh = || loop {
            let id = Uuid::from_u128(ids());
            if self.ahead().acl(id).is_none() && taken.insert(id) {
                return id;
            }
        };
        let records = match is_too_much {
            true => Vec::new(),
            false => new.into_iter().map(|binding| acls::record(fresh(), binding)).collect(),
        };
        let result = |checked: &Result<AclBinding, ApiError>| match checked {
            Ok(_) if is_too_much => refused(&too_much()),
            Ok(_) => AclCreationResult::default(),
            Err(error) => refused(error),
        };
        let results = checked.iter().map(result).collect();
        self.decide(records, CreateAclsResponse { results, ..CreateAclsResponse::default() })
    }
}

/// The error for more records than a batch may have.
pub(super) fn too_much() -> ApiError {
    ApiError::new(ErrorCode::POLICY_VIOLATION, "Unable to perform excessively large batch operation.")
}

fn refused(error: &ApiError) -> AclCreationResult<'static> {
    AclCreationResult {
        error_code: error.code.0,
        error_message: Some(Cow::Owned(error.message.clone())),
        ..AclCreationResult::default()
    }
}

/// Checks an entry in Kafka's order, with Kafka's messages.
fn binding_of(creation: &AclCreation<'_>) -> Result<AclBinding, ApiError> {
    let name = creation.resource_name.as_ref();
    let resource_type = ResourceType::from_code(creation.resource_type);
    if resource_type == Some(ResourceType::Cluster) && name != CLUSTER_NAME {
        return Err(invalid(format!("The only valid name for the CLUSTER resource is {CLUSTER_NAME}")));
    }
    if name.is_empty() {
        return Err(invalid("Invalid empty resource name".to_owned()));
    }
    fn known<T>(what: &str, code: i8, value: Option<T>) -> Result<T, ApiError> {
        value.ok_or_else(|| invalid(format!("Invalid {what} {}", filter_word(what, code))))
    }
    let principal = creation.principal.to_string();
    let binding = AclBinding {
        resource_type: known("resourceType", creation.resource_type, resource_type)?,
        name: name.to_owned(),
        pattern_type: known(
            "patternType",
            creation.resource_pattern_type,
            PatternType::from_code(creation.resource_pattern_type),
        )?,
        principal,
        host: creation.host.to_string(),
        operation: known("operation", creation.operation, AclOperation::from_code(creation.operation))?,
        permission: known(
            "permissionType",
            creation.permission_type,
            AclPermissionType::from_code(creation.permission_type),
        )?,
    };
    if !binding.principal.contains(':') {
        return Err(invalid(format!(
            "Could not parse principal from `{}` (no colon is present separating the principal type from the \
             principal name)",
            binding.principal
        )));
    }
    Ok(binding)
}

/// Java's name of a code that no entry can have.
fn filter_word(what: &str, code: i8) -> &'static str {
    match (what, code) {
        (_, 1) => "ANY",
        ("patternType", 2) => "MATCH",
        _ => "UNKNOWN",
    }
}

fn invalid(message: impl Into<String>) -> ApiError {
    ApiError::new(ErrorCode::INVALID_REQUEST, message)
}
