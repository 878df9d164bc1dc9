//! Filters of DescribeAcls and DeleteAcls, which choose rules.

use super::{AclBinding, AclOperation, AclPermissionType, PatternType, ResourceType, WILDCARD};

/// The comparison of a filter's name with a rule's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PatternFilter {
    /// Rules of this name, whatever their pattern type.
    Any,
    /// Rules that concern the resource of this name.
    Match,
    /// Rules of this pattern type, and of this name.
    Only(PatternType),
}

/// A filter of rules. A field that is none matches anything.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AclBindingFilter {
    /// The kind of resource.
    pub resource_type: Option<ResourceType>,
    /// The name.
    pub name: Option<String>,
    /// The comparison of the name.
    pub pattern: PatternFilter,
    /// The principal.
    pub principal: Option<String>,
    /// The host.
    pub host: Option<String>,
    /// The operation; [`AclOperation::All`] means rules with just this.
    pub operation: Option<AclOperation>,
    /// The permission type: allow or deny.
    pub permission: Option<AclPermissionType>,
}

/// The code of "any" in every enumeration of a filter.
const ANY: i8 = 1;

/// The value of a code, none for "any".
fn or_any<T>(code: i8, from_code: fn(i8) -> Option<T>) -> Option<Option<T>> {
    if code == ANY { Some(None) } else { from_code(code).map(Some) }
}

impl AclBindingFilter {
    /// Every rule.
    pub const ANY: AclBindingFilter = AclBindingFilter {
        resource_type: None,
        name: None,
        pattern: PatternFilter::Any,
        principal: None,
        host: None,
        operation: None,
        permission: None,
    };

    /// Chooses resources by the codes of a request; none if one is unknown.
    pub fn of_resources(resource_type: i8, name: Option<&str>, pattern: i8) -> Option<AclBindingFilter> {
        let pattern = match pattern {
            ANY => PatternFilter::Any,
            2 => PatternFilter::Match,
            other => PatternFilter::Only(PatternType::from_code(other)?),
        };
        let resource_type = or_any(resource_type, ResourceType::from_code)?;
        let name = name.map(str::to_owned);
        Some(AclBindingFilter { resource_type, name, pattern, ..AclBindingFilter::ANY })
    }

    /// Chooses among them by operation and permission; none if a code is unknown.
    pub fn of_entries(self, operation: i8, permission: i8) -> Option<AclBindingFilter> {
        let operation = or_any(operation, AclOperation::from_code)?;
        let permission = or_any(permission, AclPermissionType::from_code)?;
        Some(AclBindingFilter { operation, permission, ..self })
    }

    /// Returns true if the filter chooses a rule.
    pub fn matches(&self, binding: &AclBinding) -> bool {
        fn is<T: PartialEq>(wanted: Option<&T>, value: &T) -> bool {
            wanted.is_none_or(|wanted| wanted == value)
        }
        is(self.resource_type.as_ref(), &binding.resource_type)
            && self.matches_pattern(binding)
            && is(self.principal.as_ref(), &binding.principal)
            && is(self.host.as_ref(), &binding.host)
            && is(self.operation.as_ref(), &binding.operation)
            && is(self.permission.as_ref(), &binding.permission)
    }

    fn matches_pattern(&self, binding: &AclBinding) -> bool {
        let is_name = |name: &String| *name == binding.name;
        match self.pattern {
            PatternFilter::Only(pattern) => {
                pattern == binding.pattern_type && self.name.as_ref().is_none_or(is_name)
            }
            PatternFilter::Any => self.name.as_ref().is_none_or(is_name),
            PatternFilter::Match => self.name.as_ref().is_none_or(|name| match binding.pattern_type {
                PatternType::Literal => is_name(name) || binding.name == WILDCARD,
                PatternType::Prefixed => name.starts_with(&binding.name),
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn binding(pattern_type: PatternType, name: &str) -> AclBinding {
        AclBinding {
            resource_type: ResourceType::Topic,
            name: name.to_owned(),
            pattern_type,
            principal: "User:alice".to_owned(),
            host: "*".to_owned(),
            operation: AclOperation::Read,
            permission: AclPermissionType::Allow,
        }
    }

    #[test]
    fn names_and_patterns() {
        let rules = [
            binding(PatternType::Literal, "foo"),
            binding(PatternType::Literal, "*"),
            binding(PatternType::Prefixed, "foo"),
            binding(PatternType::Prefixed, "f"),
            binding(PatternType::Prefixed, "*"),
        ];
        let matching = |name: Option<&str>, pattern: i8| {
            let filter = AclBindingFilter::of_resources(2, name, pattern).unwrap();
            let indices = (0..rules.len()).filter(|index| filter.matches(&rules[*index]));
            indices.map(|index| index.to_string()).collect::<String>()
        };
        assert_eq!(matching(None, 1), "01234");
        assert_eq!(matching(None, 2), "01234");
        assert_eq!(matching(None, 3), "01");
        assert_eq!(matching(Some("foo"), 1), "02");
        assert_eq!(matching(Some("foo"), 2), "0123");
        assert_eq!(matching(Some("foo"), 3), "0");
        assert_eq!(matching(Some("foo"), 4), "2");
        assert_eq!(matching(Some("*"), 1), "14");
        assert_eq!(matching(Some("*"), 2), "14");
        assert_eq!(matching(Some("fo"), 2), "13");
    }

    #[test]
    fn entries() {
        let rule = binding(PatternType::Literal, "foo");
        let matches = |operation, permission| {
            AclBindingFilter::ANY.of_entries(operation, permission).map(|filter| filter.matches(&rule))
        };
        assert_eq!(matches(1, 1), Some(true));
        assert_eq!(matches(3, 3), Some(true));
        assert_eq!(matches(2, 1), Some(false), "ALL is an operation of its own");
        assert_eq!(matches(1, 2), Some(false));
        assert_eq!(matches(0, 1), None);
        assert_eq!(matches(16, 1), None);
        assert_eq!(AclBindingFilter::of_resources(8, None, 1), None);
        assert_eq!(AclBindingFilter::of_resources(1, None, 5), None);
        let of = |principal: &str| AclBindingFilter {
            principal: Some(principal.to_owned()),
            ..AclBindingFilter::ANY
        };
        assert!(
            of("User:alice").matches(&rule)
                && !of("User:Alice").matches(&rule)
                && !of("User:*").matches(&rule)
        );
    }
}
