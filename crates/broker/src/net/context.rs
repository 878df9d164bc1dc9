//! Who asks: the connection and the request, as every API sees them.

use std::net::SocketAddr;
use std::sync::Arc;

use mainstem_wire::{ApiKey, ErrorCode};
use parking_lot::Mutex;

use crate::quotas::{Quotas, ThreadTime};

/// The name under which an unauthenticated peer acts.
pub(crate) const ANONYMOUS: &str = "User:ANONYMOUS";

/// What is known of a connection for as long as it lives.
pub(crate) struct ConnectionContext {
    /// Unique in this process.
    pub(crate) id: u64,
    /// Index of the listener in the configuration.
    pub(crate) listener: usize,
    /// The peer's address.
    pub(crate) peer: SocketAddr,
    /// `User:NAME`.
    pub(crate) principal: Arc<str>,
    /// Limits on what the client may do.
    pub(crate) quotas: Arc<Quotas>,
    /// Name and version that the client's library gave in ApiVersions (KIP-511).
    pub(crate) software: Mutex<Option<(String, String)>>,
}

impl ConnectionContext {
    /// The same connection as one of a principal. Requests that came before keep the principal that they came with.
    pub(crate) fn authenticated(&self, principal: &str) -> ConnectionContext {
        ConnectionContext {
            id: self.id,
            listener: self.listener,
            peer: self.peer,
            principal: principal.into(),
            quotas: self.quotas.clone(),
            software: Mutex::new(self.software.lock().clone()),
        }
    }
}

/// One request: its header and where it came from.
#[derive(Clone)]
pub(crate) struct RequestContext {
    /// The connection.
    pub(crate) connection: Arc<ConnectionContext>,
    /// The API.
    pub(crate) api: ApiKey,
    /// Version of the request and its response.
    pub(crate) version: i16,
    /// Chosen by the client, repeated in the response.
    pub(crate) correlation_id: i32,
    /// Given by the client in each request's header.
    pub(crate) client_id: Option<Arc<str>>,
    /// What it costs, while somebody has a quota on that.
    pub(crate) time: Option<Arc<ThreadTime>>,
}

/// Operations on resources, with the protocol's codes (`AclOperation`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Operation {
    Read = 3,
    Write = 4,
    Create = 5,
    Delete = 6,
    Alter = 7,
    Describe = 8,
    ClusterAction = 9,
    DescribeConfigs = 10,
    AlterConfigs = 11,
    IdempotentWrite = 12,
}

/// What an operation acts on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Resource<'a> {
    Topic(&'a str),
    Group(&'a str),
    Cluster,
    TransactionalId(&'a str),
}

/// Asks whether the request's principal may do this. Everybody may, until there are users: the question is asked
/// where Kafka asks it.
pub(crate) fn authorize(
    context: &RequestContext,
    operation: Operation,
    resource: Resource<'_>,
) -> Result<(), ErrorCode> {
    let _ = (&context.connection.principal, operation, resource);
    Ok(())
}

/// The bit field of operations that the principal may do on a resource (KIP-430).
pub(crate) fn authorized_operations(context: &RequestContext, resource: Resource<'_>) -> i32 {
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
    let allowed = supported.iter().filter(|operation| authorize(context, **operation, resource).is_ok());
    allowed.fold(0, |bits, operation| bits | 1 << *operation as i32)
}
