//! Resources with a configuration, as requests name them.

use mainstem_config::alter::Change;
use mainstem_controller::ResourceKind;
use mainstem_wire::{DecodeError, Decoder, ErrorCode, Request};

use crate::broker::Broker;
use crate::respond::body;
use crate::respond::{Throttled, respond};
use mainstem_net::handled::Handled;
use mainstem_net::output::ResponseBuffer;
use mainstem_requests::context::{Operation, RequestContext, Resource, authorize, permits};
use mainstem_requests::refused::Refused;

/// `ConfigResource.Type` of the protocol.
const TOPIC: i8 = ResourceKind::Topic as i8;
pub(crate) const BROKER: i8 = ResourceKind::Broker as i8;
/// Levels of a node's loggers (KIP-412), which are not in the metadata.
pub(crate) const BROKER_LOGGER: i8 = 8;
const CLIENT_METRICS: i8 = ResourceKind::ClientMetrics as i8;
const GROUP: i8 = ResourceKind::Group as i8;

/// A resource whose configuration can be described and altered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ConfigTarget<'a> {
    /// A topic.
    Topic(&'a str),
    /// This node.
    Broker,
    /// All nodes.
    ClusterDefault,
    /// The levels of this node's loggers.
    Loggers,
    /// A group, which need not exist.
    Group(&'a str),
    /// A subscription to client metrics.
    ClientMetrics(&'a str),
}

impl<'a> ConfigTarget<'a> {
    /// Reads a resource's type and name.
    ///
    /// # Errors
    /// `INVALID_REQUEST` for a type that has no configuration here, or another node's.
    pub(crate) fn parse(kind: i8, name: &'a str, node_id: i32) -> Result<Self, Refused> {
        let invalid = |message| Err(Refused { error: ErrorCode::INVALID_REQUEST, message });
        match kind {
            TOPIC => Ok(ConfigTarget::Topic(name)),
            BROKER if name.is_empty() => Ok(ConfigTarget::ClusterDefault),
            BROKER if name.parse() == Ok(node_id) => Ok(ConfigTarget::Broker),
            BROKER | BROKER_LOGGER if name.parse::<i32>().is_err() => {
                invalid(format!("Node id must be an integer, but it is: {name}"))
            }
            BROKER_LOGGER if name.parse() == Ok(node_id) => Ok(ConfigTarget::Loggers),
            BROKER_LOGGER => invalid(format!("Unexpected node id. Expected {node_id}, but received {name}")),
            BROKER => invalid(format!("Unexpected broker id, expected {node_id}, but received {name}")),
            GROUP if name.is_empty() => invalid("Default group resources are not allowed.".to_owned()),
            GROUP => Ok(ConfigTarget::Group(name)),
            CLIENT_METRICS if name.is_empty() => {
                invalid("Client metrics subscription name must not be empty".to_owned())
            }
            CLIENT_METRICS => Ok(ConfigTarget::ClientMetrics(name)),
            other => invalid(format!("Unsupported resource type: {other}")),
        }
    }
}

/// Refuses to alter the configuration of a resource, by the code of its type and its name, if the request may not do so.
///
/// # Errors
/// `INVALID_REQUEST` for a resource without a configuration, or the authorizer's denial.
fn permit_alteration(
    broker: &Broker,
    context: &RequestContext,
    (kind, name): (i8, &str),
) -> Result<(), Refused> {
    Ok(authorize(context, Operation::AlterConfigs, authorized_as(broker, context, (kind, name))?)?)
}

/// The same without a log line for a denial.
pub(crate) fn may_be_altered(broker: &Broker, context: &RequestContext, named: (i8, &str)) -> bool {
    let resource = authorized_as(broker, context, named);
    resource.is_ok_and(|resource| permits(context, Operation::AlterConfigs, resource))
}

/// The resource that is authorized for the configuration of another one.
pub(crate) fn authorized_as<'a>(
    broker: &Broker,
    context: &RequestContext,
    (kind, name): (i8, &'a str),
) -> Result<Resource<'a>, Refused> {
    let asked = context.connection.asked.as_ref().map_or(broker.local.id, |asked| asked.id);
    Ok(match ConfigTarget::parse(kind, name, asked)? {
        ConfigTarget::Topic(name) => Resource::Topic(name),
        ConfigTarget::Group(name) => Resource::Group(name),
        ConfigTarget::Broker
        | ConfigTarget::ClusterDefault
        | ConfigTarget::Loggers
        | ConfigTarget::ClientMetrics(_) => Resource::Cluster,
    })
}

/// The changes of a resource, and true if all values that are not in them are reset.
pub(crate) type Changes<'a> = (Vec<Change<'a>>, bool);

/// A request that alters configurations: AlterConfigs, IncrementalAlterConfigs.
pub(crate) trait Alteration<'a>: Request<'a> {
    /// A resource of it.
    type Resource;
    /// The answer about a resource.
    type Answer;

    /// Its resources.
    fn resources(&mut self) -> &mut Vec<Self::Resource>;

    /// The code of a resource's type, and its name.
    fn named(resource: &Self::Resource) -> (i8, &str);

    /// The changes of a resource.
    fn changes(resource: &Self::Resource) -> Changes<'_>;

    /// The answer about a resource that is not changed.
    fn refuse(resource: &Self::Resource, why: &Refused) -> Self::Answer;

    /// The response that consists of answers.
    fn response(answers: Vec<Self::Answer>) -> Self::Response<'static>;
}

/// Removes resources from a request that may not be altered, and answers for them.
pub(crate) fn refuse_what_is_not_permitted<'a, R: Alteration<'a>>(
    (broker, context): (&Broker, &RequestContext),
    request: &mut R,
) -> Vec<R::Answer> {
    let mut refused = Vec::new();
    request.resources().retain(|resource| {
        let permitted = permit_alteration(broker, context, R::named(resource));
        permitted.map_err(|why| refused.push(R::refuse(resource, &why))).is_ok()
    });
    refused
}

/// Refuses changes with which listeners of this node could not work. Only this node's settings and those of all nodes
/// are checked.
fn check_listeners<'a>(
    broker: &Broker,
    (kind, name): (i8, &str),
    changes: impl FnOnce() -> Changes<'a>,
) -> Result<(), Refused> {
    if kind != BROKER || !(name.is_empty() || name.parse() == Ok(broker.local.id)) {
        return Ok(());
    }
    let (changes, replaces) = changes();
    broker.security.check_change((&broker.local, &broker.controller), name, &changes, replaces).map_err(
        |error| {
            let message = format!("Validation of dynamic config update failed: {error}");
            Refused { error: ErrorCode::INVALID_REQUEST, message }
        },
    )
}

/// Removes changes from a request that would leave a listener of this node with stores, users or mechanisms that it
/// cannot use. Returns the answers to them.
pub(crate) fn refuse_unusable<'a, R: Alteration<'a>>(broker: &Broker, request: &mut R) -> Vec<R::Answer> {
    let mut answers = Vec::new();
    request.resources().retain(|resource| {
        let checked = check_listeners(broker, R::named(resource), || R::changes(resource));
        checked.map_err(|why| answers.push(R::refuse(resource, &why))).is_ok()
    });
    answers
}

/// Checks a request before it is forwarded to the metadata leader, which cannot look at this node's files. If
/// listeners of this node could not use a part of the settings, nothing is changed. Only a client that may change a
/// part learns its fault. None if they could.
///
/// # Errors
/// When the body is malformed.
pub(crate) fn refuse_before_handing_on<'a, R: Alteration<'a>>(
    (broker, context): (&Broker, &RequestContext),
    decoder: &Decoder<'a>,
    out: &mut ResponseBuffer,
) -> Result<Option<Handled>, DecodeError>
where
    R::Response<'static>: Throttled,
{
    let mut request: R = body(&mut decoder.clone(), context.version)?;
    let resources = request.resources();
    let check = |resource: &R::Resource| {
        let may = may_be_altered(broker, context, R::named(resource));
        if may { check_listeners(broker, R::named(resource), || R::changes(resource)) } else { Ok(()) }
    };
    let checked: Vec<_> = resources.iter().map(check).collect();
    if checked.iter().all(Result::is_ok) {
        return Ok(None);
    }
    let unchanged = Refused {
        error: ErrorCode::INVALID_REQUEST,
        message: "Nothing of this request was changed, since another part of it was refused.".to_owned(),
    };
    let answers = resources.iter().zip(&checked).map(|(resource, checked)| {
        let denied = permit_alteration(broker, context, R::named(resource)).err();
        R::refuse(resource, denied.as_ref().or(checked.as_ref().err()).unwrap_or(&unchanged))
    });
    Ok(Some(respond(context, R::response(answers.collect()), out)))
}
