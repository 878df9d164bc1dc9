//! `mainstem transaction list`.

use std::time::Duration;

use anyhow::Result;
use clap::Args;
use clap::builder::PossibleValuesParser;
use mainstem_client::{TransactionFilter, TransactionListing};
use serde_json::{Value, json};

use crate::output::{print, print_json, table};
use crate::target::Target;

/// The states of a transaction, as Kafka names them.
const STATES: [&str; 8] = [
    "Empty",
    "Ongoing",
    "PrepareCommit",
    "PrepareAbort",
    "CompleteCommit",
    "CompleteAbort",
    "PrepareEpochFence",
    "Dead",
];

/// Arguments of `transaction list`.
#[derive(Debug, Args)]
pub(crate) struct List {
    /// Only transactions in this state; may be given several times.
    #[arg(long = "state", value_name = "STATE", value_parser = PossibleValuesParser::new(STATES), ignore_case = true)]
    states: Vec<String>,
    /// Only those of this producer id; may be given several times.
    #[arg(long = "producer-id", value_name = "ID")]
    producer_ids: Vec<i64>,
    /// Only transactions that are open for longer than so many milliseconds.
    #[arg(long, value_name = "MS")]
    duration_filter: Option<u64>,
    /// Print JSON.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    target: Target,
}

/// Lists the transactional ids of all coordinators.
pub(crate) async fn run(list: &List) -> Result<()> {
    let filter = TransactionFilter {
        states: list.states.iter().map(|state| spelled(state)).collect(),
        producer_ids: list.producer_ids.clone(),
        longer_than: list.duration_filter.map(Duration::from_millis),
    };
    let found = list.target.connect().await?.transactions(&filter).await?;
    match (list.json, found.is_empty()) {
        (true, _) => print_json(&found.iter().map(to_json).collect()),
        (false, true) => print("there are no such transactions"),
        (false, false) => print(&as_table(&found)),
    }
}

/// A state as Kafka spells it.
fn spelled(state: &str) -> String {
    let found = STATES.iter().find(|known| known.eq_ignore_ascii_case(state));
    found.map_or_else(|| state.to_owned(), |known| (*known).to_owned())
}

fn to_json(listed: &TransactionListing) -> Value {
    json!({
        "transactional_id": listed.transactional_id,
        "coordinator": listed.coordinator,
        "producer_id": listed.producer_id,
        "state": listed.state,
    })
}

fn as_table(found: &[TransactionListing]) -> String {
    let row = |listed: &TransactionListing| {
        let numbers = [listed.coordinator.to_string(), listed.producer_id.to_string()];
        let mut row = vec![listed.transactional_id.clone()];
        row.extend(numbers);
        row.push(listed.state.clone());
        row
    };
    table(&["TRANSACTIONAL ID", ">COORDINATOR", ">PRODUCER ID", "STATE"], found.iter().map(row).collect())
}
