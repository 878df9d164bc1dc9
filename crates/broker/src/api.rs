//! The APIs that are served: one table, one file each.
//!
//! The table drives ApiVersions, dispatch and the parity test. Each file parses a request, authorizes it, asks the
//! state machine or the log, and encodes the answer.

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
pub(crate) mod coordinated;
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
mod described;
pub(crate) mod dispatch;
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

use mainstem_wire::{ApiKey, DecodeError, Decoder, ErrorCode, Malformed, elements_budget};

use crate::api::Serve::{InBackground, OnLoop, OnLoopIfSmall, OnLoopIfSmallElse};
use crate::background::{self, Blocking, serve_in_background, serve_off_loop};
use crate::broker::Broker;
use crate::turns::Class;
use crate::turns::Class::{Changes, Data, Questions};
use mainstem_net::handled::Handled;
use mainstem_net::output::ResponseBuffer;
use mainstem_requests::context::RequestContext;

/// The most elements of a request's arrays for its event loop: more would hold up the loop's other connections. A
/// partition counts for two or three, since it takes more memory than a name or a number.
const INLINE_ELEMENTS_MAX: usize = 1000;

/// The function of an API's file, which decodes a request and answers it, and the thread that it runs on.
#[derive(Clone, Copy)]
enum Serve {
    /// On the event loop. For the hot path, which has bounds of its own, and for requests that cannot take long.
    OnLoop(background::OnLoop),
    /// On the event loop for a request of at most [`INLINE_ELEMENTS_MAX`] elements; in the background, by the same
    /// function, for a longer one.
    OnLoopIfSmall(background::OnLoop),
    /// The same, with another function for longer ones. One of a coordinator waits, so that its answer, which may be
    /// long too, is encoded there.
    OnLoopIfSmallElse(background::OnLoop, Class, Blocking),
    /// On a thread that may wait for the disk: plain code that returns with the answer. Also for short requests whose
    /// answer may list everything, which would hold up a loop.
    InBackground(Class, Blocking),
}

/// The APIs, ascending by key.
const SERVED: &[(ApiKey, Serve)] = &[
    (ApiKey::Produce, OnLoop(produce::serve)),
    (ApiKey::Fetch, OnLoop(fetch::serve)),
    (ApiKey::ListOffsets, OnLoopIfSmall(list_offsets::serve)),
    (ApiKey::Metadata, OnLoopIfSmall(metadata::serve)),
    (ApiKey::OffsetCommit, OnLoopIfSmall(offset_commit::serve)),
    (ApiKey::OffsetFetch, OnLoopIfSmallElse(offset_fetch::serve, Questions, offset_fetch::answer_large)),
    (ApiKey::FindCoordinator, OnLoopIfSmall(find_coordinator::serve)),
    (ApiKey::JoinGroup, OnLoopIfSmall(join_group::serve)),
    (ApiKey::Heartbeat, OnLoopIfSmall(heartbeat::serve)),
    (ApiKey::LeaveGroup, OnLoopIfSmall(leave_group::serve)),
    (ApiKey::SyncGroup, OnLoopIfSmall(sync_group::serve)),
    (ApiKey::DescribeGroups, InBackground(Questions, describe_groups::serve)),
    (ApiKey::ListGroups, InBackground(Questions, list_groups::serve)),
    (ApiKey::SaslHandshake, OnLoop(sasl_handshake::serve)),
    (ApiKey::ApiVersions, OnLoop(api_versions::serve)),
    (ApiKey::CreateTopics, InBackground(Changes, create_topics::serve)),
    (ApiKey::DeleteTopics, InBackground(Changes, delete_topics::serve)),
    (ApiKey::DeleteRecords, OnLoopIfSmall(delete_records::serve)),
    (ApiKey::InitProducerId, OnLoopIfSmall(init_producer_id::serve)),
    (ApiKey::OffsetForLeaderEpoch, OnLoopIfSmall(offset_for_leader_epoch::serve)),
    (ApiKey::AddPartitionsToTxn, OnLoopIfSmall(add_partitions_to_txn::serve)),
    (ApiKey::AddOffsetsToTxn, OnLoopIfSmall(add_offsets_to_txn::serve)),
    (ApiKey::EndTxn, OnLoopIfSmall(end_txn::serve)),
    (ApiKey::WriteTxnMarkers, OnLoopIfSmall(write_txn_markers::serve)),
    (ApiKey::TxnOffsetCommit, OnLoopIfSmall(txn_offset_commit::serve)),
    (ApiKey::DescribeAcls, InBackground(Data, describe_acls::serve)),
    (ApiKey::CreateAcls, InBackground(Changes, create_acls::serve)),
    (ApiKey::DeleteAcls, InBackground(Changes, delete_acls::serve)),
    (ApiKey::DescribeConfigs, OnLoop(describe_configs::serve)),
    (ApiKey::AlterConfigs, InBackground(Changes, alter_configs::serve)),
    (ApiKey::AlterReplicaLogDirs, InBackground(Data, alter_replica_log_dirs::serve)),
    (ApiKey::DescribeLogDirs, InBackground(Data, describe_log_dirs::serve)),
    (ApiKey::SaslAuthenticate, OnLoop(sasl_authenticate::serve)),
    (ApiKey::CreatePartitions, InBackground(Changes, create_partitions::serve)),
    (ApiKey::DeleteGroups, InBackground(Changes, delete_groups::serve)),
    (ApiKey::ElectLeaders, InBackground(Changes, elect_leaders::serve)),
    (ApiKey::IncrementalAlterConfigs, InBackground(Changes, incremental_alter_configs::serve)),
    (ApiKey::AlterPartitionReassignments, InBackground(Changes, alter_partition_reassignments::serve)),
    (ApiKey::ListPartitionReassignments, OnLoopIfSmall(list_partition_reassignments::serve)),
    (ApiKey::OffsetDelete, InBackground(Changes, offset_delete::serve)),
    (ApiKey::DescribeClientQuotas, InBackground(Data, describe_client_quotas::serve)),
    (ApiKey::AlterClientQuotas, InBackground(Changes, alter_client_quotas::serve)),
    (ApiKey::DescribeUserScramCredentials, InBackground(Data, describe_user_scram_credentials::serve)),
    (ApiKey::AlterUserScramCredentials, InBackground(Changes, alter_user_scram_credentials::serve)),
    (ApiKey::DescribeQuorum, InBackground(Questions, describe_quorum::serve)),
    (ApiKey::UpdateFeatures, InBackground(Changes, update_features::serve)),
    (ApiKey::DescribeCluster, OnLoopIfSmall(describe_cluster::serve)),
    (ApiKey::DescribeProducers, InBackground(Data, describe_producers::serve)),
    (ApiKey::UnregisterBroker, InBackground(Changes, unregister_broker::serve)),
    (ApiKey::DescribeTransactions, InBackground(Questions, describe_transactions::serve)),
    (ApiKey::ListTransactions, InBackground(Questions, list_transactions::serve)),
    (ApiKey::ConsumerGroupHeartbeat, OnLoopIfSmall(consumer_group_heartbeat::serve)),
    (ApiKey::ConsumerGroupDescribe, InBackground(Questions, consumer_group_describe::serve)),
    (ApiKey::GetTelemetrySubscriptions, OnLoopIfSmall(get_telemetry_subscriptions::serve)),
    (ApiKey::PushTelemetry, InBackground(Data, push_telemetry::serve)),
    (ApiKey::ListConfigResources, InBackground(Data, list_config_resources::serve)),
    (ApiKey::DescribeTopicPartitions, InBackground(Data, describe_topic_partitions::serve)),
    (ApiKey::AddRaftVoter, OnLoopIfSmall(add_raft_voter::serve)),
    (ApiKey::RemoveRaftVoter, OnLoopIfSmall(remove_raft_voter::serve)),
];

/// One above the highest key of [`SERVED`].
const KEYS: usize = SERVED[SERVED.len() - 1].0 as usize + 1;

/// The table by key, for dispatch.
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

/// The function of an API that is served in the background.
pub(crate) fn in_background(api: ApiKey) -> Option<Blocking> {
    match entry(api) {
        Some(InBackground(_, serve)) => Some(serve),
        _ => None,
    }
}

/// Returns true if an API is served.
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
    match entry(context.api).expect("dispatch asks only for what is served") {
        OnLoop(serve) => serve(broker, context, decoder, out),
        // An element takes at least a byte.
        OnLoopIfSmall(serve) | OnLoopIfSmallElse(serve, ..) if decoder.remaining() <= INLINE_ELEMENTS_MAX => {
            serve(broker, context, decoder, out)
        }
        OnLoopIfSmall(serve) => match serve_if_small(broker, &context, decoder, out, serve) {
            Some(served) => served,
            None => Ok(serve_off_loop(broker, context, decoder, serve)),
        },
        OnLoopIfSmallElse(serve, class, else_serve) => {
            match serve_if_small(broker, &context, decoder, out, serve) {
                Some(served) => served,
                None => Ok(serve_in_background(broker, context, decoder, class, else_serve)),
            }
        }
        InBackground(class, serve) => Ok(serve_in_background(broker, context, decoder, class, serve)),
    }
}

/// Serves a request on its event loop, unless it has too many elements. Such a request has had no effect yet, since
/// requests are decoded first.
fn serve_if_small(
    broker: &Arc<Broker>,
    context: &RequestContext,
    decoder: &Decoder<'_>,
    out: &mut ResponseBuffer,
    serve: background::OnLoop,
) -> Option<Result<Handled, DecodeError>> {
    let mut held = decoder.held_to(elements_budget(INLINE_ELEMENTS_MAX));
    match serve(broker, context.clone(), &mut held, out) {
        Err(DecodeError { kind: Malformed::Budget { .. }, .. }) => None,
        served => Some(served),
    }
}

/// The code for a client that may be too old to know PRODUCER_FENCED (KIP-588).
fn fenced_error(error_code: i16, version: i16, known_since: i16) -> i16 {
    let is_unknown = error_code == ErrorCode::PRODUCER_FENCED.code() && version < known_since;
    if is_unknown { ErrorCode::INVALID_PRODUCER_EPOCH.code() } else { error_code }
}
