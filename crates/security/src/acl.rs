//! Access control lists: rules about principals, operations and resources, in Kafka's words and codes.
//!
//! A [`AclBinding`] is one rule. [`scan::decide`] answers a question by looking at all rules, and returns the one that decided;
//! [`crate::Authorizer`] gives the same answer by an index.

mod filter;
pub mod scan;

use std::fmt;
use std::net::IpAddr;

pub use filter::{AclBindingFilter, PatternFilter};

use mainstem_lines::OneLine;

/// The name of every resource of a type, and the host of every client.
pub const WILDCARD: &str = "*";
/// The principal whose rules concern all principals.
pub const WILDCARD_PRINCIPAL: &str = "User:*";
/// The only name of a cluster resource.
pub const CLUSTER_NAME: &str = "kafka-cluster";

/// One line per value: code, name, as `toString` has it in Java, and as SecurityUtils writes it.
macro_rules! codes {
    ($(#[$doc:meta])* $type:ident { $($(#[$value_doc:meta])* $name:ident = $code:literal $java:literal $pascal:literal,)* }) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[repr(i8)]
        pub enum $type {
            $($(#[$value_doc])* $name = $code,)*
        }

        impl $type {
            /// All values, by rising code.
            pub const ALL: &'static [$type] = &[$($type::$name),*];

            /// The code in requests and records.
            pub const fn code(self) -> i8 {
                self as i8
            }

            /// The value of a code; none for codes that only filters have, and for unknown ones.
            pub const fn from_code(code: i8) -> Option<$type> {
                match code {
                    $($code => Some($type::$name),)*
                    _ => None,
                }
            }

            /// The name as Kafka's tools write it.
            pub const fn name(self) -> &'static str {
                match self {
                    $($type::$name => $pascal,)*
                }
            }

            /// The value of a name, in any case.
            pub fn from_name(name: &str) -> Option<$type> {
                $type::ALL.iter().copied().find(|value| value.name().eq_ignore_ascii_case(name))
            }
        }

        impl fmt::Display for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(match self {
                    $($type::$name => $java,)*
                })
            }
        }
    };
}

codes! {
    /// Kinds of resources.
    ResourceType {
        /// A topic, by name.
        Topic = 2 "TOPIC" "Topic",
        /// A group, by id.
        Group = 3 "GROUP" "Group",
        /// The cluster, named [`CLUSTER_NAME`].
        Cluster = 4 "CLUSTER" "Cluster",
        /// A producer's transactional id.
        TransactionalId = 5 "TRANSACTIONAL_ID" "TransactionalId",
        /// A delegation token, by id.
        DelegationToken = 6 "DELEGATION_TOKEN" "DelegationToken",
        /// A user, as `User:NAME`.
        User = 7 "USER" "User",
    }
}

codes! {
    /// The pattern type of a rule: how its name is matched.
    PatternType {
        /// The resource has this name, or any if the name is [`WILDCARD`].
        Literal = 3 "LITERAL" "Literal",
        /// The resource's name begins with this one (KIP-290). `*` is an asterisk here.
        Prefixed = 4 "PREFIXED" "Prefixed",
    }
}

codes! {
    /// The operation on a resource.
    AclOperation {
        /// Every operation.
        All = 2 "ALL" "All",
        /// Read.
        Read = 3 "READ" "Read",
        /// Write.
        Write = 4 "WRITE" "Write",
        /// Create.
        Create = 5 "CREATE" "Create",
        /// Delete.
        Delete = 6 "DELETE" "Delete",
        /// Alter.
        Alter = 7 "ALTER" "Alter",
        /// Describe.
        Describe = 8 "DESCRIBE" "Describe",
        /// Requests between brokers.
        ClusterAction = 9 "CLUSTER_ACTION" "ClusterAction",
        /// Describe configurations.
        DescribeConfigs = 10 "DESCRIBE_CONFIGS" "DescribeConfigs",
        /// Alter configurations.
        AlterConfigs = 11 "ALTER_CONFIGS" "AlterConfigs",
        /// Write idempotently, even if no topic may be written.
        IdempotentWrite = 12 "IDEMPOTENT_WRITE" "IdempotentWrite",
        /// Create delegation tokens.
        CreateTokens = 13 "CREATE_TOKENS" "CreateTokens",
        /// Describe delegation tokens.
        DescribeTokens = 14 "DESCRIBE_TOKENS" "DescribeTokens",
        /// Use transactions that an external coordinator commits (KIP-939).
        TwoPhaseCommit = 15 "TWO_PHASE_COMMIT" "TwoPhaseCommit",
    }
}

codes! {
    /// The effect of a rule.
    AclPermissionType {
        /// Forbids, whatever others allow.
        Deny = 2 "DENY" "Deny",
        /// Allows.
        Allow = 3 "ALLOW" "Allow",
    }
}

/// One rule. Rules that are equal are one.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AclBinding {
    /// The kind of resource.
    pub resource_type: ResourceType,
    /// The resource's name, or its prefix.
    pub name: String,
    /// The pattern type of the name.
    pub pattern_type: PatternType,
    /// `User:NAME`, or [`WILDCARD_PRINCIPAL`].
    pub principal: String,
    /// An address, or [`WILDCARD`]. Anything else matches no client, as in Kafka. An IPv6 address may be written in any form, where Kafka
    /// knows one.
    pub host: String,
    /// The operation.
    pub operation: AclOperation,
    /// Allow or deny.
    pub permission: AclPermissionType,
}

impl AclBinding {
    /// Returns true if the rule is about a resource of this name.
    pub fn concerns(&self, name: &str) -> bool {
        match self.pattern_type {
            PatternType::Literal => self.name == name || self.name == WILDCARD,
            PatternType::Prefixed => name.starts_with(&self.name),
        }
    }

    /// The rule as a sentence for people, such as `User:alice may Read the topic orders from any address`. Names are not escaped: the
    /// caller must handle control characters before a terminal shows them.
    ///
    /// ```
    /// use mainstem_security::acl::{
    ///     AclBinding, AclOperation, AclPermissionType, PatternType, ResourceType,
    /// };
    ///
    /// let rule = AclBinding {
    ///     resource_type: ResourceType::Topic,
    ///     name: "orders-".into(),
    ///     pattern_type: PatternType::Prefixed,
    ///     principal: "User:alice".into(),
    ///     host: "10.0.0.1".into(),
    ///     operation: AclOperation::Read,
    ///     permission: AclPermissionType::Deny,
    /// };
    /// let words = "User:alice may not Read each topic whose name begins with orders- from 10.0.0.1";
    /// assert_eq!(rule.sentence(), words);
    /// ```
    pub fn sentence(&self) -> String {
        let can = if self.permission == AclPermissionType::Allow { "may" } else { "may not" };
        let kind = self.resource_type.name().to_lowercase();
        let names = match self.pattern_type {
            PatternType::Prefixed => format!("each {kind} whose name begins with {}", self.name),
            PatternType::Literal if self.name == WILDCARD => format!("each {kind}"),
            PatternType::Literal => format!("the {kind} {}", self.name),
        };
        let from = if self.host == WILDCARD { "any address" } else { &self.host };
        format!("{} {can} {} {names} from {from}", self.principal, self.operation.name())
    }

    /// Returns true if the rule concerns clients at this address.
    pub(crate) fn concerns_host(&self, host: IpAddr) -> bool {
        self.host == WILDCARD || parse_host(&self.host) == Some(host.to_canonical())
    }
}

/// The address that a rule's host names.
pub(crate) fn parse_host(host: &str) -> Option<IpAddr> {
    host.parse::<IpAddr>().ok().map(|host| host.to_canonical())
}

/// As the audit log of Kafka shows a rule, on one line whatever its names are.
impl fmt::Display for AclBinding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "StandardAcl(resourceType={}, resourceName={}, patternType={}, principal={}, host={}, operation={}, \
             permissionType={})",
            self.resource_type,
            OneLine(&self.name),
            self.pattern_type,
            OneLine(&self.principal),
            OneLine(&self.host),
            self.operation,
            self.permission
        )
    }
}

/// The bit of an operation, as in the fields of authorized operations (KIP-430).
pub(crate) const fn bit(operation: AclOperation) -> u16 {
    1 << operation as u16
}

/// Every operation but [`AclOperation::All`].
pub(crate) const EVERY_OPERATION: u16 = 0xfff8;

/// The operations that a rule names.
pub(crate) const fn named_operations(operation: AclOperation) -> u16 {
    match operation {
        AclOperation::All => EVERY_OPERATION,
        other => bit(other),
    }
}

/// The operations that an allowing rule implies: Read, Write, Delete and Alter imply Describe, and AlterConfigs implies DescribeConfigs.
pub(crate) const fn implied_operations(operation: AclOperation) -> u16 {
    match operation {
        AclOperation::Read | AclOperation::Write | AclOperation::Delete | AclOperation::Alter => {
            bit(AclOperation::Describe)
        }
        AclOperation::AlterConfigs => bit(AclOperation::DescribeConfigs),
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_and_names() {
        for code in i8::MIN..=i8::MAX {
            let is_own = |found: Option<i8>| found.is_none_or(|found| found == code);
            assert!(is_own(ResourceType::from_code(code).map(ResourceType::code)));
            assert!(is_own(AclOperation::from_code(code).map(AclOperation::code)));
        }
        assert_eq!(AclOperation::from_name("describeconfigs"), Some(AclOperation::DescribeConfigs));
        assert_eq!(ResourceType::from_name("TransactionalID"), Some(ResourceType::TransactionalId));
        assert_eq!(PatternType::from_name("match"), None);
        let every = AclOperation::ALL.iter().filter(|operation| **operation != AclOperation::All);
        assert_eq!(every.fold(0, |bits, operation| bits | bit(*operation)), EVERY_OPERATION);
    }
}
