//! Descriptions of groups, for DescribeGroups and ConsumerGroupDescribe.

use std::borrow::Cow;
use std::collections::HashSet;
use std::sync::Arc;

use mainstem_wire::ErrorCode;

use crate::broker::Broker;
use mainstem_coordinators::driver::Keys;
use mainstem_coordinators::groups::Groups;
use mainstem_net::answers::AnswerShare;
use mainstem_requests::context::{Operation, RequestContext, Resource, authorize, authorized_operations};

/// A group in the answer of an API that describes groups.
pub(crate) trait Described: Sized {
    /// Asks the coordinator for a group.
    fn ask(coordinator: &Groups, context: &RequestContext, id: &str) -> Self;

    /// The answer about a group that has an error only.
    fn refused(id: &str, error: ErrorCode) -> Self;

    /// Adds facts that the coordinator does not know, and removes those that the principal may not see.
    fn complete(&mut self, broker: &Broker, context: &RequestContext);

    /// The group's id.
    fn id(&self) -> &str;

    /// The code of its error; 0 if it is described.
    fn error_code(&self) -> i16;

    /// Sets the bits of the operations that the principal may do.
    fn set_authorized_operations(&mut self, operations: i32);

    /// Bytes of its memory until it is encoded.
    fn memory(&self) -> usize;
}

/// Describes groups from memory, held back until a majority has confirmed that this node coordinates them. Blocks.
/// The memory of the answer is added to `memory`; a group that does not fit is refused.
pub(crate) fn describe<G: Described>(
    broker: &Arc<Broker>,
    context: &RequestContext,
    mut ids: Vec<Cow<'_, str>>,
    include_authorized_operations: bool,
    memory: &mut AnswerShare,
) -> Vec<G> {
    let mut refused = Vec::new();
    // A group that is named twice is described once: an answer is no larger than the stored data.
    let mut seen = HashSet::new();
    ids.retain(|id| match authorize(context, Operation::Describe, Resource::Group(id)) {
        Ok(()) => seen.insert(id.clone()),
        Err(error) => {
            refused.push(G::refused(id, error));
            false
        }
    });
    let keys = Keys::These(ids.iter().map(ToString::to_string).collect());
    let (mut groups, overtaken) = broker.groups.confirmed_here(keys, |coordinator| {
        let describe = |id: &Cow<'_, str>| {
            let group = G::ask(coordinator, context, id);
            match memory.take(group.memory()) {
                true => group,
                false => G::refused(id, ErrorCode::COORDINATOR_NOT_AVAILABLE),
            }
        };
        ids.iter().map(describe).collect::<Vec<_>>()
    });
    for group in &mut groups {
        if overtaken.has(&broker.groups, group.id()) {
            *group = G::refused(group.id(), ErrorCode::NOT_COORDINATOR);
        }
        group.complete(broker, context);
        if include_authorized_operations && group.error_code() == 0 {
            let operations = authorized_operations(context, Resource::Group(group.id()));
            group.set_authorized_operations(operations);
        }
    }
    groups.extend(refused);
    groups
}
