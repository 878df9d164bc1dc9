//! The APIs that are served: one table, one file each.
//!
//! The table makes ApiVersions, dispatch and the parity test. Each file reads: parse, authorize, ask the state machine or the
//! log, encode.

pub(crate) mod add_offsets_to_txn;
pub(crate) mod add_partitions_to_txn;
pub(crate) mod add_raft_voter;
pub(crate) mod alter_client_quotas;
pub(crate) mod alter_configs;
pub(crate) mod alter_partition_reassignments;
pub(crate) mod alter_replica_log_dirs;
pub(crate) mod alter_user_scram_credentials;
pub(crate) mod api_versions;
pub(crate) mod consumer_group_describe;
pub(crate) mod consumer_group_heartbeat;
pub(crate) mod create_acls;
pub(crate) mod create_partitions;
pub(crate) mod create_topics;
pub(crate) mod delete_acls;
pub(crate) mod delete_groups;
pub(crate) mod delete_records;
pub(crate) mod delete_topics;
pub(crate) mod describe_acls;
pub(crate) mod describe_client_quotas;
pub(crate) mod describe_cluster;
pub(crate) mod describe_configs;
pub(crate) mod describe_groups;
pub(crate) mod describe_log_dirs;
pub(crate) mod describe_producers;
pub(crate) mod describe_quorum;
pub(crate) mod describe_topic_partitions;
pub(crate) mod describe_transactions;
pub(crate) mod describe_user_scram_credentials;
pub(crate) mod elect_leaders;
pub(crate) mod end_txn;
pub(crate) mod fetch;
pub(crate) mod find_coordinator;
pub(crate) mod get_telemetry_subscriptions;
pub(crate) mod heartbeat;
pub(crate) mod incremental_alter_configs;
pub(crate) mod init_producer_id;
pub(crate) mod join_group;
pub(crate) mod leave_group;
pub(crate) mod list_config_resources;
pub(crate) mod list_groups;
pub(crate) mod list_offsets;
pub(crate) mod list_partition_reassignments;
pub(crate) mod list_transactions;
pub(crate) mod metadata;
pub(crate) mod offset_commit;
pub(crate) mod offset_delete;
pub(crate) mod offset_fetch;
pub(crate) mod offset_for_leader_epoch;
pub(crate) mod produce;
pub(crate) mod push_telemetry;
pub(crate) mod remove_raft_voter;
pub(crate) mod sasl_authenticate;
pub(crate) mod sasl_handshake;
pub(crate) mod sync_group;
pub(crate) mod txn_offset_commit;
pub(crate) mod unregister_broker;
pub(crate) mod update_features;
pub(crate) mod write_txn_markers;

use std::sync::Arc;

use mainstem_wire::{ApiKey, DecodeError, Decoder, ErrorCode};

use crate::api::Serve::{InBackground, OnLoop};
use crate::background::{Blocking, serve_in_background};
use crate::broker::Broker;
use crate::net::context::RequestContext;
use crate::net::dispatch::Handled;
use crate::net::output::ResponseBuffer;

/// What every API file has: decodes the request and answers it.
#[derive(Clone, Copy)]
enum Serve {
    /// On the event loop: never waits; the answer is there now or a future.
    OnLoop(
        fn(
            &Arc<Broker>,
            RequestContext,
            &mut Decoder<'_>,
            &mut ResponseBuffer,
        ) -> Result<Handled, DecodeError>,
    ),
    /// On a thread where waiting for the disk is allowed: plain code that ends with the answer. Also where an answer may be
    /// about everything there is, which would hold up a loop.
    InBackground(Blocking),
}

/// The APIs, ascending by key.
const SERVED: &[(ApiKey, Serve)] = &[
    (ApiKey::Produce, OnLoop(produce::serve)),
    (ApiKey::Fetch, OnLoop(fetch::serve)),
    (ApiKey::ListOffsets, OnLoop(list_offsets::serve)),
    (ApiKey::Metadata, OnLoop(metadata::serve)),
    (ApiKey::OffsetCommit, OnLoop(offset_commit::serve)),
    (ApiKey::OffsetFetch, OnLoop(offset_fetch::serve)),
    (ApiKey::FindCoordinator, OnLoop(find_coordinator::serve)),
    (ApiKey::JoinGroup, OnLoop(join_group::serve)),
    (ApiKey::Heartbeat, OnLoop(heartbeat::serve)),
    (ApiKey::LeaveGroup, OnLoop(leave_group::serve)),
    (ApiKey::SyncGroup, OnLoop(sync_group::serve)),
    (ApiKey::DescribeGroups, OnLoop(describe_groups::serve)),
    (ApiKey::ListGroups, InBackground(list_groups::serve)),
    (ApiKey::SaslHandshake, OnLoop(sasl_handshake::serve)),
    (ApiKey::ApiVersions, OnLoop(api_versions::serve)),
    (ApiKey::CreateTopics, InBackground(create_topics::serve)),
    (ApiKey::DeleteTopics, InBackground(delete_topics::serve)),
    (ApiKey::DeleteRecords, OnLoop(delete_records::serve)),
    (ApiKey::InitProducerId, OnLoop(init_producer_id::serve)),
    (ApiKey::OffsetForLeaderEpoch, OnLoop(offset_for_leader_epoch::serve)),
    (ApiKey::AddPartitionsToTxn, OnLoop(add_partitions_to_txn::serve)),
    (ApiKey::AddOffsetsToTxn, OnLoop(add_offsets_to_txn::serve)),
    (ApiKey::EndTxn, OnLoop(end_txn::serve)),
    (ApiKey::WriteTxnMarkers, OnLoop(write_txn_markers::serve)),
    (ApiKey::TxnOffsetCommit, OnLoop(txn_offset_commit::serve)),
    (ApiKey::DescribeAcls, InBackground(describe_acls::serve)),
    (ApiKey::CreateAcls, InBackground(create_acls::serve)),
    (ApiKey::DeleteAcls, InBackground(delete_acls::serve)),
    (ApiKey::DescribeConfigs, OnLoop(describe_configs::serve)),
    (ApiKey::AlterConfigs, InBackground(alter_configs::serve)),
    (ApiKey::AlterReplicaLogDirs, InBackground(alter_replica_log_dirs::serve)),
    (ApiKey::DescribeLogDirs, InBackground(describe_log_dirs::serve)),
    (ApiKey::SaslAuthenticate, OnLoop(sasl_authenticate::serve)),
    (ApiKey::CreatePartitions, InBackground(create_partitions::serve)),
    (ApiKey::DeleteGroups, InBackground(delete_groups::serve)),
    (ApiKey::ElectLeaders, InBackground(elect_leaders::serve)),
    (ApiKey::IncrementalAlterConfigs, InBackground(incremental_alter_configs::serve)),
    (ApiKey::AlterPartitionReassignments, InBackground(alter_partition_reassignments::serve)),
    (ApiKey::ListPartitionReassignments, OnLoop(list_partition_reassignments::serve)),
    (ApiKey::OffsetDelete, InBackground(offset_delete::serve)),
    (ApiKey::DescribeClientQuotas, OnLoop(describe_client_quotas::serve)),
    (ApiKey::AlterClientQuotas, InBackground(alter_client_quotas::serve)),
    (ApiKey::DescribeUserScramCredentials, OnLoop(describe_user_scram_credentials::serve)),
    (ApiKey::AlterUserScramCredentials, InBackground(alter_user_scram_credentials::serve)),
    (ApiKey::DescribeQuorum, InBackground(describe_quorum::serve)),
    (ApiKey::UpdateFeatures, InBackground(update_features::serve)),
    (ApiKey::DescribeCluster, OnLoop(describe_cluster::serve)),
    (ApiKey::DescribeProducers, InBackground(describe_producers::serve)),
    (ApiKey::UnregisterBroker, InBackground(unregister_broker::serve)),
    (ApiKey::DescribeTransactions, OnLoop(describe_transactions::serve)),
    (ApiKey::ListTransactions, InBackground(list_transactions::serve)),
    (ApiKey::ConsumerGroupHeartbeat, OnLoop(consumer_group_heartbeat::serve)),
    (ApiKey::ConsumerGroupDescribe, OnLoop(consumer_group_describe::serve)),
    (ApiKey::GetTelemetrySubscriptions, OnLoop(get_telemetry_subscriptions::serve)),
    (ApiKey::PushTelemetry, InBackground(push_telemetry::serve)),
    (ApiKey::ListConfigResources, OnLoop(list_config_resources::serve)),
    (ApiKey::DescribeTopicPartitions, OnLoop(describe_topic_partitions::serve)),
    (ApiKey::AddRaftVoter, OnLoop(add_raft_voter::serve)),
    (ApiKey::RemoveRaftVoter, OnLoop(remove_raft_voter::serve)),
];

/// One above the highest key of [`SERVED`].
const KEYS: usize = SERVED[SERVED.len() - 1].0 as usize + 1;

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

/// The function of an API that is served on a thread where waiting is allowed.
pub(crate) fn in_background(api: ApiKey) -> Option<Blocking> {
    match entry(api) {
        Some(InBackground(serve)) => Some(serve),
        _ => None,
    }
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
    match serve {
        OnLoop(serve) => serve(broker, context, decoder, out),
        InBackground(serve) => Ok(serve_in_background(broker, context, decoder, serve)),
    }
}

/// The code for a client that may be too old to know PRODUCER_FENCED (KIP-588).
fn fenced_error(error_code: i16, version: i16, known_since: i16) -> i16 {
    let is_unknown = error_code == ErrorCode::PRODUCER_FENCED.code() && version < known_since;
    if is_unknown { ErrorCode::INVALID_PRODUCER_EPOCH.code() } else { error_code }
}
