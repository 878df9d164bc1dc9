//! The end of a time-out of a member: it is removed, unless it has moved on.

use std::sync::Arc;

use super::super::deadlines::{Fired, Key};
use super::super::group::{Group, Protocol};
use super::super::io::Io;
use super::fence;

/// Handles a time-out that has come up. It may have been moved, and the member may be gone.
pub(crate) fn fire(group: &mut Group, io: &mut Io<'_>, at: u64, key: &Key) {
    let Protocol::Consumer(consumer) = &mut group.protocol else { return };
    let (Key::Session { member, .. } | Key::Rebalance { member, .. } | Key::MemberSync { member, .. }) = key
    else {
        return;
    };
    let now_ms = io.now.mono_ms;
    let epoch = consumer.member(member).map(|member| member.current.epoch);
    let Some(timers) = consumer.timers(member) else { return };
    let waits_for_epoch = timers.rebalance_epoch;
    let slot = match key {
        Key::Session { .. } => &mut timers.session,
        Key::Rebalance { .. } => &mut timers.rebalance,
        _ => &mut timers.sync,
    };
    let over = io.deadlines.fire(slot, (at, key), now_ms) == Fired::Now;
    let has_moved_on = matches!(key, Key::Rebalance { .. }) && epoch != Some(waits_for_epoch);
    if over && !has_moved_on {
        fence::fence(group, io, vec![Arc::clone(member)], None);
    }
}
