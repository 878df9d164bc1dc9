//! `mainstem group delete`.

use anyhow::{Result, bail};
use clap::Args;
use mainstem_client::ErrorCode;

use crate::deletion::Deletion;
use crate::failure::advised;
use crate::output::joined;

/// What a person can do about a group that has members.
const HAS_MEMBERS: &str = "it has members; stop them first, `mainstem group describe` shows them";

/// What `group delete` takes.
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
    let question = || format!("delete group {} and its offsets?", joined(&delete.groups));
    let admin = delete.deletion.begin(question).await?;
    if !delete.deletion.if_exists {
        // A misspelt name is found before anything is gone.
        let there = admin.groups().await?;
        for group in &delete.groups {
            if !there.iter().any(|listed| listed.group_id == *group) {
                bail!("there is no group {group}; nothing was deleted, see `mainstem group list`");
            }
        }
    }
    let advice = |code| (code == ErrorCode::NON_EMPTY_GROUP).then_some(HAS_MEMBERS);
    let mut results = Vec::new();
    for group in &delete.groups {
        let existed = admin.delete_group_if_exists(group).await.map_err(|error| advised(error, advice))?;
        results.push((group.as_str(), existed));
    }
    delete.deletion.report("group", &results)
}
