//! The answer to a question by a scan of all rules: the index must agree with it, and the scan says which rule decided.

use std::collections::HashSet;
use std::net::IpAddr;

use super::{AclBinding, AclOperation, AclPermissionType, PatternType, ResourceType, WILDCARD};
use super::{WILDCARD_PRINCIPAL, bit, implied_operations, named_operations};
use crate::authorizer::{AuthorizerRules, Question, Verdict};

/// Decides as Kafka's StandardAuthorizer does, and returns the rule that decided, if there is one: the first of several.
pub fn decide<'a>(
    rules: &AuthorizerRules,
    bindings: impl IntoIterator<Item = &'a AclBinding>,
    question: &Question<'_>,
) -> (Verdict, Option<&'a AclBinding>) {
    if rules.super_users.contains(question.principal) {
        return (Verdict::SuperUser, None);
    }
    let mut has_acls = false;
    let mut allowed_by = None;
    for binding in bindings {
        if binding.resource_type != question.resource_type || !binding.concerns(question.name) {
            continue;
        }
        has_acls = true;
        if !concerns_peer(binding, question.principal, question.host) {
            continue;
        }
        let mut operations = named_operations(binding.operation);
        if binding.permission == AclPermissionType::Allow {
            operations |= implied_operations(binding.operation);
        }
        match binding.permission {
            _ if operations & bit(question.operation) == 0 => {}
            AclPermissionType::Deny => return (Verdict::Denied, Some(binding)),
            AclPermissionType::Allow => allowed_by = allowed_by.or(Some(binding)),
        }
    }
    match allowed_by {
        Some(binding) => (Verdict::Allowed, Some(binding)),
        None if !has_acls && rules.allow_everyone_if_no_acl_found => (Verdict::DefaultAllow, None),
        None => (Verdict::DefaultDeny, None),
    }
}

fn concerns_peer(binding: &AclBinding, principal: &str, host: IpAddr) -> bool {
    let is_principal = binding.principal == principal || binding.principal == WILDCARD_PRINCIPAL;
    is_principal && binding.principal.contains(':') && binding.concerns_host(host)
}

/// Returns true if the principal may do this with any resource of a type (KIP-679). As Kafka's Authorizer does by default, it tries the
/// name `hardcode` as an example of all names, and then compares allowed and denied names.
pub fn any_of_type<'a>(
    rules: &AuthorizerRules,
    bindings: impl IntoIterator<Item = &'a AclBinding> + Clone,
    (principal, host): (&str, IpAddr),
    operation: AclOperation,
    resource_type: ResourceType,
) -> bool {
    let example = Question { principal, host, operation, resource_type, name: "hardcode" };
    if decide(rules, bindings.clone(), &example).0.is_allowed() {
        return true;
    }
    let mut denied = HashSet::new();
    let mut allowed = HashSet::new();
    for binding in bindings {
        let is_meant = binding.resource_type == resource_type
            && concerns_peer(binding, principal, host)
            && named_operations(binding.operation) & bit(operation) != 0;
        if is_meant {
            let names = match binding.permission {
                AclPermissionType::Deny => &mut denied,
                AclPermissionType::Allow => &mut allowed,
            };
            names.insert((binding.pattern_type, binding.name.as_str()));
        }
    }
    if denied.contains(&(PatternType::Literal, WILDCARD)) {
        return false;
    }
    let is_denied = |(pattern, name): &(PatternType, &str)| {
        let is_named = *pattern == PatternType::Literal && denied.contains(&(PatternType::Literal, *name));
        let prefixes = name.char_indices().map(|(at, character)| &name[..at + character.len_utf8()]);
        is_named || prefixes.into_iter().any(|prefix| denied.contains(&(PatternType::Prefixed, prefix)))
    };
    allowed.contains(&(PatternType::Literal, WILDCARD)) || !allowed.iter().all(is_denied)
}
