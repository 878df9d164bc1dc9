//! IncrementalAlterConfigs (44), v0-1, for topics, this node, the cluster's defaults and groups.

use std::borrow::Cow;
use std::collections::HashMap;

use mainstem_wire::ErrorCode;
use mainstem_wire::messages::config_record::ConfigRecord;
use mainstem_wire::messages::incremental_alter_configs_request::{
    AlterConfigsResource, IncrementalAlterConfigsRequest,
};
use mainstem_wire::messages::incremental_alter_configs_response::{
    AlterConfigsResourceResponse, IncrementalAlterConfigsResponse,
};
use mainstem_wire::metadata_frame::MetadataRecord;

use super::error::ApiError;
use super::heart::{Decision, MetadataHeart};
use super::image::{ConfigResource, ResourceKind};
use crate::config::alter::{BrokerLayer, Change, Changed, Operation, alter_broker, alter_group, alter_topic};

/// Groups that may have configurations at a time.
pub const CONFIGURED_GROUPS_MAX: usize = 10_000;

/// Bytes in the name of a group that is configured.
pub const CONFIGURED_GROUP_NAME_BYTES_MAX: usize = 4_096;

impl MetadataHeart {
    /// Changes configurations, those of each resource all or none of them.
    pub fn alter_configs(
        &mut self,
        request: &IncrementalAlterConfigsRequest<'_>,
    ) -> Decision<IncrementalAlterConfigsResponse<'static>> {
        let mut records = Vec::new();
        let mut responses: Vec<AlterConfigsResourceResponse<'static>> = Vec::new();
        let mut times: HashMap<(i8, &str), usize> = HashMap::new();
        for resource in &request.resources {
            *times.entry((resource.resource_type, &resource.resource_name)).or_default() += 1;
        }
        for resource in &request.resources {
            // One answer per resource.
            let Some(times) = times.remove(&(resource.resource_type, &*resource.resource_name)) else {
                continue;
            };
            let changed = if times > 1 {
                let message = "Each resource must appear at most once.";
                Err(ApiError::new(ErrorCode::INVALID_REQUEST, message))
            } else {
                self.changed(resource, responses.len())
            };
            responses.push(answer(resource, changed.as_ref().err()));
            records.extend(changed.into_iter().flat_map(|changed| config_records(resource, changed)));
        }
        let response = IncrementalAlterConfigsResponse { responses, ..Default::default() };
        self.decide(if request.validate_only { vec![] } else { records }, response)
    }

    /// `before` counts the request's resources before this one.
    fn changed(&self, resource: &AlterConfigsResource<'_>, before: usize) -> Result<Changed, ApiError> {
        let invalid = |message: String| ApiError::new(ErrorCode::INVALID_REQUEST, message);
        let code = resource.resource_type;
        let kind = ResourceKind::from_code(code)
            .ok_or_else(|| invalid(format!("Configurations of resource type {code} cannot be altered.")))?;
        let name = resource.resource_name.as_ref();
        let changes = changes(resource)?;
        let own = self.ahead().configs(&ConfigResource::new(kind, name));
        let config = self.ahead_config();
        Ok(match kind {
            ResourceKind::Topic => {
                self.check_topic(name)?;
                alter_topic(own, &changes, &config.values)?
            }
            ResourceKind::Group => {
                self.check_group(name, own.is_empty(), before)?;
                alter_group(own, &changes, &config.values)?
            }
            ResourceKind::Broker => alter_broker(self.broker_layer(name)?, &changes, config)?,
        })
    }

    fn check_topic(&self, name: &str) -> Result<(), ApiError> {
        if name.is_empty() {
            let message = "Default topic resources are not allowed.";
            return Err(ApiError::new(ErrorCode::INVALID_REQUEST, message));
        }
        if self.ahead().topic(name).is_none() {
            let message = format!("The topic '{name}' does not exist.");
            return Err(ApiError::new(ErrorCode::UNKNOWN_TOPIC_OR_PARTITION, message));
        }
        Ok(())
    }

    /// Groups need not exist to be configured, so that their number has a bound of its own.
    fn check_group(&self, name: &str, is_new: bool, before: usize) -> Result<(), ApiError> {
        if name.is_empty() {
            let message = "Default group resources are not allowed.";
            return Err(ApiError::new(ErrorCode::INVALID_REQUEST, message));
        }
        if name.len() > CONFIGURED_GROUP_NAME_BYTES_MAX {
            let message = format!("A group's name may have {CONFIGURED_GROUP_NAME_BYTES_MAX} bytes.");
            return Err(ApiError::new(ErrorCode::INVALID_REQUEST, message));
        }
        let configured = || self.ahead().configured(ResourceKind::Group).count();
        if is_new && before + configured() >= CONFIGURED_GROUPS_MAX {
            let message = format!(
                "{CONFIGURED_GROUPS_MAX} groups have configurations, which is as many as can be: delete those of \
                 groups that are not used any more."
            );
            return Err(ApiError::new(ErrorCode::POLICY_VIOLATION, message));
        }
        Ok(())
    }

    /// The empty name is the cluster's default.
    fn broker_layer(&self, name: &str) -> Result<BrokerLayer, ApiError> {
        let invalid = |message: String| Err(ApiError::new(ErrorCode::INVALID_REQUEST, message));
        let node = self.node_id();
        match name.parse::<i32>() {
            _ if name.is_empty() => Ok(BrokerLayer::ClusterDefault),
            Ok(id) if id == node => Ok(BrokerLayer::Node),
            Ok(_) => {
                invalid(format!("Unexpected broker id, expected {node} or empty string, but received {name}"))
            }
            Err(_) => invalid(format!("Node id must be an integer, but it is: {name}")),
        }
    }
}

fn changes<'a>(resource: &'a AlterConfigsResource<'_>) -> Result<Vec<Change<'a>>, ApiError> {
    let change =
        |config: &'a mainstem_wire::messages::incremental_alter_configs_request::AlterableConfig<'_>| {
            let code = config.config_operation;
            let operation = Operation::from_code(code).ok_or_else(|| {
                let message = format!("Unknown operation {code} for the key {}.", config.name);
                ApiError::new(ErrorCode::INVALID_REQUEST, message)
            })?;
            Ok(Change { name: &config.name, operation, value: config.value.as_deref() })
        };
    resource.configs.iter().map(change).collect()
}

fn config_records<'a>(resource: &AlterConfigsResource<'a>, changed: Changed) -> Vec<MetadataRecord<'static>> {
    let (resource_type, resource_name) = (resource.resource_type, resource.resource_name.to_string());
    let record = |(name, value): (String, Option<String>)| {
        MetadataRecord::ConfigRecord(Box::new(ConfigRecord {
            resource_type,
            resource_name: Cow::Owned(resource_name.clone()),
            name: Cow::Owned(name),
            value: value.map(Cow::Owned),
            ..ConfigRecord::default()
        }))
    };
    changed.into_iter().map(record).collect()
}

fn answer(
    resource: &AlterConfigsResource<'_>,
    error: Option<&ApiError>,
) -> AlterConfigsResourceResponse<'static> {
    AlterConfigsResourceResponse {
        error_code: error.map_or(ErrorCode::NONE, |error| error.code).0,
        error_message: error.map(|error| Cow::Owned(error.message.clone())),
        resource_type: resource.resource_type,
        resource_name: Cow::Owned(resource.resource_name.to_string()),
        ..AlterConfigsResourceResponse::default()
    }
}
