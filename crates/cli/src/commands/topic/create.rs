//! `mainstem topic create`.

use anyhow::{Context, Result};
use clap::Args;
use mainstem_wire::messages::create_topics_request::{
    CreatableTopic, CreatableTopicConfig, CreateTopicsRequest,
};
use mainstem_wire::{ErrorCode, Uuid};
use serde_json::json;

use crate::client::{check_message, code_of};
use crate::cluster::Cluster;
use crate::configs::Setting;
use crate::output::{counted, print, print_json};
use crate::target::Target;

/// The broker's own default, for partitions and for replicas.
const BROKER_DEFAULT: i32 = -1;
const TIMEOUT_MS: i32 = 30_000;

/// What `topic create` takes.
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
    #[arg(long = "config", short, value_name = "KEY=VALUE", value_parser = Setting::parse)]
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

/// What the broker made.
struct Created {
    id: Uuid,
    partitions: i32,
    replication_factor: i16,
}

/// Creates the topic.
pub(crate) fn run(create: &Create) -> Result<()> {
    let mut cluster = create.target.connect()?;
    match request(create, &mut cluster) {
        Ok(created) => report(create, &created),
        Err(error) if code_of(&error) == Some(ErrorCode::TOPIC_ALREADY_EXISTS) => {
            exists(create).unwrap_or(Err(error))
        }
        Err(error) => Err(error),
    }
}

fn request(create: &Create, cluster: &mut Cluster) -> Result<Created> {
    let config = |setting: &Setting| CreatableTopicConfig {
        name: setting.key.clone().into(),
        value: Some(setting.value.clone().into()),
        ..Default::default()
    };
    let request = CreateTopicsRequest {
        topics: vec![CreatableTopic {
            name: create.topic.as_str().into(),
            num_partitions: create.partitions.unwrap_or(BROKER_DEFAULT),
            replication_factor: create.replication_factor.unwrap_or(BROKER_DEFAULT as i16),
            configs: create.configs.iter().map(config).collect(),
            ..Default::default()
        }],
        timeout_ms: TIMEOUT_MS,
        ..Default::default()
    };
    cluster.retrying(|cluster| {
        let response = cluster.any()?.call(&request)?;
        let result = response.topics.into_iter().next().context("the broker left out the topic")?;
        check_message(result.error_code, result.error_message.as_deref(), || {
            format!("cannot create topic {}", create.topic)
        })?;
        Ok(Created {
            id: result.topic_id,
            partitions: result.num_partitions,
            replication_factor: result.replication_factor,
        })
    })
}

fn report(create: &Create, created: &Created) -> Result<()> {
    if create.json {
        return print_json(&json!({
            "topic": create.topic,
            "created": true,
            "id": created.id.to_string(),
            "partitions": created.partitions,
            "replication_factor": created.replication_factor,
        }));
    }
    print(&format!(
        "created topic {} with {}, {} each",
        create.topic,
        counted(created.partitions.unsigned_abs().into(), "partition"),
        counted(created.replication_factor.unsigned_abs().into(), "replica"),
    ))
}

/// The end of a command whose topic is there already; none if that is an error.
fn exists(create: &Create) -> Option<Result<()>> {
    match (create.if_not_exists, create.json) {
        (false, _) => None,
        (true, true) => Some(print_json(&json!({"topic": create.topic, "created": false}))),
        (true, false) => Some(print(&format!("topic {} exists already", create.topic))),
    }
}
