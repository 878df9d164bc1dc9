//! Offsets of partitions.

use std::collections::BTreeMap;

use anyhow::Result;
use mainstem_client::{Admin, Isolation, Position, TopicPartition};

/// Offsets by partition.
pub(crate) type Offsets = BTreeMap<TopicPartition, i64>;

/// The offset of a position in each partition, but for those that have none, as all their records are older.
pub(crate) async fn find<'k>(
    admin: &Admin,
    partitions: impl IntoIterator<Item = &'k TopicPartition>,
    position: Position,
) -> Result<Offsets> {
    find_as(admin, partitions, position, Isolation::ReadUncommitted).await
}

/// The same for readers of an isolation level: for those of committed records a partition ends at its last stable offset.
pub(crate) async fn find_as<'k>(
    admin: &Admin,
    partitions: impl IntoIterator<Item = &'k TopicPartition>,
    position: Position,
    isolation: Isolation,
) -> Result<Offsets> {
    let sought = partitions.into_iter().map(|key| (key.clone(), position));
    let found = admin.offsets(sought, isolation).await?;
    Ok(found.into_iter().filter_map(|(key, offset)| Some((key, offset?))).collect())
}
