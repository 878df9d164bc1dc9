//! IncrementalAlterConfigs (44), v0-1, and AlterConfigs (33), v0-2, for topics, this node, the cluster's defaults and
//! groups. The older API replaces all values of a resource; it is the newer one with the missing keys deleted.

use std::borrow::Cow;
use std::collections::{HashMap, HashSet};

use mainstem_wire::ErrorCode;
use mainstem_wire::messages::alter_configs_request::AlterConfigsRequest;
use mainstem_wire::messages::alter_configs_response::{self, AlterConfigsResponse};
use mainstem_wire::messages::config_record::ConfigRecord;
use mainstem_wire::messages::incremental_alter_configs_request::{
    AlterConfigsResource, AlterableConfig, IncrementalAlterConfigsRequest,
};
use mainstem_wire::messages::incremental_alter_configs_response::{
    AlterConfigsResourceResponse, IncrementalAlterConfigsResponse,
};
use mainstem_wire::metadata_frame::MetadataRecord;

use super::error::ApiError;
use super::image::{ConfigResource, ResourceKind};
use super::node_view::NodeView;
use super::state_machine::{Decision, MetadataStateMachine};
use mainstem_config::alter::{
    AlterError, BrokerLayer, Change, Changed, Operation, alter_broker, alter_group, alter_topic,
};
use mainstem_config::{BrokerConfig, alter_client_metrics};

/// Groups that may have configurations at a time.
pub const CONFIGURED_GROUPS_MAX: usize = 10_000;

/// Bytes in the name of a group that is configured.
pub const CONFIGURED_GROUP_NAME_BYTES_MAX: usize = 4_096;

/// Subscriptions to client metrics.
pub const CLIENT_METRICS_MAX: usize = 1_000;

/// A resource as a request names it: the code of its type, and its name.
type Named<'a> = (i8, &'a str);

/// The changes of a resource's values that a request asks for.
enum Edits<'a> {
    /// These changes, everything else stays.
    Change(Vec<Change<'a>>),
    /// These values and no others.
    Replace(Vec<Change<'a>>),
}

/// A resource with the requested changes.
type Asked<'a> = (Named<'a>, Result<Edits<'a>, ApiError>);

/// The answer for one resource: no error if its changes were made.
type Answer<'a> = (Named<'a>, Option<ApiError>);

impl MetadataStateMachine {
    /// Changes configurations. Of each resource all changes are made, or none.
    pub fn alter_configs(
        &mut self,
        view: &NodeView,
        request: &IncrementalAlterConfigsRequest<'_>,
    ) -> Decision<IncrementalAlterConfigsResponse<'static>> {
        let asked = request.resources.iter().map(|resource| {
            (
                (resource.resource_type, resource.resource_name.as_ref()),
                changes_of(resource).map(Edits::Change),
            )
        });
        let (records, answers) = self.alter(&view.config(self.ahead()), asked.collect());
        let responses = answers.into_iter().map(|((kind, name), error)| AlterConfigsResourceResponse {
            error_code: code_of(&error),
            error_message: error.map(|error| Cow::Owned(error.message)),
            resource_type: kind,
            resource_name: Cow::Owned(name.to_string()),
            ..AlterConfigsResourceResponse::default()
        });
        let response =
            IncrementalAlterConfigsResponse { responses: responses.collect(), ..Default::default() };
        self.decide(if request.validate_only { vec![] } else { records }, response)
    }

    /// Replaces configurations: keys that the request does not name are unset.
    pub fn replace_configs(
        &mut self,
        view: &NodeView,
        request: &AlterConfigsRequest<'_>,
    ) -> Decision<AlterConfigsResponse<'static>> {
        let asked = request.resources.iter().map(|resource| {
            let set = resource.configs.iter().map(|config| Change {
                name: &config.name,
                operation: Operation::Set,
                value: config.value.as_deref(),
            });
            let edits = Edits::Replace(set.collect());
            ((resource.resource_type, resource.resource_name.as_ref()), Ok(edits))
        });
        let (records, answers) = self.alter(&view.config(self.ahead()), asked.collect());
        let responses = answers.into_iter().map(|((kind, name), error)| {
            alter_configs_response::AlterConfigsResourceResponse {
                error_code: code_of(&error),
                error_message: error.map(|error| Cow::Owned(error.message)),
                resource_type: kind,
                resource_name: Cow::Owned(name.to_string()),
                ..Default::default()
            }
        });
        let response = AlterConfigsResponse { responses: responses.collect(), ..Default::default() };
        self.decide(if request.validate_only { vec![] } else { records }, response)
    }

    /// The records, and one answer per resource. `config` is that of the node that decides.
    fn alter<'a>(
        &self,
        config: &BrokerConfig,
        asked: Vec<Asked<'a>>,
    ) -> (Vec<MetadataRecord<'static>>, Vec<Answer<'a>>) {
        let mut times: HashMap<Named<'a>, usize> = HashMap::new();
        for (named, _) in &asked {
            *times.entry(*named).or_default() += 1;
        }
        let mut records = Vec::new();
        let mut answers: Vec<Answer<'a>> = Vec::new();
        for (named, edits) in asked {
            // A repeated resource is answered once.
            let Some(times) = times.remove(&named) else { continue };
            let changed = match times {
                1 => edits.and_then(|edits| self.changed(config, named, edits, answers.len())),
                _ => {
                    let message = "Each resource must appear at most once.";
                    Err(ApiError::new(ErrorCode::INVALID_REQUEST, message))
                }
            };
            match changed {
                Ok(changed) => {
                    records.extend(config_records(named, changed));
                    answers.push((named, None));
                }
                Err(error) => answers.push((named, Some(error))),
            }
        }
        (records, answers)
    }

    /// `before` counts the request's resources before this one.
    fn changed(
        &self,
        config: &BrokerConfig,
        (code, name): Named<'_>,
        edits: Edits<'_>,
        before: usize,
    ) -> Result<Changed, ApiError> {
        let invalid = |message: String| ApiError::new(ErrorCode::INVALID_REQUEST, message);
        let kind = ResourceKind::from_code(code)
            .ok_or_else(|| invalid(format!("Configurations of resource type {code} cannot be altered.")))?;
        let own = self.ahead().configs(&ConfigResource::new(kind, name));
        let changes = match edits {
            Edits::Change(changes) => changes,
            Edits::Replace(mut set) => {
                let kept: HashSet<&str> = set.iter().map(|change| change.name).collect();
                let gone = own.keys().map(String::as_str).filter(|name| !kept.contains(name));
                set.extend(gone.map(|name| Change { name, operation: Operation::Delete, value: None }));
                set
            }
        };
        Ok(match kind {
            ResourceKind::Topic => {
                // As in Kafka, values are checked before the topic is looked up.
                let changed = alter_topic(own, &changes, &config.values);
                self.check_topic(name, changed)?
            }
            ResourceKind::Group => {
                self.check_group(name, own.is_empty(), before)?;
                alter_group(own, &changes, &config.values)?
            }
            ResourceKind::ClientMetrics => {
                self.check_subscription(name, own.is_empty(), before)?;
                alter_client_metrics(own, &changes)?
            }
            ResourceKind::Broker => alter_broker(self.broker_layer(config, name)?, own, &changes, config)?,
        })
    }

    /// Returns the changes if the topic exists and its configuration may be changed.
    fn check_topic(&self, name: &str, changed: Result<Changed, AlterError>) -> Result<Changed, ApiError> {
        if name.is_empty() {
            let message = "Default topic resources are not allowed.";
            return Err(ApiError::new(ErrorCode::INVALID_REQUEST, message));
        }
        let changed = changed?;
        let Some(topic) = self.ahead().topic(name) else {
            let message = format!("The topic '{name}' does not exist.");
            return Err(ApiError::new(ErrorCode::UNKNOWN_TOPIC_OR_PARTITION, message));
        };
        self.check_not_attached(topic, "its rules are those that its directory was made with.")?;
        Ok(changed)
    }

    /// Checks the bound on configured groups: groups need not exist to be configured.
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

    /// Checks the bound on subscriptions: all of them are looked at whenever a client asks for its own.
    fn check_subscription(&self, name: &str, is_new: bool, before: usize) -> Result<(), ApiError> {
        if name.is_empty() {
            let message = "Subscription name can't be empty";
            return Err(ApiError::new(ErrorCode::INVALID_REQUEST, message));
        }
        let known = self.ahead().configured(ResourceKind::ClientMetrics).count();
        if is_new && known + before >= CLIENT_METRICS_MAX {
            let message = format!("There are {known} subscriptions to client metrics, which is the most.");
            return Err(ApiError::new(ErrorCode::POLICY_VIOLATION, message));
        }
        Ok(())
    }

    /// Returns the layer of a broker's configuration; the empty name is the cluster's default.
    fn broker_layer(&self, config: &BrokerConfig, name: &str) -> Result<BrokerLayer, ApiError> {
        let invalid = |message: String| Err(ApiError::new(ErrorCode::INVALID_REQUEST, message));
        let (node, has_several_nodes) = (config.node_id, config.quorum.is_some());
        match name.parse::<i32>() {
            _ if name.is_empty() => Ok(BrokerLayer::ClusterDefault),
            Ok(id) if id == node || (has_several_nodes && self.ahead().broker(id).is_some()) => {
                Ok(BrokerLayer::Node)
            }
            Ok(_) => {
                invalid(format!("Unexpected broker id, expected {node} or empty string, but received {name}"))
            }
            Err(_) => invalid(format!("Node id must be an integer, but it is: {name}")),
        }
    }
}

/// The changes that a request asks for in one resource.
///
/// # Errors
/// When an operation does not exist.
pub fn changes_of<'a>(resource: &'a AlterConfigsResource<'_>) -> Result<Vec<Change<'a>>, ApiError> {
    resource.configs.iter().map(change).collect()
}

fn change<'a>(config: &'a AlterableConfig<'_>) -> Result<Change<'a>, ApiError> {
    let code = config.config_operation;
    let operation = Operation::from_code(code).ok_or_else(|| {
        let message = format!("Unknown operation {code} for the key {}.", config.name);
        ApiError::new(ErrorCode::INVALID_REQUEST, message)
    })?;
    Ok(Change { name: &config.name, operation, value: config.value.as_deref() })
}

fn config_records(
    (resource_type, resource_name): Named<'_>,
    changed: Changed,
) -> impl Iterator<Item = MetadataRecord<'static>> {
    changed.into_iter().map(move |(name, value)| {
        MetadataRecord::ConfigRecord(Box::new(ConfigRecord {
            resource_type,
            resource_name: Cow::Owned(resource_name.to_string()),
            name: Cow::Owned(name),
            value: value.map(Cow::Owned),
            ..ConfigRecord::default()
        }))
    })
}

fn code_of(error: &Option<ApiError>) -> i16 {
    error.as_ref().map_or(ErrorCode::NONE, |error| error.code).0
}
