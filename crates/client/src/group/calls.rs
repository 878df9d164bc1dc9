//! The requests of a member to the coordinator of its group.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use mainstem_records::{ProducerEpoch, ProducerId};
use mainstem_wire::messages::consumer_group_heartbeat_request::{
    ConsumerGroupHeartbeatRequest, TopicPartitions,
};
use mainstem_wire::messages::heartbeat_request::HeartbeatRequest;
use mainstem_wire::messages::join_group_request::{JoinGroupRequest, JoinGroupRequestProtocol};
use mainstem_wire::messages::leave_group_request::{LeaveGroupRequest, MemberIdentity};
use mainstem_wire::messages::offset_commit_request::OffsetCommitRequest;
use mainstem_wire::messages::sync_group_request::{SyncGroupRequest, SyncGroupRequestAssignment};
use mainstem_wire::messages::txn_offset_commit_request::{
    TxnOffsetCommitRequest, TxnOffsetCommitRequestPartition, TxnOffsetCommitRequestTopic,
};
use mainstem_wire::{ApiKey, ErrorCode, Request, Uuid};

use super::assignor::Assignments;
use super::config::{GroupConfig, GroupProtocol, Subscription};
use super::membership::{Answer, Heartbeat, Partitions};
use super::offsets::{
    COMMIT_IDS_SINCE, COMMIT_NAMES_UNTIL, CommittedOffset, CommittedOffsets, FETCH_NAMES_UNTIL, Missing,
    commit_request, fetch_request, is_missing, missing_of_commit, read_committed,
};
use super::protocol::encode_assignment;
use crate::cluster::Cluster;
use crate::error::Error;
use crate::reply::Reply;
use crate::topic_partition::TopicPartition;

/// The protocol that all members have to speak.
const PROTOCOL_TYPE: &str = "consumer";
/// The one assignor that is offered.
const ASSIGNOR: &str = "cooperative-sticky";
/// The first version of ConsumerGroupHeartbeat with patterns.
const REGEX_SINCE: i16 = 1;
/// Offsets of some partitions, to be committed.
type Offsets<'a> = BTreeMap<&'a TopicPartition, &'a CommittedOffset>;

/// Heartbeats are never sent at shorter intervals than this, whatever the coordinator says.
const HEARTBEAT_MS_MIN: u64 = 10;

/// The last version of TxnOffsetCommit for which the producer itself has to add the group to its transaction (KIP-890).
const TRANSACTIONS_V1_UNTIL: i16 = 4;

/// The transaction that offsets are committed with.
pub(crate) struct Transaction<'a> {
    pub(crate) id: &'a str,
    pub(crate) producer_id: ProducerId,
    pub(crate) producer_epoch: ProducerEpoch,
    pub(crate) is_v2: bool,
}

/// A member's name in its group, and the generation that it belongs to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Identity {
    pub(crate) member_id: String,
    pub(crate) generation: i32,
}

impl Identity {
    /// The identity of a client that is in no group.
    pub(crate) fn none() -> Identity {
        Identity { member_id: String::new(), generation: -1 }
    }
}

/// The outcome of joining.
#[derive(Debug)]
pub(crate) struct Joined {
    pub(crate) identity: Identity,
    /// For the leader: the bytes of each member's subscription.
    pub(crate) led: Option<BTreeMap<String, Vec<u8>>>,
    /// The members keep what they have: the leader is a static member that has come back (KIP-814).
    pub(crate) skips_assignment: bool,
}

/// Calls about one group, on connections of its own: the answer to a join may take long, and later requests wait behind it.
#[derive(Debug, Clone)]
pub(crate) struct Calls {
    pub(crate) cluster: Cluster,
    config: Arc<GroupConfig>,
}

impl Calls {
    pub(crate) fn new(config: Arc<GroupConfig>) -> Calls {
        Calls { cluster: Cluster::new(config.consumer.client.clone()), config }
    }

    fn failed(&self, what: &str) -> String {
        format!("cannot {what} group {}", self.config.group_id)
    }

    fn group(&self) -> Cow<'_, str> {
        Cow::Borrowed(&self.config.group_id)
    }

    fn instance(&self) -> Option<Cow<'_, str>> {
        self.config.instance_id.as_deref().map(Cow::Borrowed)
    }

    /// Calls the coordinator. If that fails, the next call looks for the coordinator again.
    async fn call<'q, R: Request<'q>>(&self, request: &R, newest: i16) -> Result<Reply<R>, Error> {
        let asked = async {
            let coordinator = self.cluster.coordinator(&self.config.group_id).await?;
            let version = coordinator.version_up_to::<R>(newest)?;
            let mut limit = self.config.consumer.client.request_timeout;
            if matches!(R::KEY, ApiKey::JoinGroup | ApiKey::SyncGroup) {
                // It is answered when all members have joined, or their time is over.
                limit += self.config.max_poll_interval;
            }
            coordinator.call_within(request, version, limit).await
        };
        asked.await.inspect_err(|_| self.cluster.forget_coordinator(&self.config.group_id))
    }

    /// Checks that the coordinator has the version of a request that first has `what`.
    async fn needs<'q, R: Request<'q>>(&self, oldest: i16, what: &str) -> Result<(), Error> {
        self.cluster.coordinator(&self.config.group_id).await?.needs::<R>(oldest, what)
    }

    /// The error of an answer.
    fn check<R>(&self, reply: &Reply<R>, code: i16, what: &str) -> Result<(), Error> {
        self.noted(reply.check(code, None, || self.failed(what)))
    }

    /// Passes an outcome on; after some errors the next call looks for the coordinator again.
    fn noted<T>(&self, outcome: Result<T, Error>) -> Result<T, Error> {
        outcome.inspect_err(|error| {
            if let Some(ErrorCode::NOT_COORDINATOR | ErrorCode::COORDINATOR_NOT_AVAILABLE) = error.code() {
                self.cluster.forget_coordinator(&self.config.group_id);
            }
        })
    }

    /// JoinGroup (11): takes part in the next generation. `named` is called with a new member id as soon as the coordinator knows
    /// it: a member that stops joining then has to leave under that id.
    pub(crate) async fn join(
        &self,
        member_id: &str,
        subscription: &[u8],
        named: impl Fn(&str),
    ) -> Result<Joined, Error> {
        let mut member_id = member_id.to_owned();
        loop {
            let protocol = JoinGroupRequestProtocol {
                name: Cow::Borrowed(ASSIGNOR),
                metadata: Cow::Borrowed(subscription),
                ..Default::default()
            };
            let ms = |time: std::time::Duration| i32::try_from(time.as_millis()).expect("checked");
            let request = JoinGroupRequest {
                group_id: self.group(),
                session_timeout_ms: ms(self.config.session_timeout),
                rebalance_timeout_ms: ms(self.config.max_poll_interval),
                member_id: Cow::Borrowed(&member_id),
                group_instance_id: self.instance(),
                protocol_type: Cow::Borrowed(PROTOCOL_TYPE),
                protocols: vec![protocol],
                ..Default::default()
            };
            let reply = self.call(&request, i16::MAX).await?;
            let response = reply.read()?;
            let name = response.member_id.clone().into_owned();
            if response.error_code == ErrorCode::MEMBER_ID_REQUIRED.code() && member_id.is_empty() {
                // KIP-394: a member joins under the id that it was given, so that the group does not wait for a member that is gone.
                named(&name);
                member_id = name;
                continue;
            }
            self.check(&reply, response.error_code, "join")?;
            let identity = Identity { member_id: name, generation: response.generation_id };
            let leads = response.leader == identity.member_id;
            let members = response.members.iter();
            let members = members.map(|one| (one.member_id.clone().into_owned(), one.metadata.to_vec()));
            let (led, skips_assignment) = (leads.then(|| members.collect()), response.skip_assignment);
            return Ok(Joined { identity, led, skips_assignment });
        }
    }

    /// SyncGroup (14): sends the assignments if this member leads. Returns the bytes of its own assignment.
    pub(crate) async fn sync(
        &self,
        identity: &Identity,
        assignments: &Assignments,
    ) -> Result<Vec<u8>, Error> {
        let assignment = |(member, keys): (&String, &BTreeSet<TopicPartition>)| {
            let assignment = encode_assignment(keys).map_err(|error| Error::Invalid(error.to_string()))?;
            Ok(SyncGroupRequestAssignment {
                member_id: Cow::Owned(member.clone()),
                assignment: Cow::Owned(assignment),
                ..Default::default()
            })
        };
        let request = SyncGroupRequest {
            group_id: self.group(),
            generation_id: identity.generation,
            member_id: Cow::Borrowed(&identity.member_id),
            group_instance_id: self.instance(),
            protocol_type: Some(Cow::Borrowed(PROTOCOL_TYPE)),
            protocol_name: Some(Cow::Borrowed(ASSIGNOR)),
            assignments: assignments.iter().map(assignment).collect::<Result<_, Error>>()?,
            ..Default::default()
        };
        let reply = self.call(&request, i16::MAX).await?;
        let response = reply.read()?;
        self.check(&reply, response.error_code, "get an assignment in")?;
        Ok(response.assignment.to_vec())
    }

    /// Heartbeat (12).
    pub(crate) async fn heartbeat(&self, identity: &Identity) -> Result<(), Error> {
        let request = HeartbeatRequest {
            group_id: self.group(),
            generation_id: identity.generation,
            member_id: Cow::Borrowed(&identity.member_id),
            group_instance_id: self.instance(),
            ..Default::default()
        };
        let reply = self.call(&request, i16::MAX).await?;
        let response = reply.read()?;
        self.check(&reply, response.error_code, "stay in")
    }

    /// ConsumerGroupHeartbeat (68): joins, stays in or leaves a group of the consumer protocol (KIP-848).
    pub(crate) async fn beat(&self, member_id: &str, beat: &Heartbeat) -> Result<Answer, Error> {
        let mut request = ConsumerGroupHeartbeatRequest {
            group_id: self.group(),
            member_id: Cow::Borrowed(member_id),
            member_epoch: beat.epoch,
            instance_id: self.instance(),
            topic_partitions: beat.owned.as_ref().map(by_topic_id),
            ..Default::default()
        };
        if beat.is_full {
            self.describe(&mut request).await?;
        }
        let reply = self.call(&request, i16::MAX).await?;
        let response = reply.read()?;
        let message = response.error_message.as_deref();
        self.noted(reply.check(response.error_code, message, || self.failed("take part in")))?;
        let topics = response.assignment.iter().flat_map(|assignment| &assignment.topic_partitions);
        let assigned: Partitions =
            topics.map(|topic| (topic.topic_id, topic.partitions.iter().copied().collect())).collect();
        Ok(Answer {
            epoch: response.member_epoch,
            interval_ms: u64::try_from(response.heartbeat_interval_ms).unwrap_or(0).max(HEARTBEAT_MS_MIN),
            assignment: response.assignment.is_some().then_some(assigned),
        })
    }

    /// Adds the settings that the coordinator keeps of a member.
    async fn describe<'a>(&'a self, request: &mut ConsumerGroupHeartbeatRequest<'a>) -> Result<(), Error> {
        let limit = self.config.max_poll_interval.as_millis();
        request.rebalance_timeout_ms = i32::try_from(limit).expect("the configuration was checked");
        if let GroupProtocol::Consumer { assignor: Some(assignor) } = &self.config.protocol {
            request.server_assignor = Some(Cow::Borrowed(assignor));
        }
        match &self.config.subscription {
            Subscription::Topics(topics) => {
                request.subscribed_topic_names =
                    Some(topics.iter().map(|topic| Cow::Borrowed(&**topic)).collect());
            }
            Subscription::Pattern(pattern) => {
                let what = "subscribing to a pattern";
                self.needs::<ConsumerGroupHeartbeatRequest<'_>>(REGEX_SINCE, what).await?;
                request.subscribed_topic_regex = Some(Cow::Borrowed(pattern));
            }
        }
        Ok(())
    }

    /// LeaveGroup (13).
    pub(crate) async fn leave(&self, identity: &Identity) -> Result<(), Error> {
        let coordinator = self.cluster.coordinator(&self.config.group_id).await?;
        let member_id = Cow::Borrowed(identity.member_id.as_str());
        let members = vec![MemberIdentity { member_id, ..Default::default() }];
        let request = LeaveGroupRequest { group_id: self.group(), members, ..Default::default() };
        let reply = coordinator.call(&request).await?;
        let response = reply.read()?;
        self.check(&reply, response.error_code, "leave")
    }

    /// OffsetCommit (8): each offset is that of the next record to read. Returns the partitions that were left out as their topic does
    /// not exist or, if topic ids are known, as another topic has its name by now.
    pub(crate) async fn commit(
        &self,
        identity: &Identity,
        offsets: &CommittedOffsets,
    ) -> Result<Missing, Error> {
        let coordinator = self.cluster.coordinator(&self.config.group_id).await?;
        let takes_ids = coordinator.version::<OffsetCommitRequest<'_>>()? >= COMMIT_IDS_SINCE;
        let is_by_id = |committed: &CommittedOffset| takes_ids && committed.topic_id.is_some();
        let (by_id, mut by_name): (Offsets<'_>, Offsets<'_>) =
            offsets.iter().partition(|(_, committed)| is_by_id(committed));
        let mut missing = self.replaced(&by_name).await?;
        by_name.retain(|key, _| !missing.contains_key(*key));
        for (offsets, newest) in [(by_id, i16::MAX), (by_name, COMMIT_NAMES_UNTIL)] {
            if !offsets.is_empty() {
                missing.extend(self.commit_up_to(identity, &offsets, newest).await?);
            }
        }
        Ok(missing)
    }

    async fn commit_up_to(
        &self,
        identity: &Identity,
        offsets: &Offsets<'_>,
        newest: i16,
    ) -> Result<Missing, Error> {
        let request = OffsetCommitRequest {
            generation_id_or_member_epoch: identity.generation,
            member_id: Cow::Borrowed(&identity.member_id),
            group_instance_id: self.instance(),
            ..commit_request(&self.config.group_id, offsets.iter().map(|(key, one)| (*key, *one)))
        };
        let name =
            |(key, one): (&&TopicPartition, &&CommittedOffset)| Some((one.topic_id?, key.topic.clone()));
        let names = offsets.iter().filter_map(name).collect();
        let reply = self.call(&request, newest).await?;
        self.noted(missing_of_commit(&reply, &self.config.group_id, &names))
    }

    /// The partitions whose topic does not exist by the present metadata, or is another one than that of the offset. A coordinator
    /// that knows topics by name alone would take these offsets for those of the new topic.
    async fn replaced(&self, offsets: &Offsets<'_>) -> Result<Missing, Error> {
        let with_id = || offsets.iter().filter_map(|(key, one)| Some((*key, one.offset, one.topic_id?)));
        let names: BTreeSet<&str> = with_id().map(|(key, ..)| &*key.topic).collect();
        if names.is_empty() {
            return Ok(Missing::new());
        }
        let names: Vec<&str> = names.into_iter().collect();
        let found = self.cluster.refresh(&names, false).await?.into_iter();
        let now = found.map(|found| match found {
            Ok(topic) => (topic.name.clone(), Ok(topic.id)),
            Err(refused) => (refused.topic, Err(refused.error)),
        });
        let now: BTreeMap<Arc<str>, Result<Uuid, Error>> = now.collect();
        let why = |(key, offset, was): (&TopicPartition, i64, Uuid)| match now.get(&key.topic)? {
            Ok(id) if *id != was && !id.is_zero() => {
                Some((key.clone(), Error::TopicRecreated { partition: key.clone(), offset }))
            }
            Err(error) if is_missing(error) => Some((key.clone(), error.clone())),
            _ => None,
        };
        Ok(with_id().filter_map(why).collect())
    }

    /// TxnOffsetCommit (28): each offset is that of the next record to read once the transaction is committed.
    pub(crate) async fn commit_in_transaction(
        &self,
        identity: &Identity,
        offsets: &CommittedOffsets,
        transaction: &Transaction<'_>,
    ) -> Result<(), Error> {
        let mut topics: BTreeMap<&str, TxnOffsetCommitRequestTopic<'_>> = BTreeMap::new();
        for (key, committed) in offsets {
            let topic = topics.entry(&key.topic).or_insert_with(|| TxnOffsetCommitRequestTopic {
                name: Cow::Borrowed(&key.topic),
                ..Default::default()
            });
            topic.partitions.push(TxnOffsetCommitRequestPartition {
                partition_index: key.partition,
                committed_offset: committed.offset,
                committed_leader_epoch: committed.wire_epoch(),
                committed_metadata: Some(Cow::Borrowed(&committed.metadata)),
                ..Default::default()
            });
        }
        let request = TxnOffsetCommitRequest {
            transactional_id: Cow::Borrowed(transaction.id),
            group_id: self.group(),
            producer_id: transaction.producer_id.get(),
            producer_epoch: transaction.producer_epoch.get(),
            // Without the generation, a member that was thrown out could still commit (KIP-447).
            generation_id: identity.generation,
            member_id: Cow::Borrowed(&identity.member_id),
            group_instance_id: self.instance(),
            topics: topics.into_values().collect(),
            ..Default::default()
        };
        let newest = if transaction.is_v2 { i16::MAX } else { TRANSACTIONS_V1_UNTIL };
        let reply = self.call(&request, newest).await?;
        let response = reply.read()?;
        let mut codes = response.topics.iter().flat_map(|topic| &topic.partitions).map(|one| one.error_code);
        codes.try_for_each(|code| self.check(&reply, code, "commit offsets of"))
    }

    /// OffsetFetch (9): the committed offsets. It waits for offsets that a running transaction is about to commit (KIP-447).
    pub(crate) async fn committed(&self, keys: &BTreeSet<TopicPartition>) -> Result<CommittedOffsets, Error> {
        let request = fetch_request(&self.config.group_id, Some(keys));
        let reply = self.call(&request, FETCH_NAMES_UNTIL).await?;
        self.noted(read_committed(&reply, &self.config.group_id))
    }
}

fn by_topic_id(partitions: &Partitions) -> Vec<TopicPartitions<'static>> {
    let topic = |(id, partitions): (&Uuid, &BTreeSet<i32>)| TopicPartitions {
        topic_id: *id,
        partitions: partitions.iter().copied().collect(),
        ..Default::default()
    };
    partitions.iter().map(topic).collect()
}
