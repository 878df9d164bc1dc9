//! Properties that hold for every sequence of requests, outcomes, time-outs and changes of coordinator.

use std::collections::{BTreeMap, HashMap};

use mainstem_records::{ProducerEpoch, ProducerId};
use mainstem_wire::ErrorCode;
use mainstem_wire::messages::heartbeat_request::HeartbeatRequest;
use mainstem_wire::messages::join_group_request::{JoinGroupRequest, JoinGroupRequestProtocol};
use mainstem_wire::messages::leave_group_request::{LeaveGroupRequest, MemberIdentity};
use mainstem_wire::messages::offset_commit_request::{
    OffsetCommitRequest, OffsetCommitRequestPartition, OffsetCommitRequestTopic,
};
use mainstem_wire::messages::offset_fetch_request::OffsetFetchRequestGroup;
use mainstem_wire::messages::offset_fetch_response::OffsetFetchResponseGroup;
use mainstem_wire::messages::sync_group_request::{SyncGroupRequest, SyncGroupRequestAssignment};
use mainstem_wire::messages::txn_offset_commit_request::{
    TxnOffsetCommitRequest, TxnOffsetCommitRequestPartition, TxnOffsetCommitRequestTopic,
};
use proptest::collection::vec;
use proptest::prelude::*;

use super::cluster::{Cluster, Logged, PARTITION, replies};
use crate::groups::classic::{ClassicGroup, State};
use crate::groups::group::{Group, Protocol};
use crate::groups::records::{self, Record};
use crate::groups::{
    Effect, GroupConfig, GroupCoordinator, Producer, Reply, Request, Ticket, Token, TransactionEnd, fuzz,
};

/// One step. Members and appends are chosen among the existing ones, by index.
#[derive(Debug, Clone)]
enum Op {
    Join {
        group: u8,
        version: i16,
        instance: Option<u8>,
        protocols: u8,
    },
    Rejoin {
        member: usize,
        protocols: u8,
    },
    Sync {
        member: usize,
        stale: bool,
    },
    Beat {
        member: usize,
    },
    Leave {
        member: usize,
    },
    Commit {
        group: u8,
        member: Option<usize>,
        partition: i32,
        expires: bool,
    },
    /// A commit in the transaction of a producer.
    TxnCommit {
        group: u8,
        member: Option<usize>,
        partition: i32,
        producer: i64,
    },
    /// The marker of a producer.
    End {
        producer: i64,
        committed: bool,
    },
    Fetch {
        group: u8,
        stable: bool,
    },
    Delete {
        group: u8,
    },
    TopicDeleted,
    /// All members of a group join without faults: otherwise few groups would ever be stable.
    Stabilise {
        group: u8,
    },
    Finish {
        append: usize,
        error: bool,
    },
    Wait {
        ms: u64,
    },
    Wall {
        ms: i64,
    },
    Reload,
}

fn op() -> impl Strategy<Value = Op> {
    let instance = proptest::option::weighted(0.3, 0..2_u8);
    prop_oneof![
        6 => (0..2_u8, prop_oneof![Just(3_i16), Just(9)], instance, 0..3_u8)
            .prop_map(|(group, version, instance, protocols)| Op::Join { group, version, instance, protocols }),
        8 => (any::<usize>(), 0..3_u8).prop_map(|(member, protocols)| Op::Rejoin { member, protocols }),
        10 => (any::<usize>(), proptest::bool::weighted(0.1))
            .prop_map(|(member, stale)| Op::Sync { member, stale }),
        3 => any::<usize>().prop_map(|member| Op::Beat { member }),
        2 => any::<usize>().prop_map(|member| Op::Leave { member }),
        5 => (0..2_u8, proptest::option::of(any::<usize>()), 0..3_i32, proptest::bool::weighted(0.1))
            .prop_map(|(group, member, partition, expires)| Op::Commit { group, member, partition, expires }),
        5 => txn_commit(),
        4 => end(),
        2 => (0..2_u8, any::<bool>()).prop_map(|(group, stable)| Op::Fetch { group, stable }),
        1 => (0..2_u8).prop_map(|group| Op::Delete { group }),
        1 => Just(Op::TopicDeleted),
        3 => (0..2_u8).prop_map(|group| Op::Stabilise { group }),
        14 => (any::<usize>(), proptest::bool::weighted(0.25))
            .prop_map(|(append, error)| Op::Finish { append, error }),
        6 => prop_oneof![1..100_u64, 1_000..7_000_u64, Just(20_000), Just(400_000)].prop_map(|ms| Op::Wait { ms }),
        1 => (-1_000_000_000..1_000_000_000_i64).prop_map(|ms| Op::Wall { ms }),
        1 => Just(Op::Reload),
    ]
}

fn txn_commit() -> impl Strategy<Value = Op> {
    let member = proptest::option::of(any::<usize>());
    (0..2_u8, member, 0..3_i32, 0..PRODUCERS).prop_map(|(group, member, partition, producer)| Op::TxnCommit {
        group,
        member,
        partition,
        producer,
    })
}

fn end() -> impl Strategy<Value = Op> {
    (0..PRODUCERS, any::<bool>()).prop_map(|(producer, committed)| Op::End { producer, committed })
}

/// The state of a client.
#[derive(Debug, Clone, Default)]
struct Client {
    group: String,
    id: String,
    instance: Option<String>,
    generation: i32,
    /// The members that it has to assign to, if it leads.
    followers: Vec<String>,
}

/// The kind of a request, which says how to check its answer.
#[derive(Debug, Clone)]
enum Asked {
    Join { group: String, instance: Option<String> },
    Sync(Client),
    Commit { group: String, partition: i32, offset: i64 },
    Fetch { group: String, stable: bool },
    Other,
}

struct World {
    cluster: Cluster,
    clients: Vec<Client>,
    asked: HashMap<Token, Asked>,
    /// Gives every commit an offset of its own.
    offsets: i64,
    /// The generation that each group had.
    generations: HashMap<String, i32>,
    /// The length of the log when answers were last looked at.
    looked: usize,
    /// The last append with a group's own record, and true if it failed.
    written: HashMap<String, (Ticket, bool)>,
}

const TOPIC: &str = "t";
/// The number of producers that have transactions.
const PRODUCERS: i64 = 3;

/// The offsets of a group's partitions, or an error instead, as a fetch returns them.
type Fetched = BTreeMap<i32, Result<i64, ErrorCode>>;

/// A group's offsets, as the log has them.
#[derive(Debug, Default)]
struct Durable {
    /// Each with the place of its record.
    committed: BTreeMap<i32, (i64, usize)>,
    /// The same of open transactions, by partition and producer.
    open: BTreeMap<(i32, i64), (i64, usize)>,
}

fn name(group: u8) -> String {
    if group == 0 { "g".to_owned() } else { "h".to_owned() }
}

fn config() -> GroupConfig {
    GroupConfig {
        offsets_retention_ms: 3_600_000,
        tombstones_per_append_max: 2,
        group_max_size: 4,
        memory_bytes_for_members: 0,
        ..GroupConfig::default()
    }
}

impl World {
    fn new(config: GroupConfig) -> Self {
        Self {
            cluster: Cluster::new(config),
            clients: Vec::new(),
            asked: HashMap::new(),
            offsets: 0,
            generations: HashMap::new(),
            looked: 0,
            written: HashMap::new(),
        }
    }

    fn client(&self, index: usize) -> Option<Client> {
        (!self.clients.is_empty()).then(|| self.clients[index % self.clients.len()].clone())
    }

    fn ask(&mut self, version: i16, asked: Asked, request: Request<'_>) {
        let token = self.cluster.send(version, "c", request);
        self.asked.insert(token, asked);
    }

    fn run(&mut self, op: &Op) {
        match op {
            Op::Join { group, version, instance, protocols } => {
                let instance = instance.map(|instance| format!("i{instance}"));
                let client = Client { group: name(*group), instance, ..Client::default() };
                self.join(*version, &client, *protocols);
            }
            Op::Rejoin { member, protocols } => {
                if let Some(client) = self.client(*member) {
                    self.join(9, &client, *protocols);
                }
            }
            Op::Sync { member, stale } => self.sync(*member, *stale),
            Op::Beat { member } => self.beat(*member),
            Op::Leave { member } => self.leave(*member),
            Op::Commit { group, member, partition, expires } => {
                let client = self.committer(*group, *member);
                self.commit(&client, *partition, *expires);
            }
            Op::TxnCommit { group, member, partition, producer } => {
                let client = self.committer(*group, *member);
                self.transactional_commit(&client, *partition, *producer);
            }
            Op::End { producer, committed } => self.end(*producer, *committed),
            Op::Fetch { group, stable } => {
                let group = name(*group);
                let fetch = OffsetFetchRequestGroup {
                    group_id: group.clone().into(),
                    topics: None,
                    ..Default::default()
                };
                self.ask(
                    9,
                    Asked::Fetch { group, stable: *stable },
                    Request::OffsetFetch { group: fetch, require_stable: *stable },
                );
            }
            Op::Delete { group } => self.ask(2, Asked::Other, Request::DeleteGroup(&name(*group))),
            Op::TopicDeleted => self.cluster.coordinator.topic_deleted(self.cluster.now, TOPIC),
            Op::Stabilise { group } => self.stabilise(&name(*group)),
            Op::Finish { append, error } => self.finish(*append, *error),
            Op::Wait { ms } => self.wait(*ms, false),
            Op::Wall { ms } => self.cluster.now.wall_ms += ms,
            Op::Reload => {
                self.cluster.coordinator.unload(self.cluster.now, PARTITION);
                self.settle();
                assert_eq!(self.cluster.unanswered(), 0, "giving a partition up answers everybody");
                self.cluster.reload();
                self.written.clear();
                self.generations.clear();
            }
        }
        self.settle();
        self.check_state();
    }

    fn join(&mut self, version: i16, client: &Client, protocols: u8) {
        let names: &[&'static str] =
            [&["range"][..], &["range", "sticky"], &["sticky", "range"]][usize::from(protocols)];
        let protocol = |name: &&'static str| JoinGroupRequestProtocol {
            name: (*name).into(),
            metadata: format!("{name} of {protocols}").into_bytes().into(),
            ..Default::default()
        };
        let request = JoinGroupRequest {
            group_id: client.group.clone().into(),
            session_timeout_ms: 10_000,
            rebalance_timeout_ms: 15_000,
            member_id: client.id.clone().into(),
            group_instance_id: client.instance.clone().map(Into::into),
            protocol_type: "consumer".into(),
            protocols: names.iter().map(protocol).collect(),
            ..Default::default()
        };
        let asked = Asked::Join { group: client.group.clone(), instance: client.instance.clone() };
        let random = self.cluster.random();
        self.ask(version, asked, Request::JoinGroup { request, random });
    }

    fn sync(&mut self, member: usize, stale: bool) {
        let Some(mut client) = self.client(member) else { return };
        client.generation -= i32::from(stale);
        let share = |id: &String| SyncGroupRequestAssignment {
            member_id: id.clone().into(),
            assignment: format!("{id} in {}", client.generation).into_bytes().into(),
            ..Default::default()
        };
        let request = SyncGroupRequest {
            group_id: client.group.clone().into(),
            generation_id: client.generation,
            member_id: client.id.clone().into(),
            group_instance_id: client.instance.clone().map(Into::into),
            assignments: client.followers.iter().map(share).collect(),
            ..Default::default()
        };
        self.ask(5, Asked::Sync(client), Request::SyncGroup(request));
    }

    fn stabilise(&mut self, group: &str) {
        let clients = 0..self.clients.len();
        let of_group: Vec<usize> = clients.filter(|at| self.clients[*at].group == group).collect();
        for client in &of_group {
            self.join(9, &self.clients[*client].clone(), 0);
            self.settle();
        }
        self.wait(3_000, true);
        for client in of_group {
            self.sync(client, false);
            self.settle();
        }
        self.wait(1, true);
    }

    fn beat(&mut self, member: usize) {
        let Some(client) = self.client(member) else { return };
        let request = HeartbeatRequest {
            group_id: client.group.into(),
            generation_id: client.generation,
            member_id: client.id.into(),
            group_instance_id: client.instance.map(Into::into),
            ..Default::default()
        };
        self.ask(4, Asked::Other, Request::Heartbeat(request));
    }

    fn leave(&mut self, member: usize) {
        let Some(client) = self.client(member) else { return };
        let identity = MemberIdentity {
            member_id: client.id.into(),
            group_instance_id: client.instance.map(Into::into),
            ..Default::default()
        };
        let request = LeaveGroupRequest {
            group_id: client.group.into(),
            members: vec![identity],
            ..Default::default()
        };
        self.ask(5, Asked::Other, Request::LeaveGroup(request));
    }

    /// A member, or none.
    fn committer(&self, group: u8, member: Option<usize>) -> Client {
        let client = member.and_then(|member| self.client(member));
        client.unwrap_or(Client { group: name(group), generation: -1, ..Client::default() })
    }

    fn transactional_commit(&mut self, client: &Client, partition: i32, producer: i64) {
        self.offsets += 1;
        let offset = self.offsets;
        let partition_request = TxnOffsetCommitRequestPartition {
            partition_index: partition,
            committed_offset: offset,
            committed_metadata: (offset % 3 == 0).then(|| "note".into()),
            ..Default::default()
        };
        let topic = TxnOffsetCommitRequestTopic {
            name: TOPIC.into(),
            partitions: vec![partition_request],
            ..Default::default()
        };
        let request = TxnOffsetCommitRequest {
            group_id: client.group.clone().into(),
            producer_id: producer,
            generation_id: client.generation,
            member_id: client.id.clone().into(),
            topics: vec![topic],
            ..Default::default()
        };
        let asked = Asked::Commit { group: client.group.clone(), partition, offset };
        self.ask(5, asked, Request::TxnOffsetCommit(request));
    }

    fn end(&mut self, producer: i64, committed: bool) {
        let producer = Producer { id: ProducerId::new(producer), epoch: ProducerEpoch::ZERO };
        let end = TransactionEnd { producer, committed };
        if let Err(error) = self.cluster.end_transaction(end) {
            assert_eq!(error, ErrorCode::COORDINATOR_NOT_AVAILABLE, "the partition is served");
        }
    }

    fn commit(&mut self, client: &Client, partition: i32, expires: bool) {
        self.offsets += 1;
        let offset = self.offsets;
        let partition_request = OffsetCommitRequestPartition {
            partition_index: partition,
            committed_offset: offset,
            committed_metadata: (offset % 3 == 0).then(|| "note".into()),
            ..Default::default()
        };
        let topic = OffsetCommitRequestTopic {
            name: TOPIC.into(),
            partitions: vec![partition_request],
            ..Default::default()
        };
        let request = OffsetCommitRequest {
            group_id: client.group.clone().into(),
            generation_id_or_member_epoch: client.generation,
            member_id: client.id.clone().into(),
            retention_time_ms: if expires { 1_000 } else { -1 },
            topics: vec![topic],
            ..Default::default()
        };
        let asked = Asked::Commit { group: client.group.clone(), partition, offset };
        self.ask(4, asked, Request::OffsetCommit(request));
    }

    fn finish(&mut self, append: usize, error: bool) {
        let unfinished: Vec<_> = self.cluster.unfinished().collect();
        if unfinished.is_empty() {
            return;
        }
        let ticket = unfinished[append % unfinished.len()];
        let outcome = if error { Err(ErrorCode::KAFKA_STORAGE_ERROR) } else { Ok(()) };
        for group in own_records(&self.cluster.pending[&ticket].entries) {
            let last = self.written.entry(group).or_insert((ticket, error));
            if last.0 <= ticket {
                *last = (ticket, error);
            }
        }
        self.cluster.finish(ticket, outcome);
    }

    /// Time passes; with `succeed` appends do too.
    fn wait(&mut self, ms: u64, succeed: bool) {
        let end = self.cluster.now.mono_ms + ms;
        loop {
            while succeed && self.cluster.unfinished().next().is_some() {
                self.finish(0, false);
                self.settle();
            }
            let Some(at) = self.cluster.coordinator.next_deadline_ms().filter(|at| *at <= end) else { break };
            self.cluster.advance(at.saturating_sub(self.cluster.now.mono_ms));
            self.cluster.coordinator.tick(self.cluster.now);
            self.settle();
        }
        self.cluster.advance(end - self.cluster.now.mono_ms);
    }

    /// Checks every answer against what is in the log at this moment.
    fn settle(&mut self) {
        let effects: Vec<Effect> = self.cluster.effects();
        for (token, reply) in replies(&effects) {
            let asked = self.asked.remove(&token).expect("it was asked");
            self.check_answer(asked, reply);
        }
        self.looked = self.cluster.log.len();
    }

    fn check_answer(&mut self, asked: Asked, reply: &Reply) {
        match (asked, reply) {
            (Asked::Join { group, instance }, Reply::JoinGroup(response)) => {
                if !response.members.is_empty() {
                    assert_eq!(response.member_id, response.leader, "only the leader gets the members");
                }
                let known = [ErrorCode::NONE.0, ErrorCode::MEMBER_ID_REQUIRED.0];
                if known.contains(&response.error_code) {
                    let followers = response.members.iter().map(|member| member.member_id.to_string());
                    self.learn(Client {
                        group,
                        id: response.member_id.to_string(),
                        instance,
                        generation: response.generation_id,
                        followers: followers.collect(),
                    });
                }
            }
            (Asked::Sync(client), Reply::SyncGroup(response)) if response.error_code == 0 => {
                let durable = self.durable_assignment(&client);
                assert_eq!(
                    Some(&*response.assignment),
                    durable.as_deref(),
                    "{client:?} was answered what is not durable"
                );
            }
            (Asked::Commit { group, partition, offset }, Reply::OffsetCommit(response))
                if response.topics[0].partitions[0].error_code == 0 =>
            {
                self.check_committed(&group, partition, offset);
            }
            (Asked::Commit { group, partition, offset }, Reply::TxnOffsetCommit(response))
                if response.topics[0].partitions[0].error_code == 0 =>
            {
                self.check_committed(&group, partition, offset);
            }
            (Asked::Fetch { group, stable }, Reply::OffsetFetch(answer)) => {
                let response = answer.response();
                if response.error_code == 0 {
                    self.check_fetched(&group, stable, &response);
                }
            }
            _ => {}
        }
    }

    fn learn(&mut self, client: Client) {
        match self.clients.iter_mut().find(|known| known.group == client.group && known.id == client.id) {
            Some(known) => *known = client,
            None => self.clients.push(client),
        }
    }

    fn durable_assignment(&self, client: &Client) -> Option<Vec<u8>> {
        self.cluster.log.iter().rev().filter_map(Logged::record).find_map(|record| {
            match records::decode(&record.key, record.value.as_deref()).expect("our own record") {
                Record::Group { key, value: Some(value) } if key.group == client.group.as_str() => {
                    let member =
                        value.members.iter().find(|member| member.member_id == client.id.as_str())?;
                    (value.generation == client.generation).then(|| member.assignment.to_vec())
                }
                _ => None,
            }
        })
    }

    fn check_committed(&self, group: &str, partition: i32, offset: i64) {
        let written = self
            .cluster
            .log
            .iter()
            .filter_map(|entry| offset_of(entry, group))
            .any(|(at, value)| at == partition && value.is_some_and(|(written, _)| written == offset));
        assert!(written, "offset {offset} was acknowledged and is not in the log");
    }

    /// A fetch sees what was durable at one moment since the last look: one outcome can release several appends, and
    /// the fetch between them.
    fn check_fetched(&self, group: &str, stable: bool, response: &OffsetFetchResponseGroup<'_>) {
        let partitions = response.topics.iter().flat_map(|topic| &topic.partitions);
        let fetched: Fetched = partitions
            .map(|partition| match ErrorCode(partition.error_code) {
                ErrorCode::NONE => (partition.partition_index, Ok(partition.committed_offset)),
                error => (partition.partition_index, Err(error)),
            })
            .collect();
        let mut moments =
            (self.looked..=self.cluster.log.len()).map(|len| self.durable(group, len).fetched(stable));
        assert!(moments.any(|durable| durable == fetched), "{group} was read as {fetched:?}");
    }

    /// Reads the offsets of a group from the oldest `len` entries of the log.
    fn durable(&self, group: &str, len: usize) -> Durable {
        let mut durable = Durable::default();
        for (place, entry) in self.cluster.log[..len].iter().enumerate() {
            durable.take(group, place, entry);
        }
        durable
    }

    /// Checks the state after a step.
    fn check_state(&mut self) {
        self.cluster.coordinator.check();
        for group in self.cluster.coordinator.groups(PARTITION).values() {
            let Protocol::Classic(classic) = &group.protocol else {
                panic!("no member joined as a consumer")
            };
            let before = self.generations.insert(classic.id.to_string(), classic.generation);
            // A group that was deleted, or never written, begins again.
            assert!(
                classic.generation == 0 || before <= Some(classic.generation),
                "{} goes back",
                classic.id
            );
        }
        let (stats, groups) =
            (self.cluster.coordinator.stats(), self.cluster.coordinator.groups(PARTITION).len());
        assert_eq!(stats.groups, groups, "what metrics show is what is there");
    }

    /// Checks that with nothing in flight another coordinator, rebuilt from the log alone, is in the same state.
    fn check_rebuilt(&self) {
        let rebuilt = self.cluster.rebuilt();
        let (ours, theirs) = (self.cluster.coordinator.groups(PARTITION), rebuilt.groups(PARTITION));
        for (id, group) in ours {
            let other = theirs.get(id);
            assert_eq!(group.is_stored(), other.is_some(), "whether {id} exists");
            if let Some(other) = other {
                assert_eq!(group.offsets, other.offsets, "offsets of {id}");
                assert_eq!(open_offsets(group), open_offsets(other), "offsets of transactions of {id}");
                if self.written.get(&**id).is_none_or(|(_, failed)| !failed) {
                    check_same(group, other);
                }
            }
        }
        let missing: Vec<_> = theirs.keys().filter(|id| !ours.contains_key(*id)).collect();
        assert!(missing.is_empty(), "{missing:?} are in the log only");
    }

    /// Checks that with nothing in flight the offsets are those of the log.
    fn check_offsets(&self) {
        for (id, group) in self.cluster.coordinator.groups(PARTITION) {
            let durable = self.durable(id, self.cluster.log.len());
            let partitions = group.offsets.iter().flat_map(|(_, partitions)| partitions.iter());
            let ours: Vec<(i32, i64)> = partitions.map(|(at, offset)| (*at, offset.offset)).collect();
            let theirs: Vec<_> = durable.committed.iter().map(|(at, (offset, _))| (*at, *offset)).collect();
            assert_eq!(ours, theirs, "offsets of {id}");
            let open = open_offsets(group);
            let ours: Vec<_> = open.iter().map(|(at, (offset, _))| (*at, *offset)).collect();
            let theirs: Vec<_> = durable.open.iter().map(|(at, (offset, _))| (*at, *offset)).collect();
            assert_eq!(ours, theirs, "offsets of transactions of {id}");
        }
    }

    /// Checks the end without faults: all requests are answered, silent members are removed, transactions end, and nothing is left to
    /// write.
    fn check_end(&mut self) {
        self.wait(7_200_000, true);
        self.check_state();
        assert_eq!(self.cluster.unanswered(), 0, "{:?}", self.asked);
        assert_eq!(self.cluster.coordinator.stats().members, 0);
        self.check_offsets();
        self.check_rebuilt();
        for producer in 0..PRODUCERS {
            self.end(producer, producer != 0);
        }
        self.wait(1, true);
        self.check_state();
        assert_eq!(self.cluster.coordinator.stats().pending_offsets, 0);
        self.check_offsets();
        self.check_rebuilt();
        self.cluster.coordinator.unload(self.cluster.now, PARTITION);
        let coordinator: &GroupCoordinator = &self.cluster.coordinator;
        assert_eq!(
            (coordinator.stats(), coordinator.deadline_count(), coordinator.topic_count()),
            (Default::default(), 0, 0)
        );
    }
}

impl Durable {
    /// Applies an entry of the log, as Kafka defines its meaning (KIP-98).
    fn take(&mut self, group: &str, place: usize, entry: &Logged) {
        if let Logged::End(end) = entry {
            return self.end(*end);
        }
        match offset_of(entry, group) {
            Some((partition, Some((offset, Some(producer))))) => {
                self.open.insert((partition, producer.id.get()), (offset, place));
            }
            Some((partition, Some((offset, None)))) => {
                self.committed.insert(partition, (offset, place));
            }
            Some((partition, None)) => {
                self.committed.remove(&partition);
                self.open.retain(|(at, _), _| *at != partition);
            }
            None => {}
        }
    }

    /// Ends a transaction. Of two commits the one with the later record counts, whenever its transaction ends.
    fn end(&mut self, end: TransactionEnd) {
        let all = std::mem::take(&mut self.open).into_iter();
        let (ended, open): (BTreeMap<_, _>, _) = all.partition(|((_, id), _)| *id == end.producer.id.get());
        self.open = open;
        for ((partition, _), (offset, place)) in ended {
            let before = self.committed.get(&partition);
            if end.committed && before.is_none_or(|(_, before)| *before < place) {
                self.committed.insert(partition, (offset, place));
            }
        }
    }

    /// The expected answer to a fetch of all offsets.
    fn fetched(&self, stable: bool) -> Fetched {
        let shown = self.committed.iter().map(|(partition, (offset, _))| {
            let is_open = self.open.keys().any(|(at, _)| at == partition);
            let unstable = stable && is_open;
            (*partition, if unstable { Err(ErrorCode::UNSTABLE_OFFSET_COMMIT) } else { Ok(*offset) })
        });
        shown.collect()
    }
}

/// A committed offset, and the producer of its transaction.
type Committed = (i64, Option<Producer>);

/// The offset of a group that an entry changes: its partition, and its new value, unless it is removed.
fn offset_of(entry: &Logged, group: &str) -> Option<(i32, Option<Committed>)> {
    let Logged::Record(record, producer) = entry else { return None };
    match records::decode(&record.key, record.value.as_deref()).expect("our own record") {
        Record::Offset { key, value } if key.group == group => {
            Some((key.partition, value.map(|value| (value.offset, *producer))))
        }
        _ => None,
    }
}

/// The offsets of open transactions by partition and producer, and true if a later commit has taken effect.
fn open_offsets(group: &Group) -> BTreeMap<(i32, i64), (i64, bool)> {
    let partitions = group.open_offsets.partitions().flat_map(|(topic, at)| {
        let open = group.open_offsets.of(topic, at).iter();
        open.map(move |open| ((at, open.producer_id.get()), (open.offset.offset, open.overtaken)))
    });
    partitions.collect()
}

/// Groups whose own record is among these.
fn own_records(entries: &[Logged]) -> Vec<String> {
    let own = entries.iter().filter_map(Logged::record).filter_map(|record| {
        match records::decode(&record.key, record.value.as_deref()).expect("our own record") {
            Record::Group { key, .. } => Some(key.group.to_string()),
            _ => None,
        }
    });
    own.collect()
}

/// Compares a group with a loaded one, as far as the state of the first is in the log.
fn check_same(group: &Group, loaded: &Group) {
    let (Protocol::Classic(group), Protocol::Classic(loaded)) = (&group.protocol, &loaded.protocol) else {
        panic!("no member joined as a consumer")
    };
    match group.state {
        State::Stable => {
            // The record was written before the group became stable, so its time is another.
            let image = |group: &ClassicGroup| {
                let mut record = records::group_metadata(group, |member| member.assignment.clone());
                let value = record.value.take().expect("not a tombstone");
                let (mut value, _): (
                    mainstem_wire::messages::group_metadata_value::GroupMetadataValue<'_>,
                    _,
                ) = mainstem_wire::coordinator::decode_with_version(&value).expect("our own record");
                value.current_state_timestamp = 0;
                format!("{value:?}")
            };
            assert_eq!(image(group), image(loaded));
            // Static members that do not rejoin stay beyond the limit, and a coordinator that loads such a group lets all of them join
            // again, as Kafka's does (KIP-389).
            let is_over_capacity =
                usize::try_from(config().group_max_size).is_ok_and(|max| loaded.members.len() > max);
            let expected = if is_over_capacity { State::PreparingRebalance } else { State::Stable };
            assert_eq!(loaded.state, expected);
        }
        State::Empty if group.stored => {
            assert_eq!((loaded.state, loaded.generation), (State::Empty, group.generation), "{}", group.id);
            assert_eq!(loaded.protocol_type, group.protocol_type);
            assert_eq!(loaded.state_timestamp_ms, group.state_timestamp_ms);
        }
        _ => assert!(loaded.generation <= group.generation, "{} is ahead of its record", group.id),
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: mainstem_testkit::cases(3_000), max_shrink_iters: 3_000, ..ProptestConfig::default() })]

    #[test]
    fn answers_keep_their_promises_whatever_happens(ops in vec(op(), 1..120)) {
        play(&ops);
    }

    #[test]
    fn answers_keep_their_promises_with_little_memory(kib in 1..10_usize, ops in vec(op(), 1..60)) {
        play_with(GroupConfig { memory_bytes_max: kib << 10, ..config() }, &ops);
    }

    #[test]
    fn transactions_end_as_the_log_says(ops in vec(op_of_transactions(), 1..80)) {
        play(&ops);
    }

    #[test]
    fn static_members_come_back_while_appends_fail(ops in vec(op_of_static_members(), 1..16)) {
        let both = [0, 1].map(|instance| static_join(instance, 0));
        let stable = [Op::Wait { ms: 6_500 }, Op::Stabilise { group: 0 }];
        play(&[&both[..], &stable, &ops].concat());
    }

    #[test]
    fn any_records_can_be_loaded(data in vec(any::<u8>(), 0..300)) {
        fuzz::group_records(&data);
    }

    #[test]
    fn records_with_a_fault_can_be_loaded(seed in 0..5_usize, at in any::<usize>(), byte in any::<u8>()) {
        let mut data = corpus().swap_remove(seed);
        let at = at % data.len();
        data[at] = byte;
        fuzz::group_records(&data);
    }
}

/// Operations on the offsets of groups without members.
fn op_of_transactions() -> impl Strategy<Value = Op> {
    let commit = (0..2_u8, 0..3_i32);
    prop_oneof![
        6 => txn_commit(),
        4 => end(),
        3 => commit.prop_map(|(group, partition)| Op::Commit { group, member: None, partition, expires: false }),
        2 => (0..2_u8, any::<bool>()).prop_map(|(group, stable)| Op::Fetch { group, stable }),
        10 => (any::<usize>(), proptest::bool::weighted(0.1))
            .prop_map(|(append, error)| Op::Finish { append, error }),
        1 => (0..2_u8).prop_map(|group| Op::Delete { group }),
        1 => Just(Op::TopicDeleted),
        1 => prop_oneof![Just(1_000), Just(700_000), Just(4_000_000)].prop_map(|ms| Op::Wait { ms }),
        1 => Just(Op::Reload),
    ]
}

/// Operations of a rolling restart of static members.
fn op_of_static_members() -> impl Strategy<Value = Op> {
    prop_oneof![
        3 => (0..2_u8, 0..3_u8).prop_map(|(instance, protocols)| static_join(instance, protocols)),
        2 => (any::<usize>(), any::<bool>()).prop_map(|(append, error)| Op::Finish { append, error }),
    ]
}

fn static_join(instance: u8, protocols: u8) -> Op {
    Op::Join { group: 0, version: 9, instance: Some(instance), protocols }
}

/// Plays all steps, lets appends in flight succeed, and lets time pass.
fn play(ops: &[Op]) {
    play_with(config(), ops);
}

fn play_with(config: GroupConfig, ops: &[Op]) {
    let mut world = World::new(config);
    for op in ops {
        world.run(op);
    }
    while world.cluster.unfinished().next().is_some() {
        world.finish(0, false);
        world.settle();
    }
    world.check_offsets();
    world.check_rebuilt();
    world.check_end();
}

/// The checked-in inputs of the fuzz body.
fn corpus() -> Vec<Vec<u8>> {
    let dir = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus/group_records");
    let mut paths: Vec<_> =
        std::fs::read_dir(dir).expect("the corpus").map(|entry| entry.expect("a file").path()).collect();
    paths.sort();
    paths.iter().map(|path| std::fs::read(path).expect("a file")).collect()
}

#[test]
fn the_corpus_can_be_loaded() {
    let corpus = corpus();
    assert!(corpus.len() >= 5);
    for data in corpus {
        fuzz::group_records(&data);
    }
}
