//! `mainstem topic delete`.

use anyhow::{Result, bail};
use clap::Args;

use crate::deletion::Deletion;
use crate::output::joined;

/// What `topic delete` takes.
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
    let question = || format!("delete {} and all records in it?", joined(&delete.topics));
    let admin = delete.deletion.begin(question).await?;
    if !delete.deletion.if_exists {
        // A misspelt name is found before anything is gone.
        for topic in &delete.topics {
            if admin.find_topic(topic).await?.is_none() {
                bail!("there is no topic {topic}; nothing was deleted, see `mainstem topic list`");
            }
        }
    }
    let mut results = Vec::new();
    for topic in &delete.topics {
        results.push((topic.as_str(), admin.delete_topic_if_exists(topic).await?));
    }
    delete.deletion.report("topic", &results)
}
