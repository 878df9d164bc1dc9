//! `mainstem group list`.

use anyhow::Result;
use clap::Args;
use mainstem_wire::messages::list_groups_request::ListGroupsRequest;
use serde_json::{Value, json};

use crate::client::check;
use crate::cluster::Cluster;
use crate::output::{print, print_json, table};
use crate::target::Target;

/// What `group list` takes.
#[derive(Debug, Args)]
pub(crate) struct List {
    /// Print JSON.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    target: Target,
}

/// A group as its coordinator lists it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Listed {
    pub(super) group: String,
    state: String,
    /// How members come to their partitions: Classic, Consumer, Share or Streams.
    kind: String,
    protocol_type: String,
    coordinator: i32,
}

/// Lists the groups of all nodes.
pub(crate) fn run(list: &List) -> Result<()> {
    let groups = all(&mut list.target.connect()?)?;
    if list.json {
        return print_json(&groups.iter().map(Listed::to_json).collect());
    }
    match groups.is_empty() {
        true => print("there are no groups"),
        false => print(&as_table(&groups)),
    }
}

/// The groups of all nodes, by name.
pub(super) fn all(cluster: &mut Cluster) -> Result<Vec<Listed>> {
    let mut groups = Vec::new();
    for node in cluster.node_ids()? {
        groups.extend(cluster.retrying(|cluster| ask(cluster, node))?);
    }
    groups.sort_by(|a, b| a.group.cmp(&b.group));
    Ok(groups)
}

fn ask(cluster: &mut Cluster, node: i32) -> Result<Vec<Listed>> {
    let response = cluster.node(node)?.call(&ListGroupsRequest::default())?;
    check(response.error_code, || format!("the groups of node {node}"))?;
    let listed = response.groups.iter().map(|group| Listed {
        group: group.group_id.to_string(),
        state: group.group_state.to_string(),
        kind: group.group_type.to_string(),
        protocol_type: group.protocol_type.to_string(),
        coordinator: node,
    });
    Ok(listed.collect())
}

impl Listed {
    fn to_json(&self) -> Value {
        json!({
            "group": self.group,
            "state": self.state,
            "type": self.kind,
            "protocol_type": self.protocol_type,
            "coordinator": self.coordinator,
        })
    }
}

fn as_table(groups: &[Listed]) -> String {
    let row = |listed: &Listed| {
        let coordinator = listed.coordinator.to_string();
        vec![listed.group.clone(), listed.state.clone(), listed.kind.clone(), coordinator]
    };
    table(&["GROUP", "STATE", "TYPE", ">COORDINATOR"], groups.iter().map(row).collect())
}

#[cfg(test)]
mod tests {
    use expect_test::expect;

    use super::*;

    #[test]
    fn a_line_per_group() {
        let listed = |group: &str, state: &str| Listed {
            group: group.into(),
            state: state.into(),
            kind: "Classic".into(),
            protocol_type: "consumer".into(),
            coordinator: 2,
        };
        expect![[r#"
            GROUP    STATE   TYPE     COORDINATOR
            billing  Stable  Classic            2
            g        Empty   Classic            2"#]]
        .assert_eq(&as_table(&[listed("billing", "Stable"), listed("g", "Empty")]));
    }
}
