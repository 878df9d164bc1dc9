//! `mainstem quota list`.

use std::collections::BTreeMap;

use anyhow::Result;
use clap::Args;
use mainstem_client::QuotaEntity;
use serde_json::{Value, json};

use super::entity::{EntityOptions, Shown};
use crate::output::{print, print_json, table};
use crate::target::Target;

/// Arguments of `quota list`.
#[derive(Debug, Args)]
pub(crate) struct List {
    #[command(flatten)]
    entity: EntityOptions,
    /// Print JSON.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    target: Target,
}

/// The quotas of one entity, by Kafka's names.
type Listed = (QuotaEntity, BTreeMap<String, f64>);

/// Lists the quotas that are set.
pub(crate) async fn run(list: &List) -> Result<()> {
    let admin = list.target.connect().await?;
    let mut listed: Vec<Listed> = admin.quotas(&list.entity.filters(), false).await?.into_iter().collect();
    listed.sort_by_key(|(entity, _)| Shown(entity).to_string());
    if list.json {
        return print_json(&listed.iter().map(to_json).collect());
    }
    match listed.is_empty() {
        true => print("no quotas are set"),
        false => print(&table(&["ENTITY", "QUOTA", ">VALUE"], listed.iter().flat_map(rows).collect())),
    }
}

fn to_json((entity, quotas): &Listed) -> Value {
    json!({"entity": entity, "quotas": quotas})
}

fn rows((entity, quotas): &Listed) -> Vec<Vec<String>> {
    let entity = Shown(entity).to_string();
    quotas.iter().map(|(key, value)| vec![entity.clone(), key.clone(), value.to_string()]).collect()
}
