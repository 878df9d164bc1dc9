//! The driver of client telemetry (KIP-714): it decodes payloads, whose metrics are at `/metrics`.

mod otlp;

pub(crate) use otlp::{CLIENT_LABEL, INSTANCE_LABEL};

use std::collections::BTreeMap;

use mainstem_limits::telemetry::{ClientFacts, ClientSeries, Push, Pusher, Subscribed, Telemetry};
use mainstem_peers::Peer;
use mainstem_records::{Compression, InvalidBatch};
use mainstem_wire::messages::push_telemetry_request::PushTelemetryRequest;
use mainstem_wire::{ErrorCode, Uuid};
use parking_lot::Mutex;

use mainstem_requests::context::RequestContext;
use mainstem_runtime::clock::Clock;
use mainstem_runtime::random;
use mainstem_store::scratch::with_scratch;

/// Subscriptions, clients and their pushed metrics.
pub(crate) struct ClientTelemetry {
    clock: Clock,
    /// `telemetry.max.bytes`: the most bytes of a payload, compressed and decompressed.
    bytes_max: usize,
    telemetry: Mutex<Telemetry>,
    series: Mutex<ClientSeries>,
    /// Held while a payload is decoded, which takes about thirty times its size: one at a time.
    decoding: Mutex<()>,
}

impl ClientTelemetry {
    /// Telemetry without a subscription.
    pub(crate) fn new(bytes_max: usize, clock: Clock) -> Self {
        ClientTelemetry {
            clock,
            bytes_max,
            telemetry: Mutex::new(Telemetry::new(bytes_max)),
            series: Mutex::default(),
            decoding: Mutex::new(()),
        }
    }

    /// The most bytes that a payload may have.
    pub(crate) fn bytes_max(&self) -> usize {
        self.bytes_max
    }

    /// Applies the configuration of a subscription.
    pub(crate) fn subscribe(&self, name: &str, values: &BTreeMap<String, String>) {
        self.telemetry.lock().set_subscription(name, values);
    }

    /// The subscription of a client; a client without an id gets one.
    pub(crate) fn get(&self, context: &RequestContext, id: Uuid) -> Result<(Uuid, Subscribed), ErrorCode> {
        let id = if id.is_zero() { random::uuid() } else { id };
        let now_ms = self.clock.mono_ms();
        with_facts(context, |facts| self.telemetry.lock().get(id, facts, now_ms)).map(|got| (id, got))
    }

    /// Takes a client's push. It may take a while, so that it runs on a thread that may wait.
    pub(crate) fn push(
        &self,
        context: &RequestContext,
        request: &PushTelemetryRequest<'_>,
    ) -> Result<(), ErrorCode> {
        let id = request.client_instance_id;
        // Zero and one are no ids.
        if u128::from_be_bytes(id.0) <= 1 {
            return Err(ErrorCode::INVALID_REQUEST);
        }
        let push = Push {
            id,
            subscription_id: request.subscription_id,
            terminating: request.terminating,
            compression_type: request.compression_type,
            bytes: request.metrics.len(),
        };
        let now_ms = self.clock.mono_ms();
        with_facts(context, |facts| self.telemetry.lock().push(&push, facts, now_ms))?;
        if request.metrics.is_empty() {
            return Ok(());
        }
        let taken = self.take(context, request, now_ms);
        if let Err(error) = taken {
            self.telemetry.lock().payload_refused(id, error);
        }
        taken
    }

    fn take(
        &self,
        context: &RequestContext,
        request: &PushTelemetryRequest<'_>,
        now_ms: u64,
    ) -> Result<(), ErrorCode> {
        let compression = u8::try_from(request.compression_type).ok().and_then(Compression::from_id);
        let compression = compression.ok_or(ErrorCode::UNSUPPORTED_COMPRESSION_TYPE)?;
        let _one_at_a_time = self.decoding.lock();
        let payload =
            with_scratch(|scratch| scratch.decompress(compression, &request.metrics, self.bytes_max));
        let payload = payload.map_err(|error| match error {
            InvalidBatch::TooLarge { .. } => ErrorCode::TELEMETRY_TOO_LARGE,
            _ => ErrorCode::INVALID_RECORD,
        })?;
        let points = otlp::points(&payload).ok_or(ErrorCode::INVALID_RECORD)?;
        let id = request.client_instance_id;
        let until_ms = now_ms + self.telemetry.lock().expiry_ms(id);
        let address = Peer::of(context.connection.peer.ip()).to_string();
        let client_id = context.client_id.as_deref().unwrap_or_default();
        let from = Pusher { id, client_id, address: &address };
        let mut series = self.series.lock();
        series.expire(now_ms);
        series.push(from, until_ms, points);
        Ok(())
    }

    /// Calls `look` with the pushed metrics of clients that are still active.
    pub(crate) fn with_series<T>(&self, look: impl FnOnce(&ClientSeries) -> T) -> T {
        let mut series = self.series.lock();
        series.expire(self.clock.mono_ms());
        look(&series)
    }

    /// The number of known client instances.
    pub(crate) fn instances(&self) -> usize {
        self.telemetry.lock().len()
    }
}

fn with_facts<T>(context: &RequestContext, ask: impl FnOnce(&ClientFacts<'_>) -> T) -> T {
    let software = context.connection.software.lock().clone();
    let (name, version) = software.unwrap_or_else(|| ("unknown".to_owned(), "unknown".to_owned()));
    let peer = context.connection.peer;
    ask(&ClientFacts {
        client_id: context.client_id.as_deref().unwrap_or_default(),
        software_name: &name,
        software_version: &version,
        source_address: &peer.ip().to_canonical().to_string(),
        source_port: peer.port(),
    })
}
