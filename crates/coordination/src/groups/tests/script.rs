//! The commands of a transcript: one a line, `verb LABEL word...`, read into requests.
//!
//! Member ids are written short: `c-1` is the id that begins with `c` and ends in the UUID made of the first random
//! number that was drawn.

use std::collections::HashMap;

use mainstem_records::{ProducerEpoch, ProducerId};
use mainstem_wire::coordinator::{decode_with_version, encode_with_version};
use mainstem_wire::messages::consumer_group_heartbeat_request::{
    ConsumerGroupHeartbeatRequest, TopicPartitions,
};
use mainstem_wire::messages::consumer_protocol_assignment::{ConsumerProtocolAssignment, TopicPartition};
use mainstem_wire::messages::join_group_request::{JoinGroupRequest, JoinGroupRequestProtocol};
use mainstem_wire::messages::leave_group_request::{LeaveGroupRequest, MemberIdentity};
use mainstem_wire::messages::offset_commit_request::{
    OffsetCommitRequest, OffsetCommitRequestPartition, OffsetCommitRequestTopic,
};
use mainstem_wire::messages::offset_delete_request::{
    OffsetDeleteRequest, OffsetDeleteRequestPartition, OffsetDeleteRequestTopic,
};
use mainstem_wire::messages::offset_fetch_request::{OffsetFetchRequestGroup, OffsetFetchRequestTopics};
use mainstem_wire::messages::sync_group_request::{SyncGroupRequest, SyncGroupRequestAssignment};
use mainstem_wire::messages::txn_offset_commit_request::{
    TxnOffsetCommitRequest, TxnOffsetCommitRequestPartition, TxnOffsetCommitRequestTopic,
};
use mainstem_wire::{ErrorCode, Uuid};

use crate::groups::{Producer, TransactionEnd};

/// The words of a command: `key=value` pairs, and the rest in order.
pub(super) struct Words<'s> {
    pub(super) verb: &'s str,
    pub(super) label: &'s str,
    pairs: HashMap<&'s str, &'s str>,
    pub(super) rest: Vec<&'s str>,
}

impl<'s> Words<'s> {
    pub(super) fn parse(line: &'s str) -> Self {
        let mut words = line.split_whitespace();
        let verb = words.next().expect("a command has a verb");
        let label = words.next().unwrap_or_default();
        let (mut pairs, mut rest) = (HashMap::new(), Vec::new());
        for word in words {
            match word.split_once('=') {
                Some((key, value)) if key.bytes().all(|byte| byte.is_ascii_lowercase()) => {
                    pairs.insert(key, value);
                }
                _ => rest.push(word),
            }
        }
        Self { verb, label, pairs, rest }
    }

    pub(super) fn text(&self, key: &str, default: &'s str) -> &'s str {
        self.pairs.get(key).copied().unwrap_or(default)
    }

    pub(super) fn option(&self, key: &str) -> Option<&'s str> {
        self.pairs.get(key).copied()
    }

    pub(super) fn number<N: std::str::FromStr>(&self, key: &str, default: N) -> N {
        self.option(key).map_or(default, |text| text.parse().ok().expect("a number"))
    }

    pub(super) fn group(&self) -> &'s str {
        self.text("g", "g")
    }

    pub(super) fn id(&self) -> String {
        long(self.text("id", ""))
    }

    fn list(&self, key: &str) -> impl Iterator<Item = &'s str> {
        self.option(key).into_iter().flat_map(|list| list.split(','))
    }
}

/// The UUID of the n-th JoinGroup.
pub(super) fn uuid(n: u8) -> String {
    let (byte, six, eight) = (format!("{n:02x}"), n & 0x0f | 0x40, n & 0x3f | 0x80);
    let plain = |times: usize| byte.repeat(times);
    format!("{}-{}-{six:02x}{byte}-{eight:02x}{byte}-{}", plain(4), plain(2), plain(6))
}

/// `c-1` with its whole UUID.
pub(super) fn long(id: &str) -> String {
    match id.rsplit_once('-') {
        Some((name, n)) if n.parse::<u8>().is_ok() => {
            format!("{name}-{}", uuid(n.parse().expect("just tried")))
        }
        _ => id.to_owned(),
    }
}

/// Replaces every UUID of a text by its short form.
pub(super) fn short(text: &str) -> String {
    (1..=64).fold(text.to_owned(), |text, n| text.replace(&uuid(n), &n.to_string()))
}

/// `id=c-1 session=10000 rebalance=60000 type=consumer protocols=range:meta,sticky instance=i`
pub(super) fn join(words: &Words<'_>) -> JoinGroupRequest<'static> {
    let protocol = |word: &str| {
        let (name, metadata) = word.split_once(':').unwrap_or((word, "m"));
        JoinGroupRequestProtocol {
            name: name.to_owned().into(),
            metadata: subscription(metadata).into(),
            ..Default::default()
        }
    };
    let mut protocols: Vec<_> = words.list("protocols").map(protocol).collect();
    if words.option("protocols").is_none() {
        protocols.push(protocol("range"));
    }
    JoinGroupRequest {
        group_id: words.group().to_owned().into(),
        session_timeout_ms: words.number("session", 10_000),
        rebalance_timeout_ms: words.number("rebalance", 60_000),
        member_id: words.id().into(),
        group_instance_id: words.option("instance").map(|id| id.to_owned().into()),
        protocol_type: words.text("type", "consumer").to_owned().into(),
        protocols,
        ..Default::default()
    }
}

/// A subscription to the topics of `a+b`, or just the word if it is no list of topics (`m` means no topics).
fn subscription(word: &str) -> Vec<u8> {
    if word == "junk" {
        return word.into();
    }
    let topics: Vec<&str> = if word == "m" { Vec::new() } else { word.split('+').collect() };
    let mut bytes = vec![0, 0, 0, 0, 0, topics.len() as u8];
    for topic in topics {
        bytes.extend([0, topic.len() as u8]);
        bytes.extend(topic.bytes());
    }
    bytes.extend([0xff; 4]);
    bytes
}

/// `id=c-1 gen=1 assign=c-1:A,c-2:B instance=i type=t protocol=p`
pub(super) fn sync(words: &Words<'_>) -> SyncGroupRequest<'static> {
    let assignment = |word: &str| {
        let (id, assignment) = word.split_once(':').expect("id:assignment");
        SyncGroupRequestAssignment {
            member_id: long(id).into(),
            assignment: assignment_bytes(assignment).into(),
            ..Default::default()
        }
    };
    SyncGroupRequest {
        group_id: words.group().to_owned().into(),
        generation_id: words.number("gen", 1),
        member_id: words.id().into(),
        group_instance_id: words.option("instance").map(|id| id.to_owned().into()),
        protocol_type: words.option("type").map(|name| name.to_owned().into()),
        protocol_name: words.option("protocol").map(|name| name.to_owned().into()),
        assignments: words.list("assign").map(assignment).collect(),
        ..Default::default()
    }
}

/// `t-0+t-1` as an assignment of the consumer protocol, any other word as its letters.
fn assignment_bytes(word: &str) -> Vec<u8> {
    let partition = |word: &str| {
        let (topic, index) = word.rsplit_once('-')?;
        Some((topic.to_owned(), index.parse::<i32>().ok()?))
    };
    let Some(partitions) = word.split('+').map(partition).collect::<Option<Vec<_>>>() else {
        return word.as_bytes().to_vec();
    };
    let topic =
        |(topic, index): (String, i32)| TopicPartition { topic: topic.into(), partitions: vec![index] };
    let assigned_partitions = partitions.into_iter().map(topic).collect();
    let assignment = ConsumerProtocolAssignment { assigned_partitions, ..Default::default() };
    encode_with_version(&assignment, 0).expect("names are short")
}

/// Decodes an assignment of [`assignment_bytes`].
pub(super) fn assignment_text(bytes: &[u8]) -> String {
    let decoded: Result<(ConsumerProtocolAssignment<'_>, _), _> = decode_with_version(bytes);
    let Ok((assignment, _)) = decoded else { return String::from_utf8_lossy(bytes).into_owned() };
    let partitions = assignment
        .assigned_partitions
        .iter()
        .flat_map(|topic| topic.partitions.iter().map(|index| format!("{}-{index}", topic.topic)));
    partitions.collect::<Vec<_>>().join("+")
}

/// `c-1 c-2/instance /instance`
pub(super) fn leave(words: &Words<'_>, api_version: i16) -> LeaveGroupRequest<'static> {
    let identity = |word: &&str| {
        let (id, instance) =
            word.split_once('/').map_or((*word, None), |(id, instance)| (id, Some(instance)));
        MemberIdentity {
            member_id: long(id).into(),
            group_instance_id: instance.map(|id| id.to_owned().into()),
            ..Default::default()
        }
    };
    let group_id = words.group().to_owned().into();
    if api_version < 3 {
        return LeaveGroupRequest { group_id, member_id: long(words.rest[0]).into(), ..Default::default() };
    }
    let members = words.rest.iter().map(identity).collect();
    LeaveGroupRequest { group_id, members, ..Default::default() }
}

/// `t-0` or `t-0=5` or `t-0=5:metadata`, where a metadata `xN` is N letters.
fn offset(word: &str) -> (&str, i32, i64, String) {
    let (at, value) = word.split_once('=').unwrap_or((word, "0"));
    let (topic, partition) = at.rsplit_once('-').expect("topic-partition");
    let (offset, metadata) = value.split_once(':').unwrap_or((value, ""));
    let metadata = match metadata.strip_prefix('x').and_then(|count| count.parse().ok()) {
        Some(count) => "x".repeat(count),
        None => metadata.to_owned(),
    };
    (topic, partition.parse().expect("a partition"), offset.parse().expect("an offset"), metadata)
}

/// `topicid=N` of a command.
fn topic_id(words: &Words<'_>) -> Uuid {
    Uuid([words.number("topicid", 0); 16])
}

/// `id=c-1 gen=1 instance=i retention=N topicid=N t-0=5 ...`
pub(super) fn commit(words: &Words<'_>) -> OffsetCommitRequest<'static> {
    let mut topics: Vec<OffsetCommitRequestTopic<'static>> = Vec::new();
    for word in &words.rest {
        let (topic, partition_index, committed_offset, metadata) = offset(word);
        let partition = OffsetCommitRequestPartition {
            partition_index,
            committed_offset,
            committed_leader_epoch: words.number("epoch", -1),
            committed_metadata: (!metadata.is_empty()).then(|| metadata.into()),
            ..Default::default()
        };
        match topics.iter_mut().find(|known| known.name == topic) {
            Some(known) => known.partitions.push(partition),
            None => topics.push(OffsetCommitRequestTopic {
                name: topic.to_owned().into(),
                topic_id: topic_id(words),
                partitions: vec![partition],
                ..Default::default()
            }),
        }
    }
    OffsetCommitRequest {
        group_id: words.group().to_owned().into(),
        generation_id_or_member_epoch: words.number("gen", -1),
        member_id: words.id().into(),
        group_instance_id: words.option("instance").map(|id| id.to_owned().into()),
        retention_time_ms: words.number("retention", -1),
        topics,
        ..Default::default()
    }
}

/// `pid=1 id=c-1 gen=1 instance=i t-0=5 ...`
pub(super) fn transactional_commit(words: &Words<'_>) -> TxnOffsetCommitRequest<'static> {
    let mut topics: Vec<TxnOffsetCommitRequestTopic<'static>> = Vec::new();
    for word in &words.rest {
        let (topic, partition_index, committed_offset, metadata) = offset(word);
        let partition = TxnOffsetCommitRequestPartition {
            partition_index,
            committed_offset,
            committed_metadata: (!metadata.is_empty()).then(|| metadata.into()),
            ..Default::default()
        };
        match topics.iter_mut().find(|known| known.name == topic) {
            Some(known) => known.partitions.push(partition),
            None => topics.push(TxnOffsetCommitRequestTopic {
                name: topic.to_owned().into(),
                partitions: vec![partition],
                ..Default::default()
            }),
        }
    }
    TxnOffsetCommitRequest {
        group_id: words.group().to_owned().into(),
        producer_id: words.number("pid", 1),
        producer_epoch: 0,
        generation_id: words.number("gen", -1),
        member_id: words.id().into(),
        group_instance_id: words.option("instance").map(|id| id.to_owned().into()),
        topics,
        ..Default::default()
    }
}

/// `1 commit`, `1 abort`: the end of the transaction of producer 1.
pub(super) fn end(words: &Words<'_>) -> TransactionEnd {
    let id = ProducerId::new(words.label.parse().expect("a producer id"));
    let producer = Producer { id, epoch: ProducerEpoch::ZERO };
    TransactionEnd { producer, committed: words.rest == ["commit"] }
}

/// `t-0 t-1`, or nothing for all; `stable` waits.
pub(super) fn fetch(words: &Words<'_>) -> OffsetFetchRequestGroup<'static> {
    let topics = words.rest.iter().filter(|word| **word != "stable").map(|word| {
        let (topic, partition, ..) = offset(word);
        OffsetFetchRequestTopics {
            name: topic.to_owned().into(),
            topic_id: topic_id(words),
            partition_indexes: vec![partition],
            ..Default::default()
        }
    });
    let topics: Vec<_> = topics.collect();
    OffsetFetchRequestGroup {
        group_id: words.group().to_owned().into(),
        member_id: words.option("id").map(|id| long(id).into()),
        member_epoch: words.number("gen", -1),
        topics: (!topics.is_empty()).then_some(topics),
        ..Default::default()
    }
}

/// `id=A epoch=0 topics=a+b regex=P owned=t-0,t-1 instance=i rack=r rebalance=MS assignor=range`. `full` sends all fields, as a join does
/// without it. With `unmatched` no pattern is matched before. `topics=none` and `owned=none` are empty lists.
pub(super) fn consumer_heartbeat(
    words: &Words<'_>,
    id_of: impl Fn(&str) -> Uuid,
) -> ConsumerGroupHeartbeatRequest<'static> {
    let epoch: i32 = words.number("epoch", 0);
    let full = epoch == 0 || words.rest.contains(&"full");
    let list = |key: &str, or: Option<&str>| {
        let text = words.option(key).map(str::to_owned).or_else(|| or.map(str::to_owned))?;
        Some(if text == "none" { Vec::new() } else { text.split(['+', ',']).map(str::to_owned).collect() })
    };
    let text = |key: &str| words.option(key).map(|text| text.to_owned().into());
    let partition = |word: &String| {
        let (topic, partition, ..) = offset(word);
        TopicPartitions { topic_id: id_of(topic), partitions: vec![partition], ..Default::default() }
    };
    let owned = list("owned", full.then_some("none"));
    let subscribes = full && words.option("regex").is_none() && !words.rest.contains(&"unsubscribed");
    ConsumerGroupHeartbeatRequest {
        group_id: words.group().to_owned().into(),
        member_id: words.id().into(),
        member_epoch: epoch,
        instance_id: text("instance"),
        rack_id: text("rack"),
        rebalance_timeout_ms: words.number("rebalance", if full { 60_000 } else { -1 }),
        subscribed_topic_names: list("topics", subscribes.then_some("t"))
            .map(|names| names.into_iter().map(Into::into).collect()),
        subscribed_topic_regex: text("regex"),
        server_assignor: text("assignor"),
        topic_partitions: owned.map(|owned| owned.iter().map(partition).collect()),
        ..Default::default()
    }
}

/// `t-0 t-1`
pub(super) fn delete_offsets(words: &Words<'_>) -> OffsetDeleteRequest<'static> {
    let topics = words.rest.iter().map(|word| {
        let (topic, partition_index, ..) = offset(word);
        OffsetDeleteRequestTopic {
            name: topic.to_owned().into(),
            partitions: vec![OffsetDeleteRequestPartition { partition_index }],
        }
    });
    OffsetDeleteRequest { group_id: words.group().to_owned().into(), topics: topics.collect() }
}

/// An error by its name.
pub(super) fn error(name: &str) -> ErrorCode {
    *ErrorCode::ALL.iter().find(|error| error.name() == name).expect("an error of Kafka's")
}
