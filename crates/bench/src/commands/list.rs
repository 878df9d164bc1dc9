//! `mainstem-bench list`.

use anyhow::Result;
use clap::Args;
use mainstem_bench::{Durability, System, Workload};
use serde_json::{Value, json};

use mainstem_terminal::{print, print_json, table};

/// Arguments of `mainstem-bench list`.
#[derive(Debug, Args)]
pub(crate) struct List {
    /// Print JSON.
    #[arg(long)]
    pub(crate) json: bool,
}

/// Lists every workload, and where it can be run.
pub(crate) fn run(list: &List) -> Result<()> {
    if list.json {
        return print_json(&Workload::all().iter().map(|&workload| describe(workload)).collect());
    }
    let rows = Workload::all().iter().map(|&workload| {
        vec![
            workload.name().to_owned(),
            workload.family().to_owned(),
            durabilities(workload).join(", "),
            systems(workload).join(", "),
            workload.about().to_owned(),
        ]
    });
    print(&table(&["WORKLOAD", "FAMILY", "DURABILITY", "SYSTEMS", "WHAT"], rows.collect()))
}

fn describe(workload: Workload) -> Value {
    json!({
        "name": workload.name(),
        "family": workload.family(),
        "durabilities": durabilities(workload),
        "systems": systems(workload),
        "about": workload.about(),
    })
}

fn durabilities(workload: Workload) -> Vec<&'static str> {
    let applies = |durability: &Durability| {
        System::ALL.into_iter().any(|system| workload.applies_to(system, *durability))
    };
    Durability::ALL.into_iter().filter(applies).map(Durability::name).collect()
}

/// The two variants of Mainstem are left out: what runs on it runs on them.
fn systems(workload: Workload) -> Vec<&'static str> {
    let systems = [
        System::Kafka,
        System::Mainstem,
        System::Probe,
        System::KafkaSecured,
        System::MainstemSecured,
        System::Chronicle,
        System::Queue,
    ]
    .into_iter();
    systems.filter(|&system| workload.applies_to(system, Durability::PageCache)).map(System::name).collect()
}
