//! `mainstem cluster`: nodes, controller, features and directories.

use anyhow::Result;
use clap::Args;
use mainstem_wire::messages::api_versions_request::ApiVersionsRequest;
use mainstem_wire::messages::describe_cluster_request::DescribeClusterRequest;
use mainstem_wire::messages::describe_log_dirs_request::DescribeLogDirsRequest;
use mainstem_wire::{ErrorCode, Request};
use serde_json::{Value, json};

use crate::client::{check, check_message};
use crate::cluster::Cluster;
use crate::output::{bytes, print, print_json, table};
use crate::target::Target;

/// `endpoint_type` of DescribeCluster: the nodes that clients connect to.
const BROKERS: i8 = 1;

/// What `cluster` takes.
#[derive(Debug, Args)]
pub(crate) struct ClusterArguments {
    /// Print JSON.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    target: Target,
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
    /// Why it cannot be used, if so.
    error: Option<ErrorCode>,
    partitions: usize,
    partition_bytes: u64,
    /// Of the file system; none where the broker does not tell.
    usable_bytes: Option<u64>,
}

/// A feature whose level the cluster has settled on (KIP-584).
struct Feature {
    name: String,
    level: i16,
}

/// Describes the cluster.
pub(crate) fn run(arguments: &ClusterArguments) -> Result<()> {
    let mut cluster = arguments.target.connect()?;
    let description = collect(&mut cluster)?;
    match arguments.json {
        true => print_json(&description.to_json()),
        false => print(&description.to_text()),
    }
}

fn collect(cluster: &mut Cluster) -> Result<Description> {
    let mut description = cluster.retrying(describe)?;
    for node in &mut description.nodes {
        node.log_dirs = cluster.retrying(|cluster| log_dirs(cluster, node.id))?;
    }
    description.features = cluster.retrying(features)?;
    Ok(description)
}

fn describe(cluster: &mut Cluster) -> Result<Description> {
    let request = DescribeClusterRequest { endpoint_type: BROKERS, ..Default::default() };
    let response = cluster.any()?.call(&request)?;
    check_message(response.error_code, response.error_message.as_deref(), || {
        "cannot describe the cluster".to_owned()
    })?;
    let node = |node: &<DescribeClusterRequest<'_> as Request<'_>>::Response<'_>, at: usize| {
        let broker = &node.brokers[at];
        Node {
            id: broker.broker_id,
            host: broker.host.to_string(),
            port: broker.port,
            rack: broker.rack.as_deref().map(str::to_owned),
            log_dirs: Vec::new(),
        }
    };
    let mut nodes: Vec<Node> = (0..response.brokers.len()).map(|at| node(&response, at)).collect();
    nodes.sort_by_key(|node| node.id);
    Ok(Description {
        id: response.cluster_id.to_string(),
        controller: response.controller_id,
        nodes,
        features: Vec::new(),
    })
}

/// The directories of a node; empty where brokers do not tell.
fn log_dirs(cluster: &mut Cluster, node: i32) -> Result<Vec<LogDir>> {
    let client = cluster.node(node)?;
    if !client.serves::<DescribeLogDirsRequest<'_>>() {
        return Ok(Vec::new());
    }
    let response = client.call(&DescribeLogDirsRequest { topics: None, ..Default::default() })?;
    check(response.error_code, || format!("the directories of node {node}"))?;
    let dirs = response.results.iter().map(|dir| {
        let partitions = || dir.topics.iter().flat_map(|topic| &topic.partitions);
        LogDir {
            path: dir.log_dir.to_string(),
            error: (dir.error_code != 0).then(|| ErrorCode::from(dir.error_code)),
            partitions: partitions().count(),
            partition_bytes: partitions().filter_map(|p| u64::try_from(p.partition_size).ok()).sum(),
            usable_bytes: u64::try_from(dir.usable_bytes).ok(),
        }
    });
    Ok(dirs.collect())
}

fn features(cluster: &mut Cluster) -> Result<Vec<Feature>> {
    let response = cluster.any()?.call(&ApiVersionsRequest {
        client_software_name: "mainstem".into(),
        client_software_version: env!("CARGO_PKG_VERSION").into(),
        ..Default::default()
    })?;
    check(response.error_code, || "the cluster's features".to_owned())?;
    let features = response.finalized_features.iter();
    Ok(features.map(|f| Feature { name: f.name.to_string(), level: f.max_version_level }).collect())
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
        let mut lines = vec![format!("cluster {}, controller {}", self.id, self.controller)];
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
