//! CreateTopics (19), v2-7, and automatic creation of topics that a client names.

use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap};

use mainstem_wire::messages::config_record::ConfigRecord;
use mainstem_wire::messages::create_topics_request::{
    CreatableReplicaAssignment, CreatableTopic, CreatableTopicConfig, CreateTopicsRequest,
};
use mainstem_wire::messages::create_topics_response::{
    CreatableTopicConfigs, CreatableTopicResult, CreateTopicsResponse,
};
use mainstem_wire::messages::partition_record::PartitionRecord;
use mainstem_wire::messages::topic_record::TopicRecord;
use mainstem_wire::metadata_frame::MetadataRecord;
use mainstem_wire::{ErrorCode, Uuid};

use super::error::ApiError;
use super::image::{BrokerImage, ResourceKind};
use super::names;
use super::node_view::NodeView;
use super::placement::{NodeInRack, Placement, majority};
use super::state_machine::{Decision, IdSource, MetadataStateMachine, PARTITIONS_PER_REQUEST_MAX, Permit};
use mainstem_config::alter::validate_new_topic;
use mainstem_config::describe::describe_topic;
use mainstem_config::{BrokerConfig, BrokerValues, TopicConfigValues, TopicDefaults};

/// Kafka's number for no leader.
pub(super) const NO_LEADER: i32 = -1;

/// A topic that can be created.
struct Plan {
    name: String,
    id: Uuid,
    configs: BTreeMap<String, String>,
    /// The replicas of each partition.
    partitions: Vec<Vec<i32>>,
}

impl MetadataStateMachine {
    /// Creates topics, each by itself. With `validate_only` none is created, and their ids are zero.
    pub fn create_topics(
        &mut self,
        view: &NodeView,
        request: &CreateTopicsRequest<'_>,
        random: IdSource<'_>,
        permit: Permit<'_>,
    ) -> Decision<CreateTopicsResponse<'static>> {
        let config = view.config(self.ahead());
        self.create_configured((view, &config), request, random, permit)
    }

    /// Creates topics with the node's present configuration, which is computed once for the request.
    fn create_configured(
        &mut self,
        (view, config): (&NodeView, &BrokerConfig),
        request: &CreateTopicsRequest<'_>,
        random: IdSource<'_>,
        permit: Permit<'_>,
    ) -> Decision<CreateTopicsResponse<'static>> {
        let too_many = wanted_partitions(request, &config.topics) > PARTITIONS_PER_REQUEST_MAX;
        let repeated = repeated_names(request.topics.iter().map(|topic| topic.name.as_ref()));
        let mut plans: Vec<Plan> = Vec::new();
        let mut topics: Vec<CreatableTopicResult<'static>> = Vec::new();
        let mut partitions = 0;
        for topic in &request.topics {
            let is_repeated = repeated[topic.name.as_ref()];
            if is_repeated && topics.iter().any(|result| result.name == topic.name) {
                continue; // one answer per name
            }
            let planned = if is_repeated {
                Err(ApiError::new(ErrorCode::INVALID_REQUEST, "Duplicate topic name."))
            } else if too_many {
                Err(too_many_partitions())
            } else {
                self.plan(topic, &plans, config, random)
            };
            let planned = planned.and_then(|plan| {
                let more = partitions + plan.partitions.len();
                view.check_partition_limit(self.ahead(), more).map(|()| plan)
            });
            match planned {
                Ok(plan) if !permit(plan.partitions.len()) => {
                    topics.push(refused(&topic.name, ApiError::quota_exceeded()));
                }
                Ok(plan) => {
                    topics.push(created(&plan, &config.values, request.validate_only));
                    partitions += plan.partitions.len();
                    plans.push(plan);
                }
                Err(error) => topics.push(refused(&topic.name, error)),
            }
        }
        let response = CreateTopicsResponse { topics, ..CreateTopicsResponse::default() };
        if request.validate_only {
            return self.decide(vec![], response);
        }
        let records = self.topic_records(&plans);
        self.decide(records, response)
    }

    /// Creates the topics that a client named, with the broker's defaults; internal ones as their coordinator needs them. The caller has
    /// checked `auto.create.topics.enable` where it applies. A topic that exists by now is answered with TOPIC_ALREADY_EXISTS. `permit` as
    /// for [`Self::create_topics`].
    pub fn create_missing_topics(
        &mut self,
        view: &NodeView,
        names: &[&str],
        random: IdSource<'_>,
        permit: Permit<'_>,
    ) -> Decision<CreateTopicsResponse<'static>> {
        let config = view.config(self.ahead());
        let topics = names.iter().map(|name| missing_topic(name, &config)).collect();
        let request = CreateTopicsRequest { topics, ..CreateTopicsRequest::default() };
        self.create_configured((view, &config), &request, random, permit)
    }

    fn plan(
        &self,
        topic: &CreatableTopic<'_>,
        others: &[Plan],
        config: &BrokerConfig,
        random: IdSource<'_>,
    ) -> Result<Plan, ApiError> {
        let name = topic.name.as_ref();
        self.check_name(name, others)?;
        let configs: Vec<_> =
            topic.configs.iter().map(|config| (config.name.as_ref(), config.value.as_deref())).collect();
        let configs = validate_new_topic(&configs, &config.values)?;
        let partitions = match topic.assignments.as_slice() {
            [] => self.place(topic, &config.topics)?,
            assignments => self.assigned(topic, assignments)?,
        };
        Ok(Plan { name: name.to_string(), id: names::topic_id(random()), configs, partitions })
    }

    fn check_name(&self, name: &str, others: &[Plan]) -> Result<(), ApiError> {
        if name == names::CLUSTER_METADATA {
            let message = format!("Creation of internal topic {name} is prohibited.");
            return Err(ApiError::new(ErrorCode::INVALID_REQUEST, message));
        }
        names::check(name).map_err(|why| ApiError::new(ErrorCode::INVALID_TOPIC_EXCEPTION, why))?;
        if self.ahead().topic(name).is_some() {
            let message = format!("Topic '{name}' already exists.");
            return Err(ApiError::new(ErrorCode::TOPIC_ALREADY_EXISTS, message));
        }
        let unified = names::unified(name);
        let mut planned = others.iter().map(|plan| plan.name.as_str());
        let other =
            self.ahead().colliding(name).or_else(|| planned.find(|other| names::unified(other) == unified));
        match other {
            None => Ok(()),
            Some(other) => {
                let message = format!("Topic '{name}' collides with existing topic: {other}");
                Err(ApiError::new(ErrorCode::INVALID_TOPIC_EXCEPTION, message))
            }
        }
    }

    /// Spreads partitions over the registered nodes, fenced ones last; -1 is the default.
    fn place(&self, topic: &CreatableTopic<'_>, defaults: &TopicDefaults) -> Result<Vec<Vec<i32>>, ApiError> {
        let factor = match topic.replication_factor {
            -1 => defaults.default_replication_factor,
            factor => factor,
        };
        if topic.replication_factor < -1 || factor <= 0 {
            let message = "Replication factor must be larger than 0, or -1 to use the default value.";
            return Err(ApiError::new(ErrorCode::INVALID_REPLICATION_FACTOR, message));
        }
        let count = match topic.num_partitions {
            -1 => defaults.num_partitions,
            count => count,
        };
        if count <= 0 {
            let message = "Number of partitions was set to an invalid non-positive value.";
            return Err(ApiError::new(ErrorCode::INVALID_PARTITIONS, message));
        }
        self.spread(0..count, factor, None)
    }

    /// The replicas of partitions from..to, whose leaders take turns. The first partition is led by `start` if that node exists, or else by
    /// the node at which the fewest topics began.
    pub(super) fn spread(
        &self,
        partitions: std::ops::Range<i32>,
        factor: i16,
        start: Option<i32>,
    ) -> Result<Vec<Vec<i32>>, ApiError> {
        let takes_partitions = |broker: &&BrokerImage| broker.takes_partitions();
        let nodes: Vec<_> = self.ahead().brokers().filter(takes_partitions).map(NodeInRack::of).collect();
        let factor = usize::try_from(factor).unwrap_or(0);
        let (up, count) = (nodes.iter().filter(|node| node.can_lead()).count(), nodes.len());
        let wanted = majority(factor);
        let why = match (up, count) {
            (0, _) => {
                "All brokers are currently fenced, or have all their log directories cordoned.".to_string()
            }
            _ if factor > count => format!(
                "The target replication factor of {factor} cannot be reached because only {count} broker(s) are \
                 registered or some brokers have all their log directories cordoned."
            ),
            _ if wanted > up => {
                format!("Only {up} broker(s) are not fenced, and {wanted} are needed to elect a leader.")
            }
            _ => String::new(),
        };
        if !why.is_empty() {
            let message = format!("Unable to replicate the partition {factor} time(s): {why}");
            return Err(ApiError::new(ErrorCode::INVALID_REPLICATION_FACTOR, message));
        }
        let placement = Placement::new(&nodes);
        let start =
            start.and_then(|leader| placement.rank(leader)).unwrap_or_else(|| self.ahead().topics().count());
        let number = |number| usize::try_from(number).expect("partition numbers are not negative");
        Ok(partitions.map(|index| placement.replicas(start, number(index), factor)).collect())
    }

    /// The replicas that the client chose.
    fn assigned(
        &self,
        topic: &CreatableTopic<'_>,
        assignments: &[CreatableReplicaAssignment<'_>],
    ) -> Result<Vec<Vec<i32>>, ApiError> {
        let both = |what: &str| {
            let message =
                format!("A manual partition assignment was specified, but {what} was not set to -1.");
            Err(ApiError::new(ErrorCode::INVALID_REQUEST, message))
        };
        if topic.replication_factor != -1 {
            return both("replication factor");
        }
        if topic.num_partitions != -1 {
            return both("numPartitions");
        }
        let mut partitions: BTreeMap<i32, Vec<i32>> = BTreeMap::new();
        let mut factor = None;
        for assignment in assignments {
            self.check_assignment(&assignment.broker_ids, factor)?;
            factor = Some(assignment.broker_ids.len());
            let number = assignment.partition_index;
            self.check_one_is_up(number, &assignment.broker_ids)?;
            if partitions.insert(number, assignment.broker_ids.clone()).is_some() {
                let message = format!("Found multiple manual partition assignments for partition {number}");
                return Err(ApiError::new(ErrorCode::INVALID_REPLICA_ASSIGNMENT, message));
            }
        }
        if !partitions.keys().copied().eq((0..).take(partitions.len())) {
            let message = "partitions should be a consecutive 0-based integer sequence";
            return Err(ApiError::new(ErrorCode::INVALID_REPLICA_ASSIGNMENT, message));
        }
        Ok(partitions.into_values().collect())
    }

    /// Checks that a client may assign a partition to these nodes.
    pub(super) fn check_assignment(&self, replicas: &[i32], factor: Option<usize>) -> Result<(), ApiError> {
        let refuse = |why: String| {
            let message = format!("The manual partition assignment includes {why}");
            Err(ApiError::new(ErrorCode::INVALID_REPLICA_ASSIGNMENT, message))
        };
        if replicas.is_empty() {
            return refuse("an empty replica list.".to_string());
        }
        let mut sorted = replicas.to_vec();
        sorted.sort_unstable();
        for (at, id) in sorted.iter().enumerate() {
            if self.ahead().broker(*id).is_none() {
                return refuse(format!("broker {id}, but no such broker is registered."));
            }
            if at > 0 && sorted[at - 1] == *id {
                return refuse(format!("the broker {id} more than once."));
            }
        }
        match factor {
            Some(factor) if factor != replicas.len() => refuse(format!(
                "a partition with {} replica(s), but this is not consistent with previous partitions, \
                 which have {factor} replica(s).",
                replicas.len()
            )),
            _ => Ok(()),
        }
    }

    /// Checks that one of these nodes can lead a new partition now.
    pub(super) fn check_one_is_up(&self, number: i32, replicas: &[i32]) -> Result<(), ApiError> {
        if replicas.iter().any(|node| self.is_up(*node)) {
            return Ok(());
        }
        let message = format!(
            "All brokers specified in the manual partition assignment for partition {number} are fenced or in \
             controlled shutdown."
        );
        Err(ApiError::new(ErrorCode::INVALID_REPLICA_ASSIGNMENT, message))
    }

    /// Returns the records in Kafka's order: a topic, its configurations, its partitions.
    fn topic_records(&self, plans: &[Plan]) -> Vec<MetadataRecord<'static>> {
        let mut records = Vec::new();
        let mut directories = self.directory_sizes();
        for plan in plans {
            records.push(MetadataRecord::TopicRecord(Box::new(TopicRecord {
                name: Cow::Owned(plan.name.clone()),
                topic_id: plan.id,
                ..TopicRecord::default()
            })));
            records.extend(plan.configs.iter().map(|(name, value)| {
                MetadataRecord::ConfigRecord(Box::new(ConfigRecord {
                    resource_type: ResourceKind::Topic as i8,
                    resource_name: Cow::Owned(plan.name.clone()),
                    name: Cow::Owned(name.clone()),
                    value: Some(Cow::Owned(value.clone())),
                    ..ConfigRecord::default()
                }))
            }));
            let partitions = (0i32..).zip(&plan.partitions);
            records.extend(partitions.map(|(number, replicas)| {
                self.partition_record(plan.id, number, replicas, &mut directories)
            }));
        }
        records
    }

    /// The record of a new partition. It is led by its first replica if that is the only one: several elect their leader. A fenced node is
    /// not in sync.
    pub(super) fn partition_record(
        &self,
        topic_id: Uuid,
        number: i32,
        replicas: &[i32],
        directories: &mut DirectorySizes,
    ) -> MetadataRecord<'static> {
        MetadataRecord::PartitionRecord(Box::new(PartitionRecord {
            partition_id: number,
            topic_id,
            replicas: replicas.to_vec(),
            isr: replicas.iter().copied().filter(|node| self.is_up(*node)).collect(),
            leader: if let [only] = replicas { *only } else { NO_LEADER },
            leader_epoch: 0,
            partition_epoch: 0,
            directories: replicas.iter().map(|node| directories.take_emptiest(*node)).collect(),
            ..PartitionRecord::default()
        }))
    }

    fn is_up(&self, node: i32) -> bool {
        self.ahead().broker(node).is_some_and(|broker| !broker.fenced)
    }

    /// Returns the number of partitions in each log directory of each node. Only directories that accept partitions are counted, or all of
    /// them if none does, since a client may have chosen the node. If no node has several directories, nothing is counted.
    pub(super) fn directory_sizes(&self) -> DirectorySizes {
        let mut sizes = DirectorySizes(HashMap::new());
        let mut counting = false;
        for broker in self.ahead().brokers() {
            let mut dirs: Vec<(Uuid, usize)> = broker.open_log_dirs().map(|dir| (*dir, 0)).collect();
            if dirs.is_empty() {
                dirs = broker.log_dirs.iter().map(|dir| (*dir, 0)).collect();
            }
            counting |= dirs.len() > 1;
            sizes.0.insert(broker.id, dirs);
        }
        let partitions = self.ahead().topics().filter(|_| counting).flat_map(|topic| &topic.partitions);
        for partition in partitions {
            for (node, dir) in partition.replicas.iter().zip(&partition.directories) {
                sizes.count(*node, *dir);
            }
        }
        sizes
    }
}

/// A topic that a client only names: with the node's defaults, an internal one as its coordinator needs it.
pub(super) fn missing_topic(name: &str, config: &BrokerConfig) -> CreatableTopic<'static> {
    let (offsets, transactions) = (&config.offsets, &config.transactions);
    let (num_partitions, replication_factor, configs) = match name {
        names::CONSUMER_OFFSETS => (
            offsets.topic_num_partitions,
            offsets.topic_replication_factor,
            vec![
                ("cleanup.policy", "compact".to_string()),
                ("compression.type", "producer".to_string()),
                ("segment.bytes", segment_bytes(offsets.topic_segment_bytes)),
            ],
        ),
        names::TRANSACTION_STATE => (
            transactions.topic_num_partitions,
            transactions.topic_replication_factor,
            vec![
                ("cleanup.policy", "compact".to_string()),
                ("compression.type", "uncompressed".to_string()),
                ("min.insync.replicas", transactions.topic_min_isr.to_string()),
                ("segment.bytes", segment_bytes(transactions.topic_segment_bytes)),
                ("unclean.leader.election.enable", "false".to_string()),
            ],
        ),
        _ => (-1, -1, vec![]),
    };
    // A replicated topic with write.caching is not compacted, and would grow without end.
    let caches = TopicConfigValues::resolve(&BTreeMap::new(), &config.values).write_caching;
    let is_internal = names::is_internal(name);
    let uncached =
        (caches && is_internal && replication_factor > 1).then(|| ("write.caching", "false".to_string()));
    let configs = configs.into_iter().chain(uncached).map(|(name, value)| CreatableTopicConfig {
        name: Cow::Borrowed(name),
        value: Some(Cow::Owned(value)),
        ..CreatableTopicConfig::default()
    });
    CreatableTopic {
        name: Cow::Owned(name.to_string()),
        num_partitions,
        replication_factor,
        configs: configs.collect(),
        ..CreatableTopic::default()
    }
}

/// Returns the number of partitions that a request asks for.
fn wanted_partitions(request: &CreateTopicsRequest<'_>, defaults: &TopicDefaults) -> usize {
    let of = |topic: &CreatableTopic<'_>| match topic.num_partitions {
        _ if !topic.assignments.is_empty() => topic.assignments.len(),
        -1 => usize::try_from(defaults.num_partitions).unwrap_or(0),
        count => usize::try_from(count).unwrap_or(0),
    };
    request.topics.iter().map(of).fold(0, usize::saturating_add)
}

/// The answer for a topic that can be created.
fn created(plan: &Plan, defaults: &BrokerValues, validate_only: bool) -> CreatableTopicResult<'static> {
    let described = describe_topic(&plan.configs, defaults);
    let configs = described.into_iter().map(|config| CreatableTopicConfigs {
        name: Cow::Owned(config.name),
        value: config.value.map(Cow::Owned),
        read_only: config.read_only,
        config_source: config.source.code(),
        is_sensitive: config.is_sensitive,
        ..CreatableTopicConfigs::default()
    });
    let factor = plan.partitions.first().map_or(0, Vec::len);
    CreatableTopicResult {
        name: Cow::Owned(plan.name.clone()),
        error_message: None,
        topic_id: if validate_only { Uuid::ZERO } else { plan.id },
        num_partitions: i32::try_from(plan.partitions.len()).expect("a request creates a bounded number"),
        replication_factor: i16::try_from(factor).expect("a factor comes from 16 bits or a list of nodes"),
        configs: Some(configs.collect()),
        ..CreatableTopicResult::default()
    }
}

/// Partitions per log directory per node.
pub(super) struct DirectorySizes(HashMap<i32, Vec<(Uuid, usize)>>);

impl DirectorySizes {
    fn count(&mut self, node: i32, dir: Uuid) {
        let found = self.0.get_mut(&node).and_then(|dirs| dirs.iter_mut().find(|(id, _)| *id == dir));
        if let Some((_, size)) = found {
            *size += 1;
        }
    }

    /// The emptiest directory of a node, which then holds one more; zero (unassigned) if the node named none.
    pub(super) fn take_emptiest(&mut self, node: i32) -> Uuid {
        let emptiest = self.0.get_mut(&node).and_then(|dirs| dirs.iter_mut().min_by_key(|(_, size)| *size));
        emptiest.map_or(Uuid::ZERO, |(dir, size)| {
            *size += 1;
            *dir
        })
    }
}

/// The broker key has a lower bound than the topic key of Kafka 4.
fn segment_bytes(configured: i32) -> String {
    configured.max(1 << 20).to_string()
}

fn too_many_partitions() -> ApiError {
    ApiError::new(ErrorCode::POLICY_VIOLATION, "Excessively large number of partitions per request.")
}

fn refused(name: &str, error: ApiError) -> CreatableTopicResult<'static> {
    CreatableTopicResult {
        name: Cow::Owned(name.to_string()),
        error_code: error.code.0,
        error_message: Some(Cow::Owned(error.message)),
        configs: Some(vec![]),
        ..CreatableTopicResult::default()
    }
}

/// Returns each name, with true if it occurs more than once.
pub(super) fn repeated_names<'a>(names: impl Iterator<Item = &'a str>) -> HashMap<&'a str, bool> {
    let mut repeated = HashMap::new();
    for name in names {
        repeated.entry(name).and_modify(|is_repeated| *is_repeated = true).or_insert(false);
    }
    repeated
}
