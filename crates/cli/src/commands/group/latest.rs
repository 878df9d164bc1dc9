//! Ends of partitions that groups read.

use std::collections::BTreeSet;

use anyhow::Result;
use mainstem_client::{Admin, Position, TopicPartition};

use crate::offsets::{self, Offsets};
use crate::topic;

/// The end offset of each partition, but for those whose topic is gone or that have no leader.
pub(super) async fn latest_offsets(admin: &Admin, keys: &BTreeSet<TopicPartition>) -> Result<Offsets> {
    let mut led = BTreeSet::new();
    for name in keys.iter().map(|key| &key.topic).collect::<BTreeSet<_>>() {
        if let Some(topic) = admin.find_topic(name).await? {
            led.extend(topic::led(&topic));
        }
    }
    offsets::find(admin, keys.intersection(&led), Position::End).await
}
