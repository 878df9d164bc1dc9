//! A state machine under test with its log: decisions are appended, and committed when the test commits them.

use std::borrow::Cow;

use mainstem_wire::messages::create_partitions_request::{
    CreatePartitionsAssignment, CreatePartitionsRequest, CreatePartitionsTopic,
};
use mainstem_wire::messages::create_topics_request::{
    CreatableReplicaAssignment, CreatableTopic, CreatableTopicConfig, CreateTopicsRequest,
};
use mainstem_wire::messages::create_topics_response::CreateTopicsResponse;
use mainstem_wire::messages::delete_topics_request::{DeleteTopicState, DeleteTopicsRequest};
use mainstem_wire::messages::incremental_alter_configs_request::{
    AlterConfigsResource, AlterableConfig, IncrementalAlterConfigsRequest,
};
use mainstem_wire::{ErrorCode, Uuid};

use super::*;
use mainstem_config::alter::Operation;
use mainstem_config::{BrokerConfig, Endpoint, Properties, SecurityProtocol, Sources};

pub(super) const DIR: Uuid = Uuid::from_u128(0xd1);
pub(super) const OTHER_DIR: Uuid = Uuid::from_u128(0xd2);

pub(super) struct Session {
    pub(super) machine: MetadataStateMachine,
    /// The view of the node that decides.
    pub(super) view: NodeView,
    /// Every record of the log, by offset.
    pub(super) log: Vec<Vec<u8>>,
    random: u128,
    /// Partitions that may still be created or deleted.
    pub(super) permits: usize,
}

fn config(file: &str) -> BrokerConfig {
    let file = Properties::parse(file.as_bytes()).expect("the test's file is well formed");
    BrokerConfig::from_sources(Sources { file: Some(&file), ..Sources::default() }).expect("and valid")
}

/// The view of a node under the values of a properties file, whose descriptors are not counted.
pub(super) fn view(file: &str) -> NodeView {
    NodeView::new(config(file), usize::MAX)
}

pub(super) fn node_start(incarnation: u128, log_dirs: &[Uuid], unclean: &[Uuid]) -> NodeStart {
    NodeStart {
        node_id: 1,
        rack: None,
        incarnation_id: Uuid::from_u128(incarnation),
        endpoints: vec![Endpoint {
            listener: "PLAINTEXT".to_string(),
            protocol: SecurityProtocol::Plaintext,
            host: "localhost".to_string(),
            port: 9092,
        }],
        log_dirs: log_dirs.to_vec(),
        cordoned_dirs: Vec::new(),
        unclean_dirs: unclean.to_vec(),
        features: FeatureRanges::new(),
    }
}

impl Session {
    /// A node that has registered, under the values of a properties file.
    pub(super) fn new(file: &str) -> Session {
        let mut session = Session::under(view(file));
        session.start(&node_start(1, &[DIR], &[]));
        session
    }

    /// An empty log under a view.
    pub(super) fn under(view: NodeView) -> Session {
        let machine = MetadataStateMachine::default();
        Session { machine, view, log: Vec::new(), random: 1000, permits: usize::MAX }
    }

    pub(super) fn start(&mut self, start: &NodeStart) -> i64 {
        let epoch = self.begin_start(start);
        self.commit_all();
        epoch
    }

    /// Registers a node, which is taken. Nothing is committed.
    pub(super) fn begin_start(&mut self, start: &NodeStart) -> i64 {
        let decision = self.machine.register_node(&self.view, start);
        self.append(decision).expect("the node is taken")
    }

    /// The node's configuration under what is committed.
    pub(super) fn config(&self) -> Cow<'_, BrokerConfig> {
        self.view.config(self.machine.image())
    }

    pub(super) fn append<R>(&mut self, decision: Decision<R>) -> R {
        assert_eq!(decision.base_offset, self.end(), "the log ends where the decision begins");
        self.log.extend(decision.records);
        assert_eq!(decision.reply_at, self.end());
        decision.reply
    }

    pub(super) fn end(&self) -> i64 {
        i64::try_from(self.log.len()).expect("a short log")
    }

    pub(super) fn commit_all(&mut self) -> Vec<MetadataChange> {
        self.machine.committed(self.end())
    }

    pub(super) fn create_all(
        &mut self,
        topics: Vec<CreatableTopic<'_>>,
        validate_only: bool,
    ) -> CreateTopicsResponse<'static> {
        let request = CreateTopicsRequest { topics, validate_only, ..CreateTopicsRequest::default() };
        let mut random = std::mem::take(&mut self.random);
        let mut next = || {
            random += 1;
            random
        };
        let decision =
            self.machine.create_topics(&self.view, &request, &mut next, &mut permit(&mut self.permits));
        self.random = random;
        self.append(decision)
    }

    pub(super) fn create_missing(&mut self, names: &[&str]) -> Vec<String> {
        let mut random = std::mem::take(&mut self.random);
        let mut next = || {
            random += 1;
            random
        };
        let decision =
            self.machine.create_missing_topics(&self.view, names, &mut next, &mut permit(&mut self.permits));
        self.random = random;
        created(&self.append(decision))
    }

    /// Creates one topic; returns the answer as text.
    pub(super) fn create(&mut self, topic: CreatableTopic<'_>) -> String {
        created(&self.create_all(vec![topic], false)).join("; ")
    }

    pub(super) fn delete(&mut self, topics: &[(Option<&str>, Uuid)]) -> Vec<String> {
        let topics = topics.iter().map(|(name, id)| DeleteTopicState {
            name: name.map(Cow::Borrowed),
            topic_id: *id,
            ..DeleteTopicState::default()
        });
        let request = DeleteTopicsRequest { topics: topics.collect(), ..DeleteTopicsRequest::default() };
        let decision = self.machine.delete_topics(&self.view, &request, 6, &mut permit(&mut self.permits));
        let response = self.append(decision);
        response.responses.iter().map(|r| said(r.error_code, r.error_message.as_deref())).collect()
    }

    pub(super) fn grow(&mut self, name: &str, count: i32, assignments: Option<&[&[i32]]>) -> String {
        let assignments = assignments.map(|lists| {
            let assignment = |ids: &&[i32]| CreatePartitionsAssignment {
                broker_ids: ids.to_vec(),
                ..CreatePartitionsAssignment::default()
            };
            lists.iter().map(assignment).collect()
        });
        let topic = CreatePartitionsTopic {
            name: Cow::Borrowed(name),
            count,
            assignments,
            ..CreatePartitionsTopic::default()
        };
        let request = CreatePartitionsRequest { topics: vec![topic], ..CreatePartitionsRequest::default() };
        let decision = self.machine.create_partitions(&self.view, &request, &mut permit(&mut self.permits));
        let result = &self.append(decision).results[0];
        said(result.error_code, result.error_message.as_deref())
    }

    pub(super) fn alter(
        &mut self,
        kind: i8,
        name: &str,
        changes: &[(&str, Operation, Option<&str>)],
        validate_only: bool,
    ) -> String {
        let request = IncrementalAlterConfigsRequest {
            resources: vec![altered(kind, name, changes)],
            validate_only,
            ..IncrementalAlterConfigsRequest::default()
        };
        let decision = self.machine.alter_configs(&self.view, &request);
        let answer = &self.append(decision).responses[0];
        said(answer.error_code, answer.error_message.as_deref())
    }

    /// Makes the same changes to several resources in one request; returns the refusals as text.
    pub(super) fn alter_all<'n>(
        &mut self,
        kind: i8,
        names: impl Iterator<Item = &'n str>,
        changes: &[(&str, Operation, Option<&str>)],
    ) -> Vec<String> {
        let resources = names.map(|name| altered(kind, name, changes)).collect();
        let request =
            IncrementalAlterConfigsRequest { resources, ..IncrementalAlterConfigsRequest::default() };
        let decision = self.machine.alter_configs(&self.view, &request);
        let refused = self.append(decision).responses.into_iter().filter(|answer| answer.error_code != 0);
        refused.map(|answer| said(answer.error_code, answer.error_message.as_deref())).collect()
    }

    pub(super) fn id(&self, name: &str) -> Uuid {
        self.machine.image().topic(name).expect("the topic is committed").id
    }
}

/// Permits as many partitions as are left.
fn permit(left: &mut usize) -> impl FnMut(usize) -> bool {
    |partitions| match left.checked_sub(partitions) {
        Some(rest) => {
            *left = rest;
            true
        }
        None => false,
    }
}

fn altered<'a>(
    kind: i8,
    name: &'a str,
    changes: &[(&'a str, Operation, Option<&'a str>)],
) -> AlterConfigsResource<'a> {
    let configs = changes.iter().map(|(name, operation, value)| AlterableConfig {
        name: Cow::Borrowed(*name),
        config_operation: *operation as i8,
        value: value.map(Cow::Borrowed),
        ..AlterableConfig::default()
    });
    AlterConfigsResource {
        resource_type: kind,
        resource_name: Cow::Borrowed(name),
        configs: configs.collect(),
        ..AlterConfigsResource::default()
    }
}

pub(super) fn topic(name: &str, num_partitions: i32, replication_factor: i16) -> CreatableTopic<'_> {
    CreatableTopic {
        name: Cow::Borrowed(name),
        num_partitions,
        replication_factor,
        ..CreatableTopic::default()
    }
}

pub(super) fn with_configs<'a>(name: &'a str, configs: &[(&'a str, Option<&'a str>)]) -> CreatableTopic<'a> {
    let configs = configs.iter().map(|(name, value)| CreatableTopicConfig {
        name: Cow::Borrowed(*name),
        value: value.map(Cow::Borrowed),
        ..CreatableTopicConfig::default()
    });
    CreatableTopic { configs: configs.collect(), ..topic(name, 1, 1) }
}

pub(super) fn assigned<'a>(name: &'a str, assignments: &[(i32, &[i32])]) -> CreatableTopic<'a> {
    let assignments = assignments.iter().map(|(partition_index, ids)| CreatableReplicaAssignment {
        partition_index: *partition_index,
        broker_ids: ids.to_vec(),
        ..CreatableReplicaAssignment::default()
    });
    CreatableTopic { assignments: assignments.collect(), ..topic(name, -1, -1) }
}

/// `ok PARTITIONSxFACTOR` or the error, per topic.
pub(super) fn created(response: &CreateTopicsResponse<'_>) -> Vec<String> {
    let topics = response.topics.iter().map(|topic| match topic.error_code {
        0 => format!("ok {}x{}", topic.num_partitions, topic.replication_factor),
        code => said(code, topic.error_message.as_deref()),
    });
    topics.collect()
}

/// `ok`, or the error's name and message.
pub(super) fn said(code: i16, message: Option<&str>) -> String {
    match (ErrorCode(code), message) {
        (ErrorCode::NONE, None) => "ok".to_string(),
        (code, message) => format!("{}: {}", code.name(), message.unwrap_or("no message")),
    }
}
