//! The time-outs of a consumer group's members.

use std::sync::Arc;

use super::super::deadlines::Key;
use super::super::io::Io;
use super::super::member::MemberId;
use super::group::ConsumerGroup;

/// Starts the sessions of all members, and the revocation time-outs of those that have to revoke partitions: the coordinator has just
/// loaded the group, or undone a change.
pub(crate) fn start(group: &mut ConsumerGroup, io: &mut Io<'_>) {
    let ids: Vec<MemberId> = group.members().keys().cloned().collect();
    for id in ids {
        restart_session(group, io, &id);
        await_revocation(group, io, &id);
    }
}

/// Restarts the session of a member. A member of the classic protocol has its own session time-out.
pub(crate) fn restart_session(group: &mut ConsumerGroup, io: &mut Io<'_>, id: &MemberId) {
    let Some(member) = group.member(id) else { return };
    let classic = member.profile.classic.as_ref().map(|classic| classic.session_timeout_ms);
    let due = io.after(classic.unwrap_or_else(|| io.config.consumer.of(&group.id).session_timeout_ms));
    let (partition, name) = (io.partition, group.id.clone());
    let timers = group.timers(id).expect("the member was just found");
    let key = || Key::Session { partition, group: name, member: Arc::clone(id) };
    io.deadlines.set(&mut timers.session, due, key);
}

/// Sets or cancels the deadline of a member to revoke partitions, by its rebalance time-out. Members of the classic protocol are asked to
/// rejoin instead.
pub(crate) fn await_revocation(group: &mut ConsumerGroup, io: &mut Io<'_>, id: &MemberId) {
    let Some(member) = group.member(id).filter(|member| !member.uses_classic_protocol()) else { return };
    if !member.current.must_revoke() {
        return cancel_rebalance(group, io, id);
    }
    let (epoch, timeout_ms) = (member.current.epoch, member.profile.rebalance_timeout_ms);
    set_rebalance(group, io, id, timeout_ms, epoch);
}

/// Sets the deadline of a member of the classic protocol to rejoin, by its rebalance time-out, from the first time that it is asked to.
pub(crate) fn await_rejoin(group: &mut ConsumerGroup, io: &mut Io<'_>, id: &MemberId) {
    let Some(member) = group.member(id).filter(|member| member.timers.rebalance.is_none()) else { return };
    let (epoch, timeout_ms) = (member.current.epoch, member.profile.rebalance_timeout_ms);
    set_rebalance(group, io, id, timeout_ms, epoch);
}

fn set_rebalance(group: &mut ConsumerGroup, io: &mut Io<'_>, id: &MemberId, timeout_ms: i32, epoch: i32) {
    let (due, partition, name) = (io.after(timeout_ms), io.partition, group.id.clone());
    let Some(timers) = group.timers(id) else { return };
    timers.rebalance_epoch = epoch;
    let key = || Key::Rebalance { partition, group: name, member: Arc::clone(id) };
    io.deadlines.set(&mut timers.rebalance, due, key);
}

pub(crate) fn cancel_rebalance(group: &mut ConsumerGroup, io: &mut Io<'_>, id: &MemberId) {
    let (partition, name) = (io.partition, group.id.clone());
    let Some(timers) = group.timers(id) else { return };
    let key = || Key::Rebalance { partition, group: name, member: Arc::clone(id) };
    io.deadlines.cancel(&mut timers.rebalance, key);
}

/// Sets the deadline of a member of the classic protocol that has joined to sync, by its rebalance time-out.
pub(crate) fn await_sync(group: &mut ConsumerGroup, io: &mut Io<'_>, id: &MemberId) {
    let Some(member) = group.member(id) else { return };
    let due = io.after(member.profile.rebalance_timeout_ms);
    let (partition, name) = (io.partition, group.id.clone());
    let timers = group.timers(id).expect("the member was just found");
    let key = || Key::MemberSync { partition, group: name, member: Arc::clone(id) };
    io.deadlines.set(&mut timers.sync, due, key);
}

pub(crate) fn cancel_sync(group: &mut ConsumerGroup, io: &mut Io<'_>, id: &MemberId) {
    let (partition, name) = (io.partition, group.id.clone());
    let Some(timers) = group.timers(id) else { return };
    let key = || Key::MemberSync { partition, group: name, member: Arc::clone(id) };
    io.deadlines.cancel(&mut timers.sync, key);
}

/// Cancels all time-outs of the group.
pub(crate) fn cancel_all(group: &mut ConsumerGroup, io: &mut Io<'_>) {
    let ids: Vec<MemberId> = group.members().keys().cloned().collect();
    for id in ids {
        let Some(timers) = group.timers(&id) else { continue };
        let mut timers = std::mem::take(timers);
        io.cancel_timers(&group.id, &id, &mut timers);
    }
}
