//! `mainstem group delete`.

use anyhow::{Result, bail};
use clap::Args;
use mainstem_client::{Admin, ErrorCode};
use serde_json::{Value, json};

use crate::deletion::Deletion;
use crate::execution::Plan;
use crate::failure::advised;
use crate::output::{counted, table};

/// Advice about a group that has members.
const HAS_MEMBERS: &str = "it has members; stop them first, `mainstem group describe` shows them";

/// Arguments of `group delete`.
#[derive(Debug, Args)]
pub(crate) struct Delete {
    /// Names of the groups.
    #[arg(required = true)]
    groups: Vec<String>,
    #[command(flatten)]
    deletion: Deletion,
}

/// Deletes the groups, one after another.
pub(crate) async fn run(delete: &Delete) -> Result<()> {
    let admin = delete.deletion.connect().await?;
    if !delete.deletion.if_exists {
        // Looks for all names first, so that a misspelt one stops the command before it deletes anything.
        let there = admin.groups().await?;
        for group in &delete.groups {
            if !there.iter().any(|listed| listed.group_id == *group) {
                bail!("there is no group {group}; nothing was deleted, see `mainstem group list`");
            }
        }
    }
    if !delete.deletion.begin(plan(&admin, &delete.groups)).await? {
        return Ok(());
    }
    let advice = |code| (code == ErrorCode::NON_EMPTY_GROUP).then_some(HAS_MEMBERS);
    let mut results = Vec::new();
    for group in &delete.groups {
        let existed = admin.delete_group_if_exists(group).await.map_err(|error| advised(error, advice))?;
        results.push((group.as_str(), existed));
    }
    delete.deletion.report("group", &results)
}

/// The groups that exist, with their members and how many partitions they have offsets in.
async fn plan(admin: &Admin, groups: &[String]) -> Result<Plan> {
    let (mut rows, mut json) = (Vec::new(), Vec::new());
    for group in groups {
        let Some(found) = admin.describe_group(group).await? else { continue };
        let (members, offsets) = (found.members.len(), admin.group_offsets(group).await?.len());
        rows.push(vec![group.clone(), members.to_string(), offsets.to_string()]);
        json.push(json!({"group": group, "members": members, "offsets": offsets}));
    }
    let count = counted(rows.len() as u64, "group");
    let rows = table(&["GROUP", ">MEMBERS", ">OFFSETS"], rows);
    let text = format!("{count} would be deleted with all offsets:\n\n{rows}");
    Ok(Plan { text, json: json!({ "groups": Value::from(json) }) })
}
