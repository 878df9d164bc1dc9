//! What configuration belongs to, as requests name it.

use mainstem_coordination::metadata::ResourceKind;
use mainstem_wire::ErrorCode;

use crate::broker::Broker;
use crate::context::{Operation, RequestContext, Resource, authorize};

/// `ConfigResource.Type` of the protocol.
const TOPIC: i8 = ResourceKind::Topic as i8;
const BROKER: i8 = ResourceKind::Broker as i8;
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
    /// A group, which need not exist.
    Group(&'a str),
}

/// An error with the message that goes with it.
#[derive(Debug)]
pub(crate) struct Refused {
    /// Kafka's code.
    pub(crate) error: ErrorCode,
    /// What the client's user reads.
    pub(crate) message: String,
}

impl From<ErrorCode> for Refused {
    fn from(error: ErrorCode) -> Self {
        Refused { error, message: error.message().to_owned() }
    }
}

impl<'a> ConfigTarget<'a> {
    /// Reads a resource's type and name.
    ///
    /// # Errors
    /// `INVALID_REQUEST` for a type that has no configuration here, or another node's.
    pub(crate) fn parse(kind: i8, name: &'a str, node_id: i32) -> Result<Self, Refused> {
        match kind {
            TOPIC => Ok(ConfigTarget::Topic(name)),
            BROKER if name.is_empty() => Ok(ConfigTarget::ClusterDefault),
            BROKER if name.parse() == Ok(node_id) => Ok(ConfigTarget::Broker),
            BROKER => {
                let message = format!("Unexpected broker id, expected {node_id}, but received {name}");
                Err(Refused { error: ErrorCode::INVALID_REQUEST, message })
            }
            GROUP if name.is_empty() => {
                let message = "Default group resources are not allowed.".to_owned();
                Err(Refused { error: ErrorCode::INVALID_REQUEST, message })
            }
            GROUP => Ok(ConfigTarget::Group(name)),
            other => {
                let message = format!("Unsupported resource type: {other}");
                Err(Refused { error: ErrorCode::INVALID_REQUEST, message })
            }
        }
    }
}

/// Whether a request may alter the configuration of a resource, given by the code of its type and its name.
///
/// # Errors
/// `INVALID_REQUEST` where there is nothing to alter, or that it is not allowed.
pub(crate) fn permit_alteration(
    broker: &Broker,
    context: &RequestContext,
    (kind, name): (i8, &str),
) -> Result<(), Refused> {
    let resource = match ConfigTarget::parse(kind, name, broker.node.id)? {
        ConfigTarget::Topic(name) => Resource::Topic(name),
        ConfigTarget::Group(name) => Resource::Group(name),
        ConfigTarget::Broker | ConfigTarget::ClusterDefault => Resource::Cluster,
    };
    Ok(authorize(context, Operation::AlterConfigs, resource)?)
}
