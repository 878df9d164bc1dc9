//! DescribeConfigs (32), v1-4: the configuration of topics, groups and this broker, with the source of each value.

use std::collections::HashSet;
use std::sync::Arc;

use mainstem_config::describe::{
    DescribedConfig, describe_broker, describe_client_metrics, describe_cluster_default, describe_group,
    describe_topic,
};
use mainstem_controller::{ConfigResource, ResourceKind, names};
use mainstem_wire::messages::describe_configs_request::{DescribeConfigsRequest, DescribeConfigsResource};
use mainstem_wire::messages::describe_configs_response::{
    DescribeConfigsResourceResult, DescribeConfigsResponse, DescribeConfigsResult, DescribeConfigsSynonym,
};
use mainstem_wire::{DecodeError, Decoder, ErrorCode, Malformed, elements_budget};

use super::INLINE_ELEMENTS_MAX;
use crate::background::serve_in_background;
use crate::broker::Broker;
use crate::resources::ConfigTarget;
use crate::respond::body;
use crate::respond::{ListElement, respond_in_elements};
use crate::turns::Class;
use mainstem_net::handled::Handled;
use mainstem_net::output::ResponseBuffer;
use mainstem_requests::context::{Operation, RequestContext, Resource, authorize};
use mainstem_requests::refused::Refused;

/// The key of the secret from which salts for unknown SCRAM users are made.
const DECOY_SECRET: &str = "mainstem.scram.decoy.secret";

/// The error message of a resource whose description does not fit into the memory for answers.
const NO_MEMORY: &str =
    "The answer takes more memory than there is for answers: describe fewer resources at a time.";

/// Resources that are described on the event loop: about 2 ms of work.
const INLINE_RESOURCES_MAX: usize = 50;

pub(crate) fn serve(
    broker: &Arc<Broker>,
    context: RequestContext,
    decoder: &mut Decoder<'_>,
    out: &mut ResponseBuffer,
) -> Result<Handled, DecodeError> {
    let behind = decoder.clone();
    // It is not bounded by the rule for all APIs: one such answer at a time is put together.
    let mut held = decoder.held_to(elements_budget(INLINE_ELEMENTS_MAX));
    let request: DescribeConfigsRequest<'_> = match body(&mut held, context.version) {
        Err(DecodeError { kind: Malformed::Budget { .. }, .. }) => {
            return Ok(serve_in_background(broker, context, &behind, Class::Descriptions, answer_large));
        }
        decoded => decoded?,
    };
    if request.resources.len() > INLINE_RESOURCES_MAX {
        return Ok(serve_in_background(broker, context, &behind, Class::Descriptions, answer_large));
    }
    Ok(answer(broker, &context, &request, out))
}

/// Answers a request of more resources.
fn answer_large(
    broker: &Arc<Broker>,
    context: &RequestContext,
    decoder: &mut Decoder<'_>,
    out: &mut ResponseBuffer,
) -> Result<Handled, DecodeError> {
    let request = body(decoder, context.version)?;
    Ok(answer(broker, context, &request, out))
}

fn answer(
    broker: &Broker,
    context: &RequestContext,
    request: &DescribeConfigsRequest<'_>,
    out: &mut ResponseBuffer,
) -> Handled {
    // A resource that is named twice is answered once, as in Kafka, where resources are keys of a map.
    let mut seen = HashSet::new();
    let mut distinct: Vec<_> = request.resources.iter().collect();
    distinct.retain(|wanted| seen.insert((wanted.resource_type, &*wanted.resource_name)));
    let results = distinct.into_iter().map(|resource| {
        let keys = keys_of(resource);
        let is_asked_for =
            |config: &DescribedConfig| keys.as_ref().is_none_or(|keys| keys.contains(&*config.name));
        let configs = describe(broker, context, resource).map(|configs| {
            let configs = configs.into_iter().filter(is_asked_for);
            configs.map(|config| encode(config, request)).collect()
        });
        result(resource, configs)
    });
    out.share.get_or_insert_with(|| broker.net.answers.begin());
    respond_in_elements(context, DescribeConfigsResponse::default(), results, out)
}

fn result<'r>(
    resource: &'r DescribeConfigsResource<'_>,
    configs: Result<Vec<DescribeConfigsResourceResult<'static>>, Refused>,
) -> DescribeConfigsResult<'r> {
    let (error_code, error_message, configs) = match configs {
        Ok(configs) => (0, Some("".into()), configs),
        Err(refused) => (refused.error.code(), Some(refused.message.into()), Vec::new()),
    };
    DescribeConfigsResult {
        error_code,
        error_message,
        resource_type: resource.resource_type,
        resource_name: (&*resource.resource_name).into(),
        configs,
        ..Default::default()
    }
}

impl ListElement for DescribeConfigsResult<'_> {
    fn without_memory(self) -> Self {
        DescribeConfigsResult {
            error_code: ErrorCode::POLICY_VIOLATION.code(),
            error_message: Some(NO_MEMORY.into()),
            configs: Vec::new(),
            ..self
        }
    }
}

fn describe(
    broker: &Broker,
    context: &RequestContext,
    resource: &DescribeConfigsResource<'_>,
) -> Result<Vec<DescribedConfig>, Refused> {
    let config = broker.config();
    let image = broker.controller.image();
    match ConfigTarget::parse(resource.resource_type, &resource.resource_name, broker.local.id)? {
        ConfigTarget::Topic(name) => {
            authorize(context, Operation::DescribeConfigs, Resource::Topic(name))?;
            names::check(name)
                .map_err(|message| Refused { error: ErrorCode::INVALID_TOPIC_EXCEPTION, message })?;
            image.topic(name).ok_or(ErrorCode::UNKNOWN_TOPIC_OR_PARTITION)?;
            let own = image.configs(&ConfigResource::new(ResourceKind::Topic, name));
            Ok(describe_topic(own, &config.values))
        }
        ConfigTarget::Broker => {
            authorize(context, Operation::DescribeConfigs, Resource::Cluster)?;
            Ok(describe_broker(&config.values))
        }
        ConfigTarget::Loggers => {
            authorize(context, Operation::DescribeConfigs, Resource::Cluster)?;
            Ok(broker.loggers.describe())
        }
        ConfigTarget::ClusterDefault => {
            authorize(context, Operation::DescribeConfigs, Resource::Cluster)?;
            let own = image.configs(&ConfigResource::new(ResourceKind::Broker, ""));
            let mut configs = describe_cluster_default(own);
            // The metadata leader generates it; no operator has set it.
            configs.retain(|config| config.name != DECOY_SECRET);
            Ok(configs)
        }
        ConfigTarget::ClientMetrics(name) => {
            authorize(context, Operation::DescribeConfigs, Resource::Cluster)?;
            let own = image.configs(&ConfigResource::new(ResourceKind::ClientMetrics, name));
            Ok(describe_client_metrics(own, &config.values))
        }
        ConfigTarget::Group(name) => {
            authorize(context, Operation::DescribeConfigs, Resource::Group(name))?;
            let own = image.configs(&ConfigResource::new(ResourceKind::Group, name));
            Ok(describe_group(own, &config.values))
        }
    }
}

/// The keys asked for; none means all of them.
fn keys_of<'r>(resource: &'r DescribeConfigsResource<'_>) -> Option<HashSet<&'r str>> {
    let keys = resource.configuration_keys.as_ref().filter(|keys| !keys.is_empty())?;
    Some(keys.iter().map(|key| &**key).collect())
}

fn encode(
    config: DescribedConfig,
    request: &DescribeConfigsRequest<'_>,
) -> DescribeConfigsResourceResult<'static> {
    let synonyms = config.synonyms.into_iter().filter(|_| request.include_synonyms);
    let synonyms = synonyms.map(|synonym| DescribeConfigsSynonym {
        name: synonym.name.into(),
        value: synonym.value.map(Into::into),
        source: synonym.source.code(),
        ..Default::default()
    });
    DescribeConfigsResourceResult {
        name: config.name.into(),
        value: config.value.map(Into::into),
        read_only: config.read_only,
        config_source: config.source.code(),
        is_sensitive: config.is_sensitive,
        synonyms: synonyms.collect(),
        config_type: config.kind.map_or(0, |kind| kind.code()),
        documentation: config.documentation.filter(|_| request.include_documentation).map(Into::into),
        ..Default::default()
    }
}
