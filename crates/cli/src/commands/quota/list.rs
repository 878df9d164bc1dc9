//! `mainstem quota list`.

use anyhow::Result;
use clap::Args;
use mainstem_wire::messages::describe_client_quotas_request::{ComponentData, DescribeClientQuotasRequest};
use mainstem_wire::messages::describe_client_quotas_response::EntryData;
use serde_json::{Map, Value, json};

use super::entity::{EntityOptions, Part, Shown};
use crate::client::check_message;
use crate::cluster::Cluster;
use crate::output::{print, print_json, table};
use crate::target::Target;

/// `match_type` of DescribeClientQuotas.
const EXACT: i8 = 0;
const OF_THE_DEFAULT: i8 = 1;

/// What `quota list` takes.
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

/// The quotas of one entity.
#[derive(Debug, PartialEq)]
struct Listed {
    entity: Vec<Part>,
    quotas: Vec<(String, f64)>,
}

/// Lists the quotas that are set.
pub(crate) fn run(list: &List) -> Result<()> {
    let mut cluster = list.target.connect()?;
    let listed = ask(&mut cluster, &list.entity.parts())?;
    if list.json {
        return print_json(&listed.iter().map(Listed::to_json).collect());
    }
    match listed.is_empty() {
        true => print("no quotas are set"),
        false => {
            print(&table(&["ENTITY", "QUOTA", ">VALUE"], listed.iter().flat_map(Listed::rows).collect()))
        }
    }
}

fn ask(cluster: &mut Cluster, parts: &[Part]) -> Result<Vec<Listed>> {
    let component = |part: &Part| ComponentData {
        entity_type: part.kind.clone().into(),
        match_type: if part.name.is_some() { EXACT } else { OF_THE_DEFAULT },
        match_: part.name.clone().map(Into::into),
        ..Default::default()
    };
    let request = DescribeClientQuotasRequest {
        components: parts.iter().map(component).collect(),
        strict: false,
        ..Default::default()
    };
    cluster.retrying(|cluster| {
        let response = cluster.any()?.call(&request)?;
        check_message(response.error_code, response.error_message.as_deref(), || {
            "cannot list the quotas".to_owned()
        })?;
        let mut listed: Vec<Listed> =
            response.entries.unwrap_or_default().iter().map(Listed::from_response).collect();
        listed.sort_by_key(|listed| Shown(&listed.entity).to_string());
        Ok(listed)
    })
}

impl Listed {
    fn from_response(entry: &EntryData<'_>) -> Listed {
        let entity = entry.entity.iter().map(|part| Part {
            kind: part.entity_type.to_string(),
            name: part.entity_name.as_deref().map(str::to_owned),
        });
        let mut quotas: Vec<(String, f64)> =
            entry.values.iter().map(|value| (value.key.to_string(), value.value)).collect();
        quotas.sort_by(|a, b| a.0.cmp(&b.0));
        Listed { entity: entity.collect(), quotas }
    }

    fn to_json(&self) -> Value {
        let entity: Map<String, Value> =
            self.entity.iter().map(|part| (part.kind.clone(), part.name.clone().into())).collect();
        let quotas: Map<String, Value> =
            self.quotas.iter().map(|(key, value)| (key.clone(), (*value).into())).collect();
        json!({"entity": entity, "quotas": quotas})
    }

    fn rows(&self) -> Vec<Vec<String>> {
        let entity = Shown(&self.entity).to_string();
        self.quotas.iter().map(|(key, value)| vec![entity.clone(), key.clone(), value.to_string()]).collect()
    }
}
