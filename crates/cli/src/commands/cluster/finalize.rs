//! `mainstem cluster finalize`: raises the level of the cluster to the highest that all of its nodes know.

use anyhow::{Context, Result, bail};
use clap::Args;
use mainstem_client::FeatureUpgrade;
use serde_json::json;

use super::levels::{Levels, MAINSTEM_VERSION};
use crate::execution::{Execution, Plan};
use crate::output::{joined, print, print_json};
use crate::target::Target;

/// Arguments of `cluster finalize`.
#[derive(Debug, Args)]
#[command(after_help = "\
The last step of an upgrade, when all nodes run the new release and it has proved itself. Until then each node can go back to the
release before. After it none can: the nodes write what that release does not know, and it refuses their directories.")]
pub(crate) struct Finalize {
    /// Print JSON.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    execution: Execution,
    #[command(flatten)]
    target: Target,
}

/// Raises the level.
pub(crate) async fn run(finalize: &Finalize) -> Result<()> {
    let admin = finalize.target.connect().await?;
    let brokers = admin.cluster_with_fenced().await?.brokers;
    let levels = Levels::ask(&admin, brokers.into_keys()).await;
    let Some(current) = levels.current else {
        match levels.silent.is_empty() {
            true => bail!(
                "no node of this cluster knows {MAINSTEM_VERSION}: it is a single node, of an older release, or none of Mainstem"
            ),
            false => bail!(
                "no node that answers knows {MAINSTEM_VERSION}; without an answer: {}",
                levels.shown_silent()
            ),
        }
    };
    let Some(level) = levels.higher() else {
        let behind = levels.behind();
        if !behind.is_empty() {
            bail!("these nodes run an older release: {}; upgrade them first", joined(&behind));
        }
        return match finalize.json {
            true => print_json(&json!({ "from": current, "to": current, "executed": false })),
            false => print(&format!(
                "the cluster works at level {current} already, the highest that its nodes know"
            )),
        };
    };
    let silent = match levels.silent.is_empty() {
        true => String::new(),
        false => format!("; without an answer now: {}", levels.shown_silent()),
    };
    // The metadata leader knows the release with which each node was started last, also of those that do not answer.
    let update = async |is_check| {
        let updated = admin.update_feature(MAINSTEM_VERSION, level, FeatureUpgrade::Upgrade, is_check).await;
        updated.with_context(|| {
            format!(
                "level {level} is refused: all nodes have to run the new release (try again in some seconds if one was \
                 just started){silent}"
            )
        })
    };
    let plan = async {
        update(true).await?;
        let text = format!(
            "{MAINSTEM_VERSION} would rise from {current} to {level}; no node could go back to an older release \
             then{silent}"
        );
        Ok(Plan { text, json: json!({ "from": current, "to": level }) })
    };
    if !finalize.execution.begin(finalize.json, plan).await? {
        return Ok(());
    }
    update(false).await?;
    match finalize.json {
        true => print_json(&json!({ "from": current, "to": level, "executed": true })),
        false => print(&format!(
            "the cluster works at level {level} of {MAINSTEM_VERSION}, and has left level {current}"
        )),
    }
}
