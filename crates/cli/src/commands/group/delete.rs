//! `mainstem group delete`.

use anyhow::{Context, Result, bail};
use clap::Args;
use mainstem_wire::ErrorCode;
use mainstem_wire::messages::delete_groups_request::DeleteGroupsRequest;

use super::list;
use crate::client::check_message;
use crate::cluster::Cluster;
use crate::deletion::Deletion;
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
pub(crate) fn run(delete: &Delete) -> Result<()> {
    let mut cluster =
        delete.deletion.begin(|| format!("delete group {} and its offsets?", joined(&delete.groups)))?;
    if !delete.deletion.if_exists {
        // A misspelt name is found before anything is gone.
        let there = list::all(&mut cluster)?;
        for group in &delete.groups {
            if !there.iter().any(|listed| listed.group == *group) {
                bail!("there is no group {group}; nothing was deleted, see `mainstem group list`");
            }
        }
    }
    let mut results = Vec::new();
    for group in &delete.groups {
        results.push((group.as_str(), request(&mut cluster, group)?));
    }
    delete.deletion.report("group", &results)
}

/// Deletes a group; false if it was not there.
fn request(cluster: &mut Cluster, group: &str) -> Result<bool> {
    let request = DeleteGroupsRequest { groups_names: vec![group.into()], ..Default::default() };
    let mut attempts = 0;
    cluster.retrying(|cluster| {
        attempts += 1;
        let coordinator = cluster.find_coordinator(group)?;
        let response = cluster.node(coordinator)?.call(&request)?;
        let result = response.results.first().context("the broker left out the group")?;
        let error = ErrorCode::from(result.error_code);
        if error == ErrorCode::GROUP_ID_NOT_FOUND {
            // In a later attempt it is the one before, whose answer was lost, that has deleted it.
            return Ok(attempts > 1);
        }
        let why = (error == ErrorCode::NON_EMPTY_GROUP).then_some(HAS_MEMBERS);
        check_message(result.error_code, why, || format!("cannot delete group {group}"))?;
        Ok(true)
    })
}
