//! Fetches batches from the leaders of partitions.

use std::collections::BTreeMap;

use anyhow::Result;
use mainstem_wire::messages::fetch_request::{FetchPartition, FetchRequest, FetchTopic};
use mainstem_wire::{ErrorCode, Records};

use crate::client::check;
use crate::cluster::{Cluster, Topic};
use crate::leaders::by_leader;

/// How long a leader may wait for records when there are none.
const WAIT_MS: i32 = 500;
/// The same where several leaders are asked one after another.
const SHORT_WAIT_MS: i32 = 100;
const RESPONSE_BYTES_MAX: i32 = 16 << 20;
const PARTITION_BYTES_MAX: i32 = 4 << 20;
/// A fetch without a session (KIP-227).
const NO_SESSION: i32 = 0;
const NO_SESSION_EPOCH: i32 = -1;

/// What one fetch brought from a partition.
#[derive(Debug)]
pub(crate) enum Fetched {
    /// Batches, the last of which may be cut off.
    Batches(Vec<u8>),
    /// The position is no longer there.
    OutOfRange,
}

/// Fetches a topic.
#[derive(Debug)]
pub(crate) struct Fetcher {
    topic: Topic,
    /// Which partition comes first: it turns, so that a busy one does not keep the others away.
    turn: usize,
}

impl Fetcher {
    /// A fetcher of a topic.
    pub(crate) fn new(topic: Topic) -> Self {
        Fetcher { topic, turn: 0 }
    }

    /// What follows the given offsets, by partition. Empty if nothing came within the wait.
    pub(crate) fn fetch(
        &mut self,
        cluster: &mut Cluster,
        positions: &BTreeMap<i32, i64>,
    ) -> Result<Vec<(i32, Fetched)>> {
        self.turn = self.turn.wrapping_add(1);
        let mut attempts = 0;
        cluster.retrying(|cluster| {
            if attempts > 0 {
                // The leader may have moved.
                self.topic = cluster.topic(&self.topic.name)?;
            }
            attempts += 1;
            self.fetch_once(cluster, positions)
        })
    }

    fn fetch_once(
        &self,
        cluster: &mut Cluster,
        positions: &BTreeMap<i32, i64>,
    ) -> Result<Vec<(i32, Fetched)>> {
        let mut indexes: Vec<i32> = positions.keys().copied().collect();
        let turn = self.turn % indexes.len().max(1);
        indexes.rotate_left(turn);
        let leaders = by_leader(&self.topic, &indexes)?;
        let wait_ms = if leaders.len() > 1 { SHORT_WAIT_MS } else { WAIT_MS };
        let mut fetched = Vec::new();
        for (leader, indexes) in leaders {
            let request = self.request(&indexes, positions, wait_ms);
            let response = cluster.node(leader)?.call(&request)?;
            check(response.error_code, || format!("the fetch of {}", self.topic.name))?;
            for partition in response.responses.into_iter().flat_map(|topic| topic.partitions) {
                let index = partition.partition_index;
                if partition.error_code == ErrorCode::OFFSET_OUT_OF_RANGE.code() {
                    fetched.push((index, Fetched::OutOfRange));
                    continue;
                }
                check(partition.error_code, || format!("the fetch of {}-{index}", self.topic.name))?;
                if let Some(Records::Bytes(bytes)) = partition.records
                    && !bytes.is_empty()
                {
                    fetched.push((index, Fetched::Batches(bytes.into_owned())));
                }
            }
        }
        Ok(fetched)
    }

    fn request(
        &self,
        indexes: &[i32],
        positions: &BTreeMap<i32, i64>,
        wait_ms: i32,
    ) -> FetchRequest<'static> {
        let partition = |index: &i32| FetchPartition {
            partition: *index,
            fetch_offset: positions.get(index).copied().unwrap_or(0),
            partition_max_bytes: PARTITION_BYTES_MAX,
            ..Default::default()
        };
        FetchRequest {
            max_wait_ms: wait_ms,
            min_bytes: 1,
            max_bytes: RESPONSE_BYTES_MAX,
            session_id: NO_SESSION,
            session_epoch: NO_SESSION_EPOCH,
            topics: vec![FetchTopic {
                topic: self.topic.name.clone().into(),
                topic_id: self.topic.id,
                partitions: indexes.iter().map(partition).collect(),
                ..Default::default()
            }],
            ..Default::default()
        }
    }
}
