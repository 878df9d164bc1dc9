//! `mainstem dead-letters list`.

use anyhow::Result;
use clap::Args;
use mainstem_client::Position;
use serde_json::{Value, json};

use crate::offsets;
use crate::output::{print, print_json, table};
use crate::target::Target;
use crate::topic::led;

/// The prefix of the names of topics of dead letters, as handlers and share groups give it.
const PREFIX: &str = "dlq.";

/// Arguments of `dead-letters list`.
#[derive(Debug, Args)]
#[command(after_help = "\
The list has topics whose names begin with dlq., which is the default of handlers. To see letters in other topics, use
`mainstem dead-letters show` with their names.")]
pub(crate) struct List {
    /// Print JSON.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    target: Target,
}

/// A topic of letters.
struct Listed {
    topic: String,
    partitions: usize,
    letters: i64,
}

/// Lists the topics, by name.
pub(crate) async fn run(list: &List) -> Result<()> {
    let admin = list.target.connect().await?;
    let mut listed = Vec::new();
    for topic in admin.topics().await?.into_iter().filter(|topic| topic.name.starts_with(PREFIX)) {
        let keys = led(&topic);
        let begins = offsets::find(&admin, &keys, Position::Beginning).await?;
        let ends = offsets::find(&admin, &keys, Position::End).await?;
        let letters = ends.iter().map(|(key, end)| end - begins.get(key).unwrap_or(end)).sum();
        listed.push(Listed { topic: topic.name.to_string(), partitions: topic.partitions.len(), letters });
    }
    listed.sort_by(|one, other| one.topic.cmp(&other.topic));
    if list.json {
        let line =
            |one: &Listed| json!({"topic": one.topic, "partitions": one.partitions, "letters": one.letters});
        return print_json(&listed.iter().map(line).collect::<Value>());
    }
    if listed.is_empty() {
        return print("there are no topics of dead letters");
    }
    let row = |one: &Listed| vec![one.topic.clone(), one.partitions.to_string(), one.letters.to_string()];
    print(&table(&["TOPIC", ">PARTITIONS", ">LETTERS"], listed.iter().map(row).collect()))
}
