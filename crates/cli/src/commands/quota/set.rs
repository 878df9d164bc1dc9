//! `mainstem quota set`.

use anyhow::{Context, Result, ensure};
use clap::Args;
use mainstem_wire::messages::alter_client_quotas_request::{
    AlterClientQuotasRequest, EntityData, EntryData, OpData,
};
use serde_json::{Map, Value, json};

use super::entity::{EntityOptions, Part, Shown};
use crate::client::check_message;
use crate::cluster::Cluster;
use crate::output::{joined, print, print_json};
use crate::target::Target;

/// What `quota set` takes.
#[derive(Debug, Args)]
#[group(id = "changes", required = true, multiple = true, args = ["set", "delete"])]
pub(crate) struct Set {
    #[command(flatten)]
    entity: EntityOptions,
    /// Quotas: producer_byte_rate, consumer_byte_rate (bytes per second), request_percentage (of one thread),
    /// controller_mutation_rate (partitions per second), and for addresses connection_creation_rate (per second).
    #[arg(value_name = "KEY=VALUE", value_parser = quota)]
    set: Vec<(String, f64)>,
    /// A quota to remove; may be given several times.
    #[arg(long, short, value_name = "KEY")]
    delete: Vec<String>,
    /// Print JSON.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    target: Target,
}

fn quota(text: &str) -> Result<(String, f64), String> {
    text.split_once('=')
        .and_then(|(key, value)| Some((key.trim().to_owned(), value.trim().parse().ok()?)))
        .filter(|(key, value): &(String, f64)| !key.is_empty() && value.is_finite() && *value > 0.0)
        .ok_or_else(|| {
            "expected KEY=VALUE with a positive number, such as producer_byte_rate=1048576".to_owned()
        })
}

/// Changes the quotas, all or none.
pub(crate) fn run(set: &Set) -> Result<()> {
    let entity = set.entity.parts();
    ensure!(
        !entity.is_empty(),
        "say whom the quota is for: --user, --client, --ip, or one of their --…-default"
    );
    let mut cluster = set.target.connect()?;
    request(&mut cluster, &entity, set)?;
    if set.json {
        let names: Map<String, Value> =
            entity.iter().map(|part| (part.kind.clone(), part.name.clone().into())).collect();
        let values: Map<String, Value> =
            set.set.iter().map(|(key, value)| (key.clone(), (*value).into())).collect();
        return print_json(&json!({"entity": names, "set": values, "deleted": set.delete}));
    }
    let mut changes: Vec<String> = set.set.iter().map(|(key, value)| format!("{key}={value}")).collect();
    if !set.delete.is_empty() {
        changes.push(format!("no {}", joined(&set.delete)));
    }
    print(&format!("changed the quotas of {}: {}", Shown(&entity), changes.join("; ")))
}

fn request(cluster: &mut Cluster, entity: &[Part], set: &Set) -> Result<()> {
    let part = |part: &Part| EntityData {
        entity_type: part.kind.clone().into(),
        entity_name: part.name.clone().map(Into::into),
        ..Default::default()
    };
    let sets = set.set.iter().map(|(key, value)| (key, *value, false));
    let removals = set.delete.iter().map(|key| (key, 0.0, true));
    let op = |(key, value, remove): (&String, f64, bool)| OpData {
        key: key.clone().into(),
        value,
        remove,
        ..Default::default()
    };
    let request = AlterClientQuotasRequest {
        entries: vec![EntryData {
            entity: entity.iter().map(part).collect(),
            ops: sets.chain(removals).map(op).collect(),
            ..Default::default()
        }],
        validate_only: false,
        ..Default::default()
    };
    cluster.retrying(|cluster| {
        let response = cluster.any()?.call(&request)?;
        let result = response.entries.first().context("the broker left out the result")?;
        check_message(result.error_code, result.error_message.as_deref(), || {
            format!("cannot change the quotas of {}", Shown(entity))
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quotas_are_positive_numbers() {
        assert_eq!(quota("producer_byte_rate = 1e6"), Ok(("producer_byte_rate".to_owned(), 1e6)));
        for wrong in ["producer_byte_rate", "x=", "x=-1", "x=0", "x=inf", "=1"] {
            assert!(quota(wrong).is_err(), "{wrong}");
        }
    }
}
