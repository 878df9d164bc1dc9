//! `mainstem cluster`: nodes, controller, features and directories; leaders of partitions, and nodes of replicas.

mod elect;
mod finalize;
mod levels;
mod reassign;
mod state;
mod status;
mod transfer;

use anyhow::Result;
use clap::{Args, Subcommand};
use mainstem_client::{Admin, ClusterDescription, Error, ErrorCode};
use serde_json::{Value, json};

use crate::output::{bytes, print, print_json, shown, table};
use crate::target::Target;

/// The level of a feature that the cluster does not use.
const OFF: i16 = 0;
/// The controller while there is none.
const NO_LEADER: i32 = -1;

/// Arguments of `cluster`.
#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct ClusterArguments {
    #[command(subcommand)]
    command: Option<ClusterCommand>,
    /// Print JSON.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    target: Target,
}

#[derive(Debug, Subcommand)]
enum ClusterCommand {
    /// Show the nodes: who is up, fenced or silent, who votes and leads, how many partitions each leads, which lack replicas or a leader.
    Status(status::Status),
    /// Have another node lead a partition, from now on whenever it can.
    Transfer(transfer::Transfer),
    /// Elect the preferred leaders of partitions, or with --unclean any replica.
    Elect(elect::Elect),
    /// End an upgrade: let the nodes write what the release before does not know. Without --execute nothing is changed.
    Finalize(finalize::Finalize),
    /// Show, begin and cancel reassignments of partitions to nodes. Without --execute nothing is changed.
    Reassign(reassign::Reassign),
}

struct Description {
    id: String,
    controller: i32,
    nodes: Vec<Node>,
    features: Vec<Feature>,
}

struct Node {
    id: i32,
    host: String,
    port: i32,
    rack: Option<String>,
    log_dirs: Vec<LogDir>,
}

struct LogDir {
    path: String,
    /// The error, if the directory cannot be used.
    error: Option<ErrorCode>,
    partitions: usize,
    partition_bytes: u64,
    /// Free bytes of the file system; none where the broker does not report them.
    usable_bytes: Option<u64>,
}

/// A feature whose level the cluster has settled on (KIP-584).
struct Feature {
    name: String,
    level: i16,
}

/// Describes the cluster, or what its subcommand says.
pub(crate) async fn run(arguments: &ClusterArguments) -> Result<()> {
    match &arguments.command {
        Some(ClusterCommand::Status(status)) => return status::run(status).await,
        Some(ClusterCommand::Transfer(transfer)) => return transfer::run(transfer).await,
        Some(ClusterCommand::Elect(elect)) => return elect::run(elect).await,
        Some(ClusterCommand::Finalize(finalize)) => return finalize::run(finalize).await,
        Some(ClusterCommand::Reassign(reassign)) => return reassign::run(reassign).await,
        None => {}
    }
    let admin = arguments.target.connect().await?;
    let description = collect(&admin).await?;
    match arguments.json {
        true => print_json(&description.to_json()),
        false => print(&description.to_text()),
    }
}

async fn collect(admin: &Admin) -> Result<Description> {
    let ClusterDescription { cluster_id, controller, brokers } = admin.cluster().await?;
    let mut nodes = Vec::new();
    for (id, broker) in brokers {
        let log_dirs = log_dirs(admin, id).await?;
        nodes.push(Node { id, host: broker.host, port: broker.port, rack: broker.rack, log_dirs });
    }
    let features = admin.features().await?.into_iter().filter(|(_, feature)| feature.level != OFF);
    Ok(Description {
        id: cluster_id,
        controller: controller.unwrap_or(NO_LEADER),
        nodes,
        features: features.map(|(name, feature)| Feature { name, level: feature.level }).collect(),
    })
}

/// The directories of a node; empty where brokers do not report them.
async fn log_dirs(admin: &Admin, node: i32) -> Result<Vec<LogDir>> {
    let dirs = match admin.log_dirs(node).await {
        Err(Error::Unsupported { .. }) => return Ok(Vec::new()),
        dirs => dirs?,
    };
    let dir = |dir: mainstem_client::LogDir| LogDir {
        path: dir.path,
        error: dir.error.and_then(|error| error.code()),
        partitions: dir.replicas.len(),
        partition_bytes: dir.replicas.iter().filter_map(|one| u64::try_from(one.size_bytes).ok()).sum(),
        usable_bytes: dir.usable_bytes.and_then(|bytes| u64::try_from(bytes).ok()),
    };
    Ok(dirs.into_iter().map(dir).collect())
}

impl Description {
    fn to_json(&self) -> Value {
        let features: serde_json::Map<String, Value> =
            self.features.iter().map(|feature| (feature.name.clone(), feature.level.into())).collect();
        json!({
            "id": self.id,
            "controller": self.controller,
            "nodes": self.nodes.iter().map(Node::to_json).collect::<Value>(),
            "features": features,
        })
    }

    fn to_text(&self) -> String {
        let mut lines = vec![format!("cluster {}, controller {}", shown(&self.id), self.controller)];
        let rows = self.nodes.iter().map(Node::to_row).collect();
        lines.push(table(&[">NODE", "ADDRESS", "RACK"], rows));
        let dirs: Vec<Vec<String>> =
            self.nodes.iter().flat_map(|node| node.log_dirs.iter().map(|dir| dir.to_row(node.id))).collect();
        if !dirs.is_empty() {
            let columns = [">NODE", "DIRECTORY", ">PARTITIONS", ">SIZE", ">FREE", "STATE"];
            lines.push(format!("\n{}", table(&columns, dirs)));
        }
        if !self.features.is_empty() {
            let row = |feature: &Feature| vec![feature.name.clone(), feature.level.to_string()];
            lines.push(format!(
                "\n{}",
                table(&["FEATURE", ">LEVEL"], self.features.iter().map(row).collect())
            ));
        }
        lines.join("\n")
    }
}

impl Node {
    fn to_json(&self) -> Value {
        json!({
            "id": self.id,
            "host": self.host,
            "port": self.port,
            "rack": self.rack,
            "log_dirs": self.log_dirs.iter().map(LogDir::to_json).collect::<Value>(),
        })
    }

    fn to_row(&self) -> Vec<String> {
        let rack = self.rack.clone().unwrap_or_else(|| "-".to_owned());
        vec![self.id.to_string(), format!("{}:{}", self.host, self.port), rack]
    }
}

impl LogDir {
    fn to_json(&self) -> Value {
        json!({
            "path": self.path,
            "error": self.error.map(|error| error.name()),
            "partitions": self.partitions,
            "partition_bytes": self.partition_bytes,
            "usable_bytes": self.usable_bytes,
        })
    }

    fn to_row(&self, node: i32) -> Vec<String> {
        vec![
            node.to_string(),
            self.path.clone(),
            self.partitions.to_string(),
            bytes(self.partition_bytes),
            self.usable_bytes.map_or_else(|| "-".to_owned(), bytes),
            self.error.map_or("online", |error| error.name()).to_owned(),
        ]
    }
}

#[cfg(test)]
mod tests {
    use expect_test::expect;

    use super::*;

    #[test]
    fn text() {
        let dir = |path: &str, error| LogDir {
            path: path.into(),
            error,
            partitions: 3,
            partition_bytes: 2048,
            usable_bytes: (error.is_none()).then_some(1 << 30),
        };
        let description = Description {
            id: "c".into(),
            controller: 1,
            nodes: vec![Node {
                id: 1,
                host: "localhost".into(),
                port: 9092,
                rack: None,
                log_dirs: vec![dir("/a", None), dir("/b", Some(ErrorCode::KAFKA_STORAGE_ERROR))],
            }],
            features: vec![Feature { name: "metadata.version".into(), level: 29 }],
        };
        expect![[r#"
            cluster c, controller 1
            NODE  ADDRESS         RACK
               1  localhost:9092  -

            NODE  DIRECTORY  PARTITIONS      SIZE      FREE  STATE
               1  /a                  3  2.00 KiB  1.00 GiB  online
               1  /b                  3  2.00 KiB         -  KAFKA_STORAGE_ERROR

            FEATURE           LEVEL
            metadata.version     29"#]]
        .assert_eq(&description.to_text());
        assert_eq!(description.to_json()["nodes"][0]["log_dirs"][1]["error"], "KAFKA_STORAGE_ERROR");
    }
}
