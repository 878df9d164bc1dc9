//! Names of resources, operations and users on the command line.

use clap::Args;
use mainstem_client::acl::{
    AclOperation, AclPermissionType, CLUSTER_NAME, PatternFilter, PatternType, ResourceType,
};

/// Resources by name.
#[derive(Debug, Args)]
pub(super) struct Resources {
    /// A topic, or * for all; may be given several times.
    #[arg(long, value_name = "NAME")]
    topic: Vec<String>,
    /// A consumer group, or * for all; may be given several times.
    #[arg(long, value_name = "NAME")]
    group: Vec<String>,
    /// A transactional id, or * for all; may be given several times.
    #[arg(long, value_name = "ID")]
    transactional_id: Vec<String>,
    /// The cluster.
    #[arg(long)]
    cluster: bool,
}

impl Resources {
    pub(super) fn has_cluster(&self) -> bool {
        self.cluster
    }

    /// All named resources, with their types.
    pub(super) fn all(&self) -> Vec<(ResourceType, String)> {
        let of = |kind: ResourceType, names: &[String]| -> Vec<(ResourceType, String)> {
            names.iter().map(|name| (kind, name.clone())).collect()
        };
        let mut all = of(ResourceType::Topic, &self.topic);
        all.extend(of(ResourceType::Group, &self.group));
        all.extend(of(ResourceType::TransactionalId, &self.transactional_id));
        all.extend(self.cluster.then(|| (ResourceType::Cluster, CLUSTER_NAME.to_owned())));
        all
    }
}

/// `alter-configs` and `AlterConfigs` are the same.
pub(super) fn operation(text: &str) -> Result<AclOperation, String> {
    AclOperation::from_name(&text.replace(['-', '_'], "")).ok_or_else(|| {
        let names: Vec<_> = AclOperation::ALL.iter().map(|one| one.name().to_lowercase()).collect();
        format!("there is no such operation; there are {}", names.join(", "))
    })
}

/// A pattern type of rules, or a filter of pattern types.
pub(super) fn pattern(text: &str) -> Result<PatternFilter, String> {
    if text.eq_ignore_ascii_case("any") {
        return Ok(PatternFilter::Any);
    }
    if text.eq_ignore_ascii_case("match") {
        return Ok(PatternFilter::Match);
    }
    let pattern_type = PatternType::from_name(text).map(PatternFilter::Only);
    pattern_type.ok_or_else(|| "use literal, prefixed, match or any".to_owned())
}

/// The effect of rules: allow or deny.
pub(super) fn permission(text: &str) -> Result<AclPermissionType, String> {
    AclPermissionType::from_name(text).ok_or_else(|| "use allow or deny".to_owned())
}

/// The prefix of the principals that connections have.
const USER: &str = "User:";

/// A user: `NAME` is `User:NAME`. A name that begins like another type of principal is given as `User:NAME`: a rule about a principal
/// of another type concerns no connection.
pub(super) fn principal(text: &str) -> Result<String, String> {
    match type_of(text) {
        _ if text.is_empty() || text == USER => Err("a user has a name".to_owned()),
        None => Ok(format!("{USER}{text}")),
        Some(USER) => Ok(text.to_owned()),
        Some(other) => Err(format!(
            "connections have principals of the type User alone, so that nothing about {other} concerns them; name the user, or \
             write {USER}{text} for a user of that name"
        )),
    }
}

/// The principal of existing rules, of any type.
pub(super) fn any_principal(text: &str) -> Result<String, String> {
    match type_of(text) {
        Some(_) if text != USER => Ok(text.to_owned()),
        _ => principal(text),
    }
}

/// The part of a text before its first colon, colon included.
fn type_of(text: &str) -> Option<&str> {
    let end = text.find(':')?;
    let word = &text[..=end];
    (end > 0 && text[..end].bytes().all(|byte| byte.is_ascii_alphabetic())).then_some(word)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_principal_is_a_user_whatever_its_name_looks_like() {
        for (text, expected) in [
            ("alice", "User:alice"),
            ("*", "User:*"),
            ("User:alice", "User:alice"),
            ("User:Group:admins", "User:Group:admins"),
            ("CN=a:b,O=c", "User:CN=a:b,O=c"),
            (":", "User::"),
        ] {
            assert_eq!(principal(text).as_deref(), Ok(expected), "{text}");
        }
        for text in ["", "User:"] {
            assert_eq!(principal(text).unwrap_err(), "a user has a name");
            assert_eq!(any_principal(text).unwrap_err(), "a user has a name");
        }
        let refused = principal("Group:admins").unwrap_err();
        assert!(
            refused.contains("nothing about Group: concerns") && refused.contains("User:Group:admins"),
            "{refused}"
        );
        // Rules that another tool has made can be listed, and removed.
        assert_eq!(any_principal("Group:admins").as_deref(), Ok("Group:admins"));
        assert_eq!(any_principal("alice").as_deref(), Ok("User:alice"));
    }
}
