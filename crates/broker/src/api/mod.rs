//! The APIs that are served: one table, one file each.
//!
//! The table makes ApiVersions, dispatch and the parity test. Each file reads: parse, authorize, ask the heart or the
//! log, encode.

pub(crate) mod api_versions;
pub(crate) mod create_partitions;
pub(crate) mod create_topics;
pub(crate) mod delete_records;
pub(crate) mod delete_topics;
pub(crate) mod describe_cluster;
pub(crate) mod describe_configs;
pub(crate) mod describe_groups;
pub(crate) mod describe_topic_partitions;
pub(crate) mod fetch;
pub(crate) mod find_coordinator;
pub(crate) mod heartbeat;
pub(crate) mod incremental_alter_configs;
pub(crate) mod init_producer_id;
pub(crate) mod join_group;
pub(crate) mod leave_group;
pub(crate) mod list_groups;
pub(crate) mod list_offsets;
pub(crate) mod metadata;
pub(crate) mod offset_commit;
pub(crate) mod offset_fetch;
pub(crate) mod offset_for_leader_epoch;
pub(crate) mod produce;
pub(crate) mod sync_group;

use std::sync::Arc;

use mainstem_wire::{ApiKey, DecodeError, Decoder};

use crate::broker::Broker;
use crate::context::RequestContext;
use crate::dispatch::Handled;
use crate::output::ResponseBuffer;

/// What every API file has: decodes the request and answers it, now or later.
type Serve =
    fn(&Arc<Broker>, RequestContext, &mut Decoder<'_>, &mut ResponseBuffer) -> Result<Handled, DecodeError>;

/// The APIs, ascending by key.
const SERVED: [(ApiKey, Serve); 24] = [
    (ApiKey::Produce, produce::serve),
    (ApiKey::Fetch, fetch::serve),
    (ApiKey::ListOffsets, list_offsets::serve),
    (ApiKey::Metadata, metadata::serve),
    (ApiKey::OffsetCommit, offset_commit::serve),
    (ApiKey::OffsetFetch, offset_fetch::serve),
    (ApiKey::FindCoordinator, find_coordinator::serve),
    (ApiKey::JoinGroup, join_group::serve),
    (ApiKey::Heartbeat, heartbeat::serve),
    (ApiKey::LeaveGroup, leave_group::serve),
    (ApiKey::SyncGroup, sync_group::serve),
    (ApiKey::DescribeGroups, describe_groups::serve),
    (ApiKey::ListGroups, list_groups::serve),
    (ApiKey::ApiVersions, api_versions::serve),
    (ApiKey::CreateTopics, create_topics::serve),
    (ApiKey::DeleteTopics, delete_topics::serve),
    (ApiKey::DeleteRecords, delete_records::serve),
    (ApiKey::InitProducerId, init_producer_id::serve),
    (ApiKey::OffsetForLeaderEpoch, offset_for_leader_epoch::serve),
    (ApiKey::DescribeConfigs, describe_configs::serve),
    (ApiKey::CreatePartitions, create_partitions::serve),
    (ApiKey::IncrementalAlterConfigs, incremental_alter_configs::serve),
    (ApiKey::DescribeCluster, describe_cluster::serve),
    (ApiKey::DescribeTopicPartitions, describe_topic_partitions::serve),
];

/// One above the highest key of [`SERVED`].
const KEYS: usize = ApiKey::DescribeTopicPartitions as usize + 1;

/// The table by key, for a request's way to its file.
const BY_KEY: [Option<Serve>; KEYS] = {
    let mut by_key = [None; KEYS];
    let mut at = 0;
    while at < SERVED.len() {
        by_key[SERVED[at].0 as usize] = Some(SERVED[at].1);
        at += 1;
    }
    by_key
};

fn entry(api: ApiKey) -> Option<Serve> {
    BY_KEY.get(api as usize).copied().flatten()
}

/// Whether an API is served at all.
pub(crate) fn is_served(api: ApiKey) -> bool {
    entry(api).is_some()
}

/// The served APIs, ascending by key.
pub(crate) fn served() -> impl Iterator<Item = ApiKey> {
    SERVED.iter().map(|(api, _)| *api)
}

/// Serves a request whose header is decoded.
///
/// # Errors
/// When the body is malformed.
pub(crate) fn serve(
    broker: &Arc<Broker>,
    context: RequestContext,
    decoder: &mut Decoder<'_>,
    out: &mut ResponseBuffer,
) -> Result<Handled, DecodeError> {
    let serve = entry(context.api).expect("dispatch asks only for what is served");
    serve(broker, context, decoder, out)
}
