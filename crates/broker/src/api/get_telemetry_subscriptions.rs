//! GetTelemetrySubscriptions (71), v0: the metrics that a client is to push, and the interval (KIP-714).

use std::sync::Arc;

use mainstem_records::Compression;
use mainstem_wire::messages::get_telemetry_subscriptions_request::GetTelemetrySubscriptionsRequest;
use mainstem_wire::messages::get_telemetry_subscriptions_response::GetTelemetrySubscriptionsResponse;
use mainstem_wire::{DecodeError, Decoder};

use crate::broker::Broker;
use crate::respond::body;
use crate::respond::respond;
use mainstem_net::handled::Handled;
use mainstem_net::output::ResponseBuffer;
use mainstem_requests::context::RequestContext;

/// Codecs that are accepted, the preferred one first, as in Kafka.
const ACCEPTED: [Compression; 4] =
    [Compression::Zstd, Compression::Lz4, Compression::Gzip, Compression::Snappy];

pub(crate) fn serve(
    broker: &Arc<Broker>,
    context: RequestContext,
    decoder: &mut Decoder<'_>,
    out: &mut ResponseBuffer,
) -> Result<Handled, DecodeError> {
    let request: GetTelemetrySubscriptionsRequest = body(decoder, context.version)?;
    let response = match broker.telemetry.get(&context, request.client_instance_id) {
        Err(error) => GetTelemetrySubscriptionsResponse { error_code: error.code(), ..Default::default() },
        Ok((client_instance_id, subscribed)) => GetTelemetrySubscriptionsResponse {
            client_instance_id,
            subscription_id: subscribed.subscription_id,
            accepted_compression_types: ACCEPTED.map(|codec| codec as i8).to_vec(),
            push_interval_ms: i32::try_from(subscribed.interval_ms).unwrap_or(i32::MAX),
            telemetry_max_bytes: i32::try_from(broker.telemetry.bytes_max()).unwrap_or(i32::MAX),
            delta_temporality: true,
            requested_metrics: subscribed.metrics.into_iter().map(Into::into).collect(),
            ..Default::default()
        },
    };
    Ok(respond(&context, response, out))
}
