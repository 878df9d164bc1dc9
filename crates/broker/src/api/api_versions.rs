//! ApiVersions (18), v0-4: the served APIs and versions, so that a client can choose.

use std::sync::Arc;

use mainstem_controller::features::Feature;
use mainstem_wire::messages::api_versions_request::ApiVersionsRequest;
use mainstem_wire::messages::api_versions_response::{
    ApiVersion, ApiVersionsResponse, FinalizedFeatureKey, SupportedFeatureKey,
};
use mainstem_wire::{ApiKey, DecodeError, Decoder, ErrorCode, frame};

use crate::api;
use crate::broker::Broker;
use crate::respond::body;
use crate::respond::respond;
use mainstem_net::handled::Handled;
use mainstem_net::output::ResponseBuffer;
use mainstem_requests::context::RequestContext;

/// Version from which clients take features that begin at level 0.
const ZERO_LEVELS_SINCE: i16 = 4;

pub(crate) fn serve(
    broker: &Arc<Broker>,
    context: RequestContext,
    decoder: &mut Decoder<'_>,
    out: &mut ResponseBuffer,
) -> Result<Handled, DecodeError> {
    let request: ApiVersionsRequest<'_> = body(decoder, context.version)?;
    let (name, version) = (&request.client_software_name, &request.client_software_version);
    if context.version >= 3 && !(is_software_name(name) && is_software_name(version)) {
        let error_code = ErrorCode::INVALID_REQUEST.code();
        return Ok(respond(&context, ApiVersionsResponse { error_code, ..Default::default() }, out));
    }
    if context.version >= 3 {
        *context.connection.software.lock() = Some((name.to_string(), version.to_string()));
    }
    Ok(respond(&context, response(broker, context.version), out))
}

/// The answer to an unknown version: in version 0, with the known versions (KIP-511).
pub(crate) fn unsupported(broker: &Arc<Broker>, correlation_id: i32, out: &mut ResponseBuffer) -> Handled {
    let error_code = ErrorCode::UNSUPPORTED_VERSION.code();
    let response = ApiVersionsResponse { error_code, ..response(broker, 0) };
    frame::write_response(&mut out.bytes, ApiKey::ApiVersions, 0, correlation_id, &response)
        .expect("features are left out of version 0");
    Handled::Answered
}

fn response(broker: &Broker, version: i16) -> ApiVersionsResponse<'static> {
    let api_keys = api::served().map(|api| {
        let advertised = api.advertised_versions();
        ApiVersion {
            api_key: api as i16,
            min_version: *advertised.start(),
            max_version: *advertised.end(),
            ..Default::default()
        }
    });
    // Before version 4 clients take a feature that begins at level 0 for malformed (KAFKA-17011).
    let is_known = |feature: &&Feature| feature.min > 0 || version >= ZERO_LEVELS_SINCE;
    let view = broker.controller.view();
    let supported = view.features().filter(is_known).map(|feature| SupportedFeatureKey {
        name: feature.name.into(),
        min_version: feature.min,
        max_version: feature.max,
        ..Default::default()
    });
    let image = broker.controller.image();
    let finalized = image.served_features(view).map(|(name, level)| FinalizedFeatureKey {
        name: name.to_owned().into(),
        max_version_level: level,
        min_version_level: level,
        ..Default::default()
    });
    ApiVersionsResponse {
        api_keys: api_keys.collect(),
        supported_features: supported.collect(),
        finalized_features: finalized.collect(),
        finalized_features_epoch: image.next_offset(),
        ..Default::default()
    }
}

/// Letters, digits, dots and dashes, beginning and ending with a letter or digit (KIP-511).
fn is_software_name(name: &str) -> bool {
    let ends = |byte: Option<&u8>| byte.is_some_and(u8::is_ascii_alphanumeric);
    let bytes = name.as_bytes();
    ends(bytes.first())
        && ends(bytes.last())
        && bytes.iter().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-'))
}

#[cfg(test)]
mod tests {
    use super::is_software_name;

    #[test]
    fn software_names() {
        for good in ["librdkafka", "apache-kafka-java", "4.3.0", "x"] {
            assert!(is_software_name(good), "{good}");
        }
        for bad in ["", "-x", "x-", "a b", "a/b", "ü"] {
            assert!(!is_software_name(bad), "{bad}");
        }
    }
}
