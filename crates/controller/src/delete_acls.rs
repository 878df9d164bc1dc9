//! DeleteAcls (31), v1-3.

use std::borrow::Cow;
use std::collections::BTreeSet;

use mainstem_security::acl::{AclBinding, AclBindingFilter};
use mainstem_wire::messages::delete_acls_request::{DeleteAclsFilter, DeleteAclsRequest};
use mainstem_wire::messages::delete_acls_response::{
    DeleteAclsFilterResult, DeleteAclsMatchingAcl, DeleteAclsResponse,
};
use mainstem_wire::{ErrorCode, Uuid};

use super::acls;
use super::create_acls::ACLS_PER_REQUEST_MAX;
use super::error::ApiError;
use super::state_machine::{Decision, MetadataStateMachine};

impl MetadataStateMachine {
    /// Deletes the access control entries that match any of the filters. The answer to each filter names all of its matches.
    pub fn delete_acls(&mut self, request: &DeleteAclsRequest<'_>) -> Decision<DeleteAclsResponse<'static>> {
        let mut deleted: BTreeSet<Uuid> = BTreeSet::new();
        let mut named = 0;
        let mut filter_results = Vec::with_capacity(request.filters.len());
        for filter in &request.filters {
            let found = filter_of(filter).and_then(|filter| {
                let all = self.ahead().acls().filter(|(_, binding)| filter.matches(binding));
                let found: Vec<(Uuid, &AclBinding)> =
                    all.take(ACLS_PER_REQUEST_MAX.saturating_sub(named) + 1).collect();
                named += found.len();
                if named > ACLS_PER_REQUEST_MAX { Err(too_much()) } else { Ok(found) }
            });
            filter_results.push(answer(&found));
            deleted.extend(found.into_iter().flatten().map(|(id, _)| id));
        }
        let records = deleted.into_iter().map(acls::removal).collect();
        self.decide(records, DeleteAclsResponse { filter_results, ..DeleteAclsResponse::default() })
    }
}

fn too_much() -> ApiError {
    let message =
        format!("Cannot remove more than {ACLS_PER_REQUEST_MAX} acls in a single delete operation.");
    ApiError::new(ErrorCode::POLICY_VIOLATION, message)
}

fn filter_of(filter: &DeleteAclsFilter<'_>) -> Result<AclBindingFilter, ApiError> {
    let unknown = |what: &str| ApiError::new(ErrorCode::INVALID_REQUEST, format!("Unknown {what}."));
    let name = filter.resource_name_filter.as_deref();
    let resources =
        AclBindingFilter::of_resources(filter.resource_type_filter, name, filter.pattern_type_filter);
    let filtered = resources.ok_or_else(|| unknown("patternFilter"))?;
    let filtered = filtered.of_entries(filter.operation, filter.permission_type);
    Ok(AclBindingFilter {
        principal: filter.principal_filter.as_ref().map(ToString::to_string),
        host: filter.host_filter.as_ref().map(ToString::to_string),
        ..filtered.ok_or_else(|| unknown("entryFilter"))?
    })
}

fn answer(found: &Result<Vec<(Uuid, &AclBinding)>, ApiError>) -> DeleteAclsFilterResult<'static> {
    match found {
        Ok(found) => DeleteAclsFilterResult {
            error_message: None,
            matching_acls: found.iter().map(|(_, binding)| matching(binding)).collect(),
            ..DeleteAclsFilterResult::default()
        },
        Err(error) => DeleteAclsFilterResult {
            error_code: error.code.0,
            error_message: Some(Cow::Owned(error.message.clone())),
            ..DeleteAclsFilterResult::default()
        },
    }
}

fn matching(binding: &AclBinding) -> DeleteAclsMatchingAcl<'static> {
    DeleteAclsMatchingAcl {
        error_message: None,
        resource_type: binding.resource_type.code(),
        resource_name: Cow::Owned(binding.name.clone()),
        pattern_type: binding.pattern_type.code(),
        principal: Cow::Owned(binding.principal.clone()),
        host: Cow::Owned(binding.host.clone()),
        operation: binding.operation.code(),
        permission_type: binding.permission.code(),
        ..DeleteAclsMatchingAcl::default()
    }
}
