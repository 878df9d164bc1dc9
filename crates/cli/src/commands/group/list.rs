//! `mainstem group list`.

use anyhow::Result;
use clap::Args;
use mainstem_client::GroupListing;
use serde_json::{Value, json};

use crate::output::{print, print_json, table};
use crate::target::Target;

/// Arguments of `group list`.
#[derive(Debug, Args)]
pub(crate) struct List {
    /// Print JSON.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    target: Target,
}

/// Lists the groups of all nodes.
pub(crate) async fn run(list: &List) -> Result<()> {
    let groups = list.target.connect().await?.groups().await?;
    if list.json {
        return print_json(&groups.iter().map(to_json).collect());
    }
    match groups.is_empty() {
        true => print("there are no groups"),
        false => print(&as_table(&groups)),
    }
}

fn to_json(listed: &GroupListing) -> Value {
    json!({
        "group": listed.group_id,
        "state": listed.state,
        "type": listed.group_type,
        "protocol_type": listed.protocol_type,
        "coordinator": listed.coordinator,
    })
}

fn as_table(groups: &[GroupListing]) -> String {
    let row = |listed: &GroupListing| {
        let coordinator = listed.coordinator.to_string();
        vec![listed.group_id.clone(), listed.state.clone(), listed.group_type.clone(), coordinator]
    };
    table(&["GROUP", "STATE", "TYPE", ">COORDINATOR"], groups.iter().map(row).collect())
}

#[cfg(test)]
mod tests {
    use expect_test::expect;

    use super::*;

    #[test]
    fn a_line_per_group() {
        let listed = |group: &str, state: &str| GroupListing {
            group_id: group.into(),
            state: state.into(),
            group_type: "Classic".into(),
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
