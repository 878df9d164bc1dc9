//! Offsets that groups have committed.

use std::collections::BTreeMap;

use anyhow::{Context, Result};
use mainstem_wire::messages::offset_fetch_request::{
    OffsetFetchRequest, OffsetFetchRequestGroup, OffsetFetchRequestTopics,
};

use crate::client::{CallOptions, check};
use crate::cluster::Cluster;

/// The newest version that names topics; those after it give ids, which a deleted topic no longer has a name for.
const VERSION_WITH_NAMES: i16 = 9;

/// Committed offsets by topic and partition.
pub(crate) type Committed = BTreeMap<(String, i32), i64>;

/// What a group has committed for some partitions of a topic, or for all that it ever committed. Partitions without a
/// commit are left out.
pub(crate) fn fetch_committed(
    cluster: &mut Cluster,
    coordinator: i32,
    group: &str,
    partitions: Option<(&str, &[i32])>,
) -> Result<Committed> {
    let topic = |(name, partitions): (&str, &[i32])| OffsetFetchRequestTopics {
        name: name.to_owned().into(),
        partition_indexes: partitions.to_vec(),
        ..Default::default()
    };
    let request = OffsetFetchRequest {
        groups: vec![OffsetFetchRequestGroup {
            group_id: group.into(),
            topics: partitions.map(|partitions| vec![topic(partitions)]),
            ..Default::default()
        }],
        ..Default::default()
    };
    let options = CallOptions { version_max: VERSION_WITH_NAMES, ..Default::default() };
    let response = cluster.node(coordinator)?.call_with(&request, options)?;
    let answered = response.groups.into_iter().next().context("the broker left out the group's offsets")?;
    check(answered.error_code, || format!("offsets of group {group}"))?;
    let mut committed = Committed::new();
    for topic in answered.topics {
        for partition in topic.partitions {
            let index = partition.partition_index;
            check(partition.error_code, || format!("offset of group {group} in {}-{index}", topic.name))?;
            if partition.committed_offset >= 0 {
                committed.insert((topic.name.to_string(), index), partition.committed_offset);
            }
        }
    }
    Ok(committed)
}
