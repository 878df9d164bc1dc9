//! `mainstem topic delete`.

use std::sync::Arc;

use anyhow::{Result, bail};
use clap::Args;
use mainstem_client::{Admin, Position, Topic};
use serde_json::{Value, json};

use crate::deletion::Deletion;
use crate::execution::Plan;
use crate::offsets;
use crate::output::{counted, table};
use crate::topic::led;

/// Arguments of `topic delete`.
#[derive(Debug, Args)]
pub(crate) struct Delete {
    /// Names of the topics.
    #[arg(required = true)]
    topics: Vec<String>,
    #[command(flatten)]
    deletion: Deletion,
}

/// Deletes the topics, one after another.
pub(crate) async fn run(delete: &Delete) -> Result<()> {
    let admin = delete.deletion.connect().await?;
    let mut found = Vec::new();
    for name in &delete.topics {
        match admin.find_topic(name).await? {
            Some(topic) => found.push(topic),
            None if delete.deletion.if_exists => {}
            // Names are checked first, so that a misspelt one stops the command before it deletes anything.
            None => bail!("there is no topic {name}; nothing was deleted, see `mainstem topic list`"),
        }
    }
    if !delete.deletion.begin(plan(&admin, &found)).await? {
        return Ok(());
    }
    let mut results = Vec::new();
    for topic in &delete.topics {
        results.push((topic.as_str(), admin.delete_topic_if_exists(topic).await?));
    }
    delete.deletion.report("topic", &results)
}

/// The topics with the contents of their partitions. Those without a leader do not report their size.
async fn plan(admin: &Admin, topics: &[Arc<Topic>]) -> Result<Plan> {
    let (mut rows, mut json) = (Vec::new(), Vec::new());
    for topic in topics {
        let keys = led(topic);
        let begins = offsets::find(admin, &keys, Position::Beginning).await?;
        let ends = offsets::find(admin, &keys, Position::End).await?;
        let records: i64 = ends.iter().map(|(key, end)| end - begins.get(key).unwrap_or(end)).sum();
        let partitions = topic.partitions.len();
        rows.push(vec![topic.name.to_string(), partitions.to_string(), records.to_string()]);
        json.push(json!({"topic": &*topic.name, "partitions": partitions, "records": records}));
    }
    let count = counted(topics.len() as u64, "topic");
    let rows = table(&["TOPIC", ">PARTITIONS", ">RECORDS"], rows);
    let text = format!("{count} would be deleted with all records:\n\n{rows}");
    Ok(Plan { text, json: json!({ "topics": Value::from(json) }) })
}
