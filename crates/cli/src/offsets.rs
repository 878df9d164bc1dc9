//! Offsets of partitions.

use std::collections::BTreeMap;

use anyhow::Result;
use mainstem_client::{Admin, Isolation, Position, TopicPartition};

/// Offsets by partition.
pub(crate) type Offsets = BTreeMap<TopicPartition, i64>;

/// The offset of a position in each partition; those for which there is none, as all records are older, are left out.
pub(crate) async fn find<'k>(
    admin: &Admin,
    partitions: impl IntoIterator<Item = &'k TopicPartition>,
    position: Position,
) -> Result<Offsets> {
    let sought = partitions.into_iter().map(|key| (key.clone(), position));
    let found = admin.offsets(sought, Isolation::ReadUncommitted).await?;
    Ok(found.into_iter().filter_map(|(key, offset)| Some((key, offset?))).collect())
}
