//! Access rules: DescribeAcls (29), CreateAcls (30), DeleteAcls (31).

use mainstem_security::acl::{
    AclBinding, AclOperation, AclPermissionType, PatternFilter, PatternType, ResourceType,
};
use mainstem_wire::messages::create_acls_request::{AclCreation, CreateAclsRequest};
use mainstem_wire::messages::delete_acls_request::{DeleteAclsFilter, DeleteAclsRequest};
use mainstem_wire::messages::describe_acls_request::DescribeAclsRequest;

use super::Admin;
use crate::error::Error;

/// The code of "any" in filters.
const ANY: i8 = 1;
/// The code of "match" as a filter's pattern type.
const MATCH: i8 = 2;

/// A choice of rules; a field that is none lets every rule pass.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct AclFilter {
    /// The kind of resource.
    pub resource_type: Option<ResourceType>,
    /// The name in the rule, which `pattern` says how to compare.
    pub name: Option<String>,
    /// The way to compare the name. None is any: rules of the name, for one resource or as the beginning of many names.
    pub pattern: Option<PatternFilter>,
    /// `User:NAME`.
    pub principal: Option<String>,
    /// The host in the rule.
    pub host: Option<String>,
    /// The operation in the rule.
    pub operation: Option<AclOperation>,
    /// The permission in the rule: to allow or to deny.
    pub permission: Option<AclPermissionType>,
}

impl AclFilter {
    fn pattern_code(&self) -> i8 {
        match self.pattern {
            None | Some(PatternFilter::Any) => ANY,
            Some(PatternFilter::Match) => MATCH,
            Some(PatternFilter::Only(pattern_type)) => pattern_type.code(),
        }
    }
}

impl Admin {
    /// The rules that a filter chooses.
    ///
    /// # Errors
    /// [`Error::TimedOut`], or why the cluster refuses, such as SECURITY_DISABLED without an authorizer.
    pub async fn acls(&self, filter: &AclFilter) -> Result<Vec<AclBinding>, Error> {
        self.retried("describing rules", || async {
            let request = DescribeAclsRequest {
                resource_type_filter: filter.resource_type.map_or(ANY, ResourceType::code),
                resource_name_filter: filter.name.as_deref().map(Into::into),
                pattern_type_filter: filter.pattern_code(),
                principal_filter: filter.principal.as_deref().map(Into::into),
                host_filter: filter.host.as_deref().map(Into::into),
                operation: filter.operation.map_or(ANY, AclOperation::code),
                permission_type: filter.permission.map_or(ANY, AclPermissionType::code),
                ..Default::default()
            };
            let reply = self.cluster.call_controller(&request).await?;
            let response = reply.read()?;
            let what = || "cannot describe rules".to_owned();
            reply.check(response.error_code, response.error_message.as_deref(), what)?;
            let rules = response.resources.iter().flat_map(|resource| {
                resource.acls.iter().filter_map(move |acl| {
                    // A rule with codes that this client does not know cannot be shown.
                    Some(AclBinding {
                        resource_type: ResourceType::from_code(resource.resource_type)?,
                        name: resource.resource_name.to_string(),
                        pattern_type: PatternType::from_code(resource.pattern_type)?,
                        principal: acl.principal.to_string(),
                        host: acl.host.to_string(),
                        operation: AclOperation::from_code(acl.operation)?,
                        permission: AclPermissionType::from_code(acl.permission_type)?,
                    })
                })
            });
            Ok(rules.collect())
        })
        .await
    }

    /// Creates rules. Each of them succeeds or fails by itself; the first refusal is the error. Existing rules stay.
    ///
    /// # Errors
    /// [`Error::TimedOut`], or why the cluster refuses.
    pub async fn create_acls(&self, rules: &[AclBinding]) -> Result<(), Error> {
        self.retried("creating rules", || async {
            let creations = rules.iter().map(|rule| AclCreation {
                resource_type: rule.resource_type.code(),
                resource_name: rule.name.as_str().into(),
                resource_pattern_type: rule.pattern_type.code(),
                principal: rule.principal.as_str().into(),
                host: rule.host.as_str().into(),
                operation: rule.operation.code(),
                permission_type: rule.permission.code(),
                ..Default::default()
            });
            let request = CreateAclsRequest { creations: creations.collect(), ..Default::default() };
            let reply = self.cluster.call_controller(&request).await?;
            for (rule, result) in rules.iter().zip(&reply.read()?.results) {
                let what = || format!("cannot create the rule that {}", rule.sentence());
                reply.check(result.error_code, result.error_message.as_deref(), what)?;
            }
            Ok(())
        })
        .await
    }

    /// Deletes the rules that a filter chooses, and returns their number.
    ///
    /// # Errors
    /// [`Error::TimedOut`], or why the cluster refuses.
    pub async fn delete_acls(&self, filter: &AclFilter) -> Result<usize, Error> {
        self.retried("deleting rules", || async {
            let chosen = DeleteAclsFilter {
                resource_type_filter: filter.resource_type.map_or(ANY, ResourceType::code),
                resource_name_filter: filter.name.as_deref().map(Into::into),
                pattern_type_filter: filter.pattern_code(),
                principal_filter: filter.principal.as_deref().map(Into::into),
                host_filter: filter.host.as_deref().map(Into::into),
                operation: filter.operation.map_or(ANY, AclOperation::code),
                permission_type: filter.permission.map_or(ANY, AclPermissionType::code),
                ..Default::default()
            };
            let request = DeleteAclsRequest { filters: vec![chosen], ..Default::default() };
            let reply = self.cluster.call_controller(&request).await?;
            let mut deleted = 0;
            for result in &reply.read()?.filter_results {
                let what = || "cannot delete rules".to_owned();
                reply.check(result.error_code, result.error_message.as_deref(), what)?;
                deleted += result.matching_acls.len();
            }
            Ok(deleted)
        })
        .await
    }
}
