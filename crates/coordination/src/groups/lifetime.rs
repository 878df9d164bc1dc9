//! Groups come with their first offset, and go when nothing is left of them.

use std::sync::Arc;

use super::group::{Group, Groups};
use super::io::Io;

/// The group of a durable offset. One that was unknown until now only stores offsets.
pub(crate) fn group_of<'g>(groups: &'g mut Groups, io: &mut Io<'_>, id: &Arc<str>) -> &'g mut Group {
    groups.entry(id.clone()).or_insert_with(|| {
        io.usage.groups += 1;
        let mut group = Group::new(id.clone(), io.now.wall_ms);
        if let Some(classic) = group.classic() {
            io.recount(classic);
        }
        group
    })
}

/// Drops a group that has no members, offsets or records.
pub(crate) fn drop_if_nothing(groups: &mut Groups, io: &mut Io<'_>, id: &str) {
    if groups.get(id).is_some_and(Group::is_nothing) {
        if let Some(group) = groups.remove(id) {
            io.uncount_protocol(&group.protocol);
        }
        io.usage.groups -= 1;
    }
}
