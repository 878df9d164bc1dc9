//! The assignors that the coordinator has: `uniform` and `range`, as in Kafka 4.3.
//!
//! Each is a function of the members' subscriptions, their current partitions, and the sizes of topics. Kafka walks members and topics in
//! the order of a hash map; here both are sorted, so that the same input gives the same assignment in every run.

mod heterogeneous;
mod homogeneous;
mod range;
mod spec;
#[cfg(test)]
mod tests;

use std::borrow::Cow;

use mainstem_config::Assignor;

use super::partitions::Assignment;
pub(crate) use spec::{GroupSpec, Marks, MemberSpec, Topics};

/// Returns the partitions of each member, in the order of the members. A borrowed assignment is one that the member has already.
pub(crate) fn assign<'g>(assignor: Assignor, group: &'g GroupSpec<'_>) -> Vec<Cow<'g, Assignment>> {
    let owned = |assignments: Vec<Assignment>| assignments.into_iter().map(Cow::Owned).collect();
    match assignor {
        _ if group.members.is_empty() => Vec::new(),
        Assignor::Uniform if group.homogeneous => homogeneous::assign(group),
        Assignor::Uniform => owned(heterogeneous::assign(group)),
        Assignor::Range => owned(range::assign(group)),
    }
}
