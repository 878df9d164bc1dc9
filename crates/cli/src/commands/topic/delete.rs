//! `mainstem topic delete`.

use anyhow::{Context, Result, bail};
use clap::Args;
use mainstem_wire::ErrorCode;
use mainstem_wire::messages::delete_topics_request::{DeleteTopicState, DeleteTopicsRequest};

use crate::client::check_message;
use crate::cluster::Cluster;
use crate::deletion::Deletion;
use crate::output::joined;

const TIMEOUT_MS: i32 = 30_000;

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
pub(crate) fn run(delete: &Delete) -> Result<()> {
    let mut cluster =
        delete.deletion.begin(|| format!("delete {} and all records in it?", joined(&delete.topics)))?;
    if !delete.deletion.if_exists {
        // A misspelt name is found before anything is gone.
        for topic in &delete.topics {
            if cluster.find_topic(topic)?.is_none() {
                bail!("there is no topic {topic}; nothing was deleted, see `mainstem topic list`");
            }
        }
    }
    let mut results = Vec::new();
    for topic in &delete.topics {
        results.push((topic.as_str(), request(topic, &mut cluster)?));
    }
    delete.deletion.report("topic", &results)
}

/// Deletes a topic; false if it was not there.
fn request(topic: &str, cluster: &mut Cluster) -> Result<bool> {
    let state = DeleteTopicState { name: Some(topic.into()), ..Default::default() };
    let mut request = DeleteTopicsRequest { timeout_ms: TIMEOUT_MS, ..Default::default() };
    // Version 6 names topics in another field.
    match cluster.any()?.serves_version::<DeleteTopicsRequest<'_>>(6) {
        true => request.topics = vec![state],
        false => request.topic_names = vec![topic.into()],
    }
    let mut attempts = 0;
    cluster.retrying(|cluster| {
        attempts += 1;
        let response = cluster.any()?.call(&request)?;
        let result = response.responses.first().context("the broker left out the topic")?;
        if result.error_code == ErrorCode::UNKNOWN_TOPIC_OR_PARTITION.code() {
            // In a later attempt it is the one before, whose answer was lost, that has deleted it.
            return Ok(attempts > 1);
        }
        check_message(result.error_code, result.error_message.as_deref(), || {
            format!("cannot delete topic {topic}")
        })?;
        Ok(true)
    })
}
