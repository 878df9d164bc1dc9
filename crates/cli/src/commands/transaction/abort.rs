//! `mainstem transaction abort`.

use anyhow::{Result, bail};
use clap::Args;
use mainstem_client::{Admin, ErrorCode, HangingTransaction, TopicPartition};

use super::open::{self, Open};
use crate::execution::{Execution, Plan};
use crate::failure::advised;
use crate::output::{print_json, print_line, shown};
use crate::target::Target;
use crate::topic;

/// Arguments of `transaction abort`.
#[derive(Debug, Args)]
#[command(after_help = "\
The transaction is the one that begins at --start-offset, or the open one of --producer-id; `mainstem transaction find-hanging`
shows both. Consumers of committed records then never see its records in the partition. A transaction that a coordinator still
has open does not hang: its producer ends it, or the coordinator after its timeout.")]
pub(crate) struct Abort {
    /// The topic.
    #[arg(long, short, value_name = "TOPIC")]
    topic: String,
    /// The partition of it.
    #[arg(long, short, value_name = "N")]
    partition: i32,
    /// The first offset of the transaction.
    #[arg(long, value_name = "OFFSET", required_unless_present = "producer_id")]
    start_offset: Option<i64>,
    /// Id of the producer.
    #[arg(long, value_name = "ID", conflicts_with = "start_offset")]
    producer_id: Option<i64>,
    /// Epoch of the producer. [default: the one that it has in the partition]
    #[arg(long, value_name = "EPOCH", requires = "producer_id")]
    producer_epoch: Option<i16>,
    /// Epoch of the coordinator. [default: that of the producer's last marker in the partition]
    #[arg(long, value_name = "EPOCH", requires = "producer_id")]
    coordinator_epoch: Option<i32>,
    /// Abort it also if it does not hang: its coordinator has it open, and its producer loses this part of it.
    #[arg(long)]
    force: bool,
    /// Print JSON.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    execution: Execution,
    #[command(flatten)]
    target: Target,
}

/// Shows the transaction, and aborts it if that is asked for.
pub(crate) async fn run(abort: &Abort) -> Result<()> {
    let admin = abort.target.connect().await?;
    let found = topic::find(&admin, &abort.topic).await?;
    topic::partitions(&[found], &[abort.partition])?;
    let open = find(&admin, abort).await?;
    let hanging = hanging(abort, &open)?;
    let owner = open.owner(&admin).await?;
    if let Some(id) = owner.as_ref().filter(|_| abort.execution.execute && !abort.force) {
        bail!(
            "it does not hang: it is part of the transaction of {}, which its coordinator has open; end it by its producer, or name \
             --force; nothing was aborted",
            shown(id)
        );
    }
    if !abort.execution.begin(abort.json, async { Ok(plan(&open, owner)) }).await? {
        return Ok(());
    }
    admin.abort_hanging(&hanging).await.map_err(|error| advised(error, advice))?;
    match abort.json {
        true => {
            let mut json = open.to_json();
            json["executed"] = true.into();
            print_json(&json)
        }
        false => print_line(&format!(
            "aborted the transaction of producer {} in {} from offset {} on",
            open.producer.producer_id, open.partition, open.start_offset
        )),
    }
}

/// The open transaction that the arguments name.
///
/// # Errors
/// If there is none.
async fn find(admin: &Admin, abort: &Abort) -> Result<Open> {
    let partition = TopicPartition::new(abort.topic.as_str(), abort.partition);
    let all = open::find(admin, &partition).await?;
    let offsets: Vec<String> = all.iter().map(|open| open.start_offset.to_string()).collect();
    let is_meant = |open: &Open| match (abort.start_offset, abort.producer_id) {
        (Some(offset), _) => open.start_offset == offset,
        (None, id) => Some(open.producer.producer_id) == id,
    };
    match (all.into_iter().find(is_meant), offsets.is_empty()) {
        (Some(open), _) => Ok(open),
        (None, true) => bail!("no transaction is open in {partition}; nothing was aborted"),
        (None, false) => bail!(
            "that transaction is not open in {partition}; those that are begin at offset {}; nothing was aborted",
            offsets.join(", ")
        ),
    }
}

/// The transaction as the request to its partition's leader names it.
///
/// # Errors
/// If the named epoch is not the producer's.
fn hanging(abort: &Abort, open: &Open) -> Result<HangingTransaction> {
    let epoch = open.producer.producer_epoch;
    match (abort.producer_epoch, i16::try_from(epoch)) {
        (Some(named), _) if i32::from(named) != epoch => bail!(
            "producer {} has epoch {epoch} in {}, not {named}; nothing was aborted",
            open.producer.producer_id,
            open.partition
        ),
        (_, Ok(producer_epoch)) => Ok(HangingTransaction {
            partition: open.partition.clone(),
            producer_id: open.producer.producer_id,
            producer_epoch,
            coordinator_epoch: abort.coordinator_epoch.or(open.producer.coordinator_epoch).unwrap_or(0),
        }),
        (_, Err(_)) => bail!("the leader of {} names an epoch that no producer has: {epoch}", open.partition),
    }
}

fn plan(open: &Open, owner: Option<String>) -> Plan {
    let rows = open::as_table(std::slice::from_ref(open));
    let note = owner.as_ref().map_or(String::new(), |id| {
        format!(
            "\n\nit does not hang: it is part of the transaction of {}, which its coordinator has open",
            shown(id)
        )
    });
    let mut json = open.to_json();
    json["transactional_id"] = owner.into();
    Plan { text: format!("1 transaction would be aborted:\n\n{rows}{note}"), json }
}

/// Advice about a refusal.
fn advice(code: ErrorCode) -> Option<&'static str> {
    match code {
        ErrorCode::INVALID_PRODUCER_EPOCH | ErrorCode::TRANSACTION_COORDINATOR_FENCED => Some(
            "its producer or coordinator has gone on since; look again by `mainstem transaction find-hanging`",
        ),
        ErrorCode::CLUSTER_AUTHORIZATION_FAILED => {
            Some("it takes the operation Alter on the cluster; `mainstem acl add` gives it")
        }
        _ => None,
    }
}
