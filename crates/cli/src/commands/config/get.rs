//! `mainstem config get`.

use anyhow::{Result, bail};
use clap::Args;
use mainstem_client::ConfigEntry;
use serde_json::{Value, json};

use crate::configs::{self, Resource};
use crate::output::{joined, print, print_json, print_line, table};
use crate::target::Target;

/// Arguments of `config get`.
#[derive(Debug, Args)]
pub(crate) struct Get {
    /// The resource: topic/NAME, broker/ID, broker (the defaults of all brokers), group/NAME, logger/ID or
    /// client-metrics/NAME.
    #[arg(value_parser = Resource::parse)]
    resource: Resource,
    /// Only these settings, wherever they were set. [default: those that were set for the resource itself]
    #[arg(value_name = "KEY")]
    keys: Vec<String>,
    /// Every setting, also those that have their defaults.
    #[arg(long, conflicts_with = "keys")]
    all: bool,
    /// Print JSON.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    target: Target,
}

/// Shows the settings.
pub(crate) async fn run(get: &Get) -> Result<()> {
    let admin = get.target.connect().await?;
    let chosen = choose(get, configs::describe(&admin, &get.resource).await?)?;
    if get.json {
        let configs: Value = chosen.iter().map(configs::to_json).collect();
        return print_json(&json!({"resource": get.resource.to_string(), "configs": configs}));
    }
    if chosen.is_empty() {
        return print_line(&format!(
            "nothing is set for {} itself; --all shows what applies to it",
            get.resource
        ));
    }
    let row = |config: &ConfigEntry| {
        vec![config.name.clone(), configs::shown(config).to_owned(), config.source.name().to_owned()]
    };
    print(&table(&["KEY", "VALUE", "SOURCE"], chosen.iter().map(row).collect()))
}

fn choose(get: &Get, mut configs: Vec<ConfigEntry>) -> Result<Vec<ConfigEntry>> {
    let unknown = |key: &&String| !configs.iter().any(|config| config.name == **key);
    let unknown: Vec<&String> = get.keys.iter().filter(unknown).collect();
    if !unknown.is_empty() {
        bail!(
            "{} has no setting {}; `mainstem config get {} --all` lists those that it has",
            get.resource,
            joined(unknown),
            get.resource
        );
    }
    configs.retain(|config| match get.keys.is_empty() {
        true => get.all || get.resource.owns(config),
        false => get.keys.contains(&config.name),
    });
    Ok(configs)
}
