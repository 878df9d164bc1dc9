//! DescribeAcls (29), v1-3.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};

use mainstem_security::acl::{AclBinding, AclBindingFilter};
use mainstem_wire::messages::describe_acls_request::DescribeAclsRequest;
use mainstem_wire::messages::describe_acls_response::{
    AclDescription, DescribeAclsResource, DescribeAclsResponse,
};

use super::image::MetadataImage;

impl MetadataImage {
    /// The access control entries that match the request, by resource. An unknown code matches none.
    pub fn describe_acls(&self, request: &DescribeAclsRequest<'_>) -> DescribeAclsResponse<'static> {
        let mut resources: BTreeMap<_, BTreeSet<&AclBinding>> = BTreeMap::new();
        if let Some(filter) = filter_of(request) {
            for (_, binding) in self.acls().filter(|(_, binding)| filter.matches(binding)) {
                let pattern = (binding.resource_type, binding.name.as_str(), binding.pattern_type);
                resources.entry(pattern).or_default().insert(binding);
            }
        }
        let resources = resources.into_iter().map(|((resource_type, name, pattern_type), bindings)| {
            DescribeAclsResource {
                resource_type: resource_type.code(),
                resource_name: Cow::Owned(name.to_owned()),
                pattern_type: pattern_type.code(),
                acls: bindings.into_iter().map(description).collect(),
                ..DescribeAclsResource::default()
            }
        });
        DescribeAclsResponse { resources: resources.collect(), ..DescribeAclsResponse::default() }
    }
}

fn filter_of(request: &DescribeAclsRequest<'_>) -> Option<AclBindingFilter> {
    let name = request.resource_name_filter.as_deref();
    let resources =
        AclBindingFilter::of_resources(request.resource_type_filter, name, request.pattern_type_filter)?;
    Some(AclBindingFilter {
        principal: request.principal_filter.as_ref().map(ToString::to_string),
        host: request.host_filter.as_ref().map(ToString::to_string),
        ..resources.of_entries(request.operation, request.permission_type)?
    })
}

fn description(binding: &AclBinding) -> AclDescription<'static> {
    AclDescription {
        principal: Cow::Owned(binding.principal.clone()),
        host: Cow::Owned(binding.host.clone()),
        operation: binding.operation.code(),
        permission_type: binding.permission.code(),
        ..AclDescription::default()
    }
}
