//! How resources, operations and users are named at the command line.

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
    /// All that are named, with their kinds.
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

/// A pattern type of rules, or what chooses among them.
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

/// What rules do.
pub(super) fn permission(text: &str) -> Result<AclPermissionType, String> {
    AclPermissionType::from_name(text).ok_or_else(|| "use allow or deny".to_owned())
}

/// `NAME` is `User:NAME`.
pub(super) fn principal(text: &str) -> Result<String, String> {
    match text {
        "" => Err("a user has a name".to_owned()),
        _ if text.starts_with("User:") => Ok(text.to_owned()),
        _ => Ok(format!("User:{text}")),
    }
}
