//! `mainstem topic create`.

use anyhow::Result;
use clap::Args;
use mainstem_client::{CreatedTopic, ErrorCode, NewTopic};
use serde_json::json;

use crate::configs::Setting;
use crate::output::{counted, print_json, print_line};
use crate::target::Target;

/// Arguments of `topic create`.
#[derive(Debug, Args)]
pub(crate) struct Create {
    /// Name of the topic.
    topic: String,
    /// Number of partitions. [default: the broker's num.partitions]
    #[arg(long, short, value_name = "N", value_parser = clap::value_parser!(i32).range(1..))]
    partitions: Option<i32>,
    /// Number of replicas. [default: the broker's default.replication.factor]
    #[arg(long, short, value_name = "N", value_parser = clap::value_parser!(i16).range(1..))]
    replication_factor: Option<i16>,
    /// A setting of the topic, such as retention.ms=86400000 or write.caching=true; may be given several times.
    #[arg(long = "config", visible_alias = "set", short, visible_short_alias = 's', value_name = "KEY=VALUE", value_parser = Setting::parse)]
    configs: Vec<Setting>,
    /// Do nothing, successfully, if the topic exists already; its settings stay as they are.
    #[arg(long)]
    if_not_exists: bool,
    /// Print JSON.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    target: Target,
}

/// Creates the topic.
pub(crate) async fn run(create: &Create) -> Result<()> {
    let admin = create.target.connect().await?;
    let topic = NewTopic {
        partitions: create.partitions,
        replication_factor: create.replication_factor,
        configs: create.configs.iter().map(|one| (one.key.clone(), one.value.clone())).collect(),
        ..NewTopic::new(create.topic.as_str())
    };
    match admin.create_topic(&topic).await {
        Ok(created) => report(create, &created),
        Err(error) if error.code() == Some(ErrorCode::TOPIC_ALREADY_EXISTS) => {
            exists(create).unwrap_or(Err(error.into()))
        }
        Err(error) => Err(error.into()),
    }
}

fn report(create: &Create, created: &CreatedTopic) -> Result<()> {
    if create.json {
        return print_json(&json!({
            "topic": create.topic,
            "created": true,
            "id": created.id.to_string(),
            "partitions": created.partitions,
            "replication_factor": created.replication_factor,
        }));
    }
    let partitions = created.partitions.map(|count| counted(count.unsigned_abs().into(), "partition"));
    let replicas = created
        .replication_factor
        .map(|count| format!("{} each", counted(count.unsigned_abs().into(), "replica")));
    let counts: Vec<String> = partitions.into_iter().chain(replicas).collect();
    match counts.is_empty() {
        true => print_line(&format!("created topic {}", create.topic)),
        false => print_line(&format!("created topic {} with {}", create.topic, counts.join(", "))),
    }
}

/// The result if the topic exists already; none if that is an error.
fn exists(create: &Create) -> Option<Result<()>> {
    match (create.if_not_exists, create.json) {
        (false, _) => None,
        (true, true) => Some(print_json(&json!({"topic": create.topic, "created": false}))),
        (true, false) => Some(print_line(&format!("topic {} exists already", create.topic))),
    }
}
