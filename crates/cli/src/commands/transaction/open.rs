//! Transactions that are open in partitions, and the coordinators that know of them.

use anyhow::Result;
use mainstem_client::{ActiveProducer, Admin, TopicPartition, TransactionFilter};
use serde_json::{Value, json};

use crate::output::table;
use crate::timestamp;

/// A transaction that is open in a partition.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Open {
    pub(super) partition: TopicPartition,
    pub(super) producer: ActiveProducer,
    pub(super) start_offset: i64,
}

/// The transactions that are open in a partition.
///
/// # Errors
/// When its leader cannot be asked.
pub(super) async fn find(admin: &Admin, partition: &TopicPartition) -> Result<Vec<Open>> {
    let producers = admin.producers(partition).await?.into_iter();
    let open = |producer: ActiveProducer| {
        let start_offset = producer.transaction_start_offset?;
        Some(Open { partition: partition.clone(), producer, start_offset })
    };
    Ok(producers.filter_map(open).collect())
}

impl Open {
    /// The transactional id whose coordinator has this transaction open; none if it hangs.
    ///
    /// # Errors
    /// When a coordinator cannot be asked.
    pub(super) async fn owner(&self, admin: &Admin) -> Result<Option<String>> {
        let filter =
            TransactionFilter { producer_ids: vec![self.producer.producer_id], ..Default::default() };
        for listed in admin.transactions(&filter).await? {
            let described = admin.describe_transaction(&listed.transactional_id).await?;
            if described.is_some_and(|described| described.partitions.contains(&self.partition)) {
                return Ok(Some(listed.transactional_id));
            }
        }
        Ok(None)
    }

    pub(super) fn to_json(&self) -> Value {
        json!({
            "topic": &*self.partition.topic,
            "partition": self.partition.partition,
            "start_offset": self.start_offset,
            "producer_id": self.producer.producer_id,
            "producer_epoch": self.producer.producer_epoch,
            "coordinator_epoch": self.producer.coordinator_epoch,
            "last_timestamp": self.producer.last_timestamp_ms,
        })
    }

    fn to_row(&self) -> Vec<String> {
        vec![
            self.partition.topic.to_string(),
            self.partition.partition.to_string(),
            self.start_offset.to_string(),
            self.producer.producer_id.to_string(),
            self.producer.producer_epoch.to_string(),
            timestamp::format(self.producer.last_timestamp_ms),
        ]
    }
}

/// A row for each transaction.
pub(super) fn as_table(open: &[Open]) -> String {
    let columns =
        ["TOPIC", ">PARTITION", ">START OFFSET", ">PRODUCER ID", ">PRODUCER EPOCH", "LAST TIMESTAMP"];
    table(&columns, open.iter().map(Open::to_row).collect())
}
