//! The interface of a handler to all but its own group: effects, time-outs, pending appends.

use std::collections::VecDeque;
use std::sync::Arc;

use mainstem_records::Producer;
use mainstem_wire::ErrorCode;
use mainstem_wire::messages::join_group_response::JoinGroupResponse;

use super::api::{Effect, Reply};
use super::appends::Appends;
use super::classic::ClassicGroup;
use super::completion::{Completion, Overdue};
use super::config::GroupConfig;
use super::consumer::group::ConsumerGroup;
use super::consumer::member::Timers;
use super::consumer::topics::ClusterTopics;
use super::deadlines::{Deadlines, Key, Timer};
use super::group::{Group, Protocol};
use super::log::CoordinatorRecord;
use super::member::{JoinWaiter, Member};
use super::offset_fetch::Fetch;
use super::offsets::TopicNames;
use super::open_transactions::OpenTransactions;
use super::token::{Ticket, Token};
use super::{in_flight, refused};
use crate::time::Now;

/// The amounts that [`GroupConfig`] limits.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Usage {
    pub(crate) groups: usize,
    /// Members and pending joins.
    pub(crate) members: usize,
    pub(crate) offsets: usize,
    /// Offsets of open transactions.
    pub(crate) pending_offsets: usize,
    /// Bytes of groups, members and offsets, as [`memory`](super::memory) counts them; topic names count beside them.
    pub(crate) bytes: usize,
    /// Bytes of the entries in the queues of appends.
    pub(crate) in_flight_bytes: usize,
}

impl Usage {
    /// Adds the amounts of groups that were counted by themselves.
    pub(super) fn add(&mut self, other: Usage) {
        let Usage { groups, members, offsets, pending_offsets, bytes, in_flight_bytes } = other;
        self.groups += groups;
        self.members += members;
        self.offsets += offsets;
        self.pending_offsets += pending_offsets;
        self.bytes += bytes;
        self.in_flight_bytes += in_flight_bytes;
    }
}

/// The coordinator without its groups: the context of one handler.
pub(crate) struct Io<'a> {
    pub(crate) now: Now,
    pub(crate) partition: i32,
    pub(crate) config: &'a GroupConfig,
    pub(crate) cluster: &'a ClusterTopics,
    pub(crate) effects: &'a mut VecDeque<Effect>,
    pub(crate) deadlines: &'a mut Deadlines,
    pub(crate) appends: &'a mut Appends,
    pub(crate) transactions: &'a mut OpenTransactions,
    pub(crate) tickets: &'a mut u64,
    pub(crate) topics: &'a mut TopicNames,
    pub(crate) usage: &'a mut Usage,
}

impl Io<'_> {
    /// Answers a request.
    pub(crate) fn reply(&mut self, token: Token, reply: Reply) {
        self.effects.push_back(Effect::Reply { token, reply });
    }

    /// Answers a JoinGroup. Before v7 a null protocol name is not allowed on the wire (KIP-559).
    pub(crate) fn reply_join(&mut self, to: JoinWaiter, mut response: JoinGroupResponse<'static>) {
        if to.api_version < 7 && response.protocol_name.is_none() {
            response.protocol_name = Some("".into());
        }
        self.reply(to.token, Reply::JoinGroup(response));
    }

    /// Answers a JoinGroup with an error.
    pub(crate) fn refuse_join(&mut self, to: JoinWaiter, member_id: &str, error: ErrorCode) {
        self.reply(to.token, refused::join(member_id, error));
    }

    /// Answers a SyncGroup with an error.
    pub(crate) fn refuse_sync(&mut self, to: Token, error: ErrorCode) {
        self.reply(to, refused::sync(error));
    }

    /// Appends records; `completion` takes effect when the outcome is known.
    pub(crate) fn append(&mut self, records: Vec<CoordinatorRecord>, completion: Completion) {
        self.append_for(None, records, completion);
    }

    /// Appends records as a part of a producer's transaction, or of none.
    pub(crate) fn append_for(
        &mut self,
        producer: Option<Producer>,
        records: Vec<CoordinatorRecord>,
        completion: Completion,
    ) {
        assert!(!records.is_empty(), "an append without records for {completion:?}");
        let ticket = self.enqueue(completion);
        let timestamp_ms = self.now.wall_ms;
        self.effects.push_back(Effect::Append { ticket, timestamp_ms, producer, records });
    }

    /// Queues an entry with a place in the log behind everything that was appended before; the driver reports the outcome.
    pub(crate) fn enqueue(&mut self, completion: Completion) -> Ticket {
        self.usage.in_flight_bytes += in_flight::completion(&completion);
        *self.tickets += 1;
        let ticket = Ticket { partition: self.partition, number: *self.tickets };
        let due_ms = self.after(self.config.offsets_commit_timeout_ms);
        if self.appends.push(ticket.number, due_ms, completion) {
            self.watch_appends(due_ms);
        }
        ticket
    }

    /// Queues a read behind the appends that are in flight.
    pub(crate) fn wait(&mut self, token: Token, fetch: Fetch) {
        self.wait_behind(Completion::Fetch { waiting: Some((token, fetch)) });
    }

    /// Queues an entry without records behind the appends that are in flight.
    pub(crate) fn wait_behind(&mut self, completion: Completion) {
        *self.tickets += 1;
        self.usage.in_flight_bytes += in_flight::completion(&completion);
        let due_ms = self.after(self.config.offsets_commit_timeout_ms);
        self.appends.wait(*self.tickets, due_ms, completion);
        self.watch_appends(due_ms);
    }

    /// Sets the timer of the queue, unless it is set for an earlier time.
    fn watch_appends(&mut self, due_ms: u64) {
        let partition = self.partition;
        if self.appends.timer.is_none() {
            self.deadlines.set(&mut self.appends.timer, due_ms, || Key::Append { partition });
        }
    }

    /// Answers the requests that have waited too long for their records, which still take effect when they are durable. Returns the classic
    /// groups whose members have waited too long.
    pub(crate) fn time_out_appends(&mut self, error: ErrorCode) -> Vec<Overdue> {
        let (mut answers, mut groups, mut freed) = (Vec::new(), Vec::new(), 0);
        for completion in self.appends.overdue(self.now.mono_ms) {
            let before = in_flight::completion(completion);
            answers.extend(completion.take_answer(error));
            groups.extend(completion.take_overdue());
            freed += before - in_flight::completion(completion);
        }
        self.usage.in_flight_bytes -= freed;
        for (token, reply) in answers {
            self.reply(token, reply);
        }
        if let Some(due_ms) = self.appends.next_due_ms() {
            self.watch_appends(due_ms);
        }
        groups
    }

    /// Cancels the timer of the queue.
    pub(crate) fn unwatch_appends(&mut self) {
        let partition = self.partition;
        self.deadlines.cancel(&mut self.appends.timer, || Key::Append { partition });
    }

    /// Returns true if another request may wait in the queue of appends.
    pub(crate) fn may_wait(&self) -> bool {
        may_wait(self.appends, self.config, self.usage)
    }

    /// Subtracts an entry that has left the queue of appends.
    pub(crate) fn left_queue(&mut self, completion: &Completion) {
        self.usage.in_flight_bytes -= in_flight::completion(completion);
    }

    /// Bytes that may still be kept. Requests in flight are counted as used: most of their bytes are kept later.
    pub(crate) fn free_bytes(&self) -> usize {
        let used = self.usage.bytes + self.topics.bytes() + self.usage.in_flight_bytes;
        self.config.memory_bytes_max.saturating_sub(used)
    }

    /// Returns true if so many bytes more may be kept. A request without growth is never refused, so that existing members can continue
    /// when memory is used up.
    pub(crate) fn has_memory_for(&self, growth: usize) -> bool {
        growth == 0 || growth <= self.free_bytes()
    }

    /// Returns true if so many bytes more may be kept for offsets, which leave a reserve to groups and members.
    pub(crate) fn has_memory_for_offsets(&self, growth: usize) -> bool {
        growth == 0 || growth.saturating_add(self.config.memory_bytes_for_members) <= self.free_bytes()
    }

    /// Counts a group as it is now.
    pub(crate) fn recount(&mut self, group: &mut ClassicGroup) {
        let bytes = group.bytes();
        self.usage.bytes = self.usage.bytes - group.counted + bytes;
        group.counted = bytes;
    }

    /// Counts a consumer group as it is now.
    pub(crate) fn recount_consumer(&mut self, group: &mut ConsumerGroup) {
        let bytes = group.bytes();
        self.usage.bytes = self.usage.bytes - group.counted + bytes;
        group.counted = bytes;
    }

    /// Subtracts the bytes and members of a group's protocol.
    pub(crate) fn uncount_protocol(&mut self, protocol: &Protocol) {
        match protocol {
            Protocol::Classic(group) => self.uncount(group),
            Protocol::Consumer(group) => self.usage.bytes -= group.counted,
        }
    }

    /// Gives a group another protocol and returns the former one; neither has time-outs. The totals count the new one's members instead.
    pub(crate) fn exchange(&mut self, group: &mut Group, protocol: Protocol) -> Protocol {
        let members = |protocol: &Protocol| match protocol {
            Protocol::Classic(group) => group.members.len(),
            Protocol::Consumer(group) => group.members().len(),
        };
        let before = std::mem::replace(&mut group.protocol, protocol);
        self.uncount_protocol(&before);
        self.usage.members = self.usage.members - members(&before) + members(&group.protocol);
        match &mut group.protocol {
            Protocol::Classic(group) => {
                group.counted = 0;
                self.recount(group);
            }
            Protocol::Consumer(group) => {
                group.counted = 0;
                self.recount_consumer(group);
            }
        }
        before
    }

    /// Cancels the time-outs of a member of a consumer group.
    pub(crate) fn cancel_timers(&mut self, group: &Arc<str>, member: &Arc<str>, timers: &mut Timers) {
        let partition = self.partition;
        self.cancel_session(group, member, &mut timers.session);
        let (group, member) = (|| group.clone(), || member.clone());
        self.deadlines.cancel(&mut timers.rebalance, || Key::Rebalance {
            partition,
            group: group(),
            member: member(),
        });
        self.deadlines.cancel(&mut timers.sync, || Key::MemberSync {
            partition,
            group: group(),
            member: member(),
        });
    }

    /// Subtracts a group that is removed.
    pub(crate) fn uncount(&mut self, group: &ClassicGroup) {
        self.usage.bytes -= group.counted;
    }

    /// The monotonic time `timeout_ms` from now, at least one millisecond later: a time-out of zero must not fire within the turn that set
    /// it.
    pub(crate) fn after(&self, timeout_ms: i32) -> u64 {
        self.now.mono_ms.saturating_add(u64::try_from(timeout_ms).unwrap_or(0).max(1))
    }

    /// Restarts the session of a member, with `timeout_ms` in place of its own time-out if that is given.
    pub(crate) fn restart_session(&mut self, group: &Arc<str>, member: &mut Member, timeout_ms: Option<i32>) {
        let due = self.after(timeout_ms.unwrap_or(member.session_timeout_ms));
        let (partition, id) = (self.partition, &member.id);
        self.deadlines.set(&mut member.session, due, || session_key(partition, group, id));
    }

    /// Cancels the time-out of a session or of a pending join.
    pub(crate) fn cancel_session(&mut self, group: &Arc<str>, member: &Arc<str>, slot: &mut Option<Timer>) {
        let partition = self.partition;
        self.deadlines.cancel(slot, || session_key(partition, group, member));
    }

    /// Sets the end of the phase in which members join.
    pub(crate) fn set_join_timer(&mut self, group: &mut ClassicGroup, timeout_ms: i32) {
        let (due, partition) = (self.after(timeout_ms), self.partition);
        self.deadlines.set(&mut group.join_timer, due, || Key::Join { partition, group: group.id.clone() });
    }

    pub(crate) fn cancel_join_timer(&mut self, group: &mut ClassicGroup) {
        let partition = self.partition;
        self.deadlines.cancel(&mut group.join_timer, || Key::Join { partition, group: group.id.clone() });
    }

    /// Sets the end of the phase in which members sync.
    pub(crate) fn set_sync_timer(&mut self, group: &mut ClassicGroup, timeout_ms: i32) {
        let (due, partition) = (self.after(timeout_ms), self.partition);
        self.deadlines.set(&mut group.sync_timer, due, || Key::Sync { partition, group: group.id.clone() });
    }

    pub(crate) fn cancel_sync_timer(&mut self, group: &mut ClassicGroup) {
        let partition = self.partition;
        self.deadlines.cancel(&mut group.sync_timer, || Key::Sync { partition, group: group.id.clone() });
    }
}

/// Returns true if another entry may wait in a partition's queue of appends.
pub(crate) fn may_wait(appends: &Appends, config: &GroupConfig, usage: &Usage) -> bool {
    appends.len() < config.pending_appends_max && usage.in_flight_bytes < config.memory_bytes_max
}

/// The key of a member's session.
pub(crate) fn session_key(partition: i32, group: &Arc<str>, member: &Arc<str>) -> Key {
    Key::Session { partition, group: group.clone(), member: member.clone() }
}
