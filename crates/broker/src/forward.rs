//! Requests that only the metadata leader can serve, forwarded as they came: with their principal, listener and
//! client, and authorised there. A request that this node would deny altogether is denied here. This node answers
//! once it knows the result itself.

use std::collections::BTreeSet;
use std::sync::Arc;

use mainstem_wire::frame::request_decoder;
use mainstem_wire::messages::alter_configs_request::AlterConfigsRequest;
use mainstem_wire::messages::create_partitions_request::CreatePartitionsRequest;
use mainstem_wire::messages::create_topics_request::CreateTopicsRequest;
use mainstem_wire::messages::delete_topics_request::DeleteTopicsRequest;
use mainstem_wire::messages::incremental_alter_configs_request::IncrementalAlterConfigsRequest;
use mainstem_wire::{ApiKey, DecodeError, Decoder, Message};

use crate::background::Blocking;
use crate::broker::Broker;
use crate::resources::{BROKER_LOGGER, authorized_as, may_be_altered, refuse_before_handing_on};
use mainstem_net::handled::Handled;
use mainstem_net::output::ResponseBuffer;
use mainstem_node::cluster::Cluster;
use mainstem_node::cluster::calls::Who;
use mainstem_requests::context::{Denial, Operation, RequestContext, Resource, permits};

/// Returns true if only the metadata leader serves an API.
pub(crate) fn is_forwarded(api: ApiKey) -> bool {
    matches!(
        api,
        ApiKey::CreateTopics
            | ApiKey::DeleteTopics
            | ApiKey::CreatePartitions
            | ApiKey::AlterConfigs
            | ApiKey::IncrementalAlterConfigs
            | ApiKey::AlterClientQuotas
            | ApiKey::CreateAcls
            | ApiKey::DeleteAcls
            | ApiKey::AlterUserScramCredentials
            | ApiKey::UpdateFeatures
            | ApiKey::UnregisterBroker
            | ApiKey::AlterPartitionReassignments
            | ApiKey::DescribeQuorum
    )
}

/// Serves a request here if this node decides, or forwards it to the metadata leader. `body` is the part that `decoder` has left.
///
/// # Errors
/// When the body is malformed.
pub(crate) fn serve(
    broker: &Arc<Broker>,
    cluster: &Cluster,
    context: &RequestContext,
    decoder: &mut Decoder<'_>,
    out: &mut ResponseBuffer,
    serve: Blocking,
) -> Result<Handled, DecodeError> {
    if is_of_this_node(context, decoder) || is_denied(broker, context, decoder) {
        return serve(broker, context, decoder, out);
    }
    // If this node decides, it checks its listeners as well.
    if !broker.controller.decides()
        && let Some(refused) = refuse_unusable(broker, context, decoder, out)?
    {
        return Ok(refused);
    }
    let who = Who { denied: denied_here(broker, context, decoder), ..Who::of(&broker.local, context) };
    match cluster.hand_on(&who, decoder.rest()) {
        Some(response) => {
            out.bytes.extend_from_slice(&response);
            if context.api == ApiKey::IncrementalAlterConfigs {
                // The same as if this node decides.
                broker.security.read_stores_again();
            }
            Ok(Handled::Answered)
        }
        // This node decides by now, or the answer has the error.
        None => serve(broker, context, decoder, out),
    }
}

/// Refuses a request with settings that a listener of this node could not use; none if it could. Clients send the
/// settings of a node to that node.
fn refuse_unusable(
    broker: &Broker,
    context: &RequestContext,
    decoder: &Decoder<'_>,
    out: &mut ResponseBuffer,
) -> Result<Option<Handled>, DecodeError> {
    let of = (broker, context);
    match context.api {
        ApiKey::AlterConfigs => refuse_before_handing_on::<AlterConfigsRequest<'_>>(of, decoder, out),
        ApiKey::IncrementalAlterConfigs => {
            refuse_before_handing_on::<IncrementalAlterConfigsRequest<'_>>(of, decoder, out)
        }
        _ => Ok(None),
    }
}

/// The resources of a request that this node's rules deny. The metadata leader, which may know other rules by now,
/// denies them as well, and answers for each part. A topic with an id that this node does not know has no name to
/// check.
fn denied_here(broker: &Broker, context: &RequestContext, decoder: &Decoder<'_>) -> BTreeSet<Denial> {
    let mut denied = BTreeSet::new();
    if context.connection.authorization.is_none() {
        return denied;
    }
    let mut judge = |operation, resource: Resource<'_>| {
        if !permits(context, operation, resource) {
            denied.insert(Denial::of(operation, resource));
        }
    };
    let (mut decoder, version) = (decoder.clone(), context.version);
    match context.api {
        ApiKey::CreateTopics => {
            let Ok(request) = CreateTopicsRequest::decode(&mut decoder, version) else { return denied };
            judge(Operation::Create, Resource::Cluster);
            for topic in &request.topics {
                judge(Operation::Create, Resource::Topic(&topic.name));
                judge(Operation::DescribeConfigs, Resource::Topic(&topic.name));
            }
        }
        ApiKey::DeleteTopics => {
            let Ok(request) = DeleteTopicsRequest::decode(&mut decoder, version) else { return denied };
            judge(Operation::Delete, Resource::Cluster);
            let image = broker.controller.image();
            let by_id = request.topics.iter().filter_map(|topic| image.topic_by_id(topic.topic_id));
            let names = by_id.map(|topic| topic.name.as_str());
            let names = names.chain(request.topics.iter().filter_map(|topic| topic.name.as_deref()));
            for name in names.chain(request.topic_names.iter().map(|name| &**name)) {
                judge(Operation::Delete, Resource::Topic(name));
                judge(Operation::Describe, Resource::Topic(name));
            }
        }
        ApiKey::CreatePartitions => {
            let Ok(request) = CreatePartitionsRequest::decode(&mut decoder, version) else { return denied };
            request.topics.iter().for_each(|topic| judge(Operation::Alter, Resource::Topic(&topic.name)));
        }
        ApiKey::AlterConfigs => {
            let Ok(request) = AlterConfigsRequest::decode(&mut decoder, version) else { return denied };
            let named = request.resources.iter().map(|one| (one.resource_type, &*one.resource_name));
            let named = named.filter_map(|one| authorized_as(broker, context, one).ok());
            named.for_each(|resource| judge(Operation::AlterConfigs, resource));
        }
        ApiKey::IncrementalAlterConfigs => {
            let request = IncrementalAlterConfigsRequest::decode(&mut decoder, version);
            let Ok(request) = request else { return denied };
            let named = request.resources.iter().map(|one| (one.resource_type, &*one.resource_name));
            let named = named.filter_map(|one| authorized_as(broker, context, one).ok());
            named.for_each(|resource| judge(Operation::AlterConfigs, resource));
        }
        // A request about the cluster is denied altogether, or not.
        _ => {}
    }
    denied
}

/// Returns true if this node's rules deny all of a request.
fn is_denied(broker: &Broker, context: &RequestContext, decoder: &Decoder<'_>) -> bool {
    let version = context.version;
    let may = |operation, resource: Resource<'_>| permits(context, operation, resource);
    let may_on_cluster = |operation| may(operation, Resource::Cluster);
    // A malformed request is refused where it is served.
    match context.api {
        ApiKey::AlterClientQuotas => !may_on_cluster(Operation::AlterConfigs),
        ApiKey::DescribeQuorum => !may_on_cluster(Operation::Describe),
        ApiKey::CreateAcls
        | ApiKey::DeleteAcls
        | ApiKey::AlterUserScramCredentials
        | ApiKey::UpdateFeatures
        | ApiKey::UnregisterBroker
        | ApiKey::AlterPartitionReassignments => !may_on_cluster(Operation::Alter),
        ApiKey::CreateTopics if !may_on_cluster(Operation::Create) => {
            all::<CreateTopicsRequest<'_>>(decoder, version, |request| {
                let names = request.topics.iter().map(|topic| &*topic.name);
                none(names, |name| may(Operation::Create, Resource::Topic(name)))
            })
        }
        ApiKey::DeleteTopics if !may_on_cluster(Operation::Delete) => {
            all::<DeleteTopicsRequest<'_>>(decoder, version, |request| {
                let by_name = request.topics.iter().map(|topic| topic.name.as_deref());
                let names = by_name.chain(request.topic_names.iter().map(|name| Some(&**name)));
                // A client that may describe a topic learns from the leader that it does not exist.
                none(names, |name| {
                    name.is_none_or(|name| {
                        may(Operation::Delete, Resource::Topic(name))
                            || may(Operation::Describe, Resource::Topic(name))
                    })
                })
            })
        }
        ApiKey::CreatePartitions => all::<CreatePartitionsRequest<'_>>(decoder, version, |request| {
            let names = request.topics.iter().map(|topic| &*topic.name);
            none(names, |name| may(Operation::Alter, Resource::Topic(name)))
        }),
        ApiKey::AlterConfigs => all::<AlterConfigsRequest<'_>>(decoder, version, |request| {
            let named = request.resources.iter().map(|one| (one.resource_type, &*one.resource_name));
            none(named, |resource| may_be_altered(broker, context, resource))
        }),
        ApiKey::IncrementalAlterConfigs => {
            all::<IncrementalAlterConfigsRequest<'_>>(decoder, version, |request| {
                let named = request.resources.iter().map(|one| (one.resource_type, &*one.resource_name));
                none(named, |resource| may_be_altered(broker, context, resource))
            })
        }
        _ => false,
    }
}

/// Returns the result of `is_denied` for a decoded copy of a request; false if it is malformed.
fn all<'a, M: Message<'a>>(decoder: &Decoder<'a>, version: i16, is_denied: impl FnOnce(M) -> bool) -> bool {
    M::decode(&mut decoder.clone(), version).is_ok_and(is_denied)
}

/// Returns true if there are items, and none of them is allowed.
fn none<T>(named: impl Iterator<Item = T>, is_allowed: impl FnMut(T) -> bool) -> bool {
    let mut named = named.peekable();
    named.peek().is_some() && !named.any(is_allowed)
}

/// Returns true for levels of loggers. They are not metadata, so that this node alters them itself.
fn is_of_this_node(context: &RequestContext, decoder: &Decoder<'_>) -> bool {
    if context.api != ApiKey::IncrementalAlterConfigs {
        return false;
    }
    let request = IncrementalAlterConfigsRequest::decode(&mut decoder.clone(), context.version);
    request
        .is_ok_and(|request| request.resources.iter().all(|resource| resource.resource_type == BROKER_LOGGER))
}

/// Serves a request that another node has forwarded, if this one decides. `in_background` is the table of APIs that can be served.
pub(crate) fn serve_here(
    broker: &Arc<Broker>,
    in_background: fn(ApiKey) -> Option<Blocking>,
    who: &Who,
    body: &[u8],
) -> Option<Vec<u8>> {
    let context = who.context(&broker.local).ok()?;
    if !broker.controller.decides() || !is_forwarded(context.api) {
        return None;
    }
    let serve = in_background(context.api)?;
    let mut out = ResponseBuffer::default();
    match serve(broker, &context, &mut request_decoder(body), &mut out) {
        Ok(Handled::Answered) if out.unencodable.is_none() => Some(std::mem::take(&mut out.bytes)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use mainstem_wire::messages::create_topics_request::CreatableTopic;
    use mainstem_wire::messages::create_topics_response::CreateTopicsResponse;
    use mainstem_wire::{Encoder, ErrorCode};

    use super::*;
    use crate::EmbeddedBroker;

    const VERSION: i16 = 5;

    fn create(names: &[&str]) -> Vec<u8> {
        let topics = names.iter().map(|name| CreatableTopic {
            name: (*name).into(),
            num_partitions: 1,
            replication_factor: 1,
            ..CreatableTopic::default()
        });
        let topics = topics.collect();
        let request = CreateTopicsRequest { topics, timeout_ms: 1_000, ..Default::default() };
        let mut bytes = Vec::new();
        request.encode(&mut Encoder::new(&mut bytes), VERSION).expect("it can be encoded");
        bytes
    }

    fn who(denied: BTreeSet<Denial>) -> Who {
        Who {
            node: 7,
            principal: "User:a".into(),
            listener: "PLAINTEXT".into(),
            peer: "127.0.0.1:5".into(),
            client_id: None,
            api: ApiKey::CreateTopics as i16,
            version: VERSION,
            correlation_id: 3,
            denied,
        }
    }

    /// The metadata leader's answer for each topic, if its own rules allow all.
    fn served(denied: BTreeSet<Denial>, names: &[&str]) -> Vec<(String, ErrorCode)> {
        let embedded = EmbeddedBroker::start(&[]);
        let response = serve_here(embedded.broker(), crate::api::in_background, &who(denied), &create(names))
            .expect("it was served");
        // Length, correlation id, tagged fields of the header.
        let mut decoder = Decoder::new(&response[9..]);
        let response = CreateTopicsResponse::decode(&mut decoder, VERSION).expect("a response");
        let topics = response.topics.iter();
        topics.map(|topic| (topic.name.to_string(), ErrorCode(topic.error_code))).collect()
    }

    #[test]
    fn the_asked_node_judges_each_entry() {
        let embedded = EmbeddedBroker::start(&[
            ("authorizer.class.name", "org.apache.kafka.metadata.authorizer.StandardAuthorizer"),
            ("super.users", "User:admin"),
        ]);
        let body = create(&["one", "two"]);
        let judged = |principal: &str| {
            let who = Who { principal: principal.into(), ..who(BTreeSet::new()) };
            let context = who.context(&embedded.broker().local).expect("it makes sense");
            denied_here(embedded.broker(), &context, &request_decoder(&body))
        };
        let of = |operation, resource: Resource<'_>| Denial::of(operation, resource);
        let expected: BTreeSet<_> = [
            of(Operation::Create, Resource::Cluster),
            of(Operation::Create, Resource::Topic("one")),
            of(Operation::Create, Resource::Topic("two")),
            of(Operation::DescribeConfigs, Resource::Topic("one")),
            of(Operation::DescribeConfigs, Resource::Topic("two")),
        ]
        .into();
        assert_eq!(judged("User:a"), expected);
        assert_eq!(judged("User:admin"), BTreeSet::new());
    }

    #[test]
    fn what_the_asked_node_denies_the_leader_does_not_do() {
        let names = ["allowed", "denied"];
        let of = |operation, resource: Resource<'_>| Denial::of(operation, resource);
        let denied = [
            of(Operation::Create, Resource::Cluster),
            of(Operation::Create, Resource::Topic("denied")),
            // Denials of another operation, and of another type of resource with that name.
            of(Operation::Delete, Resource::Topic("allowed")),
            of(Operation::Create, Resource::Group("allowed")),
        ];
        let denied_topic = ErrorCode::TOPIC_AUTHORIZATION_FAILED;
        let mut served_in_part = served(denied.clone().into(), &names);
        served_in_part.sort();
        assert_eq!(
            served_in_part,
            [("allowed".to_owned(), ErrorCode::NONE), ("denied".to_owned(), denied_topic)]
        );
        // A principal that may create on the cluster may create every topic.
        let on_cluster = denied[1..].iter().cloned().collect();
        assert!(served(on_cluster, &names).iter().all(|(_, error)| *error == ErrorCode::NONE));
    }
}
