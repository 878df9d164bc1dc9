//! The body of a request, and the one function that writes every response: it applies throttling, then encodes the frame.

use std::time::Duration;

use mainstem_log::FileRange;
use mainstem_wire::{DecodeError, Decoder, Element, EncodeError, ListFrame, Message, Request, frame};

use mainstem_net::buffers::BUFFER_BYTES;
use mainstem_net::handled::Handled;
use mainstem_net::output::ResponseBuffer;
use mainstem_requests::context::RequestContext;

/// Decodes the body of a request. Bytes behind it are ignored, as in Kafka.
pub(crate) fn body<'a, R: Request<'a>>(decoder: &mut Decoder<'a>, version: i16) -> Result<R, DecodeError> {
    R::decode(decoder, version)
}

/// A response whose `throttle_time_ms` can be set.
pub(crate) trait Throttled {
    /// Sets the time for which the client is throttled; does nothing if the version has no such field.
    fn set_throttle_time_ms(&mut self, throttle_time_ms: i32);
}

/// Encodes a response behind the others in `out`.
pub(crate) fn respond<'a, M: Message<'a> + Throttled>(
    context: &RequestContext,
    message: M,
    out: &mut ResponseBuffer,
) -> Handled {
    respond_with_files(context, message, (Vec::new(), None), out)
}

/// Encodes a response to a client that is throttled for something besides the request's time.
pub(crate) fn respond_throttled<'a, M: Message<'a> + Throttled>(
    context: &RequestContext,
    message: M,
    held: Option<Duration>,
    out: &mut ResponseBuffer,
) -> Handled {
    out.mute = out.mute.max(held);
    encode(context, message, held, Vec::new(), out)
}

/// Encodes a response to a client that was throttled when its request was served: the response only says so.
pub(crate) fn respond_throttled_before<'a, M: Message<'a> + Throttled>(
    context: &RequestContext,
    message: M,
    held: Option<Duration>,
    out: &mut ResponseBuffer,
) -> Handled {
    encode(context, message, held, Vec::new(), out)
}

/// Encodes a response with holes, each filled by the file range of the same index, to a client that is throttled for so long afterwards.
pub(crate) fn respond_with_files<'a, M: Message<'a> + Throttled>(
    context: &RequestContext,
    message: M,
    (files, held): (Vec<FileRange>, Option<Duration>),
    out: &mut ResponseBuffer,
) -> Handled {
    out.mute = out.mute.max(held);
    encode(context, message, held, files, out)
}

fn encode<'a, M: Message<'a> + Throttled>(
    context: &RequestContext,
    mut message: M,
    held: Option<Duration>,
    files: Vec<FileRange>,
    out: &mut ResponseBuffer,
) -> Handled {
    let throttle = context.connection.quotas.request_took(context);
    if let Some(delay) = throttle.max(held) {
        message.set_throttle_time_ms(i32::try_from(delay.as_millis()).unwrap_or(i32::MAX));
    }
    let (api, version) = (context.api, context.version);
    let holes = match frame::write_response(&mut out.bytes, api, version, context.correlation_id, &message) {
        Ok(holes) => holes,
        Err(error) => {
            out.unencodable =
                Some(format!("the answer to {} v{version} cannot be encoded: {error}", api.name()));
            return Handled::Answered;
        }
    };
    assert_eq!(holes.len(), files.len(), "every hole has its file range");
    for (hole, range) in holes.into_iter().zip(files) {
        out.insert_file(hole.at, range);
    }
    out.mute = out.mute.max(throttle);
    Handled::Answered
}

/// An element of an answer that may be large.
pub(crate) trait ListElement: Element {
    /// The element in place of one for which there is no memory.
    fn without_memory(self) -> Self;
}

/// Encodes a response that ends in an array, behind the others in `out`; `message` has none of its elements. Each
/// element is made, or dropped, when the one before it is encoded. So elements that are made then need no memory but
/// their bytes. These are added to the share of `out` before there is memory for them. An element without memory is
/// refused; if not even refusals fit, the connection has to end.
pub(crate) fn respond_in_elements<'a, M: Message<'a> + Throttled, E: ListElement>(
    context: &RequestContext,
    message: M,
    elements: impl ExactSizeIterator<Item = E>,
    out: &mut ResponseBuffer,
) -> Handled {
    let start = out.bytes.len();
    if let Err(why) = encode_in_elements(context, message, elements, out) {
        out.bytes.truncate(start);
        out.unencodable = Some(why);
    }
    Handled::Answered
}

fn encode_in_elements<'a, M: Message<'a> + Throttled, E: ListElement>(
    context: &RequestContext,
    mut message: M,
    elements: impl ExactSizeIterator<Item = E>,
    out: &mut ResponseBuffer,
) -> Result<(), String> {
    let (api, version) = (context.api, context.version);
    let unencodable =
        |error: EncodeError| format!("the answer to {} v{version} cannot be encoded: {error}", api.name());
    let name = (api, version, context.correlation_id);
    let mut frame = ListFrame::begin(&mut out.bytes, name, &message, elements.len()).map_err(unencodable)?;
    let mut encoded = Vec::new();
    for element in elements {
        frame.write(&mut encoded, &element).map_err(unencodable)?;
        match out.reserve(encoded.len()) {
            true => drop(element),
            false => {
                encoded.clear();
                frame.rewrite(&mut encoded, &element.without_memory()).map_err(unencodable)?;
                out.reserve_for_refusal(encoded.len())?;
            }
        }
        out.bytes.extend_from_slice(&encoded);
        encoded.clear();
        encoded.shrink_to(BUFFER_BYTES);
    }
    let throttle = context.connection.quotas.request_took(context);
    if let Some(delay) = throttle {
        message.set_throttle_time_ms(i32::try_from(delay.as_millis()).unwrap_or(i32::MAX));
    }
    frame.finish(&mut out.bytes, &message).map_err(unencodable)?;
    out.mute = out.mute.max(throttle);
    out.trim();
    Ok(())
}

macro_rules! throttled {
    ($($module:ident::$response:ident),* $(,)?) => {$(
        impl Throttled for mainstem_wire::messages::$module::$response<'_> {
            fn set_throttle_time_ms(&mut self, throttle_time_ms: i32) {
                self.throttle_time_ms = throttle_time_ms;
            }
        }
    )*};
}

/// An answer between controllers, which is not throttled.
impl Throttled for mainstem_wire::messages::describe_quorum_response::DescribeQuorumResponse<'_> {
    fn set_throttle_time_ms(&mut self, _throttle_time_ms: i32) {}
}

/// Clients that authenticate are not throttled.
impl Throttled for mainstem_wire::messages::sasl_handshake_response::SaslHandshakeResponse<'_> {
    fn set_throttle_time_ms(&mut self, _throttle_time_ms: i32) {}
}

/// Clients that authenticate are not throttled.
impl Throttled for mainstem_wire::messages::sasl_authenticate_response::SaslAuthenticateResponse<'_> {
    fn set_throttle_time_ms(&mut self, _throttle_time_ms: i32) {}
}

/// An answer between brokers, which is not throttled.
impl Throttled for mainstem_wire::messages::write_txn_markers_response::WriteTxnMarkersResponse<'_> {
    fn set_throttle_time_ms(&mut self, _throttle_time_ms: i32) {}
}

throttled! {
    add_offsets_to_txn_response::AddOffsetsToTxnResponse,
    add_partitions_to_txn_response::AddPartitionsToTxnResponse,
    add_raft_voter_response::AddRaftVoterResponse,
    alter_client_quotas_response::AlterClientQuotasResponse,
    alter_configs_response::AlterConfigsResponse,
    alter_partition_reassignments_response::AlterPartitionReassignmentsResponse,
    alter_replica_log_dirs_response::AlterReplicaLogDirsResponse,
    alter_user_scram_credentials_response::AlterUserScramCredentialsResponse,
    api_versions_response::ApiVersionsResponse,
    consumer_group_describe_response::ConsumerGroupDescribeResponse,
    consumer_group_heartbeat_response::ConsumerGroupHeartbeatResponse,
    create_acls_response::CreateAclsResponse,
    create_partitions_response::CreatePartitionsResponse,
    create_topics_response::CreateTopicsResponse,
    delete_acls_response::DeleteAclsResponse,
    delete_groups_response::DeleteGroupsResponse,
    delete_records_response::DeleteRecordsResponse,
    delete_topics_response::DeleteTopicsResponse,
    describe_acls_response::DescribeAclsResponse,
    describe_client_quotas_response::DescribeClientQuotasResponse,
    describe_cluster_response::DescribeClusterResponse,
    describe_configs_response::DescribeConfigsResponse,
    describe_groups_response::DescribeGroupsResponse,
    describe_log_dirs_response::DescribeLogDirsResponse,
    describe_producers_response::DescribeProducersResponse,
    describe_topic_partitions_response::DescribeTopicPartitionsResponse,
    describe_transactions_response::DescribeTransactionsResponse,
    describe_user_scram_credentials_response::DescribeUserScramCredentialsResponse,
    elect_leaders_response::ElectLeadersResponse,
    end_txn_response::EndTxnResponse,
    fetch_response::FetchResponse,
    find_coordinator_response::FindCoordinatorResponse,
    get_telemetry_subscriptions_response::GetTelemetrySubscriptionsResponse,
    heartbeat_response::HeartbeatResponse,
    incremental_alter_configs_response::IncrementalAlterConfigsResponse,
    init_producer_id_response::InitProducerIdResponse,
    join_group_response::JoinGroupResponse,
    leave_group_response::LeaveGroupResponse,
    list_config_resources_response::ListConfigResourcesResponse,
    list_groups_response::ListGroupsResponse,
    list_offsets_response::ListOffsetsResponse,
    list_partition_reassignments_response::ListPartitionReassignmentsResponse,
    list_transactions_response::ListTransactionsResponse,
    metadata_response::MetadataResponse,
    offset_commit_response::OffsetCommitResponse,
    offset_delete_response::OffsetDeleteResponse,
    offset_fetch_response::OffsetFetchResponse,
    offset_for_leader_epoch_response::OffsetForLeaderEpochResponse,
    produce_response::ProduceResponse,
    push_telemetry_response::PushTelemetryResponse,
    remove_raft_voter_response::RemoveRaftVoterResponse,
    sync_group_response::SyncGroupResponse,
    txn_offset_commit_response::TxnOffsetCommitResponse,
    unregister_broker_response::UnregisterBrokerResponse,
    update_features_response::UpdateFeaturesResponse,
}
