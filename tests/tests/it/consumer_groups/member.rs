//! A member of a consumer group as a client behaves: it revokes partitions as soon as it is asked to.

use std::time::Duration;

use mainstem_tests::client::{Client, Reachable};
use mainstem_wire::messages::consumer_group_heartbeat_request::{
    ConsumerGroupHeartbeatRequest, TopicPartitions,
};
use mainstem_wire::{ErrorCode, Uuid};

use crate::consumer_groups::TOPIC;

pub(crate) struct Member {
    client: Client,
    group: String,
    id: String,
    epoch: i32,
    topic_id: Uuid,
    /// Its partitions of the one topic.
    pub(crate) partitions: Vec<i32>,
    /// The error of the last heartbeat.
    pub(crate) error: ErrorCode,
    pub(crate) heartbeat_interval: Duration,
}

/// A request to join.
pub(crate) fn join(group: &str, id: &str) -> ConsumerGroupHeartbeatRequest<'static> {
    ConsumerGroupHeartbeatRequest {
        group_id: group.to_owned().into(),
        member_id: id.to_owned().into(),
        rebalance_timeout_ms: 20_000,
        subscribed_topic_names: Some(vec![TOPIC.into()]),
        topic_partitions: Some(Vec::new()),
        ..Default::default()
    }
}

impl Member {
    pub(crate) fn new(broker: &impl Reachable, group: &str, id: &str) -> Member {
        Member {
            client: broker.connect(),
            group: group.to_owned(),
            id: id.to_owned(),
            epoch: 0,
            topic_id: Uuid::ZERO,
            partitions: Vec::new(),
            error: ErrorCode::NONE,
            heartbeat_interval: Duration::ZERO,
        }
    }

    pub(crate) fn reconnect(&mut self, broker: &impl Reachable) {
        self.client = broker.connect();
    }

    /// Joins, or sends its partitions, and takes the assignment of the answer.
    pub(crate) fn beat(&mut self) {
        let mut request = join(&self.group, &self.id);
        if self.epoch > 0 {
            request.member_epoch = self.epoch;
            request.rebalance_timeout_ms = -1;
            request.subscribed_topic_names = None;
            let partitions = self.partitions.clone();
            let has = TopicPartitions { topic_id: self.topic_id, partitions, ..Default::default() };
            request.topic_partitions = Some(if self.partitions.is_empty() { Vec::new() } else { vec![has] });
        }
        let response = self.client.call(&request, 1);
        self.error = ErrorCode::from(response.error_code);
        if self.error != ErrorCode::NONE {
            return;
        }
        self.epoch = response.member_epoch;
        self.heartbeat_interval = Duration::from_millis(response.heartbeat_interval_ms.try_into().unwrap());
        if let Some(assignment) = &response.assignment {
            let topic = assignment.topic_partitions.first();
            self.partitions = topic.map(|topic| topic.partitions.clone()).unwrap_or_default();
            self.topic_id = topic.map(|topic| topic.topic_id).unwrap_or(self.topic_id);
        }
    }

    pub(crate) fn leave(&mut self) {
        let request = ConsumerGroupHeartbeatRequest {
            group_id: self.group.as_str().into(),
            member_id: self.id.as_str().into(),
            member_epoch: -1,
            ..Default::default()
        };
        assert_eq!(self.client.call(&request, 1).error_code, 0);
        self.partitions.clear();
    }
}
