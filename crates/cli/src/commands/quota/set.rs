//! `mainstem quota set`.

use std::collections::BTreeMap;

use anyhow::{Result, ensure};
use clap::Args;
use serde_json::{Map, Value, json};

use super::entity::{EntityOptions, Shown};
use crate::output::{joined, print_json, print_line};
use crate::target::Target;

/// Arguments of `quota set`.
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
pub(crate) async fn run(set: &Set) -> Result<()> {
    let entity = set.entity.entity();
    ensure!(
        !entity.is_empty(),
        "say whom the quota is for: --user, --client, --ip, or one of their --…-default"
    );
    let sets = set.set.iter().map(|(key, value)| (key.clone(), Some(*value)));
    let removals = set.delete.iter().map(|key| (key.clone(), None));
    let quotas: BTreeMap<String, Option<f64>> = sets.chain(removals).collect();
    set.target.connect().await?.alter_quotas(&entity, &quotas, false).await?;
    if set.json {
        let values: Map<String, Value> =
            set.set.iter().map(|(key, value)| (key.clone(), (*value).into())).collect();
        return print_json(&json!({"entity": entity, "set": values, "deleted": set.delete}));
    }
    let mut changes: Vec<String> = set.set.iter().map(|(key, value)| format!("{key}={value}")).collect();
    if !set.delete.is_empty() {
        changes.push(format!("no {}", joined(&set.delete)));
    }
    print_line(&format!("changed the quotas of {}: {}", Shown(&entity), changes.join("; ")))
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
