//! OffsetFetch (9), v1-10: the committed offsets of groups.

use std::borrow::Cow;
use std::sync::Arc;

use mainstem_coordination::groups::offset_fetch::{
    Fetched, SEVERAL_GROUPS_SINCE, groups_of, owned, response,
};
use mainstem_coordination::groups::{Reply, Request};
use mainstem_wire::messages::offset_fetch_request::{
    OffsetFetchRequest, OffsetFetchRequestGroup, OffsetFetchRequestTopics,
};
use mainstem_wire::messages::offset_fetch_response::{
    OffsetFetchResponse, OffsetFetchResponseGroup, OffsetFetchResponsePartitions, OffsetFetchResponseTopics,
};
use mainstem_wire::{DecodeError, Decoder, ErrorCode};

use crate::background::serve_in_background;
use crate::broker::Broker;
use crate::respond::body;
use crate::respond::{ListElement, respond, respond_in_elements};
use crate::turns::Class;
use mainstem_coordinators::groups::{Asked, Groups};
use mainstem_coordinators::tailers::{self, TailerGroup};
use mainstem_net::answers::AnswerShare;
use mainstem_net::handled::Handled;
use mainstem_net::output::ResponseBuffer;
use mainstem_node::coordinators::origin;
use mainstem_requests::context::{Operation, RequestContext, Resource, authorize, permits};

/// Version from which topics are named by id.
const TOPIC_IDS_SINCE: i16 = 10;

pub(crate) fn serve(
    broker: &Arc<Broker>,
    context: RequestContext,
    decoder: &mut Decoder<'_>,
    out: &mut ResponseBuffer,
) -> Result<Handled, DecodeError> {
    let behind = decoder.clone();
    let request: OffsetFetchRequest<'_> = body(decoder, context.version)?;
    let require_stable = request.require_stable;
    let groups = groups_of(request, context.version);
    // A group may have any number of offsets.
    if groups.iter().any(|group| group.topics.is_none()) {
        return Ok(serve_in_background(broker, context, &behind, Class::Questions, answer_large));
    }
    let asked: Vec<_> =
        groups.into_iter().map(|group| ask(broker, &context, group, require_stable)).collect();
    if asked.iter().all(|group| matches!(group.asked, Asked::Now(_))) {
        let mut memory = broker.net.answers.begin();
        let groups = asked.into_iter().filter_map(|group| group.now(broker));
        let groups = groups.map(|group| within(&mut memory, group)).collect();
        return Ok(respond_with(&context, groups, memory, out));
    }
    let broker = broker.clone();
    let later = Box::pin(async move {
        let mut memory = broker.net.answers.begin();
        let mut groups = Vec::with_capacity(asked.len());
        for group in asked {
            groups.extend(group.later(&broker).await.map(|group| within(&mut memory, group)));
        }
        let mut out = ResponseBuffer::pooled();
        respond_with(&context, groups, memory, &mut out);
        Ok(out)
    });
    Ok(Handled::Later { response: later, holds: true })
}

/// Answers a request with a long answer in the background.
pub(crate) fn answer_large(
    broker: &Arc<Broker>,
    context: &RequestContext,
    decoder: &mut Decoder<'_>,
    out: &mut ResponseBuffer,
) -> Result<Handled, DecodeError> {
    let request: OffsetFetchRequest<'_> = body(decoder, context.version)?;
    let require_stable = request.require_stable;
    let mut memory = broker.net.answers.begin();
    let groups = groups_of(request, context.version).into_iter();
    let groups = groups.map(|group| ask(broker, context, group, require_stable));
    let groups = groups.filter_map(|group| group.wait(broker));
    let groups = groups.map(|group| within(&mut memory, group)).collect();
    Ok(respond_with(context, groups, memory, out))
}

/// Encodes the answers of groups, which take so much memory.
fn respond_with(
    context: &RequestContext,
    groups: Vec<OffsetFetchResponseGroup<'static>>,
    memory: AnswerShare,
    out: &mut ResponseBuffer,
) -> Handled {
    out.absorb(Some(memory));
    match context.version >= SEVERAL_GROUPS_SINCE {
        true => respond_in_elements(context, OffsetFetchResponse::default(), groups.into_iter(), out),
        false => respond(context, response(groups, context.version), out),
    }
}

impl ListElement for OffsetFetchResponseGroup<'static> {
    fn without_memory(self) -> Self {
        let error_code = ErrorCode::COORDINATOR_NOT_AVAILABLE.code();
        OffsetFetchResponseGroup { group_id: self.group_id, error_code, ..Default::default() }
    }
}

/// A group's answer in progress, and the topics that the coordinator was not asked about.
struct Group {
    asked: Asked,
    unknown: Vec<OffsetFetchResponseTopics<'static>>,
    /// The group's named tailers of attached queues, as far as they were asked for.
    tailers: Vec<TailerGroup>,
    context: RequestContext,
}

fn ask(
    broker: &Arc<Broker>,
    context: &RequestContext,
    mut group: OffsetFetchRequestGroup<'_>,
    require_stable: bool,
) -> Group {
    let context = context.clone();
    if let Err(error) = authorize(&context, Operation::Describe, Resource::Group(&group.group_id)) {
        let refused = Fetched::refused(owned(&group), error, context.version);
        let asked = Asked::Now(Reply::OffsetFetch(refused));
        return Group { asked, unknown: Vec::new(), tailers: Vec::new(), context };
    }
    let mut unknown = Vec::new();
    if let Some(topics) = &mut group.topics {
        topics.retain_mut(|topic| {
            let known = resolve(broker, &context, topic);
            unknown.extend(known.err().map(|error| refuse(topic, error)));
            known.is_ok()
        });
    }
    let mut tailers = tailers::find(&broker.store, &group.group_id);
    if let Some(topics) = &group.topics {
        tailers.retain(|tailer| topics.iter().any(|topic| *topic.name == **tailer.queue.topic()));
    }
    let lease = broker.groups.lease(&group.group_id);
    let group = owned(&group);
    let lease = lease
        .map(|lease| (lease, Fetched::refused(group.clone(), ErrorCode::NOT_COORDINATOR, context.version)));
    let mut asked = broker.groups.ask(&origin(&context), Request::OffsetFetch { group, require_stable });
    if let Some((lease, refused)) = lease {
        asked = Groups::confirm(lease, asked, Reply::OffsetFetch(refused));
    }
    Group { asked, unknown, tailers, context }
}

impl Group {
    fn now(self, broker: &Broker) -> Option<OffsetFetchResponseGroup<'static>> {
        match self.asked {
            Asked::Now(reply) => Some(merge(broker, reply, (self.unknown, self.tailers), &self.context)),
            Asked::Later(_) => None,
        }
    }

    /// Waits for the answer; none if the broker stops first.
    fn wait(self, broker: &Broker) -> Option<OffsetFetchResponseGroup<'static>> {
        let reply = self.asked.wait().ok()?;
        Some(merge(broker, reply, (self.unknown, self.tailers), &self.context))
    }

    async fn later(self, broker: &Broker) -> Option<OffsetFetchResponseGroup<'static>> {
        let reply = match self.asked {
            Asked::Now(reply) => reply,
            Asked::Later(receiver) => receiver.await.ok()?,
        };
        Some(merge(broker, reply, (self.unknown, self.tailers), &self.context))
    }
}

fn merge(
    broker: &Broker,
    reply: Reply,
    (unknown, tailers): (Vec<OffsetFetchResponseTopics<'static>>, Vec<TailerGroup>),
    context: &RequestContext,
) -> OffsetFetchResponseGroup<'static> {
    let Reply::OffsetFetch(fetched) = reply else {
        unreachable!("the coordinator answers in kind, not {reply:?}")
    };
    let mut group = fetched.response();
    if group.error_code == 0 || group.error_code == ErrorCode::GROUP_ID_NOT_FOUND.code() {
        tailers.iter().for_each(|tailer| put_tailer(&mut group, tailer));
    }
    group.topics.retain(|topic| permits(context, Operation::Describe, Resource::Topic(&topic.name)));
    if context.version >= TOPIC_IDS_SINCE {
        group.topics.retain_mut(|topic| has_id(broker, topic));
    }
    if group.error_code == 0 {
        group.topics.extend(unknown);
    }
    group
}

/// Replaces the coordinator's offset of a group by a tailer's position.
fn put_tailer(group: &mut OffsetFetchResponseGroup<'static>, tailer: &TailerGroup) {
    group.error_code = 0;
    let name = tailer.queue.topic();
    let topic = match group.topics.iter_mut().find(|topic| *topic.name == **name) {
        Some(topic) => topic,
        None => {
            group.topics.push(OffsetFetchResponseTopics {
                name: name.to_string().into(),
                topic_id: tailer.queue.topic_id(),
                ..Default::default()
            });
            group.topics.last_mut().expect("it was just put there")
        }
    };
    topic.partitions.retain(|partition| partition.partition_index != 0);
    topic.partitions.push(OffsetFetchResponsePartitions {
        partition_index: 0,
        committed_offset: tailer.tailer.position,
        committed_leader_epoch: -1,
        metadata: Some("".into()),
        ..Default::default()
    });
}

/// The group's answer if there is memory for it, otherwise one that makes the client ask again.
fn within(
    memory: &mut AnswerShare,
    group: OffsetFetchResponseGroup<'static>,
) -> OffsetFetchResponseGroup<'static> {
    let of_partition = |partition: &OffsetFetchResponsePartitions<'_>| {
        size_of_val(partition) + partition.metadata.as_ref().map_or(0, |metadata| metadata.len())
    };
    let topics = group.topics.iter().map(|topic| {
        size_of_val(topic) + topic.name.len() + topic.partitions.iter().map(of_partition).sum::<usize>()
    });
    if memory.take(topics.sum()) { group } else { group.without_memory() }
}

/// Adds the topic's id if the client asked for all topics. Returns false if the topic was deleted since and has none.
fn has_id(broker: &Broker, topic: &mut OffsetFetchResponseTopics<'_>) -> bool {
    if topic.topic_id.is_zero() {
        topic.topic_id = broker.store.topics.by_name(&topic.name).map(|known| known.id).unwrap_or_default();
    }
    !topic.topic_id.is_zero()
}

/// Adds the topic's name if the client gave its id, and authorizes Describe.
fn resolve(
    broker: &Broker,
    context: &RequestContext,
    topic: &mut OffsetFetchRequestTopics<'_>,
) -> Result<(), ErrorCode> {
    if context.version >= TOPIC_IDS_SINCE {
        let known = broker.store.topics.by_id(&topic.topic_id).ok_or(ErrorCode::UNKNOWN_TOPIC_ID)?;
        topic.name = Cow::Owned(known.name.to_string());
    }
    authorize(context, Operation::Describe, Resource::Topic(&topic.name))
}

fn refuse(topic: &OffsetFetchRequestTopics<'_>, error: ErrorCode) -> OffsetFetchResponseTopics<'static> {
    let partitions = topic.partition_indexes.iter().map(|index| OffsetFetchResponsePartitions {
        partition_index: *index,
        committed_offset: -1,
        committed_leader_epoch: -1,
        metadata: Some("".into()),
        error_code: error.code(),
        ..Default::default()
    });
    OffsetFetchResponseTopics {
        name: topic.name.clone().into_owned().into(),
        topic_id: topic.topic_id,
        partitions: partitions.collect(),
        ..Default::default()
    }
}
