//! The connection and the request, as every API sees them.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::Arc;

use mainstem_security::acl::{AclOperation, CLUSTER_NAME, ResourceType};
use mainstem_wire::{ApiKey, ErrorCode};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use crate::authorization::Authorization;
use crate::quotas::{Quotas, ThreadTime};

/// The name under which an unauthenticated peer acts.
pub const ANONYMOUS: &str = "User:ANONYMOUS";

/// The properties of a connection, for as long as it lives.
pub struct ConnectionContext {
    /// Unique in this process.
    pub id: u64,
    /// Index of the listener in the configuration.
    pub listener: usize,
    /// The peer's address.
    pub peer: SocketAddr,
    /// `User:NAME`.
    pub principal: Arc<str>,
    /// Decides about the principal's requests; none without an authorizer.
    pub authorization: Option<Arc<Authorization>>,
    /// Quotas of the client.
    pub quotas: Arc<Quotas>,
    /// Name and version that the client's library gave in ApiVersions (KIP-511).
    pub software: Mutex<Option<(String, String)>>,
    /// The node that the client asked, if that one forwarded the request to this one.
    pub asked: Option<Arc<AskedNode>>,
}

/// A node that a client asked, and that forwarded the request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AskedNode {
    /// Its `node.id`.
    pub id: i32,
    /// The operations of the request that its rules deny the client: they are denied here as well.
    pub denied: BTreeSet<Denial>,
}

/// An operation on a resource that is denied, by the protocol's codes.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Denial {
    operation: u8,
    resource_type: i8,
    name: String,
}

impl Denial {
    /// The denial of an operation on a resource.
    pub fn of(operation: Operation, resource: Resource<'_>) -> Denial {
        let (resource_type, name) = resource.as_acl();
        Denial { operation: operation as u8, resource_type: resource_type.code(), name: name.to_owned() }
    }
}

impl ConnectionContext {
    /// The same connection with another principal. Earlier requests keep the principal that they came with.
    pub fn authenticated(&self, principal: &str) -> ConnectionContext {
        ConnectionContext {
            id: self.id,
            listener: self.listener,
            peer: self.peer,
            principal: principal.into(),
            authorization: self.authorization.clone(),
            quotas: self.quotas.clone(),
            software: Mutex::new(self.software.lock().clone()),
            asked: self.asked.clone(),
        }
    }
}

/// One request: its header and its connection.
#[derive(Clone)]
pub struct RequestContext {
    /// The connection that it came by.
    pub connection: Arc<ConnectionContext>,
    /// The API that it calls.
    pub api: ApiKey,
    /// Version of the request and its response.
    pub version: i16,
    /// Chosen by the client, repeated in the response.
    pub correlation_id: i32,
    /// Given by the client in each request's header.
    pub client_id: Option<Arc<str>>,
    /// The thread time that it takes, while any client has a quota on that.
    pub time: Option<Arc<ThreadTime>>,
}

/// Operations on resources, with the protocol's codes (`AclOperation`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Operation {
    /// Read records, offsets of a group.
    Read = 3,
    /// Write records, or transactions.
    Write = 4,
    /// Create it.
    Create = 5,
    /// Delete it, or records of it.
    Delete = 6,
    /// Change it.
    Alter = 7,
    /// See that it exists.
    Describe = 8,
    /// Act as a node.
    ClusterAction = 9,
    /// See its configuration.
    DescribeConfigs = 10,
    /// Change its configuration.
    AlterConfigs = 11,
    /// Write with a producer id, where no topic may be written to by name.
    IdempotentWrite = 12,
}

/// The resource that an operation acts on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Resource<'a> {
    /// A topic, by its name.
    Topic(&'a str),
    /// A group, by its id.
    Group(&'a str),
    /// The cluster.
    Cluster,
    /// A transactional id.
    TransactionalId(&'a str),
}

impl Operation {
    /// The name of it in rules.
    pub fn as_acl(self) -> AclOperation {
        match self {
            Operation::Read => AclOperation::Read,
            Operation::Write => AclOperation::Write,
            Operation::Create => AclOperation::Create,
            Operation::Delete => AclOperation::Delete,
            Operation::Alter => AclOperation::Alter,
            Operation::Describe => AclOperation::Describe,
            Operation::ClusterAction => AclOperation::ClusterAction,
            Operation::DescribeConfigs => AclOperation::DescribeConfigs,
            Operation::AlterConfigs => AclOperation::AlterConfigs,
            Operation::IdempotentWrite => AclOperation::IdempotentWrite,
        }
    }
}

impl<'a> Resource<'a> {
    /// The name of it in rules.
    pub fn as_acl(self) -> (ResourceType, &'a str) {
        match self {
            Resource::Topic(name) => (ResourceType::Topic, name),
            Resource::Group(name) => (ResourceType::Group, name),
            Resource::Cluster => (ResourceType::Cluster, CLUSTER_NAME),
            Resource::TransactionalId(name) => (ResourceType::TransactionalId, name),
        }
    }

    /// The error for a client that is denied it.
    fn denied(self) -> ErrorCode {
        match self {
            Resource::Topic(_) => ErrorCode::TOPIC_AUTHORIZATION_FAILED,
            Resource::Group(_) => ErrorCode::GROUP_AUTHORIZATION_FAILED,
            Resource::Cluster => ErrorCode::CLUSTER_AUTHORIZATION_FAILED,
            Resource::TransactionalId(_) => ErrorCode::TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
        }
    }
}

/// Checks that the request's principal may do this, at the places at which Kafka does. Without an authorizer everything is allowed.
///
/// # Errors
/// The error of the resource's kind. The denial is logged.
pub fn authorize(
    context: &RequestContext,
    operation: Operation,
    resource: Resource<'_>,
) -> Result<(), ErrorCode> {
    if is_denied_where_it_was_asked(context, operation, resource) {
        return Err(resource.denied());
    }
    match &context.connection.authorization {
        Some(authorization) if !authorization.allows(context, operation, resource) => Err(resource.denied()),
        _ => Ok(()),
    }
}

/// The same without a log line, for a list that leaves out denied resources, or if another permission may do instead.
pub fn permits(context: &RequestContext, operation: Operation, resource: Resource<'_>) -> bool {
    let authorization = context.connection.authorization.as_ref();
    !is_denied_where_it_was_asked(context, operation, resource)
        && authorization.is_none_or(|authorization| authorization.permits(context, operation, resource))
}

/// Returns true if the node that the client asked denies it: the denial was logged there.
fn is_denied_where_it_was_asked(
    context: &RequestContext,
    operation: Operation,
    resource: Resource<'_>,
) -> bool {
    let asked = context.connection.asked.as_ref().filter(|asked| !asked.denied.is_empty());
    asked.is_some_and(|asked| asked.denied.contains(&Denial::of(operation, resource)))
}

/// Returns true if a request may create a topic by naming it.
pub fn may_create(context: &RequestContext, name: &str) -> bool {
    permits(context, Operation::Create, Resource::Cluster)
        || permits(context, Operation::Create, Resource::Topic(name))
}

/// Returns true if the principal may write to any topic at all (KIP-679).
pub fn permits_any_topic(context: &RequestContext) -> bool {
    let authorization = context.connection.authorization.as_ref();
    authorization.is_none_or(|authorization| authorization.permits_any_topic(context))
}

/// The bit field of operations that the principal may do on the cluster; 0 if it may not describe it.
pub fn cluster_operations(context: &RequestContext) -> i32 {
    match permits(context, Operation::Describe, Resource::Cluster) {
        true => authorized_operations(context, Resource::Cluster),
        false => 0,
    }
}

/// The bit field of operations that the principal may do on a resource (KIP-430).
pub fn authorized_operations(context: &RequestContext, resource: Resource<'_>) -> i32 {
    use Operation::{
        Alter, AlterConfigs, ClusterAction, Create, Delete, Describe, DescribeConfigs, IdempotentWrite, Read,
        Write,
    };
    let supported: &[Operation] = match resource {
        Resource::Topic(_) => &[Read, Write, Create, Delete, Alter, Describe, DescribeConfigs, AlterConfigs],
        Resource::Group(_) => &[Read, Delete, Describe, DescribeConfigs, AlterConfigs],
        Resource::Cluster => {
            &[Create, Alter, Describe, ClusterAction, DescribeConfigs, AlterConfigs, IdempotentWrite]
        }
        Resource::TransactionalId(_) => &[Write, Describe],
    };
    let allowed = supported.iter().filter(|operation| permits(context, **operation, resource));
    allowed.fold(0, |bits, operation| bits | 1 << *operation as i32)
}
