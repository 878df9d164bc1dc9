//! Members of a consumer group (KIP-848): no partition has two readers, and none is left out, whatever happens to the broker.

use std::collections::BTreeMap;

use mainstem_log::sim::Random;
use mainstem_tests::client::Client;
use mainstem_wire::messages::consumer_group_heartbeat_request::{
    ConsumerGroupHeartbeatRequest, TopicPartitions,
};
use mainstem_wire::{ErrorCode, Uuid};

const GROUP: &str = "members";
const MEMBERS: usize = 3;
/// Longer than a run, so that no member is removed for being slow.
const REBALANCE_TIME_MS: i32 = 600_000;
/// The epoch of a member that leaves.
const LEAVE: i32 = -1;

/// All possible members.
pub(crate) struct Members {
    topic: &'static str,
    members: Vec<Member>,
}

struct Member {
    id: String,
    /// The epoch of the member; 0 until it has joined.
    epoch: i32,
    topic_id: Uuid,
    /// Its partitions of the topic.
    reads: Vec<i32>,
}

impl Members {
    pub(crate) fn new(topic: &'static str) -> Members {
        let member = |number| Member {
            id: format!("member-{number}"),
            epoch: 0,
            topic_id: Uuid::ZERO,
            reads: Vec::new(),
        };
        Members { topic, members: (0..MEMBERS).map(member).collect() }
    }

    /// One of them joins, sends its partitions and takes its assignment, or leaves.
    pub(crate) fn step(&mut self, client: &mut Client, random: &mut Random) {
        let number = random.below(MEMBERS as u64) as usize;
        match self.members[number].epoch > 0 && random.chance(10) {
            true => self.members[number].leave(client),
            false => self.members[number].beat(client, self.topic),
        }
        self.check();
    }

    /// Each of them sends a heartbeat. Returns true if they read all `partitions` and no change is left.
    pub(crate) fn have_all(&mut self, client: &mut Client, partitions: usize) -> bool {
        for number in 0..MEMBERS {
            self.members[number].beat(client, self.topic);
            self.check();
        }
        let epoch = self.members[0].epoch;
        let read: usize = self.members.iter().map(|member| member.reads.len()).sum();
        self.members.iter().all(|member| member.epoch == epoch) && read == partitions
    }

    fn check(&self) {
        let mut readers: BTreeMap<i32, &str> = BTreeMap::new();
        for member in &self.members {
            for partition in &member.reads {
                let other = readers.insert(*partition, &member.id);
                assert_eq!(other, None, "{} reads partition {partition}, too", member.id);
            }
        }
    }
}

impl Member {
    fn beat(&mut self, client: &mut Client, topic: &'static str) {
        let joins = self.epoch == 0;
        let partitions = self.reads.clone();
        let has = TopicPartitions { topic_id: self.topic_id, partitions, ..Default::default() };
        let request = ConsumerGroupHeartbeatRequest {
            rebalance_timeout_ms: if joins { REBALANCE_TIME_MS } else { -1 },
            subscribed_topic_names: joins.then(|| vec![topic.into()]),
            topic_partitions: Some(if self.reads.is_empty() { Vec::new() } else { vec![has] }),
            ..self.request(self.epoch)
        };
        let response = client.call(&request, 1);
        if !self.is_answered(ErrorCode(response.error_code)) {
            return;
        }
        self.epoch = response.member_epoch;
        if let Some(assignment) = &response.assignment {
            let topic = assignment.topic_partitions.first();
            self.reads = topic.map(|topic| topic.partitions.clone()).unwrap_or_default();
            self.topic_id = topic.map_or(self.topic_id, |topic| topic.topic_id);
        }
    }

    fn leave(&mut self, client: &mut Client) {
        let request = self.request(LEAVE);
        let error = ErrorCode(client.call(&request, 1).error_code);
        if self.is_answered(error) {
            self.epoch = 0;
            self.reads.clear();
        }
    }

    fn request(&self, member_epoch: i32) -> ConsumerGroupHeartbeatRequest<'static> {
        ConsumerGroupHeartbeatRequest {
            group_id: GROUP.into(),
            member_id: self.id.clone().into(),
            member_epoch,
            rebalance_timeout_ms: -1,
            ..Default::default()
        }
    }

    /// Returns false if the member has to ask again. An answer to a member is durable: its id stays known.
    fn is_answered(&self, error: ErrorCode) -> bool {
        match error {
            ErrorCode::NONE => true,
            ErrorCode::COORDINATOR_LOAD_IN_PROGRESS
            | ErrorCode::COORDINATOR_NOT_AVAILABLE
            | ErrorCode::NOT_COORDINATOR => false,
            other => panic!("{} in epoch {} is answered {other:?}", self.id, self.epoch),
        }
    }
}
